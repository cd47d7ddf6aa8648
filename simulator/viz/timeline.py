"""The timeline of a run: rows of rank and stream over modelled time, memory under them, the critical path over them.

`data`, `text` and `html` take a `Timeline`; what is shorter than a pixel or a column is put together.  After
`ledger.py`, whose colours these are.
"""
from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from math import floor, log10
from string import ascii_letters, digits
from typing import Any

from simulator.looking.critical_path import CriticalPath, Piece
from simulator.looking.timeline import COLLECTIVE, SENDS, Bar, Curve, Row, Timeline, thinned
from simulator.units import show
from simulator.viz.ledger import COLOURS, INK, MEANINGS, PARTS, box, frame, words

MOST = 16                                    # ranks that are shown
WIDTH, LEFT, RIGHT, TOP = 860, 118, 16, 36   # px
HEIGHTS = {"program": 18, SENDS: 5}          # px; 8 for a stream of collectives
MEMORY = 26
SHORT = 10                                   # px: shorter messages of the path are put together
FILLS = {**COLOURS, COLLECTIVE: "#8b74b5", SENDS: "#3f8f6b"}
MARKS = {"exposed": "=", "bubble": ".", "stall": "!", COLLECTIVE: "~", SENDS: "-"}
SHADES = ("#5a8cc4", "#4676ab", "#7aa5d6", "#3b6593", "#93b8e0", "#6786ab")
PATH = "#20242a"


def data(timeline: Timeline, columns: int = 800) -> dict[str, Any]:
    """{"start_s", "end_s", "rows": [{"rank", "stream", "bars": [[kind, start_s, end_s, name, tip], …]}], "memory":
    [{"rank", "times_s", "bytes", "peak_bytes"}], "path": [[kind, start_s, end_s, rank, name, line, dst], …]}: bars
    shorter than a column are put together, of the memory the most in each column is kept."""
    least_s = _step(timeline, columns)
    curves = [_highest(curve, timeline, columns) for curve in timeline.memory]
    return {"start_s": timeline.start_s, "end_s": timeline.end_s,
            "rows": [{"rank": row.rank, "stream": row.stream, "bars": [list(b) for b in thinned(row.bars, least_s)]}
                     for row in timeline.rows], "memory": curves,
            "path": [list(piece) for piece in timeline.path.pieces]}


def _step(timeline: Timeline, columns: int) -> float:
    if columns < 1:
        raise ValueError(f"timeline: at least one column, got {columns}")
    return (timeline.end_s - timeline.start_s) / columns


def _highest(curve: Curve, timeline: Timeline, columns: int) -> dict[str, Any]:
    """Of each column the most bytes, those of the column before where nothing was counted."""
    step, most, held = _step(timeline, columns), [0] * columns, [-1] * columns
    for k, at_s in enumerate(curve.times_s):
        c = min(max(int((at_s - timeline.start_s) / step), 0), columns - 1) if step else 0
        if at_s <= timeline.end_s:
            most[c], held[c] = max(most[c], curve.peak[k]), curve.used[k]
    now = 0
    for c in range(columns):
        most[c] = max(most[c], now)
        now = held[c] if held[c] >= 0 else now
    return {"rank": curve.rank, "bytes": most, "peak_bytes": max(curve.peak, default=0)}


