"""Backward: walk the recorded nodes from the newest to the oldest, pulling each gradient to where it came from.

Iterative (no recursion limit), deterministic (nodes are numbered as they run, so sorting them is a topological order) and
releasing (each node lets go of what it saved as it passes).  After `ops/`; `function.py` and `methods.py` come next.
"""
from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

import numpy as np

from minigrad.algebra import size_of
from minigrad.aval import Aval
from minigrad.dtype import is_float
from minigrad.errors import GraphError, ShapeError
from minigrad.ops.plan import Plan, chosen, unbroadcast
from minigrad.ops.shape import clone
from minigrad.ops.traced import traced
from minigrad.tensor import LEAF, Node, Tensor, View, Writes, apply, changed, current, site_text

_by_seq = attrgetter("seq")
Edge = Node | Tensor


# ---- the walk --------------------------------------------------------------------------------------------------------
def reachable(roots: Iterable[Edge]) -> tuple[dict[Edge, object], list[Node]]:
    """({node or leaf: None}, nodes oldest first) for everything the roots depend on."""
    grads: dict[Edge, object] = dict.fromkeys(roots)
    order = [r for r in grads if r.__class__ is Node]
    for n in order:
        if n.edges is None:
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


def check_unwritten(n: Node) -> None:
    """Raise if a value that `n` saved was written after `n` was made."""
    for name, value in zip(n.plan.names, n.saved):
        for array in value if isinstance(value, tuple) else (value,):
            if not hasattr(array, "dtype") or array.__class__ is Aval or isinstance(array, np.generic):
                continue
            seq, site, _ = Writes.of(array)
            if seq > n.seq:
                raise GraphError(f"backward of {n.op}: its saved value `{name}` {array.shape} was changed in place\n"
                                 f"at {site_text(*site)}\nafter the operation ran at {n.made_at}.\n"
                                 "Write to a clone(), or move the write after backward().")


def sweep_fully(roots: dict[Edge, object], *, retain: bool, on_tensors: bool, targets: frozenset | None = None,
                defer: frozenset = frozenset()) -> tuple[dict[Edge, object], list[Callable[[], None]]]:
    """The same with everything: on Tensors (second derivatives, meta, observers), only towards `targets`, and with the
    gradients of the leaves in `defer` left as a queue of work.  Returns (gradients, work)."""
    grads, order = reachable(roots)
    grads.update(roots)
    useful = None if targets is None else _useful(order, targets)
    kept: dict[Edge, object] = {}
    work: list[Callable[[], None]] = []
    while order:
        n = order.pop()
        g = grads.pop(n)
        if g is not None and (useful is None or n in useful or n in targets):
            if Writes.last > n.seq:
                check_unwritten(n)
            g = n.plan.hooked(g, on_tensors) if isinstance(n.plan, Hooked) else g
            if targets is not None and n in targets:
                kept[n] = g
            _pull(n, g, grads, useful, targets, defer, on_tensors, work)
        if not retain:
            n.edges = n.saved = None
    grads.update(kept)
    return {e: g for e, g in grads.items() if g is not None}, work


def _useful(order: list[Node], targets: frozenset) -> set[Node]:
    """The nodes from which a target can be reached."""
    useful: set[Node] = set()
    for n in order:
        if any(e in targets or e in useful for e in n.edges):
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
    for e, d in _gradients(n, g, values, now, on_tensors):
        old = grads[e]
        grads[e] = d if old is None else old + d
    if later:
        work.append(lambda: [accumulate(e, d, on_tensors) for e, d in _gradients(n, g, values, later, on_tensors)])


def _gradients(n: Node, g, values: dict, pairs: list, on_tensors: bool):
    """(edge, gradient) for the chosen (input number, edge) pairs, by the op's rules themselves."""
    if not pairs:
        return
    o = traced(n.o) if on_tensors else n.o
    op = n.op
    if hasattr(n.plan, "gradients"):
        found = n.plan.gradients(n, g, values, on_tensors)
    elif hasattr(op, "vjp"):
        wanted = {i for i, _ in pairs}
        asked = tuple(i in wanted for i in range(max(n.plan.mask.bit_length(), len(op.inputs))))
        found = op.vjp(o, asked, g, *(values[name] for name in op.reads[op.input_name(pairs[0][0])]))
    else:
        found = {i: getattr(op, "d" + op.input_name(i))(o, g, *(values[k] for k in op.reads[op.input_name(i)])) for i, _ in pairs}
    for i, e in pairs:
        d = found[i]
        if d is not None:
            yield e, d if d.shape == e.shape else unbroadcast(o, d, e.shape)


