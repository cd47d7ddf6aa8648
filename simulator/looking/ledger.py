"""The ledger: where the time of each rank went, so that the parts are exactly the whole.

    rank 0   |compute ####|stall ....|exposed ====|compute ####|bubble (ended) ...|
    rank 1   |compute ###############|exposed ====|compute ####################|
                                              |--- hidden ---|   a call that goes on beside

`compute`: the program computed.  Where it waited, what it waited for was (`idleness.py` has the exact meaning)
`exposed`: communication, a message that moved;
`bubble`: work of others that had to come first – the order of the program left this rank nothing to do, up to the end
of the run;
`stall`: a rank that computed longer than this one although all had to come, or a link that others held.
Beside the sum, as it costs nothing: `hidden`, communication of this rank while it computed.

Times are floats, sums of them are not exact; so the parts are fractions, and compute + exposed + bubble + stall ==
time_s to the last bit.  After `idleness.py`.
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from importlib import import_module
from typing import Any

from simulator.clocks import COMPUTE, Clocks
from simulator.looking.history import History
from simulator.looking.idleness import BUBBLE, COMMUNICATION, ENDED, STALL, idleness
from simulator.topology import PACKAGE

PARTS = ("compute", "exposed", "bubble", "stall")
Interval = tuple[float, float]


@dataclass(frozen=True)
class Row:
    """Seconds of one rank (or of all together, rank None), exactly.  `ended`: that part of the bubble which came after
    the end of its program."""

    rank: int | None
    compute: Fraction
    exposed: Fraction
    bubble: Fraction
    stall: Fraction
    hidden: Fraction
    ended: Fraction

    @property
    def total(self) -> Fraction:
        return self.compute + self.exposed + self.bubble + self.stall


@dataclass(frozen=True)
class Ledger:
    """A row for each rank; the parts of each sum to `time_s`."""

    time_s: float
    rows: tuple[Row, ...]

    @property
    def all(self) -> Row:
        """The sums over the ranks; its total is `time_s` times their number."""
        names = (*PARTS, "hidden", "ended")
        return Row(None, *(sum((getattr(row, name) for row in self.rows), Fraction()) for name in names))

    def __getitem__(self, rank: int) -> Row:
        return self.rows[rank]

    def __len__(self) -> int:
        return len(self.rows)

    def data(self) -> dict[str, Any]:
        """Plain floats for JSON; `shares` of the time of all ranks."""
        names = (*PARTS, "hidden", "ended")
        whole = float(self.all.total)
        return {"time_s": self.time_s, "rows": [{"rank": row.rank, **{f"{name}_s": float(getattr(row, name))
                                                                      for name in names}} for row in self.rows],
                "shares": {name: float(getattr(self.all, name)) / whole if whole else 0.0 for name in names}}

    def __str__(self) -> str:
        return import_module(f"{PACKAGE}.viz.ledger").text(self)

    def _repr_html_(self) -> str:
        return import_module(f"{PACKAGE}.viz.ledger").html(self)


def ledger(clocks: Clocks | History) -> Ledger:
    """The ledger of a run, from its clocks."""
    history = clocks if isinstance(clocks, History) else History(clocks)
    return Ledger(history.end_s, tuple(_row(history, rank) for rank in range(history.world_size)))


def _row(history: History, rank: int) -> Row:
    why = idleness(history, rank)
    computing = merged((s.start_s, s.end_s) for s in history.main(rank).steps if s.kind == COMPUTE)
    ended = why.total(ENDED)
    return Row(rank, length(computing), why.total(COMMUNICATION), why.total(BUBBLE) + ended, why.total(STALL),
               length(common(computing, communicating(history, rank))), ended)


def communicating(history: History, rank: int) -> list[Interval]:
    """When collectives of this rank went on, or messages that its program sent or was sent moved."""
    spans = [(span.start_s, span.end_s) for line in history.lines.values() if line.rank == rank for span in line.spans]
    return merged([*spans, *((m.begin_s, m.end_s) for m in history.of_program[rank])])


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """In order, those that touch put together."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def common(a: list[Interval], b: list[Interval]) -> list[Interval]:
    """What two merged lists have in common."""
    found, j = [], 0
    for start, end in a:
        while j < len(b) and b[j][1] <= start:
            j += 1
        k = j
        while k < len(b) and b[k][0] < end:
            found.append((max(start, b[k][0]), min(end, b[k][1])))
            k += 1
    return found


def length(intervals: Iterable[Interval]) -> Fraction:
    return sum((Fraction(end) - Fraction(start) for start, end in intervals), Fraction())


__all__ = ["Ledger", "PARTS", "Row", "communicating", "ledger"]
