"""More elementwise functions, most of two numbers: signs, extremes that pass over NaN, divisors.

After `rounding.py`."""

from __future__ import annotations

import math

import numpy as np

from minigrad.aval import Aval
from minigrad.dtype import bool_, category, float64, int32, is_float
from minigrad.errors import DTypeError
from minigrad.ops.doors import function, literal
from minigrad.ops.elementwise import Mul, Pow, Sign
from minigrad.ops.op import Elementwise, NoOnnx, Predicate, cast, op
from minigrad.tensor import Tensor


@op
class Copysign(Elementwise):
    """|a| with the sign of b"""

    functional = method = "copysign"
    numbers = "second"
    onnx, reference, takes, domain = NoOnnx("Abs and Sign"), np.copysign, "float", ("away",)

    def forward(self, o, a, b):
        return o.copysign(a, b)

    def da(self, o, g, a, y):
        return o.where(a == o.zero, o.zero, g * o.sign(a) * o.sign(y))

    def db(self, o, g):
        return g * o.zero


@op
class Fmax(Elementwise):
    """The larger of two; a NaN counts for nothing"""

    numbers = "none"
    functional = method = "fmax"
    onnx, reference, domain = NoOnnx("Max with IsNaN"), np.fmax, ("away", "spread")

    def forward(self, o, a, b):
        return o.fmax(a, b)

    def da(self, o, g, a, b):
        return o.where((a >= b) | o.isnan(b), g, o.zero)

    def db(self, o, g, a, b):
        return o.where((a >= b) | o.isnan(b), o.zero, g)


@op
class Fmin(Elementwise):
    """The smaller of two; a NaN counts for nothing"""

    numbers = "none"
    functional = method = "fmin"
    onnx, reference, domain = NoOnnx("Min with IsNaN"), np.fmin, ("away", "spread")

    def forward(self, o, a, b):
        return o.fmin(a, b)

    def da(self, o, g, a, b):
        return o.where((a <= b) | o.isnan(b), g, o.zero)

    def db(self, o, g, a, b):
        return o.where((a <= b) | o.isnan(b), o.zero, g)


@op
class LogAddExp2(Elementwise):
    """log2(2ᵃ + 2ᵇ) without overflow"""

    numbers = "none"
    functional = method = "logaddexp2"
    onnx, reference, takes, ops_per_element = NoOnnx("ReduceLogSumExp"), np.logaddexp2, "float", 20

    def forward(self, o, a, b):
        return o.logaddexp2(a, b)

    def da(self, o, g, a, y):
        return g * o.exp((a - y) * o.lit(math.log(2)))

    def db(self, o, g, b, y):
        return g * o.exp((b - y) * o.lit(math.log(2)))


@op
class Heaviside(Elementwise):
    """0 below 0, 1 above, and `b` at 0; no gradient"""

    numbers = "none"
    functional = method = "heaviside"
    onnx, reference, domain = NoOnnx("Where of Greater"), np.heaviside, ("away", "normal")

    def forward(self, o, a, b):
        return o.where(a == o.zero, b, (a > o.zero) * o.one)


@op
class Nextafter(Elementwise):
    """The next number after a towards b"""

    numbers = "none"
    functional = method = "nextafter"
    onnx, reference, takes = NoOnnx("no such operator"), np.nextafter, "only float"

    def forward(self, o, a, b):
        return o.nextafter(a, b)

    def da(self, o, g, a, b):
        return o.where(a == b, o.zero, g)

    def db(self, o, g):
        return g * o.zero


@op
class Signbit(Predicate):
    """Whether the sign is minus, of -0.0 too"""

    functional = method = "signbit"
    onnx, reference = NoOnnx("Less, but for -0.0"), np.signbit

    def forward(self, o, x):
        return o.signbit(x) if o.floating else x < o.zero


class Divisors(Elementwise):
    """An op on integers alone."""

    inline = False
    numbers = "none"
    domain = ("whole",)

    def whole(self, *xs):
        for x in xs:
            if category(x.dtype) != 1:
                raise DTypeError(f"{self.label}: expected integers, got {x.dtype}")
        return xs

    def out_dtype(self, avals) -> np.dtype:
        return self.whole(*avals)[0].dtype


@op
class Gcd(Divisors):
    """The greatest common divisor"""

    functional = method = "gcd"
    onnx, reference = NoOnnx("no such operator"), np.gcd

    def forward(self, o, a, b):
        return o.gcd(*self.whole(a, b))


@op
class Lcm(Divisors):
    """The least common multiple"""

    functional = method = "lcm"
    onnx, reference = NoOnnx("no such operator"), np.lcm

    def forward(self, o, a, b):
        return o.lcm(*self.whole(a, b))


# ---- as functions ------------------------------------------------------------------------------
def sgn(input: Tensor) -> Tensor:
    """-1, 0 or 1, as `sign`."""
    return function(Sign)(input)


def positive(input: Tensor) -> Tensor:
    """The tensor itself."""
    if input.dtype == bool_:
        raise DTypeError("positive: not defined for truth values")
    return input


def deg2rad(input: Tensor) -> Tensor:
    """Degrees as radians."""
    return input * (math.pi / 180)


def rad2deg(input: Tensor) -> Tensor:
    """Radians as degrees."""
    return input * (180 / math.pi)


def float_power(input, exponent) -> Tensor:
    """input ** exponent in float64."""
    wide = lambda v: cast(v, float64) if isinstance(v, Tensor) else v  # noqa: E731
    a, b = wide(input), wide(exponent)
    return function(Pow)(a if isinstance(a, Tensor) else literal(float(a), b), b)


def ldexp(input: Tensor, other: Tensor) -> Tensor:
    """input · 2 to the `other`."""
    return function(Mul)(input, function(Pow)(literal(2.0, other), other))


def frexp(input: Tensor) -> tuple[Tensor, Tensor]:
    """(mantissa in ±[0.5, 1), int32 exponent): input = mantissa · 2 to the exponent."""
    if not is_float(input.dtype):
        raise DTypeError(f"frexp: expected a float tensor, got {input.dtype}")
    o = input.o
    exponent = Tensor(o.cast(o.xp.frexp(input.array)[1], int32) if o.eager else Aval(input.shape, int32))
    half = (exponent * -1) // 2                              # in two steps: 2 to the whole may not be a number
    return input * two_to(half, input) * two_to(exponent * -1 - half, input), exponent


def two_to(exponent: Tensor, like: Tensor) -> Tensor:
    return function(Pow)(literal(2.0, like), cast(exponent, like.dtype))
