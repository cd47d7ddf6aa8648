"""Layers that rearrange: axes joined and split, borders, windows as columns, channels as pixels, images resized.

After `pooling.py`; without parameters.
"""

from __future__ import annotations

from collections.abc import Sequence

from minigrad.errors import ShapeError
from minigrad.nn import functional as F
from minigrad.nn.module import Module
from minigrad.ops.pooling import sizes_of
from minigrad.ops.structure import unflatten
from minigrad.tensor import Tensor


class Flatten(Module):
    """Axes start_dim … end_dim as one."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, x: Tensor) -> Tensor:
        return F.flatten(x, self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """One axis as several, of the sizes given; -1 is worked out."""

    def __init__(self, dim: int, unflattened_size: Sequence[int]) -> None:
        self.dim, self.unflattened_size = dim, unflattened_size

    def forward(self, x: Tensor) -> Tensor:
        return unflatten(x, self.dim, tuple(self.unflattened_size))

    def extra_repr(self) -> str:
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"


# ---- borders ---------------------------------------------------------------------------------------
class Pad(Module):
    """A border around the last axes; `padding` counts (before, after) from the last axis on, or is one number."""

    axes: int = 2
    mode = "constant"
    value = 0.0

    def __init__(self, padding) -> None:
        self.padding = sizes_of(padding, 2 * self.axes, f"{type(self).__name__}: padding")

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim not in (self.axes + 1, self.axes + 2) and self.mode != "constant":
            raise ShapeError(f"{type(self).__name__}: {self.axes + 1} or {self.axes + 2} axes expected, got {x.shape}")
        return F.pad(x, self.padding, self.mode, self.value if self.mode == "constant" else None)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class ConstantPad2d(Pad):
    """A border of one value around (…, H, W)."""

    def __init__(self, padding, value: float) -> None:
        super().__init__(padding)
        self.value = value

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class ConstantPad1d(ConstantPad2d):
    """A border of one value around (…, L)."""

    axes = 1


class ZeroPad2d(Pad):
    """Zeros around (…, H, W)."""


class ZeroPad1d(Pad):
    """Zeros around (…, L)."""

    axes = 1


class ReflectionPad2d(Pad):
    """The image mirrored at its edges."""

    mode = "reflect"


class ReflectionPad1d(ReflectionPad2d):
    """The sequence mirrored at its ends."""

    axes = 1


class ReplicationPad2d(Pad):
    """The edges repeated."""

    mode = "replicate"


class ReplicationPad1d(ReplicationPad2d):
    """The ends repeated."""

    axes = 1


class CircularPad2d(Pad):
    """The image as on a torus."""

    mode = "circular"


class CircularPad1d(CircularPad2d):
    """The sequence as on a circle."""

    axes = 1


# ---- windows and pixels -------------------------------------------------------------------------------
class Unfold(Module):
    """The windows of (N, C, H, W) as columns (N, C·KH·KW, number of windows)."""

    def __init__(self, kernel_size, dilation=1, padding=0, stride=1) -> None:
        self.kernel_size, self.dilation, self.padding, self.stride = kernel_size, dilation, padding, stride

    def forward(self, x: Tensor) -> Tensor:
        return F.unfold(x, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, dilation={self.dilation}, padding={self.padding}, stride={self.stride}"
        )


class Fold(Unfold):
    """The adjoint of Unfold: columns added back to their places in (N, C, *output_size)."""

    def __init__(self, output_size, kernel_size, dilation=1, padding=0, stride=1) -> None:
        super().__init__(kernel_size, dilation, padding, stride)
        self.output_size = output_size

    def forward(self, x: Tensor) -> Tensor:
        return F.fold(x, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}, {super().extra_repr()}"


class PixelShuffle(Module):
    """(…, C·r², H, W) as (…, C, H·r, W·r) (Shi et al. 2016)."""

    def __init__(self, upscale_factor: int) -> None:
        self.upscale_factor = upscale_factor

    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_shuffle(x, self.upscale_factor)

    def extra_repr(self) -> str:
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """(…, C, H·r, W·r) as (…, C·r², H, W)."""

    def __init__(self, downscale_factor: int) -> None:
        self.downscale_factor = downscale_factor

    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_unshuffle(x, self.downscale_factor)

    def extra_repr(self) -> str:
        return f"downscale_factor={self.downscale_factor}"


class Upsample(Module):
    """(N, C, L) or (N, C, H, W) to another size by `F.interpolate`: "nearest", "linear" or "bilinear"."""

    def __init__(
        self,
        size=None,
        scale_factor=None,
        mode: str = "nearest",
        align_corners: bool | None = None,
    ) -> None:
        self.size, self.mode, self.align_corners = size, mode, align_corners
        numbers = tuple(float(f) for f in scale_factor) if isinstance(scale_factor, tuple) else scale_factor
        self.scale_factor = float(numbers) if isinstance(numbers, int) else numbers

    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(x, self.size, self.scale_factor, self.mode, self.align_corners)

    def extra_repr(self) -> str:
        how = f"size={self.size}" if self.scale_factor is None else f"scale_factor={self.scale_factor}"
        return f"{how}, mode={self.mode!r}"
