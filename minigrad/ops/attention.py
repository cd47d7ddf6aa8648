"""Attention: softmax(q kᵀ · scale) v as one op, and the rotation that gives queries and keys their places.

The probabilities are kept for the gradient, as an extra output.  After `norms.py`.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from minigrad.aval import Aval
from minigrad.dtype import bool_, float32, is_float
from minigrad.errors import DTypeError, ShapeError
from minigrad.kernels import serves
from minigrad.ops.attention_blocks import mixed, pulled, weights
from minigrad.ops.doors import function, literal
from minigrad.ops.elementwise import Where
from minigrad.ops.matmul import MatMul
from minigrad.ops.op import NoOnnx, Op, cast, op
from minigrad.ops.random import Dropout
from minigrad.ops.samples import Sample
from minigrad.ops.shape import cat
from minigrad.ops.structure import unflatten
from minigrad.ops.views import cut, flatten, unsqueeze
from minigrad.tensor import Tensor, apply


@lru_cache(16)
def _future(rows: int, columns: int) -> np.ndarray:
    """Minus infinity above the diagonal: what a place may not see."""
    return np.triu(np.full((rows, columns), -np.inf, np.float32), 1)


class Attending(Op):
    """softmax(q kᵀ · scale + bias) v; a row that may see nothing gives zeros."""

    extra: tuple[str, ...] = ("p",)
    precision = "low"

    def probabilities(self, o, q, k, *bias):
        if serves(q, k, *bias):
            return weights(q, k, self.scale, self.causal, bias)
        s = o.matmul(q, o.mT(k)) * o.lit(self.scale)
        for b in bias:
            s = s + b
        if self.causal:
            s = s + o.constant(_future(q.shape[-2], k.shape[-2]))
        top = o.max(s, (-1,), True) if k.shape[-2] else o.zero
        e = o.exp(s - o.where(top > o.lit(-math.inf), top, o.zero))
        total = o.sum(e, (-1,), True)
        return e / o.where(total == o.zero, o.one, total)

    def attended(self, o, p, v):
        return mixed(p, v, self.causal) if serves(p, v) else o.matmul(p, v)

    def pulled(self, o, needs, g, q, k, v, p):
        """(dq, dk, dv, d scores) of y = p v."""
        if serves(g, q, k, v, p):
            return pulled(needs, g, q, k, v, p, self.scale, self.causal)
        dv = o.matmul(o.mT(p), g) if needs[2] else None
        if not (needs[0] or needs[1] or needs[3:] == (True,)):
            return None, None, dv, None
        dq, dk, ds = self.from_weights(o, needs, o.matmul(g, o.mT(v)), q, k, p)
        return dq, dk, dv, ds

    def from_weights(self, o, needs, dp, q, k, p):
        """(dq, dk, d scores), given the gradient by the weights p."""
        ds = p * (dp - o.sum(dp * p, (-1,), True))
        part = ds * o.lit(self.scale)
        return o.matmul(part, k) if needs[0] else None, o.matmul(o.mT(part), q) if needs[1] else None, ds

    def shapes(self, q: Aval, k: Aval, v: Aval, *bias: Aval):
        fits = min(q.ndim, k.ndim, v.ndim) >= 2 and q.shape[-1] == k.shape[-1] and k.shape[-2] == v.shape[-2]
        if not fits:
            raise ShapeError(
                f"scaled_dot_product_attention: query {q.shape}, key {k.shape}, value {v.shape}: expected (…, L, E), "
                "(…, S, E) and (…, S, V)"
            )
        tail = q.shape[-2], k.shape[-2]
        try:
            scores = (*np.broadcast_shapes(q.shape[:-2], k.shape[:-2]), *tail)
            full = np.broadcast_shapes(scores, *(b.shape for b in bias))
            lead = np.broadcast_shapes(full[:-2], v.shape[:-2])
            if full[-2:] != tail:
                raise ValueError("a mask larger than the scores")
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
        return self.attended(o, p, v), p

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
        return self.attended(o, p, v), p

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


@op
class AttentionWeights(Attending):
    """softmax(q kᵀ · scale + bias) itself, where it is wanted or thinned out by dropout"""

    scale: float
    causal: bool = False
    extra = ()
    onnx = NoOnnx("MatMul, Add, Softmax")

    def forward(self, o, q, k, bias):
        return self.probabilities(o, q, k, bias)

    def vjp(self, o, needs, g, q, k, y):
        return self.from_weights(o, needs, g, q, k, y)

    def infer(self, q: Aval, k: Aval, bias: Aval) -> Aval:
        return self.shapes(q, k, k, bias)[1]

    def flops(self, y: Aval, q: Aval, k: Aval, bias: Aval) -> int:
        return y.size * (2 * q.shape[-1] + 12)

    def reference(self, q, k, bias):
        return super().reference(q, k, np.eye(k.shape[-2]), bias)

    @classmethod
    def samples(cls) -> list[Sample]:
        rows = [(False, "2,3,4", "2,5,4", "3,5"), (True, "2,2,3,4", "2,1,3,4", "2,1,1,3"), (False, "3,4", "2,4", "1")]
        return [Sample(cls.of(0.5, c), tuple(f"normal({s})" for s in r)) for c, *r in rows]


# ---- as functions --------------------------------------------------------------------------------
NAME = "scaled_dot_product_attention"


def as_bias(mask: Tensor, like: Tensor, name: str = NAME) -> Tensor:
    """A mask as what is added to the scores: minus infinity where a truth tensor does not hold."""
    if mask.dtype == bool_:
        return function(Where)(mask, literal(0.0, like), literal(-math.inf, like))
    if mask.dtype not in (like.dtype, float32):
        raise DTypeError(f"{name}: the mask is {mask.dtype}, expected bool or {like.dtype}, the query's dtype")
    return cast(mask, like.dtype)


def attention_weights(
    query: Tensor, key: Tensor, bias: Tensor | None = None, is_causal: bool = False, scale: float | None = None
) -> Tensor:
    """softmax(query @ key.mT · scale + bias), scale 1/√E unless given."""
    bias = literal(0.0, query) if bias is None else bias
    return apply(AttentionWeights.of(_scale(query, scale), bool(is_causal)), query, key, bias)


def _scale(query: Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else float(scale)


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

    `attn_mask` is added, or, if bool, says what may be seen; a row that may see nothing gives zeros.  `is_causal`: row
    i sees columns 0 … i.  With `enable_gqa` groups of query heads (axis -3) share a head of key and value (Ainslie et
    al. 2023).  `rng` is the key of the dropout, which `mg.nn.functional` draws."""
    _check(query, key, value, attn_mask, dropout_p, is_causal)
    if enable_gqa:
        return _in_groups(query, key, value, attn_mask, dropout_p, is_causal, scale, rng)
    bias = None if attn_mask is None else as_bias(attn_mask, query)
    operands = (query, key, value) if bias is None else (query, key, value, bias)
    attend = (Attention if bias is None else BiasedAttention).of(_scale(query, scale), bool(is_causal))
    attend.infer(*(x.aval for x in operands))  # blocks would not notice a value that is too long
    if dropout_p > 0:
        p = apply(Dropout.of(float(dropout_p)), attention_weights(query, key, bias, is_causal, scale), rng)
        return function(MatMul)(p, value)
    return apply(attend, *operands)[0]


