"""Pictures of notebook 04: grids of numbers, and windows that slide.

`grids` stands grids side by side, `windows` shows what a convolution reads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from pictures import EDGE, INK, SEEN, UNUSED, USED, _text

import minigrad as mg
from minigrad.tour import Drawing

FILLS = ("#ffffff", USED, SEEN, "#e3f1df", "#f3e3ef", UNUSED)  # by number; the last is for what is outside
OUTSIDE = len(FILLS) - 1
TOP, GAP = 24, 44


@dataclass(frozen=True)
class Grid:
    """A table of short texts; `fill` numbers the colour of each cell, `shade` is how dark it is (0 to 1)."""

    title: str
    cells: np.ndarray
    fill: np.ndarray
    shade: np.ndarray
    side: tuple[int, int] = (34, 26)

    @property
    def size(self) -> tuple[int, int]:
        rows, columns = self.cells.shape
        return max(columns * self.side[0], round(6.6 * len(self.title))), TOP + rows * self.side[1]

    def body(self, x: int, y: int) -> str:
        (wide, high), parts = self.side, [_text(x, y + 14, self.title, 13, INK)]
        for (r, c), text in np.ndenumerate(self.cells):
            left, top = x + c * wide, y + TOP + r * high
            dark, outside = self.shade[r, c], self.fill[r, c] == OUTSIDE
            look = f'fill="{INK}" fill-opacity="{dark:.2f}"' if dark else f'fill="{FILLS[self.fill[r, c]]}"'
            dash = ' stroke-dasharray="2 2"' if outside else ""
            parts.append(
                f'<rect x="{left}" y="{top}" width="{wide - 2}" height="{high - 2}" rx="2" {look} '
                f'stroke="{EDGE}"{dash}/>'
            )
            ink = "#ffffff" if dark > 0.5 else INK
            parts.append(_text(left + wide / 2 - 1, top + high / 2 + 3, text, 12, ink, "middle") if text else "")
        return "".join(parts)

    def __str__(self) -> str:
        wide = max(map(len, self.cells.ravel()), default=1)
        mark = lambda text, f: text or (".", "#", "o", "+", "x", " ")[f]
        rows = [
            " ".join(mark(t, f).rjust(max(wide, 1)) for t, f in zip(*row)).rstrip()
            for row in zip(self.cells, self.fill)
        ]
        return "\n".join([self.title, *rows])


def grid(title: str, values, fill=None, shaded: bool = False, side: tuple[int, int] = (34, 26)) -> Grid:
    """A matrix as a Grid; zeros in `fill` are plain cells, `shaded` paints large values dark."""
    values = values.detach().numpy() if isinstance(values, mg.Tensor) else np.asarray(values)
    if values.ndim != 2:
        raise ValueError(f"grid: {title!r} needs a matrix, got shape {values.shape}")
    text = np.vectorize(lambda v: v if isinstance(v, str) else f"{v:g}", otypes=[object])(values)
    fill = np.zeros(values.shape, int) if fill is None else np.asarray(fill, int)
    shade = np.abs(values) / np.abs(values).max() * 0.85 if shaded else np.zeros(values.shape)
    return Grid(title, text, fill, shade, side)


def grids(*shown: Grid, across: int = 6) -> Drawing:
    """Grids side by side, `across` in a row."""
    parts, x, y, width, tallest = [], 8, 4, 0, 0
    for k, each in enumerate(shown):
        if k and k % across == 0:
            x, y, tallest = 8, y + tallest + 14, 0
        parts.append(each.body(x, y))
        x += each.size[0] + GAP
        width, tallest = max(width, x - GAP + 8), max(tallest, each.size[1])
    return Drawing("\n\n".join(map(str, shown)), width, y + tallest + 8, "".join(parts))


# ---- windows ------------------------------------------------------------------------------------
def windows(*ways: tuple[str, dict], size: int = 5, kernel: int = 3, at: tuple[int, int] = (0, 1)) -> Drawing:
    """What output `at` reads of an image: one way of sliding after the other, each its input and its output."""
    shown = []
    for title, how in ways:
        stride, padding, dilation = (how.get(k, d) for k, d in (("stride", 1), ("padding", 0), ("dilation", 1)))
        wide = size + 2 * padding
        out = (wide - dilation * (kernel - 1) - 1) // stride + 1
        place = min(at[0], out - 1), min(at[1], out - 1)
        reads, makes = np.zeros((wide, wide), int), np.zeros((out, out), int)
        if padding:
            reads[:] = OUTSIDE
            reads[padding:-padding, padding:-padding] = 0
        rows, columns = (p * stride + dilation * np.arange(kernel) for p in place)
        seen = np.zeros((wide, wide), bool)
        seen[np.ix_(rows, columns)] = True
        text = np.where(seen, "•", "").astype(object)
        makes[place] = 1
        reads[seen & (reads == 0)] = 1
        shown.append(grid(f"{title}: {size} → {out}", text, reads, side=(22, 22)))
        shown.append(grid("output", np.full((out, out), "", object), makes, side=(22, 22)))
    return grids(*shown, across=4)
