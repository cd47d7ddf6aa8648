"""A rank is a task of a Dask cluster: programs of ranks in processes, on this machine or on many.

The driver here pins a task to a worker for each rank, waits, and watches that all workers stay; `service.py` is what
runs there.  After `service.py`; `spawn.py` calls `run`.
"""
from __future__ import annotations

import os
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np
from distributed import Client, Future, LocalCluster
from distributed.deploy import Cluster as DaskCluster

from simulator.clocks import Clocks
from simulator.cluster import Cluster
from simulator.errors import RanksAbsent, RankTimeout, WorkerLost
from simulator.executors.packing import pack, unpack, unsendable
from simulator.executors.service import Setup, halt, look
from simulator.network import Network

LIMIT_S, LOOK_S = 0.05, 0.3                  # of a wait; between looks at the cluster
CONNECT_S, START_S, PATIENCE_S = 5.0, 20.0, 8.0
INLINE = 2**20                               # bytes of a program that may travel with each task


class Ended:
    """What came of a run: the same names as the books of the executor for threads."""

    def __init__(self, cluster: Cluster) -> None:
        self.size = cluster.world_size
        self.values: list[Any] = [None] * self.size
        self.failures: dict[int, BaseException] = {}
        self.returned: dict[int, str] = {}
        self.error: BaseException | None = None
        self.nbytes = np.zeros((self.size, self.size), np.int64)
        self.clocks = Clocks(Network(cluster), self.size)
        self.peaks: list[int] = []
        self.posted: dict[tuple[int, int], np.ndarray] = {}  # (src, dst) -> bytes of each message, by the transport
        self.arrived = np.zeros((self.size, self.size), np.int64)    # by the transport of the receiver


def run(program: Callable[..., Any], cluster: Cluster, args: tuple, kwargs: dict[str, Any], *, timeout: float | None,
        check: bool, device: str, timed: bool, client: Any) -> Ended:
    """Run `program(comm, *args, **kwargs)` on each rank.  What the run ended with is in the result; raised is what
    prevents a result: WorkerLost, RanksAbsent, RankTimeout, KeyboardInterrupt, what cannot be sent or reached."""
    setup = _packed(program, args, kwargs, Setup(cluster, check, device, timed))
    with _connected(client, cluster.world_size) as connected:
        return Job(connected, cluster, getattr(program, "__name__", "program")).run(setup, timeout)


def _packed(program: Callable[..., Any], args: tuple, kwargs: dict[str, Any], setup: Setup) -> bytes:
    """All that goes to the workers.  TypeError naming what cannot be sent."""
    try:
        return pack(program, args, kwargs, setup)
    except Exception as error:
        parts = [("the program", program), *((f"argument {k + 1}", x) for k, x in enumerate(args)),
                 *((f"argument {name!r}", x) for name, x in kwargs.items())]
        raise TypeError(f"spawn: {unsendable(parts)} cannot be sent to another process: {error}. Make it within the "
                        f"program, or give what it is made of") from error


# ---- the cluster ---------------------------------------------------------------------------------
@contextmanager
def _connected(client: Any, ranks: int) -> Iterator[Client]:
    """A client to work with; what is made here is closed here."""
    if client is None:
        with suppress(ValueError):
            client = Client.current()
    if isinstance(client, Client):
        _check_usable(client)
        yield client
    elif client is None:
        with local_cluster(min(ranks, max(4, os.cpu_count() or 1))) as made, Client(made, set_as_default=False) as mine:
            yield mine
    elif isinstance(client, str | DaskCluster):
        with _joined(client) as mine:
            yield mine
    else:
        raise TypeError(f"spawn: client is a distributed.Client, a cluster, or the address of a scheduler, got "
                        f"{type(client).__name__}")


def local_cluster(workers: int) -> LocalCluster:
    """Worker processes on this machine with one thread each, also for BLAS; no dashboard, and any free port."""
    one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return LocalCluster(n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=":0",
                        scheduler_kwargs={"dashboard": False}, silence_logs=50, env=one)


