"""The algebra `o` on Tensors: every name of `algebra.py` as an op, in one visible table.

With it a gradient rule builds a graph of its own (`create_graph`), runs on `meta`, and is seen by observers.
Last of the ops; `autograd.py` comes next.
"""
from __future__ import annotations

from functools import lru_cache

import numpy as np

from minigrad.aval import Aval
from minigrad.ops import (
    compare as c,
    conv,
    decompositions,
    diagonals as d,
    elementwise as e,
    exponential as p,
    gamma,
    index as i,
    matrices,
    random,
    reduce as r,
    rounding as n,
    scan,
    shape as s,
    trig,
    views as v,
)
from minigrad.ops.doors import function, literal
from minigrad.ops.matmul import matmul
from minigrad.ops.op import cast
from minigrad.tensor import Tensor, apply


class Traced:
    """The algebra of Tensors whose arrays belong to the algebra `raw`."""

    eager = True

    def __init__(self, raw) -> None:
        self.raw, self.dtype, self.device = raw, raw.dtype, raw.device
        like = Tensor.__new__(Tensor)
        like.o = raw
        self.lit = lambda value: literal(value, like)
        self.zero, self.one = self.lit(0), self.lit(1)

    exp, log, log1p, sqrt, tanh = map(staticmethod, map(function, (e.Exp, e.Log, e.Log1p, e.Sqrt, e.Tanh)))
    sin, cos, abs, sign = map(staticmethod, map(function, (e.Sin, e.Cos, e.Abs, e.Sign)))
    sinh, cosh = map(staticmethod, map(function, (trig.Sinh, trig.Cosh)))
    floor, trunc, expm1, erf = map(staticmethod, map(function, (n.Floor, n.Trunc, p.Expm1, p.Erf)))
    floor_divide = staticmethod(function(n.FloorDivide))
    positive, sigmoid = map(staticmethod, map(function, (e.Relu, e.Sigmoid)))
    maximum, minimum = map(staticmethod, map(function, (e.Maximum, e.Minimum)))
    matmul = staticmethod(matmul)
    lgamma, digamma = map(staticmethod, map(function, (gamma.Lgamma, gamma.Digamma)))
    isnan, logical_not = map(staticmethod, map(function, (c.IsNan, c.Not)))

    def polygamma(self, n, x):
        return function(gamma.Polygamma, n)(x)

    def where(self, cond, a, b):
        return apply(e.Where.of(), cond, a, b)

    def add_(self, y, b):
        return y + b

    def cast(self, x, dtype):
        return cast(x, dtype)

    def copy(self, x):
        return function(s.Clone)(x)

    def dense_copy(self, x):
        return apply(s.Dense.of(), x)

    def sum(self, x, axis=None, keepdims=False):
        return function(r.Sum, r.axes_of(axis, x.ndim, "sum"), keepdims)(x)

    def max(self, x, axis=None, keepdims=False):
        return function(r.Amax, r.axes_of(axis, x.ndim, "max"), keepdims)(x)

    def min(self, x, axis=None, keepdims=False):
        return function(r.Amin, r.axes_of(axis, x.ndim, "min"), keepdims)(x)

    def cumsum(self, x, axis):
        return apply(scan.CumSum.of(axis), x)

    def cumprod(self, x, axis):
        return apply(scan.CumProd.of(axis), x)

    def recurrence(self, a, b, axis):
        return apply(scan.Recurrence.of(axis), a, b)

    inv, solve, det = map(staticmethod, map(function, (matrices.Inv, matrices.Solve, matrices.Det)))
    matrix_exp = staticmethod(function(decompositions.MatrixExp))

    def reshape(self, x, shape):
        return x if x.shape == tuple(shape) else v.reshape(x, shape)

    def transpose(self, x, axes):
        return apply(v.Permute.of(tuple(axes)), x)

    def mT(self, x):
        return v.transpose(x, -1, -2)

    def broadcast_to(self, x, shape):
        return x if x.shape == tuple(shape) else apply(v.Expand.of(tuple(shape)), x)

    spread = broadcast_to

    def cut(self, x, key):
        return apply(v.Cut.of(v.freeze_key(key)), x)

    def place(self, g, key, shape):
        return apply(v.Place.of(v.freeze_key(key), tuple(shape)), g)

    def put(self, x, key, value):
        return apply(v.Put.of(v.freeze_key(key)), x, value)

    def diagonal(self, x, offset, axis1, axis2):
        return apply(d.Diagonal.of(offset, axis1, axis2), x)

    def on_diagonal(self, g, shape, offset, axis1, axis2):
        return apply(d.OnDiagonal.of(tuple(shape), offset, axis1, axis2), g)

    def put_diagonal(self, x, value, offset, axis1, axis2):
        return apply(d.PutDiagonal.of(offset, axis1, axis2), x, value)

    def tril(self, x, k):
        return apply(d.Tril.of(k), x)

    def triu(self, x, k):
        return apply(d.Triu.of(k), x)

    def constant(self, host):
        raw = self.raw
        return Tensor(raw.constant(host) if raw.eager else Aval(np.shape(host), raw.dtype))

    def pad(self, x, widths, value=0.0):
        return apply(s.Pad.of(widths, value), x)

    def cat(self, xs, axis):
        return s.cat(xs, axis)

    def stack(self, xs, axis):
        return s.stack(xs, axis)

    def windows(self, x, kernel, stride, dilation):
        return apply(conv.Windows.of(tuple(kernel), stride, dilation), x)

    def fold(self, w, shape, stride, dilation):
        return apply(conv.Fold.of(tuple(shape), stride, dilation), w)

    def at(self, x, pattern, index):
        return apply(i.At.of(v.freeze_key(pattern)), x, *index)

    def add_at(self, g, pattern, index, shape):
        return apply(i.AddAt.of(v.freeze_key(pattern), tuple(shape)), g, *index)

    def put_at(self, x, pattern, index, value):
        return apply(i.PutAt.of(v.freeze_key(pattern)), x, value, *index)

    def take_along(self, x, index, axis):
        return apply(i.TakeAlong.of(axis), x, index)

    def add_along(self, g, index, axis, n):
        return apply(i.AddAlong.of(axis, n), g, index)

    def one_hot(self, t, n, like):
        return apply(i.OneHot.of(n), t, like)

    def less_one_hot(self, p, t):
        return p - self.one_hot(t, p.shape[1], p)

    def bernoulli(self, key, shape, keep, like):
        return apply(random.Bernoulli.of(tuple(shape), keep), like, key)


traced = lru_cache(None)(Traced)
