"""The timeline: a row for what each rank's program did, one for each stream of collectives, one for what it sent.

Waits are shown as what was waited for (`idleness.py`), in the same words as the ledger.  After `critical_path.py`,
which is drawn over it; `viz/timeline.py` draws it.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import NamedTuple

from minigrad.arguments import of_kind, whole
from simulator.clocks import COMPUTE, Clocks
from simulator.looking.critical_path import CriticalPath, critical_path
from simulator.looking.history import History
from simulator.looking.idleness import BUBBLE, COMMUNICATION, STALL, idleness, short
from simulator.topology import PACKAGE
from simulator.units import show

COLLECTIVE, SENDS = "collective", "sends"
KINDS = {COMMUNICATION: "exposed", BUBBLE: "bubble", STALL: "stall"}


class Bar(NamedTuple):
    """`kind`: compute, exposed, bubble, stall in the program's row; collective or sends in the others."""

    kind: str
    start_s: float
    end_s: float
    name: str
    tip: str = ""                            # in words: what was waited for, and the user's line


@dataclass(frozen=True)
class Row:
    """`stream` is "program", a stream of collectives, or "sends", whose bars may overlap."""

    rank: int
    stream: str
    bars: list[Bar]


@dataclass(frozen=True)
class Curve:
    """Bytes that a rank held: `used[k]` at `times_s[k]`, and at most `peak[k]` since the time before.

    They were counted at each call of the rank, so between two calls only the highest is known."""

    rank: int
    times_s: list[float]
    used: list[int]
    peak: list[int]


@dataclass(frozen=True)
class Timeline:
    """From `start_s` to `end_s`; `path` is that of the whole run."""

    start_s: float
    end_s: float
    ranks: tuple[int, ...]
    rows: list[Row]
    memory: list[Curve]
    history: History = field(repr=False)

    @cached_property
    def path(self) -> CriticalPath:
        return critical_path(self.history)

    def __str__(self) -> str:
        return import_module(f"{PACKAGE}.viz.timeline").text(self)

    def _repr_html_(self) -> str:
        return import_module(f"{PACKAGE}.viz.timeline").html(self)


def timeline(clocks: Clocks | History, memory: Sequence[Curve] = (), ranks: Sequence[int] | None = None,
             start_s: float = 0.0, end_s: float | None = None) -> Timeline:
    """The timeline of a run, from its clocks: of all ranks and the whole time, or of some."""
    history = clocks if isinstance(clocks, History) else History(clocks)
    ranks = range(history.world_size) if ranks is None else of_kind("timeline", "ranks", ranks, Iterable)
    chosen = tuple(whole("timeline", "a rank", rank, 0, history.world_size - 1) for rank in ranks)
    until_s = history.end_s if end_s is None else end_s
    if not 0 <= start_s <= until_s:
        raise ValueError(f"timeline: from start_s={start_s:g} to end_s={until_s:g}; the run is from 0 to "
                         f"{history.end_s:g} s")
    rows = []
    for rank in chosen:
        found = [Row(rank, "program", _program(history, rank)), *_collectives(history, rank), _sends(history, rank)]
        rows += [Row(rank, row.stream, list(_within(row.bars, start_s, until_s))) for row in found
                 if row.bars or row.stream == "program"]
    kept = [curve for curve in memory if curve.rank in chosen]
    return Timeline(start_s, until_s, chosen, rows, kept, history)


def _program(history: History, rank: int) -> list[Bar]:
    bars = [Bar(COMPUTE, s.start_s, s.end_s, s.name, _tip(s.name, s.line))
            for s in history.main(rank).steps if s.kind == COMPUTE]
    for wait in idleness(history, rank).waits:
        call = _tip(wait.name, wait.line)
        bars += [Bar(KINDS[r.kind], r.start_s, r.end_s, wait.name, f"{call}\n{_tip(r.what, r.line)}")
                 for r in wait.reasons if r.kind in KINDS]
    return sorted(bars, key=lambda bar: bar.start_s)


def _collectives(history: History, rank: int) -> list[Row]:
    rows = []
    for (owner, number), line in sorted(history.lines.items()):
        if owner == rank and number:
            rows.append(Row(rank, line.stream, [Bar(COLLECTIVE, s.start_s, s.end_s, s.name,
                                                    f"{s.name}, {show(float(s.nbytes), 'B')}") for s in line.spans]))
    return rows


def _sends(history: History, rank: int) -> Row:
    sent = sorted((m for m in history.of_program[rank] if m.src == rank), key=lambda m: m.begin_s)
    return Row(rank, SENDS, [Bar(SENDS, m.begin_s, m.end_s, f"to {m.dst}", _tip(
        f"{m.src} → {m.dst}, {show(float(m.nbytes), 'B')}", m.at)) for m in sent])


def _tip(name: str, line: str) -> str:
    return f"{name}, at {short(line)}" if line else name


def _within(bars: Iterable[Bar], start_s: float, end_s: float) -> Iterable[Bar]:
    for bar in bars:
        if bar.end_s >= start_s and bar.start_s <= end_s:
            yield bar._replace(start_s=max(bar.start_s, start_s), end_s=min(bar.end_s, end_s))


def curves(history: History, samples: Sequence[Sequence[tuple[int, int, int]]]) -> list[Curve]:
    """The bytes of each rank over time, from (number of actions, used, peak) of its calls."""
    found = []
    for rank, counted in enumerate(samples):
        line, times_s = history.main(rank), []
        for actions, _, _ in counted:
            step = line.before(actions)
            times_s.append(step.end_s if step else 0.0)
        found.append(Curve(rank, times_s, [used for _, used, _ in counted], [peak for *_, peak in counted]))
    return found


def thinned(bars: Iterable[Bar], least_s: float) -> list[Bar]:
    """Bars shorter than `least_s` that follow each other put together: of the kind and with the name that took longest
    among them; so there are at most about two for each `least_s` of the run."""
    found: list[Bar] = []
    small: list[Bar] = []

    def put_together() -> None:
        if len(small) > 1:
            spent: dict[tuple[str, str], float] = {}
            for bar in small:
                spent[bar.kind, bar.name] = spent.get((bar.kind, bar.name), 0.0) + bar.end_s - bar.start_s
            kind, name = max(spent, key=lambda key: spent[key])
            found.append(Bar(kind, small[0].start_s, max(bar.end_s for bar in small), name,
                             f"{len(small)} events, most of the time {kind}: {name}"))
        else:
            found.extend(small)
        small.clear()
    for bar in bars:
        if bar.end_s - bar.start_s >= least_s:
            put_together()
            found.append(bar)
            continue
        if small and (bar.start_s - small[-1].end_s >= least_s or bar.end_s - small[0].start_s > 2 * least_s):
            put_together()
        small.append(bar)
    put_together()
    return found


__all__ = ["Bar", "COLLECTIVE", "Curve", "Row", "SENDS", "Timeline", "curves", "thinned", "timeline"]
