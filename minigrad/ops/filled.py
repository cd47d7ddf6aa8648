"""New tensors beside one that is there: its device and, unless told otherwise, its dtype.  After `statistics.py`."""

from __future__ import annotations

import numpy as np

from minigrad.algebra import algebra
from minigrad.aval import Aval
from minigrad.device import META, Device, device as as_device
from minigrad.dtype import as_dtype, is_float
from minigrad.errors import ArgumentError, DTypeError
from minigrad.ops.views import shape_arg
from minigrad.tensor import LEAF, Tensor, current


def new_full(
    x: Tensor, size, fill_value, *, dtype=None, device: str | Device | None = None, requires_grad: bool = False
) -> Tensor:
    """A tensor of one value."""
    where = x.o.device if device is None else as_device(device)
    kind = x.dtype if dtype is None else as_dtype(dtype)
    shape = (size,) if isinstance(size, int) else tuple(int(n) for n in size)
    if min(shape, default=0) < 0:
        raise ArgumentError(f"new_full: a size may not be negative: {shape}")
    return _leaf(Aval(shape, kind) if where is META else algebra(where, kind).full(shape, fill_value), requires_grad)


def new_zeros(x: Tensor, *size, **how) -> Tensor:
    """Zeros."""
    return new_full(x, shape_arg(size), 0, **how)


def new_ones(x: Tensor, *size, **how) -> Tensor:
    """Ones."""
    return new_full(x, shape_arg(size), 1, **how)


def new_empty(x: Tensor, *size, **how) -> Tensor:
    """Zeros: unset memory would make runs differ."""
    return new_full(x, shape_arg(size), 0, **how)


def new_tensor(
    x: Tensor, data, *, dtype=None, device: str | Device | None = None, requires_grad: bool = False
) -> Tensor:
    """A copy of numbers, lists or an array."""
    where = x.o.device if device is None else as_device(device)
    host = np.array(data.tolist() if isinstance(data, Tensor) else data).astype(
        x.dtype if dtype is None else as_dtype(dtype)
    )
    return _leaf(
        Aval(host.shape, host.dtype) if where is META else algebra(where, host.dtype).upload(host), requires_grad
    )


def _leaf(array, requires_grad: bool) -> Tensor:
    t = current().kind(array)
    if requires_grad:
        if not is_float(t.dtype):
            raise DTypeError(f"only float tensors can require a gradient, got {t.dtype}. Convert with .float() first")
        t.node = LEAF
    return t
