"""Matrix products: MatMul in every rank, and Linear, the layer's form of it.  After `shape.py`."""
from __future__ import annotations

import math

import numpy as np

from minigrad.aval import Aval
from minigrad.errors import ShapeError
from minigrad.ops.doors import function, operand
from minigrad.ops.op import NoOnnx, Op, op
from minigrad.ops.samples import Sample
from minigrad.ops.views import reshape
from minigrad.tensor import Tensor


@op
class MatMul(Op):
    """a @ b for matrices and stacks of matrices, whose leading axes broadcast"""

    onnx, precision, reference = "MatMul", "low", np.matmul
    functional = "matmul"

    def forward(self, o, a, b):
        return o.matmul(a, b)

    def da(self, o, g, b):
        return o.matmul(g, o.mT(b))

    def db(self, o, g, a, b_shape):
        if len(a.shape) > len(b_shape) == 2:  # one matrix for all: one product over all rows
            a, g = (o.reshape(x, (math.prod(x.shape[:-1]), x.shape[-1])) for x in (a, g))
        if a.shape[-2] == 1:
            return o.mT(a) * g                               # for one row BLAS takes four times as long
        return o.matmul(o.mT(a), g)

    def infer(self, a: Aval, b: Aval) -> Aval:
        if a.ndim < 2 or b.ndim < 2:
            raise ShapeError(f"matmul: expected at least two axes each, got {a.shape} and {b.shape}")
        if a.shape[-1] != b.shape[-2]:
            hint = " Transpose one with .mT?" if a.shape[-1] == b.shape[-1] or a.shape[-2] == b.shape[-2] else ""
            raise ShapeError(
                f"matmul: inner sizes differ: a is {a.shape}, b is {b.shape} ({a.shape[-1]} != {b.shape[-2]}).{hint}"
            )
        try:
            lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        except ValueError:
            raise ShapeError(f"matmul: leading axes do not broadcast: a is {a.shape}, b is {b.shape}") from None
        return Aval((*lead, a.shape[-2], b.shape[-1]), a.dtype)

    def flops(self, y: Aval, a: Aval, b: Aval) -> int:
        return 2 * y.size * a.shape[-1]

    @classmethod
    def samples(cls) -> list[Sample]:
        pairs = [
            ("3,4)", "4,2)"),
            ("2,3,4)", "4,2)"),
            ("2,1,3,4)", "5,4,2)"),
            ("3,4).T", "4,2).T"),
            ("0,4)", "4,2)"),
            ("3,0)", "0,2)"),
        ]
        return [Sample(cls.of(), (f"normal({a}", f"normal({b}")) for a, b in pairs]


class VectorProduct(Op):
    """A product with a vector in it: no batch axes, so that each rule is one call."""

    onnx, precision, reference, exact = "MatMul", "low", np.matmul, True

    def forward(self, o, a, b):
        return o.matmul(a, b)

    def infer(self, a: Aval, b: Aval) -> Aval:
        if a.shape[-1:] != b.shape[:1]:
            sizes = f"({a.shape[-1]} != {b.shape[0]})"
            raise ShapeError(f"matmul: inner sizes differ: a is {a.shape}, b is {b.shape} {sizes}")
        return Aval(a.shape[:-1] + b.shape[1:], a.dtype)

    def flops(self, y: Aval, a: Aval, b: Aval) -> int:
        return 2 * y.size * a.shape[-1]


@op
class VectorMatrix(VectorProduct):
    """a @ b for a vector a (K) and a matrix b (K, N)"""

    def da(self, o, g, b):
        return o.matmul(b, g)

    def db(self, o, g, a):
        return o.reshape(a, (-1, 1)) * g

    def into_b(self, o, total, g, a):
        """Add db to `total`, a buffer that may be written."""
        total += o.reshape(a, (-1, 1)) * g

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of(), (a, b)) for a, b in (("normal(3)", "normal(3,2)"), ("normal(4)", "normal(4,2).T"))]


@op
class MatrixVector(VectorProduct):
    """a @ b for a matrix a (M, K) and a vector b (K)"""

    def da(self, o, g, b):
        return o.reshape(g, (-1, 1)) * b

    def db(self, o, g, a):
        return o.matmul(g, a)

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of(), (a, b)) for a, b in (("normal(3,2)", "normal(2)"), ("normal(3,2).T", "normal(2)"))]


