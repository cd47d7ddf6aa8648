"""A rank is a thread, and one thread runs at a time: who has the baton goes on until it has to wait for another rank.

So a program runs the same way each time, its ranks share nothing by accident of timing, and whoever waits for ever is
known at once.  After `communicator.py`, whose calls come here; `spawn.py` starts it.
"""
from __future__ import annotations

import ctypes
import sys
import threading
import time
import traceback
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import Any

import numpy as np

from minigrad.streams import Generator, own_stream, process_stream
from simulator.clocks import Clocks
from simulator.cluster import Cluster
from simulator.communicator import OURS
from simulator.errors import CommunicationError, RankTimeout, Stopped
from simulator.holdings import Holdings
from simulator.matching import AnyReceipt, Call, Group, Meeting, Pending, Receipt, deadlock, unreceived, where
from simulator.network import Network

LIMIT_S = 0.1                                # of each wait; then it looks whether there is still something to wait for
PATIENCE_S = 5.0                             # with a rank that was stopped, until it is given up
SMALL_STACK, MANY = 512 * 1024, 64           # with so many ranks each gets a stack of this many bytes


class Mail:
    """Messages on their way and receivers that wait: the k-th receive of a (group, src, dst, tag) gets the k-th."""

    def __init__(self) -> None:
        self.sent: dict[tuple, deque] = defaultdict(deque)           # of (value, event, site)
        self.wanted: dict[tuple, deque[Receipt]] = defaultdict(deque)

    def left(self) -> list[str]:
        """What was never received, as text."""
        return [f"rank {src} to rank {dst} (tag {tag}), sent at {where(site)}"
                for (_, src, dst, tag), messages in sorted(self.sent.items()) for *_, site in messages]


