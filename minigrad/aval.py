"""Aval: what is known about an array without its values: shape, dtype, and where its elements lie.

Strides count bytes and `offset` is the byte at which the array starts in its buffer, so a Tensor on the `meta` device
can tell a view from a copy exactly as a real one does.  After `dtype.py`, before `device.py`.
"""
from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


def contiguous_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Strides in bytes of a row-major array."""
    strides, step = [], itemsize
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


@dataclass(frozen=True, slots=True)
class Aval:
    """Shape, dtype, strides and offset (bytes).  Without strides, row-major."""

    shape: tuple[int, ...]
    dtype: np.dtype
    strides: tuple[int, ...] = None  # type: ignore[assignment]  # row-major
    offset: int = 0

    def __post_init__(self) -> None:
        if self.strides is None:
            object.__setattr__(self, "strides", contiguous_strides(self.shape, self.dtype.itemsize))

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def is_contiguous(self) -> bool:
        want = contiguous_strides(self.shape, self.dtype.itemsize)
        return self.size == 0 or all(n == 1 or s == w for n, s, w in zip(self.shape, self.strides, want))


def aval_of(array) -> Aval:
    """The Aval of an array of any device (an Aval is its own)."""
    if array.__class__ is Aval:
        return array
    return Aval(tuple(array.shape), array.dtype, tuple(array.strides))


def like(shape: tuple[int, ...], dtype: np.dtype, *avals: Aval) -> Aval:
    """A new array as NumPy's elementwise loops allocate it: axes in the memory order of the inputs ("K" order)."""
    if all(a.is_contiguous() for a in avals if a.ndim == len(shape)):
        return Aval(shape, dtype)
    small = tuple(min(n, 2) for n in shape)
    ins = [_small(a) for a in avals]
    flags = [["readonly"]] * len(ins) + [["writeonly", "allocate"]]
    it = np.nditer([*ins, None], ["zerosize_ok", "reduce_ok"], flags, [None] * len(ins) + [dtype],  # type: ignore[call-overload]
                   order="K", itershape=small)
    got = it.operands[-1].strides
    order = sorted(range(len(shape)), key=lambda i: (-got[i], i))
    strides, step = [0] * len(shape), dtype.itemsize
    for i in reversed(order):
        strides[i] = step
        step *= max(shape[i], 1)
    return Aval(shape, dtype, tuple(strides))


def _small(a: Aval) -> np.ndarray:
    """A stand-in with axes of at most two elements: memory order depends on the strides alone."""
    return stand_in(Aval(tuple(min(n, 2) for n in a.shape), a.dtype, a.strides))


def stand_in(a: Aval) -> np.ndarray:
    """An array of this shape and these strides whose memory must never be read: for NumPy to do stride arithmetic
    on."""
    return np.lib.stride_tricks.as_strided(np.empty(1, a.dtype), a.shape, a.strides, writeable=False)


def seen_as(a: Aval, shape: tuple[int, ...]) -> Aval | None:
    """`a` as `shape` without copying, or None where only a copy can do it."""
    try:
        view = np.reshape(stand_in(a), shape, copy=False)
    except ValueError:
        return None
    return Aval(shape, a.dtype, view.strides, a.offset)


def view_of(a: Aval, look) -> Aval:
    """The Aval of `look(array)`, for a `look` that moves no data (an index, a transpose, an expand)."""
    x = stand_in(a)
    y = look(x)
    start = y.__array_interface__["data"][0] - x.__array_interface__["data"][0]
    return Aval(y.shape, a.dtype, y.strides, a.offset + (start if y.size else 0))
