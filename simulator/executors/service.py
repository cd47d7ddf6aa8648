"""What runs on a Dask worker for one rank: its seat, its program, and for rank 0 the referee of all.

After `seat.py` and `transport.py`; `dask.py` submits `serve` once for each rank.
"""
from __future__ import annotations

import asyncio
import ctypes
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from distributed import Worker, get_worker, secede

from minigrad import observe
from minigrad.sim import sim_device
from minigrad.streams import Generator, own_stream, process_stream
from minigrad.tensor import MODE, Mode
from simulator.charging import Charge
from simulator.cluster import Cluster
from simulator.communicator import Communicator
from simulator.errors import CommunicationError, Stopped, WorkerLost
from simulator.executors.packing import pack, unpack
from simulator.executors.referee import Referee
from simulator.executors.seat import Seat
from simulator.executors.transport import Hub, Line, Transport
from simulator.lines import raised_at, thread_at

LIMIT_S = 0.1
START_S = 30.0                               # the driver gives up before
GENTLE_S, PATIENCE_S = 0.2, 5.0              # for a stopped program to end at its next call; to end at all


def _mode() -> Mode:
    """How the caller does things, but for those who watch: they stay where they are."""
    return replace(MODE.get(), observers=(), scope=())


@dataclass(frozen=True)
class Setup:
    """What each rank has to know, and how things are done where `spawn` was called."""

    cluster: Cluster
    check: bool
    device: str
    timed: bool
    seed: Any = field(default_factory=lambda: process_stream().get_state())
    mode: Mode = field(default_factory=_mode)


def serve(job: str, rank: int, addresses: list[str], task: str, packed: bytes) -> dict[str, Any]:
    """The task of one rank: what came of it, as plain data."""
    worker = get_worker()
    secede()                                                 # other ranks may need this thread to begin
    program, args, kwargs, setup = unpack(packed)
    service = Service(Hub.of(worker), job, rank, addresses, task, setup)
    try:
        return service.run(lambda comm: program(comm, *args, **kwargs))
    finally:
        service.close()


