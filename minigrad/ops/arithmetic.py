"""Arithmetic of several steps under one name: sums with a factor, divisions that round, interpolation.  After
`pairs.py`."""

from __future__ import annotations

from minigrad.dtype import bool_, is_float
from minigrad.errors import ArgumentError, DTypeError
from minigrad.ops.doors import function, literal, operand
from minigrad.ops.elementwise import Add, Div, Sub
from minigrad.ops.op import cast
from minigrad.ops.rounding import FloorDivide, Fmod, Remainder, Rint, Trunc
from minigrad.tensor import Tensor

remainder, fmod, floor_divide, divide = (function(cls) for cls in (Remainder, Fmod, FloorDivide, Div))


# ---- rounding and division ------------------------------------------------------------------------------------------
def round(input: Tensor, *, decimals: int = 0) -> Tensor:
    """The nearest integer, or number with so many decimals; halves go to the even one."""
    if not decimals:
        return function(Rint)(input)
    scale = float(10 ** abs(decimals))
    return function(Rint)(input * scale) / scale if decimals > 0 else function(Rint)(input / scale) * scale


def div(input: Tensor, other, *, rounding_mode: str | None = None) -> Tensor:
    """input / other; rounding_mode "trunc" goes towards 0, "floor" down."""
    if rounding_mode not in (None, "trunc", "floor"):
        raise ArgumentError(f"div: rounding_mode {rounding_mode!r} is not one of None, 'trunc', 'floor'")
    if not isinstance(input, Tensor):
        input = operand(input, other, "div")
    if rounding_mode is None:
        return divide(input, other)
    if rounding_mode == "floor":
        return floor_divide(input, other)
    if is_float(input.dtype) or is_float(literal(other, input).dtype):
        return function(Trunc)(divide(input, other))
    return floor_divide(input - fmod(input, other), other)       # exact: the remainder is taken away first


# ---- several steps in one name -------------------------------------------------------------------
def lerp(input: Tensor, end: Tensor, weight) -> Tensor:
    """input + weight · (end - input)."""
    return input + (end - input) * weight


def add(input: Tensor, other, *, alpha=1) -> Tensor:
    """input + alpha · other."""
    return function(Add)(input, _scaled("add", input, other, alpha))


def sub(input: Tensor, other, *, alpha=1) -> Tensor:
    """input - alpha · other."""
    return function(Sub)(input, _scaled("sub", input, other, alpha))


def rsub(input: Tensor, other, *, alpha=1) -> Tensor:
    """other - alpha · input."""
    return sub(literal(other, input), input, alpha=alpha)


def _scaled(name: str, input, other, alpha):
    if alpha == 1 and alpha.__class__ is int:
        return other
    x = literal(other, input)
    kinds = [x.dtype for x in (input, x) if isinstance(x, Tensor)]
    if (isinstance(alpha, float) and not any(map(is_float, kinds))) or (
            isinstance(alpha, bool) and any(kind != bool_ for kind in kinds)):
        raise DTypeError(f"{name}: alpha {alpha} does not fit tensors of {' and '.join(map(str, kinds))}")
    return cast(x * alpha, x.dtype)


def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """input + value · tensor1 · tensor2."""
    return input + tensor1 * tensor2 * value


def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """input + value · tensor1 / tensor2."""
    return input + tensor1 / tensor2 * value


def softmin(input: Tensor, dim: int, *, dtype=None) -> Tensor:
    """softmax of -x."""
    return (-input).softmax(dim, dtype=dtype)
