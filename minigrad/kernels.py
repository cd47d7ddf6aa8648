"""Convolution, pooling and normalisation on NumPy arrays, in pieces that stay in the processor's cache.

The ops say what these compute (`ops/conv.py`, `ops/fused.py`), in words that every device knows; here is the same for
float32 and float64 on the host, several times as fast, and a test holds the two together.  Images are (N, C, H, W).
After `lanes.py`, before `tensor.py`.
"""
from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from minigrad.lanes import in_lanes, summed

Pair = tuple[int, int]
CACHE_BYTES = 1 << 20          # of one piece's columns; half of it is as good, but for lanes too little


def keep_freed_memory(kept: int = 1 << 28, mapped: int = 1 << 25) -> None:
    """Let glibc keep what a step frees for the next one, up to `kept` bytes, instead of giving the pages back and
    asking for each anew; blocks above `mapped` bytes still go back at once.  Other systems are as they were, and so is
    a process that starts with MINIGRAD_KEEP_FREED_MEMORY=0 (`benchmarks/pool.py` measures the difference).
    Measured: a step of char-GPT from 347 to 255 ms (12,000 page faults), of a LeNet from 22 to 16."""
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)    # musl has none
    if mallopt is not None:
        trim_threshold, mmap_threshold = -1, -3              # malloc.h
        mallopt(mmap_threshold, mapped), mallopt(trim_threshold, kept)


if os.environ.get("MINIGRAD_KEEP_FREED_MEMORY") != "0":    # a variable: glibc goes by what it was told first
    keep_freed_memory()


def serves(*arrays) -> bool:
    """Whether these are arrays of the kernels: NumPy's own, in one dtype that BLAS knows, and not empty."""
    first = arrays[0]
    return first.__class__ is np.ndarray and first.dtype.char in "fd" and all(
        a.__class__ is np.ndarray and a.dtype is first.dtype and a.size for a in arrays)


