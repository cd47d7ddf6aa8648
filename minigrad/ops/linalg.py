"""Linear algebra as functions, `mg.linalg`: on the ops of `matrices.py` and `decompositions.py`.

Each works on the last two axes; leading axes are a stack of matrices.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from minigrad.aval import Aval
from minigrad.dtype import bool_, finest, int64, is_float
from minigrad.errors import ArgumentError, DTypeError, ShapeError
from minigrad.ops.decompositions import MatrixExp, Pinv, Qr, Svd
from minigrad.ops.diagonals import diagonal, tril, triu
from minigrad.ops.doors import function
from minigrad.ops.elementwise import Abs, Log, Sign
from minigrad.ops.matmul import matmul
from minigrad.ops.matrices import Cholesky, Det, Eigh, Inv, LogAbsDet, Solve
from minigrad.ops.op import cast
from minigrad.ops.reduce_functions import amax, amin, sum
from minigrad.ops.scan import cumprod
from minigrad.ops.shape import cat, stack
from minigrad.ops.statistics import norm as vector_norm_of
from minigrad.ops.structure import broadcast_tensors, movedim, unbind
from minigrad.ops.views import cut, expand, reshape, squeeze, transpose, unsqueeze
from minigrad.tensor import Tensor, apply


def _checked(op, A: Tensor) -> Tensor:
    op.infer(A.aval)
    return apply(op, A)


def _units(A: Tensor, n: int) -> Tensor:
    """Unit matrices of size n on the leading axes of A."""
    shape = (*A.shape[:-2], n, n)
    return Tensor(A.o.constant(np.broadcast_to(np.eye(n), shape).copy()) if A.o.eager else Aval(shape, A.dtype))


# ---- square matrices -----------------------------------------------------------------------------
def inv(A: Tensor) -> Tensor:
    """The inverse."""
    return _checked(Inv.of(), A)


def det(A: Tensor) -> Tensor:
    """The determinant."""
    return _checked(Det.of(), A)


class SignAndLog(NamedTuple):
    """The sign of a determinant and the logarithm of its size."""

    sign: Tensor
    logabsdet: Tensor


def slogdet(A: Tensor) -> tuple[Tensor, Tensor]:
    """(the sign of the determinant, the logarithm of its size)."""
    return SignAndLog(function(Sign)(_checked(Det.of(), A.detach())), _checked(LogAbsDet.of(), A))


def logdet(A: Tensor) -> Tensor:
    """log det A; NaN where that is negative."""
    sign, size = slogdet(A)
    return function(Log)(sign) + size


def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """The X with A @ X = B (X @ A = B without `left`); B may be a vector, or a stack of them."""
    if not left:
        return transpose(solve(transpose(A, -1, -2), transpose(B, -1, -2)), -1, -2)
    vector = B.ndim == 1 or (B.ndim == A.ndim - 1 and B.shape == A.shape[:-1])
    right = unsqueeze(B, -1) if vector else B
    Solve.of().infer(A.aval, right.aval)
    y = apply(Solve.of(), A, right)
    return squeeze(y, -1) if vector else y


def solve_triangular(A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """`solve` with the upper or lower triangle of A; `unitriangular`: with ones on its diagonal."""
    if A.ndim < 2 or B.ndim < 2:
        raise ShapeError(f"linalg.solve_triangular: expected matrices, got {A.shape} and {B.shape}")
    part = triu if upper else tril
    half = part(A, 1 if upper else -1) + _units(A, A.shape[-1]) if unitriangular else part(A)
    return solve(half, B, left=left)


def matrix_power(A: Tensor, n: int) -> Tensor:
    """A multiplied by itself n times; below 0 of the inverse."""
    if A.ndim < 2 or A.shape[-1] != A.shape[-2]:
        raise ShapeError(f"linalg.matrix_power: expected square matrices, got {A.shape}")
    base = inv(A) if n < 0 else A
    y, power = None, abs(n)
    while power:
        y = (base if y is None else matmul(y, base)) if power & 1 else y
        base, power = matmul(base, base) if power > 1 else base, power >> 1
    return _units(A, A.shape[-1]) if y is None else y * 1 if y is A else y


def matrix_exp(A: Tensor) -> Tensor:
    """The exponential of square matrices, Σ Aᵏ / k!."""
    return _checked(MatrixExp.of(), A)


# ---- decompositions ------------------------------------------------------------------------------
def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """The lower triangular L with L Lᵀ = A, or its transpose."""
    y = _checked(Cholesky.of(), A)
    return transpose(y, -1, -2) if upper else y


def cholesky_solve(B: Tensor, L: Tensor, upper: bool = False) -> Tensor:
    """The X with L Lᵀ @ X = B; of an `upper` L with Lᵀ L."""
    t = transpose(L, -1, -2)
    return solve(matmul(t, L) if upper else matmul(L, t), B)


def cholesky_inverse(L: Tensor, upper: bool = False) -> Tensor:
    """The inverse of L Lᵀ; of an `upper` L of Lᵀ L."""
    t = transpose(L, -1, -2)
    return inv(matmul(t, L) if upper else matmul(L, t))


class EigenPairs(NamedTuple):
    """Eigenvalues in order, eigenvectors as columns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


