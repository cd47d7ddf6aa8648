"""Gradients as users ask for them: backward, grad, hooks, and the modes that switch recording.

After `sweep.py`, which walks the graph; `function.py` and `methods.py` come next.
"""
from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from minigrad.algebra import size_of
from minigrad.anomaly import WATCH, detect_anomaly, is_anomaly_enabled, set_detect_anomaly
from minigrad.aval import Aval
from minigrad.dtype import is_float
from minigrad.errors import DTypeError, GraphError, ShapeError
from minigrad.leaves import LeafHooks, accumulate, deposit, queue_callback, run_hooks, to_the_end
from minigrad.ops.shape import stack
from minigrad.probes import phase, probes_of
from minigrad.rows import Rows
from minigrad.sweep import Edge, hooked, sweep, sweep_fully, sweep_probed
from minigrad.tensor import LEAF, MODE, InferenceTensor, Mode, Node, Tensor, changed, current, is_inference, tick


# ---- leaves -----------------------------------------------------------------------------------
def requires_grad_(x: Tensor, requires_grad: bool = True) -> Tensor:
    """Make a leaf want a gradient, or not."""
    if requires_grad:
        if not is_float(x.dtype):
            raise DTypeError(f"only float tensors can require a gradient, got {x.dtype}. Convert with .float() first")
        if x.node is None:
            if is_inference(x) and current().kind is Tensor:
                raise GraphError(
                    f"requires_grad_: a tensor {x.shape} made in inference_mode can require none outside. Clone it"
                )
            x.node = LEAF
    elif x.node is not None and x.node is not LEAF:
        raise GraphError(
            "requires_grad_(False): only a leaf can be told so; use .detach() for a tensor that an operation made"
        )
    else:
        x.node = None
    return x


# ---- hooks ------------------------------------------------------------------------------------------------------
class RemovableHandle:
    """What registering a hook returns; `remove()`, or the end of a `with`, undoes it, once or more."""

    def __init__(self, hooks: dict, key: int) -> None:
        self._hooks, self._key = hooks, key

    def remove(self) -> None:
        self._hooks.pop(self._key, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *_) -> None:
        self.remove()


