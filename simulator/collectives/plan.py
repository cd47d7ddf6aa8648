"""A collective as data: rounds of moves of chunks between ranks.  One definition is executed, proved, priced and drawn.

All moves of a round happen at once, each reading what was there before the round.  The moves of a round from one rank
to another travel as one message (on several channels: one each), which begins when both are in that round; a rank
leaves it when every message that it sends or receives there has arrived.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from itertools import zip_longest
from operator import index
from typing import NamedTuple, SupportsIndex

from simulator.topology import PACKAGE

KINDS = ("broadcast", "reduce", "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "gather", "scatter")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
REDUCING = ("reduce", "all_reduce", "reduce_scatter")
WHOLE = ("broadcast", "reduce", "all_reduce")                 # every chunk is a piece of one buffer


class PlanError(ValueError):
    """A plan that cannot be carried out, or does not compute what its kind means."""


class Move(NamedTuple):                                       # plans hold millions: a dataclass is three times slower
    """`src` sends its value of `chunk`; `dst` keeps it, or with `reduce` combines its own with it."""

    src: int
    dst: int
    chunk: int
    reduce: bool = False


class Message(NamedTuple):
    """What travels together: the chunks of one round from one rank to another, and of each whether `dst` combines."""

    src: int
    dst: int
    chunks: tuple[int, ...]
    reduce: tuple[bool, ...]


Round = tuple[Move, ...]
Rounds = Sequence[Sequence[Move]]


@dataclass(frozen=True)
class Plan:
    """Rounds of moves between `world` ranks, each of which has a place for each of the `chunks`.

    What a chunk is follows from the kind.  broadcast, reduce, all_reduce: one piece of the buffer.  all_gather, gather,
    scatter, reduce_scatter: chunks of rank 0, then of rank 1 …, as many of each.  all_to_all: chunk s * world + d goes
    from s to d.  What goes over several `channels` (rings that use links of their own) travels apart: chunk c is of
    channel c % channels."""

    name: str
    world: int
    chunks: int
    rounds: tuple[Round, ...]
    kind: str = "all_reduce"
    root: int = 0
    channels: int = 1

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise PlanError(f"plan {self.name!r}: kind {self.kind!r} is none of {', '.join(KINDS)}")
        if self.world < 1 or not 0 <= self.root < self.world:
            raise PlanError(f"plan {self.name!r}: root {self.root} of {self.world} ranks; at least one rank, and the "
                            f"root is one of 0 … world - 1")
        unit = {"all_to_all": self.world**2}.get(self.kind, 1 if self.kind in WHOLE else self.world)
        several = "" if self.kind == "all_to_all" else "a multiple of "
        if self.chunks < 1 or self.chunks % unit or (not several and self.chunks != unit):
            raise PlanError(f"plan {self.name!r}: {self.kind} of {self.world} ranks has {several}{unit} chunks, got "
                            f"{self.chunks}")

    # -- what it means
    def owner(self, chunk: int) -> int:
        """The rank that a chunk comes from (all_gather, gather, all_to_all) or belongs to (scatter, reduce_scatter)."""
        return chunk // (self.chunks // self.world)

    def start(self, rank: int) -> list[int]:
        """The chunks of which a rank has a value before."""
        if self.kind in REDUCING or (self.kind in ("broadcast", "scatter") and rank == self.root):
            return list(range(self.chunks))
        return self._own(rank) if self.kind in ("all_gather", "gather", "all_to_all") else []

    def goal(self, rank: int) -> list[int]:
        """The chunks of which a rank has the value afterwards: that of one rank, or all ranks' combined."""
        if self.kind in ("all_reduce", "all_gather", "broadcast"):
            return list(range(self.chunks))
        if self.kind in ("reduce", "gather"):
            return list(range(self.chunks)) if rank == self.root else []
        return list(range(rank, self.chunks, self.world)) if self.kind == "all_to_all" else self._own(rank)

    def source(self, chunk: int) -> int:
        """The rank whose value of a chunk counts, where nothing is combined."""
        return self.root if self.kind in ("broadcast", "scatter") else self.owner(chunk)

    def _own(self, rank: int) -> list[int]:
        each = self.chunks // self.world
        return list(range(rank * each, (rank + 1) * each))

    # -- sizes
    def sizes(self, total: SupportsIndex | Iterable[int]) -> list[int]:
        """The size of each chunk, from sizes given one by one or from the total of the largest buffer that a rank holds
        (for all_to_all: of the `world` chunks that it sends), cut as evenly as it goes."""
        if not isinstance(total, SupportsIndex):
            sizes = [index(size) for size in total]
            if len(sizes) != self.chunks or min(sizes) < 0:
                raise ValueError(f"{self.name}: {self.chunks} sizes of at least 0, got {len(sizes)}: {sizes[:8]}")
            return sizes
        total = index(total)
        if total < 0:
            raise ValueError(f"{self.name}: a size is at least 0, got {total}")
        return cut(total, self.world) * self.world if self.kind == "all_to_all" else cut(total, self.chunks)

    # -- who does what
    @cached_property
    def messages(self) -> tuple[tuple[Message, ...], ...]:
        """The messages of each round, in the order of their first moves."""
        return tuple(tuple(_messages(moves, self.channels)) for moves in self.rounds)

    @cached_property
    def parts(self) -> tuple[tuple[tuple[tuple[Message, ...], tuple[Message, ...]], ...], ...]:
        """Of each rank: for each round in which it takes part, the messages that it sends and those it receives."""
        found: list[list[tuple[tuple[Message, ...], tuple[Message, ...]]]] = [[] for _ in range(self.world)]
        for messages in self.messages:
            sends, receives = _by(messages, 0), _by(messages, 1)
            for rank in sorted({*sends, *receives}):
                found[rank].append((tuple(sends.get(rank, ())), tuple(receives.get(rank, ()))))
        return tuple(map(tuple, found))

    @cached_property
    def numbers(self) -> dict[int, int]:
        """The number of each message, counted over all rounds, by its id()."""
        return {id(m): k for k, m in enumerate(m for messages in self.messages for m in messages)}

    @cached_property
    def steps(self) -> tuple[tuple[tuple, ...], ...]:
        """The same for clocks, of each rank, messages by number: ("ready", k) when it is in the round in which it
        receives message k, ("send", k, dst) after the receiver is ready, ("wait", k) until it has arrived."""
        numbers = self.numbers
        found = []
        for rounds in self.parts:
            steps: list[tuple] = []
            for sends, receives in rounds:
                steps += [("ready", numbers[id(m)]) for m in receives]
                steps += [("send", numbers[id(m)], m.dst) for m in sends]
                steps += [("wait", numbers[id(m)]) for m in (*sends, *receives)]
            found.append(tuple(steps))
        return tuple(found)

    def _repr_html_(self) -> str:
        """In a notebook: the picture."""
        return import_module(f"{PACKAGE}.viz.collectives").html(self)

    def __str__(self) -> str:
        moves = sum(map(len, self.rounds))
        counts = {"rank": self.world, "chunk": self.chunks, "round": len(self.rounds), "move": moves}
        return f"{self.name}: " + ", ".join(f"{n} {what}{'s' * (n != 1)}" for what, n in counts.items())


