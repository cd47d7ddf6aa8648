"""Runs of several strategies on one page: the loss after so many batches, and after so much modelled time.

`data`, `text` and `html` take a `simulator.strategies.Comparison`.
"""
from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import floor, isfinite, log10
from typing import Any

from simulator.strategies.convergence import Comparison, Curve
from simulator.units import show

COLOURS = ("#1f5fa8", "#c8501e", "#2c8a4b", "#8a4ba8", "#b08a00", "#4a4a4a", "#c23b75", "#0f8b8d")
DASHES = ("", "7 3", "2 2", "9 3 2 3")       # runs that come later in turn: not by colour alone
WIDTH, HEIGHT, LEFT, TOP, BELOW, GAP = 330, 230, 62, 26, 40, 40
MOST = 240                                   # points of a line
DECADES = 15                                 # of the axis of losses at most; what is smaller lies on it
BAR = " ▁▂▃▄▅▆▇█"
HEADS = ("", "updates", "batches", "last loss", "best", "batches to target", "time to target", "in all", "sent",
         "mean staleness")


def data(page: Comparison) -> dict[str, Any]:
    """{"target", "runs": [{"name", "times_s", "updates", "batches", "losses", "time_s", "nbytes", "staleness",
    "mean_staleness", "reached_s", "reached_batches"}]}: None where the target was never reached."""
    runs = []
    for curve in page.curves:
        at = curve.first(page.target)
        runs.append({"name": curve.name, "times_s": list(curve.times_s), "updates": list(curve.updates),
                     "batches": list(curve.batches), "losses": list(curve.losses), "time_s": curve.time_s,
                     "nbytes": curve.nbytes, "staleness": curve.staleness, "mean_staleness": curve.mean_staleness,
                     "reached_s": None if at is None else curve.times_s[at],
                     "reached_batches": None if at is None else curve.batches[at]})
    return {"target": page.target, "runs": runs}


def text(page: Comparison, width: int = 48) -> str:
    """A table, and the loss of each run over time as a line of blocks, all on one scale."""
    told = data(page)
    rows = [list(HEADS)]
    for run in told["runs"]:
        stale = run["mean_staleness"]
        rows.append([run["name"], str(run["updates"][-1]), str(run["batches"][-1]),
                     f"{run['losses'][-1]:.4g}", f"{min(run['losses']):.4g}",
                     "–" if run["reached_batches"] is None else str(run["reached_batches"]),
                     "–" if run["reached_s"] is None else show(run["reached_s"], "s"), show(run["time_s"], "s"),
                     show(float(run["nbytes"]), "B"), "–" if stale is None else f"{stale:.2f}"])
    wide = [max(len(row[k]) for row in rows) for k in range(len(HEADS))]
    lines = ["  ".join(cell.rjust(w) if k else cell.ljust(w) for k, (cell, w) in enumerate(zip(row, wide))).rstrip()
             for row in rows]
    most_s = max(run["times_s"][-1] for run in told["runs"])
    low, high = _range([loss for run in told["runs"] for loss in run["losses"]])
    lines += ["", f"target: loss {told['target']:.4g}; loss over time, 0 … {show(most_s, 's')}, between {10**low:.3g} "
                  f"and {10**high:.3g} (logarithmic)"]
    for run in told["runs"]:
        cells = _sampled(run, most_s, width)
        lines.append(f"{run['name'].ljust(wide[0])}  " + "".join(
            " " if loss is None else BAR[1 + round(7 * _place(loss, low, high))] for loss in cells))
    return "\n".join(line.rstrip() for line in lines)


def _sampled(run: dict[str, Any], most_s: float, width: int) -> list[float | None]:
    """The loss at `width` times of 0 … `most_s`; None after the last snapshot."""
    cells: list[float | None] = []
    k = 0
    for column in range(width):
        until_s = most_s * (column + 1) / width
        before = k
        while k + 1 < len(run["times_s"]) and run["times_s"][k + 1] <= until_s * (1 + 1e-12):
            k += 1
        ended = k == before == len(run["times_s"]) - 1 and run["times_s"][-1] <= most_s * column / width
        cells.append(None if ended else run["losses"][k])
    return cells


def _range(losses: Sequence[float]) -> tuple[float, float]:
    """log10 of the smallest and largest loss on a logarithmic axis, never equal, at most `DECADES` apart."""
    logs = [log10(loss) for loss in losses if isfinite(loss) and loss > 0]
    low, high = (min(logs), max(logs)) if logs else (-1.0, 0.0)
    low = max(low, high - DECADES)
    return (low, high) if high - low > 1e-3 else (low - 0.5, high + 0.5)


def _place(loss: float, low: float, high: float) -> float:
    """Where on that axis, 0 … 1; what is no number, at the top."""
    if not isfinite(loss):
        return 1.0
    return 0.0 if loss <= 0 else min(1.0, max(0.0, (log10(loss) - low) / (high - low)))


