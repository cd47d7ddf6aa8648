"""Keeping gradients small: by their common norm, or value by value.  `nn.utils` re-exports both.  After `loss.py`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable

from minigrad.create import tensor
from minigrad.errors import GraphError
from minigrad.rows import values_of
from minigrad.tensor import Tensor, Writes


def gradients(parameters: Tensor | Iterable[Tensor], name: str) -> list[Tensor]:
    """The gradients that are there; warns if there are no parameters at all: a generator is used up by one walk."""
    found = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    if not found:
        warnings.warn(
            f"{name}: no parameters, so nothing is clipped. A generator can be walked once only: "
            "call model.parameters() again",
            stacklevel=3,
        )
    return [values_of(p.grad) for p in found if p.grad is not None]


def norm_of(g: Tensor, p: float) -> float:
    """The p-norm of one gradient, as a Python number; of 16 bits in float32, since squares of float16 overflow."""
    if not g.numel():
        return 0.0
    wide = g if g.dtype.itemsize > 2 else g.detach().float()
    o, x = wide.o, wide.o.abs(wide.array)
    if p == math.inf:
        return o.max(x).item()
    return (o.sum(x * x) if p == 2 else o.sum(x**p)).item() ** (1 / p)


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> Tensor:
    """Scale all gradients, in place, so that their common norm is at most `max_norm`; returns the norm they had."""
    grads, p = gradients(parameters, "clip_grad_norm_"), float(norm_type)
    norms = [norm_of(g, p) for g in grads]
    if p == math.inf:
        total = math.nan if any(map(math.isnan, norms)) else max(norms, default=0.0)
    else:
        total = sum(n**p for n in norms) ** (1 / p)
    if error_if_nonfinite and not math.isfinite(total):
        raise GraphError(
            f"clip_grad_norm_: the norm of the gradients is {total}; nothing was changed. "
            "Lower the learning rate, or find the first NaN"
        )
    scale = max_norm / (total + 1e-6)
    if not scale >= 1:  # a NaN scales, too: it shows
        for g in grads:
            g.array[...] = g.array * scale
            Writes.note(g.array)
    return tensor(total, dtype=grads[0].dtype if grads else None)


def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
    """Limit each element of each gradient to -clip_value … clip_value, in place."""
    for g in gradients(parameters, "clip_grad_value_"):
        low, high = g.o.lit(-clip_value), g.o.lit(clip_value)
        g.array[...] = g.o.minimum(g.o.maximum(g.array, low), high)
        Writes.note(g.array)
