"""The composed functions of the catalogue by their public names: which are functions of `mg`, methods, methods
in place.

`methods.py` puts METHODS and IN_PLACE on Tensor, `minigrad/__init__.py` offers FUNCTIONS.  An elementwise op needs no
line here but for its form in place: it names itself.  Last of the ops but `traced.py`.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

from minigrad.dtype import is_float
from minigrad.errors import ShapeError
from minigrad.ops import derived
from minigrad.ops.cells import gru_cell, lstm_cell, rnn_relu_cell, rnn_tanh_cell
from minigrad.ops.diagonals import diag, diag_embed, diagflat, diagonal, trace, tril, triu
from minigrad.ops.doors import function, literal
from minigrad.ops.einsum import einsum
from minigrad.ops.elementwise import Div, Mul, Pow, Sub
from minigrad.ops.filled import new_empty, new_full, new_ones, new_tensor, new_zeros
from minigrad.ops.indexed import (
    bucketize,
    index_add,
    index_copy,
    index_fill,
    index_put,
    index_select,
    masked_fill,
    masked_scatter,
    masked_select,
    nonzero,
    scatter,
    scatter_add,
    scatter_reduce,
    searchsorted,
    take,
    take_along_dim,
)
from minigrad.ops.limits import clamp
from minigrad.ops.linalg import cholesky, det, inv, logdet, matrix_power, pinv, slogdet
from minigrad.ops.matmul import matmul, mm
from minigrad.ops.reduce_functions import sum
from minigrad.ops.rounding import FloorDivide, Fmod, Remainder, Rint, Trunc
from minigrad.ops.scan import cummax, cummin, cumprod, cumsum, logcumsumexp, prod
from minigrad.ops.shape import cat, stack
from minigrad.ops.sorting import (
    argsort,
    bincount,
    histc,
    kthvalue,
    median,
    mode,
    quantile,
    sort,
    topk,
    unique,
    unique_consecutive,
)
from minigrad.ops.statistics import (
    allclose,
    aminmax,
    cosine_similarity,
    count_nonzero,
    diff,
    dist,
    equal,
    isclose,
    nan_to_num,
    nanmean,
    nansum,
    norm,
    renorm,
    std,
    std_mean,
    var_mean,
)
from minigrad.ops.structure import (
    atleast,
    block_diag,
    broadcast_tensors,
    broadcast_to,
    chunk,
    dstack,
    flip,
    hstack,
    meshgrid,
    movedim,
    narrow,
    repeat,
    repeat_interleave,
    roll,
    rot90,
    select,
    split,
    tensor_split,
    tile,
    unbind,
    unflatten,
    unfold_dim,
    vstack,
)
from minigrad.ops.views import expand, reshape, shape_arg, transpose, unsqueeze, view
from minigrad.tensor import Tensor

remainder, fmod, floor_divide, divide = (function(cls) for cls in (Remainder, Fmod, FloorDivide, Div))


# ---- rounding and division ------------------------------------------------------------------------------------------
def round(input: Tensor, *, decimals: int = 0) -> Tensor:
    """The nearest integer, or number with so many decimals; halves go to the even one."""
    if not decimals:
        return function(Rint)(input)
    scale = float(10 ** abs(decimals))
    return function(Rint)(input * scale) / scale if decimals > 0 else function(Rint)(input / scale) * scale


def div(input: Tensor, other, *, rounding_mode: str | None = None) -> Tensor:
    """input / other; rounding_mode "trunc" goes towards 0, "floor" down."""
    if rounding_mode not in (None, "trunc", "floor"):
        raise ValueError(f"div: rounding_mode {rounding_mode!r} is not one of None, 'trunc', 'floor'")
    if rounding_mode is None:
        return divide(input, other)
    if rounding_mode == "floor":
        return floor_divide(input, other)
    if is_float(input.dtype) or is_float(literal(other, input).dtype):
        return function(Trunc)(divide(input, other))
    return floor_divide(input - fmod(input, other), other)       # exact: the remainder is taken away first


# ---- several steps in one name -------------------------------------------------------------------
def lerp(input: Tensor, end: Tensor, weight) -> Tensor:
    """input + weight · (end - input)."""
    return input + (end - input) * weight


def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """input + value · tensor1 · tensor2."""
    return input + tensor1 * tensor2 * value


def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """input + value · tensor1 / tensor2."""
    return input + tensor1 / tensor2 * value


def softmin(input: Tensor, dim: int) -> Tensor:
    """softmax of -x."""
    return (-input).softmax(dim)


# ---- products ------------------------------------------------------------------------------------
def _product(name: str, a: Tensor, b: Tensor, *ndims: int) -> Tensor:
    """a @ b for operands of exactly these ranks."""
    if (a.ndim, b.ndim) != ndims:
        raise ShapeError(f"{name}: expected tensors of {ndims[0]} and {ndims[1]} axes, got {a.shape} and {b.shape}. "
                         f"Use matmul")
    return matmul(a, b)


def bmm(input: Tensor, mat2: Tensor) -> Tensor:
    """The products of two stacks of matrices, one by one."""
    if input.ndim == mat2.ndim == 3 and input.shape[0] != mat2.shape[0]:
        raise ShapeError(f"bmm: stacks of {input.shape[0]} and {mat2.shape[0]} matrices. Use matmul to broadcast")
    return _product("bmm", input, mat2, 3, 3)


def mv(input: Tensor, vec: Tensor) -> Tensor:
    """A matrix times a vector."""
    return _product("mv", input, vec, 2, 1)


def dot(input: Tensor, tensor: Tensor) -> Tensor:
    """The inner product of two vectors of one length."""
    return _product("dot", input, tensor, 1, 1)


def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """The products of all pairs of elements of two vectors."""
    if input.ndim != 1 or vec2.ndim != 1:
        raise ShapeError(f"outer: expected two vectors, got {input.shape} and {vec2.shape}")
    return unsqueeze(input, 1) * unsqueeze(vec2, 0)


def inner(input: Tensor, other: Tensor) -> Tensor:
    """The sum over the last axes of both."""
    return input * other if 0 in (input.ndim, other.ndim) else tensordot(input, other, ([-1], [-1]))


def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta · input + alpha · mat1 @ mat2."""
    return _plus(input, mm(mat1, mat2), beta, alpha)


def addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta · input + alpha · mat @ vec."""
    return _plus(input, mv(mat, vec), beta, alpha)


def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta · input + alpha · outer(vec1, vec2)."""
    return _plus(input, outer(vec1, vec2), beta, alpha)


def baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta · input + alpha · batch1 @ batch2, for stacks of matrices."""
    return _plus(input, bmm(batch1, batch2), beta, alpha)


def addbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta · input + alpha · the sum of batch1 @ batch2 over the stack."""
    return _plus(input, sum(bmm(batch1, batch2), 0), beta, alpha)


def _plus(x: Tensor, y: Tensor, beta: float, alpha: float) -> Tensor:
    """beta · x + alpha · y; with beta 0 nothing of x is looked at, NaN neither."""
    y = y if alpha == 1 else y * alpha
    return y if beta == 0 else (x if beta == 1 else x * beta) + y


def tensordot(a: Tensor, b: Tensor, dims=2) -> Tensor:
    """The sum over pairs of axes: the last `dims` of a with the first of b, or two lists of axes."""
    pairs = (range(-dims, 0), range(dims)) if isinstance(dims, int) else dims
    left, right = ([d % x.ndim for d in p] for p, x in zip(pairs, (a, b)))
    if len(left) != len(right) or any(a.shape[i] != b.shape[j] for i, j in zip(left, right)):
        raise ShapeError(f"tensordot: axes {list(left)} of {a.shape} and {list(right)} of {b.shape} do not match")
    keep_a, keep_b = ([i for i in range(x.ndim) if i not in gone] for x, gone in ((a, left), (b, right)))
    n = math.prod(a.shape[i] for i in left)
    rows = reshape(a.permute(*keep_a, *left), (math.prod(a.shape[i] for i in keep_a), n))
    columns = reshape(b.permute(*right, *keep_b), (n, math.prod(b.shape[i] for i in keep_b)))
    return reshape(matmul(rows, columns), (*(a.shape[i] for i in keep_a), *(b.shape[i] for i in keep_b)))


