"""Leaks: what grows from step to step, what keeps it, and the way out.

A leak is what grows *steadily*: a group of tensors, graph nodes, arrays or hooks (one kind, made in one line, of one
shape) whose number rose between each two of the last five looks.  So a warm-up, state made at the first step and a
cache that has filled are none; numbers (one element, no history) are a log.  The collector is asked apart: what only it
frees is a cycle, not held.  Looks are taken at 1, 2, 3 … steps, then ever further apart: a long loop pays little.
After `diagnosis.py` and `cycles.py`.
"""
from __future__ import annotations

import gc
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from minigrad.arguments import function, whole
from minigrad.memory.cycles import cause_of_cycle, uncollected
from minigrad.memory.diagnosis import BOXES, Cause, Context, cause_of, cause_of_hook, hooks_of
from minigrad.memory.live import KINDS, UNKNOWN, _buffer, _found, is_a, of_kinds, size_text
from minigrad.nn.module import Module
from minigrad.sweep import Hooked
from minigrad.tensor import Node, Tensor, View

Key = tuple[str, str, tuple]           # kind, line, shape
LOOKS = 5                              # growth between each two of so many
MOST = 10                              # then every other look is forgotten, and they come half as often


@dataclass(frozen=True)
class Leak:
    """`count` things that are held, and `nbytes` with all that hangs on them, more at each step, on average over the
    last looks."""

    cause: Cause
    what: str
    count: float
    nbytes: float

    @property
    def kind(self) -> str:
        """"history", "closure", "hook", "cycle", "gradient", "exception", "cache", "optimizer", "notebook", "loader",
        "running", "kept", or "unknown"."""
        return self.cause.kind

    @property
    def line(self) -> str:
        return self.cause.line

    def __str__(self) -> str:
        does = "leaves to the collector" if self.kind == "cycle" else "grows by"
        rows = [f"{self.kind}: {self.cause.words}", f"  {does} {size_text(round(self.nbytes))} a step: {self.what}"]
        rows += [f"  line: {self.line}"] * bool(self.line)
        rows += [f"  held: {self.cause.chain}"] * bool(self.cause.chain)
        return "\n".join([*rows, f"  way out: {self.cause.way_out}"])

    __repr__ = __str__


@dataclass(frozen=True)
class Leaks:
    """What was found over `steps` steps; `filling`: groups that grew and are kept by a cache with a bound only."""

    steps: int
    leaks: tuple[Leak, ...]
    filling: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.steps < LOOKS:
            return f"{self.steps} steps are too few to tell a leak from a warm-up: at least {LOOKS}"
        rows = [f"{len(self.leaks) or 'no'} leak{'s' * (len(self.leaks) != 1)} in {self.steps} steps"]
        rows += [f"{k}. {leak}" for k, leak in enumerate(self.leaks, 1)]
        return "\n".join([*rows, *(f"not counted, a cache that fills: {text}" for text in self.filling)])

    __repr__ = __str__


@dataclass
class _Look:
    step: int
    held: Counter[Key]                 # numbers and bytes of what is held
    nbytes: Counter[Key]
    cycles: Counter[Key]
    cycle_nbytes: Counter[Key]