def _values(n: Node, on_tensors: bool) -> dict[str, object]:
    """What the node saved, by name; on request as Tensors with their history again, so that rules can be differentiated."""
    if not on_tensors or hasattr(n.plan, "gradients"):
        return dict(zip(n.plan.names, n.saved))
    op = n.op
    edges = {op.input_name(i): e for i, e in zip(chosen(op, n.plan.mask), n.edges)}
    values = {name: _as_tensor(value, n if name == "y" else edges.get(name), name) for name, value in zip(n.plan.names, n.saved)}
    if hasattr(op, "extras") and current().grad:            # mean, rstd …: computed again from what they depend on
        again = op.extras(traced(n.o), *(values[i] for i in op.extras_read))
        values.update({k: v for k, v in zip(op.extra, again) if k in values})
    return values


def _as_tensor(value, edge: Edge | None, name: str):
    if name.endswith("_shape"):
        return value
    if isinstance(value, tuple):
        return tuple(map(Tensor, value))
    if isinstance(edge, Tensor) and edge.array is value:
        return edge
    t = Tensor(value)
    if isinstance(edge, Tensor):
        return edge if edge.shape == t.shape else t
    t.node = edge
    return t


# ---- gradients at leaves ---------------------------------------------------------------------------------------------
_SOLE = (lambda g: sys.getrefcount(g))(object())             # what a sole owner looks like to this interpreter


def accumulate(leaf: Tensor, g, on_tensors: bool = False) -> None:
    """leaf.grad += g.  An array that someone else may hold too (an add gives both inputs the same g) is copied."""
    if leaf.hooks:
        g = run_hooks(leaf.hooks, g, on_tensors)
    if not on_tensors:
        old = leaf.grad
        if old is not None and old.node is None and old.dtype == g.dtype and old.shape == g.shape and old.o.eager:
            old.array[...] = old.array + g if old.ndim == 0 else np.add(old.array, g)
            Writes.note(old.array)
            return
        shared = sys.getrefcount(g) > _SOLE or isinstance(g, np.generic) or getattr(g, "base", None) is not None
        g = Tensor(leaf.o.copy(np.asarray(g) if isinstance(g, np.generic) else g) if shared else g)
    elif leaf.grad is None:
        g = clone(g)
    if leaf.grad is not None and (leaf.grad.shape, leaf.grad.dtype) != (leaf.shape, leaf.dtype):
        raise GraphError(f"backward: the .grad of this leaf is {leaf.grad.dtype}{list(leaf.grad.shape)}, the leaf is "
                         f"{leaf.dtype}{list(leaf.shape)}. Set .grad to None or to a tensor like the leaf")
    leaf.grad = g if leaf.grad is None else leaf.grad + g


def run_hooks(hooks: dict, g, on_tensors: bool):
    """Pass a gradient through hooks in the order they were registered; what one returns replaces it."""
    if not on_tensors:
        with changed(grad=False):
            return run_hooks(hooks, Tensor(g), True).array
    t = g
    for hook in tuple(hooks.values()):
        got = hook(t)
        if got is not None:
            if not isinstance(got, Tensor) or got.shape != t.shape:
                raise ShapeError(f"hook: returned {type(got).__name__} {getattr(got, 'shape', '')}, expected a Tensor of shape {t.shape} or None")
            t = got
    return t


class Hooked(Plan):
    """A plan whose gradient passes through hooks first.  Nodes without hooks pay nothing for them."""

    __slots__ = ("hooks", "inner", "last")

    def __init__(self, inner: Plan) -> None:
        self.op, self.mask, self.names, self.keep = inner.op, inner.mask, inner.names, inner.keep
        self.hooks, self.inner, self.last = {}, inner, {}

    def hooked(self, g, on_tensors: bool):
        return run_hooks({**self.hooks, **self.last}, g, on_tensors)

    def pull(self, n: Node, g, grads) -> None:
        self.inner.pull(n, self.hooked(g, False), grads)

    def hand_on(self, n: Node) -> None:
        """The tensor was written and has node `n` now: what it retains is the gradient of its new value."""
        _hooked(n).last.update(self.last)
        self.last.clear()

    def __getattr__(self, name: str):
        return getattr(self.inner, name)


class RemovableHandle:
    """What registering a hook returns; `remove()` undoes it, once or more."""

    def __init__(self, hooks: dict, key: int) -> None:
        self._hooks, self._key = hooks, key

    def remove(self) -> None:
        self._hooks.pop(self._key, None)


