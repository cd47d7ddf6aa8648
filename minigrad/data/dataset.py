"""Datasets: things with a length and items by number; parts of them, and several as one.  First file of the package."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from minigrad.create import Generator, randperm
from minigrad.tensor import Tensor


class Dataset:
    """Base: define `__getitem__(number)` and `__len__()`."""

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must define __getitem__(index)")

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} must define __len__()")

    def __add__(self, other: Dataset) -> ConcatDataset:
        return ConcatDataset([self, other])


class TensorDataset(Dataset):
    """Tensors of one length; item k is the tuple of their rows k."""

    def __init__(self, *tensors: Tensor) -> None:
        lengths = [len(t) for t in tensors]
        if not tensors or len(set(lengths)) > 1:
            raise ValueError(f"TensorDataset: the tensors have {lengths} rows; they must have the same number")
        self.tensors = tensors

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return tuple(t[index] for t in self.tensors)

    def __len__(self) -> int:
        return len(self.tensors[0])

    def take(self, indices: Sequence[int]) -> list[Tensor]:
        """Many rows at once: what `default_collate` makes of the items, some twenty times as fast."""
        rows = np.asarray(indices, np.int64)
        return [t[rows] for t in self.tensors]


class Subset(Dataset):
    """The items of another dataset at `indices`."""

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, [int(i) for i in indices]

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.indices[index]]

    def __len__(self) -> int:
        return len(self.indices)


class ConcatDataset(Dataset):
    """Datasets one after the other."""

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ValueError("ConcatDataset: expected at least one dataset")
        self.ends = list(accumulate(map(len, self.datasets)))

    def __len__(self) -> int:
        return self.ends[-1]

    def __getitem__(self, index: int) -> Any:
        k = index + len(self) if index < 0 else index
        if not 0 <= k < len(self):
            raise IndexError(f"ConcatDataset: item {index} of {len(self)}")
        which = bisect_right(self.ends, k)
        return self.datasets[which][k - (self.ends[which - 1] if which else 0)]


class StackDataset(Dataset):
    """Datasets of one length beside each other: item k is the tuple of their items k, or a dict of them."""

    def __init__(self, *datasets: Any, **named: Any) -> None:
        if bool(datasets) == bool(named):
            raise ValueError("StackDataset: pass datasets by position (items are tuples) or by name (dicts), not both")
        self.datasets: Any = named or datasets
        lengths = [len(d) for d in self._all()]
        if len(set(lengths)) > 1:
            raise ValueError(f"StackDataset: the datasets have {lengths} items; they must have the same number")

    def _all(self) -> Iterable[Any]:
        return self.datasets.values() if isinstance(self.datasets, dict) else self.datasets

    def __getitem__(self, index: int) -> tuple | dict:
        if isinstance(self.datasets, dict):
            return {name: d[index] for name, d in self.datasets.items()}
        return tuple(d[index] for d in self.datasets)

    def __len__(self) -> int:
        return len(next(iter(self._all())))


class IterableDataset(Dataset):
    """Base of streams: define `__iter__()`.  A worker of a DataLoader sees all of it: share it out with
    `get_worker_info()`."""

    def __iter__(self) -> Iterator:
        raise NotImplementedError(f"{type(self).__name__} must define __iter__()")

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__name__} is a stream and has no length")

    def __getitem__(self, index: int) -> Any:
        raise TypeError(f"{type(self).__name__} is a stream: its items come in order, not by number")

    def __add__(self, other: Any) -> ChainDataset:
        return ChainDataset([self, other])


class ChainDataset(IterableDataset):
    """Streams one after the other."""

    def __init__(self, datasets: Iterable[IterableDataset]) -> None:
        self.datasets = datasets

    def __iter__(self) -> Iterator:
        for dataset in self.datasets:
            if not isinstance(dataset, IterableDataset):
                raise TypeError(f"ChainDataset: a {type(dataset).__name__} is no IterableDataset; use ConcatDataset")
            yield from dataset

    def __len__(self) -> int:
        return sum(map(len, self.datasets))


def random_split(dataset: Any, lengths: Sequence[int | float], generator: Generator | None = None) -> list[Subset]:
    """Parts of the given lengths, drawn without overlap; fractions that add up to 1 share what is left one by one."""
    n = len(dataset)
    if all(0 <= length <= 1 for length in lengths) and abs(sum(lengths) - 1) < 1e-6:
        counts = [int(n * share) for share in lengths]
        for i in range(n - sum(counts)):
            counts[i % len(counts)] += 1
    else:
        counts = [int(length) for length in lengths]
    if sum(counts) != n or min(counts) < 0:
        raise ValueError(
            f"random_split: lengths {list(lengths)} do not add up to the {n} items (or, as fractions, to 1)"
        )
    order = randperm(n, generator=generator).tolist()
    return [Subset(dataset, order[end - count : end]) for count, end in zip(counts, accumulate(counts))]
