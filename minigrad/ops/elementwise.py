"""Elementwise ops: each whole in its class.  To add one, add a class here: its function, method and tests come by
themselves."""
from __future__ import annotations

import numpy as np

from minigrad.errors import DTypeError
from minigrad.ops.op import Elementwise, NoOnnx, op


def no_truths(op: Elementwise, avals: tuple, way_out: str) -> tuple:
    """Refuse truth values where there is no meaning for them."""
    if any(a.dtype == bool for a in avals):
        shown = ", ".join(f"{a.dtype}{list(a.shape)}" for a in avals)
        raise DTypeError(f"{op.label}: not defined for truth values, got {shown}: {way_out}")
    return avals


def log1p_small(o, e):
    """log(1 + e) for e from 0 to 1, to the last digit: the logarithm of the rounded sum and what the rounding lost,
    both from vectorised loops, as NumPy's log1p is not."""
    u = o.one + e
    return o.log(u) + (e - (u - o.one)) / u


# ---- arithmetic ---------------------------------------------------------------------------------------------------
@op
class Add(Elementwise):
    """a + b"""

    functional, onnx, reference = "add", "Add", np.add

    def forward(self, o, a, b):
        return a + b

    def da(self, o, g):
        return g

    def db(self, o, g):
        return g


@op
class Sub(Elementwise):
    """a - b"""

    functional, onnx, reference = "sub", "Sub", np.subtract

    def forward(self, o, a, b):
        return a - b

    def da(self, o, g):
        return g

    def db(self, o, g):
        return -g

    def infer(self, *avals):
        return super().infer(*no_truths(self, avals, "use ^ or logical_xor"))


@op
class Mul(Elementwise):
    """a * b"""

    functional, onnx, reference = "mul", "Mul", np.multiply

    def forward(self, o, a, b):
        return a * b

    def da(self, o, g, b):
        return g * b

    def db(self, o, g, a):
        return g * a


@op
class Div(Elementwise):
    """a / b"""

    functional, onnx, reference, takes = "div", "Div", np.divide, "float"
    domain = ("normal", "away")

    def forward(self, o, a, b):
        return a / b

    def da(self, o, g, b):
        return g / b

    def db(self, o, g, b, y):
        return -(g * y / b)


@op
class Pow(Elementwise):
    """a ** b; where the exponent is 0 the gradient of a is 0, and where a is 0 and b ≥ 0 that of b is 0, as PyTorch"""

    functional, onnx, reference, domain, ops_per_element = "pow", "Pow", np.power, ("positive",), 10
    takes = "numbers"

    def forward(self, o, a, b):
        return a ** b

    def da(self, o, g, a, b):
        return o.where(b == o.zero, o.zero, g * (b * a ** o.where(b == o.zero, o.one, b - o.one)))

    def db(self, o, g, a, b, y):
        flat = (a == o.zero) & (b >= o.zero)
        return o.where(flat, o.zero, g * y * o.log(o.where(flat, o.one, a)))


@op
class Neg(Elementwise):
    """-x"""

    functional, method, onnx, reference = "neg", "neg", "Neg", np.negative

    def forward(self, o, x):
        return -x

    def dx(self, o, g):
        return -g

    def infer(self, *avals):
        return super().infer(*no_truths(self, avals, "use ~ or logical_not"))


@op
class Square(Elementwise):
    """x * x"""

    functional, method, onnx, reference = "square", "square", NoOnnx("written as Mul"), np.square

    def forward(self, o, x):
        return x * x

    def dx(self, o, g, x):
        return g * (x * o.lit(2))


@op
class Reciprocal(Elementwise):
    """1 / x"""

    functional = method = "reciprocal"
    onnx, reference, domain, takes = "Reciprocal", np.reciprocal, ("away",), "float"

    def forward(self, o, x):
        return o.one / x

    def dx(self, o, g, y):
        return -(g * (y * y))


@op
class Abs(Elementwise):
    """|x|, with gradient 0 at 0"""

    functional = method = "abs"
    onnx, reference, domain = "Abs", np.abs, ("away",)

    def forward(self, o, x):
        return o.abs(x)

    def dx(self, o, g, x):
        return g * o.sign(x)


@op
class Sign(Elementwise):
    """-1, 0 or 1, and 0 of NaN; its gradient is 0"""

    functional = method = "sign"
    onnx, reference, domain = "Sign", np.sign, ("away",)

    def forward(self, o, x):
        return o.where(o.isnan(x), o.zero, o.sign(x)) if o.floating else o.copy(x) if x.dtype == bool else o.sign(x)

    def dx(self, o, g):
        return g * o.zero


# ---- exponentials ---------------------------------------------------------------------------------------------------
@op
class Exp(Elementwise):
    """e to the x"""

    functional = method = "exp"
    onnx, reference, takes, ops_per_element = "Exp", np.exp, "float", 8

    def forward(self, o, x):
        return o.exp(x)

    def dx(self, o, g, y):
        return g * y


