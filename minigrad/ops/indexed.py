"""Reading and writing by index tensors, under PyTorch's names: functions on the ops of `index.py`.

scatter and its kin are writes at full coordinates: the index along one axis, a counter along the others.
"""

from __future__ import annotations

import math
from functools import wraps

import numpy as np

from minigrad.algebra import algebra
from minigrad.aval import Aval
from minigrad.dtype import bool_, int32, int64, is_float
from minigrad.errors import ArgumentError, DTypeError, PlaceError, ShapeError
from minigrad.indexing import HOLE
from minigrad.ops.doors import function, literal
from minigrad.ops.elementwise import Where
from minigrad.ops.index import AddAt, PutAt, check_index, gather, getitem, split_key
from minigrad.ops.op import NoOnnx, Op, cast, op
from minigrad.ops.reduce import axes_of
from minigrad.ops.rounding import FloorDivide
from minigrad.ops.samples import Sample
from minigrad.ops.structure import axis_of, broadcast_tensors
from minigrad.ops.views import expand, freeze_key, reshape
from minigrad.tensor import Tensor, apply


# ---- whole slices by number ----------------------------------------------------------------------
def _slices(x: Tensor, dim: int, index: Tensor, name: str) -> tuple[int, tuple, Tensor]:
    """(axis, pattern, index) of the slices that a vector of numbers names."""
    axis = axis_of(x, dim, name) if x.ndim else 0
    if index.ndim > 1:
        raise ShapeError(f"{name}: expected a vector of numbers, got an index of shape {index.shape}")
    check_index(index, x.shape[axis] if x.ndim else 1, name)
    return axis, (*(slice(None),) * axis, HOLE), reshape(cast(index, int64), -1)


def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """The slices number `index` of an axis: a copy."""
    axis, pattern, index = _slices(input, dim, index, "index_select")
    return getitem(input, (*pattern[:-1], index)) if input.ndim else input.clone()


def of_number(f):
    """`f` also of a 0-d input: what it gives for a vector of one element, as a number again."""
    @wraps(f)
    def wide(input: Tensor, dim: int, index: Tensor, *args, **how):
        if input.ndim:
            return f(input, dim, index, *args, **how)
        axes_of(dim, 0, f.__name__)
        grow = lambda v: reshape(v, 1) if isinstance(v, Tensor) and not v.ndim else v
        how = {name: grow(v) if name in ("src", "source") else v for name, v in how.items()}
        return reshape(f(reshape(input, 1), 0, reshape(index, -1), *map(grow, args), **how), ())

    return wide


@of_number
def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """`input` with the slices of `source` added at `index`, each as often as it is named."""
    axis, pattern, index = _slices(input, dim, index, "index_add")
    _fits(source, (*input.shape[:axis], index.shape[0], *input.shape[axis + 1 :]), input, "index_add")
    source = source if alpha == 1 else source * alpha
    return cast(input + apply(AddAt.of(freeze_key(pattern), input.shape), source, index), input.dtype)


@of_number
def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """`input` with the slices of `source` put at `index`."""
    axis, pattern, index = _slices(input, dim, index, "index_copy")
    _fits(source, (*input.shape[:axis], index.shape[0], *input.shape[axis + 1 :]), input, "index_copy")
    return apply(PutAt.of(freeze_key(pattern)), input, source, index)


def index_fill(input: Tensor, dim: int, index: Tensor, value) -> Tensor:
    """`input` with the slices at `index` filled by a number or a 0-d tensor."""
    if not input.ndim:
        return reshape(index_fill(reshape(input, 1), dim, index, value), ())
    size = input.shape[axis_of(input, dim, "index_fill")]
    axis, _, index = _slices(input, dim, function(Where)(index < 0, index + size, index), "index_fill")
    value = literal(value, input)
    if value.ndim:
        raise ShapeError(f"index_fill: the value must be a number or a 0-d tensor, got {value.shape}")
    named = apply(PutAt.of((HOLE,)), *(Tensor(x) for x in _marks(input, input.shape[axis])), index)
    rest = reshape(named, (-1, *(1,) * (input.ndim - axis - 1)))
    return apply(Where.of(), rest, cast(value, input.dtype), input)         # a place that is named twice counts once


