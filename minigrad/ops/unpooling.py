"""Pooling by powers, and maxima put back to where they were found.  After `indexed.py`.

`max_pool2d(…, return_indices=True)` says where; `max_unpool2d` is its partial inverse.
"""

from __future__ import annotations

import math

from minigrad.aval import Aval
from minigrad.dtype import int64
from minigrad.errors import ArgumentError, DTypeError, ShapeError
from minigrad.ops.doors import function
from minigrad.ops.elementwise import Abs, Relu, Sign
from minigrad.ops.index import check_index
from minigrad.ops.indexed import scatter
from minigrad.ops.pooling import avg_pool1d, avg_pool2d, sizes_of
from minigrad.ops.views import reshape
from minigrad.tensor import Tensor


def _powers(x: Tensor, p: float, mean, cells: int) -> Tensor:
    """(Σ of x to the power p over a window) to the power 1 / p, of which `mean` gives the windows."""
    total = mean(x**p)
    return (function(Sign)(total) * function(Relu)(function(Abs)(total)) * cells) ** (1.0 / p)


def lp_pool1d(input: Tensor, norm_type: float, kernel_size, stride=None, ceil_mode: bool = False) -> Tensor:
    """The `norm_type`-th root of the sum of that power over each window of (N, C, L) or (C, L)."""
    (cells,) = sizes_of(kernel_size, 1, "kernel_size")
    return _powers(input, float(norm_type), lambda x: avg_pool1d(x, kernel_size, stride, 0, ceil_mode), cells)


def lp_pool2d(input: Tensor, norm_type: float, kernel_size, stride=None, ceil_mode: bool = False) -> Tensor:
    """The `norm_type`-th root of the sum of that power over each window of (N, C, H, W) or (C, H, W)."""
    cells = math.prod(sizes_of(kernel_size, 2, "kernel_size"))
    return _powers(input, float(norm_type), lambda x: avg_pool2d(x, kernel_size, stride, 0, ceil_mode), cells)


def max_unpool1d(input: Tensor, indices: Tensor, kernel_size, stride=None, padding=0, output_size=None) -> Tensor:
    """Zeros (N, C, L) or (C, L) with the maxima at the places that `max_pool1d` found them."""
    return _unpooled(input, indices, 1, kernel_size, stride, padding, output_size)


def max_unpool2d(input: Tensor, indices: Tensor, kernel_size, stride=None, padding=0, output_size=None) -> Tensor:
    """Zeros (N, C, H, W) or (C, H, W) with the maxima at the places that `max_pool2d` found them.

    `output_size` settles which of the sizes it is that pool to the input's."""
    return _unpooled(input, indices, 2, kernel_size, stride, padding, output_size)


def _unpooled(x: Tensor, indices: Tensor, n: int, kernel_size, stride, padding, output_size) -> Tensor:
    name = f"max_unpool{n}d"
    kernel, border = sizes_of(kernel_size, n, "kernel_size"), sizes_of(padding, n, "padding")
    steps = kernel if stride is None or stride == () else sizes_of(stride, n, "stride")
    if indices.dtype != int64:
        raise DTypeError(f"{name}: indices must be int64, got {indices.dtype}")
    if x.ndim not in (n + 1, n + 2) or indices.shape != x.shape or 0 in x.shape[1:]:
        raise ShapeError(f"{name}: input {x.shape} and indices {indices.shape}: expected {n + 1} or {n + 2} axes with "
                         "elements, one shape")
    usual = tuple((m - 1) * s + k - 2 * p for m, s, k, p in zip(x.shape[-n:], steps, kernel, border))
    size = usual if output_size is None else tuple(output_size)[-n:]
    if len(size) != n or any(not u - s < m < u + s for m, u, s in zip(size, usual, steps)):
        raise ArgumentError(f"{name}: output_size {output_size} is further than the stride {steps} from {usual}")
    cells, lead = math.prod(size), x.shape[:-n]
    check_index(indices, cells, name)
    zeros = Tensor(x.o.full((*lead, cells), 0) if x.o.eager else Aval((*lead, cells), x.dtype))
    return reshape(scatter(zeros, -1, reshape(indices, (*lead, -1)), reshape(x, (*lead, -1))), (*lead, *size))


__all__ = ["lp_pool1d", "lp_pool2d", "max_unpool1d", "max_unpool2d"]
