"""Rates that rise and fall while momentum does the opposite: CyclicLR and OneCycleLR.  After `annealing.py`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from minigrad.optim.optimizer import Group, Optimizer
from minigrad.optim.schedule import LRScheduler, per_group


class _Cycle(LRScheduler):
    """A schedule that moves the momentum too: the option "momentum", or the first of "betas"."""

    def prepare(self, optimizer: Optimizer, base_momentum: Any, max_momentum: Any, last_epoch: int) -> None:
        """The highest momentum in every group, and both bounds beside it."""
        name, options = type(self).__name__, optimizer.defaults
        if "momentum" not in options and "betas" not in options:
            raise ValueError(
                f"{name}: cycle_momentum needs an optimiser with momentum or betas, not {type(optimizer).__name__}. "
                "Pass cycle_momentum=False"
            )
        self.use_beta1 = "betas" in options
        self.base_momentums = per_group(optimizer, f"{name}: base_momentum", base_momentum)
        self.max_momentums = per_group(optimizer, f"{name}: max_momentum", max_momentum)
        if last_epoch == -1:
            for low, high, group in zip(self.base_momentums, self.max_momentums, optimizer.param_groups):
                self.set_momentum(group, high)
                group["max_momentum"], group["base_momentum"] = high, low

    def set_momentum(self, group: Group, value: float) -> None:
        if self.use_beta1:
            group["betas"] = (value, *group["betas"][1:])
        else:
            group["momentum"] = value


class CyclicLR(_Cycle):
    """From `base_lr` to `max_lr` in `step_size_up` steps and back in `step_size_down`, over and over (Smith 2017).

    mode: "triangular"; "triangular2" halves the height each cycle; "exp_range" scales it by gamma ** step.  A function
    `scale_fn` of the cycle (scale_mode="cycle") or of the step ("iterations") takes the place of the mode; it is not
    saved."""

    unsaved = (*LRScheduler.unsaved, "custom_scale")

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float | list[float],
        max_lr: float | list[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.8,
        max_momentum: float | list[float] = 0.9,
        last_epoch: int = -1,
    ) -> None:
        if scale_fn is None and mode not in ("triangular", "triangular2", "exp_range"):
            raise ValueError(f"CyclicLR: mode must be triangular, triangular2 or exp_range, got {mode!r}")
        base_lrs = per_group(optimizer, "CyclicLR: base_lr", base_lr)
        if last_epoch == -1:
            for lr, group in zip(base_lrs, optimizer.param_groups):
                group["lr"] = lr
        self.max_lrs = per_group(optimizer, "CyclicLR: max_lr", max_lr)
        self.total_size = float(step_size_up + (step_size_up if step_size_down is None else step_size_down))
        self.step_ratio = step_size_up / self.total_size
        self.mode, self.gamma, self.custom_scale = mode, gamma, scale_fn
        self.by_cycle = scale_mode == "cycle" if scale_fn else mode != "exp_range"
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self.prepare(optimizer, base_momentum, max_momentum, last_epoch)
        super().__init__(optimizer, last_epoch)
        self.base_lrs = base_lrs

    def scale_fn(self, x: float) -> float:
        """How high cycle `x` (or step `x`) goes."""
        if self.custom_scale is not None:
            return self.custom_scale(x)
        return {"triangular": 1.0, "triangular2": 1 / 2.0 ** (x - 1)}[self.mode] if self.by_cycle else self.gamma**x

    def get_lr(self) -> list[float]:
        at = self.last_epoch / self.total_size
        cycle = math.floor(1 + at)
        x = 1.0 + at - cycle  # the place in the cycle, from 0 to 1
        height = x / self.step_ratio if x <= self.step_ratio else (x - 1) / (self.step_ratio - 1)
        scale = self.scale_fn(cycle if self.by_cycle else self.last_epoch)
        if self.cycle_momentum:
            bounds = zip(self.base_momentums, self.max_momentums, self.optimizer.param_groups, strict=True)
            for low, high, group in bounds:
                self.set_momentum(group, high - (high - low) * height * scale)
        return [low + (high - low) * height * scale for low, high in zip(self.base_lrs, self.max_lrs, strict=True)]


class OneCycleLR(_Cycle):
    """From max_lr / div_factor up to `max_lr` in the first `pct_start` of all steps, then down (Smith & Topin 2018).

    The last rate is the first / final_div_factor.  With `three_phase` the way down stops at the first rate, as long
    after the top as that was after the start.  Step after every batch; momentum falls while the rate rises."""

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | list[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.85,
        max_momentum: float | list[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        self.total_steps = _steps(total_steps, epochs, steps_per_epoch)
        if not isinstance(pct_start, float) or not 0 <= pct_start <= 1:
            raise ValueError(f"OneCycleLR: pct_start must be a float between 0 and 1, got {pct_start!r}")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"OneCycleLR: anneal_strategy must be 'cos' or 'linear', got {anneal_strategy!r}")
        self.pct_start, self.anneal_strategy, self.three_phase = pct_start, anneal_strategy, three_phase
        tops = per_group(optimizer, "OneCycleLR: max_lr", max_lr)
        if last_epoch == -1:
            for top, group in zip(tops, optimizer.param_groups):
                first = top / div_factor
                group.update(initial_lr=first, max_lr=top, min_lr=first / final_div_factor)
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self.prepare(optimizer, base_momentum, max_momentum, last_epoch)
        super().__init__(optimizer, last_epoch)

    def phases(self) -> list[tuple[float, tuple[str, str], tuple[str, str]]]:
        """(last step, rate from and to, momentum from and to), as options of a group."""
        top, end = self.pct_start * self.total_steps - 1, self.total_steps - 1
        up = (top, ("initial_lr", "max_lr"), ("max_momentum", "base_momentum"))
        if not self.three_phase:
            return [up, (end, ("max_lr", "min_lr"), ("base_momentum", "max_momentum"))]
        down = (2 * self.pct_start * self.total_steps - 2, ("max_lr", "initial_lr"), ("base_momentum", "max_momentum"))
        return [up, down, (end, ("initial_lr", "min_lr"), ("max_momentum", "max_momentum"))]

    def get_lr(self) -> list[float]:
        step = self.last_epoch
        if step > self.total_steps:
            raise ValueError(f"OneCycleLR: step {step} of {self.total_steps}. Give it as many steps as you train")
        phases, start = self.phases(), 0.0
        while len(phases) > 1 and step > phases[0][0]:
            start = phases.pop(0)[0]
        end, rate, momentum = phases[0]
        share = (step - start) / (end - start) if end != start else 1.0
        if self.cycle_momentum:
            for group in self.optimizer.param_groups:
                self.set_momentum(group, self._between(group[momentum[0]], group[momentum[1]], share))
        return [self._between(group[rate[0]], group[rate[1]], share) for group in self.optimizer.param_groups]

    def _between(self, start: float, end: float, share: float) -> float:
        if self.anneal_strategy == "linear":
            return (end - start) * share + start
        return end + (start - end) / 2.0 * (math.cos(math.pi * share) + 1)


def _steps(total_steps: int | None, epochs: int | None, steps_per_epoch: int | None) -> int:
    given = (total_steps,) if total_steps is not None else (epochs, steps_per_epoch)
    if not all(isinstance(n, int) and n > 0 for n in given):
        raise ValueError(
            "OneCycleLR: pass total_steps, or epochs and steps_per_epoch, as positive integers; got "
            f"total_steps = {total_steps}, epochs = {epochs}, steps_per_epoch = {steps_per_epoch}"
        )
    return math.prod(given)
