"""ReduceLROnPlateau: a lower rate when the measure stops getting better.  After `cycles.py`."""

from __future__ import annotations

import math
from typing import Any

from minigrad.optim.optimizer import Optimizer
from minigrad.optim.schedule import LRScheduler, per_group


class ReduceLROnPlateau(LRScheduler):
    """The rate times `factor` when `step(metrics)` saw no improvement for more than `patience` epochs in a row.

    Better means below best · (1 - threshold) ("rel") or best - threshold ("abs"); mode "max" turns it around.  After a
    reduction `cooldown` epochs do not count.  A change of the rate of at most `eps` is not made."""

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | list[float] = 0.0,
        eps: float = 1e-8,
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"ReduceLROnPlateau: expected an Optimizer, got {type(optimizer).__name__}")
        if factor >= 1:
            raise ValueError(f"ReduceLROnPlateau: factor must be below 1, got {factor}")
        if mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise ValueError(
                "ReduceLROnPlateau: mode must be 'min' or 'max' and threshold_mode 'rel' or 'abs', got "
                f"{mode!r} and {threshold_mode!r}"
            )
        self.optimizer, self.mode, self.factor, self.patience = optimizer, mode, factor, patience
        self.threshold, self.threshold_mode, self.cooldown, self.eps = threshold, threshold_mode, cooldown, eps
        self.min_lrs = per_group(optimizer, "ReduceLROnPlateau: min_lr", min_lr)
        self.best = math.inf if mode == "min" else -math.inf
        self.last_epoch = self.cooldown_counter = self.num_bad_epochs = 0
        self._last_lr = self.now()

    def step(self, metrics: Any, epoch: int | None = None) -> None:
        """Go on by one epoch, at whose end the measure is `metrics`: a number or a tensor of one element."""
        value = float(metrics)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        better = self._is_better(value)
        self.best = value if better else self.best
        self.num_bad_epochs = 0 if better else self.num_bad_epochs + 1
        if self.in_cooldown:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce()
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._last_lr = self.now()

    def _reduce(self) -> None:
        for group, least in zip(self.optimizer.param_groups, self.min_lrs, strict=True):
            lower = max(group["lr"] * self.factor, least)
            if group["lr"] - lower > self.eps:
                group["lr"] = lower

    @property
    def in_cooldown(self) -> bool:
        return self.cooldown_counter > 0

    def _is_better(self, value: float) -> bool:
        if self.threshold_mode == "rel":
            bar = self.best * (1 - self.threshold if self.mode == "min" else 1 + self.threshold)
        else:
            bar = self.best - self.threshold if self.mode == "min" else self.best + self.threshold
        return value < bar if self.mode == "min" else value > bar
