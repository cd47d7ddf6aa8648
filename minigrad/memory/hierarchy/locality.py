"""Strides and blocks: what a cache line is for, and why loops are exchanged and cut into tiles.

A read brings a whole line, 64 bytes on most machines: whoever reads each 4 bytes of it in turn pays once for 16 reads,
and the prefetcher has the next line ready (spatial locality); whoever strides over it pays for each.  A tile is used
again while it is still in the cache (temporal locality).  After `ladder.py`.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minigrad.arguments import whole
from minigrad.memory.hierarchy import walks
from minigrad.memory.hierarchy.system import best_s, binary_size, blas_limited, bundle, caches, processor, shown


# ---- strides -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Strides:
    """`ns[i]`: one read of 4 bytes, with `stride_nbytes[i]` from one to the next, over an array of `nbytes`."""

    stride_nbytes: tuple[int, ...]
    ns: tuple[float, ...]
    nbytes: int
    told_line_nbytes: int | None
    processor: str

    @property
    def line_nbytes(self) -> int:
        """The stride from which on a read costs what a whole line costs, as the curve has it."""
        return line_of(self.stride_nbytes, self.ns)

    _repr_mimebundle_ = bundle

    def __str__(self) -> str:
        told = f", the system says {self.told_line_nbytes}" if self.told_line_nbytes else ""
        rows = [f"{self.processor}; reads of 4 bytes over {binary_size(self.nbytes)}",
                f"a line of {self.line_nbytes} bytes by the curve{told}",
                f"{'stride, B':>10}{'ns a read':>12}{'x 4 B':>8}"]
        return "\n".join(rows + [f"{s:10}{t:12.3g}{t / self.ns[0]:8.3g}" for s, t in zip(self.stride_nbytes, self.ns)])

    __repr__ = __str__


def line_of(stride_nbytes: Sequence[int], ns: Sequence[float]) -> int:
    """The stride at which the cost ends to rise steeply: by half at least as the stride doubled, from the steepest
    doubling on.  (A prefetcher that brings two lines at once shows as a line twice as long.)"""
    rise = [b / a for a, b in zip(ns, ns[1:])]
    at = int(np.argmax(rise)) if rise else 0
    while at + 1 < len(rise) and rise[at + 1] >= 1.5:
        at += 1
    return stride_nbytes[min(at + 1, len(stride_nbytes) - 1)]


def strides(*, quick: bool = False, progress: bool = True) -> Strides:
    """Sum every k-th number of an array that is larger than the caches: ns a read, for strides from 4 to 2048 bytes."""
    told = caches()
    nbytes = 2**20 if quick else 2 * max([2**25, *(c.nbytes for c in told)])
    x = np.zeros(nbytes // 4, np.int32)
    loops, found, each = walks.compiled(), [], [4 << k for k in range(10)]
    for stride in shown(each, "strides", progress):
        k = stride // 4
        run = (lambda k=k: np.add.reduce(x[::k])) if loops is None else (lambda k=k: loops.stride_sum(x, k, 1))
        found.append(1e9 * best_s(run) / len(x[::k]))
    line = next((c.line_nbytes for c in told if c.line_nbytes), None)
    return Strides(tuple(each), tuple(found), nbytes, line, processor())


# ---- blocks --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Run:
    """`block`: the side of its blocks or tiles, None where it has none; `rate`: in the unit of the whole."""

    name: str
    block: int | None
    seconds: float
    rate: float


@dataclass(frozen=True)
class Blocking:
    """One piece of work done in several orders; each gives the same result."""

    what: str
    unit: str
    runs: tuple[Run, ...]
    processor: str

    @property
    def best(self) -> Run:
        return min(self.runs, key=lambda run: run.seconds)

    _repr_mimebundle_ = bundle

    def __str__(self) -> str:
        rows = [f"{self.processor}; {self.what}",
                f"{'order':22}{'block':>7}{'ms':>11}{self.unit:>11}{'x the first':>13}"]
        first = self.runs[0].seconds
        rows += [f"{run.name:22}{run.block or '-':>7}{1e3 * run.seconds:11.3g}{run.rate:11.3g}"
                 f"{first / run.seconds:13.3g}" for run in self.runs]
        return "\n".join(rows)

    __repr__ = __str__


def blocked_transpose(n: int | None = None, *, quick: bool = False, progress: bool = True) -> Blocking:
    """y = x.T of n × n float32 (2048; 128 with `quick`) in blocks of several sizes.

    One of the two is always walked down its columns; a block as wide as a line uses each line whole while it is there.
    With n a power of two the lines of a column fall into few sets of the cache, and put one another out."""
    n = (128 if quick else 2048) if n is None else whole("blocked_transpose", "n", n, 1)
    x = np.arange(n * n, dtype=np.float32).reshape(n, n)
    y = np.empty_like(x)
    loops = walks.compiled()
    turn = walks.transpose_numpy if loops is None else loops.transpose_blocks
    sides = [n, *(b for b in (4, 8, 16, 32, 64, 128, 256) if b < n and (loops or b >= 16))]
    runs = []
    for side in shown(sides, "transposition", progress):
        seconds = best_s(lambda side=side: turn(x, y, side), 2 if quick else 3)
        runs.append(Run("row by row" if side == n else "blocks", side if side < n else None, seconds,
                        2 * x.nbytes / seconds / 1e9))
        if not np.array_equal(y, x.T):
            raise RuntimeError(f"transposition in blocks of {side}: the result is not x.T")
    return Blocking(f"transposition of {n} x {n} float32, {binary_size(x.nbytes)}", "GB/s", tuple(runs), processor())


def tiled_matmul(n: int | None = None, rows: int = 128, *, quick: bool = False, progress: bool = True) -> Blocking:
    """c = a @ b with a of rows × n and b of n × n float32 (1024; 64 with `quick`): the order of the formula, the loops
    exchanged, tiles of b, and NumPy's BLAS on one thread, which tiles for each cache and for the registers.

    Exchanging the loops makes each line count.  Tiles keep a part of b in the cache for all rows, where ikj fetches all
    of b anew for each row; what that gains depends on the next cache and on prefetching, so look."""
    n = (64 if quick else 1024) if n is None else whole("tiled_matmul", "n", n, 1)
    whole("tiled_matmul", "rows", rows, 1)
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((rows, n), np.float32), rng.standard_normal((n, n), np.float32)
    c, want = np.empty_like(a), a @ b
    runs = []
    with blas_limited(1):
        for name, tile, run in shown(_orders(a, b, c, n), "matrix product", progress):
            c[:] = np.nan
            seconds = best_s(run, 1 if quick else 2)
            if not np.allclose(c, want, rtol=1e-3, atol=1e-3 * n**0.5):
                raise RuntimeError(f"matrix product, {name} {tile or ''}: the result is not a @ b")
            runs.append(Run(name, tile, seconds, 2 * rows * n**2 / seconds / 1e9))
    what = f"product of {rows} x {n} and {n} x {n} float32, the second of {binary_size(b.nbytes)}"
    return Blocking(what, "GFLOP/s", tuple(runs), processor())


def _orders(a, b, c, n: int) -> list:
    """[(name, tile, how to run it)]."""
    loops, tiles = walks.compiled(), [t for t in (8, 16, 32, 64, 128) if t < n]
    if loops is None:
        found = [("ikj, rows of NumPy", None, lambda: walks.matmul_rows_numpy(a, b, c))]
        found += [("tiles of NumPy", t, lambda t=t: walks.matmul_tiles_numpy(a, b, c, t)) for t in tiles]
    else:
        found = [("ijk, the formula", None, lambda: loops.matmul_ijk(a, b, c)),
                 ("ikj, exchanged", None, lambda: loops.matmul_ikj(a, b, c))]
        found += [("tiled ikj", t, lambda t=t: loops.matmul_tiled(a, b, c, t)) for t in tiles]
    return [*found, ("BLAS, one thread", None, lambda: np.matmul(a, b, out=c))]


__all__ = ["Blocking", "Run", "Strides", "blocked_transpose", "line_of", "strides", "tiled_matmul"]
