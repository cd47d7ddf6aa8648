"""Bytes of activations while a step runs, and what one layer of a chain takes: `lifetimes.py` plans with these.

Activations are all arrays that are made meanwhile but the gradients of leaves, which any plan needs alike.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from minigrad.algebra import algebra_of
from minigrad.autograd import observe
from minigrad.aval import aval_of
from minigrad.checkpoint import _replayed, _streams, nodes_since
from minigrad.function import Function
from minigrad.memory.handler import Watch, watched
from minigrad.nn.module import Module
from minigrad.ops.op import Op
from minigrad.ops.shape import clone
from minigrad.probes import Probe, probes_of
from minigrad.sweep import sweep_probed
from minigrad.tensor import LEAF, Node, Tensor, changed, current, tick


class Meter(Probe):
    """`now` and `peak`: bytes of activations since the start; `flops` of the ops that ran.  For plain backwards."""

    def __init__(self, watch: Watch, but: Tensor | None = None) -> None:
        self.watch, self.but, self.start, self.peak, self.flops = watch, but, watch.live, 0, 0
        self.gradients: dict[int, int] = {}                  # of leaves: bytes
        self.total = 0                                       # of these
        self.depositing = False

    @property
    def now(self) -> int:
        return self.watch.live - self.start - self.total

    def look(self) -> None:
        if not self.depositing:
            self.peak = max(self.peak, self.watch.peak - self.start - self.total)
        self.watch.reset_peak()

    def reset(self) -> None:
        self.watch.reset_peak()
        self.peak = self.now

    def begin(self, kind: str, thing: Any, inputs: tuple) -> None:
        self.look()
        self.depositing = kind == "leaf"

    def end(self, kind: str, thing: Any, outputs: tuple) -> None:
        self.look()
        if kind == "pull":
            for e, g in zip(thing.edges, outputs):
                if e.__class__ is not Node and e is not self.but:
                    nbytes = getattr(g, "nbytes", 0)
                    self.total += nbytes - self.gradients.get(id(e), 0)
                    self.gradients[id(e)] = nbytes
        elif kind == "op" and isinstance(thing, Op):
            self.flops += thing.flops(outputs[0].aval, *self._avals)

    def __call__(self, op: Any, xs: tuple, ys: tuple) -> None:
        self._avals = [aval_of(x.array) for x in xs]
        self.end("op", op, ys)


@contextmanager
def activations(but: Tensor | None = None) -> Iterator[Meter]:
    """Measure the activations of what runs in this block: a forward, and a plain backward.  `but`: a leaf whose
    gradient is an activation too.  Needs numba."""
    with watched() as watch:
        meter = Meter(watch, but)
        with observe(meter):
            yield meter
            meter.look()


# ---- a chain, layer by layer ---------------------------------------------------------------------
@dataclass(frozen=True)
class LayerCost:
    """What one layer of a chain takes, in bytes.

    `output`: its result.  `own`: what its graph keeps besides its input and its result, and whether it keeps these two.
    `passes`: the result is the input's memory.  `forward`, `backward`: the most that is alive meanwhile beyond what is
    kept, the gradient that comes in included.  `gradient`: that one.  `flops`: of its forward."""

    name: str
    output: int
    own: int
    keeps_input: bool
    keeps_output: bool
    passes: bool
    forward: int
    backward: int
    gradient: int
    flops: int


class _Seed(Function):
    """A number whose gradient is a new array like `y`, as the layer after it would give."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        ctx.like = y.o, y.shape
        return Tensor(y.o.full((), 0))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        o, shape = ctx.like
        return Tensor(o.full(shape, 0))


