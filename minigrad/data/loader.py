"""DataLoader: batches of a dataset, in order or shuffled, read ahead by threads if asked.

Same seed, same batches, whatever `num_workers` is: the order is drawn where the loop starts, and what an item draws
comes from a stream of its batch.  Workers are threads (NumPy releases the interpreter's lock while it works; for items
made in pure Python they bring little).  After `collate.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextvars import copy_context
from typing import Any

import numpy as np

from minigrad.create import Generator, drawing_from, stream
from minigrad.data.collate import default_collate
from minigrad.data.dataset import Subset, TensorDataset
from minigrad.data.sampler import BatchSampler, RandomSampler, SequentialSampler

POLL_S = 0.1  # an untimed wait would ignore Ctrl-C on Windows


class DataLoader:
    """An iterable of batches.  `num_workers` threads read `prefetch_factor` batches ahead each; 0: read when asked."""

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool = False,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[list[int]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        *,
        generator: Generator | None = None,
        prefetch_factor: int = 2,
    ) -> None:
        if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
            raise ValueError(
                "DataLoader: a batch_sampler decides all; leave batch_size, shuffle, sampler and drop_last out"
            )
        if sampler is not None and shuffle:
            raise ValueError("DataLoader: a sampler decides the order; leave shuffle out")
        if num_workers < 0 or prefetch_factor < 1:
            raise ValueError(
                f"DataLoader: num_workers must be at least 0 and prefetch_factor at least 1, "
                f"got {num_workers} and {prefetch_factor}"
            )
        self.dataset, self.generator = dataset, generator
        self.num_workers, self.prefetch_factor = num_workers, prefetch_factor
        self.sampler = sampler or (
            RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)
        )
        self.batch_size, self.drop_last = batch_size, drop_last
        self.batch_sampler = batch_sampler or (
            None if batch_size is None else BatchSampler(self.sampler, batch_size, drop_last)
        )
        self.collate_fn = collate_fn or (default_collate if self.batch_sampler else _as_it_is)

    def __len__(self) -> int:
        return len(self.batch_sampler if self.batch_sampler is not None else self.sampler)

    def __iter__(self) -> Iterator[Any]:
        seed = stream(self.generator).host().integers(0, 2**62)
        jobs = enumerate(self.sampler if self.batch_sampler is None else self.batch_sampler)
        if self.num_workers == 0:
            return (self._batch(seed, number, indices) for number, indices in jobs)
        return self._ahead(seed, jobs)

    def _batch(self, seed: int, number: int, indices: Any) -> Any:
        """Batch `number`, made of the items `indices`."""
        with drawing_from(Generator(int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0]))):
            try:
                return self._made(indices)
            except Exception as e:
                e.add_note(f"in the DataLoader, making batch {number} of the items {_few(indices)}")
                raise

    def _made(self, indices: Any) -> Any:
        if self.batch_sampler is None:
            return self.collate_fn(self.dataset[indices])
        if self.collate_fn is default_collate:
            rows = whole_rows(self.dataset, indices)
            if rows is not None:
                return rows
        return self.collate_fn([self.dataset[i] for i in indices])

    def _ahead(self, seed: int, jobs: Iterator) -> Iterator[Any]:
        """The batches in order, made by threads; at the end, or when the loop is left, the threads end too."""
        from concurrent.futures import Future, ThreadPoolExecutor, wait

        pool = ThreadPoolExecutor(self.num_workers, "minigrad-loader")
        waiting: deque[Future] = deque()
        try:
            for number, indices in jobs:
                waiting.append(pool.submit(copy_context().run, self._batch, seed, number, indices))
                if len(waiting) >= self.num_workers * self.prefetch_factor:
                    yield _result(waiting.popleft(), wait)
            while waiting:
                yield _result(waiting.popleft(), wait)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _result(job: Any, wait: Callable) -> Any:
    while not job.done():
        wait([job], timeout=POLL_S)
    return job.result()


def whole_rows(dataset: Any, indices: list[int]) -> list | None:
    """The batch by one index per tensor, where the dataset is made of tensors (or a subset of one that is)."""
    while type(dataset) is Subset:
        dataset, indices = dataset.dataset, [dataset.indices[i] for i in indices]
    return dataset.take(indices) if type(dataset) is TensorDataset else None


def _few(indices: Any) -> str:
    return (
        str(indices) if not isinstance(indices, list) or len(indices) < 9 else f"{indices[:8]} … {len(indices)} in all"
    )


def _as_it_is(item: Any) -> Any:
    return item