class LeakCheck:
    """`with LeakCheck() as check: for …: train(); check.step()`, then `check.report`, a `Leaks`.

    With `strict` a leak, or too few steps to tell, raises AssertionError at the end.  Within the block what was there
    before is left out of collections (`gc.freeze`), and the collector is switched off for some steps, to see what only
    it frees; afterwards all is as it was, after an error too, but what the program itself had frozen is not."""

    _open = 0                                                # checks within whose blocks we are

    def __init__(self, strict: bool = False) -> None:
        self.strict, self.steps, self.report = strict, 0, Leaks(0, ())
        self._looks: list[_Look] = []
        self._stride, self._cycle_causes = 1, dict[Key, Cause]()

    def __enter__(self) -> LeakCheck:
        if self._looks or self.steps:
            raise RuntimeError("LeakCheck: one check watches one loop. Make another one")
        self._was_enabled, self._nested = gc.isenabled(), LeakCheck._open > 0
        if not self._nested:
            gc.unfreeze()                                    # a new Python 3.12 has some objects frozen
        gc.collect()
        objects = gc.get_objects()
        self._boxes = arrays_in(objects)
        self._old = [weakref.ref(x) for x in of_kinds(objects, Module, Tensor, Hooked)]
        del objects
        self._freezes = not self._nested
        if self._freezes:
            gc.freeze()
        gc.disable()
        LeakCheck._open += 1
        return self

    def __exit__(self, kind, *_) -> None:
        try:
            if kind is None:
                gc.collect()
                grown = self._grown()
                items = self._items(grown) if grown else {}
                self._thaw()
                self.report = self._told(grown, items)
        finally:
            self._thaw()
            LeakCheck._open -= 1
            (gc.enable if self._was_enabled else gc.disable)()
            self._old, self._looks[:-1] = [], []
        if kind is None and self.strict and (self.report.leaks or self.steps < LOOKS):
            raise AssertionError(str(self.report))

    def _thaw(self) -> None:
        if self._freezes:
            gc.unfreeze()
            self._freezes = False

    def step(self) -> None:
        """A step of the loop has ended."""
        self.steps += 1
        if self.steps % self._stride == 0:
            self._look()
            if len(self._looks) == MOST:
                self._stride *= 2
                self._looks = [look for look in self._looks if look.step % self._stride == 0]
        if (self.steps + 1) % self._stride == 0:
            self._arm()
        elif self._was_enabled:
            gc.enable()

    def _arm(self) -> None:
        """What becomes unreachable from here on stays until the look."""
        gc.collect()
        gc.disable()

    # -- looking
    def _look(self) -> None:
        look = _Look(self.steps, *(Counter() for _ in range(4)))
        with uncollected() as trash:
            for key, nbytes, thing in groups(trash):
                look.cycles[key] += 1
                look.cycle_nbytes[key] += nbytes
                if key not in self._cycle_causes:
                    self._cycle_causes[key] = cause_of_cycle(trash, thing)
            thing = None
        for key, nbytes, _ in groups(self._objects()):
            look.held[key] += 1
            look.nbytes[key] += nbytes
        self._looks.append(look)

    def _objects(self) -> list:
        """What is alive and new, and the modules and tensors that were there."""
        return gc.get_objects() + ([] if self._nested else [x for ref in self._old if (x := ref()) is not None])

    # -- judging
    def _grown(self) -> dict[Key, tuple[float, float]]:
        """{group: (number, bytes) more a step} of those that rose between each two of the last looks, and of those that
        rose together with the other shapes from their line, as where batches differ in size."""
        if len(self._looks) < LOOKS:
            return {}
        last = self._looks[-LOOKS:]
        steps = last[-1].step - last[0].step
        by_line: list[Counter] = [Counter() for _ in last]
        for total, look in zip(by_line, last):
            for key, n in look.held.items():
                total[key[:2]] += n
        alone = {key for key in last[-1].held if _rises([look.held[key] for look in last])}
        lines = {key[:2] for key in alone} | {key[:2] for key in last[-1].held if key[1] == UNKNOWN}
        together = {key for key in last[-1].held if key[:2] not in lines and last[-1].held[key] > last[0].held[key]
                    and _rises([total[key[:2]] for total in by_line])}
        begin, end = last[0], last[-1]
        return {key: ((end.held[key] - begin.held[key]) / steps, (end.nbytes[key] - begin.nbytes[key]) / steps)
                for key in end.held if key in alone or key in together}

    def _items(self, grown: Iterable[Key]) -> dict[Key, list]:
        """The tensors and nodes of the groups, oldest first as far as the collector tells; of what was there before
        the check only where nothing is new."""
        there = {id(ref()) for ref in self._old}
        new, old = ({key: list[Any]() for key in grown} for _ in range(2))
        for key, _, thing in groups(self._objects()):
            if key in new:
                (old if id(thing) in there else new)[key].append(thing)
        return {key: xs or old[key] for key, xs in new.items()}

    def _told(self, grown: dict, items: dict[Key, list]) -> Leaks:
        leaks: dict[tuple, list] = {}
        filling = []
        owners, context = _owners(items), Context() if grown else None
        for key, (thing, keys) in owners.items():
            cause = cause_of_hook(thing) if key[0] == "hook" else cause_of(thing, context)
            if cause is None:
                filling.append(_what(key, grown[key][0]))
            else:
                leak = leaks.setdefault((cause.kind, cause.line, cause.words), [cause, 0, []])
                leak[1] += grown[key][0]
                leak[2] += keys
        del owners, items
        found = [Leak(cause, "; ".join(_what(k, grown[k][0]) for k in sorted(keys, key=lambda k: -grown[k][1])[:3]),
                      count, sum(grown[k][1] for k in keys)) for cause, count, keys in leaks.values()]
        found += [*self._cycles(), *self._arrays()]
        return Leaks(self.steps, tuple(sorted(found, key=lambda leak: -leak.nbytes)), tuple(filling))

    def _cycles(self) -> Iterator[Leak]:
        """What each of the last looks found in cycles, by cause."""
        last = self._looks[-LOOKS:]
        by_cause: dict[tuple, list[Key]] = {}
        for key in last[-1].cycles if len(last) == LOOKS else ():
            if all(look.cycles[key] for look in last):
                cause = self._cycle_causes[key]
                by_cause.setdefault((cause.line, cause.words), []).append(key)
        for keys in by_cause.values():
            counts, sizes = last[-1].cycles, last[-1].cycle_nbytes
            largest = sorted(keys, key=lambda k: -sizes[k])[:3]
            yield Leak(self._cycle_causes[keys[0]], "; ".join(_what(k, counts[k]) for k in largest),
                       sum(counts[k] for k in keys), sum(sizes[k] for k in keys))

    def _arrays(self) -> Iterator[Leak]:
        """Boxes to which NumPy arrays were added, one in two steps at least: the collector does not know arrays, so
        these are only counted before and after."""
        if self.steps < LOOKS:
            return
        known = dict(self._boxes)
        boxes = [x for x in gc.get_objects() if type(x) in (list, dict, set, deque)]
        for box in [b for b in boxes if b is not known and 2 * (_arrays(b)[0] - known.get(id(b), 0)) >= self.steps]:
            del boxes[:]
            n, nbytes = _arrays(box)
            cause = cause_of(box, Context())
            if cause is not None:
                rate = (n - known.get(id(box), 0)) / self.steps
                yield Leak(cause, f"{rate:.3g} NumPy arrays", rate, rate * nbytes / n)


