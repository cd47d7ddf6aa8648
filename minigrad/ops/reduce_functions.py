"""The reductions as functions under PyTorch's names, which are Python's too: nothing here uses the built-in ones."""
from __future__ import annotations

import math
from functools import wraps
from typing import NamedTuple

import numpy as np

from minigrad.algebra import reduced
from minigrad.dtype import as_dtype, bool_, float32, int64, is_float
from minigrad.errors import DTypeError
from minigrad.ops.doors import function
from minigrad.ops.elementwise import Maximum, Minimum
from minigrad.ops.op import cast
from minigrad.ops.reduce import Amax, Amin, ArgMax, ArgMin, MaxAlong, Mean, MinAlong, Sum, axes_of
from minigrad.tensor import Tensor, apply


class Found(NamedTuple):
    """Values along an axis, and where they stand."""

    values: Tensor
    indices: Tensor


def sum(x: Tensor, dim=None, keepdim: bool = False, *, dtype=None) -> Tensor:
    """The sum over `dim` (an axis, a tuple of axes, or None for all); integers and truth values add up as int64."""
    if dtype is not None:
        x = cast(x, as_dtype(dtype))
    elif not x.o.floating:
        x = cast(x, int64)
    return function(Sum, axes_of(dim, x.ndim, "sum"), keepdim)(x)


def mean(x: Tensor, dim=None, keepdim: bool = False, *, dtype=None) -> Tensor:
    """The mean over `dim` of a float tensor."""
    x = x if dtype is None else cast(x, as_dtype(dtype))
    if not is_float(x.dtype):
        raise DTypeError(f"mean: expected a float tensor, got {x.dtype}. Say which: x.mean(dtype=mg.float32)")
    return function(Mean, axes_of(dim, x.ndim, "mean"), keepdim)(x)


def in_float32(f):
    """A function of several steps that 16-bit floats take in float32, so that they are rounded once."""
    @wraps(f)
    def wide(x: Tensor, *args, **how):
        if x.dtype.itemsize != 2 or not is_float(x.dtype):
            return f(x, *args, **how)
        y = f(cast(x, float32), *args, **how)
        return tuple(cast(v, x.dtype) for v in y) if isinstance(y, tuple) else cast(y, x.dtype)
    return wide


@in_float32
def var(x: Tensor, dim=None, unbiased: bool = True, keepdim: bool = False, *, correction: int | None = None) -> Tensor:
    """The variance over `dim`, divided by n - 1, or by n - `correction`; infinite or NaN where that is not above 0."""
    if isinstance(dim, bool):                                       # x.var(False), as PyTorch
        dim, unbiased = None, dim
    correction = int(unbiased) if correction is None else correction
    centred = x - mean(x, dim, True)
    axes = axes_of(dim, x.ndim, "var")
    n = Sum.of(axes, False).count(x.shape)
    return sum(centred * centred, dim, keepdim) * (1 / (n - correction) if n > correction else math.inf)


def amax(x: Tensor, dim=None, keepdim: bool = False) -> Tensor:
    """The largest over `dim`; equal values share the gradient."""
    return function(Amax, axes_of(dim, x.ndim, "amax"), keepdim)(x)


def amin(x: Tensor, dim=None, keepdim: bool = False) -> Tensor:
    """The smallest over `dim`; equal values share the gradient."""
    return function(Amin, axes_of(dim, x.ndim, "amin"), keepdim)(x)


def _along(cls, x: Tensor, dim: int, keepdim: bool) -> Found:
    (axis,) = axes_of(dim, x.ndim, cls.functional) or (0,)
    if x.ndim == 0:
        return Found(x * 1 if is_float(x.dtype) else x.clone(), Tensor(x.o.upload(np.array(0))))
    y, index = apply(cls.of(axis, keepdim), x)
    return Found(y, index if keepdim else index.reshape(reduced(index.shape, (axis,), False)))


def max(x: Tensor, dim=None, keepdim: bool = False):
    """The largest of all; with `dim` the pair (values, indices); with a Tensor the elementwise maximum."""
    if isinstance(dim, Tensor):
        return function(Maximum)(x, dim)
    return amax(x) if dim is None else _along(MaxAlong, x, dim, keepdim)


def min(x: Tensor, dim=None, keepdim: bool = False):
    """The smallest of all; with `dim` the pair (values, indices); with a Tensor the elementwise minimum."""
    if isinstance(dim, Tensor):
        return function(Minimum)(x, dim)
    return amin(x) if dim is None else _along(MinAlong, x, dim, keepdim)


def argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The int64 index of the largest, of the flattened tensor or along `dim`."""
    axes = axes_of(dim, x.ndim, "argmax")
    return apply(ArgMax.of(axes[0] if axes else None, keepdim), x)


def argmin(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The int64 index of the smallest, of the flattened tensor or along `dim`."""
    axes = axes_of(dim, x.ndim, "argmin")
    return apply(ArgMin.of(axes[0] if axes else None, keepdim), x)


def all(x: Tensor, dim=None, keepdim: bool = False) -> Tensor:
    """Whether every element holds."""
    return sum(cast(x, bool_) == False, dim, keepdim) == 0  # noqa: E712 - a Tensor, not a truth value


def any(x: Tensor, dim=None, keepdim: bool = False) -> Tensor:
    """Whether some element holds."""
    return sum(cast(x, bool_), dim, keepdim) != 0
