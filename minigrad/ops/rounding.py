"""Rounding and remainders.  The steps have gradient 0; a remainder has slope 1.  After `exponential.py`."""

from __future__ import annotations

import numpy as np

from minigrad.ops.op import Elementwise, NoOnnx, Predicate, op


class Step(Elementwise):
    """A function that is constant almost everywhere."""

    domain = ("steps",)

    def dx(self, o, g):
        return g * o.zero


@op
class Floor(Step):
    """The largest integer that is not above x"""

    functional = method = "floor"
    onnx, reference = "Floor", np.floor

    def forward(self, o, x):
        return o.floor(x)


@op
class Ceil(Step):
    """The smallest integer that is not below x"""

    functional = method = "ceil"
    onnx, reference = "Ceil", np.ceil

    def forward(self, o, x):
        return o.ceil(x)


@op
class Rint(Step):
    """The nearest integer; halves go to the even one"""

    onnx, reference = "Round", np.rint

    def forward(self, o, x):
        return o.rint(x) if o.floating else o.copy(x)


@op
class Trunc(Step):
    """The integer part of x, towards 0"""

    functional = method = "trunc"
    onnx, reference = NoOnnx("Floor of Abs, with Sign"), np.trunc

    def forward(self, o, x):
        return o.trunc(x)


@op
class Frac(Elementwise):
    """x - trunc(x), with the sign of x"""

    functional = method = "frac"
    onnx, domain = NoOnnx("Sub of Floor"), ("steps",)

    def forward(self, o, x):
        return x - o.trunc(x)

    def dx(self, o, g):
        return g

    @staticmethod
    def reference(x):
        return np.fmod(x, 1)


@op
class Remainder(Elementwise):
    """a - b · floor(a / b): the remainder with the sign of b, as Python's %"""

    takes = "numbers"
    functional, onnx, reference, domain = "remainder", "Mod", np.remainder, ("steps", "positive")

    def forward(self, o, a, b):
        return o.remainder(a, b)

    def da(self, o, g):
        return g

    def db(self, o, g, a, b):
        return -(g * o.floor_divide(a, b))


@op
class Fmod(Elementwise):
    """a - b · trunc(a / b): the remainder with the sign of a, as C's"""

    takes = "numbers"
    numbers = "second"
    functional, onnx, reference, domain = "fmod", NoOnnx("Mod with fmod=1"), np.fmod, ("steps", "positive")

    def forward(self, o, a, b):
        return o.fmod(a, b)

    def da(self, o, g):
        return g

    def db(self, o, g, a, b):
        return -(g * o.trunc(a / b))


@op
class FloorDivide(Elementwise):
    """floor(a / b), as Python's //; gradient 0"""

    takes = "numbers"
    functional, onnx, reference, domain = "floor_divide", NoOnnx("Floor of Div"), np.floor_divide, ("steps", "positive")

    def forward(self, o, a, b):
        return o.floor_divide(a, b)

    def da(self, o, g):
        return g * o.zero

    db = da


@op
class IsFinite(Predicate):
    """Whether x is neither infinite nor NaN"""

    functional = method = "isfinite"
    onnx, reference = NoOnnx("Not of IsInf or IsNaN"), np.isfinite

    def forward(self, o, x):
        return o.isfinite(x)


@op
class IsInf(Predicate):
    """Whether x is infinite"""

    functional = method = "isinf"
    onnx, reference = "IsInf", np.isinf

    def forward(self, o, x):
        return o.isinf(x)
