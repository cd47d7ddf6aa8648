"""Function: an operation of the user's own, with the backward written by hand, as `torch.autograd.Function`.

A call is one node (the hub); with several outputs each has a small node that hands its gradient to the hub.
After `saved.py`.
"""
from __future__ import annotations

from functools import lru_cache
from typing import Any

from minigrad.errors import GraphError, ShapeError
from minigrad.inplace import check_writable, rewrite_base
from minigrad.ops.plan import Plan, unbroadcast
from minigrad.ops.traced import traced
from minigrad.saved import innermost
from minigrad.tensor import (
    LEAF,
    Node,
    Tensor,
    View,
    Writes,
    call_site,
    changed,
    check_saved,
    current,
    tick,
)


class FunctionContext:
    """`ctx` in forward and backward: what the one leaves for the other."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self._kept: tuple[Tensor | None, ...] = ()
        self._read: tuple[Tensor | None, ...] | None = None
        self._constant: tuple[Tensor, ...] = ()
        self._dirty: tuple[Tensor, ...] = ()
        self._materialize = True

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep tensors for backward; a change of one in place after this is noticed there."""
        for t in tensors:
            if t is not None and not isinstance(t, Tensor):
                raise TypeError(
                    f"save_for_backward: only tensors, got {type(t).__name__}; "
                    "keep anything else as an attribute of ctx"
                )
        self._kept = tensors

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        if self._read is None:
            raise GraphError(
                "saved_tensors: to be read inside backward, while the graph is there. "
                "Pass retain_graph=True to go twice"
            )
        return self._read

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """These outputs have no gradient."""
        self._constant = tensors

    def mark_dirty(self, *tensors: Tensor) -> None:
        """These inputs were changed in place and are returned."""
        self._dirty = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Whether a missing gradient of an output reaches backward as zeros (True) or as None."""
        self._materialize = value


class Parts(dict):
    """The gradients of several outputs, by number, on their way to the hub."""

    shape = "parts"

    def __add__(self, other: Parts) -> Parts:
        return Parts(
            {
                k: self[k] + other[k] if k in self and k in other else self.get(k, other.get(k))
                for k in {**self, **other}
            }
        )


class _Named:
    """Stands for the op of a custom node in pictures and messages."""

    reads: dict = {}

    def __init__(self, label: str) -> None:
        self.label = label

    def __repr__(self) -> str:
        return self.label


@lru_cache(1024)
def _named(label: str) -> _Named:
    """One of a class of that name, since a node is called by the class of its op."""
    return type(label, (_Named,), {})(label)


class CustomPlan(Plan):
    """A plan whose `pull` is a method: as an attribute it would be a cycle, and outlive its graph until the next
    collection."""

    __slots__ = ()

    def __init__(self, name: str, mask: int, names: tuple[str, ...]) -> None:
        self.op, self.mask, self.names, self.keep = _named(name), mask, names, None

    def pull(self, n: Node, g, grads) -> None:
        raise NotImplementedError


class OutputPlan(CustomPlan):
    """The plan of output number `k` of a hub: hand the gradient on."""

    __slots__ = ("k",)

    def __init__(self, name: str, k: int) -> None:
        super().__init__(f"{name}[{k}]", 1, ())
        self.k = k

    def numbers(self) -> list[int]:
        return [0]

    def gradients(self, n: Node, g, values, on_tensors: bool) -> dict:
        return {0: Parts({self.k: g})}

    def pull(self, n: Node, g, grads) -> None:
        (hub,) = n.edges
        grads[hub] = Parts({self.k: g}) if grads[hub] is None else grads[hub] + Parts({self.k: g})


class FunctionPlan(CustomPlan):
    """The plan of one call of a Function: runs the user's backward."""

    __slots__ = ("cls", "ctx", "inputs", "outputs", "origins")

    def __init__(self, cls: type[Function], ctx: FunctionContext, args: tuple, outputs: list) -> None:
        mask = sum(1 << i for i, need in enumerate(ctx.needs_input_grad) if need)
        super().__init__(cls.__name__, mask, tuple(f"saved {i}" for i in range(len(ctx._kept))))
        self.cls, self.ctx = cls, ctx
        self.inputs = [(a.shape, a.o) if isinstance(a, Tensor) else None for a in args]
        self.outputs = [(y.aval, y.o) if isinstance(y, Tensor) else None for y in outputs]

    def numbers(self) -> list[int]:
        return [i for i, need in enumerate(self.ctx.needs_input_grad) if need]

    def gradients(self, n: Node, g, values, on_tensors: bool) -> dict:
        """{input number: gradient} from the user's backward, checked."""
        self.ctx._read = tuple(_restored(n, array, origin) for array, origin in zip(n.saved, self.origins))
        try:
            with changed(grad=current().grad and on_tensors):
                got = self.cls.backward(self.ctx, *self._upstream(g, on_tensors))
        finally:
            self.ctx._read = None
        got = got if isinstance(got, tuple) else (got,)
        name = self.cls.__name__
        if len(got) > len(self.inputs) and all(x is None for x in got[len(self.inputs):]):
            got = got[:len(self.inputs)]
        if len(got) != len(self.inputs):
            raise GraphError(
                f"{name}.backward returned {len(got)} gradients, but forward takes {len(self.inputs)} inputs. "
                "Return one for each, None for what is no tensor"
            )
        return {i: self._fitted(i, d, on_tensors) for i, d in enumerate(got)}

    def _upstream(self, g, on_tensors: bool) -> list:
        parts = g if isinstance(g, Parts) else {0: g}
        wrap = (lambda v: v) if on_tensors else Tensor
        missing = lambda a, o: (Tensor(o.full(a.shape, 0)) if o.eager else Tensor(a)) if self.ctx._materialize else None  # noqa: E731
        ups = iter([wrap(parts[k]) if k in parts else missing(*out)
                    for k, out in enumerate(out for out in self.outputs if out is not None)])
        return [None if out is None else next(ups) for out in self.outputs]   # what is no tensor has no gradient

    def _fitted(self, i: int, d, on_tensors: bool):
        if d is None:
            return None
        if not isinstance(d, Tensor) or self.inputs[i] is None:
            raise GraphError(
                f"{self.cls.__name__}.backward: gradient {i} is a {type(d).__name__} for an input that is "
                f"{'no tensor; return None' if self.inputs[i] is None else 'a tensor; return a Tensor or None'}"
            )
        shape, o = self.inputs[i]
        if not self.ctx.needs_input_grad[i]:
            return None
        if d.o.device is not o.device:
            raise GraphError(f"{self.cls.__name__}.backward: gradient {i} is on {d.o.device}, its input on {o.device}")
        if d.shape != shape:
            try:
                d = unbroadcast(traced(d.o), d, shape)
            except (ValueError, IndexError):
                pass
            if d.shape != shape:
                raise ShapeError(
                    f"{self.cls.__name__}.backward: gradient {i} has shape {d.shape}, its input has {shape}"
                )
        d = d if d.dtype == o.dtype else d.to(o.dtype)
        return d if on_tensors else d.array

    def pull(self, n: Node, g, grads) -> None:
        found = self.gradients(n, g, None, False)
        for i, e in zip(self.numbers(), n.edges):
            d, old = found[i], grads[e]
            if d is not None:
                grads[e] = d if old is None else old + d