# ---- convolution: a matrix product over columns, the windows of a few images at a time (Chellapill ----------
@dataclass(frozen=True)
class Convolution:
    """The sizes of one convolution.

    With stride 1 the columns keep the pitch of the padded rows: a tap's row is one run of `length` elements from the
    padded image instead of one for each row, and what stands at the ends of rows is left out of the result."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int

    @cached_property
    def padded(self) -> Pair:
        return self.x[2] + 2 * self.padding[0], self.x[3] + 2 * self.padding[1]

    @cached_property
    def out(self) -> Pair:
        rows = zip(self.padded, self.w[2:], self.stride, self.dilation)
        return tuple((n - d * (k - 1) - 1) // s + 1 for n, k, s, d in rows)  # type: ignore[return-value]

    @cached_property
    def pitched(self) -> bool:
        return self.stride == (1, 1)

    @cached_property
    def pitch(self) -> int:
        """From one row of the result to the next, in the layout of the columns."""
        return self.padded[1] if self.pitched else self.out[1]

    @cached_property
    def length(self) -> int:
        return (self.out[0] - 1) * self.pitch + self.out[1]

    @cached_property
    def taps(self) -> int:
        return self.w[2] * self.w[3]

    @cached_property
    def depth(self) -> int:
        """Rows of the columns of one group."""
        return self.w[1] * self.taps

    @cached_property
    def bare(self) -> bool:
        """Whether the image is its own columns."""
        return self.taps == 1 and self.pitched and self.padding == (0, 0)

    @cached_property
    def turned(self) -> Convolution | None:
        """The convolution of the upstream gradient that gives dx, where its columns are not much longer than ours."""
        padding = tuple(d * (k - 1) - p for d, k, p in zip(self.dilation, self.w[2:], self.padding))
        if not self.pitched or min(padding) < 0:
            return None
        w = self.x[1], self.w[0] // self.groups, *self.w[2:]
        t = convolution((self.x[0], self.w[0], *self.out), w, (1, 1), padding, self.dilation, self.groups)
        return t if t.depth * t.length <= 2 * self.depth * self.length else None

    @cached_property
    def size(self) -> int:
        """Elements of the columns of one image."""
        return self.groups * self.depth * self.length

    def pieces(self, itemsize: int, start: int, stop: int) -> tuple[int, Iterator[slice]]:
        """How many images a piece holds, and the pieces of images start … stop-1."""
        m = max(1, min(stop - start, CACHE_BYTES // (self.size * itemsize)))
        return m, (slice(i, min(i + m, stop)) for i in range(start, stop, m))


class Pieces:
    """The working memory of one convolution for `m` images: padded images and columns."""

    def __init__(self, c: Convolution, m: int, dtype: np.dtype) -> None:
        self.c, self.m, (kh, kw), channels = c, m, c.w[2:], c.x[1]
        self.wide = np.zeros((m, channels, *c.padded), dtype)
        rows, cols = (slice(p, p + n) for p, n in zip(c.padding, c.x[2:]))
        self.inner = self.wide[:, :, rows, cols]
        a, b, d, e = self.wide.strides
        run, steps = ((c.length,), (e,)) if c.pitched else (c.out, (d * c.stride[0], e * c.stride[1]))
        taps = d * c.dilation[0], e * c.dilation[1]
        self.windows = np.lib.stride_tricks.as_strided(self.wide, (m, channels, kh, kw, *run), (a, b, *taps, *steps))
        self.cells = np.empty((m, channels, kh, kw, *run), dtype)
        self.columns = self.cells.reshape(m, c.groups, c.depth, c.length)

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Memory for (m, O, OH, OW) at the pitch of the columns, with zeros in between: as rows (m, G, O / G, length)
        and as it is shown."""
        c = self.c
        flat = np.zeros((self.m, c.groups, c.w[0] // c.groups, c.out[0] * c.pitch), self.wide.dtype)
        return flat[..., :c.length], flat.reshape(self.m, c.w[0], c.out[0], c.pitch)[..., :c.out[1]]

    def columns_of(self, x: np.ndarray) -> np.ndarray:
        """(q, G, C / G · KH · KW, length): the windows of q images."""
        q = len(x)
        self.inner[:q] = x
        self.cells[:q] = self.windows[:q]
        return self.columns[:q]

    def folded(self, q: int) -> np.ndarray:
        """The adjoint of `columns_of`, of what `columns` holds now."""
        self.wide[:q] = 0
        for i, j in np.ndindex(*self.c.w[2:]):
            place = self.windows[:q, :, i, j]
            np.add(place, self.cells[:q, :, i, j], out=place)
        return self.inner[:q]


@lru_cache(1024)
def convolution(x: tuple, w: tuple, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> Convolution:
    return Convolution(x, w, stride, padding, dilation, groups)


def convolve(c: Convolution, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The convolution of x (N, C, H, W) with w (O, C / G, KH, KW): (N, O, OH, OW)."""
    n, o, g = c.x[0], c.w[0], c.groups
    flat = w.reshape(g, o // g, c.depth)
    if c.bare:
        return np.matmul(flat, x.reshape(n, g, c.depth, c.length)).reshape(n, o, *c.out)
    y = np.empty((n, o, *c.out), x.dtype)

    def work(start: int, stop: int) -> None:
        m, pieces = c.pieces(x.itemsize, start, stop)
        memory = Pieces(c, m, x.dtype)
        rows, shown = memory.rows() if c.pitched else (None, None)
        for piece in pieces:
            columns = memory.columns_of(x[piece])
            if c.pitched:
                np.matmul(flat, columns, out=rows[:len(columns)])
                y[piece] = shown[:len(columns)]
            else:
                np.matmul(flat, columns, out=y[piece].reshape(-1, g, o // g, c.length))

    in_lanes(work, n, n * c.size * x.itemsize)
    return y


def convolve_back(c: Convolution, needs: tuple, g: np.ndarray, x: np.ndarray | None, w: np.ndarray | None) -> tuple:
    """(dx, dw) of `convolve`, None for what is not in `needs`; x is read for dw, w for dx."""
    dx = np.empty(c.x, g.dtype) if needs[0] else None
    turned = c.turned if needs[0] else None
    if turned is None:
        work = lambda a, b: _back_by_folding(c, needs, g, x, w, dx, a, b)  # noqa: E731
    else:
        work = lambda a, b: _back_by_turning(c, turned, needs[1], g, x, w, dx, a, b)  # noqa: E731
    parts = in_lanes(work, c.x[0], c.x[0] * c.size * g.itemsize)
    if not needs[1]:
        return dx, None
    dw, per = summed(parts), c.w[0] // c.groups
    if turned is not None:
        dw = dw.reshape(c.groups, c.w[1], per, *c.w[2:])[..., ::-1, ::-1].swapaxes(1, 2)
    return dx, np.ascontiguousarray(dw).reshape(c.w)


def _back_by_folding(c: Convolution, needs, g, x, w, dx, start: int, stop: int) -> np.ndarray:
    """dw (G, O / G, …) from the columns of x; dx from columns that are added back to their places."""
    per = c.w[0] // c.groups
    dw = np.zeros((c.groups, per, c.depth), g.dtype)
    flat = w.reshape(c.groups, per, c.depth).swapaxes(1, 2) if needs[0] else None
    m, pieces = c.pieces(g.itemsize, start, stop)
    memory = Pieces(c, m, g.dtype)
    rows, shown = memory.rows()
    for piece in pieces:
        q = piece.stop - piece.start
        shown[:q] = g[piece]
        if needs[1]:
            dw += np.matmul(rows[:q], memory.columns_of(x[piece]).swapaxes(2, 3)).sum(0)
        if needs[0]:
            np.matmul(flat, rows[:q], out=memory.columns[:q])
            dx[piece] = memory.folded(q)
            if needs[1]:
                memory.wide[:q] = 0                          # the border, for the next columns
    return dw


def _back_by_turning(c: Convolution, t: Convolution, dw_too: bool, g, x, w, dx, start: int, stop: int) -> np.ndarray:
    """Both from the columns of g: dx is the convolution of g with the filters turned by 180 degrees, and the products
    of these columns with x are dw (G, C / G, …), turned too."""
    groups, per, ins = c.groups, c.w[0] // c.groups, c.w[1]
    taps = w.reshape(groups, per, ins, *c.w[2:])[..., ::-1, ::-1]
    flat, dw = taps.swapaxes(1, 2).reshape(groups, ins, t.depth), np.zeros((groups, ins, t.depth), g.dtype)
    m, pieces = t.pieces(g.itemsize, start, stop)
    memory = Pieces(t, m, g.dtype)
    (rows, shown), (x_rows, x_shown) = memory.rows(), memory.rows()
    for piece in pieces:
        columns, q = memory.columns_of(g[piece]), piece.stop - piece.start
        if dw_too:
            x_shown[:q] = x[piece]
            dw += np.matmul(x_rows[:q], columns.swapaxes(2, 3)).sum(0)
        np.matmul(flat, columns, out=rows[:q])
        dx[piece] = shown[:q]
    return dw


# ---- the first of an order ----------
def first(x: np.ndarray, k: int, largest: bool) -> np.ndarray | None:
    """Where the k largest (or smallest) of each row of x (…, n) stand, in stable order: by a partition, not a sort.
    None where a NaN or equal elements at the end ask for the sort."""
    n = x.shape[-1]
    rows, place = x.reshape(-1, n), n - k if largest else k - 1
    last = np.partition(rows, place)[:, place : place + 1]
    hit = rows >= last if largest else rows <= last
    if not (np.count_nonzero(hit, 1) == k).all():
        return None
    at = hit.nonzero()[1].reshape(-1, k)
    values = np.take_along_axis(rows, at, 1)
    order = k - 1 - values[:, ::-1].argsort(1, "stable")[:, ::-1] if largest else values.argsort(1, "stable")
    return np.take_along_axis(at, order, 1).reshape(*x.shape[:-1], k)


# ---- the largest of windows ----------
def cells(x: np.ndarray, kernel: Pair, stride: Pair, dilation: Pair) -> list[np.ndarray]:
    """For each cell of the kernel what stands there in every window: views (…, OH, OW) of x (…, H, W)."""
    rows = zip(x.shape[-2:], kernel, stride, dilation)
    out = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in rows]
    run = lambda k, d, s, m: slice(k * d, k * d + s * (m - 1) + 1, s)  # noqa: E731
    return [x[(..., *map(run, at, dilation, stride, out))] for at in np.ndindex(*kernel)]


def largest(x: np.ndarray, kernel: Pair, stride: Pair, dilation: Pair) -> tuple[np.ndarray, np.ndarray] | None:
    """(the largest of each window, the number of its first cell), or None where a NaN asks for the general way."""
    first, *rest = cells(x, kernel, stride, dilation)
    y, index, better = first.copy(), np.zeros(first.shape, np.int8), np.empty(first.shape, bool)
    for number, cell in enumerate(rest, 1):
        np.greater(cell, y, out=better)
        np.maximum(y, cell, out=y)
        np.maximum(index, better.view(np.int8) * np.int8(number), out=index)
    return None if np.isnan(y.max()) else (y, index.astype(np.int64))


def largest_back(g: np.ndarray, index: np.ndarray, shape: tuple, kernel: Pair, stride: Pair, dilation: Pair):
    """The adjoint of `largest`: each element of g added where its window had its largest."""
    dx, number = np.zeros(shape, g.dtype), index.astype(np.int8)
    apart = all(d == 1 and s >= k for k, s, d in zip(kernel, stride, dilation))
    for k, place in enumerate(cells(dx, kernel, stride, dilation)):
        if apart:
            np.multiply(g, number == k, out=place)
        else:
            np.add(place, g * (number == k), out=place)
    return dx


# ---- batch normalisation: passes over a few images at a time ----------
def _pieces(x: np.ndarray, start: int, stop: int) -> Iterator[slice]:
    """Slices of rows start … stop-1 of x that hold CACHE_BYTES / 2, or one row."""
    m = max(1, (CACHE_BYTES // 2) // max(1, x[:1].nbytes))
    return (slice(i, min(i + m, stop)) for i in range(start, stop, m))


def normalise(x: np.ndarray, w: np.ndarray, b: np.ndarray, eps: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(y, mean, variance) of each channel of x (N, C, L); mean and variance (C, 1)."""
    share, y = x.dtype.type(1 / (len(x) * x.shape[2])), np.empty_like(x)
    mean = summed(in_lanes(lambda a, z: x[a:z].sum(2).sum(0), len(x), x.nbytes))[:, None] * share

    def centre(start: int, stop: int) -> np.ndarray:
        """y = x - mean; the sum of its squares."""
        square = np.zeros((x.shape[1], 1), x.dtype)
        for piece in _pieces(x, start, stop):
            part = np.subtract(x[piece], mean, out=y[piece])
            square += (part * part).sum(2, keepdims=True).sum(0)
        return square

    def scale(start: int, stop: int) -> None:
        for piece in _pieces(x, start, stop):
            part = np.multiply(y[piece], gain, out=y[piece])
            np.add(part, b[:, None], out=part)

    var = summed(in_lanes(centre, len(x), x.nbytes)) * share
    gain = w[:, None] / np.sqrt(var + x.dtype.type(eps))
    in_lanes(scale, len(x), x.nbytes)
    return y, mean, var


def normalise_back(g, x, w, mean, rstd, dx_too: bool) -> tuple:
    """(dx or None, dw, db) of `normalise`; g and x (N, C, L), mean and rstd (C, 1)."""
    dx = np.empty_like(x) if dx_too else None

    def sums(start: int, stop: int) -> np.ndarray:
        """The sums of g · (x - mean) and of g, (2, C, 1)."""
        both = np.zeros((2, x.shape[1], 1), x.dtype)
        for piece in _pieces(x, start, stop):
            part = x[piece] - mean
            both[0] += np.multiply(part, g[piece], out=part).sum(2, keepdims=True).sum(0)
            both[1] += g[piece].sum(2, keepdims=True).sum(0)
        return both

    def pull(start: int, stop: int) -> None:
        for piece in _pieces(x, start, stop):
            part = np.subtract(x[piece], mean, out=dx[piece])
            np.multiply(part, slope, out=part)
            np.subtract(g[piece], part, out=part)
            np.subtract(part, level, out=part)
            np.multiply(part, gain, out=part)

    dw, db = summed(in_lanes(sums, len(x), x.nbytes))
    dw = dw * rstd
    if dx_too:
        share = x.dtype.type(1 / (len(x) * x.shape[2]))
        slope, level, gain = rstd * dw * share, db * share, rstd * w[:, None]
        in_lanes(pull, len(x), x.nbytes)
    return dx, dw[:, 0], db[:, 0]


# ---- normalisation of each row by itself: one pass over a few rows ----------
def normalise_groups(x: np.ndarray, w: np.ndarray, b: np.ndarray, eps: float) -> tuple:
    """(y, mean, 1 / deviation) of each group of x (N, G, C / G, L); mean and deviation (N, G, 1); w and b (C,)."""
    n, groups, per, length = x.shape
    w, b = w.reshape(groups, per, 1), b.reshape(groups, per, 1)
    share, y = x.dtype.type(1 / (per * length)), np.empty_like(x)
    mean, rstd = np.empty((2, n, groups, 1, 1), x.dtype)

    def work(start: int, stop: int) -> None:
        for piece in _pieces(x, start, stop):
            mean[piece] = x[piece].sum(3).sum(2)[..., None, None] * share
            part = np.subtract(x[piece], mean[piece], out=y[piece])
            var = (part * part).sum(3).sum(2)[..., None, None] * share
            rstd[piece] = 1 / np.sqrt(var + x.dtype.type(eps))
            np.multiply(part, rstd[piece], out=part)
            np.multiply(part, w, out=part)
            np.add(part, b, out=part)

    in_lanes(work, n, x.nbytes)
    return y, mean[..., 0], rstd[..., 0]


def normalise_groups_back(g, x, w, mean, rstd, dx_too: bool) -> tuple:
    """(dx or None, dw, db) of `normalise_groups`."""
    n, groups, per, length = x.shape
    w, mean, rstd = w.reshape(groups, per, 1), mean[..., None], rstd[..., None]
    dx, share = np.empty_like(x) if dx_too else None, x.dtype.type(1 / (per * length))

    def work(start: int, stop: int) -> np.ndarray:
        """dx; dw and db of these rows, (2, G, C / G, 1)."""
        both = np.zeros((2, groups, per, 1), x.dtype)
        for piece in _pieces(x, start, stop):
            hat = (x[piece] - mean[piece]) * rstd[piece]
            weights, shifts = (hat * g[piece]).sum(3, keepdims=True), g[piece].sum(3, keepdims=True)
            both += weights.sum(0), shifts.sum(0)
            if dx_too:
                np.multiply(hat, (weights * w).sum(2, keepdims=True) * share, out=hat)
                part = np.multiply(g[piece], w, out=dx[piece])
                np.subtract(part, hat, out=part)
                np.subtract(part, (shifts * w).sum(2, keepdims=True) * share, out=part)
                np.multiply(part, rstd[piece], out=part)
        return both

    dw, db = summed(in_lanes(work, n, x.nbytes)).reshape(2, -1)
    return dx, dw, db
