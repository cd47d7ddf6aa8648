"""Sequences of different lengths as one batch: padded to one length, or packed without the padding.

`nn.utils.rnn` re-exports all of it; `rnn.py`, which runs packed batches, comes next.  After `layers.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from minigrad.aval import Aval
from minigrad.create import place
from minigrad.dtype import int64
from minigrad.errors import ShapeError
from minigrad.ops.doors import function
from minigrad.ops.packing import PutRows, TakeRows
from minigrad.ops.shape import cat
from minigrad.ops.views import cut, reshape
from minigrad.tensor import Tensor


class PackedSequence(NamedTuple):
    """A batch without padding: `data` (R, …) holds the rows of step 0, of step 1, …, longest sequence first.

    `batch_sizes` (steps), on the host, says how many rows each step has.  `sorted_indices` says where each packed
    sequence stood in the user's batch, `unsorted_indices` where each of the user's went; None: as they came."""

    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None = None
    unsorted_indices: Tensor | None = None

    def to(self, *args, **kwargs) -> PackedSequence:
        """The same with `data` moved or converted; the indices follow it to a device."""
        data = self.data.to(*args, **kwargs)
        moved = [None if t is None else t.to(data.o.device) for t in (self.sorted_indices, self.unsorted_indices)]
        return PackedSequence(data, self.batch_sizes, *moved)


def numbers(host: np.ndarray, like: Tensor) -> Tensor:
    """Row numbers as a tensor on the device of `like`."""
    host = np.asarray(host, np.int64)
    return Tensor(place(host, like.o.device) if like.o.eager else Aval(host.shape, int64))


def take_rows(x: Tensor, index: np.ndarray) -> Tensor:
    """Rows of x by numbers that differ."""
    return function(TakeRows)(x, numbers(index, x))


def put_rows(x: Tensor, index: np.ndarray, n: int, value: float = 0.0) -> Tensor:
    """n rows of `value` with those of x at numbers that differ."""
    return function(PutRows, n, float(value))(x, numbers(index, x))


def host_lengths(lengths: Tensor | Sequence[int], n: int, steps: int, name: str) -> np.ndarray:
    """The lengths of n sequences of at most `steps` steps as a host array, checked."""
    found = np.asarray(lengths.tolist() if isinstance(lengths, Tensor) else [int(v) for v in lengths])
    if found.shape != (n,):
        raise ShapeError(f"{name}: {found.size} lengths for a batch of {n} sequences")
    if n and (found.min() < 1 or found.max() > steps):
        wrong = int(found[(found < 1) | (found > steps)][0])
        raise ShapeError(
            f"{name}: a length of {wrong}: each must be at least 1 and at most the {steps} steps of the input. "
            "Leave empty sequences out of the batch"
        )
    return found.astype(np.int64)


def alive(lengths: np.ndarray) -> np.ndarray:
    """(steps): how many sequences last longer than each step."""
    return (lengths[None] > np.arange(lengths.max(initial=0))[:, None]).sum(1)


def places(sizes: np.ndarray, order: np.ndarray, steps: int, batch_first: bool) -> np.ndarray:
    """Where each packed row stands in a padded batch whose first two axes are made one."""
    time = np.repeat(np.arange(len(sizes)), sizes)
    which = order[np.arange(len(time)) - np.repeat(np.cumsum(sizes) - sizes, sizes)]
    return which * steps + time if batch_first else time * len(order) + which


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """Where each number stands in a permutation of 0, 1, …"""
    return None if permutation is None else permutation.argsort()


# ---- packing ---------------------------------------------------------------------------------------
def pack_padded_sequence(
    input: Tensor, lengths: Tensor | Sequence[int], batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """(T, N, …), or (N, T, …) with `batch_first`, without what lies behind each length.

    With `enforce_sorted` the lengths must fall; without, the sequences are sorted here and unsorted again behind
    the net."""
    if input.ndim < 2:
        raise ShapeError(f"pack_padded_sequence: expected (T, N, …), got {input.shape}")
    n, steps = input.shape[:2] if batch_first else input.shape[1::-1]
    found = host_lengths(lengths, n, steps, "pack_padded_sequence")
    if enforce_sorted and (np.diff(found) > 0).any():
        raise RuntimeError(
            f"pack_padded_sequence: the lengths must fall, got {found.tolist()}. Pass enforce_sorted=False to have "
            "the sequences sorted"
        )
    if not n:
        raise ShapeError("pack_padded_sequence: a batch of no sequences")
    order = np.arange(n) if enforce_sorted else np.argsort(-found, kind="stable")
    sizes = alive(found)
    rows = reshape(input, (n * steps, *input.shape[2:]))
    data = take_rows(rows, places(sizes, order, steps, batch_first))
    indices = (None, None) if enforce_sorted else (numbers(order, input), numbers(np.argsort(order), input))
    return PackedSequence(data, Tensor(sizes.astype(np.int64)), *indices)


def order_of(packed: PackedSequence) -> np.ndarray:
    """Where each packed sequence stood in the user's batch."""
    n = packed.batch_sizes.tolist()[0]
    return np.arange(n) if packed.sorted_indices is None else np.asarray(packed.sorted_indices.tolist(), np.int64)