def chain_matmul(*matrices: Tensor) -> Tensor:
    """The product of matrices, from left to right."""
    return reduce(mm, matrices)


def kron(input: Tensor, other: Tensor) -> Tensor:
    """The Kronecker product: `other` times each element of `input`, in blocks."""
    n = max(input.ndim, other.ndim)
    a, b = (reshape(x, (1,) * (n - x.ndim) + x.shape) for x in (input, other))
    outside, inside = (tuple(m for s in a.shape for m in (s, 1)), tuple(m for s in b.shape for m in (1, s)))
    pairs = reshape(a, outside) * reshape(b, inside)
    return reshape(pairs, tuple(s * t for s, t in zip(a.shape, b.shape)))


def cross(input: Tensor, other: Tensor, dim: int = -1) -> Tensor:
    """The cross product of vectors of three along `dim`."""
    if input.shape[dim] != 3 or other.shape[dim] != 3:
        raise ShapeError(f"cross: dim {dim} of {input.shape} and {other.shape} must have 3 elements")
    a, b = broadcast_tensors(input, other)
    (a0, a1, a2), (b0, b1, b2) = unbind(a, dim), unbind(b, dim)
    return stack([a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0], dim)


def cdist(x1: Tensor, x2: Tensor, p: float = 2.0) -> Tensor:
    """The p-norm distances of all pairs of rows: (…, P, M) and (…, R, M) give (…, P, R); gradient 0 at distance 0."""
    if x1.ndim < 2 or x2.ndim < 2 or x1.shape[-1] != x2.shape[-1]:
        raise ShapeError(f"cdist: expected (…, P, M) and (…, R, M), got {x1.shape} and {x2.shape}")
    return norm(unsqueeze(x1, -2) - unsqueeze(x2, -3), p, -1)


# ---- shapes ----------------------------------------------------------------------------------------------------------
def atleast_1d(*tensors: Tensor):
    """Each with at least one axis."""
    return _each(1, tensors)


def atleast_2d(*tensors: Tensor):
    """Each with at least two axes."""
    return _each(2, tensors)


def atleast_3d(*tensors: Tensor):
    """Each with at least three axes."""
    return _each(3, tensors)


def _each(n: int, tensors):
    found = tuple(atleast(n, x) for x in tensors)
    return found[0] if len(found) == 1 else found


def fliplr(input: Tensor) -> Tensor:
    """The second axis in reverse."""
    return flip(input, 1)


def flipud(input: Tensor) -> Tensor:
    """The first axis in reverse."""
    return flip(input, 0)


def ravel(input: Tensor) -> Tensor:
    """All elements as a vector."""
    return reshape(input, -1)


def isposinf(input: Tensor) -> Tensor:
    """Whether x is plus infinity."""
    return input == math.inf


def isneginf(input: Tensor) -> Tensor:
    """Whether x is minus infinity."""
    return input == -math.inf


def logical_xor(input: Tensor, other: Tensor) -> Tensor:
    """Whether exactly one of the two holds."""
    return (input != 0) != (other != 0)


def expand_as(x: Tensor, other: Tensor) -> Tensor:
    """Expanded to the shape of `other`."""
    return expand(x, *other.shape)


def view_as(x: Tensor, other: Tensor) -> Tensor:
    """A view in the shape of `other`."""
    return view(x, *other.shape)


def reshape_as(x: Tensor, other: Tensor) -> Tensor:
    """In the shape of `other`."""
    return reshape(x, *other.shape)


