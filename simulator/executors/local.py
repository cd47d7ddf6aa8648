"""A rank is a thread, and one thread runs at a time: who has the baton goes on until it has to wait for another rank.

So a program runs the same way each time, its ranks share nothing by accident of timing, and whoever waits for ever is
known at once.  After `books.py`, which say who waits for whom; `spawn.py` starts it.
"""
from __future__ import annotations

import ctypes
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import Any

from minigrad.streams import Generator, own_stream, process_stream
from simulator.cluster import Cluster
from simulator.errors import CommunicationError, RankTimeout, Stopped
from simulator.executors.books import Books
from simulator.lines import thread_at
from simulator.matching import Pending, deadlock, unreceived

LIMIT_S = 0.1                                # of each wait; then it looks whether there is still something to wait for
PATIENCE_S = 5.0                             # with a rank that was stopped, until it is given up
SMALL_STACK, MANY = 512 * 1024, 64           # with so many ranks each gets a stack of this many bytes


class World(Books):
    """The ranks of one run, and who of them goes on.  The methods are called by the rank that has the baton."""

    def __init__(self, world_size: int, cluster: Cluster) -> None:
        super().__init__(world_size, cluster)
        self._abandoned = False
        self._batons = [threading.Lock() for _ in range(world_size)]
        self._ready = deque(range(world_size))
        self._idents = [0] * world_size                      # of the ranks' threads
        self._over = threading.Event()
        self._go_on_after_failure = False

    # -- who goes on
    def block(self, rank: int, pending: Pending) -> None:
        """Until `pending` is ready."""
        if not pending.ready:
            self._blocked[rank] = pending
            self._give_way(rank)

    def time_s(self, rank: int) -> float:
        """The clock of this rank, once it is certain."""
        if not self.clocks.settled(rank):
            self.clocks.advance()
        if not self.clocks.settled(rank):
            self._asking.append(rank)
            self._give_way(rank)
        return self.clocks.time_s(rank)

    def goes_on(self, rank: int) -> None:
        self._ready.append(rank)

    def check_running(self, rank: int) -> None:
        """Raises in a rank that is not to go on, and in whoever is not this rank."""
        if threading.get_ident() != self._idents[rank]:
            raise RuntimeError(f"the communicator of rank {rank} was called by another thread, or after its run. It "
                               f"serves that rank alone, within its program")
        if self.stopping:
            raise Stopped
        if self.holdings is not None:
            self.holdings.check(rank)

    def _give_way(self, rank: int) -> None:
        self.check_running(rank)
        if not self._hand_on(rank):
            self._sleep(rank)

    def _hand_on(self, rank: int | None) -> bool:
        """Give the baton to whoever goes on; whether that is `rank` itself."""
        if self.holdings is not None:
            self.holdings.settle(self._running)
        following = None
        try:
            following = None if self.stopping else self._next()
        except BaseException as error:                       # of the clocks: nobody may be left waiting for it
            self.stop(error)
        self._running = following
        if following is None:
            self._over.set()
        elif following != rank:
            self._batons[following].release()
        return following is not None and following == rank

    def _sleep(self, rank: int) -> None:
        while not self._batons[rank].acquire(timeout=LIMIT_S):
            if self._abandoned:
                raise Stopped
        if self.stopping:
            raise Stopped

    def _next(self) -> int | None:
        """The rank that goes on; None when all have ended, or none ever will."""
        if not self._ready and (self._asking or self._open):
            self.clocks.advance()
            self._ready.extend(sorted(r for r in self._asking if self.clocks.settled(r)))
            self._asking = [r for r in self._asking if not self.clocks.settled(r)]
            if not self._ready and self._open:
                self._take_first()
        if self._ready:
            return self._ready.popleft()
        if self._blocked:
            self.stop(deadlock(self._blocked, self.returned, self.mail.left()))
        return None

    # -- threads
    def run(self, programs: Sequence[Callable[[], Any]], timeout: float | None, check: bool) -> None:
        """Run each rank's program to its end; afterwards `values`, `failures` and `error` are what came of it."""
        self._go_on_after_failure = not check
        for baton in self._batons:
            baton.acquire()
        contexts = [copy_context() for _ in programs]
        seed = process_stream().get_state()
        threads = [threading.Thread(target=_thread, args=(self._body, rank, contexts[rank], program, seed),
                                    daemon=True, name=f"minigrad rank {rank}") for rank, program in enumerate(programs)]
        try:
            with _stacks(len(threads)):
                for thread in threads:
                    thread.start()
            self._hand_on(None)
            self._await(timeout)
        except BaseException as error:                       # Ctrl-C, or no more threads
            self.stop(error)
            raise
        finally:
            self._end(threads)
        if self.error is None and not self.failures:
            left = self.mail.left()
            self.error = unreceived(left) if left else None
        if self.error is None or not check:
            self.clocks.horizon_s = None                     # whoever could have chosen a message has ended
            self.clocks.advance()

    def _await(self, timeout: float | None) -> None:
        until = None if timeout is None else time.monotonic() + timeout
        while not self._over.wait(LIMIT_S if until is None else max(0.0, min(LIMIT_S, until - time.monotonic()))):
            if until is not None and time.monotonic() >= until:
                running = self._running
                place = "" if running is None else thread_at(self._idents[running])
                self.stop(RankTimeout(f"spawn: not done after {timeout:g} s; rank {running} was running{place}. "
                                      f"Give it more with timeout=…"))
                return

    def _body(self, rank: int, context: Any, program: Callable[[], Any], seed: Any) -> None:
        self._idents[rank] = threading.get_ident()
        try:
            self._sleep(rank)
            self.values[rank] = context.run(_with_own_stream, program, seed)
            how = "has returned"
        except Stopped:
            how = "was stopped"
        except BaseException as error:
            how = "has failed"
            self.failures[rank] = error
            if not self._go_on_after_failure or isinstance(error, CommunicationError):
                self.stop(error)
        try:
            if not self._abandoned:
                self.ended(rank, how)
        finally:
            self._idents[rank] = 0
            self._hand_on(None)

    def _end(self, threads: list[threading.Thread]) -> None:
        """No thread is left: whoever still runs or waits is stopped, one after the other."""
        try:
            first = self._running
            order = sorted(range(len(threads)), key=lambda rank: (rank != first, rank))
            lost = [rank for rank in order if not self._end_one(rank, threads[rank])]
        except BaseException:
            self._abandoned = True
            raise
        self._abandoned = True
        if lost:
            warnings.warn(f"spawn: ranks {lost} are in calls that do not return; their threads stay until these do",
                          RuntimeWarning, stacklevel=3)

    def _end_one(self, rank: int, thread: threading.Thread) -> bool:
        if thread.ident is None:                             # was never started
            return True
        thread.join(0 if self.stopping else LIMIT_S)
        until = time.monotonic() + PATIENCE_S
        while thread.is_alive() and time.monotonic() < until:
            if self._running == rank:
                _raise_in(thread, Stopped)                   # it computes, or sits in a loop of its own
            elif self._batons[rank].locked():
                self._batons[rank].release()
            thread.join(LIMIT_S)
        return not thread.is_alive()


def _thread(body: Callable[..., None], *args: Any) -> None:
    with suppress(Stopped):                                  # it may come at any step, also at the last
        body(*args)


def _with_own_stream(program: Callable[[], Any], seed: Any) -> Any:
    """Random numbers as in a process of its own, which begins where the caller's stream is."""
    generator = Generator()
    generator.set_state(seed)
    with own_stream(generator):
        return program()


@contextmanager
def _stacks(count: int) -> Iterator[None]:
    """Smaller stacks for many threads, which are started meanwhile."""
    before = threading.stack_size(SMALL_STACK) if count > MANY else None
    try:
        yield
    finally:
        if before is not None:
            threading.stack_size(before)


def _raise_in(thread: threading.Thread, error: type[BaseException]) -> None:
    """Raise in another thread, at its next step of Python."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(error))


__all__ = ["World"]
