"""Attention: softmax(q kᵀ · scale) v as one op, and the rotation that gives queries and keys their places.

The probabilities are kept for the gradient, as an extra output.  After `norms.py`.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from minigrad.aval import Aval
from minigrad.dtype import bool_
from minigrad.errors import ShapeError
from minigrad.ops.doors import function, literal
from minigrad.ops.elementwise import Where
from minigrad.ops.matmul import MatMul
from minigrad.ops.op import NoOnnx, Op, op
from minigrad.ops.random import Dropout
from minigrad.ops.samples import Sample
from minigrad.ops.shape import cat
from minigrad.ops.structure import repeat_interleave
from minigrad.ops.views import cut
from minigrad.tensor import Tensor, apply


@lru_cache(16)
def _future(rows: int, columns: int) -> np.ndarray:
    """Minus infinity above the diagonal: what a place may not see."""
    return np.triu(np.full((rows, columns), -np.inf, np.float32), 1)


class Attending(Op):
    """softmax(q kᵀ · scale + bias) v; a row that may see nothing gives zeros."""

    extra, precision = ("p",), "low"

    def probabilities(self, o, q, k, *bias):
        s = o.matmul(q, o.mT(k)) * o.lit(self.scale)
        for b in bias:
            s = s + b
        if self.causal:
            s = s + o.constant(_future(q.shape[-2], k.shape[-2]))
        top = o.max(s, (-1,), True) if k.shape[-2] else o.zero
        e = o.exp(s - o.where(top > o.lit(-math.inf), top, o.zero))
        total = o.sum(e, (-1,), True)
        return e / o.where(total == o.zero, o.one, total)

    def pulled(self, o, needs, g, q, k, v, p):
        """(dq, dk, dv, d scores)."""
        dv = o.matmul(o.mT(p), g) if needs[2] else None
        if not (needs[0] or needs[1] or needs[3:] == (True,)):
            return None, None, dv, None
        dp = o.matmul(g, o.mT(v))
        ds = p * (dp - o.sum(dp * p, (-1,), True))
        part = ds * o.lit(self.scale)
        return o.matmul(part, k) if needs[0] else None, o.matmul(o.mT(part), q) if needs[1] else None, dv, ds

    def shapes(self, q: Aval, k: Aval, v: Aval, *bias: Aval):
        fits = min(q.ndim, k.ndim, v.ndim) >= 2 and q.shape[-1] == k.shape[-1] and k.shape[-2] == v.shape[-2]
        if not fits:
            raise ShapeError(
                f"scaled_dot_product_attention: query {q.shape}, key {k.shape}, value {v.shape}: expected (…, L, E), "
                "(…, S, E) and (…, S, V)"
            )
        try:
            lead = np.broadcast_shapes(q.shape[:-2], k.shape[:-2])
            full = np.broadcast_shapes((*lead, q.shape[-2], k.shape[-2]), *(b.shape for b in bias))
            lead = np.broadcast_shapes(full[:-2], v.shape[:-2])
        except ValueError:
            raise ShapeError(
                f"scaled_dot_product_attention: query {q.shape}, key {k.shape}, value {v.shape}"
                f"{f', mask {bias[0].shape}' if bias else ''} do not broadcast"
            ) from None
        return Aval((*lead, q.shape[-2], v.shape[-1]), q.dtype), Aval(full, q.dtype)

    def flops(self, y: Aval, q: Aval, k: Aval, v: Aval, *bias: Aval) -> int:
        rows = math.prod(y.shape[:-1]) * k.shape[-2]
        return rows * (2 * q.shape[-1] + 2 * v.shape[-1] + 12)

    def reference(self, q, k, v, *bias):
        s = q @ np.swapaxes(k, -1, -2) * self.scale + sum(bias)
        s = s + np.triu(np.full(s.shape[-2:], -np.inf), 1) if self.causal else s
        e = np.exp(s)
        return e / e.sum(-1, keepdims=True) @ v


@op
class Attention(Attending):
    """softmax(q kᵀ · scale) v; `causal`: no row sees later columns"""

    scale: float
    causal: bool = False
    onnx = NoOnnx("MatMul, Softmax, MatMul")

    def extras(self, o, q, k):
        return (self.probabilities(o, q, k),)

    def forward(self, o, q, k, v):
        p = self.probabilities(o, q, k)
        return o.matmul(p, v), p

    def vjp(self, o, needs, g, q, k, v, p):
        return self.pulled(o, needs, g, q, k, v, p)[:3]

    def infer(self, q: Aval, k: Aval, v: Aval):
        return self.shapes(q, k, v)

    @classmethod
    def samples(cls) -> list[Sample]:
        rows = [
            (False, "2,3,4", "2,5,4", "2,5,2"),
            (True, "2,4,3", "2,4,3", "2,4,3"),
            (False, "2,2,3,4", "2,1,5,4", "5,2"),
            (True, "2,3", "4,3", "4,2"),
        ]
        return [Sample(cls.of(0.5, c), tuple(f"normal({s})" for s in r)) for c, *r in rows]


@op
class BiasedAttention(Attending):
    """softmax(q kᵀ · scale + bias) v"""

    scale: float
    causal: bool = False
    onnx = NoOnnx("MatMul, Add, Softmax, MatMul")

    def extras(self, o, q, k, bias):
        return (self.probabilities(o, q, k, bias),)

    def forward(self, o, q, k, v, bias):
        p = self.probabilities(o, q, k, bias)
        return o.matmul(p, v), p

    def vjp(self, o, needs, g, q, k, v, bias, p):  # bias: `extras` reads it when differentiated again
        return self.pulled(o, needs, g, q, k, v, p)

    def infer(self, q: Aval, k: Aval, v: Aval, bias: Aval):
        return self.shapes(q, k, v, bias)

    @classmethod
    def samples(cls) -> list[Sample]:
        rows = [
            ("2,3,4", "2,5,4", "2,5,2", "3,5"),
            ("2,2,3,4", "2,2,5,4", "2,2,5,2", "2,1,1,5"),
            ("3,4", "2,4", "2,2", "2,3,2"),
        ]
        return [Sample(cls.of(0.5), tuple(f"normal({s})" for s in r)) for r in rows]


# ---- as functions --------------------------------------------------------------------------------
def as_bias(mask: Tensor, like: Tensor) -> Tensor:
    """A mask as what is added to the scores: minus infinity where a truth tensor does not hold."""
    if mask.dtype != bool_:
        return mask
    return function(Where)(mask, literal(0.0, like), literal(-math.inf, like))


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    rng: Tensor | None = None,
) -> Tensor:
    """softmax(query @ key.mT · scale + mask) @ value, scale 1/√E unless given; query (…, L, E), key (…, S, E).

    `attn_mask` is added, or, if bool, says what may be seen.  With `enable_gqa` groups of query heads (axis -3) share a
    head of key and value.  `rng` is the key of the dropout, which `mg.nn.functional` draws."""
    if attn_mask is not None and is_causal:
        raise RuntimeError("scaled_dot_product_attention: give attn_mask or is_causal=True, not both")
    if enable_gqa:
        key, value = (repeat_interleave(t, query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    factor = 1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else float(scale)
    bias = () if attn_mask is None else (as_bias(attn_mask, query),)
    attend = (BiasedAttention if bias else Attention).of(factor, bool(is_causal))
    attend.infer(query.aval, key.aval, value.aval, *(b.aval for b in bias))
    if dropout_p > 0:
        eye = Tensor(
            query.o.constant(np.eye(key.shape[-2])) if query.o.eager else Aval((key.shape[-2],) * 2, query.dtype)
        )
        p = apply(attend, query, key, eye, *bias)[0]  # the probabilities themselves
        return function(MatMul)(apply(Dropout.of(float(dropout_p)), p, rng), value)
    return apply(attend, query, key, value, *bias)[0]


def rotary_angles(length: int, dim: int, base: float = 10000.0, start: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(cos, sin) of shape (length, dim): place · base^(-2i/dim), each angle for both halves (Su et al. 2021)."""
    if dim % 2:
        raise ShapeError(f"rotary embedding: the size {dim} of a head must be even")
    angle = np.outer(np.arange(start, start + length), base ** (-np.arange(0, dim, 2) / dim))
    both = np.concatenate([angle, angle], -1)
    return np.cos(both), np.sin(both)


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x turned by its place: pairs (x[i], x[i + dim/2]) of the last axis, as Llama does."""
    half = x.shape[-1] // 2
    turned = cat([-cut(x, (Ellipsis, slice(half, None))), cut(x, (Ellipsis, slice(0, half)))], -1)
    return x * cos + turned * sin
