"""What each lane did from when to when, and what made each event happen: from the end of a run one can walk back.

It replays what was recorded, with a witness of the messages.  First file of `looking/`; after `clocks.py`.
"""
from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from simulator.clocks import ARRIVE, BEGIN, COMPUTE, END, RECORD, SEND, WAIT, Clocks
from simulator.network import Network, Transfer

QUEUE = "queue"

class Step(NamedTuple):
    """Action `place` of a lane moved its clock from `start_s` to `end_s`; `kind` is COMPUTE or WAIT."""

    place: int
    kind: str
    start_s: float
    end_s: float
    name: str
    line: str
    event: Any = None                        # that was waited for


class Span(NamedTuple):
    """A collective on a lane of its own."""

    name: str
    kind: str
    nbytes: int
    start_s: float
    end_s: float


@dataclass(eq=False)
class Message:
    """Action `index` of lane `line` asked for its links at `asked_s` and got them at `begin_s`; it was there at
    `end_s`.

    `behind`: the message that held link `last`, the last to be free, until then; None if all were free.  `call` is the
    collective that it belongs to, None if the program sent it."""

    src: int
    dst: int
    nbytes: int
    name: str
    at: str                                  # the user's line
    asked_s: float
    begin_s: float
    end_s: float
    links: tuple[int, ...]
    line: Line
    index: int
    behind: Message | None = None
    last: int | None = None
    call: tuple | None = None

    def related(self, other: Message) -> bool:
        """Of one sender, or of one call."""
        return self.src == other.src or (self.call is not None and self.call == other.call)


@dataclass(eq=False)
class Line:
    """A lane with its times."""

    rank: int
    number: int
    stream: str
    steps: list[Step] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    end_s: float = 0.0
    actions: int = 0                         # how many it did

    def __post_init__(self) -> None:
        self._at: list[int] = []

    def add(self, step: Step) -> None:
        self.steps.append(step)
        self._at.append(step.place)

    def before(self, index: int) -> Step | None:
        """The last step before action `index`."""
        k = bisect_left(self._at, index)
        return self.steps[k - 1] if k else None


class Cause(NamedTuple):
    """What made an event happen: action `place` of `line`, by a message where there is one.

    `how`: "message"; "join", the last to come to where all had to come; "done", a lane reached a place."""

    how: str
    line: Line
    place: int
    message: Message | None = None


class Witness(Clocks):
    """Clocks that remember what became of each message."""

    def __init__(self, network: Network, world_size: int) -> None:
        super().__init__(network, world_size)
        self.messages: dict[tuple[int, int, int], tuple] = {}    # (rank, lane, index): asked_s, Transfer, holder, link
        self._holders: dict[int, tuple[float, tuple[int, int, int]]] = {}

    def _send(self, lane: Any, event: Any, dst: int, nbytes: int, name: str, line: str = "") -> None:
        asked_s, key = lane.clock, (lane.rank, lane.number, lane.done)
        self._rows.clear()                                   # nobody reads the trace of a witness
        super()._send(lane, event, dst, nbytes, name, line)
        done = Transfer(self._rows[0][4], *self._rows[0][-2:])
        behind, last = None, None
        for link in done.links if done.begin_s > asked_s else ():
            until_s, holder = self._holders.get(link, (0.0, None))
            if until_s == done.begin_s:
                behind, last = holder, link
        for link in done.links:
            self._holders[link] = self.network.free_s[link], key
        self.messages[key] = asked_s, done, behind, last


