"""Gradient accumulation: one step for several small batches, as if they had been one.  After `optimizer.py`.

    accumulate = optim.Accumulate(opt, every=4)
    for x, y in loader:
        accumulate.backward(loss(model(x), y), weight=len(x))         # steps each 4th time
    accumulate.step()                                                 # what is left over
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minigrad.optim.optimizer import Optimizer
from minigrad.rows import values_of, written
from minigrad.tensor import Tensor


class Accumulate:
    """Adds up gradients of `every` losses and steps with that of their mean, Σ weight · loss / Σ weight.

    For losses that are means over batches of unequal size, give the size as the weight: then it is the mean over all
    examples.  `before_step()` runs on the finished gradients: clipping, for one.  `scaler`: a GradScaler."""

    def __init__(self, optimizer: Optimizer, every: int, *, before_step: Callable[[], Any] | None = None,
                 scaler: Any = None) -> None:
        if not isinstance(every, int) or every < 1:
            raise ValueError(f"Accumulate: every = {every!r} must be a whole number from 1")
        self.optimizer, self.every, self.before_step, self.scaler = optimizer, every, before_step, scaler
        self.count, self.weight = 0, 0.0

    def backward(self, loss: Tensor, weight: float = 1.0) -> bool:
        """Backward of one loss; True if that was the last of `every`, and a step was taken and gradients dropped."""
        scaled = loss if self.scaler is None else self.scaler.scale(loss)
        (scaled * float(weight)).backward()
        self.count, self.weight = self.count + 1, self.weight + float(weight)
        return self.step() if self.count == self.every else False

    def step(self) -> bool:
        """Step with what there is; nothing, and False, if there is none."""
        if not self.count:
            return False
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None and p.o.eager:
                    g = values_of(p.grad)
                    written(g, g.array / g.o.lit(self.weight))
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        if self.before_step is not None:
            self.before_step()
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.optimizer.zero_grad()
        self.count, self.weight = 0, 0.0
        return True


__all__ = ["Accumulate"]
