"""Linear algebra: inverse, solve, determinant, Cholesky, and eigenvalues of symmetric matrices.  After `statistics.py`.

Each matrix function works on the last two axes.  Those with two results (eigh, qr) are one op whose output holds both,
one below the other, so that one gradient carries both.
"""

from __future__ import annotations

import math

import numpy as np

from minigrad.aval import Aval
from minigrad.errors import DTypeError, ShapeError
from minigrad.ops.diagonals import diagonal
from minigrad.ops.doors import function
from minigrad.ops.elementwise import Abs, Log, Sign
from minigrad.ops.matmul import MatMul
from minigrad.ops.op import NoOnnx, Op, op
from minigrad.ops.reduce_functions import amax, amin, sum
from minigrad.ops.samples import Sample
from minigrad.ops.statistics import norm
from minigrad.ops.views import cut, squeeze, transpose, unsqueeze
from minigrad.tensor import Tensor, apply


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


@op
class Det(OfMatrix):
    """The determinant of a matrix; the gradient of a singular one is NaN or infinite"""

    onnx, reference = "Det", staticmethod(np.linalg.det)

    def forward(self, o, x):
        return o.det(x)

    def dx(self, o, g, x, y):
        wide = o.reshape(g * y, (*y.shape, 1, 1))
        return wide * o.mT(o.inv(x))

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
        inner = o.matmul(o.mT(v), gv) * ((o.one - eye) / gaps) + eye * gw
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


# ---- as functions, in `mg.linalg` ----------------------------------------------------------------
def _checked(cls: type, A: Tensor) -> Tensor:
    cls.of().infer(A.aval)
    return apply(cls.of(), A)


def inv(A: Tensor) -> Tensor:
    """The inverse."""
    return _checked(Inv, A)


def det(A: Tensor) -> Tensor:
    """The determinant."""
    return _checked(Det, A)


def slogdet(A: Tensor) -> tuple[Tensor, Tensor]:
    """(the sign of the determinant, the logarithm of its size)."""
    return function(Sign)(_checked(Det, A.detach())), _checked(LogAbsDet, A)


def logdet(A: Tensor) -> Tensor:
    """log det A; NaN where that is negative."""
    return function(Log)(function(Sign)(_checked(Det, A.detach()))) + _checked(LogAbsDet, A)


def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """The lower triangular L with L Lᵀ = A, or its transpose."""
    y = _checked(Cholesky, A)
    return transpose(y, -1, -2) if upper else y


def eigh(A: Tensor) -> tuple[Tensor, Tensor]:
    """(eigenvalues in order, eigenvectors as columns) of symmetric matrices."""
    both = _checked(Eigh, A)
    return cut(both, (Ellipsis, 0, slice(None))), cut(both, (Ellipsis, slice(1, None), slice(None)))


def eigvalsh(A: Tensor) -> Tensor:
    """The eigenvalues, in order, of symmetric matrices."""
    return eigh(A)[0]


def solve(A: Tensor, B: Tensor) -> Tensor:
    """The X with A @ X = B; B may be a vector."""
    vector = B.ndim == 1 or (B.ndim == A.ndim - 1 and B.shape == A.shape[:-1])
    right = unsqueeze(B, -1) if vector else B
    Solve.of().infer(A.aval, right.aval)
    y = apply(Solve.of(), A, right)
    return squeeze(y, -1) if vector else y


def pinv(A: Tensor) -> Tensor:
    """The pseudo-inverse of matrices of full rank: (AᵀA)⁻¹ Aᵀ, or Aᵀ (A Aᵀ)⁻¹ of a wide one."""
    t = transpose(A, -1, -2)
    product = function(MatMul)
    return product(inv(product(t, A)), t) if A.shape[-2] >= A.shape[-1] else product(t, inv(product(A, t)))


def matrix_power(A: Tensor, n: int) -> Tensor:
    """A multiplied by itself n times; below 0 of the inverse."""
    base = inv(A) if n < 0 else A
    eye = Tensor(A.o.constant(np.broadcast_to(np.eye(A.shape[-1]), A.shape).copy()) if A.o.eager else A.aval)
    y, power = None, abs(n)
    while power:
        y = (base if y is None else function(MatMul)(y, base)) if power & 1 else y
        base, power = function(MatMul)(base, base) if power > 1 else base, power >> 1
    return eye if y is None else y


def vector_norm(x: Tensor, ord: float = 2, dim=None, keepdim: bool = False) -> Tensor:
    """The p-norm over `dim`, of all elements unless given."""
    return norm(x, ord, dim, keepdim)


def matrix_norm(A: Tensor, ord: float | str = "fro", dim: tuple[int, int] = (-2, -1), keepdim: bool = False) -> Tensor:
    """The Frobenius norm, or 1 (largest column sum), inf (largest row sum), or their negatives (smallest)."""
    if ord == "fro":
        return norm(A, 2, dim, keepdim)
    if ord not in (1, -1, math.inf, -math.inf):
        raise ValueError(f"matrix_norm: ord {ord!r} is not one of 'fro', 1, -1, inf, -inf")
    rows, columns = dim if abs(ord) == 1 else dim[::-1]
    pick = amax if ord > 0 else amin
    y = pick(sum(function(Abs)(A), rows, True), columns, True)
    return y if keepdim else squeeze(y, tuple(dim))


def multi_dot(tensors) -> Tensor:
    """The product of several matrices, from left to right."""
    y, *rest = tensors
    for x in rest:
        y = y @ x
    return y


__all__ = [
    "cholesky", "det", "diagonal", "eigh", "eigvalsh", "inv", "logdet", "matrix_norm", "matrix_power", "multi_dot",
    "norm", "pinv", "slogdet", "solve", "vector_norm",
]  # fmt: skip
