"""Convolution of sequences and images, and its transposed form, as layers.  After `layers.py`."""

from __future__ import annotations

from collections.abc import Callable

from minigrad.create import empty
from minigrad.errors import ShapeError
from minigrad.nn import functional as F, init
from minigrad.nn.layers import sized
from minigrad.nn.module import Module
from minigrad.nn.parameter import Parameter
from minigrad.ops.pooling import sizes_of
from minigrad.tensor import Tensor

MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "replicate", "circular": "circular"}


class ConvNd(Module):
    """What all convolutions share; `axes` is how many axes a kernel has."""

    axes: int = 2
    transposed = False

    def __init__(
        self, in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, device,
        dtype,
    ) -> None:  # fmt: skip
        name = type(self).__name__
        sized(in_channels=in_channels, out_channels=out_channels, groups=groups)
        if in_channels % groups or out_channels % groups:
            raise ValueError(
                f"{name}: groups {groups} must divide in_channels {in_channels} and out_channels {out_channels}"
            )
        if padding_mode not in MODES:
            raise ValueError(f"{name}: padding_mode {padding_mode!r} is none of {', '.join(MODES)}")
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size, self.stride, self.dilation = (
            sizes_of(kernel_size, self.axes, "kernel_size"),
            sizes_of(stride, self.axes, "stride"),
            sizes_of(dilation, self.axes, "dilation"),
        )
        if min(self.kernel_size) < 1:
            raise ValueError(f"{name}: kernel_size must be at least 1, got {kernel_size}")
        if padding == "same" and any(s != 1 for s in self.stride):
            raise ValueError(f"{name}: padding='same' needs stride 1, got {stride}")
        if isinstance(padding, str) and padding not in ("same", "valid"):
            raise ValueError(f"{name}: padding {padding!r} is neither 'same' nor 'valid' nor a number")
        self.padding = padding if isinstance(padding, str) else sizes_of(padding, self.axes, "padding")
        self.padding_mode = padding_mode
        channels = (in_channels, out_channels) if self.transposed else (out_channels, in_channels)
        shape = (channels[0], channels[1] // groups, *self.kernel_size)
        self.weight = Parameter(empty(*shape, device=device, dtype=dtype))
        self.bias = Parameter(empty(out_channels, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters anew."""
        init.as_layer_(self.weight, self.bias)

    def _checked(self, x: Tensor) -> None:
        n = self.axes
        if x.ndim not in (n + 1, n + 2) or x.shape[-n - 1] != self.in_channels:
            where = ", ".join("LHW"[-n:] if n > 1 else "L")
            raise ShapeError(
                f"{type(self).__name__}: input {x.shape}, expected (N, {self.in_channels}, {where}) or "
                f"({self.in_channels}, {where})"
            )

    def extra_repr(self) -> str:
        none = (0,) * self.axes
        said = [f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"]
        said += [f"padding={self.padding}"] * (self.padding != none)
        said += [f"dilation={self.dilation}"] * (self.dilation != (1,) * self.axes)
        said += [f"output_padding={self.output_padding}"] * (self.output_padding != none)
        said += [f"groups={self.groups}"] * (self.groups != 1) + ["bias=False"] * (self.bias is None)
        return ", ".join(said + [f"padding_mode={self.padding_mode}"] * (self.padding_mode != "zeros"))

    @property
    def output_padding(self) -> tuple[int, ...]:
        return (0,) * self.axes


class Convolution(ConvNd):
    """A convolution, with a border of zeros or of the input itself."""

    function: Callable[..., Tensor]

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
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, device, dtype
        )

    def _border(self) -> list[int]:
        """(before, after) of each axis, from the last one on."""
        if self.padding == "valid":
            return [0, 0] * self.axes
        if self.padding == "same":
            total = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size)]
            return [n for t in reversed(total) for n in (t // 2, t - t // 2)]
        return [n for p in reversed(self.padding) for n in (p, p)]

    def forward(self, x: Tensor) -> Tensor:
        self._checked(x)
        padding: str | int | tuple[int, ...] = self.padding
        if self.padding_mode != "zeros":
            x, padding = F.pad(x, self._border(), MODES[self.padding_mode]), 0
        return self.function(x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)


class Conv1d(Convolution):
    """Convolution of sequences (N, in_channels, L) or (in_channels, L)."""

    axes, function = 1, staticmethod(F.conv1d)


class Conv2d(Convolution):
    """Convolution of images (N, in_channels, H, W) or (in_channels, H, W)."""

    axes, function = 2, staticmethod(F.conv2d)


class Transposed(ConvNd):
    """The adjoint of a convolution: it enlarges what that one makes smaller."""

    function: Callable[..., Tensor]
    transposed = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size,
        stride=1,
        padding=0,
        output_padding=0,
        groups: int = 1,
        bias: bool = True,
        dilation=1,
        padding_mode: str = "zeros",
        device="cpu",
        dtype=None,
    ) -> None:
        if padding_mode != "zeros":
            raise ValueError(f"{type(self).__name__}: padding_mode must be 'zeros', got {padding_mode!r}")
        self._more = sizes_of(output_padding, self.axes, "output_padding")
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, device, dtype
        )

    @property
    def output_padding(self) -> tuple[int, ...]:
        return self._more

    def forward(self, x: Tensor, output_size=None) -> Tensor:
        """`output_size`: the sizes wanted of the last axes, where several inputs' sizes lead to one."""
        self._checked(x)
        more = self._more if output_size is None else self._wanted(x, output_size)
        return self.function(x, self.weight, self.bias, self.stride, self.padding, more, self.groups, self.dilation)

    def _wanted(self, x: Tensor, output_size) -> tuple[int, ...]:
        want = tuple(output_size)[-self.axes :]
        rows = zip(x.shape[-self.axes :], self.stride, self.padding, self.dilation, self.kernel_size)
        least = [(n - 1) * s - 2 * p + d * (k - 1) + 1 for n, s, p, d, k in rows]
        if any(not low <= w < low + s for w, low, s in zip(want, least, self.stride)):
            most = [low + s - 1 for low, s in zip(least, self.stride)]
            raise ValueError(f"{type(self).__name__}: output_size {want} must lie between {least} and {most}")
        return tuple(w - low for w, low in zip(want, least))


class ConvTranspose1d(Transposed):
    """Transposed convolution of sequences (N, in_channels, L) or (in_channels, L)."""

    axes, function = 1, staticmethod(F.conv_transpose1d)


class ConvTranspose2d(Transposed):
    """Transposed convolution of images (N, in_channels, H, W) or (in_channels, H, W)."""

    axes, function = 2, staticmethod(F.conv_transpose2d)
