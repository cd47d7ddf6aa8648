"""Learning-rate schedules: after each epoch (or step) `scheduler.step()` sets the `lr` of every group.

Chained and resumed as PyTorch's: each step computes the next rate from the present one, so that a rate changed by hand,
or by another schedule, stays changed.  After `adam.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from minigrad.optim.optimizer import Optimizer


class LRScheduler:
    """Base: `get_lr` returns the next rate of each group; `last_epoch` counts the steps, from 0."""

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        self.optimizer, self.last_epoch = optimizer, last_epoch
        for i, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", group["lr"])
            elif "initial_lr" not in group:
                raise KeyError(
                    f"{type(self).__name__}: last_epoch = {last_epoch} resumes, but group {i} has no 'initial_lr'. "
                    "Load the optimiser's state first, or start with last_epoch = -1"
                )
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self._starting = True  # the first step only counts: a resumed rate stays
        self.step()
        self._starting = False

    def get_lr(self) -> list[float]:
        raise NotImplementedError(f"{type(self).__name__} must define get_lr()")

    def step(self) -> None:
        """Go on by one epoch."""
        self.last_epoch += 1
        for group, lr in zip(self.optimizer.param_groups, self.get_lr()):
            group["lr"] = lr
        self._last_lr = self.now()

    def now(self) -> list[float]:
        """The present rate of each group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def get_last_lr(self) -> list[float]:
        """The rates that the last step set."""
        return self._last_lr

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimiser."""
        return {k: v for k, v in self.__dict__.items() if k not in ("optimizer", "_starting")}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state; load the optimiser's too."""
        self.__dict__.update(state_dict)


class LambdaLR(LRScheduler):
    """The first rate times `lr_lambda(epoch)`, one function for all groups or one for each; they are not saved."""

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | list[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        n = len(optimizer.param_groups)
        self.lr_lambdas = list(lr_lambda) if isinstance(lr_lambda, list | tuple) else [lr_lambda] * n
        if len(self.lr_lambdas) != n:
            raise ValueError(f"LambdaLR: {len(self.lr_lambdas)} functions for {n} parameter groups")
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return [base * f(self.last_epoch) for f, base in zip(self.lr_lambdas, self.base_lrs)]

    def state_dict(self) -> dict[str, Any]:
        return {k: v for k, v in super().state_dict().items() if k != "lr_lambdas"}


class StepLR(LRScheduler):
    """The rate times `gamma` after every `step_size` epochs."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> None:
        if step_size < 1:
            raise ValueError(f"StepLR: step_size must be at least 1, got {step_size}")
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        due = self.last_epoch > 0 and self.last_epoch % self.step_size == 0
        return [lr * self.gamma if due else lr for lr in self.now()]


class MultiStepLR(LRScheduler):
    """The rate times `gamma` at each of the epochs `milestones`."""

    def __init__(self, optimizer: Optimizer, milestones: list[int], gamma: float = 0.1, last_epoch: int = -1) -> None:
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return [lr * self.gamma ** self.milestones.count(self.last_epoch) for lr in self.now()]


class ExponentialLR(LRScheduler):
    """The rate times `gamma` after every epoch."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return [lr if self._starting else lr * self.gamma for lr in self.now()]


class CosineAnnealingLR(LRScheduler):
    """From the first rate to `eta_min` along half a cosine of `T_max` epochs, and back (Loshchilov & Hutter 2017)."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        if T_max < 1:
            raise ValueError(f"CosineAnnealingLR: T_max must be at least 1 epoch, got {T_max}")
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return [self._next(lr, base) for lr, base in zip(self.now(), self.base_lrs)]

    def _next(self, lr: float, base: float) -> float:
        epoch, period = self.last_epoch, self.T_max
        if self._starting:
            return lr
        if (epoch - 1 - period) % (2 * period) == 0:  # at the bottom the quotient below is 0 / 0
            return lr + (base - self.eta_min) * (1 - math.cos(math.pi / period)) / 2
        step = (1 + math.cos(math.pi * epoch / period)) / (1 + math.cos(math.pi * (epoch - 1) / period))
        return step * (lr - self.eta_min) + self.eta_min
