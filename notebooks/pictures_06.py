"""Pictures of optimisation: curves over steps, and paths over the contours of a loss surface.

Every coordinate is rounded to a tenth of a pixel, so a picture is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from pictures import EDGE, INK, QUIET, _text

from minigrad.tour import Drawing

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#aa4499", "#8c6d00", "#56a0d3", "#555555")
PAPER = "#e3e9ee"
LEFT, RIGHT, TOP, BOTTOM = 56, 460, 16, 236
WIDTH = 640


# ---- curves -------------------------------------------------------------------------------------
def curves(
    series: Mapping[str, Sequence[float]],
    what: str = "loss",
    over: str = "step",
    log: bool = False,
    x: Sequence[float] | None = None,
) -> Drawing:
    """Curves with their names beside them; `log`: powers of ten upwards.  `x`: where the values stand, or 0, 1, 2 …"""
    places = np.asarray(x if x is not None else range(max(map(len, series.values()))), dtype=float)
    shown = {name: np.log10(v) if log else np.asarray(v, dtype=float) for name, v in series.items()}
    low, high = _range(list(shown.values()), log)
    across = LEFT + (places - places[0]) / (places[-1] - places[0]) * (RIGHT - LEFT)
    up = lambda v: BOTTOM - (v - low) / max(high - low, 1e-300) * (BOTTOM - TOP)
    body = [f'<path d="M{LEFT} {TOP}V{BOTTOM}H{RIGHT}" fill="none" stroke="{EDGE}"/>']
    for value in np.arange(low, high + 1, max(1, (high - low) // 5)) if log else (low, (low + high) / 2, high):
        body.append(f'<path d="M{LEFT} {up(value):.1f}H{RIGHT}" stroke="{PAPER}"/>')
        body.append(_text(LEFT - 6, up(value) + 4, f"1e{value:.0f}" if log else f"{value:.3g}", 11, QUIET, "end"))
    for place, at, anchor in ((places[0], LEFT, "start"), (places[-1], RIGHT, "end")):
        body.append(_text(at, BOTTOM + 17, f"{place:g}", 11, QUIET, anchor))
    body.append(_text((LEFT + RIGHT) / 2, BOTTOM + 17, over, 11, QUIET, "middle"))
    body.append(_text(LEFT + 6, TOP - 4, what, 11, QUIET))
    heights = _apart([up(float(v[-1])) for v in shown.values()])
    for (name, v), colour, y in zip(shown.items(), COLOURS, heights):
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across, up(v)))
        body.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        body.append(_label(RIGHT + 10, y, name, colour))
    told = [f"{name}: {values[0]:.3g} at first, {values[-1]:.3g} at the end" for name, values in series.items()]
    return Drawing("\n".join([f"{what} over {over}", *told]), WIDTH, BOTTOM + 26, "\n".join(body))


def _range(values: list[np.ndarray], log: bool) -> tuple[float, float]:
    """Lowest and highest on the axis: 0 and the largest value, or whole powers of ten."""
    low, high = min(float(v.min()) for v in values), max(float(v.max()) for v in values)
    return (float(np.floor(low + 1e-9)), float(np.ceil(high - 1e-9))) if log else (min(low, 0.0), high)


def _apart(heights: list[float], gap: float = 17) -> list[float]:
    """The heights of labels, moved so that none covers another and none falls below the axis."""
    moved, order = list(heights), sorted(range(len(heights)), key=lambda k: heights[k])
    for above, below in zip(order, order[1:]):
        moved[below] = max(moved[below], moved[above] + gap)
    ceiling = float(BOTTOM)
    for k in reversed(order):
        moved[k] = min(moved[k], ceiling)
        ceiling = moved[k] - gap
    return moved


def _label(x: float, y: float, name: str, colour: str) -> str:
    line = f'<path d="M{x:g} {y:.1f}h14" stroke="{colour}" stroke-width="3"/>'
    return line + _text(x + 20, round(y + 4, 1), name, 12, INK)


# ---- a race over a surface ----------------------------------------------------------------------
def race(
    f: Callable,
    box: tuple[float, float, float, float],
    levels: Sequence[float],
    paths: Mapping[str, Sequence[tuple[float, float]]],
    goal: tuple[float, float],
    at: int,
    close_to: float,
) -> Drawing:
    """A window for each path over contours of `f((x, y))`, both axes to one scale; a dot where it is after `at` steps.

    `box`: left, right, bottom, top.  `close_to`: the loss that counts as arrived; in words, after how many steps."""
    left, right, bottom, top = box
    wide = (WIDTH - 32) // 3
    high = round(wide * (top - bottom) / (right - left))
    place = lambda p: ((p[0] - left) / (right - left) * wide, (top - p[1]) / (top - bottom) * high)
    lines = "".join(_contour(f, box, level, place) for level in levels)
    told = [f"{name}: {_arrival(f, path, close_to)}" for name, path in paths.items()]
    body = []
    for k, (path, words, colour) in enumerate(zip(paths.values(), told, COLOURS)):
        x, y = 4 + k % 3 * (wide + 12), 22 + k // 3 * (high + 34)
        drawn = lines + _way(path[: at + 1], place, (wide, high), colour) + _cross(*place(goal))
        frame = f'<rect width="{wide}" height="{high}" fill="none" stroke="{EDGE}"/>'
        body.append(f'<g transform="translate({x} {y})">{frame}{drawn}{_text(0, -7, words, 12, INK)}</g>')
    height = 22 + -(-len(told) // 3) * (high + 34) - 20
    what = f"race to {goal}, drawn up to step {at}; arrived where the loss is below {close_to:g}"
    return Drawing("\n".join([what, *told]), WIDTH, height, "\n".join(body))


def _arrival(f: Callable, path: Sequence[tuple[float, float]], close_to: float) -> str:
    """In words: the step from which on the loss stays below `close_to`."""
    away = [step for step, point in enumerate(path) if not f(point) < close_to]
    if away[-1:] == [len(path) - 1]:
        return f"not there in {len(path) - 1}"
    return f"there after {away[-1] + 1 if away else 0} steps"


def _way(path: Sequence[tuple[float, float]], place: Callable, size: tuple[int, int], colour: str) -> str:
    """The way so far, a point at each step; what leaves the window is drawn at its edge."""
    inside = [tuple(min(max(v, 0), most) for v, most in zip(place(p), size)) for p in path]
    points = list(dict.fromkeys(f"{a:.1f},{b:.1f}" for a, b in inside))
    line = f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="1.3"/>'
    dots = "".join(f"M{p.replace(',', ' ')}h0" for p in points[:40])
    a, b = inside[-1]
    return (
        f'{line}<path d="{dots}" stroke="{colour}" stroke-width="4" stroke-linecap="round"/>'
        f'<circle cx="{a:.1f}" cy="{b:.1f}" r="5" fill="{colour}"/>'
    )


def _cross(x: float, y: float) -> str:
    return f'<path d="M{x - 5:.1f} {y:.1f}h10M{x:.1f} {y - 5:.1f}v10" stroke="{INK}" stroke-width="1.5"/>'


def _contour(f: Callable, box: tuple, level: float, place: Callable, n: int = 36) -> str:
    left, right, bottom, top = box
    xs, ys = np.linspace(left, right, n + 1), np.linspace(bottom, top, n + 1)
    z = f(np.meshgrid(xs, ys)) - level
    joined = "".join(
        f"M{a[0]:.1f} {a[1]:.1f}L{b[0]:.1f} {b[1]:.1f}"
        for p, q in _segments(z, xs, ys)
        for a, b in [(place(p), place(q))]
    )
    return f'<path d="{joined}" fill="none" stroke="#b8c6d1" stroke-width="0.9"/>'


def _segments(z: np.ndarray, xs: np.ndarray, ys: np.ndarray) -> Iterator[tuple]:
    """Pieces of the line z = 0, one or two in each square of the grid (marching squares, Lorensen & Cline 1987)."""
    for i, j in np.ndindex(len(ys) - 1, len(xs) - 1):
        corners = [(i, j), (i, j + 1), (i + 1, j + 1), (i + 1, j)]
        cuts = []
        for (a, b), (c, d) in zip(corners, corners[1:] + corners[:1]):
            u, v = z[a, b], z[c, d]
            if (u < 0) != (v < 0):
                t = u / (u - v)
                cuts.append((xs[b] + t * (xs[d] - xs[b]), ys[a] + t * (ys[c] - ys[a])))
        yield from zip(cuts[::2], cuts[1::2])
