"""The walk of backward: from the newest node to the oldest, pulling each gradient to where it came from.

Iterative (no recursion limit), deterministic (nodes are numbered as they run, so sorting them is a topological order)
and
releasing (each node lets go of what it saved as it passes).  `sweep` is the hot path; `sweep_fully` does the same with
second derivatives, pruning and deferred work.  After `ops/`; `autograd.py` has the calls users make.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from operator import attrgetter

import numpy as np

from minigrad.anomaly import WATCH, watched
from minigrad.aval import Aval
from minigrad.errors import GraphError
from minigrad.leaves import LeafHooks, accumulate, deposit, run_after, run_hooks, waits
from minigrad.ops.plan import Plan, chosen, ours, unbroadcast, wide_gradients
from minigrad.ops.traced import traced
from minigrad.probes import begin, end, probes_of
from minigrad.tensor import Node, Tensor, Writes, current, site_text

_by_seq = attrgetter("seq")
Edge = Node | Tensor


# ---- the walk --------------------------------------------------------------------------------------------------------
def reachable(roots: Iterable[Edge], targets: frozenset | None = None) -> tuple[dict[Edge, object], list[Node]]:
    """({node or leaf: None}, nodes oldest first) for everything the roots depend on.  A target may be freed already."""
    grads: dict[Edge, object] = dict.fromkeys(roots)
    order = [r for r in grads if r.__class__ is Node]
    for n in order:
        if n.edges is None:
            if targets is not None and n in targets:
                continue
            raise GraphError(f"backward through {n} a second time: its saved values were freed the first time.\n"
                             "Pass retain_graph=True to the first backward, or compute the result anew.")
        for e in n.edges:
            if e not in grads:
                grads[e] = None
                if e.__class__ is Node:
                    order.append(e)
    order.sort(key=_by_seq)
    return grads, order


def sweep(roots: dict[Edge, object], retain: bool) -> dict[Edge, object]:
    """Gradients of the leaves as raw arrays: the hot path, with nothing asked but that."""
    grads, order = reachable(roots)
    grads.update(roots)
    take, pop = grads.pop, order.pop
    while order:
        n = pop()
        g = take(n)
        if Writes.last > n.seq:
            check_unwritten(n)
        if g is not None:
            n.plan.pull(n, g, grads)
        if not retain:
            n.edges = n.saved = None
    return grads


def due_leaves(order: list[Node]) -> dict[Node, list[Tensor]]:
    """Leaves whose hooks wait for their whole gradient, by the node that brings the last of it: their oldest."""
    due: dict[Node, list[Tensor]] = {}
    if LeafHooks.ever:
        oldest: dict[Tensor, Node] = {}
        for n in order:
            for e in n.edges or ():
                if e.__class__ is not Node and waits(e):
                    oldest.setdefault(e, n)
        for leaf, n in oldest.items():
            due.setdefault(n, []).append(leaf)
    return due


def sweep_probed(roots: dict[Edge, object], retain: bool, probes: tuple) -> dict[Edge, object]:
    """`sweep` whose every step is told to probes, and to the hooks that wait for leaves."""
    grads, order = reachable(roots)
    grads.update(roots)
    due = due_leaves(order)
    while order:
        n = order.pop()
        g = grads.pop(n)
        if Writes.last > n.seq:
            check_unwritten(n)
        if g is not None:
            begin(probes, "pull", n, (g,))
            n.plan.pull(n, g, grads)
            g = None
            end(probes, "pull", n, tuple(grads[e] for e in n.edges))
        if not retain:
            n.edges = n.saved = None
        if n in due:
            for leaf in due[n]:
                deposit(grads, leaf, False)
    return grads


def check_unwritten(n: Node) -> None:
    """Raise if a value that `n` saved was written after `n` was made."""
    check_values(n, dict(zip(n.plan.names, n.saved)))


def check_values(n: Node, values: dict) -> None:
    """The same for values that are no longer at the node."""
    for name, value in values.items():
        for each in value if isinstance(value, tuple) else (value,):
            array = each.array if isinstance(each, Tensor) else each
            if not hasattr(array, "dtype") or array.__class__ is Aval or isinstance(array, np.generic):
                continue
            seq, site, _ = Writes.of(array)
            if seq > n.seq:
                raise GraphError(
                    f"backward of {n.op}: its saved value `{name}` {array.shape} was changed in place\n"
                    f"at {site_text(*site)}\nafter the operation ran at {n.made_at}.\n"
                    "Write to a clone(), or move the write after backward()."
                )


def sweep_fully(roots: dict[Edge, object], *, retain: bool, on_tensors: bool, targets: frozenset | None = None,
                defer: frozenset = frozenset(),
                deposits: bool = False) -> tuple[dict[Edge, object], list[Callable[[], None]]]:
    """The same with everything: on Tensors (second derivatives, meta, observers), only towards `targets`, and with the
    gradients of the leaves in `defer` left as a queue of work.  With `deposits`, leaves whose hooks wait get theirs as
    soon as it is whole.  Returns (gradients, work)."""
    grads, order = reachable(roots, targets)
    grads.update(roots)
    useful = None if targets is None else _useful(order, targets)
    kept: dict[Edge, object] = {}
    work: list[Callable[[], None]] = []
    observers = probes_of(current().observers)
    due = due_leaves(order) if deposits else {}
    while order:
        n = order.pop()
        g = grads.pop(n)
        runs = useful is None or n in useful                 # what lies beyond the targets is left as it is
        if g is not None and (runs or n in targets):
            if runs and Writes.last > n.seq:
                check_unwritten(n)
            if runs and hasattr(n.plan, "ready"):            # its saved values are computed anew, or unpacked
                n.plan.ready(n)
            g = n.plan.hooked(g, on_tensors) if isinstance(n.plan, Hooked) else g
            if targets is not None and n in targets:
                kept[n] = g
            if runs:
                begin(observers, "pull", n, (g,))
                _pull(n, g, grads, useful, targets, defer, on_tensors, work)
                end(observers, "pull", n)
                if hasattr(n.plan, "rest"):
                    n.plan.rest(n)
        if runs and not retain:
            n.edges = n.saved = None
        for leaf in due.get(n, ()):
            if leaf in defer:
                work.append(partial(run_after, leaf, on_tensors))
            elif targets is None or leaf in targets:
                deposit(grads, leaf, on_tensors)
    grads.update(kept)
    return {e: g for e, g in grads.items() if g is not None}, work


def _useful(order: list[Node], targets: frozenset) -> set[Node]:
    """The nodes from which a target can be reached."""
    useful: set[Node] = set()
    for n in order:
        if any(e in targets or e in useful for e in n.edges or ()):
            useful.add(n)
    return useful


def _pull(n: Node, g, grads, useful, targets, defer, on_tensors: bool, work: list) -> None:
    """One node of the full sweep: its wanted gradients now, the deferred ones into `work`."""
    numbers = n.plan.numbers() if hasattr(n.plan, "numbers") else chosen(n.op, n.plan.mask)
    pairs = [(i, e) for i, e in zip(numbers, n.edges) if useful is None or e in targets or e in useful]
    now = [(i, e) for i, e in pairs if e not in defer]
    later = [(i, e) for i, e in pairs if e in defer]
    if not pairs:
        return
    values = _values(n, on_tensors)
    if not on_tensors and now and WATCH.get() is None and hasattr(n.op, "into_x") and grads[now[0][1]] is not None:
        n.op.into_x(n.o, ours(n.o, grads, now[0][1]), g, *(values[k] for k in n.op.reads["x"]))
        now = []
    for e, d in watched(n, g, _gradients(n, g, values, now, on_tensors)):
        old = grads[e]
        grads[e] = d if old is None else old + d
    if later:
        work.append(lambda: _do_later(n, g, values, later, on_tensors))


def _do_later(n: Node, g, values: dict, pairs: list, on_tensors: bool) -> None:
    """Deferred work: the saved values must still be what they were."""
    check_values(n, values)
    for e, d in watched(n, g, _gradients(n, g, values, pairs, on_tensors)):
        accumulate(e, d, on_tensors)


def _gradients(n: Node, g, values: dict, pairs: list, on_tensors: bool):
    """(edge, gradient) for the chosen (input number, edge) pairs, by the op's rules themselves."""
    if not pairs:
        return
    o = traced(n.o) if on_tensors else n.o
    op = n.op
    if hasattr(n.plan, "gradients"):
        found = n.plan.gradients(n, g, values, on_tensors)
    elif not on_tensors and n.o.narrow and op.precision == "high":
        found = wide_gradients(op, n.o, g, values, [i for i, _ in pairs])
    elif hasattr(op, "vjp"):
        wanted = {i for i, _ in pairs}
        asked = tuple(i in wanted for i in range(max(n.plan.mask.bit_length(), len(op.inputs))))
        found = op.vjp(o, asked, g, *(values[name] for name in op.reads[op.input_name(pairs[0][0])]))
    else:
        found = {
            i: getattr(op, "d" + op.input_name(i))(o, g, *(values[k] for k in op.reads[op.input_name(i)]))
            for i, _ in pairs
        }
    for i, e in pairs:
        d = found[i]
        if d is not None:
            yield e, d if d.shape == e.shape else unbroadcast(o, d, e.shape)


