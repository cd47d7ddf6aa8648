"""Angles: trigonometric and hyperbolic functions and their inverses.  After `compare.py`; sin, cos and tanh are
in `elementwise.py`."""

from __future__ import annotations

import numpy as np

from minigrad.ops.op import Elementwise, NoOnnx, op


@op
class Tan(Elementwise):
    """Tangent of x in radians"""

    functional = method = "tan"
    onnx, reference, takes, ops_per_element, domain = "Tan", np.tan, "float", 8, ("unit",)

    def forward(self, o, x):
        return o.tan(x)

    def dx(self, o, g, y):
        return g * (o.one + y * y)


@op
class Asin(Elementwise):
    """The angle in [-π/2, π/2] whose sine is x; NaN outside [-1, 1]"""

    functional = method = "asin"
    onnx, reference, takes, ops_per_element, domain = "Asin", np.arcsin, "float", 8, ("unit",)

    def forward(self, o, x):
        return o.asin(x)

    def dx(self, o, g, x):
        return g / o.sqrt(o.one - x * x)


@op
class Acos(Elementwise):
    """The angle in [0, π] whose cosine is x; NaN outside [-1, 1]"""

    functional = method = "acos"
    onnx, reference, takes, ops_per_element, domain = "Acos", np.arccos, "float", 8, ("unit",)

    def forward(self, o, x):
        return o.acos(x)

    def dx(self, o, g, x):
        return -(g / o.sqrt(o.one - x * x))


@op
class Atan(Elementwise):
    """The angle in (-π/2, π/2) whose tangent is x"""

    functional = method = "atan"
    onnx, reference, takes, ops_per_element = "Atan", np.arctan, "float", 8

    def forward(self, o, x):
        return o.atan(x)

    def dx(self, o, g, x):
        return g / (o.one + x * x)


@op
class Atan2(Elementwise):
    """The angle of the point (b, a), in (-π, π]; gradient 0 at the origin"""

    numbers = "none"
    functional = method = "atan2"
    onnx, reference, takes, ops_per_element, domain = NoOnnx("Atan with cases"), np.arctan2, "float", 10, ("away",)

    def forward(self, o, a, b):
        return o.atan2(a, b)

    def share(self, o, g, a, b):
        """g / (a² + b²), 0 where that is 0."""
        r = a * a + b * b
        return o.where(r == o.zero, o.zero, g / o.where(r == o.zero, o.one, r))

    def da(self, o, g, a, b):
        return self.share(o, g, a, b) * b

    def db(self, o, g, a, b):
        return -(self.share(o, g, a, b) * a)


@op
class Sinh(Elementwise):
    """Hyperbolic sine"""

    functional = method = "sinh"
    onnx, reference, takes, ops_per_element = "Sinh", np.sinh, "float", 8

    def forward(self, o, x):
        return o.sinh(x)

    def dx(self, o, g, x):
        return g * o.cosh(x)


@op
class Cosh(Elementwise):
    """Hyperbolic cosine"""

    functional = method = "cosh"
    onnx, reference, takes, ops_per_element = "Cosh", np.cosh, "float", 8

    def forward(self, o, x):
        return o.cosh(x)

    def dx(self, o, g, x):
        return g * o.sinh(x)


@op
class Asinh(Elementwise):
    """The x whose hyperbolic sine is given"""

    functional = method = "asinh"
    onnx, reference, takes, ops_per_element = "Asinh", np.arcsinh, "float", 10

    def forward(self, o, x):
        return o.asinh(x)

    def dx(self, o, g, x):
        return g / o.sqrt(x * x + o.one)


@op
class Acosh(Elementwise):
    """The x ≥ 0 whose hyperbolic cosine is given; NaN below 1"""

    functional = method = "acosh"
    onnx, takes, ops_per_element, domain = "Acosh", "float", 10, ("above",)
    reference = np.arccosh

    def forward(self, o, x):
        return o.acosh(x)

    def dx(self, o, g, x):
        return g / o.sqrt(x * x - o.one)


@op
class Atanh(Elementwise):
    """The x whose hyperbolic tangent is given; NaN outside [-1, 1]"""

    functional = method = "atanh"
    onnx, reference, takes, ops_per_element, domain = "Atanh", np.arctanh, "float", 10, ("unit",)

    def forward(self, o, x):
        return o.atanh(x)

    def dx(self, o, g, x):
        return g / (o.one - x * x)


@op
class Hypot(Elementwise):
    """√(a² + b²) without overflow; NaN gradient at the origin, as PyTorch"""

    numbers = "none"
    functional = method = "hypot"
    onnx, reference, takes, domain = NoOnnx("Sqrt of Add"), np.hypot, "float", ("away",)

    def forward(self, o, a, b):
        return o.hypot(a, b)

    def da(self, o, g, a, y):
        return g * (a / y)

    def db(self, o, g, b, y):
        return g * (b / y)