@op
class Dot(VectorProduct):
    """The dot product of two vectors"""

    def da(self, o, g, b):
        return g * b

    def db(self, o, g, a):
        return g * a

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of(), ("normal(3)", "normal(3)"))]


@op
class Linear(Op):
    """x @ w.T + b over the last axis of x; w is (out, in), as PyTorch keeps it"""

    onnx, precision = "Gemm", "low"

    def forward(self, o, x, w, b):
        return o.add_(o.matmul(x, o.mT(w)), b)

    def dx(self, o, g, w):
        return o.matmul(g, w)

    def dw(self, o, g, x):
        if len(g.shape) == 2:
            return o.matmul(o.mT(g), x)
        rows = math.prod(g.shape[:-1])                        # not -1, of which nothing could be told without features
        return o.matmul(o.mT(o.reshape(g, (rows, g.shape[-1]))), o.reshape(x, (rows, x.shape[-1])))

    def db(self, o, g):
        return g

    def infer(self, x: Aval, w: Aval, b: Aval) -> Aval:
        check_linear(x.shape, w.shape, b.shape)
        return Aval((*x.shape[:-1], w.shape[0]), x.dtype)

    def flops(self, y: Aval, x: Aval, w: Aval, b: Aval) -> int:
        return 2 * y.size * x.shape[-1] + y.size

    @staticmethod
    def reference(x, w, b):
        return np.einsum("...i,oi->...o", x, w) + b

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of(), (x, "normal(2,4)", "normal(2)")) for x in
                ("normal(3,4)", "normal(2,3,4)", "normal(0,4)", "normal(3,4).T")]


@op
class LinearNoBias(Op):
    """x @ w.T over the last axis of x"""

    onnx, precision = NoOnnx("MatMul with a Transpose"), "low"

    def forward(self, o, x, w):
        return o.matmul(x, o.mT(w))

    dx, dw = Linear.dx, Linear.dw

    def infer(self, x: Aval, w: Aval) -> Aval:
        check_linear(x.shape, w.shape, w.shape[:1])
        return Aval((*x.shape[:-1], w.shape[0]), x.dtype)

    def flops(self, y: Aval, x: Aval, w: Aval) -> int:
        return 2 * y.size * x.shape[-1]

    @staticmethod
    def reference(x, w):
        return np.einsum("...i,oi->...o", x, w)

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of(), (x, "normal(2,4)")) for x in ("normal(3,4)", "normal(2,3,4)")]


def check_linear(x: tuple, w: tuple, b: tuple) -> None:
    """Refuse shapes that are no linear layer."""
    if len(w) != 2 or not x or x[-1] != w[1] or b != w[:1]:
        raise ShapeError(f"linear: x {x}, weight {w}, bias {b}: expected x (…, in), weight (out, in), bias (out)")


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias: x is (…, in), weight (out, in), bias (out)."""
    if x.ndim == 1:
        return reshape(linear(reshape(x, (1, -1)), weight, bias), (-1,))
    if len(weight.array.shape) != 2 or (bias is not None and len(bias.array.shape) != 1):      # these would broadcast
        check_linear(x.shape, weight.shape, weight.shape[:1] if bias is None else bias.shape)
    return function(LinearNoBias)(x, weight) if bias is None else function(Linear)(x, weight, bias)


_PRODUCTS = {(1, 1): function(Dot), (1, 2): function(VectorMatrix), (2, 1): function(MatrixVector)}
_stacks = function(MatMul)


def mm(a: Tensor, b: Tensor) -> Tensor:
    """The product of two matrices."""
    if a.ndim != 2 or operand(b, None, "mm").ndim != 2:
        raise ShapeError(f"mm: expected two matrices, got {a.shape} and {b.shape}. Use matmul")
    return _stacks(a, b)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """The matrix product in every rank, as `torch.matmul`: two vectors give their dot product."""
    a, b = operand(a, None, "matmul"), operand(b, None, "matmul")
    n, m = len(a.array.shape), len(b.array.shape)
    if n >= 2 and m >= 2:
        return _stacks(a, b)
    if n == 0 or m == 0:
        raise ShapeError(f"matmul: {a.shape} @ {b.shape}: a number has no axis to sum over; multiply with *")
    if n <= 2 and m <= 2:
        return _PRODUCTS[n, m](a, b)
    y = _stacks(a if n > 1 else reshape(a, (1, -1)), b if m > 1 else reshape(b, (-1, 1)))
    shape = list(y.shape)
    del shape[-1 if m == 1 else -2]
    return reshape(y, tuple(shape))
