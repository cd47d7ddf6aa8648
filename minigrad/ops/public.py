"""The composed functions of the catalogue by their public names: which are functions of `mg`, methods, methods
in place.

`methods.py` puts METHODS and IN_PLACE on Tensor, `minigrad/__init__.py` offers FUNCTIONS.  An elementwise op needs no
line here but for its form in place: it names itself.  Last of the ops but `traced.py`.
"""
from __future__ import annotations

import math
from collections.abc import Callable

from minigrad.errors import ShapeError
from minigrad.ops import derived, linalg
from minigrad.ops.arithmetic import (
    add,
    addcdiv,
    addcmul,
    div,
    divide,
    floor_divide,
    fmod,
    lerp,
    remainder,
    round,
    rsub,
    softmin,
    sub,
)
from minigrad.ops.assembly import (
    argwhere,
    broadcast_shapes,
    cartesian_prod,
    column_stack,
    combinations,
    diagonal_scatter,
    dsplit,
    hsplit,
    isin,
    narrow_copy,
    select_scatter,
    slice_scatter,
    split_with_sizes,
    unravel_index,
    vsplit,
)
from minigrad.ops.cells import gru_cell, lstm_cell, rnn_relu_cell, rnn_tanh_cell
from minigrad.ops.diagonals import diag, diag_embed, diagflat, diagonal, trace, tril, triu
from minigrad.ops.doors import function, literal, only_tensor
from minigrad.ops.einsum import einsum
from minigrad.ops.elementwise import Mul
from minigrad.ops.exponential import logit
from minigrad.ops.filled import new_empty, new_full, new_ones, new_tensor, new_zeros
from minigrad.ops.gamma import mvlgamma, polygamma
from minigrad.ops.indexed import (
    bucketize,
    index_add,
    index_copy,
    index_fill,
    index_put,
    index_reduce,
    index_select,
    masked_fill,
    masked_scatter,
    masked_select,
    nonzero,
    put,
    scatter,
    scatter_add,
    scatter_reduce,
    searchsorted,
    take,
    take_along_dim,
)
from minigrad.ops.limits import clamp, clamp_max, clamp_min
from minigrad.ops.linalg import (
    cholesky,
    cholesky_inverse,
    cholesky_solve,
    det,
    inv,
    logdet,
    matrix_exp,
    matrix_power,
    pinv,
    slogdet,
)
from minigrad.ops.matmul import mm
from minigrad.ops.op import cast
from minigrad.ops.pairs import deg2rad, float_power, frexp, ldexp, positive, rad2deg, sgn
from minigrad.ops.products import (
    addbmm,
    addmm,
    addmv,
    addr,
    baddbmm,
    bmm,
    cdist,
    chain_matmul,
    cross,
    dot,
    inner,
    kron,
    mv,
    outer,
    pdist,
    tensordot,
    vdot,
)
from minigrad.ops.reduce_functions import sum
from minigrad.ops.rounding import Trunc
from minigrad.ops.scan import cummax, cummin, cumprod, cumsum, logcumsumexp, prod
from minigrad.ops.series import corrcoef, cov, cumulative_trapezoid, gradient, histogram, trapezoid
from minigrad.ops.shape import Overwrite, cat
from minigrad.ops.sorting import (
    argsort,
    bincount,
    histc,
    kthvalue,
    median,
    mode,
    msort,
    nanmedian,
    nanquantile,
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
from minigrad.ops.views import expand, reshape, shape_arg, transpose, view
from minigrad.tensor import Tensor, apply


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
    tensors = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], list | tuple) else tensors
    found = tuple(atleast(n, x) for x in tensors)
    return found[0] if len(found) == 1 else found


def fliplr(input: Tensor) -> Tensor:
    """The second axis in reverse."""
    if input.ndim < 2:
        raise ShapeError(f"fliplr: expected at least two axes, got {input.shape}")
    return flip(input, 1)


def flipud(input: Tensor) -> Tensor:
    """The first axis in reverse."""
    if not input.ndim:
        raise ShapeError("flipud: a 0-d tensor has no axis")
    return flip(input, 0)


def ravel(input: Tensor) -> Tensor:
    """All elements as a vector."""
    return reshape(input, -1)


