"""Samplers: in which order the items come, and in which batches.  After `dataset.py`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np

from minigrad.create import Generator, randperm, stream


class Sampler:
    """Base: an iterable of item numbers (or, for a batch sampler, of lists of them)."""

    def __iter__(self) -> Iterator:
        raise NotImplementedError(f"{type(self).__name__} must define __iter__()")


class SequentialSampler(Sampler):
    """0, 1, 2, …"""

    def __init__(self, data_source: Any) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(Sampler):
    """Every item once, in an order drawn anew for each walk; or `num_samples` draws with replacement.

    More samples than items without replacement: one order after the other."""

    def __init__(
        self,
        data_source: Any,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Generator | None = None,
    ) -> None:
        self.data_source, self.replacement, self.generator = data_source, replacement, generator
        self.num_samples = len(data_source) if num_samples is None else num_samples
        if self.num_samples and not len(data_source):
            raise ValueError(f"RandomSampler: {self.num_samples} samples of no items")

    def __iter__(self) -> Iterator[int]:
        n = len(self.data_source)
        if self.replacement:
            draw = stream(self.generator).host()
            return iter(draw.integers(0, n, self.num_samples).tolist())
        orders = range(-(-self.num_samples // n) if n else 0)
        drawn = chain.from_iterable(randperm(n, generator=self.generator).tolist() for _ in orders)
        return islice(drawn, self.num_samples)

    def __len__(self) -> int:
        return self.num_samples


class WeightedRandomSampler(Sampler):
    """`num_samples` draws, item k with a probability in proportion to weights[k]."""

    def __init__(
        self, weights: Sequence[float], num_samples: int, replacement: bool = True, generator: Generator | None = None
    ) -> None:
        self.weights = np.asarray(weights, np.float64)
        self.num_samples, self.replacement, self.generator = num_samples, replacement, generator
        if (self.weights < 0).any() or not self.weights.sum() > 0:
            raise ValueError("WeightedRandomSampler: weights must not be negative, and some must be positive")
        possible = int((self.weights > 0).sum())
        if not replacement and num_samples > possible:
            raise ValueError(
                f"WeightedRandomSampler: {num_samples} samples of {possible} items with a weight above 0 need "
                "replacement=True"
            )

    def __iter__(self) -> Iterator[int]:
        draw, p = stream(self.generator).host(), self.weights / self.weights.sum()
        return iter(draw.choice(len(p), self.num_samples, self.replacement, p).tolist())

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler):
    """Lists of `batch_size` numbers from a sampler; `drop_last` leaves out a shorter last one."""

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool) -> None:
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"batch_size must be a positive integer, got {batch_size!r}")
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        for index in self.sampler:
            batch.append(index)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch

    def __len__(self) -> int:
        full, rest = divmod(len(self.sampler), self.batch_size)
        return full + (rest > 0 and not self.drop_last)
