"""Taking tensors apart, turning and joining them: functions on the ops of `views.py`, `diagonals.py` and `shape.py`.

What only looks (split, chunk, unbind, narrow, select, movedim, …) gives views; what repeats or turns elements copies.
"""

from __future__ import annotations

import math

import numpy as np

from minigrad.errors import ArgumentError, PlaceError, ShapeError
from minigrad.ops.index import getitem
from minigrad.ops.op import NoOnnx, op
from minigrad.ops.reduce import axes_of
from minigrad.ops.samples import Sample
from minigrad.ops.shape import Dense, Pad, cat
from minigrad.ops.views import ViewOp, cut, expand, permute, reshape, shape_arg, transpose, unsqueeze
from minigrad.tensor import Tensor, apply


def axis_of(x: Tensor, dim: int, name: str) -> int:
    """One axis as a number from 0; a 0-d tensor has none."""
    if not x.ndim:
        raise PlaceError(f"{name}: a 0-d tensor has no axis {dim}")
    return axes_of(dim, x.ndim, name)[0]


def _along(x: Tensor, axis: int, part) -> Tensor:
    return cut(x, (*(slice(None),) * axis, part))


# ---- parts ---------------------------------------------------------------------------------------
def narrow(input: Tensor, dim: int, start: int, length: int) -> Tensor:
    """`length` elements of an axis from `start` on: a view."""
    axis, start = axis_of(input, dim, "narrow"), int(start)
    n = input.shape[axis]
    first = start + n if start < 0 else start
    if not 0 <= first <= n or length < 0 or first + length > n:
        raise PlaceError(f"narrow: {length} elements from {start} on do not lie in an axis of {n}")
    return _along(input, axis, slice(first, first + length))


def select(input: Tensor, dim: int, index: int) -> Tensor:
    """Element number `index` of an axis, which is gone then: a view."""
    axis = axis_of(input, dim, "select")
    if not -input.shape[axis] <= index < input.shape[axis]:
        raise PlaceError(f"select: {index} is out of range for dim {dim} of {input.shape}")
    return _along(input, axis, int(index))


def split(tensor: Tensor, split_size_or_sections, dim: int = 0) -> tuple[Tensor, ...]:
    """Parts of one size (the last may be smaller), or of the sizes given: views."""
    axis = axis_of(tensor, dim, "split")
    n, how = tensor.shape[axis], split_size_or_sections
    if isinstance(how, int):
        if how < 1 and n:
            raise ArgumentError(f"split: parts of size {how}; give at least 1")
        how = [min(how, n - k) for k in range(0, n, max(how, 1))] or [0]
    if sum_of(how) != n or min(how, default=0) < 0:
        raise ShapeError(f"split: sizes {tuple(how)} do not add up to the {n} elements of dim {dim} of {tensor.shape}")
    ends = np.cumsum(how).tolist()
    return tuple(_along(tensor, axis, slice(e - m, e)) for e, m in zip(ends, how))


def sum_of(sizes) -> int:
    return int(np.sum(np.asarray(sizes, int)))


