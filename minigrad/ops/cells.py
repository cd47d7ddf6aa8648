"""One step of an LSTM, a GRU, a Tree-LSTM: each one op behind the products of its gates.  After `attention.py`.

An op has one differentiable output, so an LSTM's is both its states side by side.
"""

from __future__ import annotations

import numpy as np

from minigrad.aval import Aval
from minigrad.errors import ShapeError
from minigrad.ops.activations import logistic
from minigrad.ops.doors import function
from minigrad.ops.matmul import linear
from minigrad.ops.op import NoOnnx, Op, op
from minigrad.ops.samples import Sample
from minigrad.ops.views import cut
from minigrad.tensor import Tensor


def parts(o, x, n: int) -> list:
    """The last axis in n equal parts."""
    h = x.shape[-1] // n
    return [o.cut(x, (Ellipsis, slice(k * h, (k + 1) * h))) for k in range(n)]


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


@op
class LSTMStep(Op):
    """Gates z (…, 4H: input, forget, cell, output) and cell state c (…, H) to the new states (…, 2H): h, then c"""

    exact, onnx, precision = True, NoOnnx("LSTM is a whole layer there"), "high"

    def forward(self, o, z, c):
        i, f, u, w = parts(o, z, 4)
        new = logistic(o, f) * c + logistic(o, i) * o.tanh(u)
        return o.cat((logistic(o, w) * o.tanh(new), new), -1)

    def vjp(self, o, needs, g, z, c, y):
        i, f, u, w = parts(o, z, 4)
        i, f, u, w = logistic(o, i), logistic(o, f), o.tanh(u), logistic(o, w)
        gh, gc = parts(o, g, 2)
        t = o.tanh(parts(o, y, 2)[1])
        dc = gc + gh * w * (o.one - t * t)
        dz = (dc * u * i * (o.one - i), dc * c * f * (o.one - f), dc * i * (o.one - u * u), gh * t * w * (o.one - w))
        return o.cat(dz, -1) if needs[0] else None, dc * f

    def infer(self, z: Aval, c: Aval) -> Aval:
        if z.ndim != c.ndim or not z.ndim or z.shape != (*c.shape[:-1], 4 * c.shape[-1]):
            raise ShapeError(f"lstm_cell: gates {z.shape} and cell state {c.shape}: expected (…, 4H) and (…, H)")
        return Aval((*c.shape[:-1], 2 * c.shape[-1]), z.dtype)

    def flops(self, y: Aval, z: Aval, c: Aval) -> int:
        return 50 * c.size

    def reference(self, z, c):
        i, f, u, w = np.split(z, 4, -1)
        new = _sigmoid(f) * c + _sigmoid(i) * np.tanh(u)
        return np.concatenate([_sigmoid(w) * np.tanh(new), new], -1)

    @classmethod
    def samples(cls) -> list[Sample]:
        return [
            Sample(cls.of(), s)
            for s in (("normal(3,8)", "normal(3,2)"), ("normal(4)", "normal(1)"), ("normal(0,8)", "normal(0,2)"))
        ]


@op
class GRUStep(Op):
    """Gates a (…, 3H) of the input and b (…, 3H) of the state: reset, update, new; with h (…, H) to the new state"""

    exact, onnx, precision = True, NoOnnx("GRU is a whole layer there"), "high"

    def forward(self, o, a, b, h):
        (ar, az, an), (br, bz, bn) = parts(o, a, 3), parts(o, b, 3)
        z = logistic(o, az + bz)
        n = o.tanh(an + logistic(o, ar + br) * bn)
        return n + z * (h - n)

    def vjp(self, o, needs, g, a, b, h):
        (ar, az, an), (br, bz, bn) = parts(o, a, 3), parts(o, b, 3)
        r, z = logistic(o, ar + br), logistic(o, az + bz)
        n = o.tanh(an + r * bn)
        dn = g * (o.one - z) * (o.one - n * n)
        dr, dz = dn * bn * r * (o.one - r), g * (h - n) * z * (o.one - z)
        return o.cat((dr, dz, dn), -1), o.cat((dr, dz, dn * r), -1), g * z

    def infer(self, a: Aval, b: Aval, h: Aval) -> Aval:
        if not h.ndim or not a.shape == b.shape == (*h.shape[:-1], 3 * h.shape[-1]):
            raise ShapeError(
                f"gru_cell: gates {a.shape} and {b.shape}, state {h.shape}: expected (…, 3H) twice and (…, H)"
            )
        return Aval(h.shape, h.dtype)

    def flops(self, y: Aval, a: Aval, b: Aval, h: Aval) -> int:
        return 40 * h.size

    def reference(self, a, b, h):
        (ar, az, an), (br, bz, bn) = np.split(a, 3, -1), np.split(b, 3, -1)
        z, n = _sigmoid(az + bz), np.tanh(an + _sigmoid(ar + br) * bn)
        return (1 - z) * n + z * h

    @classmethod
    def samples(cls) -> list[Sample]:
        return [
            Sample(cls.of(), s)
            for s in (("normal(3,6)", "normal(3,6)", "normal(3,2)"), ("normal(3)", "normal(3)", "normal(1)"))
        ]