class History:
    """`lines` by (rank, number), `messages` in no order, `makers` of events, and `calls`: who waited for an event in
    which call at which line, (rank, name, line).  `of_program`: by rank, the messages that it sent or was sent which
    belong to no collective.  `end_s` is that of the last lane."""

    def __init__(self, clocks: Clocks) -> None:
        self.network, self.world_size = clocks.network, clocks.world_size
        program = clocks.program()
        witness = _again(program, Network(clocks.network.cluster), clocks.world_size)
        self.times = witness.times
        self.end_s = witness.end_s()
        self.lines: dict[tuple[int, int], Line] = {}
        self.messages: list[Message] = []
        self.of_program: list[list[Message]] = [[] for _ in range(self.world_size)]
        self.makers: dict[Any, Cause] = {}
        self.calls: dict[Any, list[tuple[int, str, str]]] = {}
        self._sent: dict[tuple[int, int, int], Message] = {}
        self._done: dict[tuple, Any] = {}                    # (join, rank) -> the event that this rank is done
        self._last: dict[Any, float] = {}                    # the latest arrival at a join
        for rank, number, stream, actions in program:
            line = self.lines[rank, number] = Line(rank, number, stream)
            self._walk(line, actions[:witness.lane(rank, number).done], witness)
        for message in self._sent.values():
            _, _, behind, message.last = witness.messages[message.line.rank, message.line.number, message.index]
            message.behind = self._sent[behind] if behind else None

    def main(self, rank: int) -> Line:
        """The rank's own program."""
        return self.lines[rank, 0]

    def _walk(self, line: Line, actions: list[tuple], witness: Witness) -> None:
        """Give times to what a lane did: the same sums as the clocks make."""
        clock, call, ended = 0.0, None, False
        began: tuple[str, str, int, float] = "", "", 0, 0.0
        for index, action in enumerate(actions):
            kind = action[0]
            if kind == COMPUTE:
                if clock + action[1] > clock:
                    line.add(Step(index, COMPUTE, clock, clock + action[1], action[2], (*action, "")[5]))
                clock += action[1]
            elif kind == WAIT:
                at = self.times[action[1]]
                if line.number == 0:
                    self.calls.setdefault(action[1], []).append((line.rank, action[2], action[3]))
                if at > clock:
                    line.add(Step(index, WAIT, clock, at, action[2], action[3], action[1]))
                    clock = at
                if isinstance(action[1], tuple):             # where all ranks of a collective meet
                    call = action[1]
            elif kind == SEND:
                self._message(line, index, action, call, witness)
            elif kind == RECORD:
                self.makers[action[1]] = Cause("done", line, index)
                if ended:
                    self._done[call, line.rank], ended = action[1], False
            elif kind == ARRIVE:
                self._arrive(line, index, action[1], clock)
            elif kind == BEGIN:
                began = (*action[1:], clock)
            elif kind == END:
                line.spans.append(Span(*began, clock))
                ended = True
        line.end_s, line.actions = clock, len(actions)

    def _message(self, line: Line, index: int, action: tuple, call: tuple | None, witness: Witness) -> None:
        _, event, dst, nbytes, name, at = (*action, "")[:6]
        asked_s, done, *_ = witness.messages[line.rank, line.number, index]
        message = Message(line.rank, dst, nbytes, name, at, asked_s, done.begin_s, done.end_s, done.links, line, index,
                          call=call)
        self.messages.append(message)
        for rank in {message.src, message.dst} if call is None else ():
            self.of_program[rank].append(message)
        self._sent[line.rank, line.number, index] = message
        self.makers[event] = Cause("message", line, index, message)

    def _arrive(self, line: Line, index: int, join: Any, clock: float) -> None:
        if join not in self._last or clock > self._last[join]:
            self._last[join] = clock
            self.makers[join] = Cause("join", line, index)

    def call_of(self, message: Message) -> tuple[str, str]:
        """(what was called, the user's line) of the call that a message belongs to; of a collective, as its sender
        waited for it."""
        found = self.calls.get(self._done.get((message.call, message.src)), ()) if message.call else ()
        return found[0][1:] if found else (message.name, message.at)

    def chain(self, line: Line, index: int, until_s: float = 0.0, through_links: bool = False) -> Iterator[Link]:
        """Back in time from before action `index` of `line`, to `until_s`: what was waited for, each thing ending where
        the one given before it begins; the last may begin earlier than `until_s`.

        A lane comes to its clock by computing (COMPUTE), or by waiting for an event; then the chain goes on with what
        made this happen: a message that moved (SEND), after it stood in the queue of a link (QUEUE).  `through_links`:
        from there with the message that held the link, instead of with the sender."""
        how = "done"
        while (step := line.before(index)) is not None and step.end_s > until_s:
            index = step.place
            if step.kind == COMPUTE:
                yield Link(COMPUTE, step.start_s, step.end_s, line.rank, step.name, step.line, how)
                continue
            cause = self.makers[step.event]
            how = cause.how if cause.how != "done" else how
            line, index, message = cause.line, cause.place, cause.message
            if message is not None:
                yield self._moving(message, message.end_s, how)
                if through_links:
                    while message.behind is not None:
                        begin_s, message = message.begin_s, message.behind
                        yield self._moving(message, begin_s, how)
                    line, index = message.line, message.index
                else:
                    yield from self._queue(message, how)

    def _moving(self, message: Message, until_s: float, how: str) -> Link:
        return Link(SEND, message.begin_s, until_s, message.src, *self.call_of(message), how, message)

    def _queue(self, message: Message, how: str) -> Iterator[Link]:
        """A link for each message that `message` had to wait for, the last one first."""
        until_s, holder = message.begin_s, message.behind
        while holder is not None and until_s > message.asked_s:
            start_s = max(holder.begin_s, message.asked_s)
            yield Link(QUEUE, start_s, until_s, holder.src, *self.call_of(holder), how, message, holder)
            until_s, holder = start_s, holder.behind


class Link(NamedTuple):
    """One thing of a chain: by or from which rank, in which call at which line; `how` what comes after depends on it
    (`Cause.how`).  QUEUE: `message` waits for a link that `holder` has."""

    kind: str
    start_s: float
    end_s: float
    rank: int
    name: str
    line: str
    how: str
    message: Message | None = None
    holder: Message | None = None


def _again(program: list[tuple], network: Network, world_size: int) -> Witness:
    """A recorded program once more, as far as it goes."""
    witness = Witness(network, world_size)
    for rank, number, stream, actions in program:
        witness.do_all(witness.lane(rank, number, stream), actions)
    for rank in range(world_size):
        witness.close(rank)
    witness.advance()
    return witness


__all__ = ["Cause", "History", "Line", "Link", "Message", "QUEUE", "Span", "Step", "Witness"]
