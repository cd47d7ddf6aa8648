"""The critical path: the chain of work and messages, each of which began when the one before it ended, up to the end.

    rank 0   compute ====>|\\
    rank 1   compute ##|   \\ message =>|compute ===>|     the path: =; who shortens anything else (#) gains nothing

Only what is on it makes the run shorter when it becomes shorter, until another chain is as long (Kelley and Walker
1959).  A message that found its link held is on it by the message that held the link.  After `history.py`.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from importlib import import_module
from itertools import groupby
from typing import NamedTuple

from simulator.clocks import COMPUTE, Clocks
from simulator.looking.history import History
from simulator.looking.idleness import short
from simulator.topology import PACKAGE
from simulator.units import show

MESSAGE = "message"
MOST = 20                                    # stretches that the text names


class Piece(NamedTuple):
    """`kind` "compute": op `name` of `rank`, called at `line`; "message": what `rank` sent to `dst` in the call `name`,
    for as long as what follows had to wait for it."""

    kind: str
    start_s: float
    end_s: float
    rank: int
    name: str
    line: str
    dst: int | None = None

    @property
    def duration(self) -> Fraction:
        return Fraction(self.end_s) - Fraction(self.start_s)


@dataclass(frozen=True)
class CriticalPath:
    """The pieces in order of time: the first begins at 0, each where the one before it ends, the last ends at
    `time_s`."""

    time_s: float
    pieces: tuple[Piece, ...]

    def total(self, kind: str) -> Fraction:
        """Seconds of one kind, exactly."""
        return sum((piece.duration for piece in self.pieces if piece.kind == kind), Fraction())

    @property
    def ranks(self) -> list[int]:
        """Where it leads: the ranks that compute or send, one after the other."""
        return [rank for rank, _ in groupby(piece.rank for piece in self.pieces)]

    def by_line(self) -> list[tuple[Fraction, str, str, str]]:
        """(seconds, kind, name, line), all ranks together, the longest first."""
        totals: dict[tuple[str, str, str], Fraction] = defaultdict(Fraction)
        for piece in self.pieces:
            totals[piece.kind, piece.name, piece.line] += piece.duration
        return sorted(((total, *key) for key, total in totals.items()), key=lambda row: -row[0])

    def __str__(self) -> str:
        return "\n".join(_text(self))

    def _repr_html_(self) -> str:
        return import_module(f"{PACKAGE}.viz.timeline").path_html(self)


def critical_path(clocks: Clocks | History) -> CriticalPath:
    """The chain that ends last, from the clocks of a run; of several that end last, that of the lowest rank."""
    history = clocks if isinstance(clocks, History) else History(clocks)
    if not history.end_s:
        return CriticalPath(0.0, ())
    last = min((line for line in history.lines.values() if line.end_s == history.end_s),
               key=lambda line: (line.rank, line.number))
    pieces = []
    for link in history.chain(last, last.actions, through_links=True):
        if link.end_s > link.start_s:
            kind, dst = (COMPUTE, None) if link.message is None else (MESSAGE, link.message.dst)
            pieces.append(Piece(kind, link.start_s, link.end_s, link.rank, link.name, link.line, dst))
    return CriticalPath(history.end_s, tuple(reversed(pieces)))


def _text(path: CriticalPath) -> Iterator[str]:
    parts = [f"{name} {show(float(path.total(kind)), 's')} ({float(path.total(kind)) / path.time_s:.0%})"
             for kind, name in ((COMPUTE, "computing"), (MESSAGE, "messages")) if path.time_s]
    yield f"critical path: {show(path.time_s, 's')}" + f", {', '.join(parts)}" * bool(parts)
    runs = [list(run) for _, run in groupby(
        path.pieces, key=lambda p: (p.kind, p.rank if p.kind == COMPUTE else p.line))]
    spent = [run[-1].end_s - run[0].start_s for run in runs]
    kept = set(sorted(range(len(runs)), key=lambda k: -spent[k])[:MOST])
    for k in sorted(kept):
        run = runs[k]
        yield f"  {show(run[0].start_s, 's'):>8} … {show(run[-1].end_s, 's'):>8}  {_what(run)}"
    if len(runs) > MOST:
        yield f"  and {len(runs) - MOST} shorter stretches between these"


def _what(run: list[Piece]) -> str:
    """What a rank did one after the other, the longest named."""
    first, most = run[0], max(run, key=lambda piece: piece.duration)
    more = f" and {len(run) - 1} more" if len(run) > 1 else ""
    at = f", at {short(most.line)}" if most.line else ""
    if first.kind == COMPUTE:
        return f"rank {first.rank} computes {most.name}{more}{at}"
    ways = list(dict.fromkeys(f"{piece.rank} → {piece.dst}" for piece in run))
    told = ", ".join(ways[:3]) + ", …" * (len(ways) > 3)
    return f"{told}: {len(run)} messages of {most.name}{at}" if len(run) > 1 else f"{told} moves, of {most.name}{at}"


__all__ = ["CriticalPath", "MESSAGE", "Piece", "critical_path"]
