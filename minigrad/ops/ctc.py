"""Connectionist temporal classification: the loss of all ways to spread a short text over a longer sequence.

Graves et al. 2006, "Connectionist temporal classification", with sums in logarithms.  After `losses.py`.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from minigrad.algebra import algebra
from minigrad.aval import Aval
from minigrad.dtype import bool_, int64, is_float
from minigrad.errors import ArgumentError, DTypeError, GraphError, ShapeError
from minigrad.ops.op import NoOnnx, Op, op
from minigrad.ops.reduce_functions import mean, sum
from minigrad.ops.samples import Sample
from minigrad.ops.views import reshape
from minigrad.tensor import Tensor, apply, current


class Texts(Op):
    """What the loss and its gradient share.  `labels` (N, S), `times` and `lengths` (N,): how many steps and labels
    count."""

    blank: int
    as_is = ("labels", "times", "lengths")

    def text(self, o, labels):
        """(N, 2S + 1): a blank before, between and after the labels; and where a step may leave a blank out."""
        n, s = labels.shape
        text = algebra(o.device, int64).full((n, 2 * s + 1), self.blank)
        text[:, 1::2] = labels
        jumps = algebra(o.device, bool_).full(text.shape, False)
        jumps[:, 2:] = (text[:, 2:] != self.blank) & (text[:, 2:] != text[:, :-2])
        return text, jumps

    def spoken(self, o, x, text):
        """(T, N, 2S + 1): the log-probability of each symbol of the text at each step."""
        return o.take_along(x, o.broadcast_to(text, (x.shape[0], *text.shape)), 2)

    def reached(self, o, now, jumps):
        """log Σ of what leads to each symbol: itself, the one before, and the one before that over a blank."""
        one, two = (o.pad(now, ((0, 0), (k, 0)), -math.inf)[:, : now.shape[1]] for k in (1, 2))
        return o.logaddexp(o.logaddexp(now, one), o.where(jumps, two, o.lit(-math.inf)))

    def ends(self, o, text, lengths):
        """0 where a text may end – at its last label or at the blank after it – and -inf elsewhere."""
        left = 2 * lengths[:, None] - algebra(o.device, int64).arange(text.shape[1])
        return o.where((left == 0) | (left == 1), o.lit(0.0), o.lit(-math.inf))


@op
class CTC(Texts):
    """-log of the probability of each text under log-probabilities x (T, N, C); infinite where a text cannot fit, or 0
    if `forgive`.  As in PyTorch the gradient is that by the logits whose log_softmax x is, and there is no second"""

    blank: int = 0
    forgive: bool = False
    extra, precision, onnx = ("alpha", "total"), "high", NoOnnx("a loss")

    def forward(self, o, x, labels, times, lengths):
        text, jumps = self.text(o, labels)
        spoken, low = self.spoken(o, x, text), o.lit(-math.inf)
        first = o.where(algebra(o.device, int64).arange(text.shape[1]) < 2, o.lit(0.0), low)
        now, alpha = o.broadcast_to(first, text.shape), []
        for t in range(x.shape[0]):
            now = (self.reached(o, now, jumps) if t else now) + spoken[t]
            alpha.append(now)
        paths = o.stack(alpha, 0) if alpha else spoken
        total = o.where((times == 0) & (lengths == 0), o.lit(0.0), low)
        ends = self.ends(o, text, lengths)
        for t in range(x.shape[0]):
            last = paths[t] + ends
            ways = last[:, 0]
            for k in range(1, text.shape[1]):
                ways = o.logaddexp(ways, last[:, k])
            total = o.where(times == t + 1, ways, total)
        return -o.where((total == low) & self.forgive, o.lit(-0.0), total), paths, total

    def dx(self, o, g, x, labels, times, lengths, alpha, total):
        back = CTCBack.of(self.blank, self.forgive)
        if not isinstance(x, Tensor):
            return back.forward(o, g, x, labels, times, lengths, alpha, total)
        if current().grad:
            raise GraphError("ctc_loss: it has no second derivative. Differentiate without create_graph")
        return apply(back, g, x, labels, times, lengths, alpha, total)

    def infer(self, x: Aval, labels: Aval, times: Aval, lengths: Aval):
        if x.ndim != 3 or labels.ndim != 2 or not labels.shape[:1] == times.shape == lengths.shape == x.shape[1:2]:
            raise ShapeError(f"ctc_loss: log-probabilities {x.shape}, labels {labels.shape}, lengths {times.shape} and "
                             f"{lengths.shape}: expected (T, N, C), (N, S), (N,) and (N,)")
        n, s = labels.shape
        return Aval((n,), x.dtype), Aval((x.shape[0], n, 2 * s + 1), x.dtype), Aval((n,), x.dtype)

    def flops(self, y: Aval, x: Aval, labels: Aval, *lengths: Aval) -> int:
        return 20 * x.shape[0] * (2 * labels.size + y.size)

    def reference(self, x, labels, times, lengths):
        """Every sequence of symbols spoken out: repeats as one, then without blanks."""
        total = np.zeros(len(labels))
        for n, way in itertools.product(range(len(labels)), itertools.product(range(x.shape[2]), repeat=x.shape[0])):
            way = way[:times[n]] if not any(way[times[n]:]) else None
            if way is not None:
                text = [c for c, _ in itertools.groupby(way) if c != self.blank]
                if text == labels[n, :lengths[n]].tolist():
                    total[n] += np.exp(np.sum([x[t, n, c] for t, c in enumerate(way)]))
        logs = np.log(total, out=np.full(len(total), -np.inf), where=total > 0)
        return -np.where(np.isinf(logs) & self.forgive, 0.0, logs)

    @classmethod
    def samples(cls) -> list[Sample]:
        # the gradient is that by logits: tests/minigrad/test_ctc.py holds it to differences through log_softmax
        no = ("gradient", "second", "traced")
        return [Sample(cls.of(0, forgive), (x, "labels(3,2)", "index(3)<5", "index(3)<3"), skip=no)
                for forgive in (False, True) for x in ("normal(4,3,3)",)]


@op
class CTCBack(Texts):
    """The gradient of CTC, as a sum over all ways through each symbol; it has none of its own"""

    blank: int = 0
    forgive: bool = False
    precision, onnx = "high", NoOnnx("a loss")

    def forward(self, o, up, x, labels, times, lengths, alpha, total):
        text, jumps = self.text(o, labels)
        spoken, low = self.spoken(o, x, text), o.lit(-math.inf)
        later = algebra(o.device, bool_).full(jumps.shape, False)
        later[:, :-2] = jumps[:, 2:]                          # the same jumps, seen from where they begin
        now, beta = o.broadcast_to(low, text.shape), []
        for t in reversed(range(x.shape[0])):
            after = self.reached(o, now[:, ::-1], later[:, ::-1])[:, ::-1]
            beta.append(o.where((times == t + 1)[:, None], self.ends(o, text, lengths), after))
            now = beta[-1] + spoken[t]
        known = total > low
        share = o.exp(alpha + (o.stack(beta[::-1], 0) if beta else alpha) - o.where(known, total, o.zero)[:, None])
        d = o.exp(x) - o.add_along(share, o.broadcast_to(text, share.shape), 2, x.shape[2])
        d = o.where(known[:, None], d, o.lit(0.0 if self.forgive else math.nan)) * up[:, None]
        steps = algebra(o.device, int64).arange(x.shape[0])[:, None, None]
        return o.where(steps < times[:, None], d, o.zero)

    def infer(self, up: Aval, x: Aval, *rest: Aval) -> Aval:
        return Aval(x.shape, x.dtype)

    @classmethod
    def samples(cls) -> list[Sample]:
        rest = ("labels(3,2)", "index(3)<5", "index(3)<3", "below(4,3,5)", "normal(3)")
        return [Sample(cls.of(0, f), ("normal(3)", "normal(4,3,3)", *rest)) for f in (False, True)]


# ---- as a function ------------------------------------------------------------------------------------------------
def ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths, target_lengths, blank: int = 0, reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """-log of the probability that `log_probs` (T, N, C) or (T, C), made by a log_softmax, spell the texts `targets`.

    Targets are (N, S), or all texts one after the other; lengths are integers or a tensor of them, one for each of N.
    A text longer than its steps allow has infinite loss, or 0 and no gradient with `zero_infinity`.  "mean" divides
    each loss by the length of its text before it averages."""
    if reduction not in ("mean", "sum", "none"):
        raise ArgumentError(f"ctc_loss: reduction {reduction!r} is not one of 'mean', 'sum', 'none'")
    if not is_float(log_probs.dtype) or is_float(targets.dtype):
        raise DTypeError(f"ctc_loss: expected log_probs of floats and targets of integers, got {log_probs.dtype} and "
                         f"{targets.dtype}")
    one = log_probs.ndim == 2
    x = reshape(log_probs, (log_probs.shape[0], 1, -1)) if one else log_probs
    if x.ndim != 3 or not 0 <= blank < x.shape[2]:
        raise ShapeError(f"ctc_loss: log_probs {log_probs.shape} and blank {blank}: expected (T, N, C) and a class")
    times, lengths = (_index(v, x.shape[1], name) for v, name in ((input_lengths, "input"), (target_lengths, "target")))
    if times.max(initial=0) > x.shape[0]:
        raise ArgumentError(f"ctc_loss: input_lengths up to {times.max()}, but log_probs has {x.shape[0]} steps")
    labels = _rows(targets, lengths, x.shape[2])
    o = algebra(x.o.device, int64)
    put = lambda host: Tensor(o.upload(host) if o.eager else Aval(host.shape, int64))  # noqa: E731
    loss = apply(CTC.of(int(blank), bool(zero_infinity)), x, put(labels), put(times), put(lengths))[0]
    if reduction == "mean":
        host = 1 / np.maximum(lengths, 1)
        return mean(loss * Tensor(x.o.constant(host) if x.o.eager else Aval(host.shape, x.dtype)))
    return sum(loss) if reduction == "sum" else reshape(loss, ()) if one else loss


def _index(lengths, n: int, name: str) -> np.ndarray:
    """One length for each of n texts, on the host."""
    host = np.asarray(lengths.cpu().numpy() if isinstance(lengths, Tensor) else lengths).reshape(-1)
    if host.shape != (n,) or host.dtype.kind not in "iu" or host.min(initial=0) < 0:
        raise ArgumentError(f"ctc_loss: {name}_lengths must be {n} integers of at least 0, got {lengths}")
    return host.astype(np.int64)


def _rows(targets: Tensor, lengths: np.ndarray, classes: int) -> np.ndarray:
    """The texts as rows (N, S), 0 after their ends."""
    longest, n = int(lengths.max(initial=0)), len(lengths)
    if targets.ndim == 1 and targets.shape[0] < lengths.sum() or targets.ndim == 2 and (
            targets.shape[0] != n or targets.shape[1] < longest) or targets.ndim not in (1, 2):
        raise ShapeError(f"ctc_loss: targets {targets.shape} are too few for texts of lengths {lengths.tolist()}")
    rows = np.zeros((n, longest), np.int64)
    if not targets.o.eager:
        return rows
    host, kept = targets.cpu().numpy(), np.arange(longest) < lengths[:, None]
    rows[kept] = host[: lengths.sum()] if targets.ndim == 1 else host[:, :longest][kept]
    if rows.min(initial=0) < 0 or rows.max(initial=0) >= classes:
        raise ArgumentError(f"ctc_loss: targets from {rows.min()} to {rows.max()} for {classes} classes")
    return rows


__all__ = ["CTC", "CTCBack", "ctc_loss"]