def eigh(A: Tensor, UPLO: str = "L") -> EigenPairs:
    """(eigenvalues in order, eigenvectors as columns) of symmetric matrices, of which one triangle is read."""
    if UPLO.upper() not in ("L", "U"):
        raise ArgumentError(f"linalg.eigh: UPLO {UPLO!r} is not 'L' or 'U'")
    both = _checked(Eigh.of(), A if UPLO.upper() == "L" or A.ndim < 2 else transpose(A, -1, -2))
    return EigenPairs(cut(both, (Ellipsis, 0, slice(None))), cut(both, (Ellipsis, slice(1, None), slice(None))))


def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    """The eigenvalues, in order, of symmetric matrices."""
    return eigh(A, UPLO)[0]


class QR(NamedTuple):
    """Orthonormal columns, and an upper triangular matrix."""

    Q: Tensor
    R: Tensor


def _parts(y: Tensor, sizes) -> list[Tensor]:
    """The matrices that an op packed."""
    found, start = [], 0
    for m, n in sizes:
        found.append(reshape(cut(y, (Ellipsis, slice(start, start + m * n))), (*y.shape[:-1], m, n)))
        start += m * n
    return found


def qr(A: Tensor, mode: str = "reduced") -> QR:
    """(Q, R) with A = Q R; mode "complete" has all columns of Q, "r" only R."""
    if mode not in ("reduced", "complete", "r"):
        raise ArgumentError(f"linalg.qr: mode {mode!r} is not one of 'reduced', 'complete', 'r'")
    op = Qr.of(mode == "complete")
    q, r = _parts(_checked(op, A), op.sizes(A.shape))
    return QR(Tensor(A.o.full((0,), 0) if A.o.eager else Aval((0,), A.dtype)) if mode == "r" else q, r)


class SVD(NamedTuple):
    """Left vectors as columns, singular values from the largest on, right vectors as rows."""

    U: Tensor
    S: Tensor
    Vh: Tensor


def svd(A: Tensor, full_matrices: bool = True) -> SVD:
    """(U, S, Vᵀ) with A = U diag(S) Vᵀ; `full_matrices`: U and Vᵀ square, with columns and rows that have no
    gradient.  The gradient is undefined where singular values are equal or 0, and needs a loss that does not depend on
    the signs of the vectors."""
    op = Svd.of()
    packed = _checked(op, A)
    u, s, vt = _parts(packed, op.sizes(A.shape))
    m, n = A.shape[-2:]
    if full_matrices and m != n:
        u = cat([u, _others(u, m)], -1) if m > n else u
        vt = cat([vt, transpose(_others(transpose(vt, -1, -2), n), -1, -2)], -2) if n > m else vt
    return SVD(u, squeeze(s, -2), vt)


def _others(q: Tensor, n: int) -> Tensor:
    """Columns that complete orthonormal ones to a basis; constants."""
    full, _ = _parts(apply(Qr.of(True), q.detach()), Qr.of(True).sizes(q.shape))
    return cut(full, (Ellipsis, slice(q.shape[-1], n)))


def svdvals(A: Tensor) -> Tensor:
    """The singular values, from the largest on."""
    return svd(A, False)[1]


