"""Order: sort, topk, kthvalue, median, quantile, unique.  NaN counts as the largest, as in PyTorch.  After
`scan.py`."""

from __future__ import annotations

import math

import numpy as np

from minigrad import kernels
from minigrad.algebra import reduced
from minigrad.aval import Aval
from minigrad.dtype import int64, is_float
from minigrad.errors import ArgumentError, DTypeError, PlaceError, ShapeError
from minigrad.ops.doors import function, literal
from minigrad.ops.elementwise import Where
from minigrad.ops.op import NoOnnx, Op, cast, op
from minigrad.ops.reduce import axes_of
from minigrad.ops.reduce_functions import Found, any as any_of, mean, sum
from minigrad.ops.samples import Sample
from minigrad.ops.scan import along
from minigrad.ops.shape import stack
from minigrad.ops.views import cut, permute, reshape, squeeze
from minigrad.tensor import Tensor, apply


class Ordered(Op):
    """(values, index) along an axis in order; the gradient of a value goes where it came from."""

    extra = ("index",)

    def dx(self, o, g, x_shape, index):
        return o.add_along(g, index, self.axis, x_shape[self.axis])

    def flops(self, y: Aval, x: Aval) -> int:
        return x.size * max(1, math.ceil(math.log2(max(x.shape[self.axis], 2))))

    def order(self, o, x, descending: bool):
        """The stable order; descending: that of the reversed axis, reversed, so that equal elements keep theirs."""
        if not descending:
            return o.argsort(x, self.axis)
        back = along(self.axis, slice(None, None, -1))
        return x.shape[self.axis] - 1 - o.argsort(x[back], self.axis)[back]


@op
class Sort(Ordered):
    """The elements along an axis in order, and where each came from; equal ones keep their order"""

    axis: int
    descending: bool = False
    onnx = NoOnnx("TopK of all")

    def forward(self, o, x):
        index = self.order(o, x, self.descending)
        return o.take_along(x, index, self.axis), index

    def infer(self, x: Aval):
        return Aval(x.shape, x.dtype), Aval(x.shape, int64)

    def reference(self, x):
        y = np.sort(x, self.axis)
        return np.flip(y, self.axis) if self.descending else y

    @classmethod
    def samples(cls) -> list[Sample]:
        return [
            Sample(cls.of(a, d), (s,))
            for a, d, s in ((0, False, "spread(3,4)"), (1, True, "spread(4,3).T"), (0, True, "spread(5)"))
        ]


@op
class TopK(Ordered):
    """The k largest (or smallest) along an axis, in order, and where they stand"""

    axis: int
    k: int
    largest: bool = True
    onnx = "TopK"

    def forward(self, o, x):
        index = self.partitioned(x)
        if index is None:
            index = self.order(o, x, self.largest)[along(self.axis, slice(0, self.k))]
        return o.take_along(x, index, self.axis), index

    def partitioned(self, x):
        """The index without a sort, on the host and where it pays."""
        if not kernels.serves(x) or not 0 < 8 * self.k <= x.shape[self.axis]:
            return None
        index = kernels.first(x.swapaxes(self.axis, -1), self.k, self.largest)
        return index if index is None else np.ascontiguousarray(index.swapaxes(self.axis, -1))

    def infer(self, x: Aval):
        if not 0 <= self.k <= x.shape[self.axis]:
            raise ShapeError(f"topk: {self.k} of {x.shape[self.axis]} elements along dim {self.axis} of {x.shape}")
        shape = (*x.shape[: self.axis], self.k, *x.shape[self.axis + 1 :])
        return Aval(shape, x.dtype), Aval(shape, int64)

    def reference(self, x):
        y = np.sort(x, self.axis)
        return np.take(np.flip(y, self.axis) if self.largest else y, range(self.k), self.axis)

    @classmethod
    def samples(cls) -> list[Sample]:
        return [
            Sample(cls.of(*w), (s,))
            for w, s in (((0, 2), "spread(3,4)"), ((1, 3, False), "spread(4,3).T"), ((0, 0), "spread(3)"))
        ]


# ---- as functions --------------------------------------------------------------------------------
def _axis(x: Tensor, dim: int, name: str) -> int:
    return (axes_of(dim, x.ndim, name) or (0,))[0]