def _rises(counts: list[int]) -> bool:
    return all(a < b for a, b in zip(counts, counts[1:]))


# ---- groups -----------------------------------------------------------------------------------
def groups(objects: list) -> Iterator[tuple[Key, int, Any]]:
    """(group, bytes, thing): tensors, nodes, what nodes saved, hooks.  A buffer counts once; a number does not."""
    seen: set[int] = set()
    hosts = of_kinds(objects, Module, Tensor, Hooked, Node)
    things = [x for x in hosts if type(x) is Node or is_a(x, Tensor) and hasattr(x, "array")]
    shown = ((x, found) for x in things for found in _found([x]))
    rows = sorted(((kind, line, array, x) for x, (kind, array, line) in shown), key=lambda row: KINDS.index(row[0]))
    for kind, line, array, x in rows:
        key, nbytes = _buffer(array)
        size = 0 if key in seen else nbytes
        seen.add(key)
        if kind == "saved" and not size or _is_number(x):
            continue
        yield (kind, line, tuple(array.shape)), size, x
    for x in things:
        if type(x) is Node and x.edges is not None:
            yield ("node", x.made_at, tuple(x.shape)), 0, x
    for x in hosts:
        for f in hooks_of(x):
            code = getattr(f, "__code__", None)
            yield ("hook", f"{code.co_filename}:{code.co_firstlineno}" if code else repr(type(f)), ()), 0, f


def _is_number(x: Any) -> bool:
    """One element without a history: of a log, or a cached literal."""
    return is_a(x, Tensor) and x.node is None and (x.base if is_a(x, View) else x).array.size <= 1


def _what(key: Key, count: float) -> str:
    kind, line, shape = key
    where = f" made at {line}" if line != UNKNOWN else ""
    return f"{count:.3g} {kind} {list(shape)}{where}" if kind != "hook" else f"{count:.3g} hook defined at {line}"


