"""Comparisons and truth values: elementwise ops whose result is bool and which have no gradient."""
from __future__ import annotations

import numpy as np

from minigrad.ops.op import NoOnnx, Predicate, op


@op
class Greater(Predicate):
    """a > b"""

    numbers = "second"
    functional, method, onnx, reference = "gt", "gt", "Greater", np.greater

    def forward(self, o, a, b):
        return a > b


@op
class GreaterEqual(Predicate):
    """a >= b"""

    numbers = "second"
    functional, method, onnx, reference = "ge", "ge", "GreaterOrEqual", np.greater_equal

    def forward(self, o, a, b):
        return a >= b


@op
class Less(Predicate):
    """a < b"""

    numbers = "second"
    functional, method, onnx, reference = "lt", "lt", "Less", np.less

    def forward(self, o, a, b):
        return a < b


@op
class LessEqual(Predicate):
    """a <= b"""

    numbers = "second"
    functional, method, onnx, reference = "le", "le", "LessOrEqual", np.less_equal

    def forward(self, o, a, b):
        return a <= b


@op
class Equal(Predicate):
    """a == b"""

    numbers = "second"
    functional, method, onnx, reference = "eq", "eq", "Equal", np.equal

    def forward(self, o, a, b):
        return a == b


@op
class NotEqual(Predicate):
    """a != b"""

    numbers = "second"
    functional, method, onnx, reference = "ne", "ne", NoOnnx("Not of Equal"), np.not_equal

    def forward(self, o, a, b):
        return a != b


@op
class And(Predicate):
    """a and b, of truth values"""

    numbers = "none"
    functional, method, onnx, reference, domain = "logical_and", "logical_and", "And", np.logical_and, ("truth",)

    def forward(self, o, a, b):
        return (a != o.zero) & (b != o.zero)


@op
class Or(Predicate):
    """a or b, of truth values"""

    numbers = "none"
    functional, method, onnx, reference, domain = "logical_or", "logical_or", "Or", np.logical_or, ("truth",)

    def forward(self, o, a, b):
        return (a != o.zero) | (b != o.zero)


@op
class Not(Predicate):
    """not x, of truth values"""

    functional, method, onnx, reference, domain = "logical_not", "logical_not", "Not", np.logical_not, ("truth",)

    def forward(self, o, x):
        return o.logical_not(x)


@op
class IsNan(Predicate):
    """Whether x is NaN"""

    functional = method = "isnan"
    onnx, reference = "IsNaN", np.isnan

    def forward(self, o, x):
        return o.isnan(x)
