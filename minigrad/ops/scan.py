"""Running sums, products and extremes along an axis.  After `structure.py`.

The gradient of a running product is a linear recurrence, division-free, so zeros are no special case; the recurrence is
an op of its own, whose gradient is again a recurrence.
"""

from __future__ import annotations

import numpy as np

from minigrad.algebra import reduced
from minigrad.aval import Aval, like
from minigrad.dtype import as_dtype, int64, is_float
from minigrad.errors import ShapeError
from minigrad.ops.doors import function
from minigrad.ops.op import NoOnnx, Op, cast, op
from minigrad.ops.reduce import Axis, Reduction, axes_of
from minigrad.ops.reduce_functions import Found
from minigrad.ops.samples import Sample
from minigrad.ops.views import reshape
from minigrad.tensor import Tensor, apply


def along(axis: int, part) -> tuple:
    """The key of a part of one axis."""
    return (*(slice(None),) * axis, part)


def reversed_along(o, x, axis: int):
    return o.cut(x, along(axis, slice(None, None, -1)))


def shifted(o, x, axis: int, fill):
    """x moved one place later along an axis, `fill` first."""
    n = x.shape[axis]
    first = o.broadcast_to(fill, (*x.shape[:axis], min(n, 1), *x.shape[axis + 1 :]))
    return o.cat((first, o.cut(x, along(axis, slice(0, max(n - 1, 0))))), axis)


class Scan(Op):
    """An op that runs along an axis and keeps the shape."""

    def infer(self, x: Aval) -> Aval:
        return like(x.shape, x.dtype, x)

    def flops(self, y: Aval, x: Aval) -> int:
        return x.size

    @classmethod
    def samples(cls) -> list[Sample]:
        return [
            Sample(cls.of(a), (s,))
            for a, s in ((0, "spread(3,4)"), (1, "spread(4,3).T"), (0, "spread(3)"), (1, "spread(2,0)"))
        ]


@op
class CumSum(Scan):
    """The sum of all elements up to each along an axis"""

    axis: int
    onnx, precision, reference = "CumSum", "high", lambda self, x: np.cumsum(x, self.axis)

    def forward(self, o, x):
        return o.cumsum(x, self.axis)

    def dx(self, o, g):
        return reversed_along(o, o.cumsum(reversed_along(o, g, self.axis), self.axis), self.axis)


@op
class Recurrence(Op):
    """y[k] = a[k] · y[k-1] + b[k] along an axis, from y[-1] = 0"""

    axis: int
    onnx, exact = NoOnnx("Scan"), True

    def forward(self, o, a, b):
        return o.recurrence(a, b, self.axis)

    def back(self, o, g, a):
        """dL/db: the same recurrence, backwards, with a one place later."""
        later = shifted(o, reversed_along(o, a, self.axis), self.axis, o.zero)
        return reversed_along(o, o.recurrence(later, reversed_along(o, g, self.axis), self.axis), self.axis)

    def vjp(self, o, needs, g, a, y):
        db = self.back(o, g, a)
        return db * shifted(o, y, self.axis, o.zero) if needs[0] else None, db

    def infer(self, a: Aval, b: Aval) -> Aval:
        if a.shape != b.shape:
            raise ShapeError(f"recurrence: factors {a.shape} and terms {b.shape} must have one shape")
        return like(a.shape, a.dtype, a, b)

    def flops(self, y: Aval, a: Aval, b: Aval) -> int:
        return 2 * y.size

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of(0), ("normal(3,2)", "normal(3,2)")), Sample(cls.of(1), ("normal(2,3)", "normal(2,3)"))]


@op
class CumProd(Scan):
    """The product of all elements up to each along an axis"""

    axis: int
    onnx, precision, reference = NoOnnx("Scan"), "high", lambda self, x: np.cumprod(x, self.axis)

    def forward(self, o, x):
        return o.cumprod(x, self.axis)

    def dx(self, o, g, x, y):
        later = shifted(o, reversed_along(o, x, self.axis), self.axis, o.zero)
        rest = reversed_along(o, o.recurrence(later, reversed_along(o, g, self.axis), self.axis), self.axis)
        return rest * shifted(o, y, self.axis, o.one)


@op
class LogCumSumExp(Scan):
    """log of the running sum of exp(x), without overflow"""

    axis: int
    onnx, precision = NoOnnx("Scan"), "high"
    reference = lambda self, x: np.log(np.cumsum(np.exp(x), self.axis))  # noqa: E731

    def forward(self, o, x):
        y, n = [], x.shape[self.axis]
        for k in range(n):
            now = o.cut(x, along(self.axis, slice(k, k + 1)))
            y.append(o.logaddexp(y[-1], now) if y else now)
        return o.cat(y, self.axis) if n else o.copy(x)

    def infer(self, x: Aval) -> Aval:
        return Aval(x.shape, x.dtype)

    def dx(self, o, g, x, y):
        """Σ over later k of g[k] exp(x - y[k]), as a recurrence whose factors exp(y[k-1] - y[k]) are at most 1."""
        e, axis = o.exp(x - y), self.axis
        n = x.shape[axis]
        ratio = o.exp(o.cut(y, along(axis, slice(0, max(n - 1, 0)))) - o.cut(y, along(axis, slice(min(n, 1), n))))
        ends = o.broadcast_to(o.zero, (*x.shape[:axis], min(n, 1), *x.shape[axis + 1 :]))
        backwards = reversed_along(o, o.cat((ratio, ends), axis), axis)
        return e * reversed_along(o, o.recurrence(backwards, reversed_along(o, g, axis), axis), axis)


