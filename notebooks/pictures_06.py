"""A race: paths over the contours of a loss surface.

Every coordinate is rounded to a tenth of a pixel, so a picture is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from pictures import COLOURS, EDGE, INK, WIDTH, _text

from minigrad.tour import Drawing


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
