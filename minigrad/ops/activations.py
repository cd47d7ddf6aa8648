"""Smooth activations.  relu, sigmoid, tanh and softplus are in `elementwise.py`, those with corners in `limits.py`."""

from __future__ import annotations

import math

import numpy as np

from minigrad.errors import ShapeError
from minigrad.ops.doors import function
from minigrad.ops.elementwise import Sigmoid, Softplus
from minigrad.ops.limits import Activation
from minigrad.ops.op import NoOnnx, op
from minigrad.ops.reduce import axes_of
from minigrad.ops.views import cut
from minigrad.tensor import Tensor

SELU = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946  # Klambauer et al. 2017


def logistic(o, x):
    """1 / (1 + exp(-x)) without overflow."""
    return (o.tanh(x * o.lit(0.5)) + o.one) * o.lit(0.5)


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
class Gelu(Activation):
    """x · Φ(x), with the normal distribution Φ"""

    onnx, ops_per_element = "Gelu", 34

    def share(self, o, x):
        return (o.erf(x * o.lit(math.sqrt(0.5))) + o.one) * o.lit(0.5)

    def forward(self, o, x):
        return x * self.share(o, x)

    def dx(self, o, g, x):
        density = o.exp(x * x * o.lit(-0.5)) * o.lit(1 / math.sqrt(2 * math.pi))
        return g * (self.share(o, x) + x * density)

    @staticmethod
    def reference(x):
        return x * (1 + np.vectorize(math.erf, otypes=["f8"])(x / math.sqrt(2))) / 2


@op
class GeluTanh(Activation):
    """x · (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2, close to gelu"""

    onnx, ops_per_element = NoOnnx("Gelu with approximate='tanh'"), 18

    def inner(self, o, x):
        return x * (x * x * o.lit(0.044715 * math.sqrt(2 / math.pi)) + o.lit(math.sqrt(2 / math.pi)))

    def forward(self, o, x):
        return x * (o.tanh(self.inner(o, x)) + o.one) * o.lit(0.5)

    def dx(self, o, g, x):
        t = o.tanh(self.inner(o, x))
        slope = x * x * o.lit(3 * 0.044715 * math.sqrt(2 / math.pi)) + o.lit(math.sqrt(2 / math.pi))
        return g * ((t + o.one + x * (o.one - t * t) * slope) * o.lit(0.5))

    @staticmethod
    def reference(x):
        return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


@op
class Elu(Activation):
    """x · scale where it is positive, else alpha · scale · (exp(x · inner) - 1)"""

    alpha: float = 1.0
    scale: float = 1.0
    inner: float = 1.0
    onnx, domain, ops_per_element = "Elu", ("away",), 10

    def forward(self, o, x):
        low = o.expm1(o.minimum(x, o.zero) * o.lit(self.inner)) * o.lit(self.alpha * self.scale)
        return o.where(x <= o.zero, low, x * o.lit(self.scale))

    def dx(self, o, g, x):
        slope = o.exp(o.minimum(x, o.zero) * o.lit(self.inner)) * o.lit(self.alpha * self.scale * self.inner)
        return g * o.where(x <= o.zero, slope, o.lit(self.scale))

    def reference(self, x):
        return np.where(x > 0, x, self.alpha * np.expm1(x * self.inner)) * self.scale


@op
class Softsign(Activation):
    """x / (1 + |x|)"""

    functional, onnx, domain = "softsign", "Softsign", ("away",)

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
        return o.minimum(x, o.zero) - o.log1p(o.exp(-o.abs(x)))

    def dx(self, o, g, x):
        return g * ((o.one - o.tanh(x * o.lit(0.5))) * o.lit(0.5))

    @staticmethod
    def reference(x):
        return -np.log1p(np.exp(-x))


@op
class Mish(Activation):
    """x · tanh(softplus(x))"""

    functional, onnx, ops_per_element = "mish", "Mish", 30

    def gate(self, o, x):
        return o.tanh(o.maximum(x, o.zero) + o.log1p(o.exp(-o.abs(x))))

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

    functional, onnx, ops_per_element = "tanhshrink", NoOnnx("Sub of Tanh"), 9

    def forward(self, o, x):
        return x - o.tanh(x)

    def dx(self, o, g, x):
        t = o.tanh(x)
        return g * (t * t)

    @staticmethod
    def reference(x):
        return x - np.tanh(x)


# ---- as functions --------------------------------------------------------------------------------
def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """x · Φ(x), exactly or by a tanh (Hendrycks and Gimpel 2016)."""
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu: approximate {approximate!r} is not one of 'none', 'tanh'")
    return function(Gelu if approximate == "none" else GeluTanh)(input)


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
    """log(1 + exp(beta · x)) / beta without overflow.  `threshold` is PyTorch's and not needed."""
    return function(Softplus)(input) if beta == 1 else function(Softplus)(input * beta) / beta


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """The first half of the axis times the sigmoid of the second."""
    (axis,) = axes_of(dim, input.ndim, "glu") or (0,)
    n = input.shape[axis] if input.ndim else 1
    if n % 2:
        raise ShapeError(f"glu: the axis {dim} of {input.shape} has an odd size: it is halved")
    half = lambda part: cut(input, (*(slice(None),) * axis, part))
    return half(slice(0, n // 2)) * function(Sigmoid)(half(slice(n // 2, n)))
