"""Initial values, written into a tensor in place: the formulas of Glorot & Bengio 2010 and He et al. 2015.

Numbers come from minigrad's own stream (`mg.manual_seed`), so they are the same on every device.  After
`containers.py`.
"""

from __future__ import annotations

import math

from minigrad.autograd import no_grad
from minigrad.create import Generator, eye, rand, randn
from minigrad.tensor import Tensor

GAINS = {"linear": 1.0, "conv1d": 1.0, "conv2d": 1.0, "sigmoid": 1.0, "tanh": 5 / 3, "relu": math.sqrt(2), "selu": 0.75}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """How much a layer should widen its values so that they keep their size behind a nonlinearity."""
    if nonlinearity == "leaky_relu":
        return math.sqrt(2 / (1 + (0.01 if param is None else param) ** 2))
    if nonlinearity not in GAINS:
        raise ValueError(f"calculate_gain: {nonlinearity!r} is none of {', '.join(GAINS)}, leaky_relu")
    return GAINS[nonlinearity]


def fans(tensor: Tensor) -> tuple[int, int]:
    """(inputs, outputs) that meet in one place: axis 1 and axis 0, each times the area of a kernel."""
    if tensor.ndim < 2:
        raise ValueError(f"fan in and fan out need two axes or more, got shape {tensor.shape}")
    area = math.prod(tensor.shape[2:])
    return tensor.shape[1] * area, tensor.shape[0] * area


@no_grad()
def fill_with(tensor: Tensor, values: Tensor | float) -> Tensor:
    return tensor.copy_(values)


def _drawn(tensor: Tensor, draw, generator: Generator | None) -> Tensor:
    return draw(*tensor.shape, dtype=tensor.dtype, device=tensor.o.device, generator=generator)


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Evenly from [a, b)."""
    return fill_with(tensor, _drawn(tensor, rand, generator) * (b - a) + a)


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Normal numbers."""
    return fill_with(tensor, _drawn(tensor, randn, generator) * std + mean)


def constant_(tensor: Tensor, val: float) -> Tensor:
    return fill_with(tensor, val)


def zeros_(tensor: Tensor) -> Tensor:
    return fill_with(tensor, 0.0)


def ones_(tensor: Tensor) -> Tensor:
    return fill_with(tensor, 1.0)


def eye_(tensor: Tensor) -> Tensor:
    """Ones on the diagonal of a matrix."""
    if tensor.ndim != 2:
        raise ValueError(f"eye_: expected a matrix, got shape {tensor.shape}")
    return fill_with(tensor, eye(*tensor.shape, dtype=tensor.dtype))


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """U(-a, a) with a = gain · sqrt(6 / (fan_in + fan_out))."""
    a = gain * math.sqrt(6 / sum(fans(tensor)))
    return uniform_(tensor, -a, a, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """N(0, std²) with std = gain · sqrt(2 / (fan_in + fan_out))."""
    return normal_(tensor, 0.0, gain * math.sqrt(2 / sum(fans(tensor))), generator)


def _kaiming_std(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"kaiming: mode {mode!r} is neither 'fan_in' nor 'fan_out'")
    fan = fans(tensor)[mode == "fan_out"]
    return calculate_gain(nonlinearity, a) / math.sqrt(max(fan, 1))


def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """U(-b, b) with b = gain · sqrt(3 / fan)."""
    b = math.sqrt(3) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -b, b, generator)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """N(0, std²) with std = gain / sqrt(fan)."""
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity), generator)


def as_layer_(weight: Tensor, bias: Tensor | None) -> None:
    """PyTorch's default for Linear and Conv: both from U(-1/sqrt(fan_in), 1/sqrt(fan_in))."""
    kaiming_uniform_(weight, a=math.sqrt(5))
    if bias is not None:
        bound = 1 / math.sqrt(max(fans(weight)[0], 1))
        uniform_(bias, -bound, bound)
