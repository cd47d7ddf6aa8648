"""Activations: each is a function of `functional.py` as a module, which says what it computes.  After `layers.py`.

With `inplace=True` the input itself takes the result, as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable

from minigrad.create import full
from minigrad.errors import ShapeError
from minigrad.inplace import overwrite
from minigrad.nn import functional as F, init
from minigrad.nn.module import Module
from minigrad.nn.parameter import Parameter
from minigrad.tensor import Tensor


class Activation(Module):
    """A module that calls one function of x, in place if it is told to."""

    function: Callable[..., Tensor]
    inplace = False

    def __init__(self) -> None:
        pass

    def compute(self, x: Tensor) -> Tensor:
        return self.function(x)

    def forward(self, x: Tensor) -> Tensor:
        y = self.compute(x)
        return overwrite(x, y, type(self).__name__) if self.inplace else y

    def shown(self) -> list[str]:
        """What the text of the module says beside `inplace`."""
        return []

    def extra_repr(self) -> str:
        return ", ".join([*self.shown(), *["inplace=True"] * self.inplace])


class InPlace(Activation):
    """An activation whose one argument is `inplace`."""

    def __init__(self, inplace: bool = False) -> None:
        self.inplace = inplace


# ---- without parameters ----------------------------------------------------------------------------
class ReLU(InPlace):
    function = staticmethod(F.relu)


class ReLU6(InPlace):
    function = staticmethod(F.relu6)

    def shown(self) -> list[str]:
        return []


class SiLU(InPlace):
    function = staticmethod(F.silu)


class Mish(InPlace):
    function = staticmethod(F.mish)


class SELU(InPlace):
    function = staticmethod(F.selu)


class Hardswish(InPlace):
    function = staticmethod(F.hardswish)

    def extra_repr(self) -> str:
        return ""


class Hardsigmoid(InPlace):
    function = staticmethod(F.hardsigmoid)

    def extra_repr(self) -> str:
        return ""


class Tanh(Activation):
    function = staticmethod(F.tanh)


class Sigmoid(Activation):
    function = staticmethod(F.sigmoid)


class LogSigmoid(Activation):
    function = staticmethod(F.logsigmoid)


class Softsign(Activation):
    function = staticmethod(F.softsign)


class Tanhshrink(Activation):
    function = staticmethod(F.tanhshrink)


# ---- with numbers ------------------------------------------------------------------------------------
class GELU(Activation):
    """x · Φ(x), or its approximation "tanh"."""

    def __init__(self, approximate: str = "none") -> None:
        self.approximate = approximate

    def compute(self, x: Tensor) -> Tensor:
        return F.gelu(x, self.approximate)

    def shown(self) -> list[str]:
        return [f"approximate={self.approximate!r}"]


class Softplus(Activation):
    """log(1 + exp(beta x)) / beta; `threshold` is PyTorch's and not needed."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        self.beta, self.threshold = beta, threshold

    def compute(self, x: Tensor) -> Tensor:
        return F.softplus(x, self.beta, self.threshold)

    def shown(self) -> list[str]:
        return [f"beta={self.beta}", f"threshold={self.threshold}"]


class LeakyReLU(Activation):
    """x where it is positive, else x · negative_slope."""

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        self.negative_slope, self.inplace = negative_slope, inplace

    def compute(self, x: Tensor) -> Tensor:
        return F.leaky_relu(x, self.negative_slope)

    def shown(self) -> list[str]:
        return [f"negative_slope={self.negative_slope}"]


class ELU(Activation):
    """x where it is positive, else alpha · (exp(x) - 1)."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        self.alpha, self.inplace = alpha, inplace

    def compute(self, x: Tensor) -> Tensor:
        return F.elu(x, self.alpha)

    def shown(self) -> list[str]:
        return [f"alpha={self.alpha}"]


class CELU(ELU):
    """x where it is positive, else alpha · (exp(x / alpha) - 1)."""

    def compute(self, x: Tensor) -> Tensor:
        return F.celu(x, self.alpha)


class Hardtanh(Activation):
    """x limited to min_val … max_val."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        if min_val >= max_val:
            raise ValueError(f"Hardtanh: min_val {min_val} must be below max_val {max_val}")
        self.min_val, self.max_val, self.inplace = min_val, max_val, inplace

    def compute(self, x: Tensor) -> Tensor:
        return F.hardtanh(x, self.min_val, self.max_val)

    def shown(self) -> list[str]:
        return [f"min_val={self.min_val}", f"max_val={self.max_val}"]


class Threshold(Activation):
    """x where it is above the threshold, else `value`."""

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        self.threshold, self.value, self.inplace = threshold, value, inplace

    def compute(self, x: Tensor) -> Tensor:
        return F.threshold(x, self.threshold, self.value)

    def shown(self) -> list[str]:
        return [f"threshold={self.threshold}", f"value={self.value}"]


class Hardshrink(Activation):
    """x where |x| is above lambd, else 0."""

    def __init__(self, lambd: float = 0.5) -> None:
        self.lambd = lambd

    def compute(self, x: Tensor) -> Tensor:
        return F.hardshrink(x, self.lambd)

    def shown(self) -> list[str]:
        return [f"{self.lambd}"]


class Softshrink(Hardshrink):
    """x moved towards 0 by lambd."""

    def compute(self, x: Tensor) -> Tensor:
        return F.softshrink(x, self.lambd)


class PReLU(Activation):
    """LeakyReLU with a learned slope, one for all or one for each channel (axis 1)."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25, device="cpu", dtype=None) -> None:
        self.num_parameters, self.init = num_parameters, init
        self.weight = Parameter(full((num_parameters,), float(init), dtype=dtype, device=device))

    def reset_parameters(self) -> None:
        """Every slope as it was at first."""
        init.constant_(self.weight, self.init)

    def compute(self, x: Tensor) -> Tensor:
        return F.prelu(x, self.weight)

    def shown(self) -> list[str]:
        return [f"num_parameters={self.num_parameters}"]


# ---- along an axis -------------------------------------------------------------------------------------
class Softmax(Activation):
    """exp(x) / sum(exp(x)) along `dim`."""

    function: Callable[..., Tensor] = staticmethod(F.softmax)

    def __init__(self, dim: int | None = None) -> None:
        self.dim = dim

    def compute(self, x: Tensor) -> Tensor:
        if self.dim is None:
            raise ValueError(f"{type(self).__name__}: say along which axis: {type(self).__name__}(dim=1)")
        return self.function(x, self.dim)

    def shown(self) -> list[str]:
        return [f"dim={self.dim}"]


class LogSoftmax(Softmax):
    """log(softmax(x)) along `dim`."""

    function = staticmethod(F.log_softmax)


class Softmin(Softmax):
    """softmax(-x) along `dim`."""

    function = staticmethod(F.softmin)


class Softmax2d(Activation):
    """softmax over the channels of images (N, C, H, W) or (C, H, W)."""

    def compute(self, x: Tensor) -> Tensor:
        if x.ndim not in (3, 4):
            raise ShapeError(f"Softmax2d: expected (N, C, H, W) or (C, H, W), got {x.shape}")
        return F.softmax(x, -3)


class GLU(Activation):
    """The first half of an axis times the sigmoid of the second."""

    def __init__(self, dim: int = -1) -> None:
        self.dim = dim

    def compute(self, x: Tensor) -> Tensor:
        return F.glu(x, self.dim)

    def shown(self) -> list[str]:
        return [f"dim={self.dim}"]
