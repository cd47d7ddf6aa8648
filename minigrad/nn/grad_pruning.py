"""Gradients without their small elements: a hook that keeps the k largest.

Aji & Heafield (2017) send 1 % of each gradient between machines, and add what was left out to the next one ("error
feedback"); Deep Gradient Compression (Lin et al. 2018) is that with warm-up and momentum correction.  After `clip.py`.
"""
from __future__ import annotations

from collections.abc import Iterable

from minigrad.autograd import RemovableHandle
from minigrad.errors import GraphError
from minigrad.tensor import Tensor


class TopKGradient:
    """A gradient hook: g where |g| is among the largest, 0 elsewhere.  `x.register_hook(TopKGradient(0.9))`

    `amount` is what goes: a share in [0, 1), at least one element stays, or a number of elements.  With `feedback` what
    went is kept in `rest` and added to the next gradient, so that in the long run nothing is lost."""

    def __init__(self, amount: float | int, feedback: bool = False) -> None:
        if isinstance(amount, bool) or amount < 0 or (isinstance(amount, float) and amount >= 1):
            raise ValueError(f"TopKGradient: amount {amount!r} must be a share in [0, 1) or a number of elements")
        self.amount, self.feedback = amount, feedback
        self.rest: Tensor | None = None

    def keeps(self, n: int) -> int:
        """How many of `n` elements stay."""
        gone = round(self.amount * n) if isinstance(self.amount, float) else self.amount
        return min(n, max(1, n - gone))

    def __call__(self, g: Tensor) -> Tensor:
        if self.rest is not None:
            g = g + self.rest
        kept = g * largest(g, self.keeps(g.numel())) if g.o.eager and g.numel() else g
        if self.feedback:
            self.rest = (g - kept).detach()
        return kept


def largest(x: Tensor, k: int) -> Tensor:
    """Ones at the k elements of largest size, zeros elsewhere."""
    o, n = x.o, x.numel()
    mask = o.full((n,), 0)
    mask[o.xp.argpartition(o.abs(x.array).reshape(-1), n - k)[n - k:]] = 1
    return Tensor(mask.reshape(x.shape))


class Handles:
    """Several handles as one."""

    def __init__(self, handles: list[RemovableHandle]) -> None:
        self.handles = handles

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()

    def __enter__(self) -> Handles:
        return self

    def __exit__(self, *_) -> None:
        self.remove()


def prune_gradient_(parameters: Tensor | Iterable[Tensor], amount: float | int, feedback: bool = False) -> Handles:
    """From now on every backward leaves in each parameter's gradient the largest elements alone; see TopKGradient.

    Each backward is pruned by itself, before it is added to `.grad`.  `remove()` ends it."""
    found = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    if not all(p.is_leaf and p.requires_grad for p in found):
        raise GraphError("prune_gradient_: each parameter must be a leaf that requires a gradient")
    return Handles([p.register_hook(TopKGradient(amount, feedback)) for p in found])


__all__ = ["TopKGradient", "prune_gradient_"]
