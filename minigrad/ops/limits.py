"""Limits: clamp, and functions made of straight lines.  What happens at a corner is PyTorch's.  After `rounding.py`."""

from __future__ import annotations

import numpy as np

from minigrad.errors import ArgumentError, ShapeError
from minigrad.ops.doors import function, literal
from minigrad.ops.op import Elementwise, NoOnnx, op
from minigrad.ops.samples import Sample, elementwise_samples
from minigrad.ops.views import reshape
from minigrad.tensor import Tensor


# ---- clamp --------------------------------------------------------------------------------------------------------
@op
class ClampMin(Elementwise):
    """x, but at least low; at the bound the gradient goes to x"""

    onnx, domain, reference = "Clip", ("away", "spread"), np.maximum

    def forward(self, o, x, low):
        return o.maximum(x, low)

    def dx(self, o, g, x, low):
        return o.where(x >= low, g, o.zero)

    def dlow(self, o, g, x, low):
        return o.where(x < low, g, o.zero)


@op
class ClampMax(Elementwise):
    """x, but at most high; at the bound the gradient goes to x"""

    onnx, domain, reference = "Clip", ("away", "spread"), np.minimum

    def forward(self, o, x, high):
        return o.minimum(x, high)

    def dx(self, o, g, x, high):
        return o.where(x <= high, g, o.zero)

    def dhigh(self, o, g, x, high):
        return o.where(x > high, g, o.zero)


@op
class Clamp(Elementwise):
    """x limited to low … high; at a bound the gradient goes to x; where low > high all is high"""

    onnx, domain = "Clip", ("away", "below", "positive")

    def forward(self, o, x, low, high):
        return o.minimum(o.maximum(x, low), high)

    def dx(self, o, g, x, low, high):
        return o.where((x >= low) & (x <= high), g, o.zero)

    def dlow(self, o, g, x, low, high):
        return o.where((x < low) & (low < high), g, o.zero)

    def dhigh(self, o, g, x, low, high):
        return o.where((x > high) | (high < low), g, o.zero)

    @staticmethod
    def reference(x, low, high):
        return np.clip(x, low, high)


def clamp(x: Tensor, min=None, max=None) -> Tensor:
    """x limited to min … max, numbers or tensors; the gradient passes inside and at the bounds."""
    if min is None and max is None:
        raise ArgumentError("clamp: give min, max or both")
    if max is None:
        return function(ClampMin)(x, literal(min, x))
    if min is None:
        return function(ClampMax)(x, literal(max, x))
    return function(Clamp)(x, literal(min, x), literal(max, x))


# ---- straight lines -------------------------------------------------------------------------------------------------
class Activation(Elementwise):
    """An activation with numbers of its own; refuses integers."""

    takes = "only float"


@op
class Hardtanh(Elementwise):
    """x limited to low … high; at the bounds the gradient is 0"""

    low: float = -1.0
    high: float = 1.0
    onnx = NoOnnx("Clip")

    def forward(self, o, x):
        return o.minimum(o.maximum(x, o.lit(self.low)), o.lit(self.high))

    def dx(self, o, g, x):
        return o.where((x <= o.lit(self.low)) | (x >= o.lit(self.high)), o.zero, g)

    def reference(self, x):
        return np.clip(x, self.low, self.high)


@op
class Threshold(Elementwise):
    """x where it is above the threshold, else a value"""

    threshold: float = 0.0
    value: float = 0.0
    onnx, domain = NoOnnx("Where of Greater"), ("away",)

    def forward(self, o, x):
        return o.where(x <= o.lit(self.threshold), o.lit(self.value), x)

    def dx(self, o, g, x):
        return o.where(x <= o.lit(self.threshold), o.zero, g)

    def reference(self, x):
        return np.where(x > self.threshold, x, self.value)


@op
class LeakyRelu(Activation):
    """x where it is positive, else x · slope"""

    slope: float = 0.01
    onnx, domain = "LeakyRelu", ("away",)

    def forward(self, o, x):
        return o.positive(x) + o.minimum(x, o.zero) * o.lit(self.slope)          # three passes beat one of `where`

    def dx(self, o, g, x):
        above = x > o.zero
        return g * (above + o.logical_not(above) * o.lit(self.slope))

    def reference(self, x):
        return np.where(x > 0, x, x * self.slope)


@op
class Prelu(Activation):
    """x where it is positive, else x · w, with a learned slope w"""

    onnx, domain = "PRelu", ("away",)

    def forward(self, o, x, w):
        return o.where(x > o.zero, x, w * x)

    def dx(self, o, g, x, w):
        return o.where(x > o.zero, g, w * g)

    def dw(self, o, g, x):
        return o.where(x > o.zero, o.zero, g * x)

    @staticmethod
    def reference(x, w):
        return np.where(x > 0, x, w * x)