# ---- least squares -------------------------------------------------------------------------------
def pinv(A: Tensor, rcond=None, hermitian: bool = False, *, rtol=None, atol=None) -> Tensor:
    """The pseudo-inverse.  Singular values up to max(atol, rtol · the largest) count as 0; by default rtol is
    max(m, n) · the rounding of the dtype.  `hermitian`: only the lower triangle is read."""
    number = lambda v: v.item() if isinstance(v, Tensor) else v  # noqa: E731
    rtol, atol = number(rcond if rtol is None else rtol), number(atol)
    if hermitian:                                   # the lower triangle decides; the gradient is general
        A = A + (tril(A) + transpose(tril(A, -1), -1, -2) - A).detach()
    return _checked(Pinv.of(None if rtol is None else float(rtol), float(atol or 0.0)), A)


class LeastSquares(NamedTuple):
    """What `lstsq` finds."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


def lstsq(A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None) -> LeastSquares:
    """The X that minimises ‖A X - B‖, of several the smallest, by the pseudo-inverse.  As LAPACK's drivers do, "gels"
    gives residuals, the default "gelsy" the rank, "gelsd" and "gelss" those and the singular values; else empty."""
    if A.ndim < 2 or B.ndim < 1:
        raise ShapeError(f"linalg.lstsq: expected matrices, got {A.shape} and {B.shape}")
    vector = B.ndim == A.ndim - 1
    right = unsqueeze(B, -1) if vector else B
    if right.shape[-2] != A.shape[-2]:
        raise ShapeError(f"linalg.lstsq: {A.shape} and {B.shape} differ in rows")
    if driver not in (None, "gels", "gelsy", "gelsd", "gelss"):
        raise ArgumentError(f"linalg.lstsq: driver {driver!r} is not one of 'gels', 'gelsy', 'gelsd', 'gelss'")
    x = matmul(pinv(A, rcond), right)
    nothing = Tensor(A.o.full((0,), 0) if A.o.eager else Aval((0,), A.dtype))
    rank = cast(nothing, int64) if driver == "gels" else matrix_rank(A, rtol=rcond)
    tall = A.shape[-2] > A.shape[-1] and driver in ("gels", "gelsd", "gelss")
    full = tall and (driver == "gels" or (A.o.eager and bool((rank == A.shape[-1]).all())))
    rest = sum((matmul(A, x) - right) ** 2, -2) if full else nothing
    values = svdvals(A) if driver in ("gelsd", "gelss") else nothing
    return LeastSquares(squeeze(x, -1) if vector else x, rest, rank, values)


def matrix_rank(A: Tensor, tol=None, hermitian: bool = False, *, atol=None, rtol=None) -> Tensor:
    """How many singular values are above max(atol, rtol · the largest)."""
    s = svdvals(A.detach())
    if rtol is None:
        rtol = 0.0 if tol is not None or atol is not None else max(A.shape[-2:]) * finest(A.dtype)[0]
    if not s.shape[-1]:
        return sum(cast(s, int64), -1)
    bound = amax(s, -1, True) * (unsqueeze(rtol, -1) if isinstance(rtol, Tensor) else rtol)
    least = tol if tol is not None else 0.0 if atol is None else atol
    least = unsqueeze(least, -1) if isinstance(least, Tensor) else least
    return sum(cast((s > bound) & (s > least), int64), -1)


def cond(A: Tensor, p=None) -> Tensor:
    """The condition number: by p-norms |A| |A⁻¹|; None or 2 the largest over the smallest singular value."""
    if p in (None, 2, -2):
        s = svdvals(A)
        high, low = cut(s, (Ellipsis, 0)), cut(s, (Ellipsis, -1))
        return low / high if p == -2 else high / low
    return matrix_norm(A, p) * matrix_norm(inv(A), p)


# ---- norms and products --------------------------------------------------------------------------
def vector_norm(x: Tensor, ord: float = 2, dim=None, keepdim: bool = False, *, dtype=None) -> Tensor:
    """The p-norm over `dim`, of all elements unless given."""
    x = x if dtype is None else cast(x, np.dtype(dtype))
    if not is_float(x.dtype):
        raise DTypeError(f"linalg.vector_norm: expected a float tensor, got {x.dtype}. Convert with .float()")
    return vector_norm_of(x, ord, dim, keepdim)


def matrix_norm(
    A: Tensor, ord: float | str = "fro", dim: tuple[int, int] = (-2, -1), keepdim: bool = False, *, dtype=None
) -> Tensor:
    """"fro", "nuc" (the sum of singular values), 2 (the largest), 1 (largest column sum), inf (largest row sum), or
    -2, -1, -inf (smallest)."""
    A = A if dtype is None else cast(A, np.dtype(dtype))
    if A.ndim < 2 or not isinstance(dim, tuple | list) or len(dim) != 2 or not is_float(A.dtype):
        raise ShapeError(f"linalg.matrix_norm: expected a float tensor of matrices and two axes, got {A.dtype} "
                         f"{A.shape} and {dim}")
    if ord == "fro":
        return vector_norm_of(A, 2, tuple(dim), keepdim)
    if ord in ("nuc", 2, -2):
        s = svdvals(movedim(A, tuple(dim), (-2, -1)))
        y = sum(s, -1) if ord == "nuc" else (amax if ord == 2 else amin)(s, -1)
        kept = [1 if k in {d % A.ndim for d in dim} else n for k, n in enumerate(A.shape)]
        return reshape(y, kept) if keepdim else y
    if ord not in (1, -1, math.inf, -math.inf):
        raise ArgumentError(f"linalg.matrix_norm: ord {ord!r} is not one of 'fro', 'nuc', ±1, ±2, ±inf")
    rows, columns = dim if abs(ord) == 1 else dim[::-1]
    pick = amax if ord > 0 else amin
    y = pick(sum(function(Abs)(A), rows, True), columns, True)
    return y if keepdim else squeeze(y, tuple(dim))


def norm(A: Tensor, ord=None, dim=None, keepdim: bool = False, *, dtype=None) -> Tensor:
    """Without `ord` the 2-norm of all elements (or over `dim`); with it a norm of vectors or, of two axes, matrices."""
    A = A if dtype is None else cast(A, np.dtype(dtype))
    if not is_float(A.dtype):
        raise DTypeError(f"linalg.norm: expected a float tensor, got {A.dtype}. Convert with .float()")
    if ord is None:
        return vector_norm_of(A, 2, dim, keepdim)
    if dim is None and A.ndim not in (1, 2):
        raise ShapeError(f"linalg.norm: with ord {ord!r} and no dim a vector or a matrix is wanted, got {A.shape}")
    dim = (tuple(range(A.ndim)) if A.ndim == 2 else 0) if dim is None else dim
    if isinstance(dim, int) or len(dim) == 1:
        return vector_norm(A, ord, dim, keepdim)
    return matrix_norm(A, ord, dim, keepdim)


def multi_dot(tensors) -> Tensor:
    """The product of several matrices, from left to right; the first and the last may be vectors."""
    y, *rest = tensors
    if not rest or any(x.ndim != 2 for x in rest[:-1]) or y.ndim not in (1, 2) or rest[-1].ndim not in (1, 2):
        raise ShapeError(f"linalg.multi_dot: expected at least two matrices, got {[x.shape for x in tensors]}")
    for x in rest:
        y = matmul(y, x)
    return y


def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """Inner products along `dim`; the tensors broadcast."""
    return sum(x * y, dim)


def cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """The cross product of vectors of three along `dim`."""
    if input.ndim != other.ndim or not input.ndim or input.shape[dim] != 3 or other.shape[dim] != 3:
        raise ShapeError(f"cross: dim {dim} of {input.shape} and {other.shape} must have 3 elements, of one rank")
    a, b = broadcast_tensors(input, other)
    (a0, a1, a2), (b0, b1, b2) = unbind(a, dim), unbind(b, dim)
    return stack([a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0], dim)


def vander(x: Tensor, N: int | None = None) -> Tensor:
    """Powers 0 … N-1 of each element along a new last axis; N is the length of the last axis unless given."""
    x = reshape(x, 1) if not x.ndim else x
    n = x.shape[-1] if N is None else N
    if n < 1:
        raise ArgumentError(f"linalg.vander: N must be at least 1, got {n}")
    x = cast(x, int64) if x.dtype == bool_ or not is_float(x.dtype) else x
    column = unsqueeze(x, -1)
    ones = column.detach() * 0 + 1
    return cat([ones, cumprod(expand(column, *x.shape, n - 1), -1)], -1) if n > 1 else ones


__all__ = [
    "cholesky", "cholesky_inverse", "cholesky_solve", "cond", "cross", "det", "diagonal", "eigh", "eigvalsh", "inv",
    "logdet", "lstsq", "matmul", "matrix_exp", "matrix_norm", "matrix_power", "matrix_rank", "multi_dot", "norm",
    "pinv", "qr", "slogdet", "solve", "solve_triangular", "svd", "svdvals", "vander", "vecdot", "vector_norm",
]  # fmt: skip