def _marks(x: Tensor, n: int):
    """n times False, and True, on the device of x."""
    o = algebra(x.o.device, bool_)
    return (o.full((n,), False), o.full((), True)) if o.eager else (Aval((n,), bool_), Aval((), bool_))


def index_reduce(input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True):
    """`input` with the slices of `source` joined to those at `index` by "prod", "mean", "amax" or "amin"."""
    if reduce not in ("prod", "mean", "amax", "amin"):
        raise ArgumentError(f"index_reduce: reduce {reduce!r} is not one of 'prod', 'mean', 'amax', 'amin'")
    if not input.ndim:
        return reshape(index_reduce(reshape(input, 1), dim, reshape(index, -1), reshape(source, -1), reduce,
                                    include_self=include_self), ())
    axis, _, index = _slices(input, dim, index, "index_reduce")
    _fits(source, (*input.shape[:axis], index.shape[0], *input.shape[axis + 1 :]), input, "index_reduce")
    wide = expand(reshape(index, (-1, *(1,) * (input.ndim - axis - 1))), *source.shape)
    return scatter_reduce(input, axis, wide, source, reduce, include_self=include_self)


def _fits(source: Tensor, want: tuple[int, ...], x: Tensor, name: str) -> None:
    if source.shape != want:
        raise ShapeError(f"{name}: the source has shape {source.shape}, expected {want} for an input of {x.shape}")
    if source.dtype != x.dtype:
        raise DTypeError(f"{name}: the source is {source.dtype}, the input {x.dtype}. Convert with .to(dtype)")


# ---- any places ----------------------------------------------------------------------------------
def index_put(input: Tensor, indices, values: Tensor, accumulate: bool = False) -> Tensor:
    """`input` with `values` put at (or, with `accumulate`, added to) the places input[indices]."""
    basic, pattern, index = split_key(input, tuple(indices))
    if any(isinstance(k, slice) and k != slice(None) or k is None for k in basic) or not index:
        raise TypeError(
            "index_put: the indices are tensors of integers or truth values, one for each of the first axes"
        )
    if values.dtype != input.dtype:
        raise DTypeError(f"index_put: the values are {values.dtype}, the input {input.dtype}. Convert with .to(dtype)")
    put = PutAt.of(freeze_key(pattern))
    if not accumulate:
        return apply(put, input, values, *index)
    wide = expand(values, *put.shown(input.aval, [k.aval for k in index]))
    return input + apply(AddAt.of(freeze_key(pattern), input.shape), wide, *index)


def _coordinates(x: Tensor, dim: int, index: Tensor, name: str) -> tuple[int, list[Tensor]]:
    """(axis, one index tensor for each axis): `index` along the axis, a counter along the others."""
    axis = axis_of(x, dim, name)
    check_index(index, x.shape[axis], name)
    if index.ndim != x.ndim or any(n > m for k, (n, m) in enumerate(zip(index.shape, x.shape)) if k != axis):
        raise ShapeError(
            f"{name}: index {index.shape} must have the axes of the input {x.shape} and not be larger beside dim {dim}"
        )
    grid = lambda k, n: tuple(n if i == k else 1 for i in range(x.ndim))
    count = lambda k, n: Tensor(x.o.arange(n).reshape(grid(k, n)) if x.o.eager else Aval(grid(k, n), int64))
    return axis, [cast(index, int64) if k == axis else count(k, n) for k, n in enumerate(index.shape)]


