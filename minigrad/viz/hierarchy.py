"""The measured memory hierarchy as pictures: the ladder, strides, blocks and the roofline.

`data(measured)` is plain numbers, `text` the table, `svg` the picture, `html` a page of both.  No script.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from html import escape
from math import ceil, floor, isfinite, log10
from typing import Any

from minigrad.memory.hierarchy import Blocking, Ladder, Roofline, Strides
from minigrad.memory.hierarchy.system import binary_size
from minigrad.viz.paint import INK, LINE, QUIET, _tag, _text, whole
from minigrad.viz.words import width_px

BLUE, RED, GREEN, SAND = "#3b78b5", "#c0504d", "#4f9a58", "#d68a2e"
LEFT, TOP, RIGHT, BOTTOM = 66, 40, 24, 50


def data(measured: Any) -> dict[str, Any]:
    """Plain numbers, texts and lists; what is derived (the line, the ridge, shares) beside what was measured."""
    found = {"kind": type(measured).__name__, **asdict(measured)}
    if isinstance(measured, Strides):
        found["line_nbytes"] = measured.line_nbytes
    if isinstance(measured, Roofline):
        for told, roof in zip(found["roofs"], measured.roofs):
            told["ridge"] = roof.ridge
        for told, p in zip(found["points"], measured.points):
            told |= {"intensity": p.intensity, "flops_per_s": p.flops_per_s, "share": p.share(measured.roof)}
    return found


def text(measured: Any) -> str:
    return str(measured)


def svg(measured: Any) -> str:
    """The picture.  TypeError for what has none."""
    for kind, paint in PICTURES.items():
        if isinstance(measured, kind):
            return paint(measured)
    known = ", ".join(kind.__name__ for kind in PICTURES)
    raise TypeError(f"hierarchy: expected one of {known}, got {type(measured).__name__}")


def html(measured: Any) -> str:
    """A page of its own: the picture, and the table under it."""
    return (f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{type(measured).__name__}</title>\n'
            f"<body>\n{svg(measured)}\n<pre>{escape(text(measured))}</pre>\n</body>\n</html>\n")


# ---- a plane with logarithmic axes ---------------------------------------------------------------
@dataclass
class Plane:
    """Axes from `x[0]` to `x[1]` and from `y[0]` to `y[1]`, both logarithmic; what is drawn on them in `parts`."""

    x: tuple[float, float]
    y: tuple[float, float]
    width: float = 760
    height: float = 430
    parts: list[str] = field(default_factory=list)
    taken: list[tuple[float, float, float, float]] = field(default_factory=list)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Pixels; outside the axes: at their edge."""
        (x0, x1), (y0, y1) = self.x, self.y
        right = (log10(min(max(x, x0), x1)) - log10(x0)) / (log10(x1) - log10(x0))
        up = (log10(min(max(y, y0), y1)) - log10(y0)) / (log10(y1) - log10(y0))
        return LEFT + right * (self.width - LEFT - RIGHT), self.height - BOTTOM - up * (self.height - TOP - BOTTOM)

    def line(self, points: Iterable[tuple[float, float]], ink: str, dashes: str = "none", pen: float = 1.8) -> None:
        corners = " ".join(f"{a:.5g},{b:.5g}" for a, b in (self.at(*p) for p in points))
        look = dict(fill="none", stroke=ink, stroke_width=pen, stroke_dasharray=dashes)
        self.parts.append(_tag("polyline", points=corners, **look))

    def dot(self, x: float, y: float, ink: str, tip: str) -> None:
        a, b = self.at(x, y)
        self.parts.append(_tag("circle", _tag("title", escape(tip)), cx=a, cy=b, r=3.4, fill=ink, fill_opacity=0.75))
        self.taken.append((a - 3, b - 3, 6, 6))

    def label(self, x: float, y: float, words: str, ink: str = INK, must: bool = False) -> bool:
        """Beside a point, where there is room: right, left, above, below.  `must`: right, in any case."""
        a, b = self.at(x, y)
        wide = width_px(words)
        for left, base in ((a + 6, b + 4), (a - 6 - wide, b + 4), (a - wide / 2, b - 7), (a - wide / 2, b + 15)):
            box = (left, base - 10, wide, 12)
            inside = LEFT < left and left + wide < self.width - 4 and TOP < box[1] and base < self.height - BOTTOM
            if must or (inside and not any(_overlap(box, other) for other in self.taken)):
                self.taken.append(box)
                self.parts.append(_tag("text", escape(words), x=left, y=base, font_size=11, fill=ink))
                return True
        return False

    def axes(self, x_name: str, y_name: str, x_ticks: dict[float, str], y_ticks: dict[float, str]) -> list[str]:
        bottom, found = self.height - BOTTOM, []
        for value, words in x_ticks.items():
            a, _ = self.at(value, self.y[0])
            found += [_rule(a, TOP, a, bottom), _text(a, bottom + 16, words)]
        for value, words in y_ticks.items():
            _, b = self.at(self.x[0], value)
            found += [_rule(LEFT, b, self.width - RIGHT, b), _text(LEFT - 6, b + 4, words, anchor="end")]
        found.append(_text((LEFT + self.width - RIGHT) / 2, self.height - 12, x_name))
        return [*found, _text(8, TOP - 10, y_name, anchor="start")]

    def svg(self, title: str, axes: list[str]) -> str:
        return _whole(title, [*axes, *self.parts], self.width, self.height)


