"""Ops on square matrices in the last two axes: inverse, solve, determinant, Cholesky, eigenvalues of symmetric ones.

An op with two results (eigh) is one whose output holds both, one below the other, so that one gradient carries both.
After `statistics.py`, before `decompositions.py`.
"""

from __future__ import annotations

import numpy as np

from minigrad.aval import Aval
from minigrad.errors import DTypeError, ShapeError
from minigrad.ops.op import NoOnnx, Op, op
from minigrad.ops.samples import Sample


def quotient(o, a, b):
    """a / b, and 0 where a is: equal eigenvalues do no harm to a gradient that does not ask for their vectors."""
    none = a == o.zero
    return o.where(none, o.zero, a / o.where(none, o.one, b))


class OfMatrix(Op):
    """An op on square matrices in the last two axes; in float32 or float64."""

    takes, precision = "only float", "high"

    def infer(self, x: Aval) -> Aval:
        if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
            raise ShapeError(f"linalg.{self.label}: expected square matrices in the last two axes, got {x.shape}")
        if x.dtype.itemsize < 4:
            raise DTypeError(f"linalg.{self.label}: {x.dtype} is too narrow; convert with .float()")
        return self.shown(x)

    def shown(self, x: Aval) -> Aval:
        return Aval(x.shape, x.dtype)

    def flops(self, y: Aval, x: Aval) -> int:
        return 2 * x.size * x.shape[-1]

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of(), (s,), dtypes=("f4",)) for s in ("definite(3,3)", "definite(2,2,2)", "definite(3,3).T")]


@op
class Inv(OfMatrix):
    """The inverse of a matrix"""

    onnx, reference = NoOnnx("no such operator"), staticmethod(np.linalg.inv)

    def forward(self, o, x):
        return o.inv(x)

    def dx(self, o, g, y):
        t = o.mT(y)
        return -o.matmul(o.matmul(t, g), t)


def _cofactors(o, x):
    """The matrix of (-1)^(i + j) det(x without row i and column j); n² determinants, for matrices without inverse."""
    n = x.shape[-1]
    rest = [[k for k in range(n) if k != i] for i in range(n)]
    minor = lambda i, j: o.det(x[..., rest[i], :][..., rest[j]]) * o.lit((-1) ** (i + j))
    parts = [minor(i, j) for i in range(n) for j in range(n)]
    return o.reshape(o.stack(parts, -1), x.shape)


@op
class Det(OfMatrix):
    """The determinant of a matrix; of a singular one the gradient is its cofactors, of the minors' determinants"""

    onnx, reference = "Det", staticmethod(np.linalg.det)

    def forward(self, o, x):
        return o.det(x)

    def dx(self, o, g, x, y):
        try:
            return o.reshape(g * y, (*y.shape, 1, 1)) * o.mT(o.inv(x))
        except np.linalg.LinAlgError:
            return o.reshape(g, (*g.shape, 1, 1)) * _cofactors(o, x)

    def shown(self, x: Aval) -> Aval:
        return Aval(x.shape[:-2], x.dtype)


@op
class LogAbsDet(OfMatrix):
    """log |det x|, without overflow"""

    onnx = NoOnnx("Log of Abs of Det")
    reference = staticmethod(lambda x: np.linalg.slogdet(x)[1])

    def forward(self, o, x):
        return o.logabsdet(x)

    def dx(self, o, g, x):
        return o.reshape(g, (*g.shape, 1, 1)) * o.mT(o.inv(x))

    def shown(self, x: Aval) -> Aval:
        return Aval(x.shape[:-2], x.dtype)


@op
class Cholesky(OfMatrix):
    """The lower triangular L with L Lᵀ = x, of a positive definite x; the gradient is symmetric"""

    onnx, reference = NoOnnx("no such operator"), staticmethod(np.linalg.cholesky)

    def forward(self, o, x):
        return o.cholesky(x)

    def dx(self, o, g, y):
        """Murray 2016: L⁻ᵀ Φ(Lᵀ g) L⁻¹, made symmetric; Φ takes the lower triangle and half of the diagonal."""
        inner = o.matmul(o.mT(y), o.tril(g, 0))
        half = (o.tril(inner, 0) + o.tril(inner, -1)) * o.lit(0.5)
        inverse = o.inv(y)
        s = o.matmul(o.matmul(o.mT(inverse), half), inverse)
        return (s + o.mT(s)) * o.lit(0.5)

    @classmethod
    def samples(cls) -> list[Sample]:
        skip = ("gradient", "second")  # differences must keep x symmetric: tests/parity/test_torch_more.py
        return [Sample(cls.of(), (s,), dtypes=("f4",), skip=skip) for s in ("definite(3,3)", "definite(2,2,2)")]


@op
class Eigh(OfMatrix):
    """Eigenvalues (the first row) and, below it, eigenvectors (columns) of symmetric matrices; reads the lower
    triangle"""

    onnx = NoOnnx("no such operator")

    def forward(self, o, x):
        values, vectors = o.eigh(x)
        return o.cat((values[..., None, :], vectors), -2)

    def dx(self, o, g, y):
        """V (diag(gw) + F ∘ Vᵀ gV) Vᵀ with F[i, j] = 1 / (w[j] - w[i]) off the diagonal (Giles 2008)."""
        n = y.shape[-1]
        w, v = o.cut(y, (Ellipsis, slice(0, 1), slice(None))), o.cut(y, (Ellipsis, slice(1, None), slice(None)))
        gw, gv = o.cut(g, (Ellipsis, slice(0, 1), slice(None))), o.cut(g, (Ellipsis, slice(1, None), slice(None)))
        eye = o.constant(np.eye(n))
        gaps = w - o.mT(w) + eye
        inner = quotient(o, o.matmul(o.mT(v), gv) * (o.one - eye), gaps) + eye * gw
        s = o.matmul(o.matmul(v, inner), o.mT(v))
        return (s + o.mT(s)) * o.lit(0.5)

    def shown(self, x: Aval) -> Aval:
        return Aval((*x.shape[:-2], x.shape[-1] + 1, x.shape[-1]), x.dtype)

    @classmethod
    def samples(cls) -> list[Sample]:
        return [
            Sample(cls.of(), (s,), dtypes=("f4",), skip=("gradient", "second"))
            for s in ("definite(3,3)", "definite(2,2,2)")
        ]


@op
class Solve(Op):
    """The x with a @ x = b"""

    onnx, precision, takes = NoOnnx("no such operator"), "high", "only float"
    reference = staticmethod(np.linalg.solve)

    def forward(self, o, a, b):
        return o.solve(a, b)

    def vjp(self, o, needs, g, a, y):
        db = o.solve(o.mT(a), g)
        return -o.matmul(db, o.mT(y)) if needs[0] else None, db

    def infer(self, a: Aval, b: Aval) -> Aval:
        if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != a.shape[-2] or a.shape[-1] != b.shape[-2]:
            raise ShapeError(
                f"linalg.solve: expected square matrices and right-hand sides, got {a.shape} and {b.shape}"
            )
        return Aval((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *b.shape[-2:]), a.dtype)

    def flops(self, y: Aval, a: Aval, b: Aval) -> int:
        return a.size * a.shape[-1] + 2 * y.size * a.shape[-1]

    @classmethod
    def samples(cls) -> list[Sample]:
        pairs = (
            ("definite(3,3)", "normal(3,2)"),
            ("definite(2,2,2)", "normal(2,2,3)"),
            ("definite(2,2)", "normal(3,2,1)"),
        )
        return [Sample(cls.of(), p, dtypes=("f4",)) for p in pairs]
