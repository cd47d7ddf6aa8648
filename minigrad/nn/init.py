"""Initial values, written into a tensor in place: Glorot & Bengio 2010, He et al. 2015, Saxe et al. 2014, Martens 2010.

Numbers come from minigrad's own stream (`mg.manual_seed`), so they are the same on every device.  After
`containers.py`.
"""

from __future__ import annotations

import math
import warnings

import numpy as np

from minigrad.autograd import no_grad
from minigrad.create import Generator, eye, place, rand, randn, stream
from minigrad.tensor import Tensor

_LINEAR = ("linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
GAINS = {**dict.fromkeys((*_LINEAR, "sigmoid"), 1.0), "tanh": 5 / 3, "relu": math.sqrt(2), "selu": 0.75}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """How much a layer should widen its values so that they keep their size behind a nonlinearity."""
    if nonlinearity == "leaky_relu":
        if not (param is None or (isinstance(param, int | float) and not isinstance(param, bool))):
            raise ValueError(f"calculate_gain: the negative slope {param!r} is no number")
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


def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: Generator | None = None,
) -> Tensor:
    """Normal numbers, drawn again while they lie outside [a, b]: by the inverse of the distribution function."""
    if not a < b or std <= 0:
        raise ValueError(f"trunc_normal_: nothing lies between {a} and {b} at a standard deviation of {std}")
    if mean < a - 2 * std or mean > b + 2 * std:
        warnings.warn(
            f"trunc_normal_: the mean {mean} is more than two standard deviations from [{a}, {b}], so the numbers "
            "may be distributed wrongly",
            stacklevel=2,
        )
    low, high = (math.erf((edge - mean) / (std * math.sqrt(2))) for edge in (a, b))
    even = _drawn(tensor, rand, generator) * (high - low) + low
    return fill_with(tensor, (even.erfinv() * (std * math.sqrt(2)) + mean).clamp(a, b))


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
    return fill_with(tensor, eye(*tensor.shape, dtype=tensor.dtype, device=tensor.o.device))


def _from_host(tensor: Tensor, host: np.ndarray) -> Tensor:
    return fill_with(tensor, Tensor(place(host.astype(tensor.dtype), tensor.o.device)) if tensor.o.eager else tensor)


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """A convolution's weight that passes each channel on as it is (as many as there are), in each group."""
    if tensor.ndim not in (3, 4, 5):
        raise ValueError(f"dirac_: expected the weight of a convolution, 3 to 5 axes, got shape {tensor.shape}")
    if groups < 1 or tensor.shape[0] % groups:
        raise ValueError(f"dirac_: axis 0 of {tensor.shape} is not divisible by {groups} groups")
    host, per = np.zeros(tensor.shape), tensor.shape[0] // groups
    middle = tuple(n // 2 for n in tensor.shape[2:])
    for group in range(groups):
        for k in range(min(per, tensor.shape[1])):
            host[(group * per + k, k, *middle)] = 1
    return _from_host(tensor, host)


def orthogonal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """A matrix (axis 0 × the rest) whose rows, or columns where there are fewer, are orthonormal, times `gain`.

    The Q of a normal matrix, with signs that make it evenly distributed (Saxe et al. 2014, Mezzadri 2007)."""
    if tensor.ndim < 2:
        raise ValueError(f"orthogonal_: expected two axes or more, got shape {tensor.shape}")
    rows, columns = tensor.shape[0], math.prod(tensor.shape[1:])
    host = randn(max(rows, columns), min(rows, columns), dtype="float64", generator=generator).numpy()
    q, r = np.linalg.qr(host)
    q = q * np.where(np.diag(r) < 0, -1.0, 1.0) * gain
    return _from_host(tensor, (q if rows >= columns else q.T).reshape(tensor.shape))


def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: Generator | None = None) -> Tensor:
    """A matrix with a share of `sparsity` zeros in each column, the rest N(0, std²) (Martens 2010)."""
    if tensor.ndim != 2:
        raise ValueError(f"sparse_: expected a matrix, got shape {tensor.shape}")
    if not 0 <= sparsity <= 1:
        raise ValueError(f"sparse_: sparsity must be a share from 0 to 1, got {sparsity}")
    normal_(tensor, 0.0, std, generator)
    zeros = math.ceil(sparsity * tensor.shape[0])
    ranks = stream(generator).host().permuted(np.arange(tensor.shape[0])[:, None].repeat(tensor.shape[1], 1), axis=0)
    kept = Tensor(place(ranks >= zeros, tensor.o.device)) if tensor.o.eager else tensor
    return fill_with(tensor, tensor.detach() * kept.to(tensor.dtype))


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """U(-a, a) with a = gain · sqrt(6 / (fan_in + fan_out))."""
    a = gain * math.sqrt(6 / sum(fans(tensor)))
    return uniform_(tensor, -a, a, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """N(0, std²) with std = gain · sqrt(2 / (fan_in + fan_out))."""
    return normal_(tensor, 0.0, gain * math.sqrt(2 / sum(fans(tensor))), generator)


def _kaiming_std(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode.lower() not in ("fan_in", "fan_out"):
        raise ValueError(f"kaiming: mode {mode!r} is neither 'fan_in' nor 'fan_out'")
    fan = fans(tensor)[mode.lower() == "fan_out"]
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
