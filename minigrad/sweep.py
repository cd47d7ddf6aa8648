"""The walk of backward: from the newest node to the oldest, pulling each gradient to where it came from.

Iterative (no recursion limit), deterministic (nodes are numbered as they run, so sorting them is a topological order)
and
releasing (each node lets go of what it saved as it passes).  `sweep` is the hot path; `sweep_fully` does the same with
second derivatives, pruning and deferred work.  After `ops/`; `autograd.py` has the calls users make.
"""
from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from operator import attrgetter

import numpy as np

from minigrad.anomaly import WATCH, watched
from minigrad.aval import Aval
from minigrad.errors import GraphError, HookError
from minigrad.ops.plan import Plan, chosen, ours, unbroadcast, wide_gradients
from minigrad.ops.shape import clone
from minigrad.ops.traced import traced
from minigrad.probes import begin, end, probes_of
from minigrad.rows import Rows
from minigrad.tensor import Node, Tensor, Writes, changed, current, site_text

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


def sweep_probed(roots: dict[Edge, object], retain: bool, probes: tuple) -> dict[Edge, object]:
    """`sweep` whose every step is told to probes."""
    grads, order = reachable(roots)
    grads.update(roots)
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
                defer: frozenset = frozenset()) -> tuple[dict[Edge, object], list[Callable[[], None]]]:
    """The same with everything: on Tensors (second derivatives, meta, observers), only towards `targets`, and with the
    gradients of the leaves in `defer` left as a queue of work.  Returns (gradients, work)."""
    grads, order = reachable(roots, targets)
    grads.update(roots)
    useful = None if targets is None else _useful(order, targets)
    kept: dict[Edge, object] = {}
    work: list[Callable[[], None]] = []
    observers = probes_of(current().observers)
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


# ---- gradients at leaves ---------------------------------------------------------------------------------------------
_SOLE = (lambda g: sys.getrefcount(g))(object())             # what a sole owner looks like to this interpreter


def accumulate(leaf: Tensor, g, on_tensors: bool = False) -> None:
    """leaf.grad += g.  An array that someone else may hold too (an add gives both inputs the same g) is copied."""
    if g.__class__ is Rows or leaf.grad.__class__ is Rows:
        g = _with_rows(leaf, g)
        if g is None:
            return
    if leaf.hooks:
        g = run_hooks(leaf.hooks, g, on_tensors)
    old = leaf.grad
    if old is not None:
        _check_grad(leaf, old)
        if not on_tensors and old.node is None and old.o.eager:
            old.array += g
            Writes.note(old.array)
            return
    if on_tensors:
        g = clone(g) if old is None else g
    else:
        shared = sys.getrefcount(g) > _SOLE or isinstance(g, np.generic) or getattr(g, "base", None) is not None
        g = Tensor(leaf.o.copy(np.asarray(g) if isinstance(g, np.generic) else g) if shared else g)
    leaf.grad = g if old is None else old + g


def _with_rows(leaf, g):
    """Rows stay rows beside rows, or alone, in `leaf.grad` (then None); a hook or a dense one makes both dense."""
    if g.__class__ is Rows and not leaf.hooks and (leaf.grad is None or leaf.grad.__class__ is Rows):
        leaf.grad = g.owned() if leaf.grad is None else leaf.grad + g
        return None
    if leaf.grad.__class__ is Rows:
        leaf.grad = leaf.grad.to_dense()
    return g.spread() if g.__class__ is Rows else g


def _check_grad(leaf: Tensor, old) -> None:
    """Refuse a `.grad` that somebody set to what cannot be a gradient of this leaf."""
    if not isinstance(old, Tensor) or old.o is not leaf.o or old.shape != leaf.shape:
        told = f"{old.o}{list(old.shape)}" if isinstance(old, Tensor) else repr(old)
        raise GraphError(
            f"backward: the .grad of this leaf is {told}, the leaf is {leaf.o}{list(leaf.shape)}. "
            "Set .grad to None or to a tensor like the leaf"
        )


def run_hooks(hooks: dict, g, on_tensors: bool):
    """Pass a gradient through hooks in the order they were registered; what one returns replaces it."""
    if not on_tensors:
        with changed(grad=False):
            return run_hooks(hooks, Tensor(g), True).array
    t = g
    for hook in tuple(hooks.values()):
        got = hook(t)
        if got is not None:
            if not isinstance(got, Tensor) or got.shape != t.shape or got.o is not t.o:
                told = f"{got.o}{list(got.shape)}" if isinstance(got, Tensor) else type(got).__name__
                raise HookError(f"hook: returned {told}, "
                                f"expected None or a tensor like the gradient, {t.o}{list(t.shape)}")
            t = got
    return t


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