def _source(x: Tensor, index: Tensor, src, name: str) -> Tensor:
    """What goes to the places of `index`: a number, or the first elements of a tensor along each axis."""
    if not isinstance(src, Tensor):
        return cast(literal(src, x), x.dtype)
    if src.dtype != x.dtype or src.ndim != x.ndim or any(n > m for n, m in zip(index.shape, src.shape)):
        raise ShapeError(
            f"{name}: the source is {src.dtype}{list(src.shape)}, the index {index.shape}, the input {x.dtype}"
            f"{list(x.shape)}: the source must have the dtype of the input and at least the size of the index"
        )
    return getitem(src, tuple(slice(0, n) for n in index.shape))


@of_number
def scatter(input: Tensor, dim: int, index: Tensor, src=None, *, value=None, reduce: str | None = None) -> Tensor:
    """`input` with src[i][j] put at [index[i][j]][j] for dim 0, and so on; `src` may be a number."""
    src = value if src is None else src
    if reduce is not None:
        if reduce not in ("add", "multiply"):
            raise ArgumentError(f"scatter: reduce {reduce!r} is not one of 'add', 'multiply'")
        src = src if isinstance(src, Tensor) else expand(cast(literal(src, input), input.dtype), *index.shape)
        return (
            scatter_add(input, dim, index, src) if reduce == "add" else scatter_reduce(input, dim, index, src, "prod")
        )
    axis, places = _coordinates(input, dim, index, "scatter")
    return apply(PutAt.of((HOLE,) * input.ndim), input, _source(input, index, src, "scatter"), *places)


@of_number
def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """`input` with src[i][j] added at [index[i][j]][j] for dim 0, and so on, as often as a place is named."""
    axis, places = _coordinates(input, dim, index, "scatter_add")
    add = AddAt.of((HOLE,) * input.ndim, input.shape)
    return cast(input + apply(add, _source(input, index, src, "scatter_add"), *places), input.dtype)


@of_number
def scatter_reduce(
    input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """`input` with src[i][j] joined to [index[i][j]][j] by "sum", "mean", "prod", "amax" or "amin".

    Without `include_self` what stands at a named place does not count."""
    if reduce not in ("sum", "mean", "prod", "amax", "amin"):
        raise ArgumentError(f"scatter_reduce: reduce {reduce!r} is not one of 'sum', 'mean', 'prod', 'amax', 'amin'")
    axis, places = _coordinates(input, dim, index, "scatter_reduce")
    src = _source(input, index, src, "scatter_reduce")
    add = AddAt.of((HOLE,) * input.ndim, input.shape)
    hits = apply(add, cast(src.detach() == src.detach(), input.dtype) * 0 + 1, *places)
    start = input if include_self else function(Where)(hits == 0, input, literal(0, input))
    if reduce in ("sum", "mean"):
        total = start + apply(add, src, *places)
        if reduce == "sum":
            return cast(total, input.dtype)
        share = hits + int(include_self)
        share = function(Where)(share == 0, literal(1, input), share)
        return total / share if is_float(input.dtype) else function(FloorDivide)(total, share)
    return _joined(input, axis, places, src, reduce, include_self, hits)


def _joined(
    x: Tensor, axis: int, places: list[Tensor], src: Tensor, reduce: str, include_self: bool, hits: Tensor
) -> Tensor:
    """prod, amax, amin: every place sees all of `src` along the axis, what is not meant for it as the neutral
    element."""
    n = x.shape[axis]
    wide = (*x.shape[:axis], src.shape[axis], *x.shape[axis + 1 :])
    pad = lambda t, fill: _padded(t, wide, fill)
    index = reshape(pad(places[axis], -1), (*wide[:axis], 1, *wide[axis:]))  # (…, 1, m, …) beside (…, n, 1, …)
    number = reshape(Tensor(x.o.arange(n) if x.o.eager else Aval((n,), int64)), (n, *(1,) * (len(wide) - axis)))
    low, high = (-math.inf, math.inf) if is_float(x.dtype) else (0, 1) if x.dtype == bool_ else (
        int(np.iinfo(x.dtype).min), int(np.iinfo(x.dtype).max))
    neutral = {"prod": 1, "amax": low, "amin": high}[reduce]
    each = function(Where)(index == number, reshape(pad(src, 0), (*wide[:axis], 1, *wide[axis:])), literal(neutral, x))
    own = x if include_self else function(Where)(hits == 0, x, literal(neutral, x))
    from minigrad.ops.shape import cat

    both = cat([reshape(own, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :])), each], axis + 1)
    return cast(getattr(both, reduce)(axis + 1), x.dtype)


