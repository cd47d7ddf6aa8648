"""Rates that go from one value to another: at once, along a line, a power or a cosine.  After `schedule.py`."""

from __future__ import annotations

import math

from minigrad.optim.optimizer import Optimizer
from minigrad.optim.schedule import LRScheduler


class ConstantLR(LRScheduler):
    """The rate times `factor` until epoch `total_iters`."""

    def __init__(
        self, optimizer: Optimizer, factor: float = 1 / 3, total_iters: int = 5, last_epoch: int = -1
    ) -> None:
        _between("ConstantLR: factor", factor)
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        if self.last_epoch == 0:
            return self.times(self.factor)
        return self.times(1 / self.factor) if self.last_epoch == self.total_iters else self.now()

    def closed(self) -> list[float]:
        over = self.last_epoch >= self.total_iters
        return [base * (self.factor + over * (1 - self.factor)) for base in self.base_lrs]


class LinearLR(LRScheduler):
    """The rate times a factor that goes from `start_factor` to `end_factor` in equal steps, `total_iters` of them."""

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        _between("LinearLR: start_factor", start_factor)
        _between("LinearLR: end_factor", end_factor)
        if start_factor == 0:
            raise ValueError("LinearLR: start_factor must be above 0: the factors are chained by multiplication")
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        if self.last_epoch == 0:
            return self.times(self.start_factor)
        if self._starting or self.last_epoch > self.total_iters:
            return self.now()
        rise = self.end_factor - self.start_factor
        return self.times(1.0 + rise / (self.total_iters * self.start_factor + (self.last_epoch - 1) * rise))

    def closed(self) -> list[float]:
        rise, done = self.end_factor - self.start_factor, min(self.total_iters, self.last_epoch)
        return [base * (self.start_factor + rise * done / self.total_iters) for base in self.base_lrs]


class PolynomialLR(LRScheduler):
    """The first rate times (1 - epoch / total_iters)^power, and 0 from there on."""

    def __init__(
        self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1
    ) -> None:
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        epoch, total = self.last_epoch, self.total_iters
        if self._starting or epoch > total:
            return self.now()
        return self.times(((1.0 - epoch / total) / (1.0 - (epoch - 1) / total)) ** self.power)

    def closed(self) -> list[float]:
        left = 1.0 - min(self.total_iters, self.last_epoch) / self.total_iters
        return [base * left**self.power for base in self.base_lrs]


class CosineAnnealingLR(LRScheduler):
    """From the first rate to `eta_min` along half a cosine of `T_max` epochs, and back (Loshchilov & Hutter 2017)."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        if T_max < 1:
            raise ValueError(f"CosineAnnealingLR: T_max must be at least 1 epoch, got {T_max}")
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return [self._next(lr, base) for lr, base in zip(self.now(), self.base_lrs, strict=True)]

    def _next(self, lr: float, base: float) -> float:
        epoch, period = self.last_epoch, self.T_max
        if self._starting:
            return lr
        if (epoch - 1 - period) % (2 * period) == 0:  # at the bottom the quotient below is 0 / 0
            return lr + (base - self.eta_min) * (1 - math.cos(math.pi / period)) / 2
        step = (1 + math.cos(math.pi * epoch / period)) / (1 + math.cos(math.pi * (epoch - 1) / period))
        return step * (lr - self.eta_min) + self.eta_min

    def closed(self) -> list[float]:
        share = (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2
        return [self.eta_min + (base - self.eta_min) * share for base in self.base_lrs]


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half a cosine of T_0 epochs from the first rate to `eta_min`, then anew, each time `T_mult` times as long.

    `step(e)` takes fractions: step(epoch + batch / batches) moves within an epoch (Loshchilov & Hutter 2017)."""

    def __init__(
        self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        for name, value in (("T_0", T_0), ("T_mult", T_mult)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"CosineAnnealingWarmRestarts: {name} must be an integer of at least 1, got {value!r}")
        self.T_0, self.T_mult, self.eta_min = T_0, T_mult, eta_min
        self.T_i: float = T_0  # the length of the present period
        self.T_cur: float = last_epoch  # and the place in it
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        share = (1 + math.cos(math.pi * self.T_cur / self.T_i)) / 2
        return [self.eta_min + (base - self.eta_min) * share for base in self.base_lrs]

    def step(self, epoch: float | None = None) -> None:
        """Go on by one epoch, or to `epoch`, which may be a fraction."""
        if epoch is None and self.last_epoch < 0:
            epoch = 0
        if epoch is None:
            epoch = self.last_epoch + 1
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur, self.T_i = self.T_cur % self.T_i, self.T_i * self.T_mult
        else:
            self._jump(epoch)
        self.last_epoch = math.floor(epoch)
        self.set(self.get_lr())

    def _jump(self, epoch: float) -> None:
        """The period in which `epoch` lies, and the place in it."""
        if epoch < 0:
            raise ValueError(f"CosineAnnealingWarmRestarts: epoch must be at least 0, got {epoch}")
        if epoch < self.T_0:
            self.T_cur, self.T_i = epoch, self.T_0
        elif self.T_mult == 1:
            self.T_cur = epoch % self.T_0
        else:
            n = int(math.log(epoch / self.T_0 * (self.T_mult - 1) + 1, self.T_mult))
            self.T_cur = epoch - self.T_0 * (self.T_mult**n - 1) / (self.T_mult - 1)
            self.T_i = self.T_0 * self.T_mult**n


def _between(name: str, factor: float) -> None:
    if not 0 <= factor <= 1:
        raise ValueError(f"{name} must be between 0 and 1, got {factor}")
