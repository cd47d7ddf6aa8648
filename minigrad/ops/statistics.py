"""Spread and size: std, variance with the mean, norms, counts, and reductions that pass over NaN.  After
`sorting.py`."""

from __future__ import annotations

import math
from operator import index

from minigrad.dtype import bool_, finest, int64, is_float
from minigrad.errors import ArgumentError, DTypeError
from minigrad.ops.doors import function, literal
from minigrad.ops.elementwise import Abs, Pow, Sqrt, Square, Where
from minigrad.ops.limits import ClampMin, clamp
from minigrad.ops.op import cast
from minigrad.ops.reduce_functions import amax, amin, in_float32, mean, sum, var
from minigrad.ops.shape import cat
from minigrad.ops.structure import axis_of, broadcast_tensors, narrow
from minigrad.tensor import Tensor

where, square, sqrt, absolute, power = (function(cls) for cls in (Where, Square, Sqrt, Abs, Pow))


@in_float32
def std(
    input: Tensor, dim=None, unbiased: bool = True, keepdim: bool = False, *, correction: int | None = None
) -> Tensor:
    """The square root of the variance; where that is 0 the gradient is 0, not NaN, as PyTorch."""
    return _root(var(input, dim, unbiased, keepdim, correction=correction))


def _root(v: Tensor) -> Tensor:
    """√v whose gradient is 0 where v is 0."""
    some = v != 0
    return where(some, sqrt(where(some, v, literal(1.0, v))), v)


def clamp_within(x: Tensor, low: float, high: float) -> Tensor:
    """`x` limited to low … high."""
    return clamp(x, min=low, max=high)


@in_float32
def var_mean(input: Tensor, dim=None, unbiased: bool = True, keepdim: bool = False, *, correction: int | None = None):
    """(variance, mean)."""
    dim, unbiased = (None, dim) if isinstance(dim, bool) else (dim, unbiased)
    return var(input, dim, unbiased, keepdim, correction=correction), mean(input, dim, keepdim)


@in_float32
def std_mean(input: Tensor, dim=None, unbiased: bool = True, keepdim: bool = False, *, correction: int | None = None):
    """(standard deviation, mean)."""
    v, m = var_mean(input, dim, unbiased, keepdim, correction=correction)
    return _root(v), m


def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """(smallest, largest)."""
    return amin(input, dim, keepdim), amax(input, dim, keepdim)


@in_float32
def norm(x: Tensor, p: float | str = "fro", dim=None, keepdim: bool = False) -> Tensor:
    """The p-norm over `dim`, with gradient 0 at 0; p may be ±infinity, 0 (how many are not 0) or "fro" (2)."""
    if p == "nuc":
        from minigrad.ops.linalg import matrix_norm

        return matrix_norm(x, "nuc", (-2, -1) if dim is None else dim, keepdim)
    if isinstance(p, str) and p != "fro":
        raise ArgumentError(f"norm: p is a number or 'fro', got {p!r}")
    p = 2.0 if p == "fro" else float(p)
    if abs(p) == math.inf:
        return (amax if p > 0 else amin)(absolute(x), dim, keepdim)
    if p == 0:
        return sum(cast(x != 0, x.dtype), dim, keepdim)
    if p == 1:
        return sum(absolute(x), dim, keepdim)
    if p == 2:
        return _root(sum(square(x), dim, keepdim))
    some = x != 0 if p < 1 else None  # |x|^p has no slope at 0 there
    parts = absolute(x) if some is None else absolute(where(some, x, literal(1.0, x)))
    total = sum(power(parts, p) if some is None else where(some, power(parts, p), literal(0.0, x)), dim, keepdim)
    live = total != 0 if p > 0 or some is None else amin(absolute(x.detach()), dim, keepdim) != 0  # 0 ** p is infinite
    zero = total if p > 0 else literal(0.0, x)
    return where(live, power(where(live, total, literal(1.0, x)), 1 / p), zero)


