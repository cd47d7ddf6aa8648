"""The whole memory behind an array as one row of bytes, and the array found in it again.

What leaves a device and comes back keeps its strides so: the order in which NumPy and BLAS add up depends on them, and
gradients are to be the same bit for bit.  Views of one memory move as one.  After `device.py`, before `algebra.py`.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from minigrad.aval import Aval
from minigrad.sim import SimArray, _owner


@dataclass(frozen=True, slots=True)
class Place:
    """Where an array lies in its buffer: `offset` and `strides` in bytes."""

    shape: tuple[int, ...]
    dtype: np.dtype
    strides: tuple[int, ...]
    offset: int

    def look(self, flat: Any) -> Any:
        """The array of this place in a buffer of bytes."""
        if flat.__class__ is np.ndarray:
            return np.ndarray(self.shape, self.dtype, flat, self.offset, self.strides)
        if flat.__class__ is SimArray:
            return SimArray(np.ndarray(self.shape, self.dtype, flat._a, self.offset, self.strides), flat.device)
        return type(flat)(self.shape, self.dtype, flat.data + self.offset, self.strides)        # of CuPy


def taken_apart(array: Any) -> tuple[Any, Place] | None:
    """(the buffer behind `array` as bytes, a view; where the array lies in it).  None for what has no memory of its
    own (`meta`), whose memory has gaps, and for arrays of kinds that are not known here."""
    if array.__class__ is Aval:
        return None
    if array.__class__ is SimArray:
        found = taken_apart(array._a)
        return None if found is None else (SimArray(found[0], array.device), found[1])
    if isinstance(array, np.ndarray):
        flat = _bytes(_owner(array))
        where = None if flat is None else _address(array) - _address(flat)
    elif type(array).__module__.startswith("cupy"):
        owner = array
        while owner.base is not None:
            owner = owner.base
        flat = type(array)((owner.nbytes,), np.uint8, owner.data)
        where = array.data.ptr - flat.data.ptr
    else:
        return None
    return None if where is None else (flat, Place(array.shape, array.dtype, array.strides, where))


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _bytes(owner: np.ndarray) -> np.ndarray | None:
    """An array that owns its memory as bytes in the order of that memory, without a copy."""
    if not owner.flags.c_contiguous:
        order = sorted(range(owner.ndim), key=lambda k: -owner.strides[k])
        owner = owner.transpose(order)
        if not owner.flags.c_contiguous:
            return None
    return owner.reshape(-1).view(np.uint8)


__all__ = ["Place", "taken_apart"]
