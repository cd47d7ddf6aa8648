"""Batch norm over the batches of all ranks, as one device would have it over the joined batch; as
`torch.nn.SyncBatchNorm`.  After `comm_ops.py`, whose all-reduce carries the gradient back.
"""
from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Self

import minigrad as mg
from minigrad import nn
from minigrad.nn.norm import BatchNorm
from minigrad.rows import written
from simulator import comm_ops

if TYPE_CHECKING:
    from simulator.communicator import Communicator


class SyncBatchNorm(BatchNorm):
    """BatchNorm1d, 2d, … whose statistics in training are those of all ranks' values, each weighing the same: ranks may
    have different numbers of examples, one, or none.

    Two small all-reduces in forward and two in backward: the means first, then the squares around them, so that nothing
    cancels.  In evaluation nothing is sent.  Gradients of weight and bias are this rank's part of their sum."""

    running_mean: Any
    running_var: Any
    axes = tuple(range(2, 33))                               # any number of axes that NumPy has

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
                 track_running_stats: bool = True, *, comm: Communicator, **how: Any) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, **how)
        self.comm = comm

    @classmethod
    def convert_sync_batchnorm(cls, module: nn.Module, comm: Communicator) -> nn.Module:
        """`module` with each BatchNorm in it made one over all ranks, with the same parameters and statistics."""
        if isinstance(module, BatchNorm) and not isinstance(module, cls):
            return cls._like(module, comm)
        for name, child in list(module.named_children()):
            setattr(module, name, cls.convert_sync_batchnorm(child, comm))
        return module

    @classmethod
    def _like(cls, old: BatchNorm, comm: Communicator) -> Self:
        new = cls(old.num_features, old.eps, old.momentum, old.affine, old.track_running_stats, comm=comm)
        new.weight, new.bias, new.training = old.weight, old.bias, old.training
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            setattr(new, name, getattr(old, name))
        return new

    def forward(self, x: mg.Tensor) -> mg.Tensor:
        if x.ndim < 2 or x.shape[1] != self.num_features:
            raise ValueError(f"SyncBatchNorm({self.num_features}): input {tuple(x.shape)}: expected at least 2 axes, "
                             f"and {self.num_features} channels in axis 1")
        if not self.training:
            return super().forward(x)
        centered, mean, var, count = self._statistics(x.float() if x.dtype.itemsize == 2 else x)
        if self.track_running_stats:
            self._move(mean, var, count)
        y = centered * _row((var + self.eps) ** -0.5, x)
        if self.weight is not None:
            y = y * _row(self.weight, x)
        return (y if self.bias is None else y + _row(self.bias, x)).to(x.dtype)

    def _statistics(self, x: mg.Tensor) -> tuple[mg.Tensor, mg.Tensor, mg.Tensor, int]:
        """Over all ranks: x - mean, mean and variance of each channel, and how many values a channel has."""
        axes = (0, *range(2, x.ndim))
        own = mg.full((1,), prod(x.shape) // max(x.shape[1], 1), dtype=x.dtype, device=x.device)
        sums = comm_ops.all_reduce(mg.cat([x.sum(axes), own]), self.comm)
        count = round(sums[-1].item())
        if count < 2:
            raise ValueError(f"SyncBatchNorm: one value per channel has no variance: all {self.comm.world_size} ranks "
                             f"together have {count} in training. Use a larger batch, or call .eval()")
        mean = sums[:-1] / count
        centered = x - _row(mean, x)
        return centered, mean, comm_ops.all_reduce((centered * centered).sum(axes), self.comm) / count, count

    def _move(self, mean: mg.Tensor, var: mg.Tensor, count: int) -> None:
        """Running statistics towards these; the variance over count - 1."""
        by = self._counted()
        for running, now in ((self.running_mean, mean), (self.running_var, var * (count / (count - 1)))):
            written(running, ((1 - by) * running.detach() + by * now.detach()).to(running.dtype).array)


def _row(v: mg.Tensor, x: mg.Tensor) -> mg.Tensor:
    """(C,) in the shape that goes with x: (1, C, 1, …)."""
    return v.reshape(1, -1, *(1,) * (x.ndim - 2))


__all__ = ["SyncBatchNorm"]
