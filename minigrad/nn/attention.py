"""MultiheadAttention, as `torch.nn`'s, with its parameters' names.  After `norm.py`; `transformer.py` is made of it."""

from __future__ import annotations

from minigrad.create import empty, zeros
from minigrad.dtype import bool_
from minigrad.errors import ShapeError
from minigrad.nn import functional as F, init
from minigrad.nn.layers import Linear, sized
from minigrad.nn.module import Module
from minigrad.nn.parameter import Parameter
from minigrad.ops.attention import as_bias, attention_weights
from minigrad.ops.reduce_functions import mean
from minigrad.ops.shape import cat
from minigrad.ops.structure import chunk
from minigrad.ops.views import expand, flatten, reshape, squeeze, transpose, unsqueeze
from minigrad.tensor import Tensor


class MultiheadAttention(Module):
    """Attention of several heads, each with its own part of the features (Vaswani et al. 2017, section 3.2.2).

    query (L, N, E), key (S, N, kdim), value (S, N, vdim); with `batch_first` N comes first; without N unbatched.
    A bool mask says, unlike in scaled_dot_product_attention, what may *not* be seen; a float mask is added."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device="cpu",
        dtype=None,
    ) -> None:
        sized(embed_dim=embed_dim, num_heads=num_heads)
        if embed_dim % num_heads:
            raise ValueError(f"MultiheadAttention: embed_dim {embed_dim} is not divisible by num_heads {num_heads}")
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.kdim, self.vdim = embed_dim if kdim is None else kdim, embed_dim if vdim is None else vdim
        self.dropout, self.batch_first, self.add_zero_attn = dropout, batch_first, add_zero_attn
        make = lambda *shape: Parameter(empty(*shape, device=device, dtype=dtype))
        if self.kdim == self.vdim == embed_dim:
            self.in_proj_weight: Parameter | None = make(3 * embed_dim, embed_dim)
            self.q_proj_weight = self.k_proj_weight = self.v_proj_weight = None
        else:
            self.q_proj_weight, self.k_proj_weight, self.v_proj_weight = (
                make(embed_dim, n) for n in (embed_dim, self.kdim, self.vdim)
            )
            self.in_proj_weight = None
        self.in_proj_bias = make(3 * embed_dim) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype)
        self.bias_k, self.bias_v = (make(1, 1, embed_dim) if add_bias_kv else None for _ in range(2))
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        """Glorot's uniform numbers for the projections, zeros for their biases."""
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                init.xavier_uniform_(weight)
        for bias in (self.in_proj_bias, self.out_proj.bias):
            if bias is not None:
                init.zeros_(bias)
        for row in (self.bias_k, self.bias_v):
            if row is not None:
                init.xavier_normal_(row)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """(output like query, attention weights (N, L, S), or (N, heads, L, S) unless averaged, or None).

        `key_padding_mask` (N, S), `attn_mask` (L, S) or (N · heads, L, S).  `is_causal` says that `attn_mask` is the
        causal mask, which then need not be read."""
        self._check(query, key, value, attn_mask, key_padding_mask, is_causal)
        batched, shared = query.ndim == 3, (key is query, value is key)
        query, key, value = map(self._batch_first, (query, key, value))
        key = query if shared[0] else key  # one object where the caller gave one: one product serves all three
        value = key if shared[1] else value
        causal = is_causal and key_padding_mask is None and not need_weights
        q, k, v = (self._heads(x) for x in self._with_bias(*self._projected(query, key, value)))
        bias = self._bias(q, None if causal else attn_mask, key_padding_mask, key.shape[1])
        if self.add_zero_attn:
            k, v = (cat([x, zeros(*x.shape[:2], 1, x.shape[3], device=x.o.device, dtype=x.dtype)], 2) for x in (k, v))
        p = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            weights = F.dropout(attention_weights(q, k, bias), p)
            y = weights @ v
            weights = mean(weights, 1) if average_attn_weights else weights
        else:
            y = F.scaled_dot_product_attention(q, k, v, bias, p, causal)
        y = self.out_proj(flatten(transpose(y, 1, 2), 2))
        if not batched:
            return squeeze(y, 0), weights if weights is None else squeeze(weights, 0)
        return y if self.batch_first else transpose(y, 0, 1), weights

    # -- inputs
    def _check(self, query: Tensor, key: Tensor, value: Tensor, mask, padding, is_causal: bool) -> None:
        told = f"MultiheadAttention: query {query.shape}, key {key.shape}, value {value.shape}"
        if query.ndim not in (2, 3) or not query.ndim == key.ndim == value.ndim:
            raise ShapeError(f"{told}: expected 3 axes each, or 2 without a batch")
        if (query.shape[-1], key.shape[-1], value.shape[-1]) != (self.embed_dim, self.kdim, self.vdim):
            raise ShapeError(f"{told}: expected last sizes {self.embed_dim}, {self.kdim} and {self.vdim}")
        if key.shape[:-1] != value.shape[:-1]:
            raise ShapeError(f"{told}: key and value must have the same length and batch")
        if is_causal and mask is None:
            raise RuntimeError("MultiheadAttention: is_causal says that attn_mask is causal; give that mask too")
        batch = query.shape[0 if self.batch_first else 1] if query.ndim == 3 else 1
        seen = key.shape[-2] if self.batch_first or key.ndim == 2 else key.shape[0]
        rows = query.shape[-2] if self.batch_first or query.ndim == 2 else query.shape[0]
        if padding is not None and padding.shape != ((batch, seen) if query.ndim == 3 else (seen,)):
            raise ShapeError(f"{told}: key_padding_mask {padding.shape} is not {(batch, seen)[3 - query.ndim :]}")
        if mask is not None and mask.shape not in ((rows, seen), (batch * self.num_heads, rows, seen)):
            wanted = f"{(rows, seen)} nor {(batch * self.num_heads, rows, seen)}"
            raise ShapeError(f"{told}: attn_mask {mask.shape} is neither {wanted}")

    def _batch_first(self, x: Tensor) -> Tensor:
        """x as (N, length, features)."""
        return unsqueeze(x, 0) if x.ndim == 2 else x if self.batch_first else transpose(x, 0, 1)

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Queries, keys and values (N, length, E); of one input by one product."""
        if self.in_proj_weight is not None and query is key is value:
            return list(chunk(F.linear(query, self.in_proj_weight, self.in_proj_bias), 3, -1))
        if self.in_proj_weight is not None:
            parts = list(chunk(self.in_proj_weight, 3))
        else:
            parts = [w for w in (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight) if w is not None]
        biases = [None] * 3 if self.in_proj_bias is None else chunk(self.in_proj_bias, 3)
        return [F.linear(x, w, b) for x, w, b in zip((query, key, value), parts, biases)]

    def _with_bias(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One more key and value, learned, at the end."""
        if self.bias_k is None or self.bias_v is None:
            return q, k, v
        longer = lambda x, row: cat([x, expand(row, x.shape[0], 1, self.embed_dim)], 1)
        return q, longer(k, self.bias_k), longer(v, self.bias_v)

    def _heads(self, x: Tensor) -> Tensor:
        """(N, length, E) as (N, heads, length, E / heads)."""
        return transpose(reshape(x, (*x.shape[:2], self.num_heads, self.head_dim)), 1, 2)

    def _bias(self, q: Tensor, mask: Tensor | None, padding: Tensor | None, length: int) -> Tensor | None:
        """Both masks as one sum, (N or 1, heads or 1, L or 1, S); the columns added at the end are open."""
        found = None
        for each, shape in ((mask, (-1, self.num_heads)), (padding, (-1, 1, 1))):
            if each is None:
                continue
            bias = as_bias(~each if each.dtype == bool_ else each, q, "MultiheadAttention")
            if each is padding or each.ndim == 3:
                bias = reshape(bias, (*shape, *each.shape[-2 if each is mask else -1 :]))
            found = bias if found is None else found + bias
        more = (self.bias_k is not None) + self.add_zero_attn
        return found if found is None or not more else F.pad(found, (0, more))