class Service:
    """Serves the seat of one rank, in the thread of its task."""

    def __init__(self, hub: Hub, job: str, rank: int, addresses: list[str], task: str, setup: Setup) -> None:
        self.hub, self.job, self.rank, self.task, self.setup = hub, job, rank, task, setup
        until = time.monotonic() + START_S
        self.transport = Transport(hub, job, rank, addresses)
        self.referee: Referee | None = None
        self.lines = [Line(hub, job, addresses[0], until, self._unreachable)]
        self.seat = Seat(rank, setup.cluster, self.transport, lambda words: self.lines[0].say("referee", *words))
        self.how, self.value = "was stopped", b""
        self.error: BaseException | None = None
        self.lost = ""
        self.peak: int | None = None
        if rank == 0:
            to = {address: Line(hub, job, address, until, self._unreachable) for address in addresses}
            self.lines += to.values()
            self.referee = Referee(setup.cluster.world_size, setup.cluster, not setup.check,
                                   lambda other, word: to[addresses[other]].say(other, word))
            hub.places[job, "referee"] = self.referee
        hub.places[job, rank] = self.seat

    def _unreachable(self, error: Exception) -> None:
        self.seat.stop(WorkerLost(f"rank {self.rank}: a worker of the run cannot be reached: {error}"))

    def close(self) -> None:
        for line in self.lines:
            line.close()
        self.transport.close()
        self.hub.places.pop((self.job, self.rank), None)
        if self.referee is not None:
            self.hub.places.pop((self.job, "referee"), None)

    # -- the task
    def run(self, program: Callable[[Communicator], Any]) -> dict[str, Any]:
        seat = self.seat
        seat.tell("hello")
        while not seat.wait(lambda: seat.began or seat.stopping, LIMIT_S):
            self._look()
        thread = threading.Thread(target=self._thread, args=(program,), daemon=True, name=f"minigrad rank {self.rank}")
        if not seat.stopping:
            thread.start()
            self._attend(thread)
        if isinstance(seat.error, WorkerLost) and self.how != "has returned":
            self.how, self.error = "has failed", seat.error
        seat.tell("ended", self.how, isinstance(self.error, CommunicationError))
        self._finish()
        return self._outcome()

    def _attend(self, thread: threading.Thread) -> None:
        """While the program runs: its part in collectives; an end to it where the run has ended."""
        seat, stopped_at = self.seat, 0.0
        while thread.is_alive():
            if not seat.stopping:
                self._work()
                self._look()
                if seat.ended:
                    thread.join(LIMIT_S)
                continue
            now = time.monotonic()
            stopped_at = stopped_at or now
            if now - stopped_at > PATIENCE_S:
                self.lost = f"rank {self.rank} is in a call that does not return; its thread stays until it does"
                return
            if now - stopped_at > GENTLE_S:
                _raise_in(thread, Stopped)
            thread.join(LIMIT_S)

    def _work(self) -> None:
        try:
            self.seat.work(LIMIT_S)
        except Stopped:
            pass
        except Exception as error:                           # nobody may be left waiting for it
            self.seat.stop(error if isinstance(error, WorkerLost) else RuntimeError(f"rank {self.rank}: {error!r}"))

    def _look(self) -> None:
        """Whether the worker goes on, and somebody waits for this rank."""
        if not self.hub.open or not self.hub.wanted(self.task):
            self.seat.stop()

    def _finish(self) -> None:
        """What others still need of this rank; rank 0 stays until all have ended, with the books."""
        seat = self.seat
        while not (seat.idle or seat.stopping):
            self._work()
            self._look()
        with suppress(Stopped, WorkerLost):
            self.transport.flush()
        until = None
        while self.referee is not None and not seat.wait(lambda: seat.over, LIMIT_S):
            self._look()
            if seat.stopping:
                until = until or time.monotonic() + PATIENCE_S + 1
                if time.monotonic() > until:
                    return

    # -- the program
    def _thread(self, program: Callable[[Communicator], Any]) -> None:
        with suppress(Stopped):                              # it may come at any step, also at the last
            try:
                self._body(program)
            finally:
                self.seat.ended = True
                self.seat.wake()

    def _body(self, program: Callable[[Communicator], Any]) -> None:
        seat, setup = self.seat, self.setup
        seat.ident = threading.get_ident()
        MODE.set(setup.mode)
        generator = Generator()
        generator.set_state(setup.seed)
        device = f"sim:{self.rank}" if setup.device == "sim" else "cpu"
        comm = Communicator(self.rank, seat, seat.groups[0], device)
        try:
            with own_stream(generator), self._device(), observe(Charge(comm)) if setup.timed else nullcontext():
                self.value = _packed(program(comm), self.rank)
            self.how = "has returned"
        except Stopped:
            pass
        except BaseException as error:
            self.how, self.error = "has failed", error
        finally:
            seat.ident = 0

    @contextmanager
    def _device(self):
        """The simulated device of this rank has the memory that the cluster says, meanwhile."""
        if self.setup.device != "sim":
            yield
            return
        sim = sim_device(self.rank)
        before = sim.limit
        sim.limit = int(self.setup.cluster.devices[self.rank].memory_bytes)
        sim.reset_peak()
        try:
            yield
        finally:
            self.peak, sim.limit = sim.peak, before

    def _outcome(self) -> dict[str, Any]:
        error = self.error
        return {"how": self.how, "value": self.value, "lost": self.lost, "peak": self.peak,
                "error": None if error is None else _sendable(error), "at": "" if error is None else raised_at(error),
                "traceback": "" if error is None else
                "".join(["on its worker:\n", *traceback.format_exception(error)]).rstrip(),
                "posted": {dst: sizes.tolist() for dst, sizes in self.transport.posted.items()},
                "arrived": dict(self.transport.arrived),
                "record": None if self.referee is None else self.referee.record()}


def _packed(value: Any, rank: int) -> bytes:
    try:
        return pack(value)
    except Exception as error:
        raise TypeError(f"rank {rank} returned a {type(value).__name__} that cannot be sent to the process of spawn: "
                        f"{error}. Return arrays, tensors or numbers") from error


def _sendable(error: BaseException) -> bytes:
    try:
        packed = pack(error)
        unpack(packed)
        return packed
    except Exception:
        return pack(RuntimeError(f"{type(error).__name__}: {error}"))


def _raise_in(thread: threading.Thread, error: type[BaseException]) -> None:
    """Raise in another thread, at its next step of Python."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(error))


# ---- what the driver asks a worker -----------------------------------------------------------------
def _seats(worker: Worker, job: str) -> dict[int, Seat]:
    return {rank: place for (of, rank), place in list(Hub.of(worker).places.items())
            if of == job and isinstance(place, Seat)}


def look(job: str, dask_worker: Worker) -> dict[int, tuple[bool, str]]:
    """Of each rank here: whether it waits, and the user's line where it is."""
    return {rank: (seat.waiting, thread_at(seat.ident)) for rank, seat in _seats(dask_worker, job).items()}


async def halt(job: str, dask_worker: Worker) -> dict[int, bool]:
    """Stop the ranks here; those that do not end."""
    until = time.monotonic() + PATIENCE_S + 1
    while _seats(dask_worker, job) and time.monotonic() < until:
        for seat in _seats(dask_worker, job).values():
            seat.over = True                                 # nobody waits for those that are gone
            seat.stop()
        await asyncio.sleep(0.02)
    return dict.fromkeys(_seats(dask_worker, job), True)


__all__ = ["Setup", "halt", "look", "serve"]
