"""More exponentials and logarithms: other bases, erf, and forms that stay exact near 0 or do not overflow.
After `trig.py`."""

from __future__ import annotations

import math

import numpy as np

from minigrad.ops.doors import function
from minigrad.ops.op import Elementwise, NoOnnx, op
from minigrad.tensor import Tensor

LN2, LN10, SQRT_PI = math.log(2), math.log(10), math.sqrt(math.pi)


@op
class Exp2(Elementwise):
    """2 to the x"""

    functional = method = "exp2"
    onnx, reference, takes, ops_per_element = NoOnnx("Pow"), np.exp2, "float", 8

    def forward(self, o, x):
        return o.exp2(x)

    def dx(self, o, g, y):
        return g * (y * o.lit(LN2))


@op
class Expm1(Elementwise):
    """exp(x) - 1, exact for small x"""

    functional = method = "expm1"
    onnx, reference, takes, ops_per_element = NoOnnx("Exp and Sub"), np.expm1, "float", 8

    def forward(self, o, x):
        return o.expm1(x)

    def dx(self, o, g, y):
        return g * (y + o.one)


@op
class Log2(Elementwise):
    """Logarithm to the base 2"""

    functional = method = "log2"
    onnx, reference, takes, domain, ops_per_element = NoOnnx("Log and Div"), np.log2, "float", ("positive",), 8

    def forward(self, o, x):
        return o.log2(x)

    def dx(self, o, g, x):
        return g / (x * o.lit(LN2))


@op
class Log10(Elementwise):
    """Logarithm to the base 10"""

    functional = method = "log10"
    onnx, reference, takes, domain, ops_per_element = NoOnnx("Log and Div"), np.log10, "float", ("positive",), 8

    def forward(self, o, x):
        return o.log10(x)

    def dx(self, o, g, x):
        return g / (x * o.lit(LN10))


@op
class Rsqrt(Elementwise):
    """1 / √x"""

    functional = method = "rsqrt"
    onnx, takes, domain = NoOnnx("Reciprocal of Sqrt"), "float", ("positive",)

    def forward(self, o, x):
        return o.one / o.sqrt(x)

    def dx(self, o, g, y):
        return g * (y * y * y * o.lit(-0.5))

    @staticmethod
    def reference(x):
        return x**-0.5


@op
class Erf(Elementwise):
    """The error function 2/√π ∫₀ˣ exp(-t²) dt"""

    functional = method = "erf"
    onnx, takes, ops_per_element, reference = "Erf", "float", 30, np.vectorize(math.erf, otypes=["f8"])

    def forward(self, o, x):
        return o.erf(x)

    def dx(self, o, g, x):
        return g * (o.exp(-(x * x)) * o.lit(2 / SQRT_PI))


@op
class Erfc(Elementwise):
    """1 - erf(x), without losing the tail"""

    functional = method = "erfc"
    onnx, takes, ops_per_element, reference = NoOnnx("Erf and Sub"), "float", 30, np.vectorize(math.erfc, otypes=["f8"])

    def forward(self, o, x):
        return o.erfc(x)

    def dx(self, o, g, x):
        return g * (o.exp(-(x * x)) * o.lit(-2 / SQRT_PI))


@op
class Erfinv(Elementwise):
    """The x whose error function is given; NaN outside [-1, 1]"""

    functional = method = "erfinv"
    onnx, takes, ops_per_element, domain = NoOnnx("no such operator"), "float", 100, ("unit",)

    def forward(self, o, x):
        return o.erfinv(x)

    def dx(self, o, g, y):
        return g * (o.exp(y * y) * o.lit(SQRT_PI / 2))


@op
class LogAddExp(Elementwise):
    """log(exp(a) + exp(b)) without overflow"""

    numbers = "none"
    functional = method = "logaddexp"
    onnx, reference, takes, ops_per_element = NoOnnx("ReduceLogSumExp"), np.logaddexp, "float", 20

    def forward(self, o, a, b):
        return o.logaddexp(a, b)

    def da(self, o, g, a, y):
        return g * o.exp(a - y)

    def db(self, o, g, b, y):
        return g * o.exp(b - y)


@op
class Xlogy(Elementwise):
    """a · log(b), and 0 where a is 0"""

    functional = method = "xlogy"
    onnx, takes, ops_per_element, domain = NoOnnx("Mul and Log with Where"), "float", 10, ("away", "positive")

    def forward(self, o, a, b):
        still = (a == o.zero) & (b == b)  # 0 · log(NaN) stays NaN
        return o.where(still, o.zero, a * o.log(o.where(still, o.one, b)))

    def da(self, o, g, a, b):
        still = (a == o.zero) & (b <= o.zero)
        return o.where(still, o.zero, g * o.log(o.where(still, o.one, b)))

    def db(self, o, g, a, b):
        return g * (a / b)

    @staticmethod
    def reference(a, b):
        return a * np.log(b)


@op
class Logit(Elementwise):
    """log(x / (1 - x)), the inverse of sigmoid"""

    onnx, takes, ops_per_element, domain = NoOnnx("Log of Div"), "float", 10, ("probability",)

    def forward(self, o, x):
        inside = (x >= o.zero) & (x <= o.one)
        return o.log(o.where(inside, x / (o.one - x), o.lit(-1)))

    def dx(self, o, g, x):
        inside = (x >= o.zero) & (x <= o.one)
        return o.where(inside, g / (x * (o.one - x)), o.lit(math.nan))

    @staticmethod
    def reference(x):
        return np.log(x) - np.log1p(-x)


@op
class LogitWithin(Elementwise):
    """logit of x limited to [eps, 1 - eps]; beyond the gradient is 0"""

    eps: float = 1e-6
    onnx, takes, ops_per_element, domain = NoOnnx("Log of Div"), "float", 10, ("probability",)

    def forward(self, o, x):
        z = o.minimum(o.maximum(x, o.lit(self.eps)), o.lit(1 - self.eps))
        return o.log(z / (o.one - z))

    def dx(self, o, g, x):
        inside = (x >= o.lit(self.eps)) & (x <= o.lit(1 - self.eps))
        safe = o.where(inside, x, o.lit(0.5))
        return o.where(inside, g / (safe * (o.one - safe)), o.zero)

    @staticmethod
    def reference(x):
        return np.log(x) - np.log1p(-x)


def logit(input: Tensor, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), of x limited to [eps, 1 - eps] where `eps` is given."""
    return function(Logit)(input) if eps is None else function(LogitWithin, float(eps))(input)


@op
class Sinc(Elementwise):
    """sin(πx) / (πx), and 1 at 0"""

    functional = method = "sinc"
    onnx, takes, ops_per_element, domain = NoOnnx("Sin and Div with Where"), "float", 10, ("away",)
    reference = staticmethod(np.sinc)

    def forward(self, o, x):
        z = o.where(x == o.zero, o.one, x) * o.lit(math.pi)
        return o.where(x == o.zero, o.one, o.sin(z) / z)

    def dx(self, o, g, x):
        near = o.abs(x) < o.lit(1e-3)                            # there the difference below would lose its digits
        some = o.where(near, o.one, x)
        z, square = some * o.lit(math.pi), x * x * o.lit(math.pi**2)
        series = x * o.lit(-(math.pi**2) / 3) * (o.one - square / o.lit(10) + square * square / o.lit(280))
        return g * o.where(near, series, (o.cos(z) * z - o.sin(z)) / (z * some))
