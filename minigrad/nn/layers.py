"""Layers: Linear, Conv2d, pooling, Flatten, Dropout, Embedding, and the activations.  After `containers.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minigrad.create import empty
from minigrad.nn import functional as F, init
from minigrad.nn.module import Module
from minigrad.nn.parameter import Parameter
from minigrad.ops.conv import pair
from minigrad.tensor import Tensor


def sized(**sizes: int) -> None:
    """Refuse a size below 1: `sized(in_features=n)`."""
    for name, n in sizes.items():
        if n < 1:
            raise ValueError(f"{name} must be at least 1, got {n}")


class Identity(Module):
    """x itself; takes and ignores any arguments."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def forward(self, x: Any) -> Any:
        return x


class Linear(Module):
    """x @ weight.T + bias: (…, in_features) to (…, out_features)."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True, device="cpu", dtype=None) -> None:
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(empty(out_features, in_features, device=device, dtype=dtype))
        self.bias = Parameter(empty(out_features, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters anew."""
        init.as_layer_(self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Conv2d(Module):
    """Convolution of images (N, in_channels, H, W) or (in_channels, H, W)."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size,
        stride=1,
        padding=0,
        dilation=1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device="cpu",
        dtype=None,
    ) -> None:
        if padding_mode != "zeros":
            raise ValueError(
                f"Conv2d: padding_mode {padding_mode!r} is not there yet, only 'zeros'; pad before the layer"
            )
        sized(in_channels=in_channels, out_channels=out_channels, groups=groups)
        if in_channels % groups or out_channels % groups:
            raise ValueError(
                f"Conv2d: groups {groups} must divide in_channels {in_channels} and out_channels {out_channels}"
            )
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size, self.stride, self.dilation = (
            pair(kernel_size, "kernel_size"),
            pair(stride, "stride"),
            pair(dilation, "dilation"),
        )
        self.padding = padding if isinstance(padding, str) else pair(padding, "padding")
        shape = (out_channels, in_channels // groups, *self.kernel_size)
        self.weight = Parameter(empty(*shape, device=device, dtype=dtype))
        self.bias = Parameter(empty(out_channels, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    reset_parameters = Linear.reset_parameters

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)

    def extra_repr(self) -> str:
        said = [
            str(self.in_channels),
            str(self.out_channels),
            f"kernel_size={self.kernel_size}",
            f"stride={self.stride}",
        ]
        said += [f"padding={self.padding}"] * (self.padding != (0, 0)) + [f"dilation={self.dilation}"] * (
            self.dilation != (1, 1)
        )
        said += [f"groups={self.groups}"] * (self.groups != 1) + ["bias=False"] * (self.bias is None)
        return ", ".join(said)


class MaxPool2d(Module):
    """The largest of each window; the stride is the kernel size unless given."""

    def __init__(self, kernel_size, stride=None, padding=0, dilation=1) -> None:
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding, self.dilation = padding, dilation

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(x, self.kernel_size, self.stride, self.padding, self.dilation)

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, dilation={self.dilation}, "
            "ceil_mode=False"
        )


class AvgPool2d(Module):
    """The mean of each window; the stride is the kernel size unless given."""

    def __init__(self, kernel_size, stride=None, padding=0) -> None:
        self.kernel_size, self.stride, self.padding = kernel_size, kernel_size if stride is None else stride, padding

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(x, self.kernel_size, self.stride, self.padding)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class Flatten(Module):
    """Axes start_dim … end_dim as one."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, x: Tensor) -> Tensor:
        return F.flatten(x, self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Dropout(Module):
    """In training each element is zero with probability p and the others grow by 1 / (1 - p); else nothing happens."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        if not 0 <= p <= 1:
            raise ValueError(f"Dropout: p must be a probability, got {p}")
        self.p, self.inplace = p, inplace

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


class Embedding(Module):
    """A table of num_embeddings vectors, looked up by number: (…) of integers to (…, embedding_dim)."""

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, device="cpu", dtype=None
    ) -> None:
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(f"Embedding: padding_idx {padding_idx} is outside the {num_embeddings} rows")
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.weight = Parameter(empty(num_embeddings, embedding_dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Standard normal numbers; the padding row is zero."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            init.zeros_(self.weight.detach()[self.padding_idx])

    @classmethod
    def from_pretrained(cls, embeddings: Tensor, freeze: bool = True, padding_idx: int | None = None) -> Embedding:
        """A table with given rows, which are not trained if `freeze`."""
        table = cls(*embeddings.shape, padding_idx=padding_idx, device="meta")
        table.weight = Parameter(embeddings, not freeze)
        return table

    def forward(self, input: Tensor) -> Tensor:
        return F.embedding(input, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        pad = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{pad}"


# ---- activations: each is a function as a module -------------------------------------------------
class Activation(Module):
    """A module that calls one function of x."""

    function: Callable[..., Tensor]

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class ReLU(Activation):
    function = staticmethod(F.relu)

    def __init__(self, inplace: bool = False) -> None:
        self.inplace = inplace

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""


class Tanh(Activation):
    function = staticmethod(F.tanh)


class Sigmoid(Activation):
    function = staticmethod(F.sigmoid)


class SiLU(Activation):
    function = staticmethod(F.silu)


class ReLU6(Activation):
    function = staticmethod(F.relu6)


class LogSigmoid(Activation):
    function = staticmethod(F.logsigmoid)


class Softplus(Activation):
    """log(1 + exp(beta x)) / beta."""

    def __init__(self, beta: float = 1.0) -> None:
        self.beta = beta

    def forward(self, x: Tensor) -> Tensor:
        return F.softplus(x) if self.beta == 1 else F.softplus(x * self.beta) / self.beta

    def extra_repr(self) -> str:
        return f"beta={self.beta}"


class LeakyReLU(Module):
    """x where it is positive, else x · negative_slope."""

    def __init__(self, negative_slope: float = 0.01) -> None:
        self.negative_slope = negative_slope

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(x, self.negative_slope)

    def extra_repr(self) -> str:
        return f"negative_slope={self.negative_slope}"


class ELU(Module):
    """x where it is positive, else alpha · (exp(x) - 1)."""

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        return F.elu(x, self.alpha)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}"


class Softmax(Module):
    """exp(x) / sum(exp(x)) along `dim`."""

    function = staticmethod(F.softmax)

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class LogSoftmax(Softmax):
    """log(softmax(x)) along `dim`."""

    function = staticmethod(F.log_softmax)
