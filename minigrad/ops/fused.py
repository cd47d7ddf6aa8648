"""Fused ops: several steps in one node, with the gradient worked out by hand; each equals its unfused form in a test.

softmax, log_softmax, cross_entropy, batch_norm.  A saved statistic (`mean`, `rstd`, `lse`) is an extra
output,
defined once in `extras`, which `create_graph` runs again on Tensors.  After `conv.py`.
"""
from __future__ import annotations

import math

import numpy as np

from minigrad import kernels
from minigrad.aval import Aval, like
from minigrad.dtype import as_dtype, get_default_dtype, int64, is_float
from minigrad.errors import ArgumentError, DTypeError, ShapeError
from minigrad.ops.doors import function
from minigrad.ops.index import check_index, getitem
from minigrad.ops.op import NoOnnx, Op, cast, op
from minigrad.ops.reduce import axes_of
from minigrad.ops.reduce_functions import in_float32, sum
from minigrad.ops.samples import Sample
from minigrad.ops.views import permute, reshape
from minigrad.tensor import Tensor, apply


class AlongAxis(Op):
    """An op that normalises along one axis and keeps the shape."""

    takes = "float"

    def shifted(self, o, x):
        return x - o.max(x, self.axis, True) if x.shape[self.axis] else x

    def infer(self, x: Aval) -> Aval:
        return like(x.shape, x.dtype, x)

    def flops(self, y: Aval, x: Aval) -> int:
        return 12 * x.size

    @classmethod
    def samples(cls) -> list[Sample]:
        return [
            Sample(cls.of(1), ("normal(3,4)",)),
            Sample(cls.of(0), ("normal(3,4).T",)),
            Sample(cls.of(0), ("normal(3)",)),
        ]


@op
class Softmax(AlongAxis):
    """exp(x) / sum(exp(x)) along an axis"""

    axis: int
    onnx, precision = "Softmax", "high"

    def forward(self, o, x):
        e = o.exp(self.shifted(o, x))
        return e / o.sum(e, (self.axis,), True)

    def dx(self, o, g, y):
        gy = g * y
        return gy - y * o.sum(gy, (self.axis,), True)

    def reference(self, x):
        e = np.exp(x - x.max())
        return e / e.sum(self.axis, keepdims=True)


@op
class LogSoftmax(AlongAxis):
    """log(softmax(x)) along an axis"""

    axis: int
    onnx, precision = "LogSoftmax", "high"

    def forward(self, o, x):
        s = self.shifted(o, x)
        return s - o.log(o.sum(o.exp(s), (self.axis,), True))

    def dx(self, o, g, y):
        return g - o.exp(y) * o.sum(g, (self.axis,), True)

    def reference(self, x):
        return x - np.log(np.exp(x).sum(self.axis, keepdims=True))


@op
class CrossEntropy(Op):
    """log-softmax and negative log-likelihood of class numbers: z (N, C), t (N); the sum over rows, or their mean"""

    mean: bool = True
    extra, as_is, onnx, precision, exact = ("lse",), ("t",), "SoftmaxCrossEntropyLoss", "high", True

    def share(self, o, t):
        n = t.shape[0]
        return o.lit((1 / n if n else math.nan) if self.mean else 1.0)

    def extras(self, o, z):
        top = o.max(z, 1, True)
        return (top + o.log(o.sum(o.exp(z - top), (1,), True)),)

    def forward(self, o, z, t):
        (lse,) = self.extras(o, z)
        picked = o.take_along(z, o.reshape(t, (*t.shape, 1)), 1)
        return o.sum(lse - picked) * self.share(o, t), lse

    def dz(self, o, g, z, t, lse):
        return o.less_one_hot(o.exp(z - lse), t) * (g * self.share(o, t))

    def infer(self, z: Aval, t: Aval):
        if z.ndim != 2 or t.shape != z.shape[:1]:
            raise ShapeError(f"cross_entropy: logits {z.shape} and targets {t.shape}: expected (N, C) and (N,)")
        return Aval((), z.dtype), Aval((z.shape[0], 1), z.dtype)

    def flops(self, y: Aval, z: Aval, t: Aval) -> int:
        return 12 * z.size

    def reference(self, z, t):
        nll = np.log(np.exp(z).sum(1)) - z[np.arange(len(t)), t]
        return nll.mean() if self.mean else nll.sum()

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of(m), ("normal(3,4)", "index(3)<4")) for m in (True, False)]


