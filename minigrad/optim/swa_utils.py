"""Averages of weights: of the models along a training run (SWA, Izmailov et al. 2018), their running mean (EMA), and of
several runs (soups, Wortsman et al. 2022).  After `lr_scheduler.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from itertools import chain
from typing import Any

from minigrad.autograd import no_grad
from minigrad.create import tensor
from minigrad.device import Device
from minigrad.dtype import int64
from minigrad.errors import ShapeError
from minigrad.nn.module import Module
from minigrad.nn.norm import BatchNorm
from minigrad.optim.optimizer import Optimizer
from minigrad.optim.schedule import LRScheduler, per_group
from minigrad.tensor import Tensor

Average = Callable[[Tensor, Tensor, Tensor], Tensor]  # (average so far, new value, how many it holds) -> average
Averages = Callable[[list[Tensor], list[Tensor], Tensor], None]  # the same for all at once, in place


def get_swa_avg_fn() -> Average:
    """The plain average of all values so far."""
    return lambda average, new, count: average + (new - average) / (count + 1)


def get_swa_multi_avg_fn() -> Averages:
    """The plain average of all values so far, in place."""
    return _in_place(get_swa_avg_fn())


def get_ema_avg_fn(decay: float = 0.999) -> Average:
    """The running mean: decay · average + (1 - decay) · new."""
    if not 0 <= decay <= 1:
        raise ValueError(f"get_ema_avg_fn: decay must be between 0 and 1, got {decay}")
    return lambda average, new, count: average * decay + new * (1 - decay)


def get_ema_multi_avg_fn(decay: float = 0.999) -> Averages:
    """The running mean, in place."""
    return _in_place(get_ema_avg_fn(decay))


def _in_place(average: Average) -> Averages:
    def all_of(averages: list[Tensor], values: list[Tensor], count: Tensor) -> None:
        for a, b in zip(averages, values, strict=True):
            a.copy_(average(a, b, count))

    return all_of


class AveragedModel(Module):
    """A copy of a model that `update_parameters(model)` moves towards the average; the first call copies.

    By default the plain average; `avg_fn` or `multi_avg_fn` for another.  Buffers are copied, or averaged too with
    `use_buffers`; after a plain average of a model with batch norm call `update_bn`."""

    n_averaged: Tensor

    def __init__(
        self,
        model: Module,
        device: str | Device | None = None,
        avg_fn: Average | None = None,
        multi_avg_fn: Averages | None = None,
        use_buffers: bool = False,
    ) -> None:
        if avg_fn is not None and multi_avg_fn is not None:
            raise ValueError("AveragedModel: pass avg_fn or multi_avg_fn, not both")
        self.module = deepcopy(model)
        if device is not None:
            self.module.to(device)
        self.register_buffer("n_averaged", tensor(0, dtype=int64))
        self.multi_avg_fn = multi_avg_fn or _in_place(avg_fn or get_swa_avg_fn())
        self.use_buffers = use_buffers

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    @no_grad()
    def update_parameters(self, model: Module) -> None:
        """Take one more model into the average."""
        ours, theirs = list(self._averaged(self.module)), list(self._averaged(model))
        if [p.shape for p in ours] != [p.shape for p in theirs]:
            raise ShapeError("update_parameters: the model's parameters have other shapes than those averaged so far")
        ours = [p.detach() for p in ours]
        theirs = [q.detach().to(device=p.o.device) for p, q in zip(ours, theirs)]
        if self.n_averaged.item() == 0:
            for p, q in zip(ours, theirs):
                p.copy_(q)
        else:
            self.multi_avg_fn(ours, theirs, self.n_averaged)
        if not self.use_buffers:
            for b, new in zip(self.module.buffers(), model.buffers(), strict=True):
                b.copy_(new)
        self.n_averaged = self.n_averaged + 1

    def _averaged(self, model: Module) -> Iterator[Tensor]:
        return chain(model.parameters(), model.buffers()) if self.use_buffers else iter(model.parameters())


@no_grad()
def update_bn(loader: Iterable, model: Module, device: str | Device | None = None) -> None:
    """Compute the running statistics of all batch norms anew: their plain average over the batches of `loader`.

    Of a batch that is a tuple or list the first part is the input.  Mode and momenta are restored."""
    momenta = {module: module.momentum for module in model.modules() if isinstance(module, BatchNorm)}
    if not momenta:
        return
    was_training = model.training
    model.train()
    try:
        for module in momenta:
            module.reset_running_stats()
            module.momentum = None
        for batch in loader:
            x = batch[0] if isinstance(batch, tuple | list) else batch
            model(x if device is None else x.to(device=device))
    finally:
        for module, momentum in momenta.items():
            module.momentum = momentum
        model.train(was_training)


class SWALR(LRScheduler):
    """From the present rate to `swa_lr` in `anneal_epochs` steps, along a cosine or a line, and constant from there."""

    def __init__(
        self,
        optimizer: Optimizer,
        swa_lr: float | list[float],
        anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
        last_epoch: int = -1,
    ) -> None:
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"SWALR: anneal_strategy must be 'cos' or 'linear', got {anneal_strategy!r}")
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ValueError(f"SWALR: anneal_epochs must be an integer of at least 0, got {anneal_epochs!r}")
        for rate, group in zip(per_group(optimizer, "SWALR: swa_lr", swa_lr), optimizer.param_groups):
            group["swa_lr"] = rate
        self.anneal_epochs, self.anneal_strategy = anneal_epochs, anneal_strategy
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        step = self._step_count - 1
        step = max(1, step) if self.anneal_epochs == 0 else step
        before, now = self._share(step - 1), self._share(step)
        return [self._next(group["lr"], group["swa_lr"], before, now) for group in self.optimizer.param_groups]

    def _next(self, lr: float, last: float, before: float, now: float) -> float:
        first = last if before == 1 else (lr - before * last) / (1 - before)
        return last * now + first * (1 - now)

    def _share(self, step: int) -> float:
        t = max(0, min(1, step / max(1, self.anneal_epochs)))
        return t if self.anneal_strategy == "linear" else (1 - math.cos(math.pi * t)) / 2


def greedy_soup(models: Sequence[Module], score: Callable[[Module], float]) -> tuple[Module, list[int]]:
    """The plain average of those models that do not lower the score, best first; and which these are.

    `score`: higher is better, measured on held-out data; the models must come from one initialisation."""
    scores = [score(model) for model in models]
    order = sorted(range(len(models)), key=lambda i: -scores[i])
    if not order:
        raise ValueError("greedy_soup: no models")
    soup = AveragedModel(models[order[0]], use_buffers=True)
    soup.update_parameters(models[order[0]])
    best, taken = scores[order[0]], order[:1]
    for i in order[1:]:
        trial = deepcopy(soup)
        trial.update_parameters(models[i])
        value = score(trial.module)
        if value >= best:
            soup, best, taken = trial, value, [*taken, i]
    return soup.module, taken
