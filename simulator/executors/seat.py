"""The place of one rank in a process of its own: carries out what its `Communicator` is asked.

The rank's program runs in a thread; messages and words arrive on another.  A collective is this rank's part of the
rounds of its plan, in the order of additions that `collectives.arrays.run` has, by a third thread (`work`), so that a
call may go on beside the program.  After `referee.py`, which is told everything; `dask.py` makes one for each rank.
"""
from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from simulator.carrying import Cut
from simulator.clocks import ARRIVE
from simulator.cluster import Cluster
from simulator.errors import Stopped
from simulator.executors.referee import shape_only
from simulator.matching import AnyReceipt, Call, Group, Meeting, Pending, Receipt, where
from simulator.network import Network
from simulator.payload import REDUCTIONS

QUIET_S = 0.02                               # a wait that is shorter is nobody's business
LIMIT_S = 0.1                                # of each wait; then it looks whether there is still something to wait for
MANY = 1000                                  # actions that may be untold
place_text = lru_cache(maxsize=4096)(lambda code, lasti: where((code, lasti)))


class Post(Protocol):
    """What a seat needs of a transport."""

    def post(self, dst: int, key: Any, header: Any, array: np.ndarray) -> Any: ...

    def take(self, src: int, key: Any, timeout: float) -> tuple[Any, np.ndarray]: ...

    def settle(self, answer: Any, dst: int) -> None: ...

    def stop(self) -> None: ...


class Recorder:
    """The clocks as far as a rank has them: what it does is told to the referee, who has the times."""

    def __init__(self, seat: Seat) -> None:
        self._seat, self._last = seat, 0

    def lane(self, rank: int) -> int:
        return rank

    def new_event(self) -> Any:
        self._last += 1
        return self._seat.rank, self._last

    def do(self, lane: int, *action: Any) -> None:
        self._seat.note("do", action)
        if action[0] == ARRIVE:
            self._seat.tell()