class RunningExtreme(Op):
    """The largest or smallest so far along an axis and where it stands (the last of equals); the gradient goes
    there."""

    extra = ("index",)

    def dx(self, o, g, x_shape, index):
        return o.add_along(g, index, self.axis, x_shape[self.axis])

    def infer(self, x: Aval):
        return Aval(x.shape, x.dtype), Aval(x.shape, int64)

    def running(self, o, x, better):
        n = x.shape[self.axis]
        at = o.arange(n).reshape([n if i == self.axis else 1 for i in range(x.ndim)])
        index = [o.broadcast_to(o.cut(at, along(self.axis, slice(0, 1))), reduced(x.shape, (self.axis,), True))]
        best = [o.cut(x, along(self.axis, slice(0, 1)))]
        for k in range(1, n):
            now = o.cut(x, along(self.axis, slice(k, k + 1)))
            hit = better(now, best[-1]) | o.isnan(now)
            best.append(o.where(hit, now, best[-1]))
            index.append(o.where(hit, o.cut(at, along(self.axis, slice(k, k + 1))), index[-1]))
        return o.cat(best, self.axis), o.cat(index, self.axis)

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of(a), (s,)) for a, s in ((0, "spread(3,4)"), (1, "spread(4,3).T"), (0, "spread(3)"))]


@op
class CumMax(RunningExtreme):
    """The largest so far along an axis and where it stands"""

    axis: int
    onnx, reference = NoOnnx("Scan"), lambda self, x: np.maximum.accumulate(x, self.axis)

    def forward(self, o, x):
        return self.running(o, x, lambda now, best: now >= best)


@op
class CumMin(RunningExtreme):
    """The smallest so far along an axis and where it stands"""

    axis: int
    onnx, reference = NoOnnx("Scan"), lambda self, x: np.minimum.accumulate(x, self.axis)

    def forward(self, o, x):
        return self.running(o, x, lambda now, best: now <= best)


@op
class Prod(Reduction):
    """The product over axes; each gradient is the product of the others, right with zeros too"""

    axis: Axis = None
    keepdims: bool = False
    onnx, precision, reference = "ReduceProd", "high", lambda self, x: np.prod(x, self.axis, keepdims=self.keepdims)

    def forward(self, o, x):
        return o.prod(x, self.axis, self.keepdims)

    def dx(self, o, g, x):
        gone = tuple(range(len(x.shape))) if self.axis is None else self.axis
        order = (*(k for k in range(len(x.shape)) if k not in gone), *gone)
        rows = o.transpose(x, order)
        lead = len(order) - len(gone)
        n = self.count(x.shape)
        flat = o.reshape(rows, (*rows.shape[:lead], n))
        before = shifted(o, o.cumprod(flat, lead), lead, o.one)
        after = reversed_along(o, shifted(o, o.cumprod(reversed_along(o, flat, lead), lead), lead, o.one), lead)
        others = o.transpose(o.reshape(before * after, rows.shape), tuple(int(k) for k in np.argsort(order)))
        return self.spread(o, g, x.shape) * others


# ---- as functions --------------------------------------------------------------------------------
def _counted(x: Tensor, dtype) -> Tensor:
    """In `dtype`; integers and truth values as int64 otherwise."""
    return cast(x, as_dtype(dtype)) if dtype is not None else x if is_float(x.dtype) else cast(x, int64)


def _scanned(cls, x: Tensor, dim: int, name: str):
    axis = (axes_of(dim, x.ndim, name) or (0,))[0]
    if x.ndim:
        y = apply(cls.of(axis), x)
        return Found(*y) if isinstance(y, tuple) else y
    y = apply(cls.of(0), reshape(x, 1))
    return Found(*(reshape(t, ()) for t in y)) if isinstance(y, tuple) else reshape(y, ())


def cumsum(input: Tensor, dim: int, *, dtype=None) -> Tensor:
    """The sum of all elements up to each along `dim`."""
    return _scanned(CumSum, _counted(input, dtype), dim, "cumsum")


def cumprod(input: Tensor, dim: int, *, dtype=None) -> Tensor:
    """The product of all elements up to each along `dim`."""
    return _scanned(CumProd, _counted(input, dtype), dim, "cumprod")


def logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """log of the running sum of exp(x) along `dim`, without overflow."""
    return _scanned(LogCumSumExp, input, dim, "logcumsumexp")


def cummax(input: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """(largest so far, where it stands) along `dim`; of equals the last."""
    return _scanned(CumMax, input, dim, "cummax")


def cummin(input: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """(smallest so far, where it stands) along `dim`; of equals the last."""
    return _scanned(CumMin, input, dim, "cummin")


def prod(input: Tensor, dim=None, keepdim: bool = False, *, dtype=None) -> Tensor:
    """The product over `dim`, or of all."""
    y = function(Prod, axes_of(dim, input.ndim, "prod"), keepdim)(_counted(input, dtype))
    return y if dtype is None else cast(y, as_dtype(dtype))