# ---- text ----------------------------------------------------------------------------------------
def text(timeline: Timeline, width: int = 110) -> str:
    """A line a row: letters for what was computed, signs for what was waited for; bars for memory."""
    shown = timeline.ranks[:MOST]
    rows = [row for row in timeline.rows if row.rank in shown]
    names = [_label(row) for row in rows]
    label = max(map(len, names), default=0)
    columns = max(width - label - 3, 10)
    step, letters = _step(timeline, columns), _letters(rows)
    lines = [f"{show(timeline.start_s, 's')} … {show(timeline.end_s, 's')}, {show(step, 's')} a column"]
    curves = {curve.rank: curve for curve in timeline.memory}
    for k, (row, name) in enumerate(zip(rows, names)):
        lines.append(f"{name:>{label}} |{_cells(row, timeline.start_s, step, columns, letters)}|")
        if row.rank in curves and (k + 1 == len(rows) or rows[k + 1].rank != row.rank):
            told = _highest(curves[row.rank], timeline, columns)
            lines.append(f"{'memory':>{label}} |{_blocks(told)}| at most {show(float(told['peak_bytes']), 'B')}")
    if len(timeline.ranks) > MOST:
        lines.append(f"… and {len(timeline.ranks) - MOST} more ranks")
    cells = "".join(line.split("|")[1] for line in lines if "|" in line)
    said = [f"{letter} {name}" for name, letter in letters.items() if letter in cells]
    said += [f"{mark} {MEANINGS.get(kind, kind)}" for kind, mark in MARKS.items() if mark in cells]
    return "\n".join([*lines, *_wrapped(said, width)])


def _label(row: Row) -> str:
    if row.stream == "program":
        return f"rank {row.rank}"
    name = row.stream.removeprefix("collectives of ")
    return name if len(name) <= 22 else f"{name[:21]}…"


def _cells(row: Row, start_s: float, step: float, columns: int, letters: dict[str, str]) -> str:
    """In each column the sign of what took most of it; nothing is too short to be shown."""
    if not step:
        return " " * columns
    spent: list[dict[str, float]] = [{} for _ in range(columns)]
    for bar in row.bars:
        sign = MARKS[bar.kind] if bar.kind in MARKS else letters.get(bar.name, "#")
        a, b = (bar.start_s - start_s) / step, (bar.end_s - start_s) / step
        for c in range(int(a), min(int(b) + 1, columns)):
            spent[c][sign] = spent[c].get(sign, 0.0) + min(b, c + 1) - max(a, c)
    return "".join(max(cell, key=lambda sign: cell[sign]) if sum(cell.values()) > 1e-9 else " " for cell in spent)


def _letters(rows: list[Row]) -> dict[str, str]:
    """A letter for each thing that is computed, those that take longest first."""
    spent: dict[str, float] = {}
    for bar in (bar for row in rows for bar in row.bars if bar.kind == "compute"):
        spent[bar.name] = spent.get(bar.name, 0.0) + bar.end_s - bar.start_s
    free, letters = [*ascii_letters, *digits], {}
    for name in sorted(spent, key=lambda name: -spent[name])[:12]:
        letters[name] = next((c for c in (*name.upper(), *name.lower()) if c in free), free[0])
        free.remove(letters[name])
    return letters


