"""Reductions: sum, mean, max and min over axes.

`axis` is a tuple of non-negative axes or None for all.  After `compare.py`; `reduce_functions.py` has the calls users
write.
"""
from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from minigrad.algebra import reduced
from minigrad.aval import Aval
from minigrad.dtype import int64
from minigrad.errors import PlaceError, ShapeError
from minigrad.ops.op import NoOnnx, Op, op
from minigrad.ops.samples import Sample

Axis = tuple[int, ...] | None


def axes_of(dim: int | tuple[int, ...] | None, ndim: int, name: str) -> Axis:
    """Non-negative, distinct axes; None stays None (all).  IndexError names the range."""
    if dim is None or dim == ():
        return None
    if dim.__class__ is int and -ndim <= dim < ndim:
        return (dim % ndim,)
    found = []
    for d in dim if isinstance(dim, tuple | list) else (dim,):
        if not isinstance(d, int | np.integer) or isinstance(d, bool):
            raise TypeError(f"{name}: dim must be an integer or a tuple of them, got {d!r}")
        size = max(ndim, 1)
        if not -size <= d < size:
            raise PlaceError(f"{name}: dim {d} is out of range for a tensor of {ndim} axes: use {-size} … {size - 1}")
        found.append(int(d) % size)
    if len(set(found)) != len(found):
        raise RuntimeError(f"{name}: dim {dim} names an axis twice")
    return tuple(sorted(found)) if ndim else ()


class Reduction(Op):
    """An op with `axis` and `keepdims`; `spread` undoes the reduction of a shape."""

    def infer(self, x: Aval) -> Aval:
        return Aval(reduced(x.shape, self.axis, self.keepdims), x.dtype)

    def flops(self, y: Aval, x: Aval) -> int:
        return x.size

    @cached_property
    def lines_up(self) -> bool:
        """Whether a reduced array broadcasts to the shape it came from as it is."""
        return self.keepdims or self.axis is None or self.axis == tuple(range(len(self.axis)))

    def spread(self, o, g, shape):
        return o.spread(g if self.lines_up else o.reshape(g, reduced(shape, self.axis, True)), shape)

    def count(self, shape) -> int:
        kept = math.prod(reduced(shape, self.axis, True))
        return math.prod(shape) // kept if kept else 0

    @classmethod
    def samples(cls) -> list[Sample]:
        ways = [(None, False), ((0,), False), ((1,), True), ((0, 1), False)]
        return [Sample(cls.of(*w), (f"spread({s}",)) for w in ways for s in ("3,4)", "4,3).T")] + [
            Sample(cls.of((0,), False), ("spread(3)",)), Sample(cls.of(None, True), ("spread()",))]


@op
class Sum(Reduction):
    """The sum over axes"""

    axis: Axis = None
    keepdims: bool = False
    onnx, precision, reference = "ReduceSum", "high", lambda self, x: np.sum(x, self.axis, keepdims=self.keepdims)

    def forward(self, o, x):
        return o.sum(x, self.axis, self.keepdims)

    def dx(self, o, g, x_shape):
        return self.spread(o, g, x_shape)


@op
class Mean(Reduction):
    """The mean over axes; NaN of nothing"""

    axis: Axis = None
    keepdims: bool = False
    onnx, precision, reference = "ReduceMean", "high", lambda self, x: np.mean(x, self.axis, keepdims=self.keepdims)

    def share(self, o, shape):
        n = self.count(shape)
        return o.lit(1 / n if n else math.nan)

    def forward(self, o, x):
        return o.sum(x, self.axis, self.keepdims) * self.share(o, x.shape)

    def dx(self, o, g, x_shape):
        return self.spread(o, g * self.share(o, x_shape), x_shape)


class Extreme(Reduction):
    """The largest or smallest over axes; equal values share the gradient."""

    precision = "high"                                       # how many are equal may be beyond float16

    def dx(self, o, g, x, y):
        hit = (x == self.spread(o, y, x.shape)) * o.one
        return (
            self.spread(
                o, g / o.sum(hit, self.axis, True) if self.keepdims else g / o.sum(hit, self.axis, False), x.shape
            )
            * hit
        )

    def infer(self, x: Aval) -> Aval:
        if math.prod(x.shape[a] for a in (range(x.ndim) if self.axis is None else self.axis)) == 0 and x.ndim:
            raise ShapeError(
                f"{self.label}: nothing to choose from: shape {x.shape} has no element along dim {self.axis}"
            )
        return super().infer(x)