class Seat:
    """Rank `rank` of a run on `cluster`.  `say(words)`: reaches the referee, in order."""

    def __init__(self, rank: int, cluster: Cluster, transport: Post, say: Callable[[list[tuple]], None]) -> None:
        self.rank, self.cluster, self.transport, self._say = rank, cluster, transport, say
        self.size = cluster.world_size
        self.network = Network(cluster)
        self.clocks = Recorder(self)
        self.groups = [Group(tuple(range(self.size)), 1, f"all {self.size} ranks")]
        self.stopping = self.began = self.ended = self.over = self.waiting = False
        self.error: Exception | None = None                  # of the seat itself: whoever it talks to is gone
        self.ident = 0                                       # of the thread of the program
        self.actions = 0                                     # told or not
        self._notes: list[tuple] = []
        self._sent: dict[tuple, int] = defaultdict(int)      # messages by key
        self._wanted: dict[tuple, int] = defaultdict(int)
        self._keys: dict[Any, tuple] = {}                    # receipt event -> (src, key of the transport)
        self._calls: dict[Any, Call] = {}                    # begun, not done
        self._work: deque[tuple[Any, Any]] = deque()
        self._answers: dict[Any, Any] = {}
        self._change = threading.Condition()

    # -- to and from the referee
    def note(self, what: str, *more: Any) -> None:
        """Something that need not be known at once."""
        self._notes.append((self.rank, what, *more))
        self.actions += what == "do"
        if len(self._notes) >= MANY:
            self.tell()

    def tell(self, *words: Any) -> None:
        """What the referee has to know now, and all before it."""
        if words:
            self.note(*words)
        notes, self._notes = self._notes, []
        if notes:
            self._say(notes)

    def hear(self, words: list[tuple]) -> None:
        """The referee's words for this rank."""
        with self._change:
            for what, *more in words:
                if what in ("begin", "over"):
                    setattr(self, {"begin": "began"}.get(what, what), True)
                elif what == "stop":
                    self.stopping = True
                    self.transport.stop()
                elif what == "met":
                    self._work.append((more[0], more[1]))
                elif what == "time":
                    self._answers["time"] = more[0]
                else:                                        # "chosen", "fail"
                    self._answers[more[0]] = more[1]
                    self._calls.pop(more[0], None)
            self._change.notify_all()

    def stop(self, error: Exception | None = None) -> None:
        """This rank is not to go on, because of `error` where that is known here alone."""
        with self._change:
            self.stopping = True
            self.error = self.error or error
            self._change.notify_all()
        self.transport.stop()

    def end(self, how: str, ends_all: bool) -> None:
        """The program is over."""
        self.tell("ended", how, ends_all)

    def wait(self, done: Callable[[], bool], timeout: float) -> bool:
        """For the thread that serves this seat: whether `done` came true."""
        with self._change:
            return self._change.wait_for(done, timeout)

    def wake(self) -> None:
        with self._change:
            self._change.notify_all()

    def _until(self, done: Callable[[], bool], waiting: tuple | None) -> None:
        """Wait; once that is worth telling, the referee knows of it."""
        self.waiting = True
        with self._change:
            if not self._change.wait_for(lambda: done() or self.stopping, QUIET_S if waiting else LIMIT_S) and waiting:
                self.tell(*waiting)
            while not self._change.wait_for(lambda: done() or self.stopping, LIMIT_S):
                pass
        self.waiting = False
        if self.stopping:
            raise Stopped

    # -- what a Communicator asks
    def check_running(self, rank: int) -> None:
        if threading.get_ident() != self.ident:
            raise RuntimeError(f"the communicator of rank {rank} was called by another thread, or after its run. It "
                               f"serves that rank alone, within its program")
        if self.stopping:
            raise Stopped

    def time_s(self, rank: int) -> float:
        """The clock of this rank, once the referee is certain of it."""
        self._answers.pop("time", None)
        self.tell("time")
        self._until(lambda: "time" in self._answers, None)
        return self._answers.pop("time")

    def hand_over(self, src: int, dst: int, nbytes: int) -> None:
        """Only within one process would the bytes of a rank have to be told from those of another."""

    def post(self, src: int, dst: int, key: tuple, value: Any, nbytes: int, site: tuple) -> Any:
        """A message: straight to its receiver.  The event of its arrival."""
        self.network.idle_s(src, dst, nbytes)
        array, form = value
        number = self._sent[key] = self._sent[key] + 1
        self.note("post", dst, key, nbytes, place_text(*site), ("message", key, number))
        self.transport.post(dst, (key, number), (form, place_text(*site)), array)
        return "message", key, number

    def expect(self, receipt: Receipt, key: tuple) -> None:
        self._due(receipt, key)
        self.note("expect", receipt.event, key, place_text(*receipt.site))

    def _due(self, receipt: Pending, key: tuple) -> None:
        number = self._wanted[key] = self._wanted[key] + 1
        if not receipt.event:
            receipt.event = "message", key, number
        self._keys[receipt.event] = key[1], (key, number)

    def expect_any(self, receipt: AnyReceipt) -> None:
        receipt.event = self.clocks.new_event()
        self.note("any", receipt.event, receipt.keys, receipt.tag, place_text(*receipt.site))

    def block(self, rank: int, pending: Pending) -> None:
        """Until `pending` is ready."""
        if isinstance(pending, Call):
            self._until(lambda: pending.ready or pending.event in self._answers, ("block", pending.event))
            if pending.event in self._answers:
                raise self._answers.pop(pending.event)
            return
        if isinstance(pending, AnyReceipt):
            self.tell("block", pending.event)
            self._until(lambda: pending.event in self._answers, None)
            src = self._answers.pop(pending.event)
            self._due(pending, next(key for key in pending.keys if key[1] == src))
            pending.value = (src, *self._letter(pending))
        else:
            pending.value = self._letter(pending)
        pending.ready = True

    def _letter(self, receipt: Pending) -> tuple:
        """((array, form), site) of the message that is due."""
        src, key = self._keys.pop(receipt.event)
        self.waiting = True
        (form, site), array = self._taken(src, key, ("block", receipt.event))
        self.waiting = False
        return (array, form), site

    def _taken(self, src: int, key: Any, waiting: tuple | None) -> tuple[Any, np.ndarray]:
        try:
            return self.transport.take(src, key, QUIET_S if waiting else LIMIT_S)
        except TimeoutError:
            if waiting:
                self.tell(*waiting)
        while True:
            if self.stopping:
                raise Stopped
            try:
                return self.transport.take(src, key, LIMIT_S)
            except TimeoutError:
                continue

    def meet(self, group: Group, call: Call) -> tuple[Meeting, bool]:
        """Begin a collective; it goes on when the referee says that all are there."""
        number = group.made[call.rank] = group.made[call.rank] + 1
        meeting = call.meeting = Meeting(group, number)
        given = {e: (a.shape, a.dtype) for e, a in call.data.items()} if isinstance(call.data, dict) else call.data
        self._calls[call.event] = call
        self.note("meet", group.number, call.event, place_text(*call.site), call.signature, given, call.form,
                  call.recipe, call.said)
        return meeting, False

    # -- the rank's part of collectives
    def work(self, timeout: float) -> bool:
        """Carry out what is due, in the order in which it was for all ranks; whether there was something."""
        with self._change:
            if not self._change.wait_for(lambda: self._work or self.stopping or self.ended, timeout) or (
                    self.stopping or not self._work):
                return False
            event, told = self._work.popleft()
        call = self._calls[event]
        value = self._moved(call, told) if isinstance(told, dict) else [told and Group(*told)]
        with self._change:
            call.value, call.ready = value, True
            del self._calls[event]
            self._change.notify_all()
        return True

    @property
    def idle(self) -> bool:
        """Nothing that others could need is left to do."""
        return not self._calls

    def _moved(self, call: Call, told: dict[str, Any]) -> list[np.ndarray]:
        meeting = call.meeting
        assert meeting is not None
        k = meeting.group.place[self.rank]
        meeting.calls = {0: Call(self.rank, "", {}, {0: None}, told["form"], None, "")}       # for `given_form`
        held: list[dict[int, np.ndarray]] = [{} for _ in range(call.plan.world)]
        held[k] = call.data
        held[k - 1 if k else -1] |= {e: shape_only(*like) for e, like in told["given"].items() if e not in call.data}
        parts = Cut(call.plan, held)
        chunks = parts.chunks_of(call.data)
        call.data = dict.fromkeys(call.data)
        combine = REDUCTIONS.get(call.signature["op"], np.add)
        for sends, receives in call.plan.parts[k]:
            self._round(meeting, parts, chunks, combine, sends, receives)
        return parts.result(k, chunks)

    def _round(self, meeting: Meeting, parts: Cut, chunks: dict[int, np.ndarray], combine: np.ufunc,
               sends: Sequence[Any], receives: Sequence[Any]) -> None:
        """Send what is there before the round, then take what comes, in the order of the plan."""
        ranks, numbers = meeting.group.ranks, parts.plan.numbers
        answers = []
        for m in sends:
            key = meeting.join, numbers[id(m)]
            flat = chunks[m.chunks[0]] if len(m.chunks) == 1 else np.concatenate([chunks[c] for c in m.chunks])
            answers.append((self.transport.post(ranks[m.dst], key, None, flat), ranks[m.dst]))
        came = [(m, self._taken(ranks[m.src], (meeting.join, numbers[id(m)]), None)[1]) for m in receives]
        for answer, dst in answers:
            self.transport.settle(answer, dst)
        for m, flat in came:
            ends = np.cumsum([parts.sizes[c] for c in m.chunks])[:-1]
            for c, reduce, new in zip(m.chunks, m.reduce, np.split(flat, ends)):
                if reduce:
                    combine(chunks[c], new, out=chunks[c])
                elif c in chunks:
                    chunks[c][...] = new
                else:
                    chunks[c] = new


__all__ = ["Seat"]