def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most `chunks` parts of equal size, the last perhaps smaller: views."""
    if chunks < 1:
        raise ArgumentError(f"chunk: expected at least one chunk, got {chunks}")
    n = input.shape[axis_of(input, dim, "chunk")]
    return split(input, max(-(-n // chunks), 1), dim) if n else (input,) * chunks


def tensor_split(input: Tensor, indices_or_sections, dim: int = 0) -> tuple[Tensor, ...]:
    """As many parts as asked for, as even as can be, or cut before the places given: views."""
    axis, how = axis_of(input, dim, "tensor_split"), indices_or_sections
    how = how.tolist() if isinstance(how, Tensor) else how
    n = input.shape[axis]
    if isinstance(how, int):
        if how < 1:
            raise ArgumentError(f"tensor_split: expected at least one part, got {how}")
        how = np.cumsum([n // how + (k < n % how) for k in range(how - 1)]).tolist()
    places = [0, *how, n]
    return tuple(_along(input, axis, slice(a, b)) for a, b in zip(places, places[1:]))


def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """The elements of an axis, one by one: views."""
    axis = axis_of(input, dim, "unbind")
    return tuple(_along(input, axis, k) for k in range(input.shape[axis]))


# ---- axes ----------------------------------------------------------------------------------------
def movedim(input: Tensor, source, destination) -> Tensor:
    """Axes moved to other places, the rest in their order: a view."""
    a, b = (
        [axes_of(d, input.ndim, "movedim")[0] for d in ((v,) if isinstance(v, int) else v)]
        for v in (source, destination)
    )
    if len(a) != len(b) or len(set(a)) < len(a) or len(set(b)) < len(b):
        raise RuntimeError(f"movedim: {source} to {destination}: give as many different places as axes")
    order = [k for k in range(input.ndim) if k not in a]
    for place, axis in sorted(zip(b, a)):
        order.insert(place, axis)
    return permute(input, *order)


def unflatten(input: Tensor, dim: int, sizes) -> Tensor:
    """One axis as several; one size may be -1."""
    axis, sizes = axis_of(input, dim, "unflatten"), tuple(sizes)
    n, rest = input.shape[axis], math.prod(m for m in sizes if m != -1)
    if sizes.count(-1) > 1 or (-1 in sizes and (not rest or n % rest)) or (-1 not in sizes and rest != n):
        raise ShapeError(f"unflatten: {n} elements of dim {dim} cannot be laid out as {sizes}")
    return reshape(
        input, (*input.shape[:axis], *(n // rest if m == -1 else m for m in sizes), *input.shape[axis + 1 :])
    )


@op
class Unfold(ViewOp):
    """Windows of an axis every `step` elements, each as a new last axis"""

    axis: int
    size: int
    step: int
    onnx = NoOnnx("Gather")

    @property
    def repeats(self) -> bool:
        return self.step < self.size

    def forward(self, o, x):
        return o.transpose(o.windows(self.last(o, x), (self.size,), (self.step,), (1,)), self.order(len(x.shape)))

    def last(self, o, x):
        n = len(x.shape)
        return o.transpose(x, (*(k for k in range(n) if k != self.axis), self.axis))

    def order(self, n: int) -> tuple[int, ...]:
        """The windows, counted in the last axis but one, back at the place of the axis."""
        rest = list(range(n - 1))
        rest.insert(self.axis, n - 1)
        return (*rest, n)

    def dx(self, o, g, x_shape):
        n = len(x_shape)
        g = o.transpose(g, (*(k for k in range(n) if k != self.axis), self.axis, n))
        moved = (*(m for k, m in enumerate(x_shape) if k != self.axis), x_shape[self.axis])
        return o.transpose(o.fold(g, moved, (self.step,), (1,)), self.order(n)[:-1])

    def back(self, o, x, y):
        """Every element of a window at its place; those between windows stay."""
        for k in range(self.size):
            n = y.shape[self.axis]
            places = (*(slice(None),) * self.axis, slice(k, k + self.step * (n - 1) + 1, self.step))
            x = o.put(x, places, o.cut(y, (Ellipsis, k)))
        return x

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of(0, 2, 1), ("normal(5)",)), Sample(cls.of(0, 2, 3), ("normal(6,2)",)),
                Sample(cls.of(1, 2, 2), ("normal(2,4,3)",)), Sample(cls.of(1, 1, 1), ("normal(4,3).T",))]


def unfold_dim(input: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Windows of an axis every `step` elements, each as a new last axis: a view."""
    if not input.ndim:
        return unfold_dim(reshape(input, 1), dimension, size, step)[0]
    axis = axis_of(input, dimension, "unfold")
    if not 0 < size <= input.shape[axis] or step < 1:
        raise ShapeError(f"unfold: windows of {size} every {step} do not fit an axis of {input.shape[axis]}")
    return apply(Unfold.of(axis, int(size), int(step)), input)


# ---- turned and repeated -------------------------------------------------------------------------
def flip(input: Tensor, *axes, dims=()) -> Tensor:
    """The elements of some axes in reverse: a copy."""
    axes = axes_of(tuple(shape_arg(axes or (dims,))), input.ndim, "flip") or ()
    return apply(Dense.of(), cut(input, tuple(slice(None, None, -1 if k in axes else None) for k in range(input.ndim))))


def roll(input: Tensor, shifts, dims=None) -> Tensor:
    """Elements moved along axes, those that leave at the end coming in at the start."""
    if dims is None:
        return reshape(roll(reshape(input, -1), shifts, 0), input.shape)
    shifts, dims = ((v,) if isinstance(v, int) else tuple(v) for v in (shifts, dims))
    if len(shifts) != len(dims):
        raise RuntimeError(f"roll: {len(shifts)} shifts for {len(dims)} axes")
    for shift, dim in zip(shifts, dims):
        axis = axis_of(input, dim, "roll")
        n = input.shape[axis]
        k = -shift % n if n else 0
        input = cat([_along(input, axis, slice(k, n)), _along(input, axis, slice(0, k))], axis) if k else input
    return input.clone() if not any(shifts) else input


def rot90(input: Tensor, k: int = 1, dims=(0, 1)) -> Tensor:
    """Turned by k quarter turns from the first of two axes towards the second."""
    if len(dims) != 2 or input.ndim < 2:
        raise ShapeError(f"rot90: expected two axes to turn, got dims {tuple(dims)} of a tensor of shape {input.shape}")
    a, b = (axis_of(input, d, "rot90") for d in dims)
    if a == b:
        raise ShapeError(f"rot90: dims {tuple(dims)} name one axis twice")
    if k % 4 == 2:
        return flip(input, a, b)
    return (
        input.clone()
        if k % 4 == 0
        else flip(transpose(input, a, b), a)
        if k % 4 == 1
        else flip(transpose(input, a, b), b)
    )


