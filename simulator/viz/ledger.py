"""The ledger as a table and as bars: compute, exposed communication, bubble and stall of each rank.

`data`, `text` and `html` take a `Ledger`.  The colours are those of `timeline.py` too.
"""
from __future__ import annotations

from html import escape
from typing import Any

from simulator.looking.ledger import PARTS, Ledger, Row
from simulator.units import show

MOST = 32                                    # ranks that are shown
COLOURS = {"compute": "#5a8cc4", "exposed": "#e0a458", "bubble": "#dde2e6", "stall": "#c8544f", "hidden": "#f3dcb4"}
MEANINGS = {"compute": "compute", "exposed": "exposed communication", "bubble": "bubble", "stall": "stall",
            "hidden": "hidden communication"}
FONT = "Helvetica, Arial, 'DejaVu Sans', sans-serif"
INK, QUIET = "#1f2d3a", "#4f6272"


def data(ledger: Ledger) -> dict[str, Any]:
    return ledger.data()


def text(ledger: Ledger) -> str:
    """A row a rank, with shares of the wall time; what is hidden stands outside the sum."""
    rows = [[f"{show(ledger.time_s, 's')} each", *PARTS, "| hidden"]]
    rows += [_cells(f"rank {row.rank}", row) for row in ledger.rows[:MOST]]
    if len(ledger) > MOST:
        rows.append([f"… {len(ledger) - MOST} more", *[""] * 4, "|"])
    if len(ledger) > 1:
        rows.append(_cells(f"all {len(ledger)}", ledger.all))
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(w) if k in (0, 5) else cell.rjust(w)
                               for k, (cell, w) in enumerate(zip(row, widths))).rstrip() for row in rows)


def _cells(name: str, row: Row) -> list[str]:
    cells = []
    for part in (*PARTS, "hidden"):
        seconds = getattr(row, part)
        share = f" {float(seconds / row.total):4.0%}" if row.total and part in PARTS else ""
        cells.append(f"{show(float(seconds), 's')}{share}" if seconds else "·" + " " * len(share))
    return [name, *cells[:-1], f"| {cells[-1]}"]


def html(ledger: Ledger, width: int = 760) -> str:
    """A bar a rank as long as the run, in the colours of its parts; under it, thin, what communication was hidden."""
    rows, left, step, top = ledger.rows[:MOST], 64, 30, 34
    scale = (width - left - 12) / ledger.time_s if ledger.time_s else 0.0
    height = top + step * len(rows) + 26 + 18 * (len(ledger) > MOST)
    body = [legend(left, 18, (*PARTS, "hidden"))]
    for k, row in enumerate(rows):
        body.append(_bar(row, left, top + step * k, scale))
    if len(ledger) > MOST:
        body.append(words(left, top + step * len(rows) + 12, f"… and {len(ledger) - MOST} more ranks"))
    shares = ledger.data()["shares"]
    told = ", ".join(f"{MEANINGS[part]} {shares[part]:.1%}" for part in PARTS)
    body.append(words(left, height - 8, f"{show(ledger.time_s, 's')} each; all together: {told}"))
    return frame(width, height, "ledger of each rank", "".join(body))


def _bar(row: Row, x: float, y: float, scale: float) -> str:
    parts = [words(x - 8, y + 13, f"rank {row.rank}", anchor="end")]
    for part in PARTS:
        seconds = float(getattr(row, part))
        wide = seconds * scale
        if wide > 0:
            label = f"{seconds / float(row.total):.0%}"
            parts.append(box(x, y, wide, 18, COLOURS[part], f"rank {row.rank}: {MEANINGS[part]} {show(seconds, 's')}"))
            if wide > 34:
                parts.append(words(x + wide / 2, y + 13, label, anchor="middle",
                                   fill="#fff" if part in ("compute", "stall") else INK))
        x += wide
    hidden = float(row.hidden)
    if hidden:
        start = x - float(row.total) * scale
        parts.append(box(start, y + 19, hidden * scale, 5, COLOURS["hidden"],
                         f"rank {row.rank}: hidden communication {show(hidden, 's')}"))
    return "".join(parts)


# ---- SVG -----------------------------------------------------------------------------------------
def frame(width: float, height: float, title: str, body: str) -> str:
    """The whole picture; it shrinks to the page, and never grows."""
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
            f'height="{height:g}" style="max-width:100%;height:auto" font-family="{FONT}" font-size="11" role="img" '
            f'aria-label="{escape(title)}"><rect width="100%" height="100%" fill="#fff"/>{body}</svg>')


def box(x: float, y: float, wide: float, high: float, fill: str, tip: str = "", more: str = "") -> str:
    told = f"<title>{escape(tip)}</title>" if tip else ""
    return (f'<rect x="{x:.2f}" y="{y:.2f}" width="{wide:.2f}" height="{high:.2f}" fill="{fill}"{more}>{told}</rect>')


def words(x: float, y: float, text: str, anchor: str = "start", fill: str = QUIET, more: str = "") -> str:
    return f'<text x="{x:.2f}" y="{y:.2f}" text-anchor="{anchor}" fill="{fill}"{more}>{escape(text)}</text>'


def legend(x: float, y: float, parts: tuple[str, ...]) -> str:
    """Small squares with their meaning, one after the other."""
    found = []
    for part in parts:
        found.append(box(x, y - 10, 11, 11, COLOURS[part]) + words(x + 15, y, MEANINGS[part]))
        x += 34 + 6.1 * len(MEANINGS[part])
    return "".join(found)


__all__ = ["COLOURS", "data", "html", "text"]
