"""Pictures that only a lesson needs; those of one lesson alone are in `pictures_NN.py`.

`memory(x)` shows the cells in which a tensor lies, `graph(y)` a graph of the reader's own engine, `curves(...)` values
over steps.  Every coordinate of a curve is rounded to a tenth of a pixel, so it is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import product

import numpy as np

import minigrad as mg
from minigrad.tour import Drawing
from minigrad.viz import Picture

FONT = "Helvetica, Arial, 'DejaVu Sans', sans-serif"
INK, QUIET, EDGE = "#1f2d3a", "#4f6272", "#93a4b0"
USED, UNUSED, SEEN = "#fdeccf", "#eef1f3", "#e5effa"
WIDE, HIGH = 40, 30
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#aa4499", "#8c6d00", "#56a0d3", "#555555")
PAPER = "#e3e9ee"
LEFT, RIGHT, TOP, BOTTOM = 56, 460, 16, 236
WIDTH = 640


@dataclass(frozen=True)
class Memory:
    """A buffer and one reading of it: `cells[index]` is the cell that an index finds."""

    name: str
    values: list[str]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    cells: dict[tuple[int, ...], int]

    @property
    def title(self) -> str:
        start = next(iter(self.cells.values()))
        return f"{self.name}: shape {self.shape}, strides {self.strides}, starts at cell {start}"

    @property
    def rows(self) -> list[list[int]]:
        """Cell numbers, a row of the tensor in each list."""
        wide = self.shape[-1] if self.shape else 1
        flat = list(self.cells.values())
        return [flat[k : k + wide] for k in range(0, len(flat), wide)]

    def __repr__(self) -> str:
        body = [
            "  ".join(f"{cell:>2}:{self.values[cell]:<3}" for cell in row).rstrip()
            for row in self.rows
        ]
        return "\n".join([self.title, *body])

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        return {"text/plain": repr(self), "image/svg+xml": self.svg}

    @property
    def svg(self) -> str:
        used = set(self.cells.values())
        parts = [_text(8, 18, self.title, 13, INK), _text(8, 52, "memory", 12, QUIET)]
        for k, value in enumerate(self.values):
            parts.append(_cell(70 + WIDE * k, 32, value, f"{k}", USED if k in used else UNUSED))
        top = 32 + HIGH + 26
        parts.append(_text(8, top + 20, "reading", 12, QUIET))
        for i, row in enumerate(self.rows):
            parts += [
                _cell(70 + WIDE * j, top + i * (HIGH + 14), self.values[c], f"cell {c}", SEEN)
                for j, c in enumerate(row)
            ]
        width = max(70 + WIDE * max(len(self.values), len(self.rows[0])), 7 * len(self.title)) + 10
        height = top + len(self.rows) * (HIGH + 14) + 8
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'style="max-width:100%;height:auto" role="img" aria-label="{escape(self.title)}" font-family="{FONT}">'
            f"{''.join(parts)}</svg>"
        )


def memory(x: mg.Tensor, name: str = "x") -> Memory:
    """The memory under a small tensor of at most two axes, on the cpu."""
    if x.ndim > 2 or x.numel() == 0 or x.numel() > 40:
        raise ValueError(f"memory: for 1 to 40 elements on at most two axes, got shape {x.shape}")
    buffer = x.array
    while isinstance(buffer.base, np.ndarray):
        buffer = buffer.base
    address = lambda a: a.__array_interface__["data"][0]
    start, strides = (address(x.array) - address(buffer)) // x.itemsize, x.stride()
    indices = product(*map(range, x.shape))
    cells = {index: start + sum(i * s for i, s in zip(index, strides)) for index in indices}
    values = [f"{v:g}" for v in buffer.ravel(order="K").tolist()]
    return Memory(name, values, tuple(x.shape), strides, cells)


def _cell(x: int, y: int, value: str, note: str, fill: str) -> str:
    middle = x + WIDE / 2
    return (
        f'<rect x="{x}" y="{y}" width="{WIDE - 2}" height="{HIGH}" rx="3" fill="{fill}" stroke="{EDGE}"/>'
        + _text(middle - 1, y + 20, value, 13, INK, "middle")
        + _text(middle - 1, y + HIGH + 11, note, 9, QUIET, "middle")
    )


def _text(x: float, y: float, text: str, px: int, ink: str, anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{px}" text-anchor="{anchor}" fill="{ink}">{escape(text)}</text>'


# ---- a graph of the reader's own engine ---------------------------------------------------------
def graph(y, names: dict[str, object], grads: dict | None = None, at: object = None) -> Picture:
    """The graph behind a `Value` of notebook 02.

    `grads`: the gradients known so far; `at`: the value whose turn it is in backward.
    """
    found, known = [y], {id(v): name for name, v in names.items()}
    for v in found:
        found += [p for p in v.parents if p not in found]
    ordered = sorted(dict.fromkeys(found), key=lambda v: v.number)
    number = {v: k for k, v in enumerate(ordered, 1)}
    nodes = []
    for v, k in number.items():
        kind = (
            "output" if v is at else "op" if v.parents else "leaf" if v.op == "leaf" else "constant"
        )
        nodes.append(
            {
                "id": k,
                "kind": kind,
                "label": v.op,
                "name": known.get(id(v)),
                "scope": [],
                "operations": bool(v.parents),
                "leaves": not v.parents,
                "inputs": [number[p] for p in v.parents],
                "made_at": None,
                "shape": [],
                "dtype": "float32",
                "value": f"{v.value:.3g}",
            }
        )
        if grads and v in grads:
            nodes[-1]["gradient"] = f"{grads[v]:.3g}"
    edges = [[number[p], k] for v, k in number.items() for p in v.parents]
    count = sum(n["operations"] for n in nodes)
    data = {
        "nodes": nodes,
        "edges": edges,
        "operations": count,
        "leaves": len(nodes) - count,
        "notes": [],
    }
    picture = Picture(data, "LR", "layered")
    picture.svg = picture.svg.replace(">output<", ">its turn<")
    return picture


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
