"""Bits of integers, and the operators & | ^ ~ << >>, which on truth values are the logical ones.  After
`rounding.py`."""

from __future__ import annotations

import numpy as np

from minigrad.dtype import bool_, is_float
from minigrad.errors import DTypeError
from minigrad.ops.compare import And, Not, NotEqual, Or
from minigrad.ops.doors import NUMBERS, function, literal
from minigrad.ops.op import Elementwise, op
from minigrad.tensor import Tensor


class Bits(Elementwise):
    """An op on the bits of integers; on truth values it is the logical one."""

    inline = False
    domain: tuple[str, ...] = ("whole",)

    def out_dtype(self, avals) -> np.dtype:
        return self.whole(avals[0]).dtype

    def whole(self, x):
        """`x`, or the refusal of floats."""
        dtype = getattr(x, "dtype", None)
        if dtype is not None and is_float(dtype):
            raise DTypeError(f"{self.label}: expected integers or truth values, got {dtype}")
        return x


@op
class BitAnd(Bits):
    """The bits that are set in both"""

    functional = method = "bitwise_and"
    onnx, reference = "BitwiseAnd", np.bitwise_and

    def forward(self, o, a, b):
        return o.bitwise_and(self.whole(a), self.whole(b))


@op
class BitOr(Bits):
    """The bits that are set in one or both"""

    functional = method = "bitwise_or"
    onnx, reference = "BitwiseOr", np.bitwise_or

    def forward(self, o, a, b):
        return o.bitwise_or(self.whole(a), self.whole(b))


@op
class BitXor(Bits):
    """The bits that are set in one of the two alone"""

    functional = method = "bitwise_xor"
    onnx, reference = "BitwiseXor", np.bitwise_xor

    def forward(self, o, a, b):
        return o.bitwise_xor(self.whole(a), self.whole(b))


@op
class BitNot(Bits):
    """The bits that are not set; of a truth value its opposite"""

    functional = method = "bitwise_not"
    onnx, reference = "BitwiseNot", np.invert

    def forward(self, o, x):
        return o.bitwise_not(self.whole(x))


class Shift(Bits):
    """A shift of bits; refused for truth values."""

    domain: tuple[str, ...] = ("whole", "few")

    def numbers(self, a):
        """`a`, or the refusal."""
        if getattr(a, "dtype", None) == bool_:
            raise DTypeError(f"{self.label}: a truth value has no bits to shift. Convert with .int()")
        return self.whole(a)


@op
class ShiftLeft(Shift):
    """The bits of a moved up by b places"""

    functional = method = "bitwise_left_shift"
    onnx, reference = "BitShift", np.left_shift

    def forward(self, o, a, b):
        return o.left_shift(self.numbers(a), self.whole(b))


@op
class ShiftRight(Shift):
    """The bits of a moved down by b places"""

    functional = method = "bitwise_right_shift"
    onnx, reference = "BitShift", np.right_shift

    def forward(self, o, a, b):
        return o.right_shift(self.numbers(a), self.whole(b))


# ---- the operators ------------------------------------------------------------------------------------------------
def _either(truths: type, bits: type):
    """The operator of truth values, or of the bits of integers."""
    of_truths, of_bits = function(truths), function(bits)

    def method(a: Tensor, b):
        if not isinstance(b, (Tensor, *NUMBERS)):
            return NotImplemented
        b = literal(b, a)
        return (of_truths if a.dtype == bool_ and b.dtype == bool_ else of_bits)(a, b)

    return method


def _shift(cls: type):
    f = function(cls)
    return lambda a, b: f(a, literal(b, a)) if isinstance(b, (Tensor, *NUMBERS)) else NotImplemented


def invert(x: Tensor) -> Tensor:
    """not x, of truth values; of integers every bit."""
    return function(Not if x.dtype == bool_ else BitNot)(x)


AND, OR, XOR = _either(And, BitAnd), _either(Or, BitOr), _either(NotEqual, BitXor)
OPERATORS = {
    "__and__": AND,
    "__rand__": AND,
    "__or__": OR,
    "__ror__": OR,
    "__xor__": XOR,
    "__rxor__": XOR,
    "__invert__": invert,
    "__lshift__": _shift(ShiftLeft),
    "__rshift__": _shift(ShiftRight),
}
