"""Several ways to train one model beside each other: how good it is after so many batches, and after so much time.

    page = Comparison({"all-reduce": spawn(...), "async": spawn(...)}, make_model(), lambda model: loss_of(model, data))
    print(page)                              # drawn in a notebook

The loss is computed here, from the snapshots of each run (`history.py`), so it took no time there.  After `history.py`;
`viz/convergence.py` draws.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from math import isfinite, isnan
from typing import TYPE_CHECKING

import numpy as np

import minigrad as mg
from minigrad import nn
from minigrad.rows import written
from simulator.strategies.history import History, Rows, Snapshot

if TYPE_CHECKING:
    from simulator.spawn import Result

LossOf = Callable[[nn.Module], mg.Tensor | float]
PACKAGE = __name__.split(".")[0]


@dataclass(frozen=True)
class Curve:
    """One run: at `times_s[k]`, when the gradients of `batches[k]` batches (each of one worker) had been used in
    `updates[k]` updates, the loss was `losses[k]`.  The run ended at `time_s`, and `nbytes` were sent.  `staleness`:
    how many updates were so stale; empty where no server made them."""

    name: str
    times_s: tuple[float, ...]
    updates: tuple[int, ...]
    batches: tuple[int, ...]
    losses: tuple[float, ...]
    time_s: float
    nbytes: int
    staleness: dict[int, int]

    def first(self, target: float) -> int | None:
        """The place of the first loss that is at most `target`."""
        return next((k for k, loss in enumerate(self.losses) if loss <= target), None)

    @property
    def mean_staleness(self) -> float | None:
        count = sum(self.staleness.values())
        return sum(k * n for k, n in self.staleness.items()) / count if count else None


class Comparison:
    """Curves of runs by name.  `results`: of `spawn`, whose programs returned histories (`parameter_server`,
    `Recorder`), alone or first in a tuple.  `model`: one of the same shape, which is written to; `loss_of(model)`: what
    to show.  `target`: the loss whose time is told, by default the largest of the runs' best."""

    def __init__(self, results: Mapping[str, Result], model: nn.Module, loss_of: LossOf, *,
                 target: float | None = None) -> None:
        if not results:
            raise ValueError("Comparison: no results; give {name: result of spawn}")
        self.curves = [_curve(name, result, model, loss_of) for name, result in results.items()]
        best = [min(curve.losses, key=lambda loss: (isnan(loss), loss)) for curve in self.curves]
        self.target = max(filter(isfinite, best), default=1.0) if target is None else float(target)

    def __getitem__(self, name: str) -> Curve:
        return next(curve for curve in self.curves if curve.name == name)

    def __str__(self) -> str:
        return import_module(f"{PACKAGE}.viz.convergence").text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """In a notebook: the picture."""
        return import_module(f"{PACKAGE}.viz.convergence").html(self)


def _curve(name: str, result: Result, model: nn.Module, loss_of: LossOf) -> Curve:
    told = [value[0] if isinstance(value, tuple) and value else value for value in result.values]
    histories = [h for h in told if isinstance(h, History)]
    params = list(model.parameters())
    times_s, updates, batches, losses = [], [], [], []
    for time_s, values, made in states(histories):
        _write(params, values, name)
        with mg.no_grad():
            losses.append(float(loss_of(model)))
        times_s.append(time_s)
        updates.append(made[0])
        batches.append(made[1])
    if not losses:
        raise ValueError(f"Comparison: the run {name!r} returned no history with snapshots. Its program returns that "
                         f"of parameter_server, or Recorder(...).history")
    staleness = sum((Counter(h.staleness) for h in histories), Counter[int]())
    return Curve(name, tuple(times_s), tuple(updates), tuple(batches), tuple(losses), result.time_s,
                 int(result.nbytes.sum()), dict(sorted(staleness.items())))


def states(histories: Sequence[History]) -> Iterator[tuple[float, Rows, tuple[int, int]]]:
    """(time, all rows, (updates, batches)) each time that some rank took a snapshot; of the others the last one before
    counts.  Updates and batches: the fewest that any rank had made and used."""
    last: dict[int, Snapshot] = {}
    ranks = {h.rank for h in histories if h.snapshots}
    taken = sorted((s.time_s, h.rank, k) for h in histories for k, s in enumerate(h.snapshots))
    of_rank = {h.rank: h.snapshots for h in histories}
    for time_s, group in groupby(taken, key=lambda entry: entry[0]):
        last |= {rank: of_rank[rank][k] for _, rank, k in group}
        if last.keys() == ranks:
            values = {at: rows for s in last.values() for at, rows in s.values.items()}
            yield time_s, values, (min(s.updates for s in last.values()), min(s.batches for s in last.values()))


def _write(params: Sequence[mg.Tensor], values: Rows, name: str) -> None:
    trained = {number for number, _ in values}
    for number in trained:
        rows = [array for (k, _), array in sorted(values.items(), key=lambda item: item[0]) if k == number]
        whole = np.concatenate(rows) if params[number].ndim else rows[0]
        if whole.shape != tuple(params[number].shape):
            raise ValueError(f"Comparison: parameter {number} of the run {name!r} is {whole.shape}, that of the model "
                             f"{tuple(params[number].shape)}")
        written(params[number], whole)


__all__ = ["Comparison", "Curve", "states"]
