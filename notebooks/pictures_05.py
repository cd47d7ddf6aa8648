"""Pictures of attention: who looks at whom, and from where a gradient comes.

A cell that holds exactly zero stays empty, one that holds anything at all is tinted: a small leak is seen, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from pictures import EDGE, INK, QUIET, _text

from minigrad.tour import Drawing

SHADE, PALEST = "#0072b2", 0.15
LEFT, TOP, GAP = 30, 50, 40


def maps(
    matrices: Mapping[str, Sequence[Sequence[float]]],
    rows: str | Sequence[str] = "",
    columns: str | Sequence[str] = "",
    side: int = 22,
) -> Drawing:
    """Matrices (rows, columns) side by side, darker for larger absolute values; labels at both edges.

    Each is shaded by its own largest value.  In words: a row of characters for each row, a point where there is exactly
    nothing, else a digit from 0 to 9; of a square, how many cells above the diagonal, the future, are not zero."""
    body, told, x = [], [], LEFT
    for title, values in matrices.items():
        m = np.abs(np.asarray(values, dtype=float))
        body.append(f'<g transform="translate({x} {TOP})">{_map(title, m, rows, columns, side)}</g>')
        square = m.shape[0] == m.shape[1]
        above = f": {int((np.triu(m, 1) > 0).sum())} cells above the diagonal are not zero" if square else ""
        told += [title + above, *_words(m)]
        x += max(m.shape[1] * side, round(6.7 * len(title))) + GAP
    height = TOP + max(len(v) for v in matrices.values()) * side + 10
    return Drawing("\n".join(told), x - GAP + 10, height, "\n".join(body))


def _words(m: np.ndarray) -> list[str]:
    digits = np.minimum(m / max(float(m.max()), 1e-300) * 9.99, 9).astype(int)
    return ["".join("." if v == 0 else str(d) for v, d in zip(*rows)) for rows in zip(m, digits)]


def _map(title: str, m: np.ndarray, rows: Sequence[str], columns: Sequence[str], side: int) -> str:
    high, wide = m.shape
    parts = [_text(0, -30, title, 12, INK)]
    for name, k in zip(columns, range(wide)):
        parts.append(_text((k + 0.5) * side, -8, _visible(name), 12, QUIET, "middle"))
    for name, k in zip(rows, range(high)):
        parts.append(_text(-8, (k + 0.5) * side + 4, _visible(name), 12, QUIET, "end"))
    shade = m / max(float(m.max()), 1e-300)
    for (r, c), v in np.ndenumerate(shade):
        if v > 0:
            opacity = PALEST + (1 - PALEST) * v
            parts.append(
                f'<path d="M{c * side} {r * side}h{side}v{side}h-{side}z" fill="{SHADE}" fill-opacity="{opacity:.2f}"/>'
            )
    grid = "".join(f"M0 {r * side}H{wide * side}" for r in range(high + 1))
    grid += "".join(f"M{c * side} 0V{high * side}" for c in range(wide + 1))
    return "".join([*parts, f'<path d="{grid}" stroke="{EDGE}" stroke-width="0.5" fill="none"/>'])


def _visible(character: str) -> str:
    return {" ": "␣", "\n": "⏎"}.get(character, character)