class World:
    """The ranks of one run, who of them goes on, and what they said to each other.

    The methods are called by the rank that has the baton, so nothing here needs a lock."""

    def __init__(self, world_size: int, cluster: Cluster) -> None:
        self.size, self.cluster = world_size, cluster
        self.network = Network(cluster)
        self.clocks = Clocks(self.network, world_size)
        self.nbytes = np.zeros((world_size, world_size), np.int64)   # what was sent, src × dst
        self.mail = Mail()
        self.groups = [Group(tuple(range(world_size)), 1, f"all {world_size} ranks")]
        self.values: list[Any] = [None] * world_size
        self.failures: dict[int, BaseException] = {}
        self.returned: dict[int, str] = {}                   # rank -> "has returned" or "has failed"
        self.error: BaseException | None = None              # of the whole run
        self.stopping = False
        self._abandoned = False
        self._batons = [threading.Lock() for _ in range(world_size)]
        self._ready = deque(range(world_size))
        self._blocked: dict[int, Pending] = {}
        self._asking: list[int] = []                         # ranks that wait for their time to be certain
        self._running: int | None = None
        self._open: dict[int, AnyReceipt] = {}               # ranks that wait for a message from anybody
        self.holdings: Holdings | None = None                # where memory is watched
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

    def complete(self, pending: Pending, value: Any) -> None:
        """What `pending` stood for has come."""
        pending.ready, pending.value = True, value
        if self._blocked.get(pending.rank) is pending:
            del self._blocked[pending.rank]
            self._ready.append(pending.rank)

    def check_running(self, rank: int) -> None:
        """Raises in a rank that is not to go on, and in whoever is not this rank."""
        if threading.get_ident() != self._idents[rank]:
            raise RuntimeError(f"the communicator of rank {rank} was called by another thread, or after its run. It "
                               f"serves that rank alone, within its program")
        if self.stopping:
            raise Stopped
        if self.holdings is not None:
            self.holdings.check(rank)

    def hand_over(self, src: int, dst: int, nbytes: int) -> None:
        """Arrays that `src` made are now held by `dst`."""
        if self.holdings is not None:
            self.holdings.settle(self._running)
            self.holdings.hand_over(src, dst, nbytes)

    def hand_out(self, nbytes: dict[int, int]) -> None:
        """Arrays of so many bytes were made for each of these ranks, by whoever came last to a collective."""
        if self.holdings is not None:
            self.holdings.hand_out(nbytes)

    def stop(self, error: BaseException) -> None:
        """End the run; the first error counts."""
        if self.error is None:
            self.error = error
        self.stopping = True

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

    def _take_first(self) -> None:
        """Nobody goes on without it: of the messages that ranks of `_open` could take, the earliest is taken."""
        found = self._offers()
        if found:
            _, rank, key = min(found)
            receipt = self._open.pop(rank)
            value, event, site = self.mail.sent[key].popleft()
            self.clocks.choose(rank, receipt.event, event)
            self.clocks.horizon_s = self._horizon_s if self._open else None
            self.complete(receipt, (key[1], value, site))

    def _offers(self) -> list[tuple[float, int, tuple]]:
        """(arrival, receiver, key) of the messages that ranks of `_open` could take, as far as it is known."""
        times, sent = self.clocks.times, self.mail.sent
        return [(times[sent[key][0][1]], rank, key) for rank, receipt in self._open.items() for key in receipt.keys
                if sent.get(key) and sent[key][0][1] in times]

    def _horizon_s(self) -> float:
        """The earliest of these: what happens after it may depend on who takes it."""
        return min((at_s for at_s, _, _ in self._offers()), default=float("inf"))

    def expect_any(self, receipt: AnyReceipt) -> None:
        """The first message to arrive under one of its keys is for `receipt`, once it is certain which that is."""
        receipt.event = self.clocks.new_event()
        self._open[receipt.rank] = receipt
        self.clocks.horizon_s = self._horizon_s

    # -- what they say
    def post(self, src: int, dst: int, key: tuple, value: Any, nbytes: int, site: tuple) -> int:
        """A message; `value` belongs to its receiver from now on.  The event of its arrival."""
        self.sent(src, dst, nbytes)
        wanted = self.mail.wanted.get(key)
        if wanted:
            receipt = wanted.popleft()
            self.complete(receipt, (value, site))
            return receipt.event
        event = self.clocks.new_event()
        self.mail.sent[key].append((value, event, site))
        return event

    def expect(self, receipt: Receipt, key: tuple) -> None:
        """The next message with this key is for `receipt`, which gets the event of its arrival."""
        sent = self.mail.sent.get(key)
        if sent:
            value, receipt.event, site = sent.popleft()
            self.complete(receipt, (value, site))
        else:
            receipt.event = self.clocks.new_event()
            self.mail.wanted[key].append(receipt)

    def sent(self, src: int, dst: int, nbytes: int) -> None:
        """A message is about to go; ValueError if no link leads there."""
        self.network.idle_s(src, dst, nbytes)
        self.nbytes[src, dst] += nbytes

    def meet(self, group: Group, call: Call) -> tuple[Meeting, bool]:
        """Enter a call; its meeting, and whether all of the group are there.  A call that does not fit ends the run."""
        try:
            return group.arrive(call, self.returned)
        except CommunicationError as error:
            self.stop(error)
            raise

    def new_group(self, ranks: tuple[int, ...], name: str) -> Group:
        group = Group(ranks, len(self.groups) + 1, name)
        self.groups.append(group)
        return group

    def _ended(self, rank: int, how: str) -> None:
        """A rank's program is over: calls that still need it will not come."""
        self.returned[rank] = how
        self.clocks.close(rank)
        for group in self.groups:
            for meeting in group.meetings.values() if rank in group.place and not self.stopping else ():
                try:
                    meeting.check_returned(self.returned)
                except CommunicationError as error:
                    self.stop(error)
                    break

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
            self.clocks.advance()

    def _await(self, timeout: float | None) -> None:
        until = None if timeout is None else time.monotonic() + timeout
        while not self._over.wait(LIMIT_S if until is None else max(0.0, min(LIMIT_S, until - time.monotonic()))):
            if until is not None and time.monotonic() >= until:
                running = self._running
                self.stop(RankTimeout(f"spawn: not done after {timeout:g} s; rank {running} was running"
                                      + self._place_of(running) + ". Give it more with timeout=…"))
                return

    def _place_of(self, rank: int | None) -> str:
        """Where the thread of a rank is: the user's line."""
        frame = None if rank is None else sys._current_frames().get(self._idents[rank])
        inner = [f for f in traceback.extract_stack(frame) if f.filename not in OURS] if frame else []
        return f", at {inner[-1].filename}:{inner[-1].lineno}, in {inner[-1].name}" if inner else ""

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
                self._ended(rank, how)
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
