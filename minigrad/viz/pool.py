"""The view of a replay (`mg.memory.replay`): the pool as addresses over time, and how it lay at the peak as a bar.

`data` is plain; `text` and `svg` are made from it and say the same.  Buffers are coloured by their owner, the op and
line that asked; grey ground is memory from the system, white is none.
"""

from __future__ import annotations

from collections import Counter
from html import escape
from typing import Any

from minigrad.memory.live import size_text as size
from minigrad.viz.known import clean
from minigrad.viz.paint import INK, LINE, QUIET, _tag, _text, whole

COLOURS = ("#6d9bd1", "#e0a458", "#6bb377", "#9d86c9", "#d07a7a", "#8fc0bb", "#b59a6a", "#c98fb8")
LETTERS = "ABCDEFGH"
REST, GROUND, EDGE = "#a9b3bb", "#edf0f2", "#ffffff"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BAR, BETWEEN = 760, 300, 74, 14, 44, 60, 34  # px
FRAME = dict(stroke=LINE, stroke_width=0.4)
MOST = 1500  # rectangles: the largest by bytes and time


def data(obj: Any, *, most: int = MOST) -> dict:
    """{"policy", "events", "peak_event", "requested", "allocated", "reserved": most of each, "top": address above all,
    "owners": [[name, bytes], …] of the eight with the most, "segments": [[start, size, from, to], …], "buffers":
    [[start, size, from, to, bytes asked for, owner or null], …], "left_out": buffers that are not among them}."""
    r, stats = obj.recording, obj.stats
    asked: Counter = Counter()
    for k, nbytes in enumerate(r.sizes):
        asked[r.owner[k]] += nbytes
    owners = [k for k, _ in sorted(asked.items(), key=lambda item: (-item[1], item[0]))[: len(COLOURS)]]
    area = lambda k: obj.blocks[k].size * (obj.blocks[k].end - obj.blocks[k].begin)  # noqa: E731
    at_peak = {k for k, b in enumerate(obj.blocks) if b.begin <= obj.peak_event < b.end}
    kept = sorted(sorted(range(len(obj.blocks)), key=lambda k: (k not in at_peak, -area(k)))[: max(most, len(at_peak))])
    return {
        "policy": obj.policy,
        "events": len(r.events),
        "peak_event": obj.peak_event,
        **{name: getattr(stats, f"peak_{name}") for name in ("requested", "allocated", "reserved")},
        "top": max((s.start + s.size for s in obj.segments), default=0),
        "owners": [[_owner(r, k), asked[k]] for k in owners],
        "segments": [[s.start, s.size, s.begin, s.end] for s in obj.segments],
        "buffers": [
            [b.start, b.size, b.begin, b.end, r.sizes[k], owners.index(r.owner[k]) if r.owner[k] in owners else None]
            for k, b in ((k, obj.blocks[k]) for k in kept)
        ],
        "left_out": len(obj.blocks) - len(kept),
    }


def _owner(r: Any, k: int) -> str:
    """'MatMul at model.py:51, in dense': without the folders."""
    what, line = r.owners[k]
    return f"{what} at {line.replace(chr(92), '/').rpartition('/')[2]}" if line else what


def _at_peak(told: dict, name: str) -> list[list]:
    """The segments, or the buffers, that were there then, by address."""
    now = told["peak_event"]
    return sorted(row for row in told[name] if row[2] <= now < row[3])


# ---- text -------------------------------------------------------------------------------
def text(obj: Any, *, width: int = 64, most_rows: int = 12) -> str:
    """The account, the pool at the peak with a letter for each owner ('.' is free), and the owners."""
    told = data(obj)
    segments, buffers = _at_peak(told, "segments"), _at_peak(told, "buffers")
    sizes = [s[1] for s in segments]
    cell = max(max(sizes, default=1), sum(sizes) / most_rows) / width
    rows = [str(obj), f"The pool then, a character for {size(cell)}:"]
    for start, nbytes, *_ in segments:
        inside = [b for b in buffers if start <= b[0] < start + nbytes]
        cells = "".join(_letter(inside, start + k * cell, cell) for k in range(max(1, round(nbytes / cell))))
        rows += [f"{size(start + k * cell):>10} |{cells[k : k + width]}|" for k in range(0, len(cells), width)]
    if len(rows) > 2 + 2 * most_rows:
        rows[2 + 2 * most_rows :] = [f"{'':10}  … {len(rows) - 2 - 2 * most_rows} more rows"]
    rows += [f"  {LETTERS[k]} {size(nbytes):>10} {clean(name, 90)}" for k, (name, nbytes) in enumerate(told["owners"])]
    rows.append("  # others, . free; bytes are of all that was asked for")
    return "\n".join(rows)


def _letter(buffers: list[list], start: float, cell: float) -> str:
    """Who has most of the bytes start … start + cell."""
    has: Counter = Counter()
    for at, nbytes, *_, owner in buffers:
        has["#" if owner is None else LETTERS[owner]] += max(0, min(at + nbytes, start + cell) - max(at, start))
    letter, most = max(has.items(), key=lambda item: item[1], default=(".", 0))
    return letter if 2 * sum(has.values()) >= cell and most else "."


