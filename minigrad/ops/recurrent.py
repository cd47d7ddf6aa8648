"""Whole sequences through one layer of an RNN, an LSTM or a GRU, in one direction: one op each.  After `cells.py`.

Sequences of different lengths lie packed: the rows of step 0, then of step 1, …; `sizes[t]` of them are alive in step
t, the longest sequences first.  The products with the inputs are one matrix product before the steps, the gradients of
all weights one after them, so a step costs one product with the state and the arithmetic of its gates.
"""

from __future__ import annotations

import numpy as np

from minigrad.aval import Aval
from minigrad.errors import ShapeError
from minigrad.ops.cells import parts
from minigrad.ops.op import NoOnnx, Op, op
from minigrad.ops.samples import Sample


class Sequence(Op):
    """x (R, I): all rows; h0 (N, H): N sequences.  y (R + N, H): the states of all rows, then the last of each."""

    precision, exact, onnx = "high", True, NoOnnx("RNN, LSTM, GRU: a whole layer there, padded")
    gates: int = 1                                    # matrices stacked in a weight
    states: int = 1                                   # h, or h and c

    def walk(self) -> list[tuple[int, int]]:
        """(first row, rows) of each step in the order in which they run."""
        ends = np.cumsum(self.sizes).tolist()
        steps = [(end - n, n) for end, n in zip(ends, self.sizes)]
        return steps[::-1] if self.reverse else steps

    def previous(self, o, start, rows):
        """For each row the state before it: (R, H) from the states of the rows, `start` before the first ones."""
        found, state = {}, start
        for s, n in self.walk():
            found[s] = some(o, state, 0, n)
            state = over(o, some(o, rows, s, n), state)
        return joined(o, found)

    def pulled(self, o, needs, dz, x, w_ih):
        """(dx, dw_ih) of the product with the inputs."""
        return o.matmul(dz, w_ih) if needs[0] else None, o.matmul(o.mT(dz), x)

    def check(self, x: Aval, h0: Aval, w_ih: Aval, w_hh: Aval, *others: Aval) -> None:
        n, h = h0.shape if h0.ndim == 2 else (-1, -1)
        wide = self.gates * h
        fits = x.ndim == w_ih.ndim == 2 and w_ih.shape == (wide, x.shape[1]) and w_hh.shape == (wide, h)
        falling = all(a >= b for a, b in zip(self.sizes, self.sizes[1:])) and self.sizes[0] == n
        if not fits or not falling or sum(self.sizes) != x.shape[0] or any(b.shape != (wide,) for b in others):
            raise ShapeError(
                f"{self.label}: rows {x.shape} in steps of {self.sizes}, state {h0.shape}, weights {w_ih.shape} and "
                f"{w_hh.shape}, biases {[b.shape for b in others]}: expected (R, I), (N, H), ({self.gates}·H, I), "
                f"({self.gates}·H, H), ({self.gates}·H,), and steps that fall from N and sum to R"
            )

    def result(self, x: Aval, h0: Aval) -> Aval:
        return Aval((x.shape[0] + self.states * h0.shape[0], h0.shape[1]), x.dtype)

    def flops(self, y: Aval, x: Aval, h0: Aval, *others: Aval) -> int:
        (rows, i), h = x.shape, h0.shape[1]
        return rows * self.gates * h * (2 * (i + h) + 15)

    @classmethod
    def samples(cls) -> list[Sample]:
        k, made = cls.gates, []
        ragged, full = (3, 2, 2, 1), (2, 2)
        for sizes, reverse in ((ragged, False), (ragged, True), (full, False), (full, True), ((1,), False)):
            r, n = sum(sizes), sizes[0]
            states = [f"normal({n},2)"] * cls.states
            biases = [f"normal({2 * k})"] * (2 if "b_hh" in cls.inputs else 1)
            texts = (f"normal({r},3)", *states, f"normal({2 * k},3)", f"normal({2 * k},2)", *biases)
            made.append(Sample(cls.of(sizes, reverse), texts))
        return made

    def one_by_one(self, cell, x, *states):
        """The reference: each sequence alone, step by step, with `cell(row, *states)`."""
        begins, y, last = np.cumsum((0, *self.sizes)), np.zeros((len(x), states[0].shape[1])), []
        for b in range(self.sizes[0]):
            state = tuple(s[b] for s in states)
            times = [t for t, n in enumerate(self.sizes) if b < n]
            for t in reversed(times) if self.reverse else times:
                state = cell(x[begins[t] + b], *state)
                y[begins[t] + b] = state[0]
            last.append(state)
        return np.concatenate([y, *(np.reshape([s[k] for s in last], states[k].shape) for k in range(len(states)))])


def some(o, x, first: int, n: int):
    """n rows of x."""
    return x if n == x.shape[0] else o.cut(x, (slice(first, first + n),))