def repeat(input: Tensor, *sizes) -> Tensor:
    """The whole tensor so many times along each axis; more numbers than axes make new ones in front."""
    sizes = tuple(map(int, shape_arg(sizes)))
    if len(sizes) < input.ndim or min(sizes, default=0) < 0:
        raise ShapeError(f"repeat: {sizes} must hold a count for each axis of {input.shape}, none below 0")
    shape = (1,) * (len(sizes) - input.ndim) + input.shape
    spread = expand(
        reshape(input, tuple(m for n in shape for m in (1, n))), *(m for r, n in zip(sizes, shape) for m in (r, n))
    )
    y = reshape(spread, tuple(r * n for r, n in zip(sizes, shape)))
    return y.clone() if y.is_view else y


def tile(input: Tensor, *dims) -> Tensor:
    """As `repeat`, but fewer numbers than axes count for the last ones."""
    dims = tuple(shape_arg(dims))
    return repeat(input, (1,) * (input.ndim - len(dims)) + dims)


def repeat_interleave(input: Tensor, repeats=None, dim: int | None = None, *, output_size: int | None = None) -> Tensor:
    """Each element so many times in a row along an axis, by default of the flattened tensor; of counts alone, each
    number of 0, 1, 2, … so many times."""
    if repeats is None:
        return repeat_interleave(Tensor(input.o.arange(input.shape[0])), input, 0)
    if dim is None:
        return repeat_interleave(reshape(input, -1), repeats, 0)
    axis = axis_of(input, dim, "repeat_interleave")
    if isinstance(repeats, int):
        wide = unsqueeze(input, axis + 1)
        wide = expand(wide, *wide.shape[: axis + 1], repeats, *wide.shape[axis + 2 :])
        return reshape(wide, (*input.shape[:axis], input.shape[axis] * repeats, *input.shape[axis + 1 :]))
    counts = repeats.tolist() if isinstance(repeats, Tensor) else list(repeats)
    if len(counts) not in (1, input.shape[axis]) or min(counts, default=0) < 0:
        raise ShapeError(
            f"repeat_interleave: {len(counts)} counts for {input.shape[axis]} elements of dim {dim}, none below 0"
        )
    places = np.repeat(np.arange(input.shape[axis]), counts)
    return getitem(input, (*(slice(None),) * axis, places))


# ---- joined --------------------------------------------------------------------------------------
def atleast(n: int, x: Tensor) -> Tensor:
    """With at least n axes, as NumPy: new ones in front, of three the last behind."""
    shape = {
        (1, 0): (1,),
        (2, 0): (1, 1),
        (2, 1): (1, -1),
        (3, 0): (1, 1, 1),
        (3, 1): (1, -1, 1),
        (3, 2): (*x.shape, 1),
    }
    return reshape(x, shape[n, x.ndim]) if x.ndim < n else x


def hstack(tensors) -> Tensor:
    """Side by side: along the second axis, vectors along the first."""
    xs = [atleast(1, x) for x in tensors]
    return cat(xs, 0 if xs and xs[0].ndim == 1 else 1)


def vstack(tensors) -> Tensor:
    """One below the other; vectors are rows."""
    return cat([atleast(2, x) for x in tensors], 0)


def dstack(tensors) -> Tensor:
    """Along the third axis."""
    return cat([atleast(3, x) for x in tensors], 2)


def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """All in their common shape: views."""
    try:
        shape = np.broadcast_shapes(*(x.shape for x in tensors))
    except ValueError:
        raise ShapeError(f"broadcast_tensors: shapes {[x.shape for x in tensors]} do not broadcast") from None
    return tuple(expand(x, *shape) for x in tensors)


def broadcast_to(input: Tensor, size) -> Tensor:
    """In another shape, by showing axes of size 1 many times: a view."""
    return expand(input, tuple(size))


def meshgrid(*tensors, indexing: str = "ij") -> tuple[Tensor, ...]:
    """The coordinates of a grid: for each vector a tensor of the whole grid's shape."""
    xs = tuple(tensors[0]) if len(tensors) == 1 and isinstance(tensors[0], list | tuple) else tensors
    if indexing not in ("ij", "xy") or any(x.ndim > 1 for x in xs):
        raise ArgumentError(
            f"meshgrid: indexing is 'ij' or 'xy', got {indexing!r}; tensors must be vectors, got "
            f"{[x.shape for x in xs]}"
        )
    if indexing == "xy" and len(xs) > 1:
        second, first, *rest = meshgrid(xs[1], xs[0], *xs[2:])
        return (first, second, *rest)
    shape = tuple(x.shape[0] if x.ndim else 1 for x in xs)
    return tuple(expand(reshape(x, (*(1,) * k, -1, *(1,) * (len(xs) - k - 1))), *shape) for k, x in enumerate(xs))


def block_diag(*tensors: Tensor) -> Tensor:
    """Matrices along the diagonal, zeros elsewhere."""
    xs = [atleast(2, x) for x in tensors]
    width = sum_of([x.shape[1] for x in xs])
    ends = np.cumsum([x.shape[1] for x in xs]).tolist()
    return cat([apply(Pad.of(((0, 0), (e - x.shape[1], width - e)), 0.0), x) for x, e in zip(xs, ends)], 0)
