"""Rows: the gradient of a table of which few rows were read, as those rows and their numbers.

Made by the rule of `Embed` (`ops/index.py`) for a leaf, and kept in its `.grad` as it is until something needs it
dense: a hook, another gradient that is dense, `autograd.grad`, `create_graph`.  What PyTorch has as a sparse tensor.
After `tensor.py`, before `inplace.py`.
"""
from __future__ import annotations

import numpy as np

from minigrad.algebra import algebra_of, size_of
from minigrad.dtype import int64
from minigrad.indexing import HOLE
from minigrad.tensor import Tensor, Writes


class Rows:
    """`values` (k, …) are added at row numbers `index` (k,) of zeros of `shape`; a number may occur more than once.

    Both are raw arrays.  It adds like a raw gradient; its methods are those of a sparse tensor."""

    __slots__ = ("array_index", "array_values", "shape", "once", "__weakref__")
    __array_ufunc__ = None                             # so that `dense + rows` asks us
    is_sparse, requires_grad, is_leaf, grad_fn, node = True, False, True, None, None

    def __init__(self, index, values, shape: tuple[int, ...], once: bool = False) -> None:
        self.array_index, self.array_values, self.shape, self.once = index, values, tuple(shape), once

    @property
    def o(self):
        return algebra_of(self.array_values)

    @property
    def dtype(self) -> np.dtype:
        return self.array_values.dtype

    @property
    def device(self):
        return self.o.device

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        return f"Rows({self.array_index.shape[0]} of {list(self.shape)}, {self.dtype}, device='{self.device}')"

    def __getattr__(self, name: str):
        raise AttributeError(f"a row-sparse gradient {list(self.shape)} has no `{name}`. Make it dense: .to_dense()")

    # -- as a gradient on its way
    def __add__(self, other):
        """Rows and rows stay rows; rows and anything else, raw array or Tensor, are dense."""
        if other.__class__ is Rows:
            o = self.o
            index = o.cat((self.array_index, other.array_index), 0)
            both = Rows(index, o.cat((self.array_values, other.array_values), 0), self.shape)
            return both.coalesce() if index.shape[0] > self.shape[0] else both       # never more rows than the table
        return self.to_dense() + other if isinstance(other, Tensor) else self.spread() + other

    __radd__ = __add__

    def __mul__(self, number) -> Rows:
        o = self.o
        by = number.array if isinstance(number, Tensor) else o.lit(float(number))
        return Rows(self.array_index, self.array_values * by, self.shape, self.once)

    __rmul__ = __mul__

    def spread(self):
        """The whole raw array."""
        return self.o.add_at(self.array_values, (HOLE,), (self.array_index,), self.shape)

    def owned(self) -> Rows:
        """The same in memory that nobody else holds."""
        o = self.o
        return Rows(self.array_index.copy(), o.copy(self.array_values), self.shape, self.once)

    # -- as PyTorch's sparse tensors
    def coalesce(self) -> Rows:
        """Each row number once, in order, its values summed (on a device it waits, to learn how many there are)."""
        if self.once:
            return self
        o, index = self.o, self.array_index
        numbers, place = o.xp.unique(index, return_inverse=True)
        shape = (numbers.shape[0], *self.shape[1:])
        return Rows(numbers, o.add_at(self.array_values, (HOLE,), (place.reshape(-1),), shape), self.shape, True)

    def coalesce_(self) -> Rows:
        """The same in place."""
        found = self.coalesce()
        self.array_index, self.array_values, self.once = found.array_index, found.array_values, True
        return self

    def is_coalesced(self) -> bool:
        return self.once

    def indices(self) -> Tensor:
        """int64 (1, k): the row numbers."""
        return Tensor(self.array_index.reshape(1, -1).astype(int64, copy=False))

    def values(self) -> Tensor:
        """(k, …): the rows, on the same memory."""
        return Tensor(self.array_values)

    def to_dense(self) -> Tensor:
        """The whole table as a Tensor."""
        return Tensor(self.spread())

    def detach(self) -> Rows:
        return self

    clone = owned

    def zero_(self) -> Rows:
        """In place no row at all."""
        self.array_index, self.array_values, self.once = self.array_index[:0], self.array_values[:0], True
        return self

    def mul_(self, number) -> Rows:
        """In place times a number."""
        self.array_values = (self * number).array_values
        return self

    def to(self, *args, **how) -> Rows:
        """In another dtype, or on another device, as `Tensor.to`."""
        values = Tensor(self.array_values).to(*args, **how)
        index = Tensor(self.array_index).to(values.device)
        return Rows(index.array, values.array, self.shape, self.once)

    def numel(self) -> int:
        return size_of(self.shape)

    def __reduce__(self) -> tuple:
        return rebuilt, (Tensor(self.array_index), Tensor(self.array_values), self.shape, self.once)

    def __deepcopy__(self, memo: dict) -> Rows:
        return self.owned()


def rebuilt(index: Tensor, values: Tensor, shape: tuple[int, ...], once: bool) -> Rows:
    return Rows(index.array, values.array, shape, once)


def values_of(grad: Tensor | Rows) -> Tensor:
    """All elements of a gradient that may be other than zero, on its own memory: to be measured, or scaled in place."""
    return grad.coalesce_().values() if isinstance(grad, Rows) else grad


def written(t: Tensor, array) -> None:
    """`t` takes the values of a raw array, in its memory, whatever its history."""
    t.array[...] = array
    Writes.note(t.array)
