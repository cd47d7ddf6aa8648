"""Text from a model that gives logits: how a token is drawn, and one after the other.  After `kv_cache.py`."""

from __future__ import annotations

from minigrad.autograd import no_grad
from minigrad.create import Generator
from minigrad.dtype import is_float
from minigrad.errors import DTypeError, ShapeError
from minigrad.methods import where
from minigrad.nn.kv_cache import KVCache
from minigrad.nn.module import Module
from minigrad.ops.fused import softmax
from minigrad.ops.index import gather, getitem
from minigrad.ops.reduce_functions import argmax
from minigrad.ops.scan import cumsum
from minigrad.ops.shape import cat
from minigrad.ops.sorting import sort, topk
from minigrad.sampling import multinomial
from minigrad.tensor import Tensor


class LanguageModel(Module):
    """Tokens (batch, length) to logits (batch, length, vocabulary); it reads `block_size` tokens at most."""

    block_size: int

    def new_cache(self) -> KVCache:
        """An empty cache of `block_size` tokens."""
        raise NotImplementedError

    def span(self, tokens: Tensor, cache: KVCache | None) -> tuple[int, int]:
        """The places of `tokens`, from and to, after those that the cache has read."""
        if tokens.ndim != 2:
            raise ShapeError(f"{type(self).__name__}: expected tokens (batch, length), got {tokens.shape}")
        start = 0 if cache is None else cache.settle()
        end = start + tokens.shape[1]
        if end > self.block_size:
            raise ValueError(
                f"{type(self).__name__}: {end} tokens exceed block_size {self.block_size}; keep the last: "
                f"tokens[:, -{self.block_size}:]"
            )
        return start, end

    def generate(
        self,
        tokens: Tensor,
        n: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """`tokens` (B, T) and `n` more; see `generate` below."""
        return generate(self, tokens, n, temperature, top_k, top_p, generator)


def sample_token(
    logits: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: Generator | None = None,
) -> Tensor:
    """One class number a row of (batch, vocabulary): (batch, 1) int64.

    Drawn from softmax(logits / temperature), at temperature 0 the largest.  `top_k`: from the k largest only (Fan et
    al. 2018).  `top_p`: then from the fewest that together have this probability (Holtzman et al. 2020)."""
    _check(logits, temperature, top_k, top_p)
    if temperature == 0:
        return argmax(logits, -1, True)
    logits = logits.detach() / temperature
    if top_k is not None and top_k < logits.shape[-1]:
        least = getitem(topk(logits, top_k).values, (slice(None), slice(-1, None)))
        logits = where(logits < least, float("-inf"), logits)
    p = softmax(logits, -1)
    if top_p is None or top_p == 1:
        return multinomial(p, 1, generator=generator)
    p, order = sort(p, -1, descending=True)
    before = cumsum(p, -1) - p
    return gather(order, -1, multinomial(where(before < top_p, p, 0.0), 1, generator=generator))


def _check(logits: Tensor, temperature: float, top_k: int | None, top_p: float | None) -> None:
    if logits.ndim != 2:
        raise ShapeError(f"sample_token: expected logits (batch, vocabulary), got {logits.shape}")
    if not temperature >= 0:
        raise ValueError(f"sample_token: temperature must not be negative, got {temperature}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"sample_token: top_k must be at least 1, got {top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"sample_token: top_p must lie in (0, 1], got {top_p}")


@no_grad()
def generate(
    model: LanguageModel,
    tokens: Tensor,
    n: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: Generator | None = None,
) -> Tensor:
    """`tokens` (batch, length) and `n` more, each drawn by what the model says after the last `block_size` tokens.

    Up to block_size tokens each step reads one token, with a cache.  Beyond, the window moves, all places in it
    change, and each step reads the whole window anew.  Dropout acts if the model is in training: call eval() first."""
    if not isinstance(n, int) or n < 0:
        raise ValueError(f"generate: n, how many tokens to add, must be an integer of at least 0, got {n!r}")
    if tokens.ndim != 2 or not tokens.shape[1]:
        raise ShapeError(f"generate: expected tokens (batch, length ≥ 1), got {tokens.shape}")
    if is_float(tokens.dtype):
        raise DTypeError(f"generate: tokens must be integers, got {tokens.dtype}")
    cache, new = model.new_cache(), tokens
    for _ in range(n):
        if cache.length + new.shape[1] > cache.capacity:
            cache, new = model.new_cache(), getitem(tokens, (slice(None), slice(-model.block_size, None)))
        logits = getitem(model(new, cache=cache), (slice(None), -1))
        new = sample_token(logits, temperature, top_k, top_p, generator)
        tokens = cat([tokens, new.to(tokens.dtype)], 1)
    return tokens
