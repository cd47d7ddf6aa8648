"""Pooling layers: the largest, or the mean, of windows of fixed size or of a fixed number of windows.

Each calls its function in `functional.py`.  After `convolutions.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minigrad.nn import functional as F
from minigrad.nn.module import Module
from minigrad.tensor import Tensor


class MaxPool(Module):
    """The largest of each window; the stride is the kernel size unless given."""

    function: Callable[..., Any]

    def __init__(
        self, kernel_size, stride=None, padding=0, dilation=1, return_indices: bool = False, ceil_mode: bool = False
    ) -> None:
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding, self.dilation = padding, dilation
        self.return_indices, self.ceil_mode = return_indices, ceil_mode

    def forward(self, x: Tensor) -> Any:
        how = (self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices)
        return self.function(x, *how)

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, dilation={self.dilation}, "
            f"ceil_mode={self.ceil_mode}"
        )


class MaxPool1d(MaxPool):
    """Of sequences (N, C, L) or (C, L)."""

    function = staticmethod(F.max_pool1d)


class MaxPool2d(MaxPool):
    """Of images (N, C, H, W) or (C, H, W)."""

    function = staticmethod(F.max_pool2d)


class AvgPool1d(Module):
    """The mean of each window of (N, C, L) or (C, L); the stride is the kernel size unless given."""

    def __init__(
        self, kernel_size, stride=None, padding=0, ceil_mode: bool = False, count_include_pad: bool = True
    ) -> None:
        one = lambda v: (v,) if isinstance(v, int) else tuple(v)
        self.kernel_size, self.stride = one(kernel_size), one(kernel_size if stride is None else stride)
        self.padding, self.ceil_mode, self.count_include_pad = one(padding), ceil_mode, count_include_pad

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool1d(x, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool2d(Module):
    """The mean of each window of (N, C, H, W) or (C, H, W); the stride is the kernel size unless given."""

    def __init__(
        self,
        kernel_size,
        stride=None,
        padding=0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        self.kernel_size, self.stride, self.padding = kernel_size, kernel_size if stride is None else stride, padding
        self.ceil_mode, self.count_include_pad, self.divisor_override = ceil_mode, count_include_pad, divisor_override

    def forward(self, x: Tensor) -> Tensor:
        how = (self.ceil_mode, self.count_include_pad, self.divisor_override)
        return F.avg_pool2d(x, self.kernel_size, self.stride, self.padding, *how)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AdaptivePool(Module):
    """As many windows as wanted, of sizes that fit; None keeps an axis."""

    function: Callable[..., Any]

    def __init__(self, output_size) -> None:
        self.output_size = output_size

    def forward(self, x: Tensor) -> Any:
        return self.function(x, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveAvgPool1d(AdaptivePool):
    function = staticmethod(F.adaptive_avg_pool1d)


class AdaptiveAvgPool2d(AdaptivePool):
    function = staticmethod(F.adaptive_avg_pool2d)


class AdaptiveMaxPool(AdaptivePool):
    """With `return_indices` also where in the input each largest stood."""

    def __init__(self, output_size, return_indices: bool = False) -> None:
        super().__init__(output_size)
        self.return_indices = return_indices

    def forward(self, x: Tensor) -> Any:
        return self.function(x, self.output_size, self.return_indices)


class AdaptiveMaxPool1d(AdaptiveMaxPool):
    function = staticmethod(F.adaptive_max_pool1d)


class AdaptiveMaxPool2d(AdaptiveMaxPool):
    function = staticmethod(F.adaptive_max_pool2d)
