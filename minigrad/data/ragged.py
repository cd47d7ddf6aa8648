"""Items of different lengths in one batch: padded, packed, sorted into buckets; trees joined to a forest.

After `loader.py`; the other side, nets for such batches, is `nn/packed.py` and `nn/tree.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from minigrad.create import Generator, stream, tensor
from minigrad.data.collate import default_collate
from minigrad.data.sampler import Sampler
from minigrad.nn.packed import PackedSequence, pack_padded_sequence, pad_sequence
from minigrad.nn.tree import join
from minigrad.tensor import Tensor


class Padded(NamedTuple):
    """Sequences as one tensor: `values` (N, T, …), T the longest, and `lengths` (N), int64."""

    values: Tensor
    lengths: Tensor

    @property
    def mask(self) -> Tensor:
        """(N, T): True where there is a value, False where there is padding."""
        steps = np.arange(self.values.shape[1])
        return Tensor(steps < self.lengths.numpy()[:, None])

    def packed(self) -> PackedSequence:
        """For an RNN; what it gives back has the order of this batch."""
        return pack_padded_sequence(self.values, self.lengths, batch_first=True, enforce_sorted=False)


def pad_collate(batch: list, padding_value: float = 0.0) -> Any:
    """As `default_collate`, but tensors, arrays and lists of numbers become `Padded`; numbers are stacked as ever.

    For another padding: collate_fn=functools.partial(pad_collate, padding_value=-1)."""
    first = batch[0]
    if isinstance(first, Tensor | np.ndarray) and first.ndim or _is_sequence_of_numbers(first):
        rows = [x if isinstance(x, Tensor) else tensor(x) for x in batch]
        lengths = Tensor(np.array([len(row) for row in rows], np.int64))
        return Padded(pad_sequence(rows, batch_first=True, padding_value=padding_value), lengths)
    if isinstance(first, Mapping):
        return {key: pad_collate([item[key] for item in batch], padding_value) for key in first}
    if isinstance(first, tuple):
        sizes = sorted({len(item) for item in batch})
        if len(sizes) > 1:
            raise ValueError(f"pad_collate: the items have {sizes} parts; write a collate_fn")
        parts = [pad_collate(list(part), padding_value) for part in zip(*batch)]
        return type(first)(*parts) if hasattr(first, "_fields") else parts
    return default_collate(batch)


def _is_sequence_of_numbers(x: Any) -> bool:
    return isinstance(x, list) and all(isinstance(v, bool | int | float | np.generic) for v in x)


class BucketBatchSampler(Sampler):
    """Batches of items of about one length, in a random order drawn anew for each walk.

    The order is shuffled, cut into windows of `window` batches, and each window sorted by length: the larger it is, the
    less padding, and the less chance.  Pass it as batch_sampler."""

    def __init__(
        self,
        lengths: Sequence[int],
        batch_size: int,
        drop_last: bool = False,
        window: int = 50,
        generator: Generator | None = None,
    ) -> None:
        if batch_size < 1 or window < 1:
            raise ValueError(f"BucketBatchSampler: batch_size = {batch_size}, window = {window}: at least 1 each")
        self.lengths = np.asarray(lengths, np.int64)
        self.batch_size, self.drop_last, self.window, self.generator = batch_size, drop_last, window, generator

    def __iter__(self) -> Iterator[list[int]]:
        draw, size = stream(self.generator).host(), self.batch_size
        order, wide = draw.permutation(len(self.lengths)), size * self.window
        batches = []
        for start in range(0, len(order), wide):
            rows = order[start : start + wide]
            rows = rows[np.argsort(self.lengths[rows], kind="stable")]
            batches += [rows[k : k + size].tolist() for k in range(0, len(rows), size)]
        if self.drop_last:
            batches = [batch for batch in batches if len(batch) == size]
        return iter([batches[k] for k in draw.permutation(len(batches))])

    def __len__(self) -> int:
        full, rest = divmod(len(self.lengths), self.batch_size)
        return full + (rest > 0 and not self.drop_last)


class Forest(NamedTuple):
    """Trees in one numbering: `inputs` of all nodes, `children[i]` of node i, one of `roots` for each tree, labels."""

    inputs: Tensor
    children: list[list[int]]
    roots: Tensor
    labels: Any


def tree_collate(batch: list) -> Forest:
    """Trees (inputs, children, label), root first, as a forest: for nn.ChildSumTreeLSTM, whose `h[roots]` are read."""
    inputs, children, labels = zip(*batch)
    for x, below in zip(inputs, children):
        if len(x) != len(below) or not len(below):
            raise ValueError(f"tree_collate: a tree has inputs for {len(x)} nodes and children of {len(below)}")
    joined, first = join(children)
    rows = np.concatenate([np.asarray(x.numpy() if isinstance(x, Tensor) else x) for x in inputs])
    return Forest(Tensor(rows), joined, Tensor(np.array(first, np.int64)), default_collate(list(labels)))
