"""Attention on the host, in blocks that stay in the processor's cache: what `attention.py` says, on NumPy arrays.

Few buffers, written over in place; under a causal mask a block of queries meets only the keys it may see, which saves
up to half of the products and exponentials.  Tests hold it equal to the plain formula.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from minigrad.lanes import in_lanes

ROWS = 64  # queries in a block under a causal mask
BLOCK_BYTES = 1 << 21  # of scores at a time


def _blocks(p: np.ndarray, causal: bool, start: int, stop: int) -> Iterator[tuple]:
    """(slice of the first axis, first row, end of rows, end of the columns that these rows see) of p[start:stop]."""
    rows, columns = p.shape[-2:]
    row = max(int(np.prod(p.shape[1:-2])) * columns * p.itemsize, 1)
    height = min(rows, ROWS) if causal else rows
    step = max(1, BLOCK_BYTES // (row * height))
    for first in range(start, stop, step):
        for top in range(0, rows, height):
            end = min(top + height, rows)
            yield slice(first, min(first + step, stop)), top, end, min(end, columns) if causal else columns


def _led(lead: tuple[int, ...], *arrays) -> list[np.ndarray]:
    """The arrays with all leading axes written out (views), one at least."""
    return [np.broadcast_to(a, (*(lead or (1,)), *a.shape[-2:])) for a in arrays]


def _lead(*arrays) -> tuple[int, ...]:
    """The common leading axes."""
    return np.broadcast_shapes(*(a.shape[:-2] for a in arrays))


def weights(q, k, scale: float, causal: bool, bias: tuple) -> np.ndarray:
    """softmax(q kᵀ · scale + bias); a row that may see nothing is zero."""
    rows, columns = q.shape[-2], k.shape[-2]
    shape = np.broadcast_shapes((*_lead(q, k), rows, columns), *(b.shape for b in bias))
    out = np.empty(shape, q.dtype)
    p = out if shape[:-2] else out[None]
    q, kt = _led(shape[:-2], q * q.dtype.type(scale), k.swapaxes(-1, -2))
    added = [np.broadcast_to(b, p.shape) for b in bias]
    ones = np.ones(columns, q.dtype)
    future = np.triu(np.full((ROWS, ROWS), -np.inf, q.dtype), 1)

    def work(start: int, stop: int) -> None:
        for at, top, end, seen in _blocks(p, causal, start, stop):
            s = np.matmul(q[at, ..., top:end, :], kt[at, ..., :seen], out=p[at, ..., top:end, :seen])
            for b in added:
                s += b[at, ..., top:end, :seen]
            if causal:
                p[at, ..., top:end, seen:] = 0
                if seen > top:
                    s[..., top:] += future[: end - top, : seen - top]
            _softmax(s, ones[:seen])

    in_lanes(work, len(p), p.nbytes)
    return out


def _softmax(s: np.ndarray, ones: np.ndarray) -> None:
    """softmax along the last axis, written over `s`; the sums are products with ones, which BLAS takes."""
    top = s.max(-1, keepdims=True)
    np.copyto(top, 0, where=np.isneginf(top))
    np.exp(np.subtract(s, top, out=s), out=s)
    total = np.matmul(s, ones)[..., None]
    np.copyto(total, 1, where=total == 0)
    s *= np.divide(1, total, out=total)


def mixed(p: np.ndarray, v: np.ndarray, causal: bool) -> np.ndarray:
    """p v."""
    if not causal:
        return p @ v
    lead = _lead(p, v)
    p, v = _led(lead, p, v)
    y = np.empty((*p.shape[:-1], v.shape[-1]), p.dtype)

    def work(start: int, stop: int) -> None:
        for at, top, end, seen in _blocks(p, causal, start, stop):
            np.matmul(p[at, ..., top:end, :seen], v[at, ..., :seen, :], out=y[at, ..., top:end, :])

    in_lanes(work, len(p), p.nbytes)
    return y if lead else y[0]


def pulled(needs: tuple, g, q, k, v, p, scale: float, causal: bool) -> list:
    """(dq, dk, dv, d scores) of y = p v; the leading axes are those of the broadcast operands."""
    lead = _lead(g, q, k, v, p)
    g, q, k, v, p = _led(lead, g, q, k, v, p)
    wanted = (*needs, False)[:4]
    dq, dk, dv, ds = (np.zeros(x.shape, g.dtype) if need else None for x, need in zip((q, k, v, p), wanted))
    through_scores = any(x is not None for x in (dq, dk, ds))

    def work(start: int, stop: int) -> None:
        for at, top, end, seen in _blocks(p, causal, start, stop):
            g1, p1, k1 = g[at, ..., top:end, :], p[at, ..., top:end, :seen], k[at, ..., :seen, :]
            if dv is not None:
                dv[at, ..., :seen, :] += np.matmul(p1.swapaxes(-1, -2), g1)
            if not through_scores:
                continue
            d = np.matmul(g1, v[at, ..., :seen, :].swapaxes(-1, -2))
            scores_back(d, p1)
            if ds is not None:
                ds[at, ..., top:end, :seen] = d
            if dq is not None:
                np.matmul(d, k1, out=dq[at, ..., top:end, :])
            if dk is not None:
                dk[at, ..., :seen, :] += np.matmul(d.swapaxes(-1, -2), q[at, ..., top:end, :])

    in_lanes(work, len(p), p.nbytes)
    for each in (dq, dk):
        if each is not None:
            each *= each.dtype.type(scale)
    found = [dq, dk, dv, ds]
    return found if lead else [x if x is None else x[0] for x in found]


def scores_back(d: np.ndarray, p: np.ndarray) -> None:
    """The gradient by the scores, written over `d`, that by the weights: p · (d - the row sums of d p)."""
    d -= np.einsum("...j,...j->...", d, p)[..., None]
    d *= p
