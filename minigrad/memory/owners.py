"""Who holds which array: a walk over all that Python's collector knows, from tensors, modules and optimisers to arrays.

Python does not track arrays, so they are found in what refers to them.  After `account.py`, whose categories it gives;
before `tracker.py`, which takes in what is alive when it begins.
"""
from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterable, Iterator
from types import FrameType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from minigrad.aval import Aval
from minigrad.memory.account import ACTIVATION, GRADIENT, INPUT, OPTIMIZER_STATE, PARAMETER, WORKSPACE
from minigrad.memory.handler import address_of
from minigrad.memory.live import is_a
from minigrad.memory.why import _frames, locals_of
from minigrad.nn.module import Module
from minigrad.optim.optimizer import Optimizer
from minigrad.rows import Rows
from minigrad.sim import SimArray
from minigrad.tensor import LEAF, Node, Tensor, View

CHUNK = 20_000                               # objects whose references are asked for at once


class Owned(NamedTuple):
    """An array that owns its memory, what it is for, and who holds it, as far as that has a name."""

    array: np.ndarray
    category: str
    holder: str


def owner_of(x: Any) -> np.ndarray | None:
    """The host array that owns the memory of a tensor, an array or a view, also of the simulated device; None where
    there is none."""
    array = x.array if is_a(x, Tensor) else x
    if type(array) is SimArray:
        array = array.storage
    if not is_a(array, np.ndarray):
        return None
    base = array.base
    while base is not None:
        if is_a(base, np.ndarray):
            array = base
        base = getattr(base, "base", None)                   # window views have a plain object in between
    return array if array.flags.owndata else None


def address(x: Any) -> int | None:
    """Of the buffer behind `x`: what the log of events calls it."""
    array = x.array if is_a(x, Tensor) else x
    if type(array) is np.ndarray and array.base is None:     # by far the commonest
        return address_of(array)
    owner = owner_of(x)
    return None if owner is None else address_of(owner)


def arrays_in(x: Any) -> Iterator[Any]:
    """The raw arrays of a tensor, of a row-sparse gradient, of nested tuples, lists and dicts."""
    if is_a(x, Tensor):
        if x.array.__class__ is not Aval:
            yield x.array
    elif type(x) is Rows:
        yield from (x.array_index, x.array_values)
    elif is_a(x, dict):
        yield from arrays_in(tuple(x.values()))
    elif is_a(x, tuple | list):
        for each in x:
            yield from arrays_in(each)
    elif is_a(x, np.ndarray | SimArray):
        yield x


# ---- the walk --------------------------------------------------------------------------------------------------------
def owned(model: Module | None = None, optimizer: Optimizer | None = None, variables: bool = False) -> list[Owned]:
    """Every array that is alive and owns its memory, once: as parameter if it is one, else as gradient, and so on.
    With `variables`, their names too, before what is known of results.  The walk takes about a second in a process of
    250,000 objects."""
    objects, frames = gc.get_objects(), _frames()
    groups: dict[type, list] = defaultdict(list)
    for x in objects:
        groups[type(x)].append(x)
    names = _names(_of_kind(groups, Module) if model is None else [model])
    tensors = [x for x in _of_kind(groups, Tensor) if hasattr(x, "array")]
    claims = (_of_modules(names, tensors), _of_leaves(names, tensors),
              _of_optimizers(names, _of_kind(groups, Optimizer) if optimizer is None else [optimizer]),
              _of_variables(frames) if variables else (), _of_results(tensors), _of_nodes(groups[Node]),
              ((t, INPUT, f"a tensor {tuple(t.shape)}") for t in tensors),
              ((x, INPUT, f"an array {x.shape}") for x in _all_arrays(objects, frames)))
    found: dict[int, Owned] = {}
    for claim in claims:
        for x, category, holder in claim:
            for array in arrays_in(x):
                owner = owner_of(array)
                if owner is not None:
                    found.setdefault(id(owner), Owned(owner, category, holder))
    return list(found.values())


def _of_kind(groups: dict[type, list], kind: type) -> list:
    """No inner function of `owned`: its cell would be among the objects, a cycle that keeps all of them alive."""
    return [x for each, group in groups.items() if issubclass(each, kind) for x in group]