def chain_costs(layers: Sequence[Callable], x: Tensor) -> list[LayerCost]:
    """Run each layer once, forward and backward, with what the one before gave; one layer's graph at a time is alive.

    Buffers of modules (running means), random streams and gradients are afterwards what they were; hooks of modules are
    called.  A parameter of several layers needs room for the sum of its gradients."""
    costs, uses = [], []
    buffers = [b for layer in layers if isinstance(layer, Module) for b in layer.buffers() if b.o.eager]
    before = [(b.array, b.o.copy(b.array)) for b in buffers]
    try:
        with _replayed([(g, g.get_state()) for g in _streams((), {})]), changed(grad=True), watched() as watch:
            h = Tensor(x.o.copy(x.array), x.requires_grad)   # a layer may write it
            for k, layer in enumerate(layers):
                cost, h, leaves = _measured(layer, k, _as_result(h), watch)
                costs.append(cost)
                uses.append(leaves)
    finally:
        for array, values in before:
            array[...] = values
    often = {key for k, leaves in enumerate(uses) for key in leaves if any(key in other for other in uses[:k])}
    return [_with_more(c, sum(leaves[key] for key in often & leaves.keys())) for c, leaves in zip(costs, uses)]


def _as_result(x: Tensor) -> Tensor:
    """A leaf's memory as if an operation had made it: a layer may work in place."""
    if not x.requires_grad:
        return x
    t = clone(x)
    t.array = x.array
    return t


def _with_more(c: LayerCost, nbytes: int) -> LayerCost:
    return LayerCost(**{**vars(c), "backward": c.backward + nbytes}) if nbytes else c


def _measured(layer: Callable, k: int, x: Tensor, watch: Watch) -> tuple[LayerCost, Tensor, dict]:
    """(cost, result as a leaf, {id of each other leaf: bytes})."""
    watch.reset_peak()
    meter, since = Meter(watch, x), tick()
    with changed(observers=(meter,)):
        y = layer(x)
        meter.look()
        if not isinstance(y, Tensor):
            raise TypeError(f"checkpointed: layer {k}, {layer_name(layer)}, returned a {type(y).__name__}; each must "
                            "take one Tensor and return one. Use checkpoint(function, ...) for anything else")
        storage = y.o.storage
        forward, after, owner = meter.peak, meter.now, storage(y.array)
        passes, size = owner is storage(x.array), owner.nbytes
        nodes = nodes_since(since, y)
        saved = [a for n in nodes for v in n.saved for a in (v if isinstance(v, tuple) else (v,))]
        kept = {id(algebra_of(a).storage(a)) for a in saved if hasattr(a, "dtype")}
        leaves = {id(e): e.o.storage(e.array).nbytes for n in nodes for e in n.edges
                  if e.__class__ is not Node and e is not x}
        out = Tensor(y.array, y.requires_grad)
        backward = _backward(y, meter)
    own = after - (0 if passes else size)
    cost = LayerCost(layer_name(layer), size, own, id(storage(x.array)) in kept, id(owner) in kept, passes, forward,
                     backward, out.array.nbytes, meter.flops)
    return cost, out, leaves


def _backward(y: Tensor, meter: Meter) -> int:
    """The most that is alive in backward beyond what was when it began."""
    if y.node is None or y.node is LEAF:
        return 0
    seed = _Seed.apply(y)
    meter.reset()
    before = meter.now
    sweep_probed({seed.node: seed.o.full((), 1)}, False, (meter,))
    return meter.peak - before


def layer_name(layer: Callable) -> str:
    return getattr(layer, "__name__", type(layer).__name__)


def step_alone(forward: Callable[[], Tensor]) -> None:
    """Forward, and backward from a gradient of zeros, which leaves no gradient anywhere; random streams go on as if
    nothing had been drawn."""
    with _replayed([(g, g.get_state()) for g in _streams((), {})]), changed(grad=True):
        y = forward()
        seed = _Seed.apply(y)
        meters = probes_of(current().observers)
        sweep_probed({seed.node: seed.o.full((), 1)}, False, meters)
        for meter in meters:
            meter.begin("leaf", None, ())                    # the gradients go


__all__ = ["LayerCost", "Meter", "activations", "chain_costs", "step_alone"]