@op
class TreeStep(Op):
    """Gates z (…, 3H: input, output, cell) and what the forget gates keep (…, H) to the states (…, 2H): h, then c"""

    exact, onnx, precision = True, NoOnnx("composed of Sigmoid, Tanh and Mul"), "high"

    def forward(self, o, z, kept):
        i, q, u = parts(o, z, 3)
        new = logistic(o, i) * o.tanh(u) + kept
        return o.cat((logistic(o, q) * o.tanh(new), new), -1)

    def vjp(self, o, needs, g, z, y):
        i, q, u = parts(o, z, 3)
        i, q, u = logistic(o, i), logistic(o, q), o.tanh(u)
        gh, gc = parts(o, g, 2)
        t = o.tanh(parts(o, y, 2)[1])
        dc = gc + gh * q * (o.one - t * t)
        dz = (dc * u * i * (o.one - i), gh * t * q * (o.one - q), dc * i * (o.one - u * u))
        return o.cat(dz, -1) if needs[0] else None, dc

    def infer(self, z: Aval, kept: Aval) -> Aval:
        if z.ndim != kept.ndim or not z.ndim or z.shape != (*kept.shape[:-1], 3 * kept.shape[-1]):
            raise ShapeError(f"tree_step: gates {z.shape} and kept {kept.shape}: expected (…, 3H) and (…, H)")
        return Aval((*kept.shape[:-1], 2 * kept.shape[-1]), z.dtype)

    def flops(self, y: Aval, z: Aval, kept: Aval) -> int:
        return 40 * kept.size

    def reference(self, z, kept):
        i, q, u = np.split(z, 3, -1)
        new = _sigmoid(i) * np.tanh(u) + kept
        return np.concatenate([_sigmoid(q) * np.tanh(new), new], -1)

    @classmethod
    def samples(cls) -> list[Sample]:
        shapes = (("normal(3,6)", "normal(3,2)"), ("normal(6)", "normal(2)"), ("normal(0,6)", "normal(0,2)"))
        return [Sample(cls.of(), s) for s in shapes]


# ---- as functions --------------------------------------------------------------------------------
def lstm_cell(
    input: Tensor,
    hx: tuple[Tensor, Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One step of an LSTM: input (N, I), states h and c (N, H), weights (4H, I) and (4H, H); the new h and c."""
    h, c = hx
    both = function(LSTMStep)(linear(input, w_ih, b_ih) + linear(h, w_hh, b_hh), c)
    size = c.shape[-1]
    return cut(both, (Ellipsis, slice(0, size))), cut(both, (Ellipsis, slice(size, 2 * size)))


def gru_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """One step of a GRU: input (N, I), state (N, H), weights (3H, I) and (3H, H); the new state."""
    return function(GRUStep)(linear(input, w_ih, b_ih), linear(hx, w_hh, b_hh), hx)


def rnn_tanh_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """tanh(input @ w_ihᵀ + hx @ w_hhᵀ + biases)."""
    return (linear(input, w_ih, b_ih) + linear(hx, w_hh, b_hh)).tanh()


def rnn_relu_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """max(input @ w_ihᵀ + hx @ w_hhᵀ + biases, 0)."""
    return (linear(input, w_ih, b_ih) + linear(hx, w_hh, b_hh)).relu()