def _joined(there: Any) -> Client:
    try:
        return Client(there, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ConnectionError(f"spawn: no Dask scheduler answers at {there!r} within {CONNECT_S:g} s: {error}. Start "
                              f"one (`dask scheduler`, `dask worker ADDRESS`), or leave client out for workers on this "
                              f"machine") from error


def _check_usable(client: Client) -> None:
    if client.asynchronous:
        raise TypeError("spawn: the client is asynchronous. Give a plain Client")
    if client.status != "running":
        raise ConnectionError(f"spawn: the client is {client.status}. Make a new one")


def _begin() -> Callable[..., Any]:
    """A task that can be read everywhere: Dask drops a worker that cannot read a task."""
    def begin(*args: Any) -> dict[str, Any]:                 # within a function: so it travels as code, not as a name
        from simulator.executors.service import serve
        return serve(*args)
    return begin


class Job:
    """One run on a cluster."""

    def __init__(self, client: Client, cluster: Cluster, name: str) -> None:
        self.client, self.cluster, self.size = client, cluster, cluster.world_size
        self.id = uuid.uuid4().hex
        workers = self._workers(wait=True)
        self.addresses = [workers[rank % len(workers)] for rank in range(self.size)]
        self.names = [f"{name}, rank {rank}-{self.id}" for rank in range(self.size)]
        self._event = threading.Event()

    def _workers(self, wait: bool = False) -> list[str]:
        """The addresses of all workers that the scheduler has."""
        until = time.monotonic() + CONNECT_S
        while True:
            try:
                known = self.client.sync(self.client.scheduler.identity, n_workers=-1, callback_timeout=CONNECT_S)
            except (OSError, RuntimeError) as error:
                raise WorkerLost(f"spawn: the scheduler at {self.client.scheduler.address} does not answer any more: "
                                 f"{error}. Its workers end with it; start a new cluster") from error
            if known["workers"] or not wait:
                return sorted(known["workers"])
            if time.monotonic() > until:
                raise RanksAbsent(f"spawn: the cluster at {self.client.scheduler.address} has no workers. Start some "
                                  f"(cluster.scale(n), `dask worker ADDRESS`); a worker can have several ranks")
            time.sleep(LIMIT_S)

    def run(self, setup: bytes, timeout: float | None) -> Ended:
        try:
            futures = self._submitted(setup)
            self._await(futures, timeout)
            outcomes = self.client.gather(futures)
        except BaseException as error:
            self._halt(error)
            raise
        lost = [out["lost"] for out in outcomes if out["lost"]]
        if lost:
            warnings.warn(f"spawn: {'; '.join(lost)}", RuntimeWarning, stacklevel=4)
        return self._ended(outcomes)

    def _submitted(self, setup: bytes) -> list[Future]:
        sent = setup if len(setup) <= INLINE else self.client.scatter(setup, workers=sorted({*self.addresses}),
                                                                      broadcast=True, hash=False)
        return [self.client.submit(_begin(), self.id, rank, self.addresses, self.names[rank], sent, workers=[address],
                                   allow_other_workers=False, pure=False, retries=0, key=self.names[rank])
                for rank, address in enumerate(self.addresses)]

    # -- waiting
    def _await(self, futures: Sequence[Future], timeout: float | None) -> None:
        """Until all tasks are done; raises what ends the run from here."""
        for future in futures:
            future.add_done_callback(lambda _: self._event.set())
        began = time.monotonic()
        looked, all_here = began, False
        while not all(future.status == "finished" for future in futures):
            self._check(futures)
            self._event.wait(LIMIT_S)
            self._event.clear()
            now = time.monotonic()
            if now - looked > LOOK_S:
                self._check_workers()
                looked = time.monotonic()
            if timeout is not None and now - began > timeout:
                raise RankTimeout(self._too_long(timeout))
            if not all_here and now - began > START_S:
                self._check_here(futures)
                all_here = True

    def _check(self, futures: Sequence[Future]) -> None:
        for rank, future in enumerate(futures):
            if future.status in ("error", "cancelled", "lost"):
                self._check_workers()
                error = future.exception() if future.status == "error" else None
                if isinstance(error, ImportError) or "deserializ" in str(error):
                    raise RanksAbsent(
                        f"spawn: the worker {self.addresses[rank]} cannot read the program: {error}. Install this "
                        f"package and the modules of the program there too, or define the program in __main__ or the "
                        f"notebook, whose functions travel") from error
                raise WorkerLost(f"spawn: the task of rank {rank} on {self.addresses[rank]} is {future.status}"
                                 + (f": {type(error).__name__}: {error}" if error else "")) from error

    def _check_workers(self) -> None:
        """WorkerLost if one is gone."""
        gone = {*self.addresses}.difference(self._workers())
        if gone:
            ranks = [rank for rank, address in enumerate(self.addresses) if address in gone]
            raise WorkerLost(f"spawn: the worker {', '.join(sorted(gone))} died or left the cluster while it ran "
                             f"ranks {ranks}; the other ranks were stopped. Start again, from a checkpoint if there "
                             f"is one")

    def _too_long(self, timeout: float) -> str:
        seen = self._asked(look)
        running = {rank: place for rank, (waiting, place) in sorted(seen.items()) if not waiting}
        who = ", ".join(f"rank {rank} was running{place}" for rank, place in running.items()) or "all waited"
        return f"spawn: not done after {timeout:g} s; {who}. Give it more with timeout=…"

    def _check_here(self, futures: Sequence[Future]) -> None:
        here = self._asked(look)
        absent = [rank for rank, future in enumerate(futures) if rank not in here and not future.done()]
        if absent:
            where = ", ".join(sorted({self.addresses[rank] for rank in absent}))
            raise RanksAbsent(f"spawn: ranks {absent} have not begun after {START_S:g} s: their workers ({where}) do "
                              f"other work. Wait for that to end, or give them more threads")

    def _asked(self, question: Callable[..., Any]) -> dict[int, Any]:
        """What the workers of this job answer, by rank; from those that can."""
        found: dict[int, Any] = {}
        try:
            alive = sorted({*self.addresses}.intersection(self._workers()))
            answers = self.client.sync(partial(self.client._run, question, self.id, workers=alive, on_error="ignore"),
                                       callback_timeout=PATIENCE_S)
        except (OSError, WorkerLost):                        # whoever does not answer has nothing to stop
            return found
        for answer in answers.values():
            found |= answer
        return found

    def _halt(self, error: BaseException) -> None:
        """No rank goes on."""
        left = self._asked(halt)
        with suppress(OSError, RuntimeError):
            self.client.cancel(self._tasks(), force=True)
        if left:
            warnings.warn(f"spawn: ranks {sorted(left)} are in calls that do not return; their threads stay until "
                          f"these do", RuntimeWarning, stacklevel=4)

    def _tasks(self) -> list[Future]:
        return [Future(name, self.client) for name in self.names]

    # -- afterwards
    def _ended(self, outcomes: Sequence[dict[str, Any]]) -> Ended:
        ended = Ended(self.cluster)
        for rank, out in enumerate(outcomes):
            if out["how"] == "has returned":
                ended.values[rank], = unpack(out["value"])
            elif out["how"] == "has failed":
                ended.failures[rank] = _again(out)
            for dst, sizes in out["posted"].items():
                ended.posted[rank, dst] = np.asarray(sizes, np.int64)
            for src, nbytes in out["arrived"].items():
                ended.arrived[src, rank] = nbytes
        record = outcomes[0]["record"]
        ended.error = record["error"] if record["first"] is None else ended.failures[record["first"]]
        ended.returned, ended.nbytes = record["returned"], record["nbytes"]
        ended.peaks = [out["peak"] for out in outcomes if out["peak"] is not None]
        _put(ended.clocks, record["program"])
        return ended


def _again(out: dict[str, Any]) -> BaseException:
    """The exception of a rank, with the traceback that it had there."""
    error, = unpack(out["error"])
    error.add_note(out["traceback"])
    error.raised_at = out["at"]
    return error


def _put(clocks: Clocks, program: Sequence[tuple]) -> None:
    """What was recorded, with its times."""
    for rank, number, stream, actions in program:
        clocks.do_all(clocks.lane(rank, number, stream), actions)
    for rank in range(clocks.world_size):
        clocks.close(rank)
    clocks.advance()


__all__ = ["Ended", "local_cluster", "run"]
