"""Several schedules as one: after each other, at once, after a warm-up.  After `plateau.py`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from minigrad.optim.annealing import LinearLR
from minigrad.optim.optimizer import Optimizer
from minigrad.optim.plateau import ReduceLROnPlateau
from minigrad.optim.schedule import LRScheduler


class _Composed(LRScheduler):
    """Schedules of one optimiser; the state holds theirs."""

    def _take(self, optimizer: Optimizer | None, schedulers: Sequence[LRScheduler]) -> None:
        name = type(self).__name__
        if not schedulers:
            raise ValueError(f"{name}: expected at least one schedule")
        for i, each in enumerate(schedulers):
            if isinstance(each, ReduceLROnPlateau):
                raise ValueError(f"{name}: schedule {i}, a ReduceLROnPlateau, needs a measure; step it apart")
            if not isinstance(each, LRScheduler):
                raise TypeError(f"{name}: schedule {i} is a {type(each).__name__}, not a schedule")
            if each.optimizer is not (optimizer or schedulers[0].optimizer):
                raise ValueError(f"{name}: schedule {i}, a {type(each).__name__}, belongs to another optimiser")
        self._schedulers, self.optimizer = list(schedulers), optimizer or schedulers[0].optimizer

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "_schedulers": [each.state_dict() for each in self._schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "_schedulers"})
        for each, state in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            each.load_state_dict(state)


class SequentialLR(_Composed):
    """One schedule after the other: number k + 1 starts, from its own epoch 0, at epoch milestones[k]."""

    def __init__(
        self, optimizer: Optimizer, schedulers: list[LRScheduler], milestones: list[int], last_epoch: int = -1
    ) -> None:
        self._take(optimizer, schedulers)
        if len(milestones) != len(schedulers) - 1:
            n = len(schedulers)
            raise ValueError(f"SequentialLR: {n} schedules need {n - 1} milestones, got {len(milestones)}")
        self._milestones, self.last_epoch = list(milestones), last_epoch + 1
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        for each in self._schedulers:
            _step_back(each)
        first = self._schedulers[bisect_right(self._milestones, 0)]
        first.start()  # each made the first step when it was built, on top of those before it
        self._last_lr = first.get_last_lr()

    def step(self, epoch: int | None = None) -> None:
        """Go on by one epoch."""
        if epoch is not None:
            raise ValueError("SequentialLR: step() goes on by one epoch; it cannot jump")
        self.last_epoch += 1
        at = bisect_right(self._milestones, self.last_epoch)
        now = self._schedulers[at]
        if at > 0 and self._milestones[at - 1] == self.last_epoch:
            now.move(0)
        else:
            now.step()
        self._last_lr = now.get_last_lr()


    def move(self, epoch: int | None = None) -> None:
        """Start anew as a part of another sequence."""
        self.last_epoch = 0
        self._schedulers[bisect_right(self._milestones, 0)].move(0)
        self._last_lr = self.now()


def _step_back(schedule: LRScheduler) -> None:
    if isinstance(schedule, _Composed):
        for each in schedule._schedulers:
            _step_back(each)
    else:
        schedule.last_epoch -= 1


class ChainedScheduler(_Composed):
    """Several schedules at once: their factors multiply."""

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None) -> None:
        self._take(optimizer, schedulers)
        self._last_lr = self.now()

    def step(self, epoch: int | None = None) -> None:
        """Go on by one epoch with every schedule."""
        for each in self._schedulers:
            each.step(epoch)
        self._last_lr = self.now()

    def move(self, epoch: int | None = None) -> None:
        for each in self._schedulers:
            each.move(epoch)
        self._last_lr = self.now()


def warm_up(
    optimizer: Optimizer,
    steps: int,
    after: Callable[[Optimizer], LRScheduler],
    start_factor: float = 0.01,
) -> SequentialLR:
    """A linear rise from start_factor · lr to lr in `steps` steps, then the schedule that `after` makes.

    warm_up(optimizer, 100, lambda o: CosineAnnealingLR(o, 900))"""
    if steps < 1:
        raise ValueError(f"warm_up: steps must be at least 1, got {steps}")
    rise = LinearLR(optimizer, start_factor, 1.0, steps)
    return SequentialLR(optimizer, [rise, after(optimizer)], [steps])
