"""A profile as tables: by op, by module and by line, the largest first.

After `minigrad/profiler/`, which measures; nothing of the graph view is used.
"""

from __future__ import annotations

import os
from html import escape
from typing import Any

from minigrad.profiler import Profile
from minigrad.viz.known import clean

HEADS = ("calls", "self ms", "%", "total ms", "GFLOP", "GFLOP/s", "GB/s", "arrays", "MB")
TABLES = {"by_op": "by op", "by_module": "by module", "by_line": "by line"}
WIDEST = 46                                                   # characters of a name
Cells = list[str]


def data(profile: Profile, rows: int = 12, sort: str = "self_ns") -> dict[str, Any]:
    """{"heading": lines, "notes": lines, "tables": {title: {"heads", "rows", "shares"}}} – texts, ready to be laid out;
    `shares` are parts of the wall time.  What is over `rows` is one row.  `sort`: as `Profile.by_op`; unless another is
    asked for, modules are sorted by their total."""
    if rows < 1:
        raise ValueError(f"profile: at least one row, got {rows}")
    tables = {}
    for by, title in TABLES.items():
        inside = by == "by_module" and sort == "self_ns"      # modules have little time of their own
        found = getattr(profile, by)("total_ns" if inside else sort)
        shown = found if len(found) <= rows + 1 else found[:rows]
        cells = [_cells(row, profile.wall_ns) for row in shown]
        shares = [row.self_ns / profile.wall_ns for row in shown]
        if len(shown) < len(found):
            rest = sum(row.self_ns for row in found[rows:])
            calls = sum(row.calls for row in found[rows:])
            numbers = [f"{calls}", _ms(rest), _percent(rest / profile.wall_ns)]
            cells.append([f"{len(found) - rows} more", "", *numbers, *[""] * 6])
            shares.append(rest / profile.wall_ns)
        tables[title] = {"heads": [title, "phase", *HEADS], "rows": cells, "shares": shares}
    return {"heading": _heading(profile), "tables": tables, "notes": _notes(profile)}


def text(profile: Profile, rows: int = 12, sort: str = "self_ns") -> str:
    """The tables for a terminal."""
    told = data(profile, rows, sort)
    parts = ["\n".join(told["heading"])]
    parts += [_table([table["heads"], *table["rows"]]) for table in told["tables"].values()]
    return "\n\n".join([*parts, "\n".join(told["notes"])] if told["notes"] else parts)


def html(profile: Profile, rows: int = 12, sort: str = "self_ns") -> str:
    """The tables for a notebook: static, with a bar for each share."""
    told = data(profile, rows, sort)
    parts = [f"<p>{'<br>'.join(map(escape, told['heading']))}</p>"]
    for table in told["tables"].values():
        heads = "".join(f"<th>{escape(head)}</th>" for head in table["heads"])
        body = "".join(_html_row(*each) for each in zip(table["rows"], table["shares"]))
        parts.append(f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>")
    parts += [f"<p>{escape(note)}</p>" for note in told["notes"]]
    return f'<div class="minigrad-profile">{STYLE}{"".join(parts)}</div>'


STYLE = """<style>
.minigrad-profile table {border-collapse: collapse; margin: 0 0 1em; font-size: 90%; font-variant-numeric: tabular-nums}
.minigrad-profile th, .minigrad-profile td {padding: 1px 8px; text-align: right; white-space: nowrap}
.minigrad-profile tr > :nth-child(-n+2) {text-align: left}
.minigrad-profile th {border-bottom: 1px solid #8888}
</style>"""


def _html_row(cells: Cells, share: float) -> str:
    width = f"{100 * share:.1f}%"
    bar = f' style="background: linear-gradient(90deg, #4a90d955 {width}, transparent {width})"'
    tds = [f"<td{bar if not k else ''}>{escape(cell)}</td>" for k, cell in enumerate(cells)]
    return f"<tr>{''.join(tds)}</tr>"


# ---- words ---------------------------------------------------------------------------------------
def _heading(profile: Profile) -> list[str]:
    wall = profile.wall_ns
    phases = ", ".join(f"{phase} {_percent(ns / wall)} %" for phase, ns in profile.by_phase().items())
    between = _percent(profile.outside_ns / wall)
    rows = [f"{_time(profile.wall_s)} on the main thread: {phases}",
            f"in ops {_percent(profile.share_in_ops)} %, in Python between them {between} %; "
            f"{profile.flops / 1e9:.4g} GFLOP known"]
    if profile.marks_ns:
        p50, p99 = (_time(profile.step_percentile_s(q)) for q in (50, 99))
        rows.append(f"{len(profile.marks_ns)} steps: half below {p50}, 99 % below {p99}")
    return rows


def _notes(profile: Profile) -> list[str]:
    notes = [f"arrays: {profile.not_counted}"] if profile.not_counted else []
    for stream in profile.streams[1:]:
        found = profile.by_op(stream=stream)
        spent = sum(row.self_ns for row in found)
        notes.append(f"thread {stream!r}, not in the tables: {sum(row.calls for row in found)} calls, "
                     f"{_time(spent / 1e9)}")
    return notes


def _cells(row: Any, wall: int) -> Cells:
    name = row.name
    if row.text:                                              # a line: its file without the folder, and the text
        where, _, function = name.partition(", in ")
        name = f"{os.path.basename(where) if os.sep in where else where}  {row.text or function}"
    rates = [row.flops and row.flops / 1e9, row.flops_per_s and row.flops_per_s / 1e9,
             row.bandwidth_Bps and row.bandwidth_Bps / 1e9]
    taken = ["", ""] if row.allocations is None else [f"{row.allocations}", f"{row.allocated_bytes / 1e6:.2f}"]
    return [clean(name, WIDEST), row.phase, f"{row.calls}", _ms(row.self_ns), _percent(row.self_ns / wall),
            _ms(row.total_ns), *map(_number, rates), *taken]


def _number(x: float | None) -> str:
    return "" if x is None else f"{x:.3g}" if x >= 0.001 or not x else "<0.001"


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.2f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.3f} s"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"


def _table(rows: list[Cells]) -> str:
    """The first two columns to the left, the numbers to the right, a line under the heads."""
    wide = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    laid = ["  ".join(f"{cell:<{w}}" if k < 2 else f"{cell:>{w}}" for k, (cell, w) in enumerate(zip(row, wide)))
            for row in rows]
    return "\n".join([laid[0].rstrip(), "-" * max(map(len, laid)), *map(str.rstrip, laid[1:])])