def _padded(x: Tensor, shape: tuple[int, ...], value) -> Tensor:
    from minigrad.ops.shape import Pad

    widths = tuple((0, m - n) for n, m in zip(x.shape, shape))
    return apply(Pad.of(widths, value), x) if any(b for _, b in widths) else x


# ---- by truth tensors ----------------------------------------------------------------------------
def _mask(x: Tensor, mask: Tensor, name: str) -> Tensor:
    if not isinstance(mask, Tensor) or mask.dtype != bool_:
        raise DTypeError(f"{name}: the mask must be a bool tensor, got {getattr(mask, 'dtype', type(mask).__name__)}")
    return mask


def masked_fill(input: Tensor, mask: Tensor, value) -> Tensor:
    """`input` with a number or a 0-d tensor where the mask holds."""
    given, value = isinstance(value, Tensor), literal(value, input)
    if value.ndim:
        raise ShapeError(f"masked_fill: the value must be a number or a 0-d tensor, got {value.shape}. Use mg.where")
    if given and is_float(value.dtype) and not is_float(input.dtype):
        raise DTypeError(f"masked_fill: a value of {value.dtype} does not fit into a {input.dtype} tensor")
    return apply(Where.of(), _mask(input, mask, "masked_fill"), cast(value, input.dtype), input)


def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """The elements where the mask holds, as a vector; the two broadcast."""
    shape = np.broadcast_shapes(input.shape, _mask(input, mask, "masked_select").shape)
    return getitem(reshape(expand(input, *shape), -1), reshape(expand(mask, *shape), -1))


def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """`input` with the first elements of `source`, in order, where the mask holds."""
    input, mask = broadcast_tensors(input, _mask(input, mask, "masked_scatter"))
    if source.dtype != input.dtype:
        raise DTypeError(f"masked_scatter: the source is {source.dtype}, the input {input.dtype}. Use .to(dtype)")
    at = getitem(_counter(input), mask)
    n = at.shape[0]
    if math.prod(source.shape) < n:
        raise ShapeError(f"masked_scatter: the mask holds {n} times, the source has {math.prod(source.shape)} elements")
    flat = apply(PutAt.of((HOLE,)), reshape(input, -1), getitem(reshape(source, -1), slice(0, n)), at)
    return reshape(flat, input.shape)


def _counter(x: Tensor) -> Tensor:
    return reshape(Tensor(x.o.arange(math.prod(x.shape))), x.shape)


# ---- others --------------------------------------------------------------------------------------
def take(input: Tensor, index: Tensor) -> Tensor:
    """Elements of the flattened tensor by number, in the shape of `index`."""
    if is_float(index.dtype) or index.dtype == bool_:
        raise DTypeError(f"take: expected an integer index, got {index.dtype}")
    n = math.prod(input.shape)
    _in_range(index, n, "take")
    return getitem(reshape(input, -1), index)


def _in_range(index: Tensor, n: int, name: str) -> None:
    """Refuse numbers outside -n … n-1."""
    if index.o.eager and index.array.size:
        low, high = int(index.array.min().item()), int(index.array.max().item())
        if low < -n or high >= n:
            raise PlaceError(f"{name}: index goes from {low} to {high}, outside {-n} … {n - 1}")


def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """The flattened tensor with `source` put at (or added to) the places `index`, in its own shape."""
    n = math.prod(input.shape)
    if math.prod(index.shape) != math.prod(source.shape):
        raise ShapeError(f"put: {index.shape} places and {source.shape} elements: give as many")
    _in_range(index, n, "put")
    return reshape(index_put(reshape(input, -1), (reshape(index, -1),), reshape(source, -1), accumulate), input.shape)


