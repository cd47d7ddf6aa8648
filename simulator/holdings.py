"""Bytes of host arrays that each rank holds, though they all live in one process.

One rank runs at a time, so what NumPy takes and gives back meanwhile is that rank's; what a rank gets from another
changes hands.  After `units.py`; the executor tells who runs.  Watching needs numba (`minigrad.memory`).
"""
from __future__ import annotations

from typing import Any

from simulator.units import show


class Holdings:
    """`used` and `peak` by rank, in bytes, of the arrays that were made since the run began.

    `rooms`: what each rank's device has; a rank that went beyond is told at its next call."""

    def __init__(self, watch: Any, rooms: list[float]) -> None:
        self.watch, self.rooms = watch, rooms
        self.used, self.peak = [0] * len(rooms), [0] * len(rooms)
        self._before = watch.live
        watch.reset_peak()

    def settle(self, rank: int | None) -> None:
        """What happened since the last time was done by `rank`; by nobody before the first runs."""
        live = self.watch.live
        if rank is not None:
            self.peak[rank] = max(self.peak[rank], self.used[rank] + self.watch.peak - self._before)
            self.used[rank] += live - self._before
        self._before = live
        self.watch.reset_peak()

    def hand_over(self, src: int, dst: int, nbytes: int) -> None:
        """Arrays of so many bytes were made by `src`, and are `dst`'s from now on."""
        if src != dst:
            self.used[src] -= nbytes
            self.used[dst] += nbytes
            self.peak[dst] = max(self.peak[dst], self.used[dst])

    def hand_out(self, nbytes: dict[int, int]) -> None:
        """What was made since the last time is arrays of so many bytes for each rank; what it took to make them is
        nobody's."""
        for rank, size in nbytes.items():
            self.used[rank] += size
            self.peak[rank] = max(self.peak[rank], self.used[rank])
        self.settle(None)

    def check(self, rank: int) -> None:
        """MemoryError if this rank held more than its device has."""
        self.settle(rank)
        if self.peak[rank] > self.rooms[rank]:
            raise MemoryError(f"rank {rank} held {show(self.peak[rank], 'B')} of arrays, and its device has "
                              f"{show(self.rooms[rank], 'B')} in all. Take smaller batches, checkpoint, shard, or "
                              f"spawn with a larger device")


__all__ = ["Holdings"]