def _below(x: Any) -> list:
    """What a tensor or node keeps alive of the graph; not a `.grad`, from whose history there may be a way back."""
    if type(x) is Node:
        return [*(x.edges or ())]
    found = [x.base] if is_a(x, View) else []
    node = x._node if is_a(x, View) else x.node
    return [*found, *([node] if type(node) is Node else [])]


def _owners(items: dict[Key, list]) -> dict[Key, tuple[Any, list[Key]]]:
    """{group at the top: (one of it, the groups that hang on it)}: of a graph only what holds it is asked about."""
    group_of = {id(x): key for key, xs in items.items() if key[0] not in ("hook", "saved") for x in xs}
    covered: set[int] = set()
    for key, xs in items.items():
        for x in xs if key[0] not in ("hook", "saved") else ():
            covered |= _reach(x, covered)
    tops = {key: [x for x in xs if id(x) not in covered] for key, xs in items.items() if key[0] != "saved"}
    found: dict[Key, tuple[Any, list[Key]]] = {}
    taken: set[Key] = set()
    for key, xs in tops.items():
        if xs:
            hang = {group_of[k] for k in _reach(xs[-1], set()) if k in group_of} if key[0] != "hook" else set()
            hang |= {k for k in items if k[0] == "saved" and any(k[1] == h[1] for h in (key, *hang))}
            own = [k for k in (key, *hang) if k not in taken]
            taken.update(own)
            found[key] = xs[len(xs) // 2], own               # the newest may be the loop's own
    return found


def _reach(x: Any, known: set[int]) -> set[int]:
    """Identities of what hangs on `x`, without what is known to be reached."""
    found: set[int] = set()
    todo = _below(x)
    while todo:
        y = todo.pop()
        if id(y) not in found and id(y) not in known:
            found.add(id(y))
            todo += _below(y)
    return found


# ---- arrays -----------------------------------------------------------------------------
def _arrays(box: Any, depth: int = 2) -> tuple[int, int]:
    """(number, bytes) of the NumPy arrays in a box, and in boxes in it, that keep more than one element alive."""
    n = nbytes = 0
    inside = tuple(box.values() if is_a(box, dict) else box)
    if _HOLD_ARRAYS.isdisjoint(map(type, inside)):
        return 0, 0
    for v in inside:
        if type(v) is np.ndarray and (kept := _buffer(v)[1]) > v.itemsize:
            n, nbytes = n + 1, nbytes + (v.nbytes if v.size > 1 else kept)
        elif depth > 1 and type(v) in BOXES:
            inner = _arrays(v, depth - 1)
            n, nbytes = n + inner[0], nbytes + inner[1]
    return n, nbytes


_HOLD_ARRAYS = {np.ndarray, *BOXES}


def arrays_in(objects: list) -> dict[int, int]:
    """{identity of a box: how many arrays it holds}."""
    return {id(x): n for x in objects if type(x) in (list, dict, set, deque) and (n := _arrays(x)[0])}


# ---- calls ------------------------------------------------------------------------------------
def find_leaks(step: Callable[[], Any], steps: int = 20) -> Leaks:
    """Run `step()` some times, and say what it leaks.  What it returns is dropped."""
    function("find_leaks", "step", step)
    if whole("find_leaks", "steps", steps, 1) < LOOKS:
        raise ValueError(f"find_leaks: {steps} steps are too few to tell a leak from a warm-up: at least {LOOKS}")
    with LeakCheck() as check:
        for _ in range(steps):
            step()
            check.step()
    return check.report


def assert_no_leak(step: Callable[[], Any] | None = None, steps: int = 20) -> LeakCheck | Leaks:
    """AssertionError, with the report as its text, if `step()` leaks.  Without `step` a LeakCheck to be used in a
    `with`, that raises at its end."""
    if step is None:
        return LeakCheck(strict=True)
    found = find_leaks(step, steps)
    if found.leaks:
        raise AssertionError(str(found))
    return found


__all__ = ["Leak", "LeakCheck", "Leaks", "assert_no_leak", "find_leaks"]