def _restored(n: Node, array, origin) -> Tensor | None:
    """A saved tensor with its history: of an input (an edge), of an output (the node itself), or the constant it
    was."""
    if array is None:
        return None
    if isinstance(origin, Tensor):
        return origin
    t = Tensor(array)
    if isinstance(origin, tuple):
        t.node = n if n.shape != Parts.shape else _output_node(origin[1], n, t)
    elif origin is not None:
        t.node = n.edges[origin]
    return t.node if isinstance(t.node, Tensor) else t


class Function:
    """Subclass it with static `forward(ctx, *inputs)` and `backward(ctx, *gradients)`; call it with
    `.apply(*inputs)`."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        raise NotImplementedError("a Function needs a static method forward(ctx, *inputs)")

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise NotImplementedError("a Function needs a static method backward(ctx, *gradients) to be differentiated")

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Run forward outside the graph and record the call as one node."""
        ctx = FunctionContext(tuple(isinstance(a, Tensor) and a.requires_grad and current().grad for a in args))
        with changed(grad=False):
            if hasattr(cls, "setup_context"):
                result = cls.forward(*args)
                cls.setup_context(ctx, args, result)
            else:
                result = cls.forward(ctx, *args)
        outs = list(result) if isinstance(result, tuple | list) else [result]
        inputs = [a for a in args if isinstance(a, Tensor)]
        ys = [_own(y, inputs, ctx._dirty) for y in outs]
        for d in ctx._dirty:
            check_writable(d, d.shape, f"{cls.__name__}, mark_dirty")
            Writes.note(d.array)
        if any(ctx.needs_input_grad):
            _record(cls, ctx, args, ys, outs)
        return tuple(ys) if isinstance(result, tuple | list) else ys[0]