def _values(n: Node, on_tensors: bool) -> dict[str, object]:
    """What the node saved, by name; on request as Tensors with their history again, so that rules can be
    differentiated."""
    if not on_tensors or hasattr(n.plan, "gradients"):
        return dict(zip(n.plan.names, n.saved))
    op = n.op
    edges = {op.input_name(i): e for i, e in zip(chosen(op, n.plan.mask), n.edges)}
    values = {
        name: _as_tensor(value, n if name == "y" else edges.get(name), name)
        for name, value in zip(n.plan.names, n.saved)
    }
    if hasattr(op, "extras") and current().grad:            # mean, rstd …: computed again from what they depend on
        again = op.extras(traced(n.o), *(values[i] for i in op.extras_read))
        values.update({k: v for k, v in zip(op.extra, again) if k in values})
    return values


def _as_tensor(value, edge: Edge | None, name: str):
    if name.endswith("_shape"):
        return value
    if isinstance(value, tuple):
        return tuple(map(Tensor, value))
    if isinstance(edge, Tensor):
        return edge                                          # a leaf; had it been written, the check would have raised
    t = Tensor(value)
    t.node = edge
    return t


# ---- hooks of nodes ------------------------------------------------------------------------------------------------
class Hooked(Plan):
    """A plan whose gradient passes through hooks first.  Nodes without hooks pay nothing for them."""

    __slots__ = ("hooks", "inner", "last")

    def __init__(self, inner: Plan) -> None:
        self.op, self.mask, self.names, self.keep = inner.op, inner.mask, inner.names, inner.keep
        self.hooks: dict[int, Callable] = {}
        self.last: dict[str, Callable] = {}
        self.inner = inner

    def hooked(self, g, on_tensors: bool):
        return run_hooks({**self.hooks, **self.last}, g, on_tensors)

    def pull(self, n: Node, g, grads) -> None:
        self.inner.pull(n, self.hooked(g, False), grads)

    def hand_on(self, n: Node) -> None:
        """The tensor was written and has node `n` now: what it retains is the gradient of its new value."""
        hooked(n).last.update(self.last)
        self.last.clear()

    def __getattr__(self, name: str):
        return getattr(self.inner, name)


def hooked(n: Node) -> Hooked:
    """The node's plan, made one that runs hooks."""
    if not isinstance(n.plan, Hooked):
        n.plan = Hooked(n.plan)
    return n.plan