@op
class Amax(Extreme):
    """The largest over axes; NaN wins"""

    axis: Axis = None
    keepdims: bool = False
    functional, onnx, reference = "amax", "ReduceMax", lambda self, x: np.max(x, self.axis, keepdims=self.keepdims)

    def forward(self, o, x):
        return o.max(x, self.axis, self.keepdims)


@op
class Amin(Extreme):
    """The smallest over axes; NaN wins"""

    axis: Axis = None
    keepdims: bool = False
    functional, onnx, reference = "amin", "ReduceMin", lambda self, x: np.min(x, self.axis, keepdims=self.keepdims)

    def forward(self, o, x):
        return o.min(x, self.axis, self.keepdims)


class Along(Op):
    """(value, index) along one axis; the gradient goes to that index alone."""

    extra = ("index",)

    def dx(self, o, g, x_shape, index):
        return o.add_along(o.reshape(g, reduced(x_shape, (self.axis,), True)), index, self.axis, x_shape[self.axis])

    def pick(self, o, x, index):
        y = o.take_along(x, index, self.axis)
        return (y if self.keepdims else o.reshape(y, reduced(x.shape, (self.axis,), False))), index

    def infer(self, x: Aval):
        if x.shape[self.axis] == 0:
            raise ShapeError(f"{self.label}: nothing to choose from: shape {x.shape} has no element along dim "
                             f"{self.axis}")
        return (Aval(reduced(x.shape, (self.axis,), self.keepdims), x.dtype),
                Aval(reduced(x.shape, (self.axis,), True), int64))

    def flops(self, y: Aval, x: Aval) -> int:
        return x.size

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of(a, k), (s,)) for a, k, s in ((0, True, "spread(3,4)"), (1, False, "spread(3,4).T"))]


@op
class MaxAlong(Along):
    """The largest along an axis and where it stands"""

    axis: int
    keepdims: bool = False
    functional, onnx = "max", NoOnnx("ReduceMax with ArgMax")
    reference = lambda self, x: np.max(x, self.axis, keepdims=self.keepdims)  # noqa: E731

    def forward(self, o, x):
        return self.pick(o, x, o.argmax(x, self.axis, True))


@op
class MinAlong(Along):
    """The smallest along an axis and where it stands"""

    axis: int
    keepdims: bool = False
    functional, onnx = "min", NoOnnx("ReduceMin with ArgMin")
    reference = lambda self, x: np.min(x, self.axis, keepdims=self.keepdims)  # noqa: E731

    def forward(self, o, x):
        return self.pick(o, x, o.argmin(x, self.axis, True))


class ArgExtreme(Op):
    """Where the extreme stands; no gradient."""

    def infer(self, x: Aval) -> Aval:
        if (x.size if self.axis is None else x.shape[self.axis]) == 0:
            raise ShapeError(f"{self.label}: an empty tensor {x.shape} has no largest or smallest element")
        return Aval(reduced(x.shape, None if self.axis is None else (self.axis,), self.keepdims), int64)

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of(a, k), ("spread(3,4)",)) for a, k in ((None, False), (0, True), (1, False))]


@op
class ArgMax(ArgExtreme):
    """The index of the largest (first of equals)"""

    axis: int | None = None
    keepdims: bool = False
    functional, onnx = "argmax", "ArgMax"
    reference = lambda self, x: np.argmax(x, self.axis, keepdims=self.keepdims)  # noqa: E731

    def forward(self, o, x):
        return o.argmax(x, self.axis, self.keepdims)


@op
class ArgMin(ArgExtreme):
    """The index of the smallest (first of equals)"""

    axis: int | None = None
    keepdims: bool = False
    functional, onnx = "argmin", "ArgMin"
    reference = lambda self, x: np.argmin(x, self.axis, keepdims=self.keepdims)  # noqa: E731

    def forward(self, o, x):
        return o.argmin(x, self.axis, self.keepdims)
