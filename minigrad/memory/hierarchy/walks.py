"""The loops that are timed, as machine code (numba) where it is there, else as NumPy does them.

Only here is numba imported.  The order of the loops is the subject, so none of them is vectorised by hand, and no
arithmetic is reordered: all matrix products below add in the same order and give the same bits.
After `system.py`.
"""
from __future__ import annotations

from functools import lru_cache
from types import SimpleNamespace

import numpy as np

LINE = 64                               # bytes: the places of a walk are as far apart as cache lines commonly are


def ring(nbytes: int, seed: int = 0) -> np.ndarray:
    """int64 array of `nbytes`: each `LINE` bytes hold the place of the next one, in one ring in random order.

    Random, so that no prefetcher guesses the next place; a ring, so that each read must wait for the one before."""
    words, n = LINE // 8, max(1, nbytes // LINE)
    order = np.random.default_rng(seed).permutation(n) * words
    places = np.zeros(n * words, np.int64)
    places[order] = np.roll(order, -1)
    return places


@lru_cache(1)
def compiled() -> SimpleNamespace | None:
    """The loops as machine code; None without numba.  Made when first asked for, then kept on disk."""
    try:
        import numba
    except ImportError:
        return None
    made = numba.njit(cache=True, nogil=True)
    return SimpleNamespace(**{f.__name__: made(f) for f in (
        chase, stride_sum, triad, transpose_blocks, matmul_ijk, matmul_ikj, matmul_tiled)})


# ---- reads ---------------------------------------------------------------------------------------
def chase(places, at, steps):
    """Follow the ring for so many steps; where it ended."""
    for _ in range(steps):
        at = places[at]
    return at


def stride_sum(x, stride, times):
    """The sum of every stride-th element, so many times over."""
    total = 0
    for _ in range(times):
        for k in range(0, x.shape[0], stride):
            total += x[k]
    return total


def triad(a, b, c, s):
    """a = b + s · c, as in STREAM (McCalpin 1995)."""
    for k in range(a.shape[0]):
        a[k] = b[k] + s * c[k]


def triad_numpy(a, b, c, s):
    """The same in two passes."""
    np.multiply(c, s, out=a)
    np.add(a, b, out=a)


# ---- blocks --------------------------------------------------------------------------------------
def transpose_blocks(x, y, block):
    """y = x.T, block by block."""
    n, m = x.shape
    for i0 in range(0, n, block):
        for j0 in range(0, m, block):
            for i in range(i0, min(i0 + block, n)):
                for j in range(j0, min(j0 + block, m)):
                    y[j, i] = x[i, j]


def transpose_numpy(x, y, block):
    n, m = x.shape
    for i in range(0, n, block):
        for j in range(0, m, block):
            y[j:j + block, i:i + block] = x[i:i + block, j:j + block].T


def matmul_ijk(a, b, c):
    """c = a @ b as the formula has it: the inner loop goes down a column of b, a line of the cache for each number."""
    n, m, p = a.shape[0], a.shape[1], b.shape[1]
    for i in range(n):
        for j in range(p):
            total = np.float32(0)
            for k in range(m):
                total += a[i, k] * b[k, j]
            c[i, j] = total


def matmul_ikj(a, b, c):
    """The two inner loops exchanged: along rows of b and c, where a line holds 16 numbers and is prefetched.

    Rows are sliced, since a compiler that must fear negative indices does not use vectors."""
    c[:] = np.float32(0)
    for i in range(a.shape[0]):
        to = c[i]
        for k in range(a.shape[1]):
            s, row = a[i, k], b[k]
            for j in range(to.shape[0]):
                to[j] += s * row[j]


def matmul_tiled(a, b, c, tile):
    """ikj on tiles of b, tile × 4 tile, that stay in the cache while all rows of a use them (Lam, Rothberg & Wolf
    1991), and four rows of b at a time, so that a number of c stays in a register for four products."""
    n, m, p, wide = a.shape[0], a.shape[1], b.shape[1], 4 * tile
    c[:] = np.float32(0)
    for k0 in range(0, m, tile):
        end = min(k0 + tile, m)
        for j0 in range(0, p, wide):
            for i in range(n):
                to, k = c[i, j0:j0 + wide], k0
                while k + 4 <= end:
                    s0, s1, s2, s3 = a[i, k], a[i, k + 1], a[i, k + 2], a[i, k + 3]
                    r0, r1 = b[k, j0:j0 + wide], b[k + 1, j0:j0 + wide]
                    r2, r3 = b[k + 2, j0:j0 + wide], b[k + 3, j0:j0 + wide]
                    for j in range(to.shape[0]):
                        to[j] = to[j] + s0 * r0[j] + s1 * r1[j] + s2 * r2[j] + s3 * r3[j]
                    k += 4
                for rest in range(k, end):
                    s0, r0 = a[i, rest], b[rest, j0:j0 + wide]
                    for j in range(to.shape[0]):
                        to[j] += s0 * r0[j]


def matmul_rows_numpy(a, b, c):
    """ikj with NumPy's rows as the inner loop."""
    c[:] = 0
    row = np.empty_like(c[0])
    for i in range(len(a)):
        for k in range(len(b)):
            c[i] += np.multiply(b[k], a[i, k], out=row)


def matmul_tiles_numpy(a, b, c, tile):
    """Tiles of b for all rows of a at once: an outer product for each k."""
    c[:] = 0
    for j in range(0, b.shape[1], tile):
        part = np.zeros((len(a), min(tile, b.shape[1] - j)), c.dtype)
        product = np.empty_like(part)
        for k in range(len(b)):
            part += np.multiply(a[:, k:k + 1], b[k, j:j + tile], out=product)
        c[:, j:j + tile] = part


__all__ = [
    "LINE", "chase", "compiled", "matmul_ijk", "matmul_ikj", "matmul_rows_numpy", "matmul_tiled",
    "matmul_tiles_numpy", "ring", "stride_sum", "transpose_blocks", "transpose_numpy", "triad", "triad_numpy",
]
