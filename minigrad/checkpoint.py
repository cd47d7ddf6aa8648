"""Checkpointing: what a function saves for backward is dropped after forward and computed again when it is needed
(Chen et al. 2016): memory for one more forward.

The graph stays as it is: only the saved values of its nodes go.  The first of these nodes that backward reaches runs
the function anew, on the same arguments and the same random streams, and the new nodes hand their values to the old
ones.  So closures, hooks, several outputs, `grad` and `create_graph` mean what they mean without, bit for bit, and
checkpoints nest.  After `create.py`; `minigrad.utils.checkpoint` is this file.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import copy_context
from typing import Any

import numpy as np

from minigrad.aval import Aval
from minigrad.errors import GraphError
from minigrad.ops.plan import Plan
from minigrad.saved import Saver, fetched, innermost, put_away
from minigrad.streams import Generator, process_stream, stream
from minigrad.sweep import Hooked, check_unwritten
from minigrad.tensor import Node, Tensor, Writes, changed, current, site_text, tick


def checkpoint(function: Callable, *args: Any, use_reentrant: bool | None = None, preserve_rng_state: bool = True,
               context_fn: Callable | None = None, determinism_check: str = "default", debug: bool = False,
               **kwargs: Any) -> Any:
    """function(*args, **kwargs), whose saved values are computed again in backward.

    The function must do the same when it runs again, and is told nothing: what it writes outside (running means of
    batch norm) it writes twice; writing into its arguments raises.  Random streams – the process's, that of
    `drawing_from`, Generators among the arguments – are replayed unless `preserve_rng_state=False`, and go on as if
    nothing had been drawn.  `determinism_check="none"` does not compare shapes and dtypes of the two runs.
    `context_fn()` gives two contexts, around the one run and the other.  `use_reentrant` and `debug` change nothing:
    there is one way, and errors always tell the lines."""
    if determinism_check not in ("default", "none"):
        raise ValueError(f'checkpoint: determinism_check {determinism_check!r} must be "default" or "none"')
    first, again = (nullcontext(), nullcontext()) if context_fn is None else context_fn()
    if not current().grad:
        with first:
            return function(*args, **kwargs)
    run = Run(function, args, kwargs, preserve_rng_state, again, determinism_check == "default")
    with first, _nothing_packed():
        out = function(*args, **kwargs)
    run.strip(out)
    return out


def checkpoint_sequential(functions: Sequence[Callable] | Iterable, segments: int, input: Any,
                          use_reentrant: bool | None = None, **kwargs: Any) -> Any:
    """The functions, or modules, one after the other in `segments` parts of equal length, each but the last
    checkpointed: with √n segments of n layers, memory for about 2 √n of them (Chen et al. 2016)."""
    steps = list(functions)
    if not 1 <= segments <= len(steps):
        raise ValueError(f"checkpoint_sequential: {segments} segments of {len(steps)} functions; take 1 … {len(steps)}")
    size = len(steps) // segments
    for start in range(0, size * (segments - 1), size):
        input = checkpoint(_in_turn(steps[start:start + size]), input, use_reentrant=use_reentrant, **kwargs)
    return _in_turn(steps[size * (segments - 1):])(input)


def _in_turn(steps: list[Callable]) -> Callable:
    def run(x):
        for step in steps:
            x = step(x)
        return x
    return run


def _nothing_packed() -> Any:
    """What is dropped anyway need not go through hooks for saved tensors."""
    observers = current().observers
    return nullcontext() if innermost(observers) is None else changed(observers=_no_savers(observers))


def _no_savers(observers: tuple) -> tuple:
    return tuple(o for o in observers if not isinstance(o, Saver))


# ---- the nodes of one call -----------------------------------------------------------------------
def tensors_in(x: Any) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists and dicts, and in the attributes of dataclasses."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, tuple | list):
        for each in x:
            yield from tensors_in(each)
    elif isinstance(x, dict):
        yield from tensors_in(list(x.values()))
    elif hasattr(x, "__dataclass_fields__"):
        yield from tensors_in([getattr(x, name) for name in x.__dataclass_fields__])


def nodes_since(start: int, out: Any) -> list[Node]:
    """The nodes below `out` that were made after clock `start`, oldest first."""
    found = dict.fromkeys(t.node for t in tensors_in(out) if t.node.__class__ is Node and t.node.seq > start)
    order = list(found)
    for n in order:
        for e in n.edges or ():
            if e.__class__ is Node and e.seq > start and e not in found:
                found[e] = None
                order.append(e)
    return sorted(order, key=lambda n: n.seq)


def _without_arrays(saved: tuple) -> tuple:
    """What is no array (shapes) stays: it costs nothing."""
    return tuple(None if hasattr(v, "dtype") or _holds_arrays(v) else v for v in saved)


def _holds_arrays(v: Any) -> bool:
    return isinstance(v, tuple) and any(hasattr(each, "dtype") for each in v)


# ---- running again -------------------------------------------------------------------------------
class Run:
    """One checkpointed call: how to do it again, and, once that was done, the values for the nodes that come for
    them.  Nodes refer to it, never the other way round, so both die by reference count."""

    def __init__(self, function: Callable, args: tuple, kwargs: dict, replay: bool, again: Any, compare: bool) -> None:
        for t in tensors_in([args, kwargs]):
            _ = t.node                                       # a view whose base was written finds its node now
        self.call: tuple | None = (function, args, kwargs)
        self.context, self.again, self.compare = copy_context(), again, compare
        self.streams = [(g, g.get_state()) for g in _streams(args, kwargs)] if replay else []
        self.start = self.stamp = tick()                     # `stamp`: older than every node that asks
        self.told: list[tuple] = []                          # op, shape and line of each node
        self.fresh: list = []                                # the nodes of the second run, until they are asked for

    def strip(self, out: Any) -> None:
        """Take the saved arrays from every node of the call."""
        self._check_arguments("was written by the checkpointed function, which runs twice. Write to a clone()")
        nodes = nodes_since(self.start, out)
        self.end = tick()
        for k, n in enumerate(nodes):
            if any(hasattr(v, "dtype") or _holds_arrays(v) for v in n.saved) or isinstance(_core(n), Recomputed):
                n.saved = _without_arrays(n.saved)
                _set_core(n, Recomputed(_core(n), self, k))
        self.told = list(map(_told, nodes))
        saver = innermost(current().observers)
        if saver is not None:                                # its hooks have the arguments in their charge
            function, args, kwargs = self.call
            put = lambda x: put_away(x, saver)  # noqa: E731
            self.call = function, tuple(map(put, args)), {name: put(x) for name, x in kwargs.items()}

    def _check_arguments(self, what: str) -> None:
        for t in tensors_in(self.call[1:]):
            if t.o.eager and Writes.of(t.array)[0] > self.start:
                raise GraphError(f"checkpoint: an argument of shape {t.shape} {what} (at {_site(t.array)})")

    def node(self, k: int) -> Node:
        """Node k of the second run, which is made when the first is asked for; each is handed out once."""
        if self.call is not None:
            self._run_again()
        n, self.fresh[k] = self.fresh[k], None
        return n

    def _run_again(self) -> None:
        self._check_arguments("was changed between forward and backward. Keep it as it is, or pass a clone()")
        function, args, kwargs = self.call
        args, kwargs = tuple(map(fetched, args)), {name: fetched(x) for name, x in kwargs.items()}
        observers, since = _no_savers(current().observers), tick()

        def go():
            with changed(grad=True, observers=observers), self.again:
                return function(*args, **kwargs)

        with _replayed(self.streams):
            out = self.context.copy().run(go)
        nodes = nodes_since(since, out)
        self._check_same(nodes)
        for n in nodes:
            check_unwritten(n)
            self._check_outside(n, since)
        self.call, self.fresh = None, nodes

    def _check_same(self, nodes: list[Node]) -> None:
        told = list(map(_told, nodes))
        if len(told) == len(self.told) and (not self.compare or [t[:2] for t in told] == [t[:2] for t in self.told]):
            return
        k = next((k for k, (a, b) in enumerate(zip(self.told, told)) if a[:2] != b[:2]), min(len(told), len(self.told)))
        say = lambda t: f"{t[k][0].__name__} {t[k][1]} at {site_text(*t[k][2:])}" if k < len(t) else "nothing"  # noqa: E731
        raise GraphError(
            f"checkpoint: the function did not do the same again: step {k} was {say(self.told)}, and now is {say(told)}"
            ".\nIt must depend on nothing that changes: not on time, counters, or random numbers of other sources"
        )

    def _check_outside(self, n: Node, since: int) -> None:
        """Values that come from outside must be those of forward; what was written within counts as unwritten."""
        for value in n.saved:
            for array in value if isinstance(value, tuple) else (value,):
                if not hasattr(array, "dtype") or array.__class__ is Aval or isinstance(array, np.generic):
                    continue
                at, site, ref = Writes.of(array)
                if self.end < at < since:
                    raise GraphError(f"checkpoint: backward of {n.op} needs a value {array.shape} of outside that was "
                                     f"changed since forward, at {site_text(*site)}. Move the write after backward()")
                if at >= since:
                    Writes.table[id(n.o.storage(array))] = self.stamp, site, ref


def _told(n: Node) -> tuple:
    return type(n.op), n.shape, n.code, n.lasti


def _site(array) -> str:
    return site_text(*Writes.of(array)[1])


def _streams(args: tuple, kwargs: dict) -> list[Generator]:
    given = [g for g in (*args, *kwargs.values()) if isinstance(g, Generator)]
    return list({id(g): g for g in (process_stream(), stream(), *given)}.values())


@contextmanager
def _replayed(streams: list) -> Iterator[None]:
    """Random streams as they were; afterwards as they are now."""
    now = [(g, g.get_state()) for g, _ in streams]
    try:
        for g, state in streams:
            g.set_state(state)
        yield
    finally:
        for g, state in now:
            g.set_state(state)


# ---- a node that has to ask ----------------------------------------------------------------------
class Recomputed(Plan):
    """The plan of a node whose saved values are at node `k` of a run that has yet to be done."""

    __slots__ = ("inner", "run", "k")

    def __init__(self, inner: Plan, run: Run, k: int) -> None:
        self.op, self.mask, self.names, self.keep = inner.op, inner.mask, inner.names, inner.keep
        self.inner, self.k = inner, k
        self.run: Run | None = run

    def ready(self, n: Node) -> None:
        """Give the node its saved values; within a checkpoint of a checkpoint, the inner one's turn comes after."""
        if self.run is not None:
            fresh, stamp = self.run.node(self.k), self.run.stamp
            self.run, n.saved = None, fresh.saved
            if isinstance(self.inner, Recomputed):
                self.inner.run, self.inner.k = _core(fresh).run, _core(fresh).k
                self.inner.run.stamp = min(stamp, self.inner.run.stamp)
        if isinstance(self.inner, Recomputed):
            self.inner.ready(n)

    def pull(self, n: Node, g, grads) -> None:
        self.ready(n)
        self.inner.pull(n, g, grads)

    def __getattr__(self, name: str):
        return getattr(self.inner, name)


def _core(n: Node) -> Plan:
    """The plan below the hooks."""
    return n.plan.inner if isinstance(n.plan, Hooked) else n.plan


def _set_core(n: Node, plan: Plan) -> None:
    if isinstance(n.plan, Hooked):
        n.plan.inner = plan
    else:
        n.plan = plan


__all__ = ["checkpoint", "checkpoint_sequential"]