@op
class BatchNorm(Op):
    """(x - mean) / sqrt(var + eps) * w + b, statistics over every axis but the second"""

    eps: float = 1e-5
    extra, onnx, precision = ("mean", "var"), "BatchNormalization", "high"

    def axes(self, x) -> tuple[int, ...]:
        return (0, *range(2, len(x.shape)))

    def share(self, o, x):
        return o.lit(x.shape[1] / max(math.prod(x.shape), 1))

    def row(self, o, w, x):
        return o.reshape(w, (1, -1, *(1,) * (len(x.shape) - 2)))

    def extras(self, o, x):
        mean = o.sum(x, self.axes(x), True) * self.share(o, x)
        c = x - mean
        return mean, o.sum(c * c, self.axes(x), True) * self.share(o, x)

    def rstd(self, o, var):
        return o.one / o.sqrt(var + o.lit(self.eps))

    def forward(self, o, x, w, b):
        if len(x.shape) > 2 and kernels.serves(x, w, b):
            y, mean, var = kernels.normalise(x.reshape(*x.shape[:2], -1), w, b, self.eps)
            return y.reshape(x.shape), self.row(o, mean, x), self.row(o, var, x)
        mean, var = self.extras(o, x)
        return (x - mean) * (self.rstd(o, var) * self.row(o, w, x)) + self.row(o, b, x), mean, var

    def vjp(self, o, needs, g, x, w, mean, var):
        rstd, axes = self.rstd(o, var), self.axes(x)
        if len(x.shape) > 2 and kernels.serves(g, x, w, mean):
            rows, column = (*x.shape[:2], -1), (-1, 1)
            dx, dw, db = kernels.normalise_back(g.reshape(rows), x.reshape(rows), w, mean.reshape(column),
                                                rstd.reshape(column), needs[0])
            return dx if dx is None else dx.reshape(x.shape), dw, db
        xhat = (x - mean) * rstd
        db = o.sum(g, axes, True)
        dw = o.sum(g * xhat, axes, True)
        dx = None
        if needs[0]:
            share = self.share(o, x)
            dx = (g - db * share - xhat * (dw * share)) * (rstd * self.row(o, w, x))
        return dx, o.reshape(dw, w.shape), o.reshape(db, w.shape)

    def infer(self, x: Aval, w: Aval, b: Aval):
        if x.ndim < 2 or w.shape != x.shape[1:2] or b.shape != w.shape:
            raise ShapeError(
                f"batch_norm: x {x.shape}, weight {w.shape}, bias {b.shape}: expected x (N, C, …), weight and bias (C,)"
            )
        # noqa: E731 - each output an Aval of its own
        row = lambda: Aval((1, x.shape[1], *(1,) * (x.ndim - 2)), x.dtype)
        return Aval(x.shape, x.dtype), row(), row()

    def flops(self, y: Aval, *avals: Aval) -> int:
        return 8 * y.size

    def reference(self, x, w, b):
        axes, row = self.axes(x), (1, -1, *(1,) * (x.ndim - 2))
        return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + self.eps) * w.reshape(
            row
        ) + b.reshape(row)

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of(), (x, "normal(3)", "normal(3)")) for x in ("normal(4,3)", "normal(2,3,2,2)")]


# ---- as functions ------------------------------------------------------------------------------
def softmax(x: Tensor, dim: int, *, dtype=None) -> Tensor:
    """exp(x) / sum(exp(x)) along `dim`, without overflow; computed in `dtype` if given."""
    x = x if dtype is None else cast(x, as_dtype(dtype))
    return function(Softmax, _axis(x, dim, "softmax"))(x) if x.ndim else x * 0 + 1


def log_softmax(x: Tensor, dim: int, *, dtype=None) -> Tensor:
    """log(softmax(x)) along `dim`, without overflow; computed in `dtype` if given."""
    x = x if dtype is None else cast(x, as_dtype(dtype))
    return function(LogSoftmax, _axis(x, dim, "log_softmax"))(x) if x.ndim else x * 0


def _axis(x: Tensor, dim: int, name: str) -> int:
    return (axes_of(dim, x.ndim, name) or (0,))[0]


@in_float32
def logsumexp(x: Tensor, dim, keepdim: bool = False) -> Tensor:
    """log(sum(exp(x))) over `dim`, without overflow; minus infinity where every element is."""
    if not is_float(x.dtype):
        x = cast(x, get_default_dtype())
    if 0 in x.shape:
        return sum(x.exp(), dim, keepdim).log()
    top = x.detach().amax(dim, True)
    top = top.where(top.abs() != math.inf, 0)
    y = (x - top).exp().sum(dim, True).log() + top
    return y if keepdim else y.squeeze(dim if dim is not None else tuple(range(x.ndim)))


