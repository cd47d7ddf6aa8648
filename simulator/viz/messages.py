"""Who sent how much to whom: the bytes of a run as a matrix, and what went over each link.

`data`, `text` and `html` take a `Result` of `spawn`.
"""
from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from simulator.spawn import Result
from simulator.units import show

MOST = 32                                    # ranks that are shown one by one; more are put together


def data(result: Result) -> dict[str, Any]:
    """{"nbytes": src × dst, "links": [{"name", "src", "dst", "nbytes", "busy_s", "share"}]}: `share` of the run's time
    that a link was busy.  Links that carried nothing are left out; the busiest come first."""
    network, time_s = result.clocks.network, result.time_s
    links = [{"name": edge.link.name, "src": edge.src, "dst": edge.dst, "nbytes": int(nbytes), "busy_s": busy_s,
              "share": busy_s / time_s if time_s else 0.0}
             for edge, nbytes, busy_s in zip(network.cluster.topology.edges, network.link_bytes, network.link_busy_s)
             if nbytes]
    return {"nbytes": result.nbytes.tolist(), "links": sorted(links, key=lambda link: -link["share"])}


def text(result: Result, most_links: int = 8) -> str:
    """The matrix, sums at its edges, and the busiest links."""
    told = data(result)
    matrix, names = _folded(np.array(told["nbytes"]))
    rows = [["from \\ to", *names, "all"]]
    for name, row in zip(names, matrix):
        rows.append([name, *(show(float(n), "B") if n else "·" for n in row), show(float(row.sum()), "B")])
    rows.append(["all", *(show(float(n), "B") for n in matrix.sum(0)), show(float(matrix.sum()), "B")])
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths)) for row in rows]
    for link in told["links"][:most_links]:
        ends = " -> ".join(f"switch {v}" if v >= result.world_size else str(v) for v in (link["src"], link["dst"]))
        lines.append(f"link {ends} ({link['name']}): {show(float(link['nbytes']), 'B')}, busy {link['share']:.0%} of "
                     f"{show(result.time_s, 's')}")
    more = len(told["links"]) - most_links
    return "\n".join([*lines, *([f"… and {more} more links"] if more > 0 else [])])


def html(result: Result) -> str:
    """The matrix as a picture: the darker, the more bytes; the number stands in each field."""
    matrix, names = _folded(np.array(data(result)["nbytes"]))
    n, size, left = len(names), 44 if len(names) <= 16 else 22, 56
    top, most = max(float(matrix.max()), 1.0), left + size * n + 8
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{most}" height="{most}" font-family="sans-serif" '
             f'font-size="10"><title>bytes from each rank (rows) to each rank (columns)</title>']
    for i, name in enumerate(names):
        at = left + size * i + size / 2
        parts.append(f'<text x="{left - 6}" y="{at + 4}" text-anchor="end">{escape(name)}</text>'
                     f'<text x="{at}" y="{left - 8}" text-anchor="middle">{escape(name)}</text>')
        for j, nbytes in enumerate(matrix[i]):
            parts.append(_field(left + size * j, left + size * i, size, float(nbytes), top, f"{name} to {names[j]}"))
    parts.append('<text x="6" y="14">from ↓ to →</text></svg>')
    return "".join(parts)


def _field(x: float, y: float, size: int, nbytes: float, most: float, title: str) -> str:
    shade = 0.08 + 0.92 * nbytes / most if nbytes else 0.0
    number, unit = show(nbytes, "B").split(" ")
    label = f'<tspan x="{x + size / 2}">{number}</tspan><tspan x="{x + size / 2}" dy="11">{unit}</tspan>'
    colour = "#fff" if shade > 0.55 else "#222"
    words = f'<text y="{y + size / 2 - 2}" text-anchor="middle" fill="{colour}">{label}</text>'
    return (f'<g><title>{escape(title)}: {show(nbytes, "B")}</title>'
            f'<rect x="{x}" y="{y}" width="{size}" height="{size}" fill="#1f5fa8" fill-opacity="{shade:.3f}" '
            f'stroke="#ccc"/>{words if nbytes and size > 30 else ""}</g>')


def _folded(matrix: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """At most `MOST` rows and columns: of more ranks, neighbours are put together."""
    n = len(matrix)
    each = -(-n // MOST)
    starts = list(range(0, n, each))
    small = np.add.reduceat(np.add.reduceat(matrix, starts, 0), starts, 1)
    return small, [str(a) if a + 1 == min(a + each, n) else f"{a}–{min(a + each, n) - 1}" for a in starts]


__all__ = ["data", "html", "text"]
