"""The view of a tracker (`mg.memory.track`): live bytes over its events, stacked by category, with phases and the peak.

`data` is plain and says all that `text` and `html` show.  The axis counts events, buffers taken and given back, so the
picture of a program is the same on every machine.  It reaches the tracker's public reads alone.
"""

from __future__ import annotations

from html import escape
from typing import Any

from minigrad.memory.live import size_text as size
from minigrad.viz.paint import INK, LINE, _tag, _text, whole

ORDER = ("parameter", "optimizer state", "input", "gradient", "activation", "workspace")  # what stays lies below
COLOURS = dict(zip(ORDER, ("#6d9bd1", "#9d86c9", "#8fc0bb", "#e0a458", "#6bb377", "#c3c9ce")))
LETTERS = dict(zip(ORDER, "POIGAw"))
BANDS = {"forward": "#f3f8f3", "backward": "#fdf3e6", "update": "#f1edf9", "load": "#eaf5f4"}
WIDTH, HEIGHT, LEFT, RIGHT, TOP = 760, 240, 74, 14, 34  # px


def data(obj: Any, *, points: int = 400) -> dict:
    """{"events": numbers, "bytes": {category: after each}, "phases": [[phase, from, to], …], "steps", "live", "peak":
    {"nbytes", "event", "phase", "by_category", "by_line", "by_module"}, "devices": {name: [used, most]}, "lost"}.

    Of more than `points` events the highest of each stretch is kept, so the peak always is."""
    if points < 3:
        raise ValueError(f"memory: the first event, the last and the peak make at least 3 points, got {points}")
    events, by_category = obj.timeline()
    peak, marks = obj.at_peak(), obj.marks
    kept = _highest([sum(column) for column in zip(*by_category.values())], points)
    return {
        "events": [events[k] for k in kept],
        "bytes": {c: [by_category[c][k] for k in kept] for c in ORDER},
        "phases": _phases(marks, events[0], events[-1]),
        "steps": [s for s in obj.steps if s >= events[0]],
        "live": obj.live,
        "peak": {
            "nbytes": peak.nbytes,
            "event": obj.peak_event,
            "phase": peak.phase,
            "by_category": peak.by_category,
            "by_line": peak.by_line,
            "by_module": peak.by_module,
        },
        "devices": {name: list(account) for name, account in obj.devices.items()},
        "lost": obj.lost,
    }