# ---- SVG --------------------------------------------------------------------------------
def html(obj: Any) -> str:
    """The picture, and the text under it."""
    return f'<div>{svg(obj)}<pre style="font-size:12px">{escape(text(obj))}</pre></div>'


def svg(obj: Any) -> str:
    """Addresses upwards, events to the right; beside it the pool at the peak.  It shrinks to the page."""
    told = data(obj)
    chart = WIDTH - LEFT - RIGHT - BAR - BETWEEN
    x = lambda event: LEFT + chart * event / max(told["events"], 1)  # noqa: E731
    y = lambda address: TOP + HEIGHT * (1 - address / max(told["top"], 1))  # noqa: E731
    body = [*_title(told), *_scale(told, y, LEFT + chart)]
    body += [_area(s, x(s[2]), x(s[3]), y, GROUND, f"segment of {size(s[1])}", **FRAME) for s in told["segments"]]
    body += [_buffer(told, b, x(b[2]), x(b[3]), y) for b in told["buffers"]]
    body += _peak(told, x, y)
    left = LEFT + chart + BETWEEN
    right = left + BAR
    body += [_area(s, left, right, y, GROUND, f"segment of {size(s[1])}", **FRAME) for s in _at_peak(told, "segments")]
    body += [_buffer(told, b, left, right, y) for b in _at_peak(told, "buffers")]
    body.append(_text(left + BAR / 2, TOP + HEIGHT + 17, "at the peak"))
    body.append(_text(LEFT + chart / 2, TOP + HEIGHT + 17, f"{told['events']:,} events: buffers asked for, given back"))
    legend, bottom = _legend(told)
    said = f"pool of {told['policy']} over {told['events']} events, at most {size(told['reserved'])} reserved"
    return whole([*body, *legend], WIDTH, bottom, said)


def _title(told: dict) -> list[str]:
    most = ", ".join(f"{name} {size(told[name])}" for name in ("requested", "allocated", "reserved"))
    said = f"{told['left_out']:,} small or short buffers are not drawn" if told["left_out"] else ""
    return [_text(LEFT, 16, f"{told['policy']}: at most {most}", small=False, anchor="start"),
            _text(LEFT, 32, said, anchor="start")]  # fmt: skip


def _area(row: list, left: float, right: float, y, fill: str, tip: str, **pen: Any) -> str:
    """A rectangle from address to address."""
    start, nbytes = row[:2]
    high = y(start) - y(start + nbytes)
    where = dict(x=left, y=y(start + nbytes), width=max(right - left, 0.5), height=max(high, 0.3))
    return _tag("rect", _tag("title", escape(tip)), **where, fill=fill, **pen)


def _buffer(told: dict, row: list, left: float, right: float, y) -> str:
    start, nbytes, begin, end, asked, owner = row
    fill = REST if owner is None else COLOURS[owner]
    name = "another" if owner is None else told["owners"][owner][0]
    tip = f"{name}\n{size(asked)} asked for, a block of {size(nbytes)} at {size(start)}\nevents {begin:,} to {end:,}"
    edge = y(start) - y(start + nbytes) > 2 and right - left > 2
    pen = dict(stroke=EDGE, stroke_width=0.4) if edge else {}
    return _area(row, left, right, y, fill, tip, **pen)


def _scale(told: dict, y, right: float) -> list[str]:
    """Lines at round numbers of bytes."""
    top = max(told["top"], 1)
    step = next(s for k in range(20) for s in (10**k, 2 * 10**k, 5 * 10**k) if top / s <= 5)
    found = []
    for k in range(top // step + 1):
        found.append(_tag("line", x1=LEFT, x2=right, y1=y(k * step), y2=y(k * step), stroke=LINE, stroke_width=0.4))
        found.append(_text(LEFT - 6, y(k * step) + 4, size(k * step), anchor="end"))
    return found


def _peak(told: dict, x, y) -> list[str]:
    at = x(told["peak_event"] + 0.5)
    pen = dict(stroke=INK, stroke_width=0.8, stroke_dasharray="3 3")
    return [_tag("line", x1=at, x2=at, y1=TOP - 4, y2=TOP + HEIGHT, **pen), _text(at, TOP - 6, "most is live")]


def _legend(told: dict) -> tuple[list[str], float]:
    """(a row for each owner, and where they end)."""
    found, top = [], TOP + HEIGHT + 30
    rows = [(COLOURS[k], f"{size(nbytes)}: {clean(name, 80)}") for k, (name, nbytes) in enumerate(told["owners"])]
    rows += [(REST, "others")] * any(b[5] is None for b in told["buffers"]) + [(GROUND, "from the system, and free")]
    for k, (fill, words) in enumerate(rows):
        square = dict(width=10, height=10, fill=fill, stroke=QUIET, stroke_width=0.5)
        left, at = (LEFT, top + 17 * k) if k < 5 else (LEFT + (WIDTH - LEFT) / 2, top + 17 * (k - 5))
        found.append(_tag("rect", x=left, y=at, **square))
        found.append(_text(left + 15, at + 9, clean(words, 52), anchor="start"))
    return found, top + 17 * min(len(rows), 5) + 4
