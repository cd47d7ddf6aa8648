"""Cycles of references: what only Python's collector frees, looked at before it does, and why that is so.

After `diagnosis.py`, before `leaks.py`.
"""
from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import CellType, FrameType, FunctionType
from typing import Any

from minigrad.memory.diagnosis import BOXES, Cause, defined_at, line_in, line_text_at, made, title
from minigrad.memory.live import is_a
from minigrad.nn.module import Module
from minigrad.sites import INTERNAL
from minigrad.sweep import Hooked
from minigrad.tensor import Node, Tensor


@contextmanager
def uncollected() -> Iterator[list]:
    """What only the collector can free now, to be looked at; freed at the end of the block."""
    before, flags = gc.garbage[:], gc.get_debug()
    del gc.garbage[:]
    gc.set_debug(flags | gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        trash = gc.garbage[:]
    finally:
        gc.garbage[:] = before
        gc.set_debug(flags)
    try:
        yield trash
    finally:
        del trash[:]
        gc.collect()


def cycle_in(trash: list, start: Any) -> tuple[list, str]:
    """(the objects of a cycle in `trash` that holds `start` or that it is on, its text); empty if there is none."""
    inside = {id(x): x for x in trash}
    down = {k: [id(y) for y in gc.get_referents(x) if id(y) in inside] for k, x in inside.items()}
    up: dict[int, list[int]] = {k: [] for k in inside}
    for k, below in down.items():
        for y in below:
            up[y].append(k)
    queue, seen = deque([id(start)]), {id(start)}
    while queue:
        at = queue.popleft()
        ring = _ring(down, at)
        if ring:
            things = [inside[k] for k in ring]
            return things, " → ".join(_part(x, y) for x, y in zip(things, [*things[1:], things[0]]) if _part(x, y))
        for k in up[at]:
            if k not in seen:
                seen.add(k)
                queue.append(k)
    return [], ""


def _ring(down: dict[int, list[int]], at: int) -> list[int]:
    """The shortest way from `at` down to itself."""
    came: dict[int, int] = {}
    queue = deque([at])
    while queue:
        k = queue.popleft()
        for y in down[k]:
            if y == at:
                way = [k]
                while way[-1] != at:
                    way.append(came[way[-1]])
                return way[::-1]
            if y not in came and y != at:
                came[y] = k
                queue.append(y)
    return []


def _part(x: Any, below: Any) -> str:
    """How one thing of a cycle is told; empty for what says nothing."""
    if is_a(x, Node):
        return f"{x.op} at {x.made_at}"
    if is_a(x, Tensor):
        return f"tensor {tuple(x.shape)}"
    if is_a(x, FunctionType):
        return f"{title(x)} ({defined_at(x)})"
    if is_a(x, FrameType):
        return f"the call {x.f_code.co_name}() ({line_text_at(x.f_code.co_filename, x.f_lineno)})"
    if is_a(x, dict):
        name = next((k for k, v in x.items() if v is below), None)
        return f".{name}" if isinstance(name, str) else f"[{name!r}]" if is_a(name, int) else ""
    return "" if is_a(x, BOXES) or is_a(x, CellType | Hooked) else type(x).__name__


def cause_of_cycle(trash: list, start: Any) -> Cause:
    things, told = cycle_in(trash, start)
    module = next((type(x).__name__ for x in things if is_a(x, Module)), "")
    frame = next((x for x in things if is_a(x, FrameType) and x.f_code.co_filename not in INTERNAL), None)
    through = [f"the module {module}"] * bool(module) + ["a hook"] * any(is_a(x, Hooked) for x in things)
    if frame is not None and any(is_a(x, BaseException) for x in things):
        line = line_in(frame.f_code, r"\bexcept\b.*\bas\b")
        through += [f"an exception that a variable of {frame.f_code.co_name}() keeps"]
        way_out = "let no variable keep it beyond `except … as error:`, or del it at the end"
    else:
        line = next((defined_at(x) for x in things if is_a(x, FunctionType)), "") or next(
            (made(x) for x in things if is_a(x, Tensor | Node) and made(x)), "") or made(start)
        way_out = "cut it: keep x.detach() in the module, remove the hook, or let the function refer to a weakref"
    words = "a cycle" + " through " * bool(through) + " and ".join(through)
    return Cause("cycle", f"{words}: freed only when Python's collector comes by", line, way_out, told)


__all__ = ["cause_of_cycle", "cycle_in", "uncollected"]
