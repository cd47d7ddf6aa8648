"""Unequal devices: each rank gets as much of the batch as its speed, measured while it trains, so that all are ready at
the same time; and its gradient weighs as much, so that a step is that of one device on the whole batch.

    shares = BatchShares(comm, batch_size=64)
    for x, y in batches:                     # the whole batch, on each rank
        with shares.timed():
            loss = loss_of(model(x[shares.rows]), y[shares.rows])
        shares.weigh(loss).backward()        # model: DDP, which takes the mean over ranks
        shares.rebalance()
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from math import floor, isfinite
from operator import index
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import minigrad as mg
    from simulator.communicator import Communicator


GAIN = 1e-6                                  # a time shorter by less is the same, with other roundings


def shares_of(speeds: Sequence[float], batch_size: int, least: int = 1) -> list[int]:
    """`batch_size` as whole numbers in proportion to `speeds`, none below `least`: each rounded down, and what is left
    to those that lost most (largest remainder; Hamilton), to the first of equals."""
    if not speeds or any(not (v >= 0 and isfinite(v)) for v in speeds):
        raise ValueError(f"shares_of: speeds are finite and at least 0, got {list(speeds)}")
    if index(least) < 0 or index(batch_size) < least * len(speeds):
        raise ValueError(f"shares_of: a batch of {batch_size} has no {least} for each of {len(speeds)} ranks. Use a "
                         f"larger batch, fewer ranks or a smaller least")
    quotas = _quotas(speeds, batch_size, least)
    sizes = [floor(q) for q in quotas]
    order = sorted(range(len(sizes)), key=lambda k: (sizes[k] - quotas[k], k))
    for k in order[:batch_size - sum(sizes)]:
        sizes[k] += 1
    return sizes


def _quotas(speeds: Sequence[float], batch_size: int, least: int) -> list[float]:
    """Parts of the batch in proportion to speed, for those that would get at least `least`; the others get that."""
    fixed: set[int] = set()
    while True:
        free = [k for k in range(len(speeds)) if k not in fixed]
        rest, total = batch_size - least * len(fixed), sum(speeds[k] for k in free)
        quotas = {k: rest * speeds[k] / total if total else rest / len(free) for k in free}
        slow = {k for k, q in quotas.items() if q < least}
        if not slow:
            return [quotas.get(k, float(least)) for k in range(len(speeds))]
        fixed |= slow


class BatchShares:
    """How much of each batch of `batch_size` is whose: `sizes` by rank, `rows`, the slice of this rank.

    They begin equal, in proportion to `speeds`, or as `sizes`.  `rebalance` changes them when the slowest rank took
    more than 1 + `tolerance` times as long as all would if they were ready together, and new sizes are expected to be
    faster: small differences change nothing.  All ranks decide the same, from the times of all."""

    def __init__(self, comm: Communicator, batch_size: int, *, sizes: Sequence[int] | None = None,
                 speeds: Sequence[float] | None = None, tolerance: float = 0.1, least: int = 1,
                 every: int = 1) -> None:
        if not tolerance >= 0 or index(every) < 1:
            raise ValueError(f"BatchShares: tolerance is at least 0 and every at least 1, got {tolerance} and {every}")
        n = comm.world_size
        for name, given in (("sizes", sizes), ("speeds", speeds)):
            if given is not None and len(given) != n:
                raise ValueError(f"BatchShares: {name} has {len(given)} numbers for {n} ranks")
        if sizes is not None and (sum(sizes) != batch_size or min(sizes) < 0):
            raise ValueError(f"BatchShares: sizes {list(sizes)} are no parts of a batch of {batch_size}: their sum is "
                             f"{sum(sizes)}")
        self.comm, self.batch_size, self.least, self.tolerance, self.every = comm, batch_size, least, tolerance, every
        self.sizes = list(sizes) if sizes is not None else shares_of(speeds or [1.0] * n, batch_size, least)
        self.speeds: list[float] | None = None               # examples a second, as measured last
        self.changes: list[tuple[int, list[int]]] = [(0, self.sizes)]       # (steps made before, sizes from then on)
        self.steps = 0
        self._seconds, self._measured = 0.0, 0               # since the last look, over so many steps

    @property
    def size(self) -> int:
        """Of this rank."""
        return self.sizes[self.comm.rank]

    @property
    def rows(self) -> slice:
        """The rows of the whole batch that are this rank's."""
        start, stop = [0, *accumulate(self.sizes)][self.comm.rank:self.comm.rank + 2]
        return slice(start, stop)

    def weigh(self, loss: mg.Tensor, reduction: str = "mean") -> mg.Tensor:
        """`loss` of this rank's rows, their "mean" or "sum", times what makes the mean of the gradients over ranks that
        of the mean loss of the whole batch.  A rank without rows has no mean: it uses "sum"."""
        if reduction not in ("mean", "sum"):
            raise ValueError(f"weigh: reduction {reduction!r} is none of mean, sum")
        if reduction == "mean" and not self.size:
            raise ValueError(f"weigh: rank {self.comm.rank} has none of the {self.batch_size} rows, and the mean of "
                             f"none is no number. Use the sum of the losses: reduction=\"sum\"")
        return loss * (self.comm.world_size * (self.size if reduction == "mean" else 1) / self.batch_size)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Measure what runs within on this rank's clock: work that grows with its rows, and no waiting for others."""
        start = self.comm.time
        yield
        self.measured(self.comm.time - start)

    def measured(self, seconds: float) -> None:
        """This rank's rows of this step took so long (again: more of the same step)."""
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"measured: a time is at least 0 s and finite, got {seconds}")
        self._seconds += seconds

    def rebalance(self) -> bool:
        """A step is over; each `every`-th time all ranks tell how long theirs took.  Whether the sizes changed."""
        self.steps += 1
        self._measured += 1
        if self._measured < self.every:
            return False
        told = self.comm.all_gather(np.array([self._seconds / self._measured]))
        self._seconds, self._measured = 0.0, 0
        sizes = self._better([float(t[0]) for t in told])
        if sizes is None:
            return False
        self.sizes = sizes
        self.changes.append((self.steps, sizes))
        return True

    def _better(self, times_s: Sequence[float]) -> list[int] | None:
        """Sizes with which the slowest rank is expected to be ready earlier, where that is worth it."""
        idle = [k for k, (n, t) in enumerate(zip(self.sizes, times_s)) if n and not t]
        if idle:
            raise ValueError(f"rebalance: ranks {idle} have rows and took no time, so their speed is not known. Put "
                             f"`with shares.timed():` around the work, and spawn with timed=True")
        before = self.speeds or [0.0] * len(times_s)
        self.speeds = speeds = [n / t if n else old for n, t, old in zip(self.sizes, times_s, before)]
        slowest_s = max(t for n, t in zip(self.sizes, times_s) if n)
        if slowest_s <= (1 + self.tolerance) * self.batch_size / sum(speeds):
            return None
        sizes = shares_of(speeds, self.batch_size, self.least)
        expected_s = max(n / v for n, v in zip(sizes, speeds) if v)
        return sizes if expected_s < (1 - GAIN) * slowest_s else None


__all__ = ["BatchShares", "shares_of"]
