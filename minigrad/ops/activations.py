"""Smooth activations.  relu, sigmoid, tanh and softplus are in `elementwise.py`, those with corners in `limits.py`."""

from __future__ import annotations

import numpy as np

from minigrad.errors import ShapeError
from minigrad.ops.doors import function
from minigrad.ops.elementwise import Sigmoid, Softplus, Where, log1p_small
from minigrad.ops.limits import Activation
from minigrad.ops.op import NoOnnx, op
from minigrad.ops.reduce import axes_of
from minigrad.ops.views import cut
from minigrad.tensor import Tensor

SELU = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946  # Klambauer et al. 2017


def logistic(o, x):
    """1 / (1 + exp(-x)) without overflow."""
    return o.sigmoid(x)


@op
class Silu(Activation):
    """x · sigmoid(x)"""

    functional, onnx, ops_per_element = "silu", NoOnnx("Mul of Sigmoid"), 11

    def forward(self, o, x):
        return x * logistic(o, x)

    def dx(self, o, g, x):
        s = logistic(o, x)
        return g * (s * (x * (o.one - s) + o.one))

    @staticmethod
    def reference(x):
        return x / (1 + np.exp(-x))


@op
class Elu(Activation):
    """x · scale where it is positive, else alpha · scale · (exp(x · inner) - 1)"""

    alpha: float = 1.0
    scale: float = 1.0
    inner: float = 1.0
    onnx, domain, ops_per_element = "Elu", ("away",), 10

    def forward(self, o, x):
        low = o.minimum(x, o.zero) * o.lit(self.inner)
        below = o.tanh(low * o.lit(0.5)) * (o.exp(low) + o.one)              # expm1, whose loop is not vectorised
        return below * o.lit(self.alpha * self.scale) + o.positive(x) * o.lit(self.scale)

    def dx(self, o, g, x):
        slope = o.exp(o.minimum(x, o.zero) * o.lit(self.inner)) * o.lit(self.alpha * self.scale * self.inner)
        return g * o.where(x <= o.zero, slope, o.lit(self.scale))

    def reference(self, x):
        return np.where(x > 0, x, self.alpha * np.expm1(x * self.inner)) * self.scale


@op
class Softsign(Activation):
    """x / (1 + |x|)"""

    functional, onnx, domain, takes = "softsign", "Softsign", ("away",), "float"

    def forward(self, o, x):
        return x / (o.abs(x) + o.one)

    def dx(self, o, g, x):
        d = o.abs(x) + o.one
        return g / (d * d)

    @staticmethod
    def reference(x):
        return x / (1 + np.abs(x))


@op
class LogSigmoid(Activation):
    """log(sigmoid(x)) without overflow"""

    functional, onnx, ops_per_element = "logsigmoid", NoOnnx("Log of Sigmoid"), 18

    def forward(self, o, x):
        return o.minimum(x, o.zero) - log1p_small(o, o.exp(-o.abs(x)))

    def dx(self, o, g, x):
        return g * o.sigmoid(-x)

    @staticmethod
    def reference(x):
        return -np.log1p(np.exp(-x))


@op
class Mish(Activation):
    """x · tanh(softplus(x))"""

    functional, onnx, ops_per_element = "mish", "Mish", 30

    def gate(self, o, x):
        return o.tanh(o.maximum(x, o.zero) + log1p_small(o, o.exp(-o.abs(x))))

    def forward(self, o, x):
        return x * self.gate(o, x)

    def dx(self, o, g, x):
        t = self.gate(o, x)
        return g * (t + x * (o.one - t * t) * logistic(o, x))

    @staticmethod
    def reference(x):
        return x * np.tanh(np.log1p(np.exp(x)))


@op
class Tanhshrink(Activation):
    """x - tanh(x)"""

    functional, onnx, ops_per_element, takes = "tanhshrink", NoOnnx("Sub of Tanh"), 9, "float"

    def forward(self, o, x):
        return x - o.tanh(x)

    def dx(self, o, g, x):
        t = o.tanh(x)
        return g * (t * t)

    @staticmethod
    def reference(x):
        return x - np.tanh(x)


# ---- as functions --------------------------------------------------------------------------------
def elu(input: Tensor, alpha: float = 1.0) -> Tensor:
    """x where it is positive, else alpha · (exp(x) - 1)."""
    return function(Elu, float(alpha), 1.0, 1.0)(input)


def selu(input: Tensor) -> Tensor:
    """elu with the two constants that keep mean 0 and variance 1 (Klambauer et al. 2017)."""
    return function(Elu, *SELU, 1.0)(input)


def celu(input: Tensor, alpha: float = 1.0) -> Tensor:
    """x where it is positive, else alpha · (exp(x / alpha) - 1)."""
    if alpha == 0:
        raise ZeroDivisionError("celu: alpha must not be 0")
    return function(Elu, float(alpha), 1.0, 1.0 / alpha)(input)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta · x)) / beta without overflow; x itself where beta · x is above a `threshold` other than 20."""
    y = function(Softplus)(input) if beta == 1 else function(Softplus)(input * beta) / beta
    return y if threshold == 20 else function(Where)(input.detach() * beta > threshold, input, y)


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """The first half of the axis times the sigmoid of the second."""
    (axis,) = axes_of(dim, input.ndim, "glu") or (0,)
    n = input.shape[axis] if input.ndim else 1
    if n % 2:
        raise ShapeError(f"glu: the axis {dim} of {input.shape} has an odd size: it is halved")
    half = lambda part: cut(input, (*(slice(None),) * axis, part))
    return half(slice(0, n // 2)) * function(Sigmoid)(half(slice(n // 2, n)))
