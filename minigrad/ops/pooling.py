"""Pooling: means and maxima over windows, of one or more last axes, with PyTorch's rules for the border.  After
`conv.py`."""

from __future__ import annotations

import math
from functools import reduce

import numpy as np

from minigrad.algebra import algebra
from minigrad.aval import Aval
from minigrad.device import CPU
from minigrad.dtype import float64, int64, is_float
from minigrad.errors import ArgumentError, DTypeError, ShapeError
from minigrad.ops.conv import MaxPool2d, lowest, pair
from minigrad.ops.doors import function, literal
from minigrad.ops.elementwise import Abs, Sign
from minigrad.ops.matmul import MatMul
from minigrad.ops.op import Op, op
from minigrad.ops.reduce_functions import max as max_along
from minigrad.ops.rounding import FloorDivide, Remainder
from minigrad.ops.samples import Sample
from minigrad.ops.shape import Pad, stack
from minigrad.ops.views import cut, flatten, reshape, unsqueeze
from minigrad.tensor import Tensor, apply

Sizes = tuple[int, ...]


def pooled(n: int, kernel: int, stride: int, padding: int, ceil: bool, dilation: int = 1) -> int:
    """How many windows fit; with `ceil` one may hang over the end, but none begins in the border after it."""
    rest = n + 2 * padding - dilation * (kernel - 1) - 1
    count = (-(-rest // stride) if ceil else rest // stride) + 1
    return count - 1 if ceil and (count - 1) * stride >= n + padding else count


@op
class AvgPool(Op):
    """The mean of each window of the last axes.  `whole`: the border counts; `divisor` takes the place of the count"""

    kernel: Sizes
    stride: Sizes
    padding: Sizes
    ceil: bool = False
    whole: bool = True
    divisor: int | None = None
    onnx = "AveragePool"

    def _sizes(self, shape) -> list[tuple[int, int, int, int, int]]:
        """(n, kernel, stride, padding, windows) of each pooled axis."""
        rows = zip(shape[-len(self.kernel) :], self.kernel, self.stride, self.padding)
        return [(n, k, s, p, pooled(n, k, s, p, self.ceil)) for n, k, s, p in rows]

    def _widths(self, shape) -> tuple[tuple[int, int], ...]:
        over = [max(0, (m - 1) * s + k - n - 2 * p) for n, k, s, p, m in self._sizes(shape)]
        return ((0, 0),) * (len(shape) - len(over)) + tuple((p, p + e) for p, e in zip(self.padding, over))

    def share(self, o, shape):
        """1 / the count of each window: a number where all are equal, else an array."""
        if self.divisor is not None or (not self.ceil and (self.whole or not any(self.padding))):
            return o.lit(1 / (self.divisor or math.prod(self.kernel)))
        return o.constant(1 / reduce(np.multiply.outer, [self._counts(*row) for row in self._sizes(shape)]))

    def _counts(self, n: int, k: int, s: int, p: int, m: int) -> np.ndarray:
        start = np.arange(m) * s - p
        end = np.minimum(start + k, n + p)
        return end - start if self.whole else np.minimum(end, n) - np.maximum(start, 0)

    def forward(self, o, x):
        widths = self._widths(x.shape)
        w = o.pad(x, widths) if any(map(any, widths)) else x
        w = o.windows(w, self.kernel, self.stride, (1,) * len(self.kernel))
        cells = [o.cut(w, (Ellipsis, *at)) for at in np.ndindex(*self.kernel)]  # faster than a sum over tiny axes
        return reduce(lambda a, b: a + b, cells) * self.share(o, x.shape)

    def dx(self, o, g, x_shape):
        widths, n = self._widths(x_shape), len(self.kernel)
        cells = o.reshape(g * self.share(o, x_shape), (*g.shape, *(1,) * n))
        wide = tuple(m + a + b for m, (a, b) in zip(x_shape, widths))
        x = o.fold(o.broadcast_to(cells, (*g.shape, *self.kernel)), wide, self.stride, (1,) * n)
        return o.cut(x, tuple(slice(a, a + m) for m, (a, _) in zip(x_shape, widths)))

    def infer(self, x: Aval) -> Aval:
        n, name = len(self.kernel), f"avg_pool{len(self.kernel)}d"
        if x.ndim not in (n + 1, n + 2):
            raise ShapeError(f"{name}: expected {n + 1} or {n + 2} axes, got {x.shape}")
        if any(2 * p > k for p, k in zip(self.padding, self.kernel)):
            raise ShapeError(f"{name}: padding {self.padding} may be at most half the kernel {self.kernel}")
        sizes = tuple(m for *_, m in self._sizes(x.shape))
        if min(sizes) < 1:
            raise ShapeError(
                f"{name}: the kernel {self.kernel} is larger than the padded input: {x.shape}, padding {self.padding}"
            )
        return Aval((*x.shape[:-n], *sizes), x.dtype)

    def flops(self, y: Aval, x: Aval) -> int:
        return y.size * math.prod(self.kernel)

    @classmethod
    def samples(cls) -> list[Sample]:
        flat = [
            ((2,), (2,), (0,), True),
            ((3,), (2,), (1,), True),
            ((3,), (2,), (1,), True, False),
            ((2,), (1,), (1,), False, False, 3),
        ]
        wide = [((2, 2), (2, 2), (0, 0)), ((3, 2), (1, 2), (1, 1)), ((2, 3), (2, 1), (1, 1), True, False)]
        return [Sample(cls.of(*w), ("normal(2,2,5)",)) for w in flat] + [
            Sample(cls.of(*w), ("normal(2,1,4,5)",)) for w in wide
        ]


# ---- as functions --------------------------------------------------------------------------------
def sizes_of(v, n: int, name: str) -> Sizes:
    """One number for each of n axes, or one for all."""
    p = (v,) * n if isinstance(v, int | np.integer) else tuple(v)
    p = p * n if len(p) == 1 else p
    if len(p) != n or not all(isinstance(m, int | np.integer) for m in p):
        raise ArgumentError(f"{name}: expected an integer or {n} of them, got {v!r}")
    return tuple(map(int, p))


def _avg_pool(
    x: Tensor, n: int, kernel_size, stride, padding, ceil_mode: bool, whole: bool, divisor: int | None
) -> Tensor:
    kernel = sizes_of(kernel_size, n, "kernel_size")
    steps = kernel if stride is None or stride == () else sizes_of(stride, n, "stride")
    if min(*kernel, *steps) < 1 or divisor == 0:
        raise ArgumentError(f"avg_pool{n}d: kernel {kernel} and stride {steps} must be at least 1, "
                            "divisor_override not 0")
    if min(sizes_of(padding, n, "padding")) < 0:
        raise ArgumentError(f"avg_pool{n}d: pad must be non-negative, got {padding}")
    how = (kernel, steps, sizes_of(padding, n, "padding"), bool(ceil_mode), bool(whole))
    pool = AvgPool.of(*how, divisor)
    pool.infer(x.aval)
    return apply(pool, x) if is_float(x.dtype) else _whole_means(x, pool, AvgPool.of(*how, 1))


def _whole_means(x: Tensor, pool: AvgPool, sums: AvgPool) -> Tensor:
    """The means of integers: sums divided by the counts, rounded towards zero."""
    if x.dtype != int64:
        raise DTypeError(f"avg_pool: expected floats or int64, got {x.dtype}. Convert with .float()")
    total = apply(sums, x)
    share = pool.share(algebra(CPU, float64), x.shape)
    counts = np.broadcast_to(np.rint(1 / np.asarray(share)).astype(np.int64), total.shape[x.ndim - np.ndim(share):])
    size = function(Abs)(total)
    host = np.ascontiguousarray(np.abs(counts))
    by = Tensor(x.o.upload(host) if x.o.eager else Aval(host.shape, int64))
    sign = Tensor(x.o.upload(np.sign(counts)) if x.o.eager else Aval(host.shape, int64))
    return function(Sign)(total) * sign * function(FloorDivide)(size, by)


def avg_pool1d(
    input: Tensor, kernel_size, stride=None, padding=0, ceil_mode: bool = False, count_include_pad: bool = True
) -> Tensor:
    """The mean of each window of (N, C, L) or (C, L)."""
    return _avg_pool(input, 1, kernel_size, stride, padding, ceil_mode, count_include_pad, None)


def avg_pool2d(
    input: Tensor,
    kernel_size,
    stride=None,
    padding=0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window of (N, C, H, W) or (C, H, W); the border of zeros counts unless told otherwise."""
    return _avg_pool(input, 2, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def max_pool2d(
    input: Tensor,
    kernel_size,
    stride=None,
    padding=0,
    dilation=1,
    ceil_mode: bool = False,
    return_indices: bool = False,
):
    """The largest of each window of (…, H, W); with `return_indices` also its place in the flattened image."""
    kernel, padding, dilation = pair(kernel_size, "kernel_size"), pair(padding, "padding"), pair(dilation, "dilation")
    stride = kernel if stride is None or stride == () else pair(stride, "stride")
    if min(*kernel, *stride, *dilation) < 1 or min(padding) < 0 or input.ndim not in (3, 4):
        raise ShapeError(
            f"max_pool2d: kernel {kernel}, stride {stride}, dilation {dilation} must be at least 1, padding {padding} "
            f"at least 0, and the input (N, C, H, W) or (C, H, W), got {input.shape}"
        )
    pool = MaxPool2d.of(kernel, stride, padding, dilation)
    x = _overhanging(input, pool) if ceil_mode else input
    pool.infer(x.aval)
    y, index = apply(pool, x)
    return (y, _places(reshape(index, y.shape), pool, input.shape[-1])) if return_indices else y


def _overhanging(x: Tensor, pool: MaxPool2d) -> Tensor:
    """`x` with minus infinity after its end, where windows hang over."""
    rows = list(zip(x.shape[-2:], pool.kernel, pool.stride, pool.padding, pool.dilation))
    over = [max(0, (pooled(n, k, s, p, True, d) - 1) * s + d * (k - 1) + 1 - n - 2 * p) for n, k, s, p, d in rows]
    return apply(Pad.of(((0, 0),) * (x.ndim - 2) + tuple((0, e) for e in over), lowest(x.dtype)), x) if any(over) else x


def _places(index: Tensor, pool: MaxPool2d, width: int) -> Tensor:
    """Numbers of cells in a window as numbers of pixels in the image."""
    k = literal(pool.kernel[1], index)
    at = []
    for axis, cell in ((0, function(FloorDivide)(index, k)), (1, function(Remainder)(index, k))):
        host = np.arange(index.shape[axis - 2]) * pool.stride[axis] - pool.padding[axis]
        start = index.o.constant(host if axis else host[:, None]) if index.o.eager else Aval((), index.dtype)
        at.append(Tensor(start) + cell * pool.dilation[axis])
    return at[0] * width + at[1]


def max_pool1d(
    input: Tensor,
    kernel_size,
    stride=None,
    padding=0,
    dilation=1,
    ceil_mode: bool = False,
    return_indices: bool = False,
):
    """The largest of each window of (N, C, L) or (C, L)."""
    if input.ndim not in (2, 3) or 0 in input.shape[-2:]:
        raise ShapeError(f"max_pool1d: expected (N, C, L) or (C, L), got {input.shape}")
    one = lambda v, fill: (fill, *sizes_of(v, 1, "max_pool1d"))
    steps = None if stride is None or stride == () else one(stride, 1)
    y = max_pool2d(
        unsqueeze(input, -2), one(kernel_size, 1), steps, one(padding, 0), one(dilation, 1), ceil_mode, return_indices
    )
    flat = lambda t: reshape(t, (*input.shape[:-1], t.shape[-1]))
    return (flat(y[0]), flat(y[1])) if return_indices else flat(y)


# ---- adaptive: as many windows as asked for ------------------------------------------------------
def cells_of(n: int, m: int) -> list[slice]:
    """Where the m windows of an axis of length n begin and end."""
    return [slice(i * n // m, -(-(i + 1) * n // m)) for i in range(m)]


def _wanted(x: Tensor, output_size, n: int, name: str) -> Sizes:
    if x.ndim not in (n + 1, n + 2) or 0 in x.shape[-n:]:
        raise ShapeError(f"{name}: expected {n + 1} or {n + 2} axes with elements, got {x.shape}")
    want = (output_size,) * n if output_size is None or isinstance(output_size, int) else tuple(output_size)
    if len(want) != n:
        raise ArgumentError(f"{name}: output_size {output_size!r} is no integer and no {n} of them")
    if any(w is not None and w < 0 for w in want):
        raise ArgumentError(f"{name}: output_size {output_size!r} must be at least 0")
    return tuple(m if w is None else int(w) for w, m in zip(want, x.shape[-n:]))


def _averaging(x: Tensor, n: int, m: int) -> Tensor:
    """The matrix (n, m) that averages the cells of an axis."""
    host = np.zeros((n, m))
    for k, cell in enumerate(cells_of(n, m)):
        host[cell, k] = 1 / (cell.stop - cell.start)
    return Tensor(x.o.constant(host) if x.o.eager else Aval((n, m), x.dtype))


def _adaptive_avg(x: Tensor, want: Sizes) -> Tensor:
    size = x.shape[-len(want) :]
    if all(m and n % m == 0 for n, m in zip(size, want)):
        kernel = tuple(n // m for n, m in zip(size, want))
        return apply(AvgPool.of(kernel, kernel, (0,) * len(want)), x)
    y = function(MatMul)(x, _averaging(x, size[-1], want[-1]))
    return y if len(want) == 1 else function(MatMul)(_averaging(x, size[0], want[0]).t(), y)


def adaptive_avg_pool1d(input: Tensor, output_size) -> Tensor:
    """The means of `output_size` windows that cover (…, L)."""
    return _adaptive_avg(input, _wanted(input, output_size, 1, "adaptive_avg_pool1d"))


def adaptive_avg_pool2d(input: Tensor, output_size) -> Tensor:
    """The means of windows that cover (…, H, W), as many as `output_size` says; None keeps a size."""
    return _adaptive_avg(input, _wanted(input, output_size, 2, "adaptive_avg_pool2d"))


def adaptive_max_pool2d(input: Tensor, output_size, return_indices: bool = False):
    """The largest of windows that cover (…, H, W), as many as `output_size` says; None keeps a size."""
    want = _wanted(input, output_size, 2, "adaptive_max_pool2d")
    width = input.shape[-1]
    values: list[Tensor] = []
    places: list[Tensor] = []
    for down in cells_of(input.shape[-2], want[0]):
        for across in cells_of(width, want[1]):
            cell = cut(input, (Ellipsis, down, across))
            value, at = max_along(flatten(cell, -2), -1)
            row, column = (function(f)(at, literal(across.stop - across.start, at)) for f in (FloorDivide, Remainder))
            values, places = [*values, value], [*places, (row + down.start) * width + column + across.start]
    laid = lambda ts: reshape(stack(ts, -1), (*input.shape[:-2], *want))
    return (laid(values), laid(places)) if return_indices else laid(values)


def adaptive_max_pool1d(input: Tensor, output_size, return_indices: bool = False):
    """The largest of `output_size` windows that cover (…, L)."""
    (want,) = _wanted(input, output_size, 1, "adaptive_max_pool1d")
    y = adaptive_max_pool2d(unsqueeze(input, -2), (1, want), return_indices)
    flat = lambda t: reshape(t, (*input.shape[:-1], want))
    return (flat(y[0]), flat(y[1])) if return_indices else flat(y)