def register_hook(x: Tensor, hook: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
    """Call `hook(gradient)` each time x's whole gradient is known; a Tensor it returns takes its place."""
    if x.node is None:
        raise GraphError("register_hook: this tensor requires no gradient; call requires_grad_() first")
    hooks: dict[int, Callable] = _leaf_hooks(x) if x.node is LEAF else hooked(x.node).hooks
    key = tick()
    hooks[key] = hook
    return RemovableHandle(hooks, key)


def _leaf_hooks(x: Tensor) -> LeafHooks:
    if x.hooks is None:
        x.hooks = LeafHooks()
    return cast(LeafHooks, x.hooks)


def register_post_accumulate_grad_hook(x: Tensor, hook: Callable[[Tensor], None]) -> RemovableHandle:
    """Call `hook(x)` each time a backward has added x's whole gradient to `x.grad`: as soon as it is complete, while
    the rest of the walk is still to come.  For leaves; it may write to `x` and to `x.grad`."""
    if x.node is not LEAF:
        raise GraphError("register_post_accumulate_grad_hook: only a leaf that requires a gradient accumulates one; "
                         "this one " + ("requires none" if x.node is None else "was made by an operation"))
    hooks, key = _leaf_hooks(x).after, tick()
    LeafHooks.ever = True
    hooks[key] = hook
    return RemovableHandle(hooks, key)


def retain_grad(x: Tensor) -> None:
    """Keep the gradient of a tensor that is no leaf in its `.grad`."""
    if x.node is None:
        raise GraphError("retain_grad: this tensor requires no gradient")
    if x.node is not LEAF:
        ref = weakref.ref(x)
        hooked(x.node).last["retain"] = lambda g: _retain(ref(), g)


def _retain(x: Tensor | None, g: Tensor) -> None:
    if x is not None:
        x.grad = (
            Tensor(g.o.copy(g.array))
            if x.grad is None and g.node is None and g.o.eager
            else g
            if x.grad is None
            else x.grad + g
        )


# ---- entrances ---------------------------------------------------------------------------------
def _seed(y: Tensor, gradient: Tensor | None, what: str) -> Tensor:
    """The gradient that the walk starts with at `y`."""
    if y.node is None:
        raise GraphError(
            f"{what}: the tensor of shape {y.shape} has no history: it was made under no_grad(), by an operation "
            "without a gradient, or from no tensor that requires one. "
            "Set requires_grad=True on what you differentiate by"
        )
    if gradient is None:
        if size_of(y.shape) != 1:
            raise GraphError(
                f"{what}: y has shape {y.shape}, not one element. Reduce it (y.sum()), or pass gradient= of that shape"
            )
        if not is_float(y.dtype):
            raise GraphError(f"{what}: only float tensors have gradients, got {y.dtype}")
        return Tensor(y.o.full(y.shape, 1) if y.o.eager else Aval(y.shape, y.dtype))
    if not isinstance(gradient, Tensor):
        raise TypeError(f"{what}: gradient must be a Tensor, got {type(gradient).__name__}")
    if gradient.shape != y.shape:
        raise ShapeError(f"{what}: gradient has shape {gradient.shape}, y has {y.shape}")
    if gradient.o.device is not y.o.device:
        raise GraphError(
            f"{what}: gradient is on {gradient.o.device}, y on {y.o.device}. Move it with .to('{y.o.device}')"
        )
    return gradient if gradient.dtype == y.dtype else gradient.to(y.dtype)


def _listed(x, what: str, n: int | None = None) -> list:
    if x is None:
        return [None] * (n or 1)
    if isinstance(x, Tensor):
        return [x]
    if not isinstance(x, Iterable) or hasattr(x, "dtype"):
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
    observers = current().observers
    return create_graph or len(observers) > len(probes_of(observers)) or not all(y.o.eager for y in ys)


def backward(tensors, grad_tensors=None, retain_graph: bool | None = None, create_graph: bool = False, inputs=None, *,
             defer: Iterable[Tensor] = ()) -> list[Callable[[], None]] | None:
    """Add dy/dleaf to the `.grad` of every leaf (or of `inputs` alone).

    Frees the graph unless `retain_graph`.  `create_graph` records the backward itself, for second derivatives.
    `defer=params` leaves their gradients undone and returns the work, a list of functions to call later."""
    if current().observers:
        with phase(current().observers, "backward", tensors):
            return to_the_end(_backward, tensors, grad_tensors, retain_graph, create_graph, inputs, defer)
    return to_the_end(_backward, tensors, grad_tensors, retain_graph, create_graph, inputs, defer)


def _backward(tensors, grad_tensors, retain_graph, create_graph: bool, inputs, defer) -> list | None:
    roots, ys = _roots(tensors, grad_tensors, "backward")
    retain, on_tensors = create_graph if retain_graph is None else retain_graph, _on_tensors(ys, create_graph)
    targets = None if inputs is None else frozenset(_edges_of(inputs, "backward"))
    if targets is not None and not targets:
        raise GraphError("backward: inputs is empty. Leave it out to reach every leaf")
    raw = roots if on_tensors else {e: g.array for e, g in roots.items()}
    work: list[Callable[[], None]] = []
    if on_tensors or defer or targets is not None or WATCH.get() is not None:
        with changed(grad=create_graph):
            grads, work = sweep_fully(
                raw, retain=retain, on_tensors=on_tensors, targets=targets, defer=frozenset(defer), deposits=True
            )
            _deposit(grads, targets, on_tensors)
            for x in _listed(inputs, "backward") if targets else ():
                if x.node is not LEAF and grads.get(x.node) is not None:
                    accumulate(x, grads[x.node], on_tensors)
    else:
        probes = probes_of(current().observers)
        told = probes or LeafHooks.ever
        _deposit(sweep_probed(raw, retain, probes) if told else sweep(raw, retain), None, False)
    return work if defer else None


def _deposit(grads: dict[Edge, object], targets: frozenset | None, on_tensors: bool) -> None:
    """Add what the walk found to the leaves."""
    for leaf in [e for e in grads if e.__class__ is not Node and (targets is None or e in targets)]:
        deposit(grads, leaf, on_tensors)


def _edges_of(inputs, what: str) -> list[Edge]:
    edges = []
    for x in _listed(inputs, what):
        if x.node is None:
            raise GraphError(f"{what}: an input of shape {x.shape} does not require a gradient")
        edges.append(x if x.node is LEAF else x.node)
    return edges


def grad(outputs, inputs, grad_outputs=None, retain_graph: bool | None = None, create_graph: bool = False,
         only_inputs: bool = True, allow_unused: bool | None = None, is_grads_batched: bool = False,
         materialize_grads: bool = False) -> tuple[Tensor | None, ...]:
    """d outputs / d input for each input, leaf or not, without touching `.grad`; only what leads to them is computed.

    An input that took no part raises, or gives None (`allow_unused`) or zeros (`materialize_grads`).
    `is_grads_batched`: gradients of outputs have one more axis in front, and so have the results; one walk for each.
    `only_inputs` is there for PyTorch's sake."""
    if is_grads_batched:
        how = (only_inputs, allow_unused, False, materialize_grads)
        return _batched(outputs, inputs, grad_outputs, retain_graph, create_graph, how)
    roots, ys = _roots(outputs, grad_outputs, "grad")
    edges, xs = _edges_of(inputs, "grad"), _listed(inputs, "grad")
    on_tensors = _on_tensors(ys, create_graph)
    retain = create_graph if retain_graph is None else retain_graph
    with changed(grad=create_graph):
        raw = roots if on_tensors else {e: g.array for e, g in roots.items()}
        grads, _ = sweep_fully(raw, retain=retain, on_tensors=on_tensors, targets=frozenset(edges))
        return tuple(
            _result(x, grads.get(e), i, on_tensors, bool(allow_unused), materialize_grads)
            for i, (x, e) in enumerate(zip(xs, edges))
        )


def _batched(outputs, inputs, grad_outputs, retain_graph, create_graph: bool, how: tuple) -> tuple[Tensor | None, ...]:
    """`grad` for each gradient along their first axis, the results stacked; the graph is freed after the last."""
    gs = _listed(grad_outputs, "grad")
    n = gs[0].shape[0] if isinstance(gs[0], Tensor) and gs[0].ndim else 0
    if not n or any(g is None or g.shape[:1] != (n,) for g in gs):
        raise ShapeError("grad, is_grads_batched: every gradient needs one more axis in front, as long in each")
    keep = create_graph if retain_graph is None else retain_graph
    rows = [grad(outputs, inputs, [g[k] for g in gs], keep or k < n - 1, create_graph, *how) for k in range(n)]
    return tuple(None if column[0] is None else stack(column) for column in zip(*rows))


def _result(x: Tensor, g, i: int, on_tensors: bool, allow_unused: bool, materialize: bool) -> Tensor | None:
    if g is None:
        if materialize:
            return Tensor(x.o.full(x.shape, 0) if x.o.eager else x.aval)
        if not allow_unused:
            raise GraphError(
                f"grad: input {i} of shape {x.shape} took no part in the outputs. "
                "Pass allow_unused=True to get None for it"
            )
        return None
    g = g.spread() if g.__class__ is Rows else g
    if x.node is LEAF and x.hooks:
        g = run_hooks(x.hooks, g, on_tensors)
    return g if on_tensors else Tensor(np.array(g) if isinstance(g, np.ndarray | np.generic) else g)


# ---- modes -------------------------------------------------------------------------------------
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


class inference_mode(changed):
    """`with inference_mode():` or `@inference_mode` – as no_grad, and what is made can never be differentiated.

    It may be read anywhere, but not saved for a backward nor written outside: RuntimeError, where no_grad is silent.
    `inference_mode(False)` switches it off, and recording on, inside another."""

    def __new__(cls, mode=True):
        return cls()(mode) if callable(mode) else super().__new__(cls)

    def __init__(self, mode: bool = True) -> None:
        self.mode = bool(mode)
        super().__init__(grad=not self.mode, kind=InferenceTensor if self.mode else Tensor)

    def _recreate_cm(self):
        return inference_mode(self.mode)


class observe(changed):
    """`with observe(f):` – f(op, inputs, outputs) is called after every operation, forward and backward."""

    def __init__(self, observer: Callable) -> None:
        self.observer = observer
        self.modes: list[Mode] = []
        super().__init__()

    def __enter__(self) -> None:
        self.fields = {"observers": (*current().observers, self.observer)}
        super().__enter__()
        self.modes.append(current())

    def __exit__(self, *error: object) -> None:
        now = current()
        check_observed("observe", self.observer)
        if now is self.modes.pop():
            super().__exit__(*error)
        else:                                                # blocks that end as they began, as in generators
            self.tokens.pop()
            last = max(k for k, o in enumerate(now.observers) if o is self.observer)
            MODE.set(replace(now, observers=now.observers[:last] + now.observers[last + 1:]))


def check_observed(call: str, observer: object) -> None:
    """RuntimeError where a block of `call`, with this observer, ends that this context did not begin."""
    if observer is None or not any(o is observer for o in current().observers):
        raise RuntimeError(f"{call}: it ends where it did not begin. Use it in a `with`, or end it in the thread and "
                           "context that began it")


__all__ = [
    "RemovableHandle",
    "backward",
    "check_observed",
    "detect_anomaly",
    "enable_grad",
    "grad",
    "inference_mode",
    "is_anomaly_enabled",
    "no_grad",
    "observe",
    "queue_callback",
    "register_hook",
    "register_post_accumulate_grad_hook",
    "requires_grad_",
    "retain_grad",
    "set_detect_anomaly",
    "set_grad_enabled",
]