def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """As `gather`, but the two broadcast beside `dim`; without it over the flattened tensors."""
    if dim is None:
        return gather(reshape(input, -1), 0, reshape(indices, -1))
    (axis,) = axes_of(dim, input.ndim, "take_along_dim") or (0,)
    beside = lambda x: (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    common = np.broadcast_shapes(beside(input), beside(indices))
    wide = lambda x: expand(x, *common[:axis], x.shape[axis], *common[axis + 1 :])
    n = input.shape[axis]
    _in_range(indices, n, "take_along_dim")
    return gather(wide(input), axis, wide(function(Where)(indices < 0, indices + n, indices)))


def nonzero(input: Tensor, *, as_tuple: bool = False):
    """Where the elements that are not 0 stand: (number, axes), or one vector for each axis.  Looks at the values."""
    if not input.o.eager:
        raise RuntimeError("nonzero: how many elements are not 0 is not known on meta")
    found = [Tensor(input.o.upload(p)) for p in np.nonzero(np.atleast_1d(input.o.host(input.array)))]
    if as_tuple:
        return tuple(found)
    from minigrad.ops.shape import stack

    return stack(found, 1) if input.ndim else reshape(found[0], (-1, 1))[:, :0]


@op
class SearchSorted(Op):
    """Where each v would go into a sorted last axis of x; `right`: after equal ones.  No gradient"""

    right: bool = False
    as_is, onnx = ("x", "v"), NoOnnx("no search")

    def forward(self, o, x, v):
        side = "right" if self.right else "left"
        if len(x.shape) == 1:
            return o.xp.searchsorted(x, v, side=side)
        below = x[..., None, :] <= v[..., None] if self.right else x[..., None, :] < v[..., None]
        return below.sum(-1)

    def reference(self, x, v):
        if x.ndim == 1:
            return (
                np.searchsorted(np.sort(x), v, "right" if self.right else "left")
                if (np.diff(x) >= 0).all()
                else self.forward(type("o", (), {"xp": np}), x, v)
            )
        return self.forward(None, x, v)

    def infer(self, x: Aval, v: Aval) -> Aval:
        if x.ndim > 1 and x.shape[:-1] != v.shape[:-1]:
            raise ShapeError(f"searchsorted: rows {x.shape} and values {v.shape} must agree before the last axis")
        return Aval(v.shape, int64)

    @classmethod
    def samples(cls) -> list[Sample]:
        return [
            Sample(cls.of(r), (x, v))
            for r in (False, True)
            for x, v in (("rising(5)", "normal(2,3)"), ("rising(2,4)", "normal(2,3)"))
        ]


def searchsorted(sorted_sequence: Tensor, input, *, out_int32: bool = False, right: bool = False,
                 side: str | None = None, sorter: Tensor | None = None) -> Tensor:
    """Where each value would go into the sorted last axis; `right` (or side "right"): after equal ones.
    `sorter` gives the order in which the sequence is sorted."""
    if side not in (None, "left", "right") or (side == "left" and right):
        raise ArgumentError(f"searchsorted: side {side!r} is not 'left' or 'right', or contradicts right={right}")
    value = literal(input, sorted_sequence)
    right = right or side == "right"
    if sorter is not None:
        if sorter.shape != sorted_sequence.shape or sorter.dtype != int64:
            raise ShapeError(f"searchsorted: the sorter must be int64 {sorted_sequence.shape}, got {sorter.dtype} "
                             f"{sorter.shape}")
        sorted_sequence = gather(sorted_sequence, -1, sorter)
    found = apply(SearchSorted.of(bool(right)), sorted_sequence, value)
    return cast(found, int32) if out_int32 else found


def bucketize(input, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """The number of the bucket of each value between sorted boundaries."""
    if boundaries.ndim != 1:
        raise ShapeError(f"bucketize: the boundaries must be a vector, got {boundaries.shape}")
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)