def _by(messages: Iterable[Message], side: int) -> dict[int, list[Message]]:
    found: dict[int, list[Message]] = {}
    for message in messages:
        found.setdefault(message.dst if side else message.src, []).append(message)
    return found


def _messages(moves: Iterable[Move], channels: int) -> Iterator[Message]:
    pairs: dict[tuple[int, int, int], list[Move]] = {}
    for move in moves:
        pairs.setdefault((move.src, move.dst, move.chunk % channels), []).append(move)
    for (src, dst, _), found in pairs.items():
        yield Message(src, dst, tuple(m.chunk for m in found), tuple(m.reduce for m in found))


def cut(total: int, parts: int) -> list[int]:
    """`total` as whole numbers that differ by at most one, the larger ones first (as `np.array_split`)."""
    each, more = divmod(total, parts)
    return [each + 1] * more + [each] * (parts - more)


# ---- plans from plans ----------------------------------------------------------------------------
def relabel(rounds: Rounds, ranks: Sequence[int], chunks: Sequence[Iterable[int]]) -> list[list[Move]]:
    """The same rounds among other ranks: rank i becomes `ranks[i]`, chunk c becomes all of `chunks[c]`."""
    places = [tuple(each) for each in chunks]
    return [[Move(ranks[m.src], ranks[m.dst], chunk, m.reduce) for m in moves for chunk in places[m.chunk]]
            for moves in rounds]


def together(*several: Rounds) -> list[list[Move]]:
    """Several side by side: their first rounds as one round, and so on."""
    return [[move for moves in layer for move in moves] for layer in zip_longest(*several, fillvalue=())]


def backwards(rounds: Rounds, reduce: bool) -> list[list[Move]]:
    """Each move the other way, the last round first.

    What brings each chunk along a tree from one rank to others brings the values of the others along the same tree to
    the one: broadcast becomes reduce, all_gather becomes reduce_scatter (`reduce`), scatter becomes gather."""
    return [[Move(m.dst, m.src, m.chunk, reduce) for m in moves] for moves in reversed(rounds)]


def without_repeats(rounds: Rounds, holders: Mapping[int, Iterable[int]]) -> list[list[Move]]:
    """Without the moves of chunks to ranks that have them already; `holders`: who has a chunk at first."""
    has = {chunk: set(ranks) for chunk, ranks in holders.items()}
    kept = []
    for moves in rounds:
        new = [m for m in moves if m.dst not in has[m.chunk]]
        for m in new:
            has[m.chunk].add(m.dst)
        kept.append(new)
    return kept


def finished(rounds: Rounds) -> tuple[Round, ...]:
    """Rounds as a plan holds them; those in which nothing moves are left out."""
    return tuple(tuple(moves) for moves in rounds if moves)


__all__ = ["KINDS", "REDUCING", "ROOTED", "Message", "Move", "Plan", "PlanError", "Round", "Rounds", "WHOLE",
           "backwards", "cut", "finished", "relabel", "together", "without_repeats"]
