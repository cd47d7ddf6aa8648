"""Clocks: when each rank did what, from what it did – values and time apart.

A rank's program is recorded as actions on its lanes (its own steps; one more for each group whose collectives run
beside them, as streams of a GPU do), and one event engine gives them times.  It follows the program as it runs, and can
replay what it recorded on another machine.  After `network.py`, the clock of links; `communicator.py` records.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Any

from minigrad.events import Trace

COMPUTE, SEND, RECORD, ARRIVE, WAIT, BEGIN, END = "compute", "send", "record", "arrive", "wait", "begin", "end"
MAIN = "compute"                             # the name of the lane on which a rank's own program runs


class Lane:
    """What one rank does one thing after the other: `actions`, of which `done` have their time, up to `clock`.

    `open`: the program goes on, so what comes next is not known yet.  `resting`: neither waiting nor in the heap."""

    __slots__ = ("rank", "number", "stream", "actions", "done", "clock", "open", "resting", "spans", "turn")

    def __init__(self, rank: int, number: int, stream: str, actions: Iterable[tuple] = ()) -> None:
        self.rank, self.number, self.stream = rank, number, stream
        self.actions, self.done, self.clock = list(actions), 0, 0.0
        self.open, self.resting = False, True
        self.turn = 0                        # messages sent at this time
        self.spans: list[tuple] = []

    @property
    def settled(self) -> bool:
        """Everything that is known has its time."""
        return self.done == len(self.actions)


class Clocks:
    """The times of `world_size` ranks on a network.

    Actions are tuples: (COMPUTE, seconds, name, flops, bytes, line), (SEND, event, dst, bytes, name, line), (RECORD,
    event), (ARRIVE, join, how many), (WAIT, event, name, line), (BEGIN, name, kind, bytes), (END,); the line of what
    computes or sends may be left out.  An event gets its time when it is recorded, when a message has arrived, or when
    as many as were said have arrived at a join.

    The engine takes the lane with the smallest (clock, turn, rank): what it does next can depend on nothing later, and
    lanes that are equally early send their messages in turn.  If that lane's program has not said yet what comes next,
    time stands there until it has: so links are taken in the order of time, in whatever order the programs ran."""

    def __init__(self, network: Any, world_size: int) -> None:
        self.network, self.world_size = network, world_size
        self._rows: list[tuple] = []                         # of the trace; for a message with three fields more: flat,
        self._trace = Trace()                                # so that no collection of garbage looks at them again
        self._ways: dict[tuple[int, int], dict[Any, int]] = {}
        self.times: dict[Any, float] = {}                    # of events
        self.nbytes: dict[tuple[int, int], int] = defaultdict(int)      # (src, dst) -> bytes
        self._lanes: dict[tuple[int, int], Lane] = {}
        self._heap: list[tuple[float, int, int, int]] = []
        self._waiting: dict[Any, list[Lane]] = {}
        self._joins: dict[Any, list] = {}                    # join -> [still missing, latest arrival]
        self._last_event = 0
        self.horizon_s: Callable[[], float] | None = None    # time does not go beyond it, where that is given
        for rank in range(world_size):
            self.lane(rank).open = True
            self._push(self.lane(rank))

    # -- recording
    def new_event(self) -> int:
        return self.new_events(1)

    def new_events(self, count: int) -> int:
        """So many events; the number of the first."""
        first = self._last_event + 1
        self._last_event += count
        return first

    def lane(self, rank: int, number: int = 0, stream: str = MAIN) -> Lane:
        """The lane of this number, made when first asked for; 0 is the rank's own program."""
        found = self._lanes.get((rank, number))
        if found is None:
            found = self._lanes[rank, number] = Lane(rank, number, stream)
        return found

    def do(self, lane: Lane, *action: Any) -> None:
        """`lane` does this next."""
        lane.actions.append(action)
        if lane.resting:
            self._push(lane)

    def do_all(self, lane: Lane, actions: Iterable[tuple]) -> None:
        """`lane` does these next."""
        lane.actions.extend(actions)
        if lane.resting and not lane.settled:
            self._push(lane)

    def close(self, rank: int) -> None:
        """The program of this rank has ended."""
        self.lane(rank).open = False

    # -- time
    def advance(self) -> int | None:
        """Give times to all that is certain.  The rank that must go on before anything else can be; None if no such."""
        heap, horizon_s = self._heap, self.horizon_s
        while heap:
            at_s, _, rank, number = heap[0]
            if horizon_s is not None and at_s >= horizon_s():
                return None
            lane = self._lanes[rank, number]
            more = lane.done < len(lane.actions)
            if lane.open and not more:
                return rank
            heappop(heap)
            lane.resting = True
            if more and self._run(lane) and (lane.open or lane.done < len(lane.actions)):
                lane.resting = False
                heappush(heap, (lane.clock, lane.turn, rank, number))
        return None

    def settled(self, rank: int) -> bool:
        """The clock of this rank's program is certain: all that it did has its time."""
        return self.lane(rank).settled

    def time_s(self, rank: int) -> float:
        """Of this rank's program: the end of what it did, as far as that has its time."""
        return self.lane(rank).clock

    def end_s(self) -> float:
        """When the last of all lanes is done."""
        return max((lane.clock for lane in self._lanes.values()), default=0.0)

    def stuck(self) -> list[Lane]:
        """Lanes that wait for what nobody does."""
        return [lane for lane in self._lanes.values() if not lane.settled]

    def _push(self, lane: Lane) -> None:
        lane.resting = False
        heappush(self._heap, (lane.clock, lane.turn, lane.rank, lane.number))

    def _run(self, lane: Lane) -> bool:
        """Do what this lane does at its clock; False if it waits now."""
        actions, times, heap = lane.actions, self.times, self._heap
        known = len(actions)
        while lane.done < known:
            action = actions[lane.done]
            kind = action[0]
            woke = False
            if kind == SEND:
                self._send(lane, *action[1:])
                woke = True                                  # and its own turn is over
            elif kind == WAIT:
                at = times.get(action[1])
                if at is None:
                    self._waiting.setdefault(action[1], []).append(lane)
                    lane.resting = False
                    return False
                if at > lane.clock:
                    self._waited(lane, at, action)
                    return True
            elif kind == COMPUTE:
                self._computed(lane, *action[1:])
                return True
            elif kind == RECORD:
                woke = self.happened(action[1], lane.clock)
            elif kind == ARRIVE:
                woke = self._arrived(lane, *action[1:])
            elif kind == BEGIN:
                lane.spans.append((*action[1:], lane.clock))
            else:
                name, what, nbytes, start_s = lane.spans.pop()
                self._rows.append((lane.rank, lane.stream, name, what, start_s, lane.clock, None, nbytes, ""))
            lane.done += 1
            if woke and heap and heap[0] < (lane.clock, lane.turn, lane.rank, lane.number):
                return True                                  # it is another lane's turn
        return True

    def _computed(self, lane: Lane, seconds: float, name: str, flops: int | None, nbytes: int | None,
                  line: str = "") -> None:
        end_s = lane.clock + seconds
        self._rows.append((lane.rank, lane.stream, name, COMPUTE, lane.clock, end_s, flops, nbytes, line))
        lane.clock, lane.turn = end_s, 0
        lane.done += 1

    def _waited(self, lane: Lane, until_s: float, action: tuple) -> None:
        if lane.number == 0:
            _, _, name, line = action
            self._rows.append((lane.rank, lane.stream, name, WAIT, lane.clock, until_s, None, None, line))
        lane.clock, lane.turn = until_s, 0
        lane.done += 1

    def _send(self, lane: Lane, event: Any, dst: int, nbytes: int, name: str, line: str = "") -> None:
        lane.turn += 1
        src = lane.rank
        done = self.network.transfer(src, dst, nbytes, lane.clock)
        self.nbytes[src, dst] += nbytes
        begin_s, end_s, links = done
        left_s, free_s = begin_s, self.network.free_s
        for link in links:
            left_s = max(left_s, free_s[link])
        self._rows.append((src, dst, name, SEND, begin_s, left_s, None, nbytes, line, lane.clock, end_s, links))
        self.happened(event, end_s)

    def _arrived(self, lane: Lane, join: Any, count: int) -> bool:
        state = self._joins.setdefault(join, [count, 0.0])
        state[0] -= 1
        state[1] = max(state[1], lane.clock)
        if state[0]:
            return False
        del self._joins[join]
        return self.happened(join, state[1])

    def happened(self, event: Any, at_s: float) -> bool:
        """`event` was at this time: whoever waited for it goes on.  Whether somebody did."""
        self.times[event] = at_s
        if event not in self._waiting:
            return False
        for lane in self._waiting.pop(event):
            if at_s > lane.clock:
                self._waited(lane, at_s, lane.actions[lane.done])
            self._push(lane)
        return True

    @property
    def trace(self) -> Trace:
        """What has its time: computing and waiting of each rank, its collectives, and its messages, which take the time
        that they hold their links; they arrive later (args: when they were asked for, and when they are there)."""
        for rank, stream, name, kind, start_s, end_s, flops, nbytes, line, *more in self._rows:
            args = {"line": line} if line else None
            if kind == SEND:
                asked_s, arrives_s, links = more
                args = {"dst": stream, "asked_s": asked_s, "arrives_s": arrives_s} | (args or {})
                ways = self._ways.setdefault((rank, stream), {})
                way = ways.setdefault(links, len(ways) + 1)                  # parallel links may be busy at once
                stream = f"to {stream}" + f" ({way})" * (way > 1)
            self._trace.add(rank, stream, name, kind, start_s, end_s, flops, nbytes, args)
        self._rows.clear()
        return self._trace

    def choose(self, rank: int, event: int, chosen: int) -> None:
        """`rank`, whose last action is to wait for `event`, waits for `chosen` instead, whose time is known."""
        lane = self.lane(rank)
        lane.actions[-1] = (WAIT, chosen, *lane.actions[-1][2:])
        self.happened(event, self.times[chosen])

    # -- again
    def program(self) -> list[tuple[int, int, str, list[tuple]]]:
        """What was recorded: (rank, number, stream, actions) of each lane; plain data."""
        return [(lane.rank, lane.number, lane.stream, list(lane.actions)) for lane in self._lanes.values()]


def replay(program: Iterable[tuple[int, int, str, list[tuple]]], network: Any, world_size: int) -> Clocks:
    """The clocks of a recorded program on this network, which must be idle: "what if this link were twice as fast"."""
    clocks = Clocks(network, world_size)
    for rank, number, stream, actions in program:
        lane = clocks.lane(rank, number, stream)
        for action in actions:
            clocks.do(lane, *action)
    for rank in range(world_size):
        clocks.close(rank)
    clocks.advance()
    if clocks.stuck():
        who = sorted({lane.rank for lane in clocks.stuck()})
        raise ValueError(f"replay: ranks {who} wait for what no rank does: this is no whole recording")
    return clocks


__all__ = ["ARRIVE", "BEGIN", "COMPUTE", "Clocks", "END", "Lane", "MAIN", "RECORD", "SEND", "WAIT", "replay"]
