"""What keeps a tensor, or its memory, alive: chains of names from a variable down to it.

Walked upwards with `gc.get_referrers`, level by level, until a variable of a function or of a module is met; bounded in
time and length.  After `live.py`.
"""
from __future__ import annotations

import gc
import os
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from inspect import CO_OPTIMIZED
from types import CellType, CodeType, FrameType, FunctionType, GeneratorType, ModuleType
from typing import Any

from minigrad.memory.live import is_a
from minigrad.tensor import Node, Tensor

HERE = os.path.dirname(os.path.abspath(__file__))            # frames of this package hold only what they look at


@dataclass(frozen=True)
class Held:
    """`thing`, and how what holds `below` calls it."""

    thing: Any
    below: Held | None
    name: str


@dataclass(frozen=True)
class Variable:
    """Of a running function (`code` is set), or of a module."""

    name: str
    owner: str
    code: CodeType | None = None
    line: int = 0

    def __str__(self) -> str:
        where = f"module {self.owner}" if self.code is None else f"{self.owner}() ({self.code.co_filename}:{self.line})"
        return f"variable `{self.name}` of {where}"


Variables = dict[int, list[tuple]]


@dataclass(frozen=True)
class Chain:
    """A variable and what leads down from it: `top` is what the variable holds."""

    root: Variable
    top: Held

    @property
    def steps(self) -> list[Held]:
        """From the top down to the thing itself."""
        found: list[Held] = []
        h: Held | None = self.top
        while h is not None:
            found.append(h)
            h = h.below
        return found

    def __str__(self) -> str:
        """`variable → Linear.weight → its array`."""
        *above, end = self.steps
        last = end.name or (_kind(end.thing) if above else "")
        return " → ".join([str(self.root), *filter(None, map(_told, above)), *filter(None, [last])])


def why_alive(x: Any, *, limit_s: float = 2.0, most: int = 10) -> str:
    """The chains that hold `x`, one a line, shortest first: variable, then what leads from it to the tensor.

    A tensor's array counts too: the graph saves arrays, not tensors.  Stops after `limit_s` seconds or `most` chains,
    and says so."""
    found, complete = chains(x, limit_s=limit_s, most=most)
    told = list(dict.fromkeys(map(str, found)))[:most]
    if not complete or len(found) > most:
        told.append(f"… and perhaps more: stopped after {limit_s:g} s or {most} chains")
    return "\n".join(told) if told else "nothing that Python's collector knows of, beside the caller's argument"


def chains(x: Any, *, limit_s: float = 2.0, most: int = 10, known: Variables | None = None) -> tuple[list[Chain], bool]:
    """(the chains that hold `x`, shortest first; whether there was time for all).  May find more than `most`.

    `known`: the variables, where several are asked about one after the other."""
    end, found, complete = time.monotonic() + limit_s, list[Chain](), True
    level = [Held(each, None, name) for each, name in _starts(x)]
    seen = {id(held.thing) for held in level}
    frames = _frames()
    roots = variables(frames) if known is None else known
    while level and len(found) < most and complete:
        found += [Chain(Variable(*root), held) for held in level for root in roots.get(id(held.thing), ())]
        open_ones = [h for h in level if h.below is None or id(h.thing) not in roots]  # a variable explains enough
        level, complete = _above(open_ones, seen, frames, end)
    return found, complete


def _starts(x: Any) -> list[tuple[Any, str]]:
    """The tensor itself; its array, and the array it shows, which others may hold."""
    if not is_a(x, Tensor):
        return [(x, "")]
    arrays = [x.array] if x.o.eager else []
    while arrays and getattr(arrays[-1], "base", None) is not None:
        arrays.append(arrays[-1].base)
    return [(x, ""), *((a, "its array") for a in arrays)]


def _frames() -> list[FrameType]:
    """The frames that run now, in every thread, but those of this package."""
    found = []
    for top in sys._current_frames().values():
        f: FrameType | None = top
        while f is not None:
            if os.path.dirname(os.path.abspath(f.f_code.co_filename)) != HERE:
                found.append(f)
            f = f.f_back
    del top                                                  # perhaps this very frame: a cycle that keeps what it saw
    return found


def locals_of(f: FrameType) -> dict[str, Any]:
    """Its variables.  Before Python 3.13 a frame keeps what it showed once, and would hold a variable's thing after its
    `del`: it is made to forget."""
    shown = f.f_locals
    found = dict(shown)
    if sys.version_info < (3, 13) and f.f_code.co_flags & CO_OPTIMIZED and sys.getrefcount(shown) <= 3:
        shown.clear()                                        # unless somebody else has it from locals()
    return found


def variables(frames: list[FrameType] | None = None) -> Variables:
    """{identity of a thing: the fields of the `Variable`s that hold it}, of running functions and of modules."""
    found: Variables = defaultdict(list)
    frames = _frames() if frames is None else frames
    for f in frames:
        if f.f_code.co_name != "<module>":
            for name, thing in locals_of(f).items():
                found[id(thing)].append((name, f.f_code.co_name, f.f_code, f.f_lineno))
    for title, module in list(sys.modules.items()):
        if is_a(module, ModuleType):
            for name, thing in list(vars(module).items()):
                found[id(thing)].append((name, title))
    return found


