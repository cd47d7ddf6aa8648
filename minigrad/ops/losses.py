"""Losses that are one op: the mean or sum of squared errors, and binary cross-entropy of probabilities.

`cross_entropy` is in `fused.py`; `nn/functional.py` has the calls users write.  After `fused.py`.
"""

from __future__ import annotations

import math

import numpy as np

from minigrad.aval import Aval
from minigrad.errors import ShapeError
from minigrad.ops.op import Elementwise, NoOnnx, Op, op
from minigrad.ops.samples import Sample


@op
class SquaredError(Op):
    """(a - b)² summed over all elements, or its mean; a and b have one shape"""

    mean: bool = True
    exact, onnx, precision, takes = True, NoOnnx("ReduceMean of Mul of Sub"), "high", "float"

    def share(self, o, shape):
        n = math.prod(shape)
        return o.lit((1 / n if n else math.nan) if self.mean else 1.0)

    def forward(self, o, a, b):
        d = a - b
        return o.sum(d * d) * self.share(o, a.shape)

    def da(self, o, g, a, b):
        return (a - b) * (g * (self.share(o, a.shape) * o.lit(2)))

    def db(self, o, g, a, b):
        return (b - a) * (g * (self.share(o, a.shape) * o.lit(2)))

    def infer(self, a: Aval, b: Aval) -> Aval:
        if a.shape != b.shape:
            raise ShapeError(f"mse_loss: input {a.shape} and target {b.shape} must have one shape")
        return Aval((), a.dtype)

    def flops(self, y: Aval, a: Aval, b: Aval) -> int:
        return 3 * a.size

    def reference(self, a, b):
        return ((a - b) ** 2).mean() if self.mean else ((a - b) ** 2).sum()

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of(m), (s, s)) for m in (True, False) for s in ("normal(3,4)", "normal(2)", "normal()")]


@op
class BinaryCrossEntropy(Elementwise):
    """-(t log p + (1 - t) log(1 - p)) with logarithms of at least -100, so that p may be 0 or 1"""

    onnx, precision, takes, ops_per_element = NoOnnx("composed of Log"), "high", "float", 20
    domain = ("probability",)

    def logs(self, o, p):
        """log p and log(1 - p), each at least -100."""
        low, some, rest = o.lit(-100), p > o.zero, p < o.one
        log = o.maximum(o.log(o.where(some, p, o.one)), low)
        log_rest = o.maximum(o.log1p(-o.where(rest, p, o.zero)), low)
        return o.where(some, log, low), o.where(rest, log_rest, low)

    def forward(self, o, p, t):
        log, log_rest = self.logs(o, p)
        return -(t * log + (o.one - t) * log_rest)

    def dp(self, o, g, p, t):
        return g * (p - t) / o.maximum(p * (o.one - p), o.lit(1e-12))

    def dt(self, o, g, p):
        log, log_rest = self.logs(o, p)
        return g * (log_rest - log)

    @staticmethod
    def reference(p, t):
        return -(t * np.log(p) + (1 - t) * np.log1p(-p))


@op
class Huber(Elementwise):
    """d² / 2 where |d| is below delta, else delta · (|d| - delta / 2), of d = a - b"""

    delta: float = 1.0
    takes, onnx, ops_per_element, domain = "only float", NoOnnx("Where of Abs"), 6, ("steps", "normal")

    def forward(self, o, a, b):
        d = o.abs(a - b)
        delta, half = o.lit(self.delta), o.lit(0.5)
        return o.where(d < delta, d * d * half, delta * (d - delta * half))

    def slope(self, o, g, a, b):
        d, delta = a - b, o.lit(self.delta)
        return g * o.where(o.abs(d) < delta, d, delta * o.sign(d))

    def da(self, o, g, a, b):
        return self.slope(o, g, a, b)

    def db(self, o, g, a, b):
        return -self.slope(o, g, a, b)

    def reference(self, a, b):
        d = abs(a - b)
        return (d < self.delta) * d * d / 2 + (d >= self.delta) * self.delta * (d - self.delta / 2)