def sum_to_size(x: Tensor, *size) -> Tensor:
    """Summed over the axes along which a tensor of this size would be broadcast to x."""
    want = shape_arg(size)
    lead = x.ndim - len(want)
    if lead < 0 or any(n not in (1, m) for n, m in zip(want, x.shape[lead:])):
        raise ShapeError(f"sum_to_size: {want} does not broadcast to {x.shape}")
    axes = (*range(lead), *(k + lead for k, n in enumerate(want) if n == 1 != x.shape[k + lead]))
    return reshape(sum(x, axes, True), want) if axes else x


# ---- the table -----------------------------------------------------------------------------------
def _named(*functions: Callable) -> dict[str, Callable]:
    return {f.__name__: f for f in functions}


_BOTH = _named(
    cholesky, det, inv, logdet, matrix_power, pinv, slogdet,
    round, div, lerp, addcmul, addcdiv, clamp, bmm, mv, dot, outer, inner, addmm, addmv, addr, baddbmm, addbmm, mm,
    kron,
    cross, diag, diag_embed, diagflat, diagonal, trace, tril, triu, fliplr, flipud, flip, roll, rot90, ravel, isposinf,
    isneginf, logical_xor, bincount, histc, index_add, index_copy, index_fill, index_put, index_select, masked_fill,
    masked_scatter, masked_select, nonzero, scatter, scatter_add, scatter_reduce, take, take_along_dim, cummax, cummin,
    cumprod, cumsum, logcumsumexp, prod, argsort, kthvalue, median, mode, quantile, sort, topk, unique,
    unique_consecutive, allclose, aminmax, count_nonzero, diff, dist, equal, isclose, nan_to_num, nanmean, nansum, norm,
    renorm, std, broadcast_to, chunk, movedim, narrow, repeat_interleave, select, split, tensor_split, tile, unbind,
    unflatten,
)
_BOTH |= {
    "remainder": remainder, "fmod": fmod, "floor_divide": floor_divide, "arcsin": derived("method")["asin"],
    "arccos": derived("method")["acos"], "arctan": derived("method")["atan"], "arctan2": derived("method")["atan2"],
    "fix": function(Trunc), "absolute": derived("method")["abs"], "negative": derived("method")["neg"],
    "greater": derived("method")["gt"], "greater_equal": derived("method")["ge"], "less": derived("method")["lt"],
    "less_equal": derived("method")["le"], "not_equal": derived("method")["ne"], "clip": clamp,
    "inverse": inv, "moveaxis": movedim,
    "swapaxes": transpose, "swapdims": transpose, "multiply": function(Mul), "divide": div, "true_divide": divide,
    "concat": cat,
}
FUNCTIONS = {**_BOTH, **_named(
    einsum, bucketize, searchsorted, std_mean, var_mean, block_diag, broadcast_tensors, dstack, hstack, meshgrid,
    vstack,
    lstm_cell, gru_cell, rnn_tanh_cell, rnn_relu_cell, tensordot, chain_matmul, cosine_similarity, cdist, atleast_1d,
    atleast_2d, atleast_3d, softmin,
), "concatenate": cat, "row_stack": vstack, "subtract": function(Sub), "float_power": function(Pow)}
METHODS = {**_BOTH, **_named(
    expand_as, view_as, reshape_as, sum_to_size, repeat, new_empty, new_full, new_ones, new_tensor, new_zeros
), "unfold": unfold_dim}
del METHODS["concat"]
_STEPS = (
    "tan asin acos atan atan2 sinh cosh asinh acosh atanh hypot exp2 expm1 log1p log2 log10 rsqrt erf erfc erfinv "
    "xlogy logit sinc "
    "floor ceil trunc frac sign logical_not bitwise_and bitwise_or bitwise_xor bitwise_not").split()
_CHANGES = (
    "round lerp addcmul addcdiv clip tril triu cumsum cumprod index_add index_copy index_fill index_put masked_fill "
    "masked_scatter "
    "scatter scatter_add scatter_reduce nan_to_num remainder fmod floor_divide addmm addmv baddbmm renorm").split()
IN_PLACE = {**{n + "_": derived("method")[n] for n in _STEPS}, **{n + "_": METHODS[n] for n in _CHANGES}}
