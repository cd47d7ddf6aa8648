"""Bytes of host arrays that each rank holds, though they all live in one process.

One rank runs at a time, so what NumPy takes and gives back meanwhile is that rank's; what a rank gets from another
changes hands.  After `units.py`; the executor tells who runs.  Watching needs numba (`minigrad.memory`).
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from simulator.units import show


class Account:
    """`used` and `peak` by rank, in bytes, and `samples`: at each call of a rank (the number of actions that it had
    recorded, bytes used then, the most since the sample before).  `place` counts the actions of a rank."""

    def __init__(self, world_size: int, place: Callable[[int], int]) -> None:
        self.used, self.peak = [0] * world_size, [0] * world_size
        self.samples: list[list[tuple[int, int, int]]] = [[] for _ in range(world_size)]
        self._place = place

    def sample(self, rank: int, peak: int) -> None:
        """`rank` has `used` now and had at most `peak` since the last time."""
        self.peak[rank] = max(self.peak[rank], peak)
        at, used, samples = self._place(rank), self.used[rank], self.samples[rank]
        if samples and samples[-1][0] == at:
            peak = max(peak, samples[-1][2])
            samples.pop()
        samples.append((at, used, max(peak, used)))

    def settle(self, rank: int | None) -> None:
        """What happened since the last time was done by `rank`; by nobody before the first runs."""

    def hand_over(self, src: int, dst: int, nbytes: int) -> None:
        """Arrays of so many bytes were made by `src`, and are `dst`'s from now on."""

    def hand_out(self, nbytes: dict[int, int]) -> None:
        """What was made since the last time is arrays of so many bytes for each rank; what it took to make them is
        nobody's."""

    def check(self, rank: int) -> None:
        """MemoryError if this rank held more than its device has."""
        self.settle(rank)


class SimAccounts(Account):
    """Of simulated devices, which count and refuse themselves."""

    def __init__(self, sims: Sequence[Any], place: Callable[[int], int]) -> None:
        super().__init__(len(sims), place)
        self.sims = sims

    def settle(self, rank: int | None) -> None:
        if rank is not None:
            sim = self.sims[rank]
            self.used[rank] = sim.used
            self.sample(rank, sim.peak)
            sim.reset_peak()

    def close(self) -> None:
        """The devices know their peaks again."""
        for rank, sim in enumerate(self.sims):
            self.peak[rank] = sim.peak = max(self.peak[rank], sim.peak)


class Holdings(Account):
    """Of the arrays that were made since the run began.

    `rooms`: what each rank's device has; a rank that went beyond is told at its next call."""

    def __init__(self, watch: Any, rooms: list[float], place: Callable[[int], int]) -> None:
        super().__init__(len(rooms), place)
        self.watch, self.rooms = watch, rooms
        self._before = watch.live
        watch.reset_peak()

    def settle(self, rank: int | None) -> None:
        live = self.watch.live
        if rank is not None:
            peak = self.used[rank] + self.watch.peak - self._before
            self.used[rank] += live - self._before
            self.sample(rank, peak)
        self._before = live
        self.watch.reset_peak()

    def hand_over(self, src: int, dst: int, nbytes: int) -> None:
        if src != dst:
            self.used[src] -= nbytes
            self.used[dst] += nbytes
            self.sample(src, self.used[src])
            self.sample(dst, self.used[dst])

    def hand_out(self, nbytes: dict[int, int]) -> None:
        for rank, size in nbytes.items():
            self.used[rank] += size
            self.sample(rank, self.used[rank])
        self.settle(None)

    def check(self, rank: int) -> None:
        self.settle(rank)
        if self.peak[rank] > self.rooms[rank]:
            raise MemoryError(f"rank {rank} held {show(self.peak[rank], 'B')} of arrays, and its device has "
                              f"{show(self.rooms[rank], 'B')} in all. Take smaller batches, checkpoint, shard, or "
                              f"spawn with a larger device")


__all__ = ["Account", "Holdings", "SimAccounts"]