def over(o, new, old):
    """`old` with its first rows replaced."""
    n = new.shape[0]
    return new if n == old.shape[0] else o.cat((new, o.cut(old, (slice(n, None),))), 0)


def joined(o, steps: dict, *more):
    """Pieces in the order of their first rows, and more pieces, as one array."""
    return o.cat((*(steps[s] for s in sorted(steps)), *more), 0)


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


@op
class RNNSequence(Sequence):
    """h = tanh or relu (w_ih x + w_hh h + b), step by step"""

    sizes: tuple[int, ...]
    reverse: bool = False
    relu: bool = False

    def forward(self, o, x, h0, w_ih, w_hh, b):
        a, w, h, hs = o.matmul(x, o.mT(w_ih)) + b, o.mT(w_hh), h0, {}
        bend = o.positive if self.relu else o.tanh
        for s, n in self.walk():
            hs[s] = bend(some(o, a, s, n) + o.matmul(some(o, h, 0, n), w))
            h = over(o, hs[s], h)
        return joined(o, hs, h)

    def vjp(self, o, needs, g, x, h0, w_ih, w_hh, y):
        r, n0 = x.shape[0], h0.shape[0]
        h = some(o, y, 0, r)
        slope = o.where(h > o.zero, o.one, o.zero) if self.relu else o.one - h * h
        dh, dz = some(o, g, r, n0), {}
        for s, n in reversed(self.walk()):
            dz[s] = (some(o, g, s, n) + some(o, dh, 0, n)) * some(o, slope, s, n)
            dh = over(o, o.matmul(dz[s], w_hh), dh)
        dz = joined(o, dz)
        dx, dw_ih = self.pulled(o, needs, dz, x, w_ih)
        return dx, dh, dw_ih, o.matmul(o.mT(dz), self.previous(o, h0, h)), o.sum(dz, (0,))

    def infer(self, x: Aval, h0: Aval, w_ih: Aval, w_hh: Aval, b: Aval) -> Aval:
        self.check(x, h0, w_ih, w_hh, b)
        return self.result(x, h0)

    def reference(self, x, h0, w_ih, w_hh, b):
        bend = (lambda v: np.maximum(v, 0)) if self.relu else np.tanh
        return self.one_by_one(lambda v, h: (bend(w_ih @ v + w_hh @ h + b),), x, h0)

    @classmethod
    def samples(cls) -> list[Sample]:
        texts = ("normal(3,3)", "normal(2,2)", "normal(2,3)", "normal(2,2)", "normal(2)")
        return [*super().samples(), Sample(cls.of((2, 1), False, True), texts)]


@op
class LSTMSequence(Sequence):
    """LSTM, step by step; y (R + 2N, H): h of all rows, the last h and the last c of each sequence"""

    sizes: tuple[int, ...]
    reverse: bool = False
    extra, gates, states = ("acts", "cells"), 4, 2

    def forward(self, o, x, h0, c0, w_ih, w_hh, b):
        size = h0.shape[1]
        # sigmoid(z) = tanh(z / 2) / 2 + 1 / 2: with halved columns one tanh serves all four gates
        half = o.constant(np.repeat((0.5, 0.5, 1.0, 0.5), size))
        shift = o.one - half
        a, w = (o.matmul(x, o.mT(w_ih)) + b) * half, o.mT(w_hh) * half
        h, c, hs, acts, cells = h0, c0, {}, {}, {}
        for s, n in self.walk():
            acts[s] = o.tanh(some(o, a, s, n) + o.matmul(some(o, h, 0, n), w)) * half + shift
            i, f, u, q = parts(o, acts[s], 4)
            cells[s] = f * some(o, c, 0, n) + i * u
            hs[s] = q * o.tanh(cells[s])
            h, c = over(o, hs[s], h), over(o, cells[s], c)
        return joined(o, hs, h, c), joined(o, acts), joined(o, cells)

    def extras(self, o, x, h0, c0, w_ih, w_hh, b):
        return self.forward(o, x, h0, c0, w_ih, w_hh, b)[1:]

    def vjp(self, o, needs, g, x, h0, c0, w_ih, w_hh, b, y, acts, cells):  # b: `extras` reads it
        r, n0 = x.shape[0], h0.shape[0]
        i, f, u, q = parts(o, acts, 4)
        t, before = o.tanh(cells), self.previous(o, c0, cells)
        slopes = (u * i * (o.one - i), before * f * (o.one - f), i * (o.one - u * u), t * q * (o.one - q))
        slopes, through = o.cat(slopes, -1), q * (o.one - t * t)
        dh, dc, dz = some(o, g, r, n0), some(o, g, r + n0, n0), {}
        for s, n in reversed(self.walk()):
            d = some(o, g, s, n) + some(o, dh, 0, n)
            e = some(o, dc, 0, n) + d * some(o, through, s, n)
            dz[s] = o.cat((e, e, e, d), -1) * some(o, slopes, s, n)
            dh, dc = over(o, o.matmul(dz[s], w_hh), dh), over(o, e * some(o, f, s, n), dc)
        dz = joined(o, dz)
        dx, dw_ih = self.pulled(o, needs, dz, x, w_ih)
        dw_hh = o.matmul(o.mT(dz), self.previous(o, h0, some(o, y, 0, r)))
        return dx, dh, dc, dw_ih, dw_hh, o.sum(dz, (0,))

    def infer(self, x: Aval, h0: Aval, c0: Aval, w_ih: Aval, w_hh: Aval, b: Aval):
        self.check(x, h0, w_ih, w_hh, b)
        if c0.shape != h0.shape:
            raise ShapeError(f"{self.label}: states h {h0.shape} and c {c0.shape} must have one shape")
        rows, h = x.shape[0], h0.shape[1]
        return self.result(x, h0), Aval((rows, 4 * h), x.dtype), Aval((rows, h), x.dtype)

    def reference(self, x, h0, c0, w_ih, w_hh, b):
        def cell(v, h, c):
            i, f, u, q = np.split(w_ih @ v + w_hh @ h + b, 4)
            c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(u)
            return _sigmoid(q) * np.tanh(c), c

        return self.one_by_one(cell, x, h0, c0)


