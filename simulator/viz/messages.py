"""Who sent how much to whom: the bytes of a run as a matrix, and what went over each link, and when.

`data`, `text` and `html` take a `Matrix`.  After `ledger.py`, whose SVG it uses.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from simulator.looking.matrices import LinkUse, Matrix
from simulator.units import show
from simulator.viz.ledger import INK, box, frame, words

MOST = 32                                    # ranks that are shown one by one; more are put together
LINKS, BINS = 16, 60                         # links in the picture, and parts of the run
BLUE, RED = "#1f5fa8", "#b8433d"


def data(matrix: Matrix, bins: int = BINS) -> dict[str, Any]:
    """{"time_s", "nbytes": src × dst, "messages": src × dst, "calls": {name: bytes}, "links": [fields of LinkUse],
    "busy": links × bins}."""
    return {"time_s": matrix.history.end_s, "nbytes": matrix.nbytes.tolist(), "messages": matrix.messages.tolist(),
            "calls": matrix.calls, "links": [use._asdict() for use in matrix.links],
            "busy": matrix.over_time(bins).tolist()}


# ---- text ----------------------------------------------------------------------------------------
def text(matrix: Matrix, most_links: int = 8) -> str:
    """The matrix, sums at its edges, and the busiest links."""
    table, names = _folded(matrix.nbytes)
    rows = [["from \\ to", *names, "all"]]
    for name, row in zip(names, table):
        rows.append([name, *(show(float(n), "B") if n else "·" for n in row), show(float(row.sum()), "B")])
    rows.append(["all", *(show(float(n), "B") for n in table.sum(0)), show(float(table.sum()), "B")])
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths)) for row in rows]
    if matrix.calls:
        lines.append("of these " + ", ".join(f"{show(float(n), 'B')} {name}" for name, n in matrix.calls.items()))
    time_s = matrix.history.end_s
    for use in matrix.links[:most_links]:
        queue = f"; messages waited {show(use.waited_s, 's')} for it" if use.waited_s else ""
        lines.append(f"link {_ends(use, matrix)} ({use.name}): {show(float(use.nbytes), 'B')} in {use.messages} "
                     f"messages, busy {use.share:.0%} of {show(time_s, 's')}{queue}")
    more = len(matrix.links) - most_links
    return "\n".join([*lines, *([f"… and {more} more links"] if more > 0 else [])])


def _ends(use: LinkUse, matrix: Matrix) -> str:
    return " → ".join(f"switch {v}" if v >= matrix.history.world_size else str(v) for v in (use.src, use.dst))


# ---- SVG -----------------------------------------------------------------------------------------
def html(matrix: Matrix) -> str:
    """The matrix as a picture, the darker the more bytes; under it the busiest links, the redder the busier when."""
    table, names = _folded(matrix.nbytes)
    n, size, left, above = len(names), 44 if len(names) <= 16 else 22, 56, 54
    most = max(float(table.max()), 1.0)
    parts = [words(left, 16, "bytes from each rank (row) to each rank (column)", fill=INK)]
    for i, name in enumerate(names):
        at = size * i + size / 2
        parts.append(words(left - 6, above + at + 4, name, anchor="end") + words(left + at, above - 8, name, "middle"))
        for j, nbytes in enumerate(table[i]):
            parts.append(_field(left + size * j, above + size * i, size, float(nbytes), most, f"{name} to {names[j]}"))
    links, high = _links(matrix, above + size * n + 40)
    return frame(max(left + size * n + 8, 760 if high else 330), above + size * n + 10 + high,
                 "bytes from each rank to each rank", "".join(parts) + links)


def _field(x: float, y: float, size: int, nbytes: float, most: float, title: str) -> str:
    shade = 0.08 + 0.92 * nbytes / most if nbytes else 0.0
    number, unit = show(nbytes, "B").split(" ")
    field = box(x, y, size, size, BLUE, f"{title}: {show(nbytes, 'B')}",
                f' fill-opacity="{shade:.3f}" stroke="#ccc"')
    if not nbytes or size <= 30:
        return field
    fill, quiet = "#fff" if shade > 0.55 else "#222", ' font-size="10" pointer-events="none"'
    return (field + words(x + size / 2, y + size / 2, number, "middle", fill, quiet)
            + words(x + size / 2, y + size / 2 + 11, unit, "middle", fill, quiet))


def _links(matrix: Matrix, top: float) -> tuple[str, float]:
    """(a row a link, shaded by how busy it was in each part of the run; the height it takes)."""
    uses, end_s = matrix.links[:LINKS], matrix.history.end_s
    if not uses or not end_s:
        return "", 0
    busy = matrix.over_time(BINS)
    left, wide, step = 190, 8, 16
    parts = [words(8, top - 10, "how busy each link was, over time", fill=INK)]
    for k, use in enumerate(uses):
        y = top + step * k
        told = f"link {_ends(use, matrix)} ({use.name}): {show(float(use.nbytes), 'B')}"
        parts.append(words(left - 8, y + 12, f"{_ends(use, matrix)} {use.name.split(',')[0]}"[:30], "end"))
        parts.append(box(left, y, wide * BINS, step - 2, "#f3f4f5", told))
        parts += [box(left + wide * b, y, wide, step - 2, RED, f"{told}, {share:.0%} busy",
                      f' fill-opacity="{0.15 + 0.85 * share:.3f}"') for b, share in enumerate(busy[k]) if share > 0]
        parts.append(words(left + wide * BINS + 8, y + 12, f"{use.share:.0%}"))
    bottom = top + step * len(uses) + 14
    parts.append(words(left, bottom, "0") + words(left + wide * BINS, bottom, show(end_s, "s"), "end"))
    if len(matrix.links) > LINKS:
        parts.append(words(8, bottom, f"… and {len(matrix.links) - LINKS} more links"))
    return "".join(parts), 40 + step * len(uses) + 14


def _folded(matrix: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """At most `MOST` rows and columns: of more ranks, neighbours are put together."""
    n = len(matrix)
    each = -(-n // MOST)
    starts = list(range(0, n, each))
    small = np.add.reduceat(np.add.reduceat(matrix, starts, 0), starts, 1)
    return small, [str(a) if a + 1 == min(a + each, n) else f"{a}–{min(a + each, n) - 1}" for a in starts]


__all__ = ["data", "html", "text"]