def svd(input: Tensor, some: bool = True, compute_uv: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """(U, S, V) with input = U diag(S) Vᵀ; not `some`: with all columns.  The newer form is `linalg.svd`."""
    u, s, vt = linalg.svd(input, not some)
    if not compute_uv:
        u, vt = u.detach() * 0, vt.detach() * 0
    return u, s, transpose(vt, -1, -2)


def qr(input: Tensor, some: bool = True) -> tuple[Tensor, Tensor]:
    """(Q, R) with input = Q R; not `some`: with all columns of Q.  The newer form is `linalg.qr`."""
    return linalg.qr(input, "reduced" if some else "complete")


def fill(input: Tensor, value) -> Tensor:
    """A tensor like `input`, every element `value`, a number or a 0-d tensor."""
    value = literal(value, input)
    if value.ndim:
        raise ShapeError(f"fill: the value must be a number or a 0-d tensor, got {value.shape}")
    return apply(Overwrite.of(), input, cast(value, input.dtype))


def conj(input: Tensor) -> Tensor:
    """The tensor itself: numbers here are real."""
    return input



def isreal(input: Tensor) -> Tensor:
    """True everywhere: numbers here are real."""
    return input.isnan() | (input == input)


def isposinf(input: Tensor) -> Tensor:
    """Whether x is plus infinity."""
    return input == math.inf


def isneginf(input: Tensor) -> Tensor:
    """Whether x is minus infinity."""
    return input == -math.inf


def logical_xor(input: Tensor, other: Tensor) -> Tensor:
    """Whether exactly one of the two holds."""
    only_tensor(other, input, "logical_xor")
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
    cholesky, cholesky_inverse, cholesky_solve, det, inv, logdet, matrix_exp, matrix_power, pinv, qr, slogdet,
    mvlgamma, logit, deg2rad, rad2deg, float_power, frexp, ldexp, positive, sgn, corrcoef, cov, histogram,
    argwhere, diagonal_scatter, dsplit, hsplit, isin, narrow_copy, select_scatter, slice_scatter, split_with_sizes,
    vsplit, clamp_max, clamp_min, index_reduce, put, nanmedian, nanquantile, msort, vdot, fill, conj, isreal,
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
    **dict.fromkeys(("conj_physical", "resolve_conj", "resolve_neg"), conj),
    "inverse": inv, "pinverse": pinv, "moveaxis": movedim, "ger": outer, "svd": svd,
    "arccosh": derived("method")["acosh"], "arcsinh": derived("method")["asinh"], "arctanh": derived("method")["atanh"],
    "swapaxes": transpose, "swapdims": transpose, "multiply": function(Mul), "divide": div, "true_divide": divide,
    "concat": cat,
}
FUNCTIONS = {**_BOTH, **_named(
    einsum, bucketize, searchsorted, std_mean, var_mean, block_diag, broadcast_tensors, dstack, hstack, meshgrid,
    vstack,
    polygamma, cumulative_trapezoid, gradient, trapezoid, cartesian_prod, column_stack, combinations, broadcast_shapes,
    unravel_index, add, sub, rsub, pdist,
    lstm_cell, gru_cell, rnn_tanh_cell, rnn_relu_cell, tensordot, chain_matmul, cosine_similarity, cdist, atleast_1d,
    atleast_2d, atleast_3d, softmin,
), "concatenate": cat, "trapz": trapezoid, "real": conj,
    "adjoint": lambda x: transpose(x, -1, -2), "row_stack": vstack, "subtract": sub}
METHODS = {**_BOTH, **_named(
    expand_as, view_as, reshape_as, sum_to_size, repeat, new_empty, new_full, new_ones, new_tensor, new_zeros
), "unfold": unfold_dim, "polygamma": lambda x, n: polygamma(n, x)}
del METHODS["concat"]
_STEPS = (
    "tan asin acos atan atan2 sinh cosh asinh acosh atanh hypot exp2 expm1 log1p log2 log10 rsqrt erf erfc erfinv "
    "xlogy sinc lgamma digamma copysign heaviside nextafter gcd lcm gt ge lt le eq ne logical_and logical_or "
    "floor ceil trunc frac sign logical_not bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift "
    "bitwise_right_shift").split()
_CHANGES = (
    "round lerp addcmul addcdiv clip clamp_min clamp_max tril triu cumsum cumprod index_add index_copy index_fill "
    "index_put index_reduce masked_fill masked_scatter put scatter scatter_add scatter_reduce nan_to_num remainder "
    "fmod floor_divide addmm addmv addbmm addr baddbmm renorm logit sgn deg2rad rad2deg float_power ldexp logical_xor "
    "mvlgamma polygamma arcsin arccos arctan arctan2 arcsinh arccosh arctanh fix absolute negative greater "
    "greater_equal less less_equal not_equal multiply divide true_divide conj_physical").split()
IN_PLACE = {**{n + "_": derived("method")[n] for n in _STEPS}, **{n + "_": METHODS[n] for n in _CHANGES}}
