"""FLOPs and bytes of what ran: from shapes, after the measurement.

While something is measured, a pair of op and shapes costs one look into a table.  Forward's numbers are the op's own
(`op.flops`, `op.bytes`); those of a gradient come from its rules, run on shapes alone.  Before `recorder.py`.
"""
from __future__ import annotations

from typing import Any

from minigrad.algebra import algebra
from minigrad.aval import Aval, aval_of
from minigrad.device import META
from minigrad.ops.op import Op
from minigrad.ops.plan import chosen
from minigrad.probes import Probe
from minigrad.sweep import _gradients
from minigrad.tensor import Node, Tensor, changed

Cost = tuple[int, int] | None                                 # FLOPs and bytes; None: not known
UNKNOWN = -1


class Costs:
    """Each different (op, shapes) that ran has a number; `costs[number]` is what one call costs."""

    def __init__(self) -> None:
        self._numbers: dict[tuple, int] = {}
        self._asked: list[tuple] = []
        self._known: dict[int, Cost] = {UNKNOWN: None}

    def of_op(self, key: tuple, op: Op, xs: tuple, ys: tuple) -> int:
        """`key`: see `op_key`."""
        number = self._numbers.get(key)
        if number is None:
            number = self._ask(key, (forward_cost, op, ys[0].aval, [x.aval for x in xs]))
        return number

    def of_pull(self, n: Node, g: Any) -> int:
        """Of a node that has just been pulled, when its saved values are still there; `g` is its gradient's shape."""
        op = n.op
        if not isinstance(op, Op) or n.saved is None:         # a Function, whose backward tells its own ops
            return UNKNOWN
        key = (id(op), n.plan.mask, g, n.o, *map(_form, n.saved), *[e.shape for e in n.edges])
        number = self._numbers.get(key)
        if number is None:
            values = {name: _shown(value) for name, value in zip(n.plan.names, n.saved)}
            shapes = [e.shape for e in n.edges]
            number = self._ask(key, (backward_cost, op, n.plan.mask, Aval(g, n.o.dtype), values, shapes))
        return number

    def _ask(self, key: tuple, question: tuple) -> int:
        """The op is kept with the question, so that its id stays its own."""
        self._asked.append(question)
        number = self._numbers[key] = len(self._asked) - 1
        return number

    def __getitem__(self, number: int) -> Cost:
        if number not in self._known:
            function, *args = self._asked[number]
            try:
                self._known[number] = function(*args)
            except Exception:                                 # an op of the user's own may have no such rule
                self._known[number] = None
        return self._known[number]


def op_key(op: Op, xs: tuple) -> tuple:
    return (id(op), *[(x.array.shape, x.o) for x in xs])


def _form(value: Any) -> Any:
    if value.__class__ is tuple:
        return tuple([getattr(v, "shape", v) for v in value])
    return getattr(value, "shape", None)


def _shown(value: Any) -> Any:
    """A saved value without its numbers; a shape is as it is."""
    if value.__class__ is tuple:
        return tuple(aval_of(v) if hasattr(v, "dtype") else v for v in value)
    return aval_of(value) if hasattr(value, "dtype") else value


# ---- working it out ------------------------------------------------------------------------------
def forward_cost(op: Op, y: Aval, avals: list[Aval]) -> Cost:
    return int(op.flops(y, *avals)), int(op.bytes(y, *avals))


def backward_cost(op: Op, mask: int, g: Aval, values: dict[str, Any], shapes: list[tuple[int, ...]]) -> Cost:
    """FLOPs of the ops that the gradient rules are made of; bytes of what goes in and out: the gradient, what was
    saved, and the gradients that come of it, as if nothing stayed in a cache."""
    n = object.__new__(Node)
    n.o, n.plan = algebra(META, g.dtype), op.plan(mask, False)
    results = [Aval(shape, g.dtype) for shape in shapes]
    tensors = {name: _tensor(value) for name, value in values.items()}
    count = Count()
    with changed(grad=False, observers=(count,), sites=False, kind=Tensor):
        for _ in _gradients(n, Tensor(g), tensors, list(zip(chosen(op, mask), results)), True):
            pass
    saved = [v for value in values.values() for v in (value if isinstance(value, tuple) else (value,))]
    return count.flops, sum(a.nbytes for a in (g, *saved, *results) if isinstance(a, Aval))


def _tensor(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(Tensor(v) if isinstance(v, Aval) else v for v in value)
    return Tensor(value) if isinstance(value, Aval) else value


class Count(Probe):
    """FLOPs of the ops that run."""

    flops = 0

    def end(self, kind: str, thing: Any, outputs: tuple) -> None:
        pass

    def __call__(self, op: Op, xs: tuple, ys: tuple) -> None:
        self.flops += int(op.flops(ys[0].aval, *(x.aval for x in xs)))


__all__ = ["Costs", "backward_cost", "forward_cost"]