def _check(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float, causal: bool) -> None:
    if mask is not None and causal:
        raise RuntimeError(f"{NAME}: give attn_mask or is_causal=True, not both")
    if not 0 <= dropout_p <= 1:
        raise ValueError(f"{NAME}: dropout_p must be a probability, got {dropout_p}")
    if min(query.ndim, key.ndim, value.ndim) < 2:
        raise ShapeError(
            f"{NAME}: query {query.shape}, key {key.shape}, value {value.shape} need two axes or more: (…, L, E)"
        )
    if not query.dtype == key.dtype == value.dtype or not is_float(query.dtype):
        told = ", ".join(str(t.dtype) for t in (query, key, value))
        raise DTypeError(f"{NAME}: query, key and value must have one float dtype, got {told}. Convert with .to(dtype)")


def _in_groups(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *how) -> Tensor:
    """Grouped queries: heads (…, H, L, E) as (…, K, H/K, L, E), beside keys (…, K, 1, S, E); nothing is repeated."""
    if min(query.ndim, key.ndim, value.ndim) < 3 or key.shape[-3] != value.shape[-3] or query.shape[-3] % key.shape[-3]:
        raise ShapeError(
            f"{NAME}: enable_gqa: the heads (axis -3) of key {key.shape} and value {value.shape} must be equally many "
            f"and divide those of query {query.shape}"
        )
    n, heads = query.shape[-3], key.shape[-3]
    if mask is not None and mask.ndim > 2:
        mask = unflatten(mask, -3, (heads, n // heads)) if mask.shape[-3] == n > 1 else unsqueeze(mask, -3)
    grouped, (dropout_p, is_causal, scale, rng) = unflatten(query, -3, (heads, n // heads)), how
    key, value = unsqueeze(key, -3), unsqueeze(value, -3)
    y = scaled_dot_product_attention(grouped, key, value, mask, dropout_p, is_causal, scale, rng=rng)
    return flatten(y, -4, -3)


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