def pad_packed_sequence(
    sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> tuple[Tensor, Tensor]:
    """(padded batch in the user's order, lengths): the inverse of `pack_padded_sequence`.

    `total_length`: the number of steps of the result, at least that of the longest sequence."""
    sizes, order = np.asarray(sequence.batch_sizes.tolist()), order_of(sequence)
    steps = len(sizes) if total_length is None else total_length
    if steps < len(sizes):
        raise ValueError(f"pad_packed_sequence: total_length {total_length} is below the longest length, {len(sizes)}")
    n, data = len(order), sequence.data
    index = places(sizes, order, steps, batch_first)
    padded = put_rows(data, index, n * steps, padding_value)
    lengths = np.empty(n, np.int64)
    lengths[order] = (sizes[:, None] > np.arange(n)).sum(0)
    return reshape(padded, (*((n, steps) if batch_first else (steps, n)), *data.shape[1:])), Tensor(lengths)


# ---- padding ----------------------------------------------------------------------------------------
def pad_sequence(
    sequences: Sequence[Tensor] | Tensor,
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:
    """Sequences (length, …) as one batch (T, N, …), or (N, T, …), padded at one side to the longest."""
    found = list(sequences)
    if not found:
        raise RuntimeError("pad_sequence: an empty list of sequences")
    if padding_side not in ("left", "right"):
        raise RuntimeError(f"pad_sequence: padding_side {padding_side!r} is neither 'left' nor 'right'")
    if not all(s.ndim for s in found) or len({s.shape[1:] for s in found}) > 1:
        raise ShapeError(f"pad_sequence: shapes {[s.shape for s in found]} may differ in the first axis only")
    n, steps = len(found), max(s.shape[0] for s in found)
    begin = [0 if padding_side == "right" else steps - s.shape[0] for s in found]
    time = np.concatenate([b + np.arange(s.shape[0]) for b, s in zip(begin, found)])
    which = np.repeat(np.arange(n), [s.shape[0] for s in found])
    index = which * steps + time if batch_first else time * n + which
    padded = put_rows(cat(found, 0), index, n * steps, padding_value)
    return reshape(padded, (*((n, steps) if batch_first else (steps, n)), *found[0].shape[1:]))


def unpad_sequence(
    padded_sequences: Tensor, lengths: Tensor | Sequence[int], batch_first: bool = False
) -> list[Tensor]:
    """The sequences of a padded batch, each cut to its length."""
    n, steps = padded_sequences.shape[:2] if batch_first else padded_sequences.shape[1::-1]
    found = host_lengths(lengths, n, steps, "unpad_sequence").tolist()
    rows = lambda k, m: (k, slice(0, m)) if batch_first else (slice(0, m), k)
    return [cut(padded_sequences, rows(k, m)) for k, m in enumerate(found)]


def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Sequences (length, …), packed; with `enforce_sorted` the longest must come first."""
    lengths = [s.shape[0] for s in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The sequences that were packed, in the user's order."""
    return unpad_sequence(*pad_packed_sequence(packed_sequences))