def _highest(totals: list[int], points: int) -> list[int]:
    """Where each stretch is highest; the first and the last event too."""
    n = len(totals)
    if n <= points:
        return list(range(n))
    inner = points - 2
    ends = [1 + (n - 2) * k // inner for k in range(inner + 1)]
    found = [max(range(a, b), key=totals.__getitem__) for a, b in zip(ends, ends[1:]) if b > a]
    return [0, *found, n - 1]


def _phases(marks: list, first: int, last: int) -> list[list]:
    """The innermost phase from event to event; forward where there is none."""
    found: list[list] = []
    stack: list[str] = []
    at = first
    for event, phase, begins in [*marks, (last, "", True)]:
        event = max(event, first)
        if event > at:
            now = stack[-1] if stack else "forward"
            if found and found[-1][0] == now:
                found[-1][2] = event
            else:
                found.append([now, at, event])
        at = max(at, event)
        if begins:
            stack.append(phase)
        elif phase in stack:
            del stack[len(stack) - 1 - stack[::-1].index(phase) :]
    return found


# ---- text -------------------------------------------------------------------------------
def text(obj: Any, *, width: int = 64, height: int = 10) -> str:
    """The stacked timeline in letters, the phases under it by their first letter, and the table of `print(obj)`."""
    told = data(obj, points=width)
    top = max(told["peak"]["nbytes"], 1)
    columns = [_column([told["bytes"][c][k] for c in ORDER], top, height) for k in range(len(told["events"]))]
    rows = ["".join(column[row] for column in columns).rstrip() for row in reversed(range(height))]
    names = [f"{size(top):>9}", *[" " * 9] * (height - 2), f"{'0 B':>9}"]
    peak = told["events"].index(told["peak"]["event"]) if told["peak"]["event"] in told["events"] else None
    chart = [f"{name} |{row}" for name, row in zip(names, rows)]
    if peak is not None:
        chart.insert(0, " " * (11 + peak) + "v peak")
    chart.append(" " * 9 + " |" + "".join(_phase_at(told["phases"], event)[0] for event in told["events"]))
    keys = ", ".join(f"{letter} {c}" for c, letter in LETTERS.items())
    phases = ", ".join(f"{p[0]} {p}" for p in BANDS if any(p == found for found, _, _ in told["phases"]))
    return "\n".join([*chart, keys, phases, "", str(obj)])


def _column(parts: list[int], top: int, height: int) -> str:
    """The letters of one event, from below."""
    found, ends = "", 0
    for c, nbytes in zip(ORDER, parts):
        ends += nbytes
        found += LETTERS[c] * (round(height * ends / top) - len(found))
    return found.ljust(height)[:height]


def _phase_at(phases: list, event: int) -> str:
    return next((phase for phase, a, b in phases if a < event <= b), "forward")


# ---- SVG --------------------------------------------------------------------------------
def html(obj: Any) -> str:
    """The picture, and the table under it."""
    return f'<div>{svg(data(obj))}<pre style="font-size:12px">{escape(str(obj))}</pre></div>'


def svg(told: dict) -> str:
    """The stacked timeline, the phases behind it, the peak marked.  It shrinks to the page."""
    first, last = told["events"][0], max(told["events"][-1], told["events"][0] + 1)
    top = max(told["peak"]["nbytes"], 1) * 1.05
    x = lambda event: LEFT + (WIDTH - LEFT - RIGHT) * (event - first) / (last - first)  # noqa: E731
    y = lambda nbytes: TOP + HEIGHT * (1 - nbytes / top)  # noqa: E731
    body = [*_bands(told, x), *_scale(told, top, y), *_areas(told, x, y), *_peak(told, x, y), *_legend(told)]
    body.append(_text((LEFT + WIDTH - RIGHT) / 2, TOP + HEIGHT + 17, "events: buffers taken and given back"))
    said = f"memory over {last - first} events, at most {size(told['peak']['nbytes'])}"
    return whole(body, WIDTH, TOP + HEIGHT + 64, said)


def _bands(told: dict, x) -> list[str]:
    found = []
    for phase, a, b in told["phases"]:
        wide = x(b) - x(a)
        tip = _tag("title", f"{phase}: events {a} to {b}")
        found.append(_tag("rect", tip, x=x(a), y=TOP, width=wide, height=HEIGHT, fill=BANDS[phase]))
        if wide > 7 * len(phase):
            found.append(_text((x(a) + x(b)) / 2, TOP - 5, phase))
    return found


def _scale(told: dict, top: float, y) -> list[str]:
    """Lines at round numbers of bytes."""
    step = next(s for k in range(20) for s in (10**k, 2 * 10**k, 5 * 10**k) if top / s <= 5)
    found = []
    for k in range(int(top / step) + 1):
        ends = dict(x1=LEFT, x2=WIDTH - RIGHT, y1=y(k * step), y2=y(k * step))
        found.append(_tag("line", **ends, stroke=LINE, stroke_width=0.5, opacity=0.5))
        found.append(_text(LEFT - 6, y(k * step) + 4, size(k * step), anchor="end"))
    return found


def _areas(told: dict, x, y) -> list[str]:
    """One polygon a category: bytes stay until the next event."""
    below = [0] * len(told["events"])
    found = []
    for c in ORDER:
        above = [a + b for a, b in zip(below, told["bytes"][c])]
        if any(told["bytes"][c]):
            edge = _steps(told["events"], above, x, y) + _steps(told["events"], below, x, y)[::-1]
            corners = " ".join(f"{a:.5g},{b:.5g}" for a, b in edge)
            tip = _tag("title", f"{c}: {size(told['peak']['by_category'][c])} at the peak")
            found.append(_tag("polygon", tip, points=corners, fill=COLOURS[c]))
        below = above
    return found


def _steps(events: list[int], values: list[int], x, y) -> list[tuple[float, float]]:
    corners = []
    for k, (event, value) in enumerate(zip(events, values)):
        if k:
            corners.append((x(event), y(values[k - 1])))
        corners.append((x(event), y(value)))
    return corners


def _peak(told: dict, x, y) -> list[str]:
    event, nbytes = told["peak"]["event"], told["peak"]["nbytes"]
    if event < told["events"][0]:  # it was before what is remembered
        return []
    at, left = x(event), x(event) > WIDTH / 2
    line = _tag("line", x1=at, x2=at, y1=TOP, y2=TOP + HEIGHT, stroke=INK, stroke_dasharray="3 3")
    where = at - 5 if left else at + 5
    words = f"peak {size(nbytes)}, in {told['peak']['phase']}"
    return [line, _tag("circle", cx=at, cy=y(nbytes), r=3, fill=INK),
            _text(where, TOP + 11, words, small=False, anchor="end" if left else "start")]  # fmt: skip


def _legend(told: dict) -> list[str]:
    """The categories that occur, two rows of three, with their bytes at the peak."""
    found = []
    shown = [c for c in ORDER if any(told["bytes"][c])]
    for k, c in enumerate(shown):
        left, top = LEFT + 225 * (k % 3), TOP + HEIGHT + 26 + 17 * (k // 3)
        found.append(_tag("rect", x=left, y=top, width=10, height=10, fill=COLOURS[c]))
        share = f"{c}, {size(told['peak']['by_category'][c])} at the peak"
        found.append(_text(left + 15, top + 9, share, anchor="start"))
    return found