def _whole(title: str, parts: list[str], width: float, height: float) -> str:
    return whole([_text(8, 17, title, small=False, anchor="start"), *parts], width, height, title)


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return _tag("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke="#dde4e9")


def _overlap(a: tuple, b: tuple) -> bool:
    return a[0] < b[0] + b[2] and b[0] < a[0] + a[2] and a[1] < b[1] + b[3] and b[1] < a[1] + a[3]


def _decades(low: float, high: float) -> tuple[float, float]:
    """The powers of ten around."""
    return 10.0 ** floor(log10(low)), 10.0 ** max(ceil(log10(high)), floor(log10(low)) + 1)


def _tens(limits: tuple[float, float], unit: str = "") -> dict[float, str]:
    low, high = (round(log10(v)) for v in limits)
    return {10.0**k: f"{10.0**k:g}{unit}" for k in range(low, high + 1)}


# ---- the pictures ----------------------------------------------------------------------------------
def _ladder(m: Ladder) -> str:
    sizes = [p.nbytes for p in m.points]
    plane = Plane((min(sizes) / 1.2, max(sizes) * 1.2), _decades(min(p.ns_per_read for p in m.points),
                                                                  max(p.ns_per_read for p in m.points)))
    begin = plane.x[0]
    for level in m.levels:
        end = level.nbytes or plane.x[1]
        plane.line([(begin, level.ns_per_read), (end, level.ns_per_read)], SAND, pen=5)
        if level.told_nbytes and level.told_nbytes < plane.x[1]:
            plane.line([(level.told_nbytes, plane.y[0]), (level.told_nbytes, plane.y[1])], GREEN, "5 4", 1.2)
            plane.label(level.told_nbytes, plane.y[1] / 1.2, f"{level.name}: {binary_size(level.told_nbytes)}", GREEN)
        words = f"{level.name} {level.ns_per_read:.3g} ns"
        plane.label((begin * end) ** 0.5, level.ns_per_read * 0.72, words, must=True)
        begin = end
    plane.line([(p.nbytes, p.ns_per_read) for p in m.points], BLUE)
    for p in m.points:
        plane.dot(p.nbytes, p.ns_per_read, BLUE, f"{binary_size(p.nbytes)}: {p.ns_per_read:.3g} ns")
    ticks = {4.0**k: binary_size(4**k) for k in range(5, 16) if plane.x[0] <= 4**k <= plane.x[1]}
    title = f"One read that waits for the one before: {m.processor}"
    return plane.svg(title, plane.axes("memory that is walked over (dashed: caches, as the system tells)",
                                       "ns a read", ticks, _tens(plane.y)))


def _strides(m: Strides) -> str:
    plane = Plane((m.stride_nbytes[0] / 1.2, m.stride_nbytes[-1] * 1.2), _decades(min(m.ns), max(m.ns)))
    plane.line([(m.line_nbytes, plane.y[0]), (m.line_nbytes, plane.y[1])], GREEN, "5 4", 1.2)
    plane.label(m.line_nbytes, plane.y[1] / 1.2, f"a line: {m.line_nbytes} B", GREEN)
    plane.line(zip(m.stride_nbytes, m.ns), BLUE)
    for s, t in zip(m.stride_nbytes, m.ns):
        plane.dot(s, t, BLUE, f"{s} B: {t:.3g} ns")
    ticks = {float(s): f"{s} B" for s in m.stride_nbytes}
    return plane.svg(f"Reads of 4 bytes with gaps, over {binary_size(m.nbytes)}: {m.processor}",
                     plane.axes("from one read to the next", "ns a read", ticks, _tens(plane.y)))


def _blocking(m: Blocking) -> str:
    row, bar_x, most = 22, 190, max(run.rate for run in m.runs)
    parts = []
    for k, run in enumerate(m.runs):
        y, wide = 40 + row * k, max(1.0, 430 * run.rate / most)
        name = run.name + (f", {run.block}" if run.block else "")
        parts += [_text(bar_x - 8, y + 13, name, anchor="end"),
                  _tag("rect", x=bar_x, y=y, width=wide, height=row - 6, fill=RED if run is m.best else BLUE),
                  _text(bar_x + wide + 6, y + 13, f"{run.rate:.3g} {m.unit}", anchor="start")]
    return _whole(f"{m.what}: {m.processor}", parts, 760, 50 + row * len(m.runs))


def _roofline(m: Roofline) -> str:
    shown = [p for p in m.points if isfinite(p.intensity) and p.flops and p.intensity > 0.01]
    xs, ys = [p.intensity for p in shown] or [1.0], [p.flops_per_s for p in shown] or [1e9]
    highest = max(r.flops_per_s for r in m.roofs)
    plane = Plane(_decades(min(xs), max(*xs, 10 * m.roof.ridge)), _decades(min(ys) / 5, highest), height=520)
    for k, (roof, (ink, dashes)) in enumerate(zip(reversed(m.roofs), ((RED, "none"), (QUIET, "6 4"), (LINE, "2 4")))):
        plane.line([(x, roof.reach(x)) for x in (plane.x[0], roof.ridge, plane.x[1])], ink, dashes)
        words = f"{roof.name}: {roof.flops_per_s / 1e9:.3g} GFLOP/s, {roof.bandwidth_Bps / 1e9:.3g} GB/s"
        left, base = plane.width - RIGHT - 330, plane.height - BOTTOM - 12 - 16 * k
        plane.taken.append((left, base - 12, 330, 16))
        stroke = dict(stroke=ink, stroke_dasharray=dashes, stroke_width=1.8)
        plane.parts += [_tag("line", x1=left, y1=base - 4, x2=left + 34, y2=base - 4, **stroke),
                        _text(left + 40, base, words, anchor="start")]
    for p in shown:
        tip = f"{p.name}: {p.intensity:.3g} flop/B, {p.flops_per_s / 1e9:.3g} GFLOP/s, {p.share(m.roof):.0%} of the"
        plane.dot(p.intensity, p.flops_per_s, BLUE, f"{tip} roof\n{p.inputs}")
    for p in sorted(shown, key=lambda p: -p.intensity):
        plane.label(p.intensity, p.flops_per_s, p.name)
    giga = {k: f"{k / 1e9:g}" for k in _tens(plane.y)}
    note = f"operations a byte ({len(m.points) - len(shown)} ops that move bytes and little else are in the table)"
    return plane.svg(f"Roofline, float32: {m.processor}", plane.axes(note, "GFLOP/s", _tens(plane.x), giga))


PICTURES: dict[type, Callable[[Any], str]] = {
    Ladder: _ladder, Strides: _strides, Blocking: _blocking, Roofline: _roofline,
}

__all__ = ["data", "html", "svg", "text"]
