"""A decoder-only language model in the shape of Llama (Touvron et al. 2023).

RMSNorm, rotary places, grouped queries, SwiGLU.  The parameters have the names of `transformers`; `llama_state` only
drops a prefix.  After `gpt.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from minigrad.create import tensor
from minigrad.nn import functional as F, init
from minigrad.nn.containers import ModuleList
from minigrad.nn.generation import LanguageModel
from minigrad.nn.kv_cache import KVCache, LayerCache, causal_attention
from minigrad.nn.layers import Embedding, Linear
from minigrad.nn.module import Module
from minigrad.nn.norm import RMSNorm
from minigrad.ops.attention import apply_rotary, rotary_angles
from minigrad.ops.views import cut, reshape, transpose
from minigrad.tensor import Tensor


@dataclass(frozen=True)
class LlamaConfig:
    """The sizes of a Llama, by the names of `transformers`.  `num_key_value_heads` None: as many as query heads."""

    vocab_size: int = 65
    hidden_size: int = 128
    intermediate_size: int = 344  # 8/3 · hidden_size: as many weights as a plain block of 4 · hidden_size
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int | None = None
    max_position_embeddings: int = 128
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False

    def __post_init__(self) -> None:
        heads, shared = self.num_attention_heads, self.key_value_heads
        if min(heads, shared) < 1 or heads % shared or self.hidden_size % heads or self.head_dim % 2:
            raise ValueError(
                f"LlamaConfig: hidden_size {self.hidden_size}, {heads} heads, {shared} heads of keys and values: the "
                "heads must divide hidden_size, be a multiple of those of the keys, and have an even size"
            )

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def key_value_heads(self) -> int:
        return self.num_attention_heads if self.num_key_value_heads is None else self.num_key_value_heads


class LlamaAttention(Module):
    """Causal attention of grouped queries (Ainslie et al. 2023) with rotary places (Su et al. 2021)."""

    def __init__(self, config: LlamaConfig) -> None:
        c, self.head_dim = config, config.head_dim
        wide, narrow = c.num_attention_heads * c.head_dim, c.key_value_heads * c.head_dim
        self.q_proj = Linear(c.hidden_size, wide, c.attention_bias)
        self.k_proj = Linear(c.hidden_size, narrow, c.attention_bias)
        self.v_proj = Linear(c.hidden_size, narrow, c.attention_bias)
        self.o_proj = Linear(wide, c.hidden_size, c.attention_bias)

    def _heads(self, x: Tensor) -> Tensor:
        """(B, T, heads · D) as (B, heads, T, D)."""
        return transpose(reshape(x, (*x.shape[:2], x.shape[2] // self.head_dim, self.head_dim)), 1, 2)

    def forward(self, x: Tensor, places: tuple[Tensor, Tensor], cache: LayerCache | None = None) -> Tensor:
        q, k, v = (self._heads(project(x)) for project in (self.q_proj, self.k_proj, self.v_proj))
        y = causal_attention(apply_rotary(q, *places), apply_rotary(k, *places), v, cache)
        return self.o_proj(reshape(transpose(y, 1, 2), (*x.shape[:2], y.shape[1] * self.head_dim)))


class LlamaMLP(Module):
    """down(silu(gate(x)) · up(x)): SwiGLU (Shazeer 2020)."""

    def __init__(self, hidden_size: int, intermediate_size: int, bias: bool = False) -> None:
        self.gate_proj = Linear(hidden_size, intermediate_size, bias)
        self.up_proj = Linear(hidden_size, intermediate_size, bias)
        self.down_proj = Linear(intermediate_size, hidden_size, bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaBlock(Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: LlamaConfig) -> None:
        self.self_attn = LlamaAttention(config)
        self.mlp = LlamaMLP(config.hidden_size, config.intermediate_size, config.mlp_bias)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, places: tuple[Tensor, Tensor], cache: LayerCache | None = None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), places, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(LanguageModel):
    """Tokens (B, T) to logits (B, T, vocab_size), T at most max_position_embeddings.

    `Llama(LlamaConfig(...))`, or the fields themselves: `Llama(hidden_size=64, num_key_value_heads=2)`."""

    def __init__(self, config: LlamaConfig | None = None, **sizes: Any) -> None:
        self.config = c = LlamaConfig(**sizes) if config is None else config
        self.block_size = c.max_position_embeddings
        self.embed_tokens = Embedding(c.vocab_size, c.hidden_size)
        self.layers = ModuleList([LlamaBlock(c) for _ in range(c.num_hidden_layers)])
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.lm_head = Linear(c.hidden_size, c.vocab_size, bias=False)
        if c.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight
        cos, sin = rotary_angles(c.max_position_embeddings, c.head_dim, c.rope_theta)
        self.register_buffer("cos", tensor(cos, dtype=self.norm.weight.dtype), persistent=False)
        self.register_buffer("sin", tensor(sin, dtype=self.norm.weight.dtype), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Matrices N(0, 0.02²), biases 0, norms 1."""
        for name, p in self.named_parameters():
            if p.ndim > 1:
                init.normal_(p, 0.0, 0.02)
            else:
                init.constant_(p, float("norm" in name))

    def new_cache(self) -> KVCache:
        """An empty cache of max_position_embeddings tokens."""
        return KVCache(len(self.layers), self.block_size)

    def forward(self, tokens: Tensor, cache: KVCache | None = None) -> Tensor:
        """With a cache: `tokens` follow those that it has read."""
        start, end = self.span(tokens, cache)
        here = (slice(start, end), slice(None))
        x, places = self.embed_tokens(tokens), (cut(self.cos, here), cut(self.sin, here))
        for number, layer in enumerate(self.layers):
            x = layer(x, places, None if cache is None else cache.layers[number])
        return self.lm_head(self.norm(x))


def llama_state(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of a Llama of `transformers` under the names of this one: without the prefix `model.`."""
    found = {name.removeprefix("model."): np.asarray(array) for name, array in state.items()}
    found = {name: array for name, array in found.items() if not name.endswith("rotary_emb.inv_freq")}
    found.setdefault("lm_head.weight", found["embed_tokens.weight"])
    return found
