"""The ladder from L1 to the disk: how long one read takes when it must wait for the one before.

A walk in random order over ever more memory: while all of it fits in a cache, a read costs that cache's latency; once
it does not, the next one's.  Measured on a virtual machine of two cores (AMD EPYC) that had other work to do: 2.8 ns in
L1, 5 in L2, 19 in L3, 290 in memory, 64,000 for 4 KiB from its disk.  Past L2 a part of the cost is the look-up of the
page (TLB); a cache that others share holds less than its size.  After `walks.py`.
"""
from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from minigrad.memory.hierarchy.system import Cache, best_s, binary_size, bundle, caches, processor, shown
from minigrad.memory.hierarchy.walks import LINE, compiled, ring

JUMP = 1.3                              # a level is another one if a read costs so many times as much


@dataclass(frozen=True)
class Point:
    nbytes: int
    ns_per_read: float


@dataclass(frozen=True)
class Level:
    """`nbytes`: the largest walk that still fits, as the curve has it (None: no end was met); `told_nbytes`: as the
    system has it."""

    name: str
    ns_per_read: float
    nbytes: int | None
    told_nbytes: int | None = None


@dataclass(frozen=True)
class Disk:
    """Reads of a file of `nbytes` right after it was written (from memory: the page cache), and after the system was
    asked to drop it; `dropped` is None where it cannot be asked."""

    nbytes: int
    cached_Bps: float
    dropped_Bps: float | None
    dropped_read_s: float | None        # of 4 KiB at a random place

    @property
    def dropped(self) -> bool:
        return self.dropped_Bps is not None


@dataclass(frozen=True)
class Ladder:
    points: tuple[Point, ...]
    levels: tuple[Level, ...]
    disk: Disk | None
    processor: str
    reads: str

    _repr_mimebundle_ = bundle

    def __str__(self) -> str:
        rows = [f"{self.processor}; {self.reads}",
                f"{'level':8}{'ns a read':>11}{'x the first':>13}{'fits, curve':>14}{'system says':>14}"]
        first = self.levels[0].ns_per_read
        rows += [f"{level.name:8}{level.ns_per_read:11.3g}{level.ns_per_read / first:13.3g}"
                 f"{binary_size(level.nbytes) if level.nbytes else '-':>14}"
                 f"{binary_size(level.told_nbytes) if level.told_nbytes else '-':>14}" for level in self.levels]
        return "\n".join([*rows, *_disk_rows(self.disk, first)])

    __repr__ = __str__


def _disk_rows(disk: Disk | None, first: float) -> list[str]:
    if disk is None:
        return []
    rows = [f"file of {binary_size(disk.nbytes)}: {disk.cached_Bps / 1e9:.3g} GB/s from the page cache"]
    if disk.dropped_Bps is None or disk.dropped_read_s is None:
        return [*rows, "  the disk itself: not measured, this system cannot be asked to drop what it has in memory"]
    ns = 1e9 * disk.dropped_read_s
    return [f"{'disk':8}{ns:11.3g}{ns / first:13.3g}   for 4 KiB; {disk.dropped_Bps / 1e9:.3g} GB/s in a row "
            "(the system was asked to drop its copy; a virtual disk may keep another)", *rows]