@op
class Hardsigmoid(Activation):
    """(x + 3) / 6 limited to 0 … 1"""

    functional, onnx = "hardsigmoid", "HardSigmoid"

    def forward(self, o, x):
        return o.minimum(o.maximum(x + o.lit(3), o.zero), o.lit(6)) / o.lit(6)

    def dx(self, o, g, x):
        return o.where((x > o.lit(-3)) & (x < o.lit(3)), g / o.lit(6), o.zero)

    @staticmethod
    def reference(x):
        return np.clip(x + 3, 0, 6) / 6


@op
class Hardswish(Activation):
    """x · hardsigmoid(x)"""

    functional, onnx = "hardswish", "HardSwish"

    def forward(self, o, x):
        return x * o.minimum(o.maximum(x + o.lit(3), o.zero), o.lit(6)) / o.lit(6)

    def dx(self, o, g, x):
        inside = (x > o.lit(-3)) & (x < o.lit(3))
        return g * (inside * (x / o.lit(3) + o.lit(0.5)) + (x >= o.lit(3)) * o.one)

    @staticmethod
    def reference(x):
        return x * np.clip(x + 3, 0, 6) / 6


@op
class Hardshrink(Activation):
    """x, and 0 within ±width"""

    width: float = 0.5
    onnx, domain = NoOnnx("Shrink"), ("steps",)

    def forward(self, o, x):
        return o.where(o.abs(x) <= o.lit(self.width), o.zero, x)

    def dx(self, o, g, x):
        return o.where(o.abs(x) <= o.lit(self.width), o.zero, g)

    def reference(self, x):
        return np.where(np.abs(x) > self.width, x, 0)

    @classmethod
    def samples(cls) -> list[Sample]:
        return elementwise_samples(cls)


@op
class Softshrink(Activation):
    """x moved towards 0 by width, and 0 within it"""

    width: float = 0.5
    onnx, domain = "Shrink", ("steps",)

    def forward(self, o, x):
        far = o.abs(x) > o.lit(self.width)
        return o.where(far, x - o.sign(x) * o.lit(self.width), o.where(o.isnan(x), x, o.zero))

    def dx(self, o, g, x):
        return o.where(o.abs(x) <= o.lit(self.width), o.zero, g)

    def reference(self, x):
        return np.sign(x) * np.maximum(np.abs(x) - self.width, 0)


# ---- as functions --------------------------------------------------------------------------------
def clamp_min(input: Tensor, min) -> Tensor:
    """x, but at least `min`."""
    return clamp(input, min=min)


def clamp_max(input: Tensor, max) -> Tensor:
    """x, but at most `max`."""
    return clamp(input, max=max)


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """x limited to [min_val, max_val]; at the bounds the gradient is 0."""
    if min_val > max_val:
        raise ArgumentError(f"hardtanh: min_val {min_val} is above max_val {max_val}")
    return function(Hardtanh, float(min_val), float(max_val))(input)


def relu6(input: Tensor) -> Tensor:
    """min(max(x, 0), 6); at 0 and 6 the gradient is 0."""
    return function(Hardtanh, 0.0, 6.0)(input)


def threshold(input: Tensor, threshold: float, value: float) -> Tensor:
    """x where it is above `threshold`, else `value`."""
    return function(Threshold, float(threshold), float(value))(input)


def leaky_relu(input: Tensor, negative_slope: float = 0.01) -> Tensor:
    """x where it is positive, else x · slope."""
    return function(LeakyRelu, float(negative_slope))(input)


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """x where it is positive, else x · weight: one weight, or one for each channel (axis 1)."""
    n = weight.shape[0] if weight.ndim == 1 else 0
    if weight.ndim > 1 or (n > 1 and (input.ndim < 2 or input.shape[1] != n)):
        raise ShapeError(f"prelu: weight {weight.shape} must hold one number, or one for each channel of {input.shape}")
    rows = (1, n, *(1,) * (input.ndim - 2)) if n > 1 else ()
    return function(Prelu)(input, reshape(weight, rows))


def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """x, and 0 within ±lambd."""
    return function(Hardshrink, float(lambd))(input)


def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """x moved towards 0 by lambd, and 0 within it."""
    if lambd < 0:
        raise ArgumentError(f"softshrink: lambd must be at least 0, got {lambd}")
    return function(Softshrink, float(lambd))(input)
