"""Normalisation: by batch, by sample, by groups of channels, by channel, by neighbours.  After `activations.py`."""

from __future__ import annotations

from minigrad.create import empty, tensor, zeros
from minigrad.dtype import int64
from minigrad.errors import ShapeError
from minigrad.nn import functional as F, init
from minigrad.nn.module import Module
from minigrad.nn.parameter import Parameter
from minigrad.ops.views import squeeze, unsqueeze
from minigrad.tensor import Tensor


def _unit(weight: Parameter | None, bias: Parameter | None) -> None:
    """Weight 1 and bias 0, as far as they are there."""
    if weight is not None:
        init.ones_(weight)
    if bias is not None:
        init.zeros_(bias)


class BatchNorm(Module):
    """Each channel (axis 1) to mean 0 and variance 1, then weight and bias.

    In training by the batch, whose statistics move the running ones by `momentum` (None: their plain average over all
    batches); in evaluation by the running ones, or by the batch where they are not tracked."""

    axes: tuple[int, ...] = ()  # how many axes the input may have

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device="cpu",
        dtype=None,
        bias: bool = True,
    ) -> None:
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        how = {"device": device, "dtype": dtype}
        self.weight = Parameter(empty(num_features, **how)) if affine else None
        self.bias = Parameter(empty(num_features, **how)) if affine and bias else None
        self.register_buffer("running_mean", zeros(num_features, **how) if track_running_stats else None)
        self.register_buffer("running_var", zeros(num_features, **how) if track_running_stats else None)
        self.register_buffer(
            "num_batches_tracked", tensor(0, dtype=int64, device=device) if track_running_stats else None
        )
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """As before the first batch."""
        if self.track_running_stats:
            init.zeros_(self.running_mean)
            init.ones_(self.running_var)
            init.fill_with(self.num_batches_tracked, 0)

    def reset_parameters(self) -> None:
        """Weight 1, bias 0, and no batch seen."""
        self.reset_running_stats()
        _unit(self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim not in self.axes or x.shape[1] != self.num_features:
            raise ShapeError(
                f"{type(self).__name__}({self.num_features}): input {x.shape}: expected "
                f"{' or '.join(f'{n} axes' for n in self.axes)} with {self.num_features} channels in axis 1"
            )
        of_batch = self.training or self.running_mean is None
        mean, var = (self.running_mean, self.running_var) if self.track_running_stats else (None, None)
        momentum = self._counted() if self.training and self.track_running_stats else 0.0
        return F.batch_norm(x, mean, var, self.weight, self.bias, of_batch, momentum, self.eps)

    def _counted(self) -> float:
        """Count this batch; how far it moves the running statistics."""
        count = self.num_batches_tracked
        if count.o.eager:
            count.array[...] += 1
        return 1 / count.item() if self.momentum is None else self.momentum

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        )


class BatchNorm1d(BatchNorm):
    """BatchNorm of (N, C) or (N, C, L)."""

    axes = (2, 3)


class BatchNorm2d(BatchNorm):
    """BatchNorm of images (N, C, H, W)."""

    axes = (4,)


class LayerNorm(Module):
    """Each sample to mean 0 and variance 1 over its last axes, of shape `normalized_shape`; then weight and bias."""

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device="cpu",
        dtype=None,
    ) -> None:
        self.normalized_shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        make = lambda wanted: Parameter(empty(*self.normalized_shape, device=device, dtype=dtype)) if wanted else None
        self.weight, self.bias = make(elementwise_affine), make(elementwise_affine and bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weight 1, bias 0."""
        _unit(self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        said = f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        return f"{said}, bias={self.bias is not None}"


class RMSNorm(Module):
    """x / sqrt(mean(x²) + eps) over its last axes, of shape `normalized_shape`; then weight (Zhang & Sennrich 2019)."""

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device="cpu",
        dtype=None,
    ) -> None:
        self.normalized_shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        size = self.normalized_shape
        self.weight = Parameter(empty(*size, device=device, dtype=dtype)) if elementwise_affine else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weight 1."""
        _unit(self.weight, None)

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class GroupNorm(Module):
    """Each group of channels (axis 1) of each sample to mean 0 and variance 1, then weight and bias by channel."""

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device="cpu",
        dtype=None,
        *,
        bias: bool = True,
    ) -> None:
        if num_groups < 1 or num_channels % num_groups:
            raise ValueError(f"GroupNorm: {num_channels} channels cannot be divided into {num_groups} groups")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        make = lambda wanted: Parameter(empty(num_channels, device=device, dtype=dtype)) if wanted else None
        self.weight, self.bias = make(affine), make(affine and bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weight 1, bias 0."""
        _unit(self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        said = f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"
        return f"{said}, bias={self.bias is not None}"


class InstanceNorm(BatchNorm):
    """Each channel of each sample to mean 0 and variance 1; in evaluation by the running statistics, if tracked."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device="cpu",
        dtype=None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias)

    def forward(self, x: Tensor) -> Tensor:
        alone = x.ndim == self.axes[0]
        if x.ndim not in self.axes or x.shape[x.ndim - self.axes[0]] != self.num_features:
            raise ShapeError(
                f"{type(self).__name__}({self.num_features}): input {x.shape}: expected {self.axes[0]} or "
                f"{self.axes[1]} axes, (C, …) or (N, C, …), with {self.num_features} channels"
            )
        mean, var = (self.running_mean, self.running_var) if self.track_running_stats else (None, None)
        own = self.training or not self.track_running_stats
        batch = unsqueeze(x, 0) if alone else x
        y = F.instance_norm(batch, mean, var, self.weight, self.bias, own, self.momentum or 0.0, self.eps)
        return squeeze(y, 0) if alone else y


class InstanceNorm1d(InstanceNorm):
    """InstanceNorm of (N, C, L) or (C, L)."""

    axes = (2, 3)


class InstanceNorm2d(InstanceNorm):
    """InstanceNorm of images (N, C, H, W) or (C, H, W)."""

    axes = (3, 4)


class LocalResponseNorm(Module):
    """x / (k + alpha · mean of the squares of `size` neighbouring channels) ** beta (Krizhevsky et al. 2012)."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, x: Tensor) -> Tensor:
        return F.local_response_norm(x, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"