def register_hook(x: Tensor, hook: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
    """Call `hook(gradient)` each time x's whole gradient is known; a Tensor it returns takes its place."""
    if x.node is None:
        raise GraphError("register_hook: this tensor requires no gradient; call requires_grad_() first")
    if x.node is LEAF:
        x.hooks = {} if x.hooks is None else x.hooks
        hooks = x.hooks
    else:
        hooks = _hooked(x.node).hooks
    key = max(hooks, default=0) + 1
    hooks[key] = hook
    return RemovableHandle(hooks, key)


def _hooked(n: Node) -> Hooked:
    if not isinstance(n.plan, Hooked):
        n.plan = Hooked(n.plan)
    return n.plan


def retain_grad(x: Tensor) -> None:
    """Keep the gradient of a tensor that is no leaf in its `.grad`."""
    if x.node is None:
        raise GraphError("retain_grad: this tensor requires no gradient")
    if x.node is not LEAF:
        import weakref
        ref = weakref.ref(x)
        _hooked(x.node).last["retain"] = lambda g: _retain(ref(), g)


def _retain(x: Tensor | None, g: Tensor) -> None:
    if x is not None:
        x.grad = Tensor(g.o.copy(g.array)) if x.grad is None and g.node is None and g.o.eager else g if x.grad is None else x.grad + g


# ---- entrances --------------------------------------------------------------------------------------------------------
def _seed(y: Tensor, gradient: Tensor | None, what: str) -> Tensor:
    """The gradient that the walk starts with at `y`."""
    if y.node is None:
        raise GraphError(f"{what}: the tensor of shape {y.shape} has no history: it was made under no_grad(), by an operation without "
                         "a gradient, or from no tensor that requires one. Set requires_grad=True on what you differentiate by")
    if gradient is None:
        if size_of(y.shape) != 1:
            raise GraphError(f"{what}: y has shape {y.shape}, not one element. Reduce it (y.sum()), or pass gradient= of that shape")
        if not is_float(y.dtype):
            raise GraphError(f"{what}: only float tensors have gradients, got {y.dtype}")
        return Tensor(y.o.full(y.shape, 1) if y.o.eager else Aval(y.shape, y.dtype))
    if not isinstance(gradient, Tensor):
        raise TypeError(f"{what}: gradient must be a Tensor, got {type(gradient).__name__}")
    if gradient.shape != y.shape:
        raise ShapeError(f"{what}: gradient has shape {gradient.shape}, y has {y.shape}")
    if gradient.o.device is not y.o.device:
        raise GraphError(f"{what}: gradient is on {gradient.o.device}, y on {y.o.device}. Move it with .to('{y.o.device}')")
    return gradient if gradient.dtype == y.dtype else gradient.to(y.dtype)


def _listed(x, what: str, n: int | None = None) -> list:
    if x is None:
        return [None] * (n or 1)
    if isinstance(x, Tensor):
        return [x]
    if not isinstance(x, Iterable):
        raise TypeError(f"{what}: expected a sequence of Tensors or a Tensor, got {type(x).__name__}")
    return list(x)


def _roots(ys, gradients, what: str) -> tuple[dict[Edge, Tensor], list[Tensor]]:
    ys = _listed(ys, what)
    gs = _listed(gradients, what, len(ys))
    if len(gs) != len(ys):
        raise ValueError(f"{what}: {len(ys)} outputs and {len(gs)} gradients")
    roots: dict[Edge, Tensor] = {}
    for y, g in zip(ys, gs):
        seed = _seed(y, g, what)
        e = y if y.node is LEAF else y.node
        roots[e] = seed if e not in roots else roots[e] + seed
    return roots, ys


def _on_tensors(ys: Sequence[Tensor], create_graph: bool) -> bool:
    return create_graph or bool(current().observers) or not all(y.o.eager for y in ys)


def backward(tensors, grad_tensors=None, retain_graph: bool | None = None, create_graph: bool = False, inputs=None, *,
             defer: Iterable[Tensor] = ()) -> list[Callable[[], None]] | None:
    """Add dy/dleaf to the `.grad` of every leaf (or of `inputs` alone).

    Frees the graph unless `retain_graph`.  `create_graph` records the backward itself, for second derivatives.
    `defer=params` leaves their gradients undone and returns the work, a list of functions to call later."""
    roots, ys = _roots(tensors, grad_tensors, "backward")
    retain, on_tensors = create_graph if retain_graph is None else retain_graph, _on_tensors(ys, create_graph)
    targets = None if inputs is None else frozenset(_edges_of(inputs, "backward"))
    raw, work = (roots if on_tensors else {e: g.array for e, g in roots.items()}), []
    if on_tensors or defer or targets is not None:
        with changed(grad=create_graph):
            grads, work = sweep_fully(raw, retain=retain, on_tensors=on_tensors, targets=targets, defer=frozenset(defer))
            _deposit(grads, targets, on_tensors)
            for x in _listed(inputs, "backward") if targets else ():
                if x.node is not LEAF and grads.get(x.node) is not None:
                    accumulate(x, grads[x.node], on_tensors)
    else:
        _deposit(sweep(raw, retain), None, False)
    return work if defer else None


def _deposit(grads: dict[Edge, object], targets: frozenset | None, on_tensors: bool) -> None:
    """Add what the walk found to the leaves."""
    for leaf in [e for e in grads if e.__class__ is not Node and (targets is None or e in targets)]:
        g = grads[leaf]
        if g is not None:
            del g
            accumulate(leaf, grads.pop(leaf), on_tensors)


def _edges_of(inputs, what: str) -> list[Edge]:
    edges = []
    for x in _listed(inputs, what):
        if x.node is None:
            raise GraphError(f"{what}: an input of shape {x.shape} does not require a gradient")
        edges.append(x if x.node is LEAF else x.node)
    return edges


def grad(outputs, inputs, grad_outputs=None, retain_graph: bool | None = None, create_graph: bool = False,
         allow_unused: bool = False, materialize_grads: bool = False) -> tuple[Tensor | None, ...]:
    """d outputs / d input for each input, leaf or not, without touching `.grad`; only what leads to them is computed.

    An input that took no part raises, or gives None (`allow_unused`) or zeros (`materialize_grads`)."""
    roots, ys = _roots(outputs, grad_outputs, "grad")
    edges, xs = _edges_of(inputs, "grad"), _listed(inputs, "grad")
    on_tensors = _on_tensors(ys, create_graph)
    retain = create_graph if retain_graph is None else retain_graph
    with changed(grad=create_graph):
        raw = roots if on_tensors else {e: g.array for e, g in roots.items()}
        grads, _ = sweep_fully(raw, retain=retain, on_tensors=on_tensors, targets=frozenset(edges))
        return tuple(_result(x, grads.get(e), i, on_tensors, allow_unused, materialize_grads) for i, (x, e) in enumerate(zip(xs, edges)))


def _result(x: Tensor, g, i: int, on_tensors: bool, allow_unused: bool, materialize: bool) -> Tensor | None:
    if g is None:
        if materialize:
            return Tensor(x.o.full(x.shape, 0) if x.o.eager else x.aval)
        if not allow_unused:
            raise GraphError(f"grad: input {i} of shape {x.shape} took no part in the outputs. Pass allow_unused=True to get None for it")
        return None
    if x.node is LEAF and x.hooks:
        g = run_hooks(x.hooks, g, on_tensors)
    return g if on_tensors else Tensor(np.array(g) if isinstance(g, np.ndarray | np.generic) else g)


# ---- modes ----------------------------------------------------------------------------------------------------------------
class _Switch(changed):
    """A mode change that also decorates functions without being called: `@no_grad`."""

    def __new__(cls, function=None, **fields):
        if callable(function):
            return cls()(function)
        return super().__new__(cls)


class no_grad(_Switch):
    """`with no_grad():` or `@no_grad` – nothing is recorded."""

    def __init__(self, function=None) -> None:
        super().__init__(grad=False)

    def _recreate_cm(self):
        return type(self)()


class enable_grad(_Switch):
    """`with enable_grad():` – recording is on again inside a no_grad."""

    def __init__(self, function=None) -> None:
        super().__init__(grad=True)

    def _recreate_cm(self):
        return type(self)()


class set_grad_enabled(changed):
    """Recording on or off: from here on when called, until the end of the block in a `with`."""

    def __init__(self, mode: bool) -> None:
        super().__init__(grad=bool(mode))
        super().__enter__()

    def __enter__(self) -> None:
        return None

    def __call__(self, function):
        self.__exit__()
        return changed(**self.fields)(function)


class observe(changed):
    """`with observe(f):` – f(op, inputs, outputs) is called after every operation, forward and backward."""

    def __init__(self, observer: Callable) -> None:
        self.observer = observer
        super().__init__()

    def __enter__(self) -> None:
        self.fields = {"observers": (*current().observers, self.observer)}
        super().__enter__()


__all__ = ["View", "apply", "backward", "enable_grad", "grad", "no_grad", "observe", "register_hook", "retain_grad", "set_grad_enabled"]
