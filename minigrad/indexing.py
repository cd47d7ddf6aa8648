"""The words of the algebra for indexing, and their adjoints: what is looked at, put, added back.  Before `algebra.py`.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from minigrad.device import CPU, Device

HOLE = type("Hole", (), {"__repr__": lambda self: "[index]"})()


def filled(pattern: tuple, index: tuple) -> tuple:
    """A key with its holes filled by index arrays, in order."""
    rest = iter(index)
    return tuple(next(rest) if k is HOLE else k for k in pattern)


class Indexing:
    """Part of `Arrays`, whose other words it uses."""

    device: Device
    xp: Any
    zeros: Any
    copy: Any
    arange: Any
    one: Any

    def cut(self, x, key):
        """Basic indexing: `key` holds integers, slices, None and Ellipsis."""
        return x[key]

    def place(self, g, key, shape):
        """The adjoint of `cut`: `g` at `key` in zeros of `shape`."""
        out = self.zeros(shape, g.dtype)
        out[key] = g
        return out

    def put(self, x, key, value):
        """A copy of `x` with `value` at a basic `key`."""
        out = self.copy(x)
        out[key] = value
        return out

    # -- by index: `pattern` is a key with HOLE where an array of `index` goes
    def at(self, x, pattern, index):
        y = x[filled(pattern, index)]
        return y if y.flags.c_contiguous else y.copy()          # row-major, as `infer` says; NumPy keeps x's order

    def add_at(self, g, pattern, index, shape):
        """The adjoint of `at`: repeated places are counted as often as they occur."""
        out = self.zeros(shape, g.dtype)
        if self.device is CPU and pattern[0] is HOLE and len(index) == 1 and g.ndim > index[0].ndim and g.size > 4096:
            return _add_rows(out, index[0].reshape(-1), g.reshape(-1, *g.shape[index[0].ndim:]), pattern[1:])
        self.xp.add.at(out, filled(pattern, index), g)
        return out

    def put_at(self, x, pattern, index, value):
        """A copy of `x` with `value` there."""
        out = self.copy(x)
        out[filled(pattern, index)] = value
        return out

    def take_along(self, x, index, axis):
        rows = x.ndim == 2 and axis in (-1, 1) and self.device is CPU     # the commonest case, three times as fast
        return x[np.arange(len(x))[:, None], index] if rows else self.xp.take_along_axis(x, index, axis)

    def add_along(self, g, index, axis, n):
        """The adjoint of `take_along`: `g` added at `index` along an axis of length `n`."""
        shape = (*g.shape[:axis], n, *g.shape[axis + 1:])
        out = self.zeros(shape, g.dtype)
        if index.shape[axis] == 1:                                        # nothing can occur twice
            self.xp.put_along_axis(out, index, g, axis)
        else:
            key = [self.arange(m).reshape([-1 if i == k else 1 for i in range(g.ndim)]) for k, m in enumerate(g.shape)]
            key[axis] = index
            self.xp.add.at(out, tuple(key), g)
        return out

    def one_hot(self, t, n, like):
        return (t[..., None] == self.arange(n)).astype(like.dtype)

    def less_one_hot(self, p, t):
        """p - one_hot(t) for rows of a matrix `p` that is a fresh buffer of ours: overwritten."""
        p[self.arange(len(p)), t] -= self.one
        return p


def _add_rows(out: np.ndarray, index: np.ndarray, g: np.ndarray, rest: tuple) -> np.ndarray:
    """out[index, *rest] += g, as often as each number occurs: sorted, then summed in runs, a fifth of `add.at`."""
    index = np.where(index < 0, index + len(out), index) if index.min() < 0 else index
    order = index.argsort(kind="stable")
    numbers = index[order]
    first = np.flatnonzero(np.concatenate(([True], numbers[1:] != numbers[:-1])))
    out[(numbers[first], *rest)] = np.add.reduceat(g[order], first, axis=0)
    return out