def _of_number(f, x: Tensor):
    """A function of vectors on a 0-d tensor."""
    return Found(*(reshape(t, ()) for t in f(reshape(x, 1))))


def sort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> tuple[Tensor, Tensor]:
    """(values in order, where they came from) along `dim`; always stable."""
    axis = _axis(input, dim, "sort")
    return Found(*apply(Sort.of(axis, bool(descending)), input)) if input.ndim else _of_number(sort, input)


def argsort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    """The order along `dim`: where the first, second, … element stands."""
    return sort(input.detach(), dim, descending)[1]


def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:
    """(the k largest or smallest along `dim`, where they stand), always in order."""
    axis = _axis(input, dim, "topk")
    if not input.ndim:
        return _of_number(lambda x: topk(x, k), input)
    best = TopK.of(axis, int(k), bool(largest))
    best.infer(input.aval)
    return Found(*apply(best, input))


def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """(the k-th smallest along `dim`, counted from 1, where it stands)."""
    axis = _axis(input, dim, "kthvalue")
    if not input.ndim:
        return _of_number(lambda x: kthvalue(x, k), input)
    if not 1 <= k <= input.shape[axis]:
        raise ShapeError(f"kthvalue: number {k} of {input.shape[axis]} elements along dim {dim}; the first is 1")
    pick = lambda t: cut(t, along(axis, slice(k - 1, k) if keepdim else k - 1))
    values, index = sort(input, axis)
    return Found(pick(values), pick(index))


def _shared(flat: Tensor, y: Tensor) -> Tensor:
    """`y`, one of the elements of `flat`, with a gradient that all elements equal to it share."""
    if not flat.requires_grad or not y.o.eager:
        return y
    value = y.detach()
    return mean(flat[flat == value if bool(value == value) else flat != flat])


def median(input: Tensor, dim: int | None = None, keepdim: bool = False):
    """The middle element (of two the lower), of all or, as (values, indices), along `dim`; NaN where there is one.
    Of all elements, equal ones share the gradient."""
    if dim is None:
        flat = reshape(input, -1)
        return _shared(flat, median(flat, 0)[0]) if flat.shape[0] else sum(flat) + math.nan
    axis = _axis(input, dim, "median")
    if not input.ndim:
        return _of_number(lambda x: median(x, 0, True), input)
    if not input.shape[axis]:
        raise PlaceError(f"median: no element along dim {dim} of {input.shape}")
    k = (input.shape[axis] + 1) // 2
    y, index = kthvalue(input, k, axis, keepdim)
    if not is_float(input.dtype):
        return Found(y, index)
    last, at = kthvalue(input, input.shape[axis], axis, keepdim)  # a NaN is sorted last
    bad = last != last
    return Found(function(Where)(bad, last, y), function(Where)(bad, at, index))


