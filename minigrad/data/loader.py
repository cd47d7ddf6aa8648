"""DataLoader: batches of a dataset, in order or shuffled, made ahead by threads or processes if asked.

Same seed, same batches, whatever works: the order is drawn where the loop starts, and what an item draws comes from a
stream of its batch.  Threads are the default workers: they need nothing, and NumPy releases the interpreter's lock
while it works.  For items made in pure Python let processes work: `multiprocessing_context="spawn"`.

After `workers.py`.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import Any

from minigrad.create import Generator, drawing_from, stream
from minigrad.data.collate import default_collate
from minigrad.data.dataset import IterableDataset
from minigrad.data.fetch import END, Fetch
from minigrad.data.sampler import BatchSampler, RandomSampler, SequentialSampler
from minigrad.data.workers import (
    ProcessWorker,
    ThreadWorker,
    WorkerError,
    WorkerTimeout,
    ahead,
    close_all,
    packed,
)
from minigrad.probes import phase
from minigrad.tensor import current


class DataLoader:
    """An iterable of batches.  `num_workers` make `prefetch_factor` batches ahead each; 0: made when asked for.

    `multiprocessing_context`: "thread" (default) or "spawn", processes.  `timeout` seconds for a batch, 0: no limit.
    `worker_init_fn(number)` runs first in each worker.  `persistent_workers`: processes stay for the next loop.
    `pin_memory` is accepted and does nothing."""

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[list[int]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: str | None = None,
        generator: Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
    ) -> None:
        if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
            raise ValueError(
                "DataLoader: a batch_sampler decides all; leave batch_size, shuffle, sampler and drop_last out"
            )
        if sampler is not None and shuffle:
            raise ValueError("DataLoader: a sampler decides the order; leave shuffle out")
        if batch_size is None and drop_last:
            raise ValueError("DataLoader: without batches (batch_size=None) there is no last one to drop")
        _check_workers(num_workers, prefetch_factor, timeout, persistent_workers, multiprocessing_context)
        self.dataset, self.generator, self.timeout, self.worker_init_fn = dataset, generator, timeout, worker_init_fn
        self.num_workers, self.prefetch_factor = num_workers, prefetch_factor or 2
        self.multiprocessing_context = multiprocessing_context or "thread"
        self.persistent_workers = persistent_workers
        self.batch_size, self.drop_last = batch_size, drop_last
        self.sampler: Any = None
        self.batch_sampler: Any = batch_sampler
        if isinstance(dataset, IterableDataset):
            if shuffle or sampler is not None or batch_sampler is not None:
                raise ValueError("DataLoader: an IterableDataset decides its order; leave shuffle and samplers out")
            if batch_size is not None:
                BatchSampler([], batch_size, drop_last)  # refuses a wrong batch_size
        else:
            self.sampler = sampler or (
                RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)
            )
            if batch_sampler is None and batch_size is not None:
                self.batch_sampler = BatchSampler(self.sampler, batch_size, drop_last)
        self.batched = batch_sampler is not None or batch_size is not None
        self.collate_fn = collate_fn or (default_collate if self.batched else _as_it_is)
        self._forget()

    def _forget(self) -> None:
        self._workers: list | None = None  # persistent ones
        self._loop = 0
        self._start: list[int] | None = None  # the stream's state where the loop started
        self._done = 0  # the batches handed out in it
        self._resume: tuple[list[int] | None, int] | None = None

    def __len__(self) -> int:
        if not isinstance(self.dataset, IterableDataset):
            return len(self.batch_sampler if self.batch_sampler is not None else self.sampler)
        n = len(self.dataset)  # where it has one
        if self.batch_size is None:
            return n
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    # -- the loop
    def __iter__(self) -> Iterator[Any]:
        (start, skip), self._resume = self._resume or (None, 0), None
        source = stream(self.generator)
        if start is not None:  # draw as that loop did; the process's own stream stays where it is
            source = source if self.generator is not None else Generator()
            source.seed, source.offset = start
        self._start, self._done = [source.seed, source.offset], skip
        self._loop += 1
        with drawing_from(source) if start is not None else nullcontext():
            seed = int(source.host().integers(0, 2**62))
            jobs = self._jobs()
            if start is not None:
                first = list(itertools.islice(jobs, 1))  # a sampler draws when it is first asked
                jobs = itertools.chain(first, jobs)
        if not isinstance(self.dataset, IterableDataset):
            jobs = itertools.islice(jobs, skip, None)
        return self._walk(seed, jobs, self._loop, skip)

    def _jobs(self) -> Iterator[tuple[int, Any]]:
        if isinstance(self.dataset, IterableDataset):
            return enumerate(itertools.repeat(None))
        return enumerate(self.sampler if self.batch_sampler is None else self.batch_sampler)

    def _walk(self, seed: int, jobs: Iterator, loop: int, skip: int) -> Iterator[Any]:
        batches = self._made(seed, jobs)
        if isinstance(self.dataset, IterableDataset):
            batches = itertools.islice(batches, skip, None)
        for batch in self._told(batches):
            if loop == self._loop:
                self._done += 1
            yield batch
            if loop != self._loop and self._workers is not None:
                raise RuntimeError("DataLoader: persistent workers serve one loop at a time, and another was begun")
        if loop == self._loop:
            self._start = None

    def _told(self, batches: Iterator) -> Iterator[Any]:
        """The batches; probes are told while the loop waits for one."""
        while True:
            with phase(current().observers, "load", self):
                batch = next(batches, END)
            if batch is END:
                return
            yield batch

    def _made(self, seed: int, jobs: Iterator) -> Iterator[Any]:
        fetch = self._fetch()
        if not self.num_workers:
            fetch.start(seed)
            made = (fetch(*job) for job in jobs)
            yield from itertools.takewhile(lambda batch: batch is not END, made)
            return
        workers = self._workers or self._hired(fetch)
        try:
            for worker in workers:
                worker.start(seed)
            yield from ahead(workers, jobs, self.prefetch_factor)
        except (WorkerError, WorkerTimeout):
            self._workers = None  # what is left of them does not stay
            raise
        finally:
            if workers is not self._workers:
                close_all(workers)

    def _fetch(self) -> Fetch:
        return Fetch(self.dataset, self.collate_fn, self.batched, self.batch_size or 1, self.drop_last)

    def _hired(self, fetch: Fetch) -> list:
        n, workers = self.num_workers, []
        try:
            if self.multiprocessing_context == "thread":
                for k in range(n):
                    workers.append(ThreadWorker(self._fetch(), k, n, self.worker_init_fn, self.timeout))
            else:
                payload = packed(fetch, self.worker_init_fn)
                for k in range(n):
                    workers.append(ProcessWorker(payload, k, n, self.timeout))
        except BaseException:
            close_all(workers)
            raise
        if self.persistent_workers and self.multiprocessing_context != "thread":
            self._workers = workers
            weakref.finalize(self, close_all, workers)
        return workers

    # -- state
    def state_dict(self) -> dict[str, Any]:
        """Where the loop is: called in its body, the batches up to this one are done.  Load it before a new loop.

        With one's own `generator` that is all; else load the process's stream too (get_rng_state)."""
        return {"start": self._start, "batches": self._done if self._start is not None else 0}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The next loop goes on where the state was taken, with the same order and the same draws."""
        self._resume = state_dict["start"], state_dict["batches"]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_workers": None}


def _check_workers(
    num_workers: int, prefetch_factor: int | None, timeout: float, persistent: bool, context: str | None
) -> None:
    if num_workers < 0 or (prefetch_factor is not None and prefetch_factor < 1) or timeout < 0:
        raise ValueError(
            "DataLoader: num_workers and timeout must be at least 0 and prefetch_factor at least 1, "
            f"got {num_workers}, {timeout} and {prefetch_factor}"
        )
    if persistent and num_workers == 0:
        raise ValueError("DataLoader: persistent_workers need num_workers above 0")
    if context not in (None, "thread", "spawn"):
        raise ValueError(
            f"DataLoader: multiprocessing_context must be 'thread' or 'spawn' (processes, the way that every system "
            f"has), got {context!r}"
        )


def _as_it_is(item: Any) -> Any:
    return item
