"""A comparison as one table: a line a candidate, what repeats exactly told apart from what was measured.

After `minigrad/comparison.py`; nothing of the graph view is used.
"""

from __future__ import annotations

from html import escape
from typing import Any

from minigrad.comparison import Candidate, Comparison, Interval

HEADS = ("", "p50 ms", "p99 ms", "items/s", "time × first", "peak MB", "parameters", "on disk MB", "accuracy %")
EXACT = HEADS[5:]                                             # the same every time
MISSING = "–"


def data(comparison: Comparison) -> dict[str, Any]:
    """{"heads", "rows": texts, "exact": which heads, "notes"}."""
    n = comparison.rounds
    notes = [f"{n} round{'s' * (n != 1)}, taking turns; brackets hold 95 % intervals. The same every time: "
             f"{', '.join(EXACT)}."]
    notes += ["Interrupted: fewer rounds than asked for."] * comparison.interrupted
    notes += [f"peak MB: {comparison.not_counted}"] * bool(comparison.not_counted)
    rows = [_row(c, k == 0) for k, c in enumerate(comparison.candidates)]
    return {"heads": list(HEADS), "rows": rows, "exact": list(EXACT), "notes": notes}


def text(comparison: Comparison) -> str:
    """The table for a terminal."""
    told = data(comparison)
    rows = [told["heads"], *told["rows"]]
    wide = [max(len(row[k]) for row in rows) for k in range(len(HEADS))]
    laid = ["  ".join(f"{cell:>{w}}" if k else f"{cell:<{w}}" for k, (cell, w) in enumerate(zip(row, wide)))
            for row in rows]
    return "\n".join([laid[0], "-" * len(laid[0]), *laid[1:], "", *told["notes"]])


def html(comparison: Comparison) -> str:
    """The table for a notebook, static."""
    told = data(comparison)
    heads = "".join(f"<th>{escape(head)}</th>" for head in told["heads"])
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in told["rows"])
    notes = "<br>".join(map(escape, told["notes"]))
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table><p><small>{notes}</small></p>"


def _row(c: Candidate, first: bool) -> list[str]:
    ratio = "1" if first else MISSING if c.time_ratio is None else _between(c.time_ratio, 1, "{:.2f}")
    return [
        c.name,
        *(MISSING if s is None else f"{1e3 * s:.4g}" for s in (c.latency_p50_s, c.latency_p99_s)),
        MISSING if c.items_per_s is None else f"{c.items_per_s:,.0f}",
        ratio,
        MISSING if c.peak_bytes is None else f"{c.peak_bytes / 1e6:.3f}",
        MISSING if c.parameters is None else f"{c.parameters:,}",
        MISSING if c.nbytes_on_disk is None else f"{c.nbytes_on_disk / 1e6:.3f}",
        MISSING if c.accuracy is None else _between(c.accuracy, 100, "{:.1f}"),
    ]


def _between(x: Interval, scale: float, form: str) -> str:
    value, low, high = (form.format(scale * v) for v in (x.value, x.low, x.high))
    return f"{value} [{low}, {high}]"
