"""Learning-rate schedules: after each epoch (or step) `scheduler.step()` sets the `lr` of every group.

Chained and resumed as PyTorch's: each step computes the next rate from the present one, so that a rate changed by hand,
or by another schedule, stays changed; where a schedule has a closed form too, `step(epoch)` jumps.  Here: the base, and
rates multiplied by a factor.  After `large_batch.py`; all names are in `lr_scheduler.py`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any

from minigrad.optim.optimizer import Optimizer

Factor = Callable[[int], float]


class LRScheduler:
    """Base: `get_lr` returns the next rate of each group, `closed`, if there is one, that of epoch `last_epoch`.

    `last_epoch` counts the steps, from 0; another one than -1 resumes, with groups that have their "initial_lr"."""

    closed: Callable[[], list[float]] | None = None
    unsaved: tuple[str, ...] = ("optimizer", "_starting")  # what is not part of the state

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(self).__name__}: expected an Optimizer, got {type(optimizer).__name__}")
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
        self.start()

    def start(self) -> None:
        """The first step, which only counts where the rate follows from the one before: a resumed rate stays."""
        self._step_count, self._starting = 0, True
        try:
            self.step()
        finally:
            self._starting = False

    def get_lr(self) -> list[float]:
        raise NotImplementedError(f"{type(self).__name__} must define get_lr()")

    def step(self, epoch: int | None = None) -> None:
        """Go on by one epoch, or to epoch `epoch`."""
        self._step_count += 1
        self.move(epoch)

    def move(self, epoch: int | None = None) -> None:
        """Set the rates of the next epoch, or of epoch `epoch`."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        self.set(self.get_lr() if epoch is None or self.closed is None else self.closed())

    def set(self, rates: Iterable[float]) -> None:
        for group, lr in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = lr
        self._last_lr = self.now()

    def now(self) -> list[float]:
        """The present rate of each group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def times(self, factor: float) -> list[float]:
        """The present rates, each times a factor."""
        return [lr * factor for lr in self.now()]

    def get_last_lr(self) -> list[float]:
        """The rates that the last step set."""
        return self._last_lr

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimiser and functions of the user's."""
        return {k: v for k, v in self.__dict__.items() if k not in self.unsaved}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state; load the optimiser's too."""
        self.__dict__.update(state_dict)


def per_group(optimizer: Optimizer, name: str, value: Any) -> list:
    """`value` for each group: a list has one for each, anything else stands for all."""
    n = len(optimizer.param_groups)
    values = list(value) if isinstance(value, list | tuple) else [value] * n
    if len(values) != n:
        raise ValueError(f"{name}: {len(values)} values for {n} parameter groups")
    return values


class _ByFunction(LRScheduler):
    """Functions of the epoch, one for all groups or one for each; of the state only what callable objects hold."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Factor | list[Factor], last_epoch: int = -1) -> None:
        self.lr_lambdas = per_group(optimizer, f"{type(self).__name__}: lr_lambda", lr_lambda)
        for f in self.lr_lambdas:
            if not callable(f):
                raise TypeError(f"{type(self).__name__}: lr_lambda must be a function, not {f!r}")
        super().__init__(optimizer, last_epoch)

    def state_dict(self) -> dict[str, Any]:
        held = [None if hasattr(f, "__code__") else dict(f.__dict__) for f in self.lr_lambdas]
        return {**super().state_dict(), "lr_lambdas": held}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "lr_lambdas"})
        for f, held in zip(self.lr_lambdas, state_dict.get("lr_lambdas", ())):
            if held is not None:
                f.__dict__.update(held)


class LambdaLR(_ByFunction):
    """The first rate times `lr_lambda(epoch)`, one function for all groups or one for each."""

    def get_lr(self) -> list[float]:
        return [base * f(self.last_epoch) for f, base in zip(self.lr_lambdas, self.base_lrs, strict=True)]


class MultiplicativeLR(_ByFunction):
    """The present rate times `lr_lambda(epoch)`, from epoch 1 on."""

    def get_lr(self) -> list[float]:
        if self._starting:
            return self.now()
        return [lr * f(self.last_epoch) for f, lr in zip(self.lr_lambdas, self.now(), strict=True)]


class StepLR(LRScheduler):
    """The rate times `gamma` after every `step_size` epochs."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> None:
        if step_size < 1:
            raise ValueError(f"StepLR: step_size must be at least 1, got {step_size}")
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        due = self.last_epoch > 0 and self.last_epoch % self.step_size == 0
        return self.times(self.gamma) if due else self.now()

    def closed(self) -> list[float]:
        return [base * self.gamma ** (self.last_epoch // self.step_size) for base in self.base_lrs]


class MultiStepLR(LRScheduler):
    """The rate times `gamma` at each of the epochs `milestones`."""

    def __init__(
        self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return self.times(self.gamma ** self.milestones.count(self.last_epoch))

    def closed(self) -> list[float]:
        return [base * self.gamma ** bisect_right(self.milestones, self.last_epoch) for base in self.base_lrs]


class ExponentialLR(LRScheduler):
    """The rate times `gamma` after every epoch."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return self.now() if self._starting else self.times(self.gamma)

    def closed(self) -> list[float]:
        return [base * self.gamma**self.last_epoch for base in self.base_lrs]