# ---- the picture ---------------------------------------------------------------------------------
def html(page: Comparison) -> str:
    """Two panels with one axis of losses: over the batches used, and over time."""
    curves = page.curves
    low, high = _range([loss for curve in curves for loss in curve.losses])
    total = LEFT + 2 * WIDTH + GAP + 10
    rows = -(-len(curves) // 4)
    height = TOP + HEIGHT + BELOW + 16 * rows + 4
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="{height}" font-family="sans-serif" '
             f'font-size="11"><title>{escape(_title(page))}</title>'
             f'<rect width="{total}" height="{height}" fill="#fff"/>']
    most = max(curve.batches[-1] for curve in curves) or 1
    most_s = max(curve.times_s[-1] for curve in curves) or 1.0
    for x0, end, unit, name in ((LEFT, float(most), "", "batches used"),
                                (LEFT + WIDTH + GAP, most_s, "s", "modelled time")):
        parts += _axes(x0, end, unit, name, low, high, labels=x0 == LEFT)
        parts.append(_level(x0, page.target, low, high))
        for k, curve in enumerate(curves):
            xs: Sequence[float] = curve.times_s if unit else curve.batches
            parts.append(_line(x0, k, curve, xs, end, low, high))
    for k, curve in enumerate(curves):
        x, y = LEFT + 175 * (k % 4), TOP + HEIGHT + BELOW + 16 * (k // 4) + 4
        parts.append(f'<path d="M{x},{y - 4}h24" {_stroke(k)}/><text x="{x + 30}" y="{y}">{escape(curve.name)}</text>')
    return "".join([*parts, "</svg>"])


def _title(page: Comparison) -> str:
    return "loss of " + ", ".join(curve.name for curve in page.curves) + " over batches and over modelled time"


def _stroke(k: int) -> str:
    dash = DASHES[k % len(DASHES)]
    return (f'fill="none" stroke="{COLOURS[k % len(COLOURS)]}" stroke-width="1.8"'
            + (f' stroke-dasharray="{dash}"' if dash else ""))


def _y(loss: float, low: float, high: float) -> float:
    return TOP + HEIGHT * (1 - _place(loss, low, high))


def _line(x0: float, k: int, curve: Curve, xs: Sequence[float], end: float, low: float, high: float) -> str:
    """Steps: a loss holds until the next is known.  Of many points the lowest and highest of each part."""
    points = list(zip(xs, curve.losses))
    each = -(-len(points) // MOST)
    if each > 1:
        parts = [points[i:i + 2 * each] for i in range(0, len(points), 2 * each)]
        points = [p for part in parts for p in sorted({min(part, key=lambda q: q[1]), max(part, key=lambda q: q[1])})]
        points = [(xs[0], curve.losses[0]), *points, (xs[-1], curve.losses[-1])]
    at = [(x0 + WIDTH * x / end, _y(loss, low, high)) for x, loss in points]
    path = f"M{at[0][0]:.1f},{at[0][1]:.1f}" + "".join(f"H{x:.1f}V{y:.1f}" for x, y in at[1:])
    tip = f"{curve.name}: {curve.losses[-1]:.4g} after {curve.batches[-1]} batches, {show(curve.times_s[-1], 's')}"
    x, y = at[-1]
    return (f'<g><title>{escape(tip)}</title><path d="{path}" {_stroke(k)}/>'
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{COLOURS[k % len(COLOURS)]}"/></g>')


def _level(x0: float, target: float, low: float, high: float) -> str:
    y = _y(target, low, high)
    return (f'<path d="M{x0},{y:.1f}h{WIDTH}" stroke="#999" stroke-dasharray="1 3"><title>target: {target:.4g}</title>'
            f'</path>')


def _axes(x0: float, end: float, unit: str, name: str, low: float, high: float, labels: bool) -> list[str]:
    bottom = TOP + HEIGHT
    parts = [f'<path d="M{x0},{TOP}V{bottom}H{x0 + WIDTH}" fill="none" stroke="#444"/>'
             f'<text x="{x0 + WIDTH / 2}" y="{bottom + 30}" text-anchor="middle">{escape(name)}</text>']
    for value in _round_numbers(end):
        x, said = x0 + WIDTH * value / end, show(value, "s") if unit else f"{value:.4g}"
        anchor = "end" if x > x0 + WIDTH - 15 else "middle"
        parts.append(f'<path d="M{x:.1f},{bottom}v4" stroke="#444"/>'
                     f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="{anchor}">{said}</text>')
    for loss in _ticks(low, high):
        y = _y(loss, low, high)
        parts.append(f'<path d="M{x0},{y:.1f}h{WIDTH}" stroke="#eee"/>')
        if labels:
            parts.append(f'<text x="{x0 - 6}" y="{y + 4:.1f}" text-anchor="end">{loss:.3g}</text>')
    if labels:
        parts.append(f'<text x="{x0 - 6}" y="{TOP - 12}" text-anchor="end">loss</text>')
    return parts


def _round_numbers(end: float) -> list[float]:
    """0, and at most five multiples of 1, 2 or 5 times a power of ten up to `end`."""
    scale = 10.0 ** floor(log10(end / 5))
    step = next(s * scale for s in (1, 2, 5, 10) if end / (s * scale) < 6)
    return [step * k for k in range(int(end / step * (1 + 1e-12)) + 1)]


def _ticks(low: float, high: float) -> list[float]:
    """1, 2, 5 times powers of ten where that gives few lines; powers of ten alone over many; both ends within one."""
    decades = range(floor(low), floor(high) + 1)
    for steps in ((1, 2, 5), (1,)):
        found = [s * 10.0**d for d in decades for s in steps if low <= log10(s) + d <= high]
        if 2 <= len(found) <= 8:
            return found
    return [10**low, 10**((low + high) / 2), 10**high] if len(found) < 2 else found[::-(-len(found) // 8)]


__all__ = ["data", "html", "text"]
