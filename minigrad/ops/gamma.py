"""The gamma function's logarithm and its derivatives, and logarithms of the normal distribution.  After
`exponential.py`."""

from __future__ import annotations

import math

import numpy as np

from minigrad.errors import ArgumentError
from minigrad.ops.doors import function, literal
from minigrad.ops.elementwise import Log1p, Where
from minigrad.ops.exponential import Erfc, Erfinv, Xlogy
from minigrad.ops.op import Elementwise, NoOnnx, op
from minigrad.tensor import Tensor


@op
class Lgamma(Elementwise):
    """log |gamma(x)|; infinite at 0, -1, -2, …"""

    functional = method = "lgamma"
    onnx, takes, ops_per_element, domain = NoOnnx("no such operator"), "float", 100, ("positive",)
    reference = staticmethod(np.vectorize(math.lgamma, otypes=["f8"]))

    def forward(self, o, x):
        return o.lgamma(x)

    def dx(self, o, g, x):
        return g * o.digamma(x)


@op
class Digamma(Elementwise):
    """The derivative of log gamma(x)"""

    functional = method = "digamma"
    onnx, takes, ops_per_element, domain = NoOnnx("no such operator"), "float", 100, ("positive",)

    def forward(self, o, x):
        return o.digamma(x)

    def dx(self, o, g, x):
        return g * o.polygamma(1, x)


@op
class Polygamma(Elementwise):
    """The n-th derivative of digamma, n from 1"""

    n: int = 1
    onnx, takes, ops_per_element, domain = NoOnnx("no such operator"), "float", 200, ("positive",)

    def forward(self, o, x):
        return o.polygamma(self.n, x)

    def dx(self, o, g, x):
        return g * o.polygamma(self.n + 1, x)


@op
class Erfcx(Elementwise):
    """exp(x²) erfc(x), which decays only as 1 / x"""

    functional = "erfcx"
    onnx, takes, ops_per_element, domain = NoOnnx("no such operator"), "float", 60, ("normal",)

    def forward(self, o, x):
        return o.erfcx(x)

    def dx(self, o, g, x, y):
        return g * (x * y * o.lit(2) - o.lit(2 / math.sqrt(math.pi)))

    @staticmethod
    def reference(x):
        return np.exp(x * x) * Erfc.reference(x)


@op
class LogNdtr(Elementwise):
    """The logarithm of the standard normal distribution function, exact far to the left"""

    functional = "log_ndtr"
    onnx, takes, ops_per_element, domain = NoOnnx("no such operator"), "float", 80, ("normal",)

    def forward(self, o, x):
        left = x < -o.one
        far = o.log(o.erfcx(-o.minimum(x, -o.one) * o.lit(math.sqrt(0.5))) * o.lit(0.5)) - x * x * o.lit(0.5)
        return o.where(left, far, o.log1p(-o.erfc(o.maximum(x, -o.one) * o.lit(math.sqrt(0.5))) * o.lit(0.5)))

    def dx(self, o, g, x, y):
        return g * (o.exp(-(x * x * o.lit(0.5)) - y) * o.lit(1 / math.sqrt(2 * math.pi)))

    @staticmethod
    def reference(x):
        return np.log(0.5 * Erfc.reference(-x / math.sqrt(2)))


# ---- as functions ------------------------------------------------------------------------------
def polygamma(n: int, input: Tensor) -> Tensor:
    """The n-th derivative of `digamma`."""
    if n < 0:
        raise ArgumentError(f"polygamma: n must not be negative, got {n}")
    return function(Polygamma, int(n))(input) if n else function(Digamma)(input)


def mvlgamma(input: Tensor, p: int) -> Tensor:
    """log of the multivariate gamma function of dimension p: Σ log gamma(x - j / 2), and a constant."""
    if p < 1:
        raise ArgumentError(f"mvlgamma: p must be at least 1, got {p}")
    y = function(Lgamma)(input)
    for j in range(1, p):
        y = y + function(Lgamma)(input - j / 2)
    return y + p * (p - 1) / 4 * math.log(math.pi)


def ndtr(input: Tensor) -> Tensor:
    """The standard normal distribution function: erfc(-x / √2) / 2."""
    return function(Erfc)(input * -math.sqrt(0.5)) * 0.5


def ndtri(input: Tensor) -> Tensor:
    """The x whose `ndtr` is given; exact to 1e-16 of the probability."""
    return function(Erfinv)(input * 2 - 1) * math.sqrt(2)


def entr(input: Tensor) -> Tensor:
    """-x log x, and minus infinity below 0."""
    safe = function(Where)(input < 0, literal(1.0, input), input)
    return function(Where)(input < 0, literal(-math.inf, safe), -function(Xlogy)(safe, safe))


def xlog1py(input: Tensor, other) -> Tensor:
    """a log(1 + b), and 0 where a is 0."""
    other = literal(other, input)
    still = (input == 0) & (other == other)
    y = input * function(Log1p)(function(Where)(still, literal(0.0, other), other))
    return function(Where)(still, literal(0.0, y), y)