def _blocks(told: dict[str, Any]) -> str:
    top = max(told["peak_bytes"], 1)
    return "".join(" ▁▂▃▄▅▆▇█"[-(-8 * nbytes // top) if nbytes > 0 else 0] for nbytes in
                   (min(n, top) for n in told["bytes"]))


def _wrapped(said: list[str], width: int) -> list[str]:
    rows = [""]
    for each in said:
        if rows[-1] and len(rows[-1]) + len(each) + 2 > width:
            rows.append("")
        rows[-1] += ("  " if rows[-1] else "") + each
    return rows


# ---- SVG -----------------------------------------------------------------------------------------
def html(timeline: Timeline) -> str:
    """Rows of bars over an axis, whose tips say what and where; the dark line is the critical path."""
    shown = timeline.ranks[:MOST]
    scale = _Scale(timeline.start_s, timeline.end_s)
    curves = {curve.rank: curve for curve in timeline.memory}
    kinds = {bar.kind for row in timeline.rows for bar in row.bars}
    names: dict[str, int] = {}               # whose shades are the same in all rows
    body, middles, y = [], {}, float(TOP)
    for rank in shown:
        for row in (row for row in timeline.rows if row.rank == rank):
            high = HEIGHTS.get(row.stream, 8)
            if row.stream == "program":
                middles[rank] = y + high - 1.5
            body.append(_row(row, y, high, scale, names))
            y += high + 3
        if rank in curves:
            body.append(_memory(_highest(curves[rank], timeline, WIDTH - LEFT - RIGHT), y))
            y += MEMORY + 3
        y += 7
    body.append(_line(list(timeline.path.pieces), middles, scale))
    under, bottom = _axis(scale, TOP - 4, y), y + 20
    if len(timeline.ranks) > MOST:
        bottom += 14
        body.append(words(8, bottom, f"… and {len(timeline.ranks) - MOST} more ranks"))
    parts = (*(p for p in PARTS if p in kinds), *(p for p in (COLLECTIVE, SENDS) if p in kinds), "path")
    return frame(WIDTH, bottom + 12, "timeline of ranks and streams", _legend(parts) + under + "".join(body))


class _Scale:
    """Seconds to px."""

    def __init__(self, start_s: float, end_s: float) -> None:
        self.start_s, self.end_s = start_s, end_s
        self.px_per_s = (WIDTH - LEFT - RIGHT) / (end_s - start_s) if end_s > start_s else 0.0

    def x(self, at_s: float) -> float:
        return LEFT + (min(max(at_s, self.start_s), self.end_s) - self.start_s) * self.px_per_s


def _row(row: Row, y: float, high: float, scale: _Scale, names: dict[str, int]) -> str:
    main = row.stream == "program"
    look = f' font-size="{11 if main else 8}"'
    parts = [words(LEFT - 8, y + high - (5 if main else 0), _label(row), "end", INK if main else "#4f6272", look)]
    for bar in thinned(row.bars, 1 / scale.px_per_s if scale.px_per_s else 1.0):
        x, wide = scale.x(bar.start_s), max((bar.end_s - bar.start_s) * scale.px_per_s, 0.4)
        fill = FILLS[bar.kind]
        if bar.kind == "compute":
            fill = SHADES[names.setdefault(bar.name, len(names)) % len(SHADES)]
        parts.append(box(x, y, wide, high, fill, _tip(bar), ' stroke="#fff" stroke-width="0.5"' if wide > 3 else ""))
        if main and bar.kind == "compute" and wide > 6.2 * len(bar.name) + 4:
            parts.append(words(x + wide / 2, y + 12, bar.name, "middle", "#fff", ' pointer-events="none"'))
    return "".join(parts)


def _tip(bar: Bar) -> str:
    took = show(bar.end_s - bar.start_s, "s")
    return f"{MEANINGS.get(bar.kind, bar.kind)}, {took} from {show(bar.start_s, 's')}\n{bar.tip or bar.name}"


def _memory(told: dict[str, Any], y: float) -> str:
    """The area under the most bytes of each pixel."""
    top = max(told["peak_bytes"], 1)
    points: list[str] = []
    before: int | None = None
    for c, nbytes in enumerate(told["bytes"]):
        if nbytes != before:
            edge = [] if before is None else [f"{LEFT + c},{y + MEMORY * (1 - max(before, 0) / top):.1f}"]
            points += [*edge, f"{LEFT + c},{y + MEMORY * (1 - max(nbytes, 0) / top):.1f}"]
        before = nbytes
    points.append(f"{WIDTH - RIGHT},{y + MEMORY * (1 - max(before or 0, 0) / top):.1f}")
    area = f'<polygon points="{LEFT},{y + MEMORY} {" ".join(points)} {WIDTH - RIGHT},{y + MEMORY}" fill="#b9d8c2"/>'
    return area + words(LEFT - 8, y + MEMORY - 2, f"memory, peak {show(float(top), 'B')}", "end", more=' font-size="8"')


def _line(pieces: list[Piece], middles: dict[int, float], scale: _Scale) -> str:
    """The critical path: along the ranks that compute, across where messages go; ranks that are not shown are left
    out."""
    parts = []
    for ends in _stretches(pieces, scale):
        (from_s, rank), (to_s, dst) = ends
        if rank in middles and dst in middles:
            look = "2.5" if rank == dst and to_s > from_s else '1.2" stroke-dasharray="4 2'
            parts.append(f'<path d="M{scale.x(from_s):.1f} {middles[rank]:.1f}L{scale.x(to_s):.1f} {middles[dst]:.1f}" '
                         f'stroke-width="{look}"/>')
    return (f'<g fill="none" stroke="{PATH}" stroke-linecap="round" pointer-events="none">{"".join(parts)}</g>'
            if parts else "")


def _stretches(pieces: list[Piece], scale: _Scale) -> Iterator[tuple[tuple[float, int], tuple[float, int]]]:
    """((seconds, rank), (seconds, rank)) of each straight part: what a rank computed without a break, each message that
    is long enough to be seen, and short ones that follow each other as one; between them, in no time, from where one
    ended to where the next begins."""
    seen = [p for p in pieces if p.end_s >= scale.start_s and p.start_s <= scale.end_s]

    def stretch(p: Piece) -> tuple:
        long = p.dst is not None and (p.end_s - p.start_s) * scale.px_per_s >= SHORT
        return p.kind, p.rank if p.dst is None else None, p.start_s if long else None
    at = None
    for _, group in groupby(seen, key=stretch):
        run = list(group)
        first, last = run[0], run[-1]
        if at is not None and at[1] != first.rank:
            yield at, (first.start_s, first.rank)
        at = last.end_s, last.rank if last.dst is None else last.dst
        yield (first.start_s, first.rank), at


def _axis(scale: _Scale, top: float, bottom: float) -> str:
    """Lines at round times."""
    span = scale.end_s - scale.start_s
    if span <= 0:
        return ""
    rough = span / 6
    unit = 10.0 ** floor(log10(rough))
    step = next(unit * k for k in (1, 2, 5, 10) if unit * k >= rough)
    parts, k = [], -(-scale.start_s // step)
    while k * step <= scale.end_s * (1 + 1e-12):
        x = scale.x(k * step)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}" stroke="#e3e7ea"/>'
                     + words(x, bottom + 13, show(k * step, "s"), "middle"))
        k += 1
    return "".join(parts)


def _legend(parts: tuple[str, ...]) -> str:
    told, x = [], 8.0
    for part in parts:
        name = {"path": "critical path", COLLECTIVE: "collectives", SENDS: "sends"}.get(part) or MEANINGS[part]
        told.append(box(x, 8 if part != "path" else 13, 11, 11 if part != "path" else 2, FILLS.get(part, PATH))
                    + words(x + 15, 18, name))
        x += 34 + 6.1 * len(name)
    return "".join(told)


def path_html(path: CriticalPath) -> str:
    """The critical path alone: a row for each rank that it leads through, those on which it is longest."""
    spent: dict[int, float] = {}
    for piece in path.pieces:
        for rank in {piece.rank, piece.rank if piece.dst is None else piece.dst}:
            spent[rank] = spent.get(rank, 0.0) + piece.end_s - piece.start_s
    ranks = sorted(sorted(spent, key=lambda rank: -spent[rank])[:MOST])
    names: dict[str, int] = {}
    scale, body, middles = _Scale(0.0, path.time_s), [], {}
    for k, rank in enumerate(ranks):
        y = TOP + 28.0 * k
        bars = [Bar("compute", p.start_s, p.end_s, p.name, p.line) for p in path.pieces
                if p.rank == rank and p.dst is None]
        middles[rank] = y + 16.5
        body.append(_row(Row(rank, "program", bars), y, 18, scale, names))
    bottom = TOP + 28.0 * len(ranks)
    body.append(_line(list(path.pieces), middles, scale))
    return frame(WIDTH, bottom + 22, "critical path", _legend(("compute", "path")) + _axis(scale, TOP - 4, bottom)
                 + "".join(body))


__all__ = ["data", "html", "path_html", "text"]
