"""CharGPT: a decoder-only language model in the shape of GPT-2 (Radford et al. 2019), made of TransformerBlocks.

After `generation.py`.  The parameters have GPT-2's names, and `gpt2_state` brings those of `transformers` over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from minigrad.create import arange
from minigrad.nn import functional as F, init
from minigrad.nn.containers import ModuleList
from minigrad.nn.generation import LanguageModel
from minigrad.nn.kv_cache import KVCache, LayerCache, causal_attention
from minigrad.nn.layers import Dropout, Embedding, Linear
from minigrad.nn.module import Module
from minigrad.nn.norm import LayerNorm
from minigrad.ops.views import cut, permute, reshape, transpose
from minigrad.tensor import Tensor


@dataclass(frozen=True)
class GPTConfig:
    """The sizes of a CharGPT; the defaults are a model of 0.8 million parameters for text of 65 characters."""

    vocab_size: int = 65
    block_size: int = 128
    n_layer: int = 4
    n_head: int = 4
    n_embd: int = 128
    dropout: float = 0.0
    bias: bool = True
    tied: bool = True  # the head is the embedding transposed (Press & Wolf 2017)

    def __post_init__(self) -> None:
        sizes = {k: v for k, v in vars(self).items() if k not in ("dropout", "bias", "tied")}
        if min(sizes.values()) < 1 or self.n_embd % self.n_head:
            raise ValueError(f"GPTConfig: sizes must be at least 1 and n_embd divisible by n_head, got {sizes}")


class CausalSelfAttention(Module):
    """Heads that see their own place and those before it: (B, T, C) to (B, T, C)."""

    def __init__(self, n_embd: int, n_head: int, dropout: float = 0.0, bias: bool = True) -> None:
        if n_embd % n_head:
            raise ValueError(f"CausalSelfAttention: n_embd {n_embd} is not divisible by n_head {n_head}")
        self.n_head, self.dropout = n_head, dropout
        self.c_attn = Linear(n_embd, 3 * n_embd, bias)
        self.c_proj = Linear(n_embd, n_embd, bias)
        self.resid_dropout = Dropout(dropout)

    def forward(self, x: Tensor, cache: LayerCache | None = None) -> Tensor:
        b, t, c = x.shape
        qkv = permute(reshape(self.c_attn(x), (b, t, 3, self.n_head, c // self.n_head)), (2, 0, 3, 1, 4))
        q, k, v = (cut(qkv, (i,)) for i in range(3))  # (B, H, T, C / H)
        y = causal_attention(q, k, v, cache, self.dropout if self.training else 0.0)
        return self.resid_dropout(self.c_proj(reshape(transpose(y, 1, 2), (b, t, c))))


class MLP(Module):
    """Four times as wide, gelu, and back."""

    def __init__(self, n_embd: int, dropout: float = 0.0, bias: bool = True) -> None:
        self.c_fc = Linear(n_embd, 4 * n_embd, bias)
        self.c_proj = Linear(4 * n_embd, n_embd, bias)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.c_proj(F.gelu(self.c_fc(x), approximate="tanh")))


class TransformerBlock(Module):
    """x + attention(norm(x)), then x + mlp(norm(x)): the pre-norm block of GPT-2."""

    def __init__(self, n_embd: int, n_head: int, dropout: float = 0.0, bias: bool = True) -> None:
        self.ln_1 = LayerNorm(n_embd, bias=bias)
        self.attn = CausalSelfAttention(n_embd, n_head, dropout, bias)
        self.ln_2 = LayerNorm(n_embd, bias=bias)
        self.mlp = MLP(n_embd, dropout, bias)

    def forward(self, x: Tensor, cache: LayerCache | None = None) -> Tensor:
        x = x + self.attn(self.ln_1(x), cache)
        return x + self.mlp(self.ln_2(x))


class CharGPT(LanguageModel):
    """Tokens (B, T) to logits (B, T, vocab_size), T at most block_size; places are learned vectors.

    `CharGPT(GPTConfig(...))`, or the fields themselves: `CharGPT(n_layer=2, n_embd=64)`."""

    def __init__(self, config: GPTConfig | None = None, **sizes: Any) -> None:
        self.config = c = GPTConfig(**sizes) if config is None else config
        self.block_size = c.block_size
        self.wte = Embedding(c.vocab_size, c.n_embd)
        self.wpe = Embedding(c.block_size, c.n_embd)
        self.drop = Dropout(c.dropout)
        self.h = ModuleList([TransformerBlock(c.n_embd, c.n_head, c.dropout, c.bias) for _ in range(c.n_layer)])
        self.ln_f = LayerNorm(c.n_embd, bias=c.bias)
        self.lm_head = Linear(c.n_embd, c.vocab_size, bias=False)
        if c.tied:
            self.lm_head.weight = self.wte.weight
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As GPT-2: N(0, 0.02²), biases 0; what is added to the residual stream is smaller by 1/√(2 · layers)."""
        for name, p in self.named_parameters():
            if p.ndim > 1:
                share = 1 / math.sqrt(2 * len(self.h)) if name.endswith("c_proj.weight") else 1.0
                init.normal_(p, 0.0, 0.02 * share)
            else:
                init.constant_(p, float("ln_" in name and name.endswith("weight")))

    def new_cache(self) -> KVCache:
        """An empty cache of block_size tokens."""
        return KVCache(len(self.h), self.block_size)

    def forward(self, tokens: Tensor, cache: KVCache | None = None) -> Tensor:
        """With a cache: `tokens` follow those that it has read."""
        start, end = self.span(tokens, cache)
        x = self.drop(self.wte(tokens) + self.wpe(arange(start, end, device=tokens.o.device)))
        for number, block in enumerate(self.h):
            x = block(x, None if cache is None else cache.layers[number])
        return self.lm_head(self.ln_f(x))


def gpt2_state(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of a GPT-2 of `transformers` under CharGPT's names.

    Its linear layers keep weights as (in, out), so they are transposed; its masks, which are no parameters, are left
    out.  Load with `model.load_state_dict({k: mg.tensor(v) for k, v in gpt2_state(arrays).items()})`."""
    found = {}
    for name, array in state.items():
        name = name.removeprefix("transformer.")
        if name.endswith((".attn.bias", ".attn.masked_bias")):
            continue
        turned = name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
        found[name] = np.ascontiguousarray(array.T) if turned else np.asarray(array)
    found.setdefault("lm_head.weight", found["wte.weight"])
    return found