@op
class GRUSequence(Sequence):
    """GRU, step by step; the reset gate acts on w_hh h + b_hh, as in PyTorch"""

    sizes: tuple[int, ...]
    reverse: bool = False
    extra, gates = ("acts",), 3

    def forward(self, o, x, h0, w_ih, w_hh, b_ih, b_hh):
        size = h0.shape[1]
        a, w, h, hs, acts = o.matmul(x, o.mT(w_ih)) + b_ih, o.mT(w_hh), h0, {}, {}
        gates, new, half = (Ellipsis, slice(0, 2 * size)), (Ellipsis, slice(2 * size, None)), o.lit(0.5)
        for s, n in self.walk():
            z, old = some(o, a, s, n), some(o, h, 0, n)
            m = o.matmul(old, w) + b_hh
            both = (o.tanh((o.cut(z, gates) + o.cut(m, gates)) * half) + o.one) * half
            r, u = parts(o, both, 2)
            mine = o.cut(m, new)
            v = o.tanh(o.cut(z, new) + r * mine)
            hs[s], acts[s] = v + u * (old - v), o.cat((both, v, mine), -1)
            h = over(o, hs[s], h)
        return joined(o, hs, h), joined(o, acts)

    def extras(self, o, x, h0, w_ih, w_hh, b_ih, b_hh):
        return self.forward(o, x, h0, w_ih, w_hh, b_ih, b_hh)[1:]

    def vjp(self, o, needs, g, x, h0, w_ih, w_hh, b_ih, b_hh, y, acts):  # the biases: `extras` reads them
        rows, n0 = x.shape[0], h0.shape[0]
        r, u, v, mine = parts(o, acts, 4)
        before = self.previous(o, h0, some(o, y, 0, rows))
        dv = (o.one - u) * (o.one - v * v)
        gates = (dv * mine * r * (o.one - r), (before - v) * u * (o.one - u))
        of_state, dh, ds, dm = o.cat((*gates, dv * r), -1), some(o, g, rows, n0), {}, {}
        for s, n in reversed(self.walk()):
            ds[s] = d = some(o, g, s, n) + some(o, dh, 0, n)
            dm[s] = o.cat((d, d, d), -1) * some(o, of_state, s, n)
            dh = over(o, d * some(o, u, s, n) + o.matmul(dm[s], w_hh), dh)
        d, dm = joined(o, ds), joined(o, dm)
        dz = o.cat((d, d, d), -1) * o.cat((*gates, dv), -1)
        dx, dw_ih = self.pulled(o, needs, dz, x, w_ih)
        return dx, dh, dw_ih, o.matmul(o.mT(dm), before), o.sum(dz, (0,)), o.sum(dm, (0,))

    def infer(self, x: Aval, h0: Aval, w_ih: Aval, w_hh: Aval, b_ih: Aval, b_hh: Aval):
        self.check(x, h0, w_ih, w_hh, b_ih, b_hh)
        return self.result(x, h0), Aval((x.shape[0], 4 * h0.shape[1]), x.dtype)

    def reference(self, x, h0, w_ih, w_hh, b_ih, b_hh):
        def cell(v, h):
            (ar, az, an), (br, bz, bn) = np.split(w_ih @ v + b_ih, 3), np.split(w_hh @ h + b_hh, 3)
            z, n = _sigmoid(az + bz), np.tanh(an + _sigmoid(ar + br) * bn)
            return ((1 - z) * n + z * h,)

        return self.one_by_one(cell, x, h0)