def dist(input: Tensor, other: Tensor, p: float = 2) -> Tensor:
    """The p-norm of the difference."""
    return norm(input - other, p)


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """x1 · x2 / (|x1| |x2|) along `dim`, each length at least eps."""
    a, b = broadcast_tensors(x1, x2)
    length = lambda x: function(ClampMin)(norm(x, 2, dim, True), literal(eps, x))
    return sum((a / length(a)) * (b / length(b)), dim)


def count_nonzero(input: Tensor, dim=None) -> Tensor:
    """How many elements are not 0."""
    return sum(cast(input != 0, int64), dim)


def nansum(input: Tensor, dim=None, keepdim: bool = False) -> Tensor:
    """The sum of what is not NaN."""
    return sum(where(input != input, literal(0, input), input), dim, keepdim)


def nanmean(input: Tensor, dim=None, keepdim: bool = False) -> Tensor:
    """The mean of what is not NaN."""
    return nansum(input, dim, keepdim) / cast(sum(input == input, dim, keepdim), input.dtype)


def nan_to_num(input: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """NaN and infinities as numbers, by default 0 and the ends of the dtype's range."""
    if not is_float(input.dtype):
        return input.clone()
    top = finest(input.dtype)[1]
    y = where(input != input, literal(float(nan), input), input)
    y = where(input == math.inf, literal(top if posinf is None else posinf, input), y)
    return where(input == -math.inf, literal(-top if neginf is None else neginf, input), y)


def diff(
    input: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:
    """The difference of each element to the one before, n times over."""
    axis = axis_of(input, dim, "diff")
    if n < 0:
        raise ArgumentError(f"diff: n must not be negative, got {n}")
    if n == 0:
        return input * 1 if is_float(input.dtype) else input.clone()
    ends = [x for x in (prepend, input, append) if x is not None]
    y = cat(ends, axis) if len(ends) > 1 else input
    for _ in range(index(n)):
        m = max(y.shape[axis] - 1, 0)
        a, b = narrow(y, axis, min(1, y.shape[axis]), m), narrow(y, axis, 0, m)
        y = a != b if y.dtype == bool_ else a - b
    return y


def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """Each slice along `dim` whose p-norm is above `maxnorm`, scaled down to it."""
    if input.ndim < 2 or p <= 0 or maxnorm < 0:
        raise ArgumentError(f"renorm: expected at least 2 dimensions, got {input.ndim}, p above 0, got {p}, and "
                            f"maxnorm from 0, got {maxnorm}")
    axis = axis_of(input, dim, "renorm")
    size = norm(input, p, tuple(k for k in range(input.ndim) if k != axis), True)
    return input * where(size > maxnorm, maxnorm / (size + 1e-7), literal(1.0, input))


# ---- comparing whole tensors ---------------------------------------------------------------------
def isclose(input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    """|a - b| ≤ atol + rtol |b|, element by element; infinities are close to themselves."""
    if rtol < 0 or atol < 0:
        raise ArgumentError(f"isclose: rtol {rtol} and atol {atol} must not be negative")
    if input.dtype != other.dtype:
        raise DTypeError(f"isclose: {input.dtype} and {other.dtype}: compare tensors of one dtype")
    a, b = input.detach(), other.detach()
    if not is_float(a.dtype):
        a, b = a.double(), b.double()
    same = (a == b) | ((a != a) & (b != b)) if equal_nan else a == b
    return same | ((absolute(b) != math.inf) & (absolute(a - b) <= absolute(b) * rtol + atol))


def allclose(input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """Whether every element is close; see `isclose`."""
    return bool(isclose(input, other, rtol, atol, equal_nan).all())


def equal(input: Tensor, other: Tensor) -> bool:
    """Whether both have one shape and the same elements."""
    if input.dtype != other.dtype and is_float(input.dtype) != is_float(other.dtype):
        raise DTypeError(f"equal: {input.dtype} and {other.dtype}: compare tensors of one dtype")
    return input.shape == other.shape and bool((input == other).all())
