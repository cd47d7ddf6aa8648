"""The tensors that are alive now, and the arrays that the graph saved, by kind and by the line that made them.

Found by asking Python's garbage collector for its objects, so nothing is counted while a program runs.
"""
from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from minigrad.aval import Aval
from minigrad.nn.parameter import Parameter
from minigrad.rows import Rows
from minigrad.tensor import LEAF, Node, Tensor, View

UNKNOWN = "a line that is not known"


@dataclass(frozen=True)
class LiveTensors:
    """`count` and `nbytes` of all; the same for each kind, and for each (kind, line).

    An array that several show is counted once, for the first of the kinds in `KINDS` that holds it."""

    count: int
    nbytes: int
    by_kind: dict[str, tuple[int, int]]
    by_line: dict[tuple[str, str], tuple[int, int]]

    def __str__(self) -> str:
        rows = [f"{self.count} tensors, {size_text(self.nbytes)}"]
        rows += [f"  {kind:12}{n:6}  {size_text(size):>10}" for kind, (n, size) in self.by_kind.items()]
        largest = sorted(self.by_line.items(), key=lambda item: -item[1][1])[:10]
        rows += ["the largest by line:"] * bool(largest)
        rows += [f"  {size_text(size):>10} in {n:4} {kind}: {line}" for (kind, line), (n, size) in largest]
        return "\n".join(rows)


KINDS = ("parameter", "gradient", "leaf", "result", "constant", "saved", "view")


def live_tensors() -> LiveTensors:
    """Everything that holds an array now.  Kinds: a Parameter; the `.grad` of another; another leaf that wants a
    gradient; the result of a recorded operation; a tensor without a history; an array that only the graph still holds,
    saved for backward; a view, which has no memory of its own."""
    seen: set[int] = set()
    by_kind: dict[str, list[int]] = {kind: [0, 0] for kind in KINDS}
    by_line: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    found = sorted(_found(gc.get_objects()), key=lambda each: KINDS.index(each[0]))
    for kind, array, line in found:
        key, nbytes = _buffer(array)
        if kind == "saved" and key in seen:
            continue
        size = 0 if key in seen else nbytes
        seen.add(key)
        for total in (by_kind[kind], by_line[kind, line]):
            total[0] += 1
            total[1] += size
    kinds = {kind: (n, size) for kind, (n, size) in by_kind.items() if n}
    lines = {key: (n, size) for key, (n, size) in by_line.items() if n}
    return LiveTensors(sum(n for n, _ in kinds.values()), sum(size for _, size in kinds.values()), kinds, lines)


def _found(objects: list) -> Iterator[tuple[str, object, str]]:
    """(kind, raw array, line) of every tensor, row-sparse gradient and saved array."""
    tensors = [x for x in objects if is_a(x, Tensor) and hasattr(x, "array")]
    gradients = {id(t.grad) for t in tensors if t.grad is not None}
    for t in tensors:
        yield _kind(t, gradients), t.array, t.made_at if not t.is_leaf else UNKNOWN
    for x in objects:
        if type(x) is Rows:
            yield "gradient", x.array_values, UNKNOWN
        elif type(x) is Node:
            for value in x.saved or ():
                for array in value if isinstance(value, tuple) else (value,):
                    if hasattr(array, "dtype") and hasattr(array, "shape"):
                        yield "saved", array, x.made_at


def is_a(x: object, kind: Any) -> bool:
    """isinstance that runs no code of the object: others' may warn, or load things, when asked for their class."""
    return issubclass(type(x), kind)


def of_kinds(objects: list, *kinds: type) -> list:
    """Those that are of one of the kinds; asked once for each type that occurs."""
    wanted = {t for t in set(map(type, objects)) if issubclass(t, kinds)}
    return [x for x in objects if type(x) in wanted]


def _kind(t: Tensor, gradients: set[int]) -> str:
    if isinstance(t, View):
        return "view"
    if isinstance(t, Parameter):
        return "parameter"
    if id(t) in gradients:
        return "gradient"
    return "leaf" if t.node is LEAF else "constant" if t.node is None else "result"


def _buffer(array) -> tuple[int, int]:
    """(identity, bytes) of the memory that an array shows."""
    if array.__class__ is Aval:
        return id(array), 0
    owner = getattr(array, "storage", None)                  # of the simulated device
    if owner is None:
        owner = array
        while getattr(owner, "base", None) is not None and hasattr(owner.base, "nbytes"):
            owner = owner.base
    return id(owner), owner.nbytes


def size_text(nbytes: float) -> str:
    """'1.50 MB', in powers of a thousand."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:.2f} {unit}"
    return f"{nbytes:.0f} B"


__all__ = ["KINDS", "LiveTensors", "live_tensors", "size_text"]
