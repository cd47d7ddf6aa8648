"""Training that talks rarely: each rank makes many steps by itself, then the ranks become one again.

`LocalSGD` takes the mean of the parameters (Stich 2019, Local SGD Converges Fast and Communicates Little; McMahan et
al. 2017, FedAvg); `DiLoCo` takes a step of an outer optimiser towards it (Douillard et al. 2023).  After `buckets.py`.
"""
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import isfinite
from operator import index
from typing import TYPE_CHECKING, Any, final

import minigrad as mg
from minigrad import nn
from minigrad.algebra import algebra_of
from minigrad.rows import written
from simulator.strategies.buckets import broadcast_tensors, flatten, unflatten

if TYPE_CHECKING:
    from minigrad.optim import Optimizer
    from simulator.communicator import Communicator


class PeriodicSync(ABC):
    """`step()` in place of the optimiser's; each `sync_every`-th of them ends in `sync()`, which needs all ranks.

    On wrapping, parameters and buffers become those of rank 0.  What an optimiser remembers, and buffers, stay each
    rank's own.  `weight`: how much this rank's model weighs in a mean, as its number of examples."""

    def __init__(self, comm: Communicator, model: nn.Module, optimizer: Optimizer, sync_every: int, *,
                 weight: float = 1.0, algorithm: str | None = None) -> None:
        name = type(self).__name__
        if index(sync_every) < 1:
            raise ValueError(f"{name}: sync_every is a number of steps from 1, got {sync_every}")
        if not (weight > 0 and isfinite(weight)):
            raise ValueError(f"{name}: weight is more than 0 and finite, got {weight}")
        self.params = [p for p in model.parameters() if p.requires_grad]
        if not self.params:
            raise ValueError(f"{name}: no parameter requires a gradient, so there is nothing to average")
        _check_optimizer(name, self.params, optimizer)
        group = comm.split(0)
        assert group is not None
        self.comm, self.model, self.optimizer, self.algorithm = group, model, optimizer, algorithm
        self.sync_every, self.weight = sync_every, float(weight)
        self._all_weights = group.all_reduce(self.weight)
        self.steps, self._since = 0, 0                       # made in all, and since the last sync
        self._left = False
        with mg.no_grad():
            broadcast_tensors(group, [*model.parameters(), *model.buffers()])

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def step(self) -> bool:
        """A step of this rank's own; whether the ranks became one again after it."""
        if self._left:
            raise RuntimeError(f"{type(self).__name__}: rank {self.comm.rank} has left, and takes no more steps")
        self.optimizer.step()
        self.steps, self._since = self.steps + 1, self._since + 1
        if self._since == self.sync_every:
            self.sync()
            return True
        return False

    def sync(self) -> None:
        """Now, whatever `sync_every` says.  All ranks call it."""
        self._sync(self.weight)

    def leave(self) -> None:
        """This rank has no more batches.  It gives what it learned since the last sync, and then answers the others
        without weighing anything, until all have left; at the end all have the same model."""
        self._left = True
        going_on = self._sync(self.weight if self._since else 0.0)
        while going_on:
            going_on = self._sync(0.0)

    def _sync(self, weight: float) -> bool:
        """Whether any rank gave something."""
        values = self._given()
        means: list[Any] = [None] * len(values)
        for dtype in dict.fromkeys(a.dtype for a in values):
            places = [k for k, a in enumerate(values) if a.dtype == dtype]
            summed = self._summed([values[k] for k in places], weight)
            if summed is None:
                return False
            for k, array in zip(places, summed):
                means[k] = array
        self._take(means)
        self._since = 0
        return True

    def _summed(self, arrays: Sequence[Any], weight: float) -> list[Any] | None:
        """The weighted mean over all ranks of arrays of one dtype, as one message, whose last number is the weight;
        None if nobody weighs anything.  16-bit floats are made smaller before, so that their sums do not overflow."""
        o = algebra_of(arrays[0])
        flat = flatten([*arrays, o.full((1,), o.lit(1.0))])
        if o.narrow:
            weight /= self._all_weights
        if not weight:
            flat.array[...] = 0                              # also what is no number
        elif weight != 1:
            flat.array *= o.lit(weight)
        total = self.comm.all_reduce(flat, algorithm=self.algorithm).array
        sum_of_weights = float(mg.Tensor(total[-1:]).item())
        if not sum_of_weights:
            return None
        return unflatten(mg.Tensor(total / o.lit(sum_of_weights)), [a.shape for a in arrays])

    @abstractmethod
    def _given(self) -> list[Any]:
        """Raw arrays, one for each parameter, of which the mean is wanted."""

    @abstractmethod
    def _take(self, means: list[Any]) -> None:
        """The parameters after a sync, from these means."""


@final
class LocalSGD(PeriodicSync):
    """Every `sync_every` steps the parameters become their mean over ranks; with 1 and plain SGD that is data parallel.

        local = LocalSGD(comm, model, mg.optim.SGD(model.parameters(), lr=0.1), sync_every=8)
        for x, y in batches:
            local.zero_grad()
            loss_of(model(x), y).backward()
            local.step()
    """

    def _given(self) -> list[Any]:
        return [p.array for p in self.params]

    def _take(self, means: list[Any]) -> None:
        for p, mean in zip(self.params, means):
            written(p, mean)


@final
class DiLoCo(PeriodicSync):
    """Every `sync_every` steps of the inner optimiser (AdamW in the paper, hundreds of them), the outer one makes a
    step from where all began, with what the ranks moved on average, the other way, as its gradient.

    `outer_optimizer`: of the same parameters; SGD(lr=0.7, momentum=0.9, nesterov=True) as in the paper by default.
    With SGD(lr=1) it is LocalSGD."""

    def __init__(self, comm: Communicator, model: nn.Module, inner_optimizer: Optimizer,
                 outer_optimizer: Optimizer | None = None, sync_every: int = 500, *, weight: float = 1.0,
                 algorithm: str | None = None) -> None:
        if outer_optimizer is not None:
            _check_optimizer("DiLoCo", [p for p in model.parameters() if p.requires_grad], outer_optimizer)
        super().__init__(comm, model, inner_optimizer, sync_every, weight=weight, algorithm=algorithm)
        self.outer_optimizer = outer_optimizer or mg.optim.SGD(self.params, lr=0.7, momentum=0.9, nesterov=True)
        self._begin = [p.o.copy(p.array) for p in self.params]

    def _given(self) -> list[Any]:
        return [begin - p.array for p, begin in zip(self.params, self._begin)]

    def _take(self, means: list[Any]) -> None:
        grads = [p.grad for p in self.params]
        for p, begin, mean in zip(self.params, self._begin, means):
            written(p, begin)
            p.grad = mg.Tensor(mean)
        self.outer_optimizer.step()
        for p, grad in zip(self.params, grads):
            p.grad = grad
        self._begin = [p.o.copy(p.array) for p in self.params]


def _check_optimizer(name: str, params: list[Any], optimizer: Optimizer) -> None:
    """ValueError for one that would not train the model."""
    if not {id(p) for group in optimizer.param_groups for p in group["params"]} & {id(p) for p in params}:
        raise ValueError(f"{name}: {type(optimizer).__name__} has none of the parameters of the model. Make it of "
                         "model.parameters()")


__all__ = ["DiLoCo", "LocalSGD", "PeriodicSync"]