def _own(y, inputs: list, dirty: tuple):
    """An output as a tensor of its own, unless it is no tensor or an input changed in place."""
    if not isinstance(y, Tensor) or any(y is d for d in dirty):
        return y
    return Tensor(y.array) if any(y is x for x in inputs) or y.node is not None or type(y) is not Tensor else y


def _record(cls, ctx, args, ys, outs) -> None:
    """One node for the call, and one more for each output if there are several."""
    for t in ctx._kept:
        if t is not None:
            check_saved(t, cls.__name__)
    differentiable = [
        y
        for y, out in zip(ys, outs)
        if isinstance(y, Tensor) and y.o.floating and not any(out is c for c in ctx._constant)
    ]
    if not differentiable:
        return
    outputs = [y for y in ys if isinstance(y, Tensor)]
    now, n = current(), object.__new__(Node)
    n.plan = FunctionPlan(cls, ctx, args, ys)
    n.o, n.seq, n.scope = differentiable[0].o, tick(), now.scope
    n.shape = differentiable[0].shape if len(outputs) == 1 else Parts.shape
    n.code, n.lasti = call_site(3) if now.sites else (None, 0)
    needing = [a for a, need in zip(args, ctx.needs_input_grad) if need]
    n.edges = tuple(a if a.node is LEAF else a.node for a in needing)
    n.saved = tuple(None if t is None else t.array for t in ctx._kept)
    n.plan.origins = [_origin(t, needing, [y for y in outs if isinstance(y, Tensor)], ctx._dirty) for t in ctx._kept]
    ctx._kept = ()
    saver = innermost(now.observers)
    if saver is not None and n.saved:
        saver.take(n, args)
    for k, y in enumerate(outputs):
        if any(y is d for d in differentiable):
            _connect(y, n if len(outputs) == 1 else _output_node(k, n, y), any(y is d for d in ctx._dirty))


def _connect(y: Tensor, node: Node, dirty: bool) -> None:
    """Give an output its history; one that was written in place passes it on to its base or its views."""
    if dirty and isinstance(y, View):
        out = Tensor(y.array)
        out.node = node
        rewrite_base(y, out)
        return
    y.node = node
    if dirty and y.family is not None:
        y.family.writes += 1


def _origin(t, needing: list, outputs: list, dirty: tuple):
    """Where a saved tensor comes from: ("output", k), the number of an edge, or the tensor itself if it has a
    history."""
    for i, a in enumerate(needing):
        if t is a and not any(t is d for d in dirty):
            return i
    for k, y in enumerate(outputs):
        if t is y:
            return "output", k
    return t if t is not None and t.node is not None else None


def _output_node(k: int, hub: Node, y: Tensor) -> Node:
    n = object.__new__(Node)
    n.plan, n.o, n.edges, n.saved, n.shape, n.seq = OutputPlan(repr(hub.op), k), y.o, (hub,), (), y.shape, tick()
    n.code, n.lasti, n.scope = hub.code, hub.lasti, hub.scope
    return n


__all__ = ["Function", "FunctionContext"]