def cache_ladder(*, quick: bool = False, disk: bool = True, folder: str | None = None, progress: bool = True) -> Ladder:
    """Measure it: some seconds, a tenth with `quick`, which goes no further than 4 MiB.

    `folder`: where the file for the disk is written and removed (64 MiB, 1 MiB with `quick`).  May be interrupted."""
    told = caches()
    most = 2**22 if quick else min(4 * max([2**25, *(c.nbytes for c in told)]), 2**29)
    sizes = sorted({int(2 ** (e / 2)) // LINE * LINE for e in range(24, 2 * most.bit_length() - 1, 2 if quick else 1)})
    points = [Point(n, ns_per_read(n, 1000 if quick else 50_000)) for n in shown(sizes, "reads", progress)]
    kind = "dependent reads in random order" if compiled() else "random reads by NumPy, not dependent: no latency"
    found = fit(points, told)
    return Ladder(tuple(points), found, disk_reads(2**20 if quick else 2**26, folder) if disk else None, processor(),
                  kind)


def ns_per_read(nbytes: int, steps: int) -> float:
    """One read of a walk over `nbytes`, in ns: the best of nine pieces of so many steps."""
    places = ring(nbytes)
    loops = compiled()
    if loops is None:
        order, out = places[::LINE // 8], np.empty(len(places) * 8 // LINE, np.int64)
        return 1e9 * best_s(lambda: np.take(places, order, out=out, mode="clip")) / len(order)
    at = loops.chase(places, 0, len(places) * 8 // LINE if nbytes <= 2**26 else steps)
    best = float("inf")
    for _ in range(9):
        start = time.perf_counter()
        at = loops.chase(places, at, steps)
        best = min(best, time.perf_counter() - start)
    return 1e9 * best / steps


# ---- levels from the curve -----------------------------------------------------------------------
def fit(points: Sequence[Point], told: Sequence[Cache] = ()) -> tuple[Level, ...]:
    """The steps of the curve.

    With caches told: a level's cost is the median in the nearer half of its range, and it ends before two reads in a
    row that cost more than the geometric mean of it and of the next level.  Without: the curve is cut where constants
    are nearest to the logarithm of the costs, into as many pieces, of two points at least, as each jump by `JUMP`."""
    inside = [c for c in told if c.nbytes < points[-1].nbytes]
    if not inside:
        return _cut_levels(points, told[0].name if told else "L1")
    below = [points[0].nbytes, *(c.nbytes for c in inside)]
    costs = [_cost(points, low, (low * c.nbytes) ** 0.5 * 1.5, k == 0) for k, (low, c) in enumerate(zip(below, inside))]
    costs.append(_cost(points, below[-1], float("inf"), False))
    names = [c.name for c in inside] + [told[len(inside)].name if len(inside) < len(told) else "memory"]
    sizes = [*map(_end_of, [points] * len(inside), costs, costs[1:]), None]
    return tuple(Level(name, cost, size, told[k].nbytes if k < len(told) else None)
                 for k, (name, cost, size) in enumerate(zip(names, costs, sizes)))


def _cost(points: Sequence[Point], low: float, high: float, with_low: bool) -> float:
    """The median of the reads of walks over more than `low`, up to `high`."""
    found = [p.ns_per_read for p in points if (low < p.nbytes or with_low and p.nbytes == low) and p.nbytes <= high]
    return float(np.median(found or [next(p.ns_per_read for p in points if p.nbytes > low)]))


def _end_of(points: Sequence[Point], cost: float, following: float) -> int | None:
    """The largest walk before the reads cost more than between a level and the following one, for good."""
    most = (cost * following) ** 0.5
    over = [p.ns_per_read > most for p in points]
    at = next((k for k in range(1, len(over)) if all(over[k:k + 2])), None)
    return None if at is None else points[at - 1].nbytes


def _cut_levels(points: Sequence[Point], only: str) -> tuple[Level, ...]:
    y = np.log([p.ns_per_read for p in points])
    for k in range(5, 0, -1):
        cuts = _cut(y, k)
        costs = [float(np.exp(np.median(y[a:b]))) for a, b in cuts]
        if all(b > JUMP * a for a, b in zip(costs, costs[1:])):
            break
    names = [*(f"L{i + 1}" for i in range(len(cuts) - 1)), "memory"] if len(cuts) > 1 else [only]
    return tuple(Level(name, cost, points[b - 1].nbytes if b < len(points) else None)
                 for name, cost, (_, b) in zip(names, costs, cuts))


def _cut(y: np.ndarray, k: int) -> list[tuple[int, int]]:
    """The k pieces, of two points at least, with the least sum of squares around their means: by dynamic programming
    (Bellman 1961)."""
    n = len(y)
    k = max(1, min(k, n // 2))

    @lru_cache(None)
    def least(end: int, pieces: int) -> tuple[float, int]:
        """(the least cost of y[:end] in so many pieces, where the last one begins)."""
        if pieces == 1:
            return float(np.var(y[:end]) * end), 0
        return min((least(b, pieces - 1)[0] + float(np.var(y[b:end]) * (end - b)), b)
                   for b in range(2 * pieces - 2, end - 1))

    cuts, end = [], n
    for pieces in range(k, 0, -1):
        begin = least(end, pieces)[1]
        cuts.append((begin, end))
        end = begin
    return cuts[::-1]


# ---- the disk ------------------------------------------------------------------------------------
def disk_reads(nbytes: int, folder: str | None = None) -> Disk:
    """Write a file, read it from memory and, where the system can be asked to drop it, from the disk; remove it."""
    block = 2**20
    with tempfile.TemporaryDirectory(dir=folder) as place:
        path = os.path.join(place, "reads.bin")
        with open(path, "wb") as f:
            for k in range(0, nbytes, block):
                f.write(np.random.default_rng(k).bytes(min(block, nbytes - k)))
            f.flush()
            os.fsync(f.fileno())
        cached = min(_read_s(path, block) for _ in range(2))
        if not drop(path):
            return Disk(nbytes, nbytes / cached, None, None)
        whole = _read_s(path, block)
        drop(path)
        return Disk(nbytes, nbytes / cached, nbytes / whole, _random_read_s(path, nbytes))


def drop(path: str) -> bool:
    """Ask the system to forget what it has in memory of a file; False where it has no such call."""
    if not hasattr(os, "posix_fadvise"):
        return False
    with open(path, "rb") as f:
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return True


def _read_s(path: str, block: int) -> float:
    start = time.perf_counter()
    with open(path, "rb", buffering=0) as f:
        while f.read(block):
            pass
    return time.perf_counter() - start


def _random_read_s(path: str, nbytes: int, reads: int = 64, block: int = 4096) -> float:
    """Seconds of one read of 4 KiB, the median; no place is read twice."""
    places = np.random.default_rng(0).permutation(max(1, nbytes // block))[:reads] * block
    taken = []
    with open(path, "rb", buffering=0) as f:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_RANDOM)   # no reading ahead
        for at in places.tolist():
            start = time.perf_counter()
            f.seek(at)
            f.read(block)
            taken.append(time.perf_counter() - start)
    return float(np.median(taken))


__all__ = ["Disk", "Ladder", "Level", "Point", "cache_ladder", "disk_reads", "fit", "ns_per_read"]
