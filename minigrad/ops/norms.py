"""More normalisations: by groups of channels, by instance, by root mean square, by neighbours.  After `fused.py`."""

from __future__ import annotations

import math

import numpy as np

from minigrad import kernels
from minigrad.aval import Aval
from minigrad.dtype import finest, is_float
from minigrad.errors import DTypeError, ShapeError
from minigrad.ops.op import Op, op
from minigrad.ops.pooling import avg_pool1d
from minigrad.ops.samples import Sample
from minigrad.ops.shape import Pad
from minigrad.ops.structure import movedim
from minigrad.ops.views import reshape
from minigrad.tensor import Tensor, apply


@op
class GroupNorm(Op):
    """(x - mean) / sqrt(var + eps) * w + b, statistics over the channels of one group and all that follows"""

    groups: int
    eps: float = 1e-5
    extra, onnx, precision = ("mean", "rstd"), "GroupNormalization", "high"

    def rows(self, o, x):
        """(N, G, everything of a group)."""
        n = x.shape[0]
        return o.reshape(x, (n, self.groups, math.prod(x.shape[1:]) // self.groups))

    def channels(self, o, w, x):
        return o.reshape(w, (1, -1, *(1,) * (len(x.shape) - 2)))

    def share(self, o, x):
        return o.lit(self.groups / max(math.prod(x.shape[1:]), 1))

    def extras(self, o, x):
        r, share = self.rows(o, x), self.share(o, x)
        mean = o.sum(r, (2,), True) * share
        c = r - mean
        return mean, o.one / o.sqrt(o.sum(c * c, (2,), True) * share + o.lit(self.eps))

    def split(self, x):
        """(N, G, C / G, everything else)."""
        return x.reshape(x.shape[0], self.groups, x.shape[1] // self.groups, -1)

    def forward(self, o, x, w, b):
        if kernels.serves(x, w, b):
            y, mean, rstd = kernels.normalise_groups(self.split(x), w, b, self.eps)
            return y.reshape(x.shape), mean, rstd
        mean, rstd = self.extras(o, x)
        xhat = o.reshape((self.rows(o, x) - mean) * rstd, x.shape)
        return xhat * self.channels(o, w, x) + self.channels(o, b, x), mean, rstd

    def vjp(self, o, needs, g, x, w, mean, rstd):
        if kernels.serves(g, x, w, mean):
            dx, dw, db = kernels.normalise_groups_back(self.split(g), self.split(x), w, mean, rstd, needs[0])
            return dx if dx is None else dx.reshape(x.shape), dw, db
        r = (self.rows(o, x) - mean) * rstd
        xhat, axes, dx = o.reshape(r, x.shape), (0, *range(2, len(x.shape))), None
        if needs[0]:
            gw, share = self.rows(o, g * self.channels(o, w, x)), self.share(o, x)
            dx = rstd * (gw - o.sum(gw, (2,), True) * share - r * (o.sum(gw * r, (2,), True) * share))
            dx = o.reshape(dx, x.shape)
        return dx, o.sum(g * xhat, axes) if needs[1] else None, o.sum(g, axes)

    def infer(self, x: Aval, w: Aval, b: Aval):
        if x.ndim < 2 or w.shape != x.shape[1:2] or b.shape != w.shape or x.shape[1] % self.groups:
            raise ShapeError(
                f"group_norm: x {x.shape}, weight {w.shape}, bias {b.shape}, {self.groups} groups: expected x (N, C, "
                f"…), "
                "weight and bias (C,), C divisible by the groups"
            )
        row = Aval((x.shape[0], self.groups, 1), x.dtype)
        return Aval(x.shape, x.dtype), row, row

    def flops(self, y: Aval, *avals: Aval) -> int:
        return 8 * y.size

    def reference(self, x, w, b):
        r = x.reshape(x.shape[0], self.groups, -1)
        r = (r - r.mean(2, keepdims=True)) / np.sqrt(r.var(2, keepdims=True) + self.eps)
        row = (1, -1, *(1,) * (x.ndim - 2))
        return r.reshape(x.shape) * w.reshape(row) + b.reshape(row)

    @classmethod
    def samples(cls) -> list[Sample]:
        return [
            Sample(cls.of(g), (x, "normal(4)", "normal(4)"))
            for g, x in ((2, "normal(2,4,3)"), (1, "normal(2,4,2,2)"), (4, "normal(1,4,5)"))
        ]


@op
class RMSNorm(Op):
    """x / sqrt(mean(x²) + eps) * w over the last axis (Zhang and Sennrich 2019)"""

    eps: float = 1e-6
    extra, onnx, precision = ("rrms",), "RMSNormalization", "high"

    def extras(self, o, x):
        share = o.lit(1 / max(x.shape[-1], 1))
        return (o.one / o.sqrt(o.sum(x * x, (-1,), True) * share + o.lit(self.eps)),)

    def forward(self, o, x, w):
        (rrms,) = self.extras(o, x)
        return x * rrms * w, rrms

    def vjp(self, o, needs, g, x, w, rrms):
        xhat, share = x * rrms, o.lit(1 / max(x.shape[-1], 1))
        gw = g * w
        dx = rrms * (gw - xhat * (o.sum(gw * xhat, (-1,), True) * share)) if needs[0] else None
        return dx, g * xhat if needs[1] else None

    def infer(self, x: Aval, w: Aval):
        if not x.ndim or w.shape != x.shape[-1:]:
            raise ShapeError(f"rms_norm: x {x.shape}, weight {w.shape}: the weight must be {x.shape[-1:]}")
        return Aval(x.shape, x.dtype), Aval((*x.shape[:-1], 1), x.dtype)

    def flops(self, y: Aval, *avals: Aval) -> int:
        return 5 * y.size

    def reference(self, x, w):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * w

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of(), (x, "normal(4)")) for x in ("normal(3,4)", "normal(2,3,4)", "normal(4)")]


# ---- as functions --------------------------------------------------------------------------------
def _filled(x: Tensor, n: int, value: float) -> Tensor:
    return Tensor(x.o.full((n,), value) if x.o.eager else Aval((n,), x.dtype))


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Normalise each group of channels of each example of (N, C, …); then a weight and a bias for each channel."""
    if input.ndim < 2 or num_groups < 1:
        raise ShapeError(f"group_norm: expected (N, C, …) and at least one group, got {input.shape} and {num_groups}")
    c = input.shape[1]
    weight, bias = (
        _filled(input, c, 1.0) if weight is None else weight,
        _filled(input, c, 0.0) if bias is None else bias,
    )
    norm = GroupNorm.of(num_groups, float(eps))
    norm.infer(input.aval, weight.aval, bias.aval)
    return apply(norm, input, weight, bias)[0]


def rms_norm(input: Tensor, normalized_shape, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """x / sqrt(mean(x²) + eps) over the last axes, of shape `normalized_shape`; eps is the dtype's own unless given."""
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not shape or input.shape[-len(shape) :] != shape:
        raise ShapeError(f"rms_norm: normalized_shape {shape} is not the end of the input's shape {input.shape}")
    if not is_float(input.dtype):
        raise DTypeError(f"rms_norm: expected a float tensor, got {input.dtype}. Convert it with .float()")
    n = math.prod(shape)
    flat = reshape(input, (*input.shape[: -len(shape)], n))
    one = _filled(input, n, 1.0) if weight is None else reshape(weight, (n,))
    y = apply(RMSNorm.of(finest(input.dtype)[0] if eps is None else float(eps)), flat, one)[0]
    return reshape(y, input.shape)


def local_response_norm(input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """x / (k + alpha · mean of the squares of `size` neighbouring channels) ** beta (Krizhevsky et al. 2012)."""
    if input.ndim < 3:
        raise ShapeError(f"local_response_norm: expected (N, C, …) with at least three axes, got {input.shape}")
    last = movedim(input * input, 1, -1)
    wide = apply(Pad.of(((0, 0),) * (last.ndim - 1) + ((size // 2, (size - 1) // 2),), 0.0), last)
    rows = reshape(wide, (1, -1, wide.shape[-1]))
    mean = reshape(avg_pool1d(rows, size, 1), last.shape)
    return input / (movedim(mean, -1, 1) * alpha + k) ** beta
