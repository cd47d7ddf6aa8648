"""Fetch: what makes a batch, in the main program, in a thread or in a process alike.  After `collate.py`.

Each batch draws from a stream of its own, made of the loop's seed and the batch's number: so it does not matter where
it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from minigrad.create import Generator, drawing_from
from minigrad.data.collate import default_collate
from minigrad.data.dataset import IterableDataset, Subset

END = "minigrad: an iterable dataset has no more items"  # in a batch's place; a text is the same in every process


@dataclass(frozen=True)
class WorkerInfo:
    """Which worker of how many this is, the seed of its random numbers, and its copy of the dataset."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


_worker: ContextVar[WorkerInfo | None] = ContextVar("minigrad.worker", default=None)


def get_worker_info() -> WorkerInfo | None:
    """In a worker of a DataLoader: which one; an IterableDataset shares its items out by it.  Elsewhere None."""
    return _worker.get()


@contextmanager
def inside(info: WorkerInfo | None) -> Iterator[None]:
    token = _worker.set(info)
    try:
        yield
    finally:
        _worker.reset(token)


@dataclass
class Fetch:
    """Batch `number` of a loop: of the items `indices`, or of an iterable dataset's next ones."""

    dataset: Any
    collate_fn: Callable
    batched: bool  # False: single items, as they are
    batch_size: int = 1  # of an iterable dataset; for others the indices tell
    drop_last: bool = False
    seed: int = 0
    info: WorkerInfo | None = None
    items: Iterator | None = None

    def start(self, seed: int, info: WorkerInfo | None = None) -> Fetch:
        """Begin a loop; what an iterable dataset yields, it yields from its start."""
        self.seed, self.info, self.items = seed, info, None
        return self

    def __call__(self, number: int, indices: Any) -> Any:
        stream = Generator(int(np.random.SeedSequence([self.seed, number]).generate_state(1, np.uint64)[0]))
        with drawing_from(stream), inside(self.info):
            if isinstance(self.dataset, IterableDataset):
                return self._next(number)
            at: list = []
            try:
                return self._made(indices, at)
            except Exception as e:
                item = f", at item {at[0]}" if at else ""
                e.add_note(f"in the DataLoader, making batch {number} of the items {few(indices)}{item}")
                raise

    def _made(self, indices: Any, at: list) -> Any:
        if not self.batched:
            at[:] = [indices]
            return self.collate_fn(self.dataset[indices])
        if self.collate_fn is default_collate:
            rows = whole_rows(self.dataset, indices)
            if rows is not None:
                return rows
        items = []
        for i in indices:
            at[:] = [i]
            items.append(self.dataset[i])
        at.clear()
        return self.collate_fn(items)

    def _next(self, number: int) -> Any:
        if self.items is None:
            self.items = iter(self.dataset)
        try:
            if not self.batched:
                item = next(self.items, END)
                return item if item is END else self.collate_fn(item)
            batch = list(islice(self.items, self.batch_size))
            if not batch or (self.drop_last and len(batch) < self.batch_size):
                return END
            return self.collate_fn(batch)
        except Exception as e:
            e.add_note(f"in the DataLoader, making batch {number} of an iterable dataset")
            raise


def whole_rows(dataset: Any, indices: list[int]) -> list | None:
    """The batch at once, where the dataset's class (or that of the one this is a subset of) has a `take` beside its
    `__getitem__`: as TensorDataset."""
    while type(dataset) is Subset:
        dataset, indices = dataset.dataset, [dataset.indices[i] for i in indices]
    return dataset.take(indices) if {"take", "__getitem__"} <= vars(type(dataset)).keys() else None


def few(indices: Any) -> str:
    """The numbers of a batch, for an error."""
    return (
        str(indices) if not isinstance(indices, list) or len(indices) < 9 else f"{indices[:8]} … {len(indices)} in all"
    )
