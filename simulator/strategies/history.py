"""What came of a training run as it went: losses, and the parameters at times of the modelled clock, to be looked at
when the run is over, so that looking takes no time on that clock.  `convergence.py` puts several beside each other.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

import minigrad as mg
from minigrad import nn

if TYPE_CHECKING:
    from simulator.communicator import Communicator

Rows = dict[tuple[int, int], np.ndarray]                     # (number of the parameter, first row) -> its rows


class Snapshot(NamedTuple):
    """The rows that a rank had at a time, after so many updates, of the gradients of so many batches (each of one
    worker)."""

    time_s: float
    updates: int
    batches: int
    values: Rows


class Update(NamedTuple):
    """A server's step: `staleness` updates came between the worker's pull and this, which is made of what it read."""

    time_s: float
    worker: int
    staleness: int


class Grant(NamedTuple):
    """A server's answer to a pull: the worker has pushed `clock` times, the slowest that still works `slowest` times
    (None: nobody works any more)."""

    time_s: float
    worker: int
    clock: int
    slowest: int | None


@dataclass
class History:
    """One rank's part of a run.  `losses`: (seconds on its clock, loss) of a worker; `updates`, `grants`: of a server;
    `snapshots`: one at the beginning and one every `every` updates."""

    rank: int
    every: int = 1
    losses: list[tuple[float, float]] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)
    grants: list[Grant] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list, compare=False)

    @property
    def staleness(self) -> dict[int, int]:
        """How many updates were so stale: a histogram."""
        return dict(sorted(Counter(update.staleness for update in self.updates).items()))

    def snap(self, time_s: float, updates: int, batches: int, values: Mapping[tuple[int, int], mg.Tensor]) -> None:
        """Copy these rows, where it is their turn."""
        if updates % self.every == 0:
            self.snapshots.append(Snapshot(time_s, updates, batches, {at: host(t) for at, t in values.items()}))


class Recorder:
    """The history of a program that trains `model` by itself, as with DDP: `note` after each step, and return
    `history`.

    The parameters are those of rank 0, every `every` steps; the others keep their losses alone."""

    def __init__(self, comm: Communicator, model: nn.Module, every: int = 1) -> None:
        self.comm, self.history, self.steps = comm, History(comm.rank, every), 0
        self._values = {(k, 0): p for k, p in enumerate(model.parameters())}
        self._snap()

    def note(self, loss: mg.Tensor | float) -> None:
        """A step was made; `loss` is what it computed before."""
        self.steps += 1
        self.history.losses.append((self.comm.time, float(loss)))
        self._snap()

    def _snap(self) -> None:
        if self.comm.rank == 0:
            self.history.snap(self.comm.time, self.steps, self.steps * self.comm.world_size, self._values)


def host(t: mg.Tensor) -> np.ndarray:
    """A copy of its values on the host."""
    return np.array(mg.Tensor(t.array).cpu().numpy())


__all__ = ["Grant", "History", "Recorder", "Snapshot", "Update", "host"]
