"""Keys and values of the tokens already read, so that the next token costs one row of attention instead of all.

After `attention.py`; `gpt.py` and `llama.py` attend through it.
"""

from __future__ import annotations

from minigrad.autograd import no_grad
from minigrad.create import empty, ones
from minigrad.dtype import bool_
from minigrad.nn import functional as F
from minigrad.ops.diagonals import tril
from minigrad.ops.views import cut
from minigrad.tensor import Tensor, is_grad_enabled


class LayerCache:
    """The keys and values of one layer, (batch, heads, capacity, width), filled from the left."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.length = capacity, 0
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add (batch, heads, new, width); all keys and values so far, as views.

        RuntimeError where a gradient would have to flow through the cache; ValueError when it is full, or made for
        another batch."""
        if is_grad_enabled() and (k.requires_grad or v.requires_grad):
            raise RuntimeError("KVCache: no gradient flows through a cache; read under mg.no_grad(), or without cache")
        end = self.length + k.shape[-2]
        if end > self.capacity:
            raise ValueError(f"KVCache: {self.length} tokens and {k.shape[-2]} more exceed capacity {self.capacity}")
        if self.keys is None or self.values is None:
            self.keys, self.values = (
                empty(*x.shape[:-2], self.capacity, x.shape[-1], dtype=x.dtype, device=x.o.device) for x in (k, v)
            )
        if self.keys.shape[:-2] != k.shape[:-2]:
            raise ValueError(
                f"KVCache: made for batch and heads {self.keys.shape[:-2]}, got {k.shape[:-2]}. Make a new one"
            )
        place, seen = (Ellipsis, slice(self.length, end), slice(None)), (Ellipsis, slice(0, end), slice(None))
        with no_grad():
            self.keys[place], self.values[place] = k, v
        self.length = end
        return cut(self.keys, seen), cut(self.values, seen)


class KVCache:
    """One LayerCache a layer.  `capacity`: how many tokens it can hold."""

    def __init__(self, layers: int, capacity: int) -> None:
        self.capacity = capacity
        self.layers = [LayerCache(capacity) for _ in range(layers)]

    @property
    def length(self) -> int:
        """How many tokens have been read by every layer."""
        return self.layers[-1].length if self.layers else 0

    def settle(self) -> int:
        """`length`, after dropping what a reading that broke off left in the first layers alone."""
        for layer in self.layers:
            layer.length = self.length
        return self.length


def causal_attention(q: Tensor, k: Tensor, v: Tensor, cache: LayerCache | None, dropout_p: float = 0.0) -> Tensor:
    """Each query sees the keys up to its own place, those in the cache too; (batch, heads, length, width).

    Fewer heads of keys than of queries are shared in groups."""
    if cache is not None:
        k, v = cache.append(k, v)
    rows, seen = q.shape[-2], k.shape[-2]
    whole, grouped = rows == seen, q.shape[-3] != k.shape[-3]
    mask = None
    if not whole and rows > 1:
        mask = tril(ones(rows, seen, dtype=bool_, device=q.o.device), seen - rows)
    return F.scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal=whole and rows > 1, enable_gqa=grouped)
