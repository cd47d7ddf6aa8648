"""A trace as a timeline of characters: a line a stream, a letter a name.

After `minigrad/events.py`, whose events it shows; nothing of the graph view is used.
"""

from __future__ import annotations

from string import ascii_letters, digits
from typing import Any

import numpy as np

from minigrad.events import Trace

NOTHING, OTHER = " ", "·"


def data(trace: Trace, columns: int = 80) -> dict[str, Any]:
    """{"start_s", "end_s", "letters": {name: letter}, "lines": [{"rank", "stream", "cells"}, …]}: in each column the
    letter of what ran innermost there; what is shorter than a column still has one."""
    if columns < 1:
        raise ValueError(f"timeline: at least one column, got {columns}")
    if not len(trace):
        return {"start_s": 0.0, "end_s": 0.0, "letters": {}, "lines": []}
    begin, end = float(trace.column("start_s").min()), float(trace.column("end_s").max())
    letters = _letters(trace)
    lines = []
    for rank, stream in trace.lines():
        part = trace.where(rank=rank, stream=stream).sorted()
        cells = _cells(part, begin, columns / (end - begin) if end > begin else 0.0, columns, letters)
        lines.append({"rank": rank, "stream": stream, "cells": cells})
    return {"start_s": begin, "end_s": end, "letters": letters, "lines": lines}


def text(trace: Trace, width: int = 100) -> str:
    """The timeline for a terminal of `width` columns, and what the letters say."""
    label = max((len(f"{rank} {stream}") for rank, stream in trace.lines()), default=0)
    columns = max(width - label - 3, 10)
    told = data(trace, columns)
    if not told["lines"]:
        return "no events"
    step = (told["end_s"] - told["start_s"]) / columns
    rows = [f"{told['start_s']:.6g} s … {told['end_s']:.6g} s, {step:.3g} s a column"]
    for line in told["lines"]:
        who = f"{line['rank']} {line['stream']}"
        rows.append(f"{who:>{label}} |{line['cells']}|")
    shown = {c for line in told["lines"] for c in line["cells"]}
    named = [f"{letter} {name}" for name, letter in told["letters"].items() if letter in shown]
    return "\n".join([*rows, *_wrapped(named + [f"{OTHER} others"] * (OTHER in shown), width)])


def _wrapped(words: list[str], width: int) -> list[str]:
    rows = [""]
    for word in words:
        if rows[-1] and len(rows[-1]) + len(word) + 2 > width:
            rows.append("")
        rows[-1] += ("  " if rows[-1] else "") + word
    return rows


def _cells(part: Trace, begin: float, scale: float, columns: int, letters: dict[str, str]) -> str:
    """`part` is sorted, so what is inside something is painted over it."""
    cells = [NOTHING] * columns
    first = np.minimum(((part.column("start_s") - begin) * scale).astype(int), columns - 1)
    last = np.maximum(np.minimum(np.rint((part.column("end_s") - begin) * scale).astype(int), columns), first + 1)
    for a, b, name in zip(first.tolist(), last.tolist(), part.column("name")):
        cells[a:b] = [letters.get(name, OTHER)] * (b - a)
    return "".join(cells)


def _letters(trace: Trace) -> dict[str, str]:
    """A letter for each of the names that took longest: one of its own, if one is free."""
    spent: dict[str, float] = {}
    for name, seconds in zip(trace.column("name"), trace.column("duration_s").tolist()):
        spent[name] = spent.get(name, 0.0) + seconds
    free = [*ascii_letters, *digits]
    letters = {}
    for name in sorted(spent, key=lambda name: -spent[name])[:len(free)]:
        letters[name] = next((c for c in (*name.upper(), *name.lower()) if c in free), free[0])
        free.remove(letters[name])
    return letters
