"""Layer norm, forward and gradient, as one op; on the host in blocks of rows, each buffer written over in place.

After `fused.py`, which has softmax, cross-entropy and batch norm.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from minigrad.aval import Aval
from minigrad.errors import ShapeError
from minigrad.kernels import serves
from minigrad.lanes import in_lanes, summed
from minigrad.ops.op import Op, op
from minigrad.ops.samples import Sample
from minigrad.ops.views import reshape
from minigrad.tensor import Tensor, apply

BLOCK = 1 << 16  # elements of the rows taken at a time


@op
class LayerNorm(Op):
    """(x - mean) / sqrt(var + eps) * w + b over the last axis"""

    eps: float = 1e-5
    extra, onnx, precision = ("mean", "rstd"), "LayerNormalization", "high"

    def extras(self, o, x):
        share = o.lit(1 / max(x.shape[-1], 1))
        mean = o.sum(x, (-1,), True) * share
        c = x - mean
        return mean, o.one / o.sqrt(o.sum(c * c, (-1,), True) * share + o.lit(self.eps))

    def forward(self, o, x, w, b):
        if serves(x, w, b):
            return normalised(x, w, b, self.eps)
        mean, rstd = self.extras(o, x)
        return (x - mean) * rstd * w + b, mean, rstd

    def vjp(self, o, needs, g, x, w, mean, rstd):
        if serves(g, x, w, mean, rstd):
            return pulled(needs, g, x, w, mean, rstd)
        xhat, share, dx = (x - mean) * rstd, o.lit(1 / max(x.shape[-1], 1)), None
        if needs[0]:
            gw = g * w
            dx = rstd * (gw - o.sum(gw, (-1,), True) * share - xhat * (o.sum(gw * xhat, (-1,), True) * share))
        return dx, g * xhat if needs[1] else None, g

    def infer(self, x: Aval, w: Aval, b: Aval):
        if not x.ndim or w.shape != x.shape[-1:] or b.shape != w.shape:
            raise ShapeError(
                f"layer_norm: x {x.shape}, weight {w.shape}, bias {b.shape}: weight and bias must be {x.shape[-1:]}"
            )
        row = lambda: Aval((*x.shape[:-1], 1), x.dtype)  # noqa: E731 - each output an Aval of its own
        return Aval(x.shape, x.dtype), row(), row()

    def flops(self, y: Aval, *avals: Aval) -> int:
        return 8 * y.size

    def reference(self, x, w, b):
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + self.eps) * w + b

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of(), (x, "normal(4)", "normal(4)")) for x in ("normal(3,4)", "normal(2,3,4)")]


# ---- on the host: rows are products with w and with ones, which BLAS takes -----------------------
def _rows(start: int, stop: int, width: int) -> Iterator[slice]:
    step = max(1, BLOCK // width)
    return (slice(first, min(first + step, stop)) for first in range(start, stop, step))


def _flat(*arrays: np.ndarray) -> list[np.ndarray]:
    return [a.reshape(-1, a.shape[-1]) for a in arrays]


def normalised(x: np.ndarray, w: np.ndarray, b: np.ndarray, eps: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """y, mean and 1 / sqrt(var + eps)."""
    if w.shape != x.shape[-1:] or b.shape != w.shape:
        raise ValueError("layer_norm: weight or bias does not fit")  # `infer` then says it with the shapes
    y, width = np.empty(x.shape, x.dtype), x.shape[-1]
    mean, rstd = np.empty((2, *x.shape[:-1], 1), x.dtype)
    share = np.full(width, 1 / width, x.dtype)
    flat, out, means, rstds = _flat(x, y, mean, rstd)

    def work(start: int, stop: int) -> None:
        for rows in _rows(start, stop, width):
            c, m, r = out[rows], means[rows], rstds[rows]
            np.matmul(flat[rows], share, out=m[:, 0])
            np.subtract(flat[rows], m, out=c)
            np.einsum("ij,ij->i", c, c, out=r[:, 0])
            np.sqrt(np.add(np.multiply(r, share[0], out=r), x.dtype.type(eps), out=r), out=r)
            np.divide(1, r, out=r)
            c *= r
            c *= w
            c += b

    in_lanes(work, len(flat), x.nbytes)
    return y, mean, rstd


def pulled(needs: tuple, g, x, w, mean, rstd) -> tuple:
    """(dx, dw, db) as far as they are needed."""
    width = x.shape[-1]
    dx = np.empty(x.shape, g.dtype) if needs[0] else None
    weight, flat_g, flat_x, means, rstds = w / width, *_flat(g, x, mean, rstd)
    out = None if dx is None else dx.reshape(-1, width)

    def work(start: int, stop: int) -> np.ndarray:
        """dx; dw and db of these rows, (2, width)."""
        both = np.zeros((2, width), g.dtype)
        one = np.ones(min(max(1, BLOCK // width), stop - start), g.dtype)
        memory = np.empty((2, len(one), width), g.dtype)
        for rows in _rows(start, stop, width):
            gr, r = flat_g[rows], rstds[rows]
            xhat, gx = memory[0, : len(gr)], memory[1, : len(gr)]
            np.multiply(np.subtract(flat_x[rows], means[rows], out=xhat), r, out=xhat)
            np.multiply(gr, xhat, out=gx)
            both[0] += one[: len(gr)] @ gx
            both[1] += one[: len(gr)] @ gr
            if out is not None:
                d = np.multiply(gr, w, out=out[rows])
                d -= (gr @ weight)[:, None]
                d -= np.multiply(xhat, (gx @ weight)[:, None], out=xhat)
                d *= r
        return both

    dw, db = summed(in_lanes(work, len(flat_g), g.nbytes))
    return dx, dw if needs[1] else None, db if needs[2] else None


# ---- as a function -------------------------------------------------------------------------------
def layer_norm(
    x: Tensor, normalized_shape, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Normalise over the last axes, of shape `normalized_shape`; then weight and bias of that shape."""
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not shape or x.shape[-len(shape) :] != shape:
        raise ShapeError(f"layer_norm: normalized_shape {shape} is not the end of the input's shape {x.shape}")
    n = math.prod(shape)
    row = lambda given, value: _filled(x, n, value) if given is None else _in_shape(given, (n,))
    flat = _in_shape(x, (*x.shape[: -len(shape)], n))
    return _in_shape(apply(LayerNorm.of(eps), flat, row(weight, 1.0), row(bias, 0.0))[0], x.shape)


def _in_shape(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return x if x.shape == shape else reshape(x, shape)


def _filled(x: Tensor, n: int, value: float) -> Tensor:
    return Tensor(x.o.full((n,), value) if x.o.eager else Aval((n,), x.dtype))
