"""Rows taken out of a padded batch, and rows put into one: each is the adjoint of the other.  After `recurrent.py`.

No row number occurs twice, so neither gradient has to add: both are copies, unlike those of indexing in general.
"""

from __future__ import annotations

import numpy as np

from minigrad.aval import Aval
from minigrad.errors import ShapeError
from minigrad.indexing import HOLE
from minigrad.ops.op import NoOnnx, Op, op
from minigrad.ops.samples import Sample


@op
class TakeRows(Op):
    """Rows of x by their numbers, each at most once"""

    as_is, exact, onnx = ("index",), True, NoOnnx("Gather")

    def forward(self, o, x, index):
        return o.at(x, (HOLE,), (index,))

    def dx(self, o, g, x_shape, index):
        return o.put_at(o.constant(np.zeros(x_shape)), (HOLE,), (index,), g)

    def infer(self, x: Aval, index: Aval) -> Aval:
        if not x.ndim or index.ndim != 1:
            raise ShapeError(f"take_rows: x {x.shape}, numbers {index.shape}: expected rows and one axis of numbers")
        return Aval((*index.shape, *x.shape[1:]), x.dtype)

    def flops(self, y: Aval, x: Aval, index: Aval) -> int:
        return 0

    def bytes(self, y: Aval, x: Aval, index: Aval) -> int:
        return 2 * y.nbytes + index.nbytes                    # of x what is read

    def reference(self, x, index):
        return x[index]

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of(), (x, "order(3)")) for x in ("normal(4,2)", "normal(3)", "normal(5,2,2)")]


@op
class PutRows(Op):
    """n rows of one value, with the rows of x put at their numbers, each at most once"""

    n: int
    value: float = 0.0
    as_is, exact, onnx = ("index",), True, NoOnnx("ScatterND")

    def forward(self, o, x, index):
        return o.put_at(o.constant(np.full((self.n, *x.shape[1:]), self.value)), (HOLE,), (index,), x)

    def dx(self, o, g, index):
        return o.at(g, (HOLE,), (index,))

    def infer(self, x: Aval, index: Aval) -> Aval:
        if not x.ndim or index.shape != x.shape[:1]:
            raise ShapeError(f"put_rows: x {x.shape}, numbers {index.shape}: expected one number for each row")
        return Aval((self.n, *x.shape[1:]), x.dtype)

    def flops(self, y: Aval, x: Aval, index: Aval) -> int:
        return 0

    def reference(self, x, index):
        y = np.full((self.n, *x.shape[1:]), self.value)
        y[index] = x
        return y

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of(4, v), (x, "order(3)")) for x, v in (("normal(3,2)", 0.0), ("normal(3)", -1.5))]