@op
class Log(Elementwise):
    """Natural logarithm"""

    functional = method = "log"
    onnx, reference, takes, domain, ops_per_element = "Log", np.log, "float", ("positive",), 8

    def forward(self, o, x):
        return o.log(x)

    def dx(self, o, g, x):
        return g / x


@op
class Log1p(Elementwise):
    """log(1 + x), exact for small x"""

    functional = method = "log1p"
    onnx, reference, takes, domain, ops_per_element = NoOnnx("Log of Add"), np.log1p, "float", ("positive",), 8

    def forward(self, o, x):
        return o.log1p(x)

    def dx(self, o, g, x):
        return g / (x + o.one)


@op
class Sqrt(Elementwise):
    """Square root"""

    functional = method = "sqrt"
    onnx, reference, takes, domain = "Sqrt", np.sqrt, "float", ("positive",)

    def forward(self, o, x):
        return o.sqrt(x)

    def dx(self, o, g, y):
        return g * o.lit(0.5) / y


@op
class Sin(Elementwise):
    """Sine of x in radians"""

    functional = method = "sin"
    onnx, reference, takes, ops_per_element = "Sin", np.sin, "float", 8

    def forward(self, o, x):
        return o.sin(x)

    def dx(self, o, g, x):
        return g * o.cos(x)


@op
class Cos(Elementwise):
    """Cosine of x in radians"""

    functional = method = "cos"
    onnx, reference, takes, ops_per_element = "Cos", np.cos, "float", 8

    def forward(self, o, x):
        return o.cos(x)

    def dx(self, o, g, x):
        return -(g * o.sin(x))


# ---- activations -------------------------------------------------------------------------------
@op
class Tanh(Elementwise):
    """Hyperbolic tangent"""

    functional = method = "tanh"
    onnx, reference, takes, ops_per_element = "Tanh", np.tanh, "float", 8

    def forward(self, o, x):
        return o.tanh(x)

    def dx(self, o, g, y):
        return g * (o.one - y * y)


@op
class Sigmoid(Elementwise):
    """1 / (1 + exp(-x))"""

    functional = method = "sigmoid"
    onnx, takes, ops_per_element = "Sigmoid", "float", 20

    def forward(self, o, x):
        return o.sigmoid(x)

    def dx(self, o, g, y):
        return g * (y * (o.one - y))

    @staticmethod
    def reference(x):
        return 1 / (1 + np.exp(-x))


@op
class Relu(Elementwise):
    """max(x, 0), with gradient 0 at 0; NaN stays NaN"""

    functional = method = "relu"
    onnx, domain = "Relu", ("away",)

    def forward(self, o, x):
        return o.positive(x)

    def dx(self, o, g, y):
        return g * (y != o.zero)                       # y is never below 0; a NaN lets the gradient pass, as PyTorch

    @staticmethod
    def reference(x):
        return np.where(x > 0, x, 0)


@op
class Softplus(Elementwise):
    """log(1 + exp(x)) without overflow"""

    functional, onnx, takes, ops_per_element = "softplus", "Softplus", "float", 18

    def forward(self, o, x):
        return o.maximum(x, o.zero) + log1p_small(o, o.exp(-o.abs(x)))

    def dx(self, o, g, x):
        return g * o.sigmoid(x)

    @staticmethod
    def reference(x):
        return np.log(1 + np.exp(x))


# ---- choosing ----------------------------------------------------------------------------------
@op
class Maximum(Elementwise):
    """The larger of a and b; equal values share the gradient; NaN wins, and both then get it whole"""

    numbers = "none"
    functional, onnx, reference, domain = "maximum", "Max", np.maximum, ("spread", "away")

    def forward(self, o, a, b):
        return o.maximum(a, b)

    def da(self, o, g, a, b):
        return g * (o.one - ((a < b) + (a == b) * o.lit(0.5)))

    def db(self, o, g, a, b):
        return g * (o.one - ((b < a) + (a == b) * o.lit(0.5)))


@op
class Minimum(Elementwise):
    """The smaller of a and b; equal values share the gradient; NaN wins, and both then get it whole"""

    numbers = "none"
    functional, onnx, reference, domain = "minimum", "Min", np.minimum, ("spread", "away")

    def forward(self, o, a, b):
        return o.minimum(a, b)

    def da(self, o, g, a, b):
        return g * (o.one - ((a > b) + (a == b) * o.lit(0.5)))

    def db(self, o, g, a, b):
        return g * (o.one - ((b > a) + (a == b) * o.lit(0.5)))


@op
class Where(Elementwise):
    """a where c holds, else b; the branch not taken gets gradient 0 even where it is NaN"""

    functional, onnx, reference, as_is, domain = (
        "where",
        "Where",
        staticmethod(np.where),
        ("c",),
        ("truth", "normal", "normal"),
    )

    def forward(self, o, c, a, b):
        return o.where(c, a, b)

    def da(self, o, g, c):
        return o.where(c, g, o.zero)

    def db(self, o, g, c):
        return o.where(c, o.zero, g)