def _above(level: list[Held], seen: set[int], frames: list[FrameType], end: float) -> tuple[list[Held], bool]:
    """What holds the things of this level, and whether there was time for all."""
    held_by: list[Held] = []
    known = {id(held.thing): held for held in level}
    things = tuple(held.thing for held in level)             # the call holds them too
    skip = {id(x) for x in (level, things, known, seen, held_by, frames)} | {id(vars(h)) for h in level}
    skip |= {id(f) for f in frames}
    for holder in gc.get_referrers(*things):
        if time.monotonic() > end:
            return held_by, False
        if id(holder) in seen or id(holder) in skip or _is_ours(holder) or is_a(holder, ModuleType):
            continue
        below = next((known[id(r)] for r in gc.get_referents(holder) if id(r) in known), None)
        if is_a(holder, type) and (below is None or not is_a(below.thing, dict)):       # but for its own variables
            continue
        seen.add(id(holder))
        if below is not None:
            held_by.append(_joined(holder, below))
    return held_by + _unseen_holders(known, seen, frames), True


def _joined(holder: Any, below: Held) -> Held:
    """`holder` above `below`; the `__dict__` of an object, and the tuples of a Node, are no steps of their own."""
    if below.below is not None and (is_a(holder, type) or _peek(holder, "__dict__") is below.thing):
        return Held(holder, below.below, "." + below.name[2:-2])
    if below.below is not None and is_a(holder, Node) and below.thing is holder.edges:
        return Held(holder, below.below, f".edges{below.name}")
    if below.below is not None and is_a(holder, FunctionType) and below.thing is holder.__closure__:
        return Held(holder, below.below, f" closes over `{holder.__code__.co_freevars[int(below.name[1:-1])]}`")
    return Held(holder, below, _named(holder, below.thing))


def _unseen_holders(known: dict[int, Held], seen: set[int], frames: list[FrameType]) -> list[Held]:
    """Nodes and containers that hold an array: Python does not track a tuple or a dict of arrays alone."""
    if all(gc.is_tracked(held.thing) for held in known.values()):
        return []
    found = []
    for node in [x for x in gc.get_objects() if type(x) is Node]:
        for name, value in zip(node.plan.names, node.saved or ()):
            for array in value if is_a(value, tuple) else (value,):
                if id(array) in known and id(node) not in seen:
                    seen.add(id(node))
                    found.append(Held(node, known[id(array)], f" saved it as `{name}`"))
    for f in frames:
        for box in locals_of(f).values():
            if is_a(box, tuple | dict) and not gc.is_tracked(box) and id(box) not in seen:
                for held in [known[id(v)] for v in (box.values() if is_a(box, dict) else box) if id(v) in known]:
                    seen.add(id(box))
                    found.append(Held(box, held, _named(box, held.thing)))
    return found


def _is_ours(holder: Any) -> bool:
    """Whether it is this walk itself, or the variables of a module."""
    if is_a(holder, Held) or (is_a(holder, FrameType) and os.path.dirname(holder.f_code.co_filename) == HERE):
        return True
    return is_a(holder, dict) and "__name__" in holder and holder.get("__name__") in sys.modules and (
        vars(sys.modules[holder["__name__"]]) is holder
    )


def _named(holder: Any, thing: Any) -> str:
    """How a holder calls what it holds."""
    if is_a(holder, dict):
        return next((f"[{_key(k)}]" for k, v in list(holder.items()) if v is thing), "[a key]")
    if is_a(holder, list | tuple):
        return next((f"[{k}]" for k, v in enumerate(holder) if v is thing), "[…]")
    if is_a(holder, Node):
        return next((f".{k}" for k in ("edges", "plan") if getattr(holder, k, None) is thing), ".…")
    if is_a(holder, CellType):
        return ""
    if is_a(holder, FunctionType):
        return " default argument" if thing is holder.__defaults__ else ""
    if is_a(holder, FrameType):
        return next((f" variable `{k}`" for k, v in locals_of(holder).items() if v is thing), "")
    if is_a(holder, GeneratorType) and holder.gi_frame is not None:
        return next((f" variable `{k}`" for k, v in locals_of(holder.gi_frame).items() if v is thing), "")
    slots = [s for c in type(holder).__mro__ for s in _slots(c)]
    names = [*(_peek(holder, "__dict__") or {}), *slots]
    return next((f".{k}" for k in names if k != "__weakref__" and _peek(holder, k) is thing), "")


def _key(k: Any) -> str:
    return repr(k) if type(k) in (str, int, float, bool) else f"a {type(k).__name__}"


def _slots(cls: type) -> tuple[str, ...]:
    found = vars(cls).get("__slots__", ())
    return (found,) if is_a(found, str) else tuple(found)


def _peek(holder: Any, name: str) -> Any:
    try:
        return object.__getattribute__(holder, name)
    except AttributeError:
        return None


def _told(h: Held) -> str:
    """A holder with the name of what it holds."""
    if is_a(h.thing, Node):
        return f"{h.thing.op} at {h.thing.made_at}{h.name}"
    if is_a(h.thing, CellType):
        return ""
    if is_a(h.thing, tuple | list | dict):
        return f"{type(h.thing).__name__}{h.name}"
    return f"{_kind(h.thing)}{h.name}"


def _kind(thing: Any) -> str:
    if is_a(thing, Tensor):
        return f"tensor {tuple(thing.shape)}"
    if is_a(thing, FunctionType):
        return f"{thing.__qualname__}()"
    if is_a(thing, FrameType):
        return f"the ended call {thing.f_code.co_name}() ({thing.f_code.co_filename}:{thing.f_lineno})"
    return thing.__name__ if is_a(thing, type) else type(thing).__name__


__all__ = ["Chain", "Held", "Variable", "chains", "locals_of", "variables", "why_alive"]