def cross_entropy(input: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int = -100,
                  reduction: str = "mean", label_smoothing: float = 0.0) -> Tensor:
    """The negative log-likelihood of class numbers under softmax(input).

    input (C), (N, C) or (N, C, …); target () , (N) or (N, …) of int64 below C.  Rows whose target is `ignore_index`
    count
    neither in the sum nor in the mean.  `weight` (C) weighs classes; the mean divides by the weights of the targets."""
    if reduction not in ("mean", "sum", "none"):
        raise ArgumentError(f"cross_entropy: reduction {reduction!r} is not one of 'mean', 'sum', 'none'")
    shape, wide = target.shape, input.shape
    if weight is not None or label_smoothing:
        _check_weights(wide, weight, label_smoothing)
    if is_float(target.dtype) and shape == wide:
        if ignore_index >= 0:
            raise ArgumentError("cross_entropy: targets that are shares of classes have no ignore_index")
        return _of_shares(input, target, weight, reduction, label_smoothing)
    if target.dtype != int64:
        raise DTypeError(
            f"cross_entropy: targets must be int64 class numbers, or shares of classes of the input's shape {wide}, "
            f"got {target.dtype}{list(shape)}. Convert with .long()"
        )
    if not wide or shape != wide[:len(wide) > 1] + wide[2:]:
        raise ShapeError(
            f"cross_entropy: input {wide} and target {shape}: expected (N, C, …) and (N, …), or (C) and ()"
        )
    if input.ndim == 1:
        input, target = reshape(input, (1, -1)), reshape(target, (1,))
    if input.ndim > 2:
        c = input.shape[1]
        input, target = reshape(permute(input, 0, *range(2, input.ndim), 1), (-1, c)), reshape(target, (-1,))
    plain = weight is None and label_smoothing == 0 and reduction != "none"
    if plain and not _ignored(target, ignore_index, input.shape[1]):
        return apply(CrossEntropy.of(reduction == "mean"), input, target)[0]
    return _general_cross_entropy(input, target, weight, ignore_index, reduction, label_smoothing, shape)


def _check_weights(wide: tuple, weight, smoothing: float) -> None:
    classes = wide[:2][-1:]
    if weight is not None and weight.shape != classes:
        raise ShapeError(f"cross_entropy: weight {weight.shape} must have one number for each class, {classes}")
    if not 0 <= smoothing <= 1:
        raise ArgumentError(f"cross_entropy: label_smoothing is a share between 0 and 1, got {smoothing}")


def _of_shares(z: Tensor, share: Tensor, weight, reduction: str, smoothing: float) -> Tensor:
    """Targets that are shares of classes: -Σ share · log softmax over the classes; the mean is over the rows."""
    axis = 0 if z.ndim == 1 else 1
    if smoothing:
        share = share * (1 - smoothing) + smoothing / z.shape[axis]
    if weight is not None:
        share = share * reshape(weight, (-1, *(1,) * (z.ndim - axis - 1)))
    rows = -sum(log_softmax(z, axis) * share, axis)
    if reduction == "none":
        return rows
    return sum(rows) / max(math.prod(rows.shape), 1) if reduction == "mean" else sum(rows)


def _ignored(target: Tensor, ignore_index: int, classes: int) -> bool:
    """Whether some row is ignored; IndexError for any other number outside the classes (looks at the values)."""
    if not target.o.eager or not target.array.size:
        return False
    t = target.array
    if int(t.view(np.uint64).max().item()) < classes:              # a negative number is a huge unsigned one
        return 0 <= ignore_index < classes and bool((t == ignore_index).any().item())
    kept = getitem(target, target != ignore_index)
    check_index(kept, classes, "cross_entropy")
    return True


def _general_cross_entropy(z, target, weight, ignore_index, reduction, smoothing, shape) -> Tensor:
    """Class weights, smoothing, ignored rows and no reduction, composed of other ops."""
    kept = target != ignore_index
    safe = target.where(kept, 0)
    logp = log_softmax(z, 1)
    w = cast(kept, z.dtype) if weight is None else getitem(weight, safe) * cast(kept, z.dtype)
    rows = -(logp.gather(1, reshape(safe, (-1, 1))).squeeze(1)) * w
    if smoothing:
        each = logp if weight is None else logp * weight
        smooth = -(sum(each, 1)) * cast(kept, z.dtype)
        rows = rows * (1 - smoothing) + smooth * (smoothing / z.shape[1])
    rows = rows.where(kept, 0)
    if reduction == "none":
        return reshape(rows, shape)
    return sum(rows) / sum(w) if reduction == "mean" else sum(rows)


__all__ = ["NoOnnx"]