def quantile(
    input: Tensor, q, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Tensor:
    """The values below which shares `q` of the elements lie, with straight lines between the elements."""
    ways = {"linear": None, "lower": math.floor, "higher": math.ceil, "nearest": round, "midpoint": None}
    if interpolation not in ways or not is_float(input.dtype):
        raise ArgumentError(
            f"quantile: interpolation {interpolation!r} is one of {', '.join(ways)}; input {input.dtype} must be float"
        )
    if isinstance(q, Tensor) and (q.ndim > 1 or q.dtype != input.dtype):
        raise ArgumentError(f"quantile: q must be a number or a vector of {input.dtype}, got {q.dtype}{list(q.shape)}")
    shares = q.tolist() if isinstance(q, Tensor) else q
    x = reshape(input, -1) if dim is None or not input.ndim else input
    axis = _axis(input, 0 if dim is None else dim, "quantile") if x.ndim == input.ndim else 0
    many = isinstance(shares, list | tuple)
    if not x.shape[axis] or any(not 0 <= s <= 1 for s in (shares if many else [shares])):
        raise ArgumentError(f"quantile: q must lie in [0, 1], got {shares}, of at least one element, got {input.shape}")
    values = sort(x, axis)[0]
    parts = [cut(q, (k,)) for k in range(len(shares))] if isinstance(q, Tensor) and many else [q]
    exact = parts if isinstance(q, Tensor) and q.node is not None else list(shares) if many else [shares]
    found = [_between(values, x, axis, s, e, interpolation, ways[interpolation])
             for s, e in zip(shares if many else [shares], exact)]
    if dim is None or not input.ndim:
        found = [reshape(y, (1,) * input.ndim if keepdim else ()) for y in found]
    elif not keepdim:
        found = [squeeze(y, axis) for y in found]
    return stack(found, 0) if many else found[0]


def _between(values: Tensor, x: Tensor, axis: int, share: float, exact, how: str, rounded) -> Tensor:
    """The element at place share · (n - 1) of sorted values, between its neighbours; NaN where there is one.
    `exact` is the share again, as a Tensor where its gradient is wanted."""
    n = values.shape[axis]
    place = share * (n - 1)
    place = rounded(place) if rounded else place
    low, high = math.floor(place), math.ceil(place)
    at = lambda k: cut(values, along(axis, slice(k, k + 1)))
    if how == "linear":
        y = at(low) + (at(high) - at(low)) * (exact * (n - 1) - low) if low != high or exact is not share else at(low)
    else:
        y = at(low) if low == high else (at(low) + at(high)) * 0.5
    return function(Where)(any_of(x != x, axis, True), literal(math.nan, x), y)


def nanquantile(
    input: Tensor, q, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Tensor:
    """As `quantile`, of what is not NaN in each row; NaN where nothing is."""
    x = reshape(input, -1) if dim is None or not input.ndim else input
    axis = _axis(x, 0 if dim is None else dim, "nanquantile")
    rows = movedim_last(x, axis)
    flat = reshape(rows, (-1, x.shape[axis]))
    nan = literal(math.nan, input)
    each = [row[row == row] for row in flat]
    found = [quantile(row, q, interpolation=interpolation) if row.shape[0] else quantile(reshape(nan, 1), q)
             for row in each]
    lead = found[0].shape if found else ()
    y = reshape(stack(found, len(lead)), (*lead, *rows.shape[:-1]))
    if keepdim:
        return reshape(y, (*lead, *((1,) * input.ndim if dim is None else
                                    (*x.shape[:axis], 1, *x.shape[axis + 1 :])[: input.ndim])))
    return y


def movedim_last(x: Tensor, axis: int) -> Tensor:
    """One axis behind the others."""
    return permute(x, *(k for k in range(x.ndim) if k != axis), axis)


def nanmedian(input: Tensor, dim: int | None = None, keepdim: bool = False):
    """As `median`, of what is not NaN; NaN where nothing is."""
    if not is_float(input.dtype):
        return median(input, dim, keepdim)
    if dim is None:
        flat = reshape(input, -1)
        kept = flat[flat == flat]
        return median(kept) if kept.shape[0] or not flat.shape[0] else flat[0] * 1
    if not input.ndim:
        return _of_number(lambda x: nanmedian(x, 0, True), input)
    axis = _axis(input, dim, "nanmedian")
    if not input.shape[axis]:
        raise PlaceError(f"nanmedian: no element along dim {dim} of {input.shape}")
    values, order = sort(input, axis)
    kept = sum(cast(input == input, int64), axis, True)
    middle = function(Where)(kept > 0, (kept - 1) // 2, kept)
    y, index = values.gather(axis, middle), order.gather(axis, middle)
    return Found(y, index) if keepdim else Found(squeeze(y, axis), squeeze(index, axis))


def msort(input: Tensor) -> Tensor:
    """Sorted along the first axis."""
    return sort(input, 0)[0]


def _on_host(x: Tensor, name: str) -> np.ndarray:
    if not x.o.eager:
        raise RuntimeError(f"{name}: the size of the result depends on the values, which a meta tensor has not")
    return x.o.host(x.array)


def unique(
    input: Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
):
    """The different elements (or slices along `dim`) in order; on request where each element went, and how often
    each occurs."""
    host = _on_host(input, "unique")
    dim = None if dim is None else _axis(input, dim, "unique")
    if not input.ndim:
        host = host.reshape(1)
    y, inverse, counts = np.unique(host, return_inverse=True, return_counts=True, axis=dim)
    shape = (input.shape[dim],) if dim is not None and input.ndim else input.shape
    return _answers(input, y, inverse.reshape(shape), counts, return_inverse, return_counts)


def unique_consecutive(
    input: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
):
    """The elements (or slices along `dim`) without those that equal the one before; on request where each went, and
    how long each run is."""
    host = _on_host(input, "unique_consecutive")
    axis = 0 if dim is None else _axis(input, dim, "unique_consecutive")
    rows = host.reshape(-1) if dim is None or not input.ndim else np.moveaxis(host, axis, 0)
    new = np.ones(len(rows), bool)
    new[1:] = (rows[1:] != rows[:-1]).any(tuple(range(1, rows.ndim)))
    inverse, places = np.cumsum(new) - 1, np.flatnonzero(new)
    kept = rows[new] if dim is None or not input.ndim else np.moveaxis(rows[new], 0, axis)
    shape = (len(rows),) if dim is not None and input.ndim else input.shape
    counts = np.diff([*places, len(rows)])
    return _answers(input, kept, inverse.reshape(shape), counts, return_inverse, return_counts)


def _answers(x: Tensor, y, inverse, counts, return_inverse: bool, return_counts: bool):
    lift = lambda a: Tensor(x.o.upload(np.array(a, order="C")))
    found = [lift(y)] + [lift(inverse)] * return_inverse + [lift(counts)] * return_counts
    return tuple(found) if len(found) > 1 else found[0]


def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each number from 0 occurs, or the sum of the weights there."""
    host = _on_host(input, "bincount")
    if host.ndim != 1 or is_float(input.dtype) or (host.size and host.min() < 0):
        raise DTypeError(f"bincount: expected a vector of integers from 0, got {input.dtype}{list(input.shape)}")
    if minlength < 0 or (weights is not None and weights.shape != input.shape):
        raise ShapeError(f"bincount: minlength {minlength} must not be negative, and the weights must have the shape "
                         f"{input.shape}")
    found = np.bincount(host, None if weights is None else _on_host(weights, "bincount"), minlength)
    kind = found.dtype if weights is None else weights.dtype if is_float(weights.dtype) else np.dtype("f8")
    return Tensor(input.o.upload(found.astype(kind)))


def histc(input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """How many elements lie in each of `bins` equal intervals from min to max (both 0: from the data)."""
    host = _on_host(input, "histc")
    if bins < 1 or min > max:
        raise ArgumentError(f"histc: {bins} bins from {min} to {max}")
    low, high = (min, max) if min != max else (host.min(), host.max()) if host.size else (0, 1)
    low, high = (low - 1, high + 1) if low == high else (low, high)
    return Tensor(input.o.upload(np.histogram(host, bins, (low, high))[0].astype(input.dtype)))


def mode(input: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """(the commonest element along `dim`, of several the smallest, where its last one stands)."""
    axis = _axis(input, dim, "mode")
    if not input.ndim:
        return _of_number(lambda x: mode(x, 0, True), input)
    same = cast(_beside(input, axis, 1) == _beside(input, axis, 0), int64)  # (…, n, n, …)
    counts = sum(same, axis + 1)
    ordered, index = sort(input, axis)
    best = counts.gather(axis, index).argmax(axis, True)
    value = ordered.gather(axis, best)
    place = ((input == value).to(int64) * (cumulative(input, axis) + 1)).argmax(axis, True)
    y = input.gather(axis, place)
    return Found(y, place) if keepdim else Found(squeeze(y, axis), squeeze(place, axis))


def _beside(x: Tensor, axis: int, after: int) -> Tensor:
    return reshape(x, (*x.shape[: axis + after], 1, *x.shape[axis + after :]))


def cumulative(x: Tensor, axis: int) -> Tensor:
    """0, 1, 2, … along an axis, to be broadcast."""
    shape = reduced((1,) * x.ndim, None, True)
    n = x.shape[axis]
    return reshape(Tensor(x.o.arange(n) if x.o.eager else Aval((n,), int64)), (*shape[:axis], n, *shape[axis + 1 :]))