def _names(modules: list[Module]) -> dict[int, str]:
    """{identity of a parameter or buffer: its name}, from the outermost module that has it."""
    names: dict[int, str] = {}
    inner = {id(child) for m in modules for child in m.children()}
    for m in sorted(modules, key=lambda m: id(m) in inner):
        for name, x in [*m.named_parameters(), *m.named_buffers()]:
            names.setdefault(id(x), name)
    return names


def _of_modules(names: dict[int, str], tensors: list[Tensor]) -> Iterator[tuple[Any, str, str]]:
    for x in tensors:
        if id(x) in names:
            yield x, PARAMETER, f"parameter {names[id(x)]}" if x.requires_grad else f"buffer {names[id(x)]}"


def _of_leaves(names: dict[int, str], tensors: list[Tensor]) -> Iterator[tuple[Any, str, str]]:
    """Leaves that want a gradient, and gradients."""
    for t in tensors:
        if not is_a(t, View) and t.node is LEAF:
            yield t, PARAMETER, f"parameter {names.get(id(t), tuple(t.shape))}"
    for t in tensors:
        if t.grad is not None:
            yield t.grad, GRADIENT, f"gradient of {names.get(id(t), f'a leaf {tuple(t.shape)}')}"


def _of_results(tensors: list[Tensor]) -> Iterator[tuple[Any, str, str]]:
    for t in tensors:
        if not is_a(t, View) and type(t.node) is Node:
            yield t, ACTIVATION, f"the result of {t.node.op}"


def _of_optimizers(names: dict[int, str], optimizers: list[Optimizer]) -> Iterator[tuple[Any, str, str]]:
    for optimizer in optimizers:
        for p, state in optimizer.state.items():
            for key, value in state.items():
                yield value, OPTIMIZER_STATE, f"{key} of {names.get(id(p), tuple(p.shape))}"
        for memory in getattr(getattr(optimizer, "_scratch", None), "_host", {}).values():
            yield memory, WORKSPACE, f"working memory of {type(optimizer).__name__}"


def _of_nodes(nodes: list[Node]) -> Iterator[tuple[Any, str, str]]:
    for n in nodes:
        for name, value in zip(n.plan.names, n.saved or ()):
            yield value, ACTIVATION, f"{n.op} saved it as `{name}`"


def _of_variables(frames: list[FrameType]) -> Iterator[tuple[Any, str, str]]:
    """What the variables of running functions hold by themselves; the walk below finds the rest."""
    for f in frames:
        for name, x in locals_of(f).items():
            if is_a(x, Tensor | np.ndarray):
                yield x, INPUT, f"variable `{name}` of {f.f_code.co_name}"


def _all_arrays(objects: list, frames: list) -> Iterator[np.ndarray]:
    """Every array that something refers to: objects, or the variables of running functions."""
    arrays = _subclasses(np.ndarray)
    wanted = arrays | {tuple, dict}                          # those two are not tracked while they hold arrays alone
    # No modules, whose dicts are among the objects: CPython 3.12 breaks the free list of `_asyncio` when it shows what
    # that module refers to, and hangs the next time.
    level: list[Any] = [*(x for x in objects if type(x) is not ModuleType), *map(locals_of, frames)]
    seen: set[int] = set()
    while level:
        boxes: list[Any] = []
        for start in range(0, len(level), CHUNK):
            for x in [x for x in gc.get_referents(*level[start:start + CHUNK]) if type(x) in wanted]:
                if type(x) in arrays:
                    yield x
                    if x.dtype.hasobject and id(x) not in seen:
                        boxes.append(list(x.flat))
                        seen.add(id(x))
                elif not gc.is_tracked(x) and x and id(x) not in seen:
                    boxes.append(x)
                    seen.add(id(x))
        level = boxes


def _subclasses(kind: type) -> set[type]:
    found = {kind}
    waiting: Iterable[type] = {kind}
    while waiting:
        below: set[type] = set()
        for each in waiting:
            below.update(type.__subclasses__(each))
        waiting = below - found
        found |= waiting
    return found


__all__ = ["Owned", "address", "arrays_in", "owned", "owner_of"]
