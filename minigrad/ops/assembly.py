"""Parts put together and taken apart under PyTorch's names: grids, columns, a part exchanged.  After `indexed.py`."""

from __future__ import annotations

import itertools

import numpy as np

from minigrad.aval import aval_of
from minigrad.dtype import int64, is_float
from minigrad.errors import ArgumentError, ShapeError
from minigrad.ops.diagonals import PutDiagonal, diagonal
from minigrad.ops.doors import literal
from minigrad.ops.index import getitem
from minigrad.ops.indexed import nonzero
from minigrad.ops.op import cast
from minigrad.ops.reduce_functions import any as any_of
from minigrad.ops.shape import cat, stack
from minigrad.ops.structure import axis_of, meshgrid, narrow, select, split, tensor_split
from minigrad.ops.views import Put, freeze_key, reshape, unsqueeze
from minigrad.tensor import Tensor, apply


# ---- grids -----------------------------------------------------------------------------------------
def cartesian_prod(*tensors: Tensor) -> Tensor:
    """All tuples with one element of each vector, as rows; of one vector itself."""
    if any(x.ndim != 1 for x in tensors):
        raise ShapeError(f"cartesian_prod: expected vectors, got {[x.shape for x in tensors]}")
    if len(tensors) == 1:
        return tensors[0]
    return stack([reshape(x, -1) for x in meshgrid(*tensors)], 1)


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All choices of r elements of a vector, as rows, in the order of `itertools`."""
    if input.ndim != 1 or r < 0:
        raise ShapeError(f"combinations: expected a vector and r from 0, got {input.shape} and {r}")
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = np.array(list(choose(range(input.shape[0]), r)), np.int64).reshape(-1, r)
    if not r:
        return input[:0]
    return getitem(input, Tensor(input.o.upload(places) if input.o.eager else aval_of(places)))


def broadcast_shapes(*shapes) -> tuple[int, ...]:
    """The common shape that these shapes broadcast to."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise ShapeError(f"broadcast_shapes: {', '.join(map(str, shapes))} do not broadcast") from None


def argwhere(input: Tensor) -> Tensor:
    """(number, axes): where the elements that are not 0 stand."""
    return nonzero(input)


def unravel_index(indices: Tensor, shape) -> tuple[Tensor, ...]:
    """The coordinates, in a tensor of this shape, of elements given by number."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    if is_float(indices.dtype) or any(n < 0 for n in shape):
        raise ArgumentError(f"unravel_index: expected integers and a shape, got {indices.dtype} and {shape}")
    found, rest = [], cast(indices, int64)
    for n in reversed(shape):
        found.append(rest % n)
        rest = rest // n
    return tuple(reversed(found))


def isin(elements, test_elements, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Whether each element is one of `test_elements`; `invert`: none of them."""
    like = elements if isinstance(elements, Tensor) else test_elements
    x, among = literal(elements, like), reshape(literal(test_elements, like), -1)
    found = any_of(unsqueeze(x, -1) == among, -1)
    return found == False if invert else found  # noqa: E712 - a Tensor, not a truth value


# ---- taken apart ------------------------------------------------------------------------------------
def split_with_sizes(input: Tensor, split_sizes, dim: int = 0) -> tuple[Tensor, ...]:
    """Parts of the sizes given: views."""
    return split(input, list(split_sizes), dim)


def _split_along(name: str, least: int, axis_of_rank):
    def parts(input: Tensor, indices_or_sections) -> tuple[Tensor, ...]:
        if input.ndim < least:
            raise ShapeError(f"{name}: expected a tensor of at least {least} axes, got {input.shape}")
        axis, how = axis_of_rank(input.ndim), indices_or_sections
        if isinstance(how, int) and (how < 1 or input.shape[axis] % how):
            raise ArgumentError(f"{name}: {how} equal parts of the {input.shape[axis]} elements of dim {axis}")
        return tensor_split(input, how, axis)

    parts.__name__ = parts.__qualname__ = name
    parts.__doc__ = "Equal parts, or cut before the places given, along one axis: views."
    return parts


hsplit = _split_along("hsplit", 1, lambda n: 0 if n == 1 else 1)
vsplit = _split_along("vsplit", 2, lambda n: 0)
dsplit = _split_along("dsplit", 3, lambda n: 2)


def narrow_copy(input: Tensor, dim: int, start: int, length: int) -> Tensor:
    """As `narrow`, but a copy."""
    return narrow(input, dim, start, length).clone()


# ---- put together -----------------------------------------------------------------------------------
def column_stack(tensors) -> Tensor:
    """Side by side: vectors and numbers as columns."""
    return cat([reshape(x, (-1, 1)) if x.ndim < 2 else x for x in tensors], 1)


# ---- a part exchanged ------------------------------------------------------------------------------------
def _exchanged(name: str, input: Tensor, part: Tensor, src: Tensor, put) -> Tensor:
    if src.shape != part.shape:
        raise ShapeError(f"{name}: the source has shape {src.shape}, the part of {input.shape} has {part.shape}")
    return apply(put, input, cast(src, input.dtype))


def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """A copy of `input` in which element number `index` of an axis is `src`."""
    key = (*(slice(None),) * axis_of(input, dim, "select_scatter"), int(index))
    return _exchanged("select_scatter", input, select(input, dim, index), src, Put.of(freeze_key(key)))


def slice_scatter(input: Tensor, src: Tensor, dim: int = 0, start=None, end=None, step: int = 1) -> Tensor:
    """A copy of `input` in which a slice of an axis is `src`."""
    key = (*(slice(None),) * axis_of(input, dim, "slice_scatter"), slice(start, end, step))
    return _exchanged("slice_scatter", input, getitem(input, key), src, Put.of(freeze_key(key)))


def diagonal_scatter(input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A copy of `input` in which a diagonal is `src`."""
    put = PutDiagonal.of(offset, dim1 % max(input.ndim, 1), dim2 % max(input.ndim, 1))
    return _exchanged("diagonal_scatter", input, diagonal(input, offset, dim1, dim2), src, put)
