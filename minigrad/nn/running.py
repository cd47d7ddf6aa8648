"""Normalisation that remembers: batch norm and instance norm with running statistics.  `functional.py` comes next."""

from __future__ import annotations

import math

from minigrad.aval import Aval
from minigrad.errors import ArgumentError, ShapeError
from minigrad.ops.fused import BatchNorm
from minigrad.ops.norms import group_norm
from minigrad.ops.views import reshape
from minigrad.tensor import Tensor, Writes, apply


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each channel (axis 1) with the statistics of the batch in training, else with the running ones.

    In training the running ones move by `momentum` towards the batch's mean and its variance over n - 1."""
    if not training:
        return _scaled(x, running_mean, running_var, weight, bias, eps)
    if math.prod(x.shape) == x.shape[1]:
        raise ValueError(
            f"batch_norm: one value per channel has no variance: input {x.shape} in training. "
            "Use a larger batch, or call .eval()"
        )
    like = lambda v: Tensor(x.o.full(x.shape[1:2], v) if x.o.eager else Aval(x.shape[1:2], x.dtype))
    y, mean, var = apply(BatchNorm.of(eps), x, like(1) if weight is None else weight, like(0) if bias is None else bias)
    n = math.prod(x.shape) // max(x.shape[1], 1)
    _move(running_mean, mean, momentum)
    _move(running_var, var, momentum, n / max(n - 1, 1))
    return y


def _move(running: Tensor | None, now: Tensor, momentum: float, times: float = 1.0) -> None:
    """running = (1 - momentum) · running + momentum · times · now, on the raw arrays: no part of the graph."""
    if running is not None and running.o.eager:
        r = running.array
        r *= 1 - momentum
        r += now.array.reshape(r.shape).astype(r.dtype) * (times * momentum)
        Writes.note(r)


def _scaled(x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Evaluation: one scale and one shift per channel."""
    if mean is None or var is None:
        raise ValueError("batch_norm: evaluation needs running_mean and running_var; pass training=True without them")
    row = (1, -1, *(1,) * (x.ndim - 2))
    scale = (var + eps) ** 0.5
    scale = (1 if weight is None else weight) / scale
    shift = -(mean * scale) if bias is None else bias - mean * scale
    return x * reshape(scale, row) + reshape(shift, row)


def instance_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each channel of each example over its own elements, or, unless `use_input_stats`, by the running ones.

    The running ones move by `momentum` towards the mean over the examples."""
    if not use_input_stats:
        return _scaled(x, running_mean, running_var, weight, bias, eps)
    if math.prod(x.shape[2:]) < 2:
        raise ArgumentError(f"instance_norm: more than one element per channel is needed, got {x.shape}")
    if running_mean is None or running_var is None:
        return group_norm(x, x.shape[1], weight, bias, eps)
    if x.ndim < 3:
        raise ShapeError(f"instance_norm: expected (N, C, …), got {x.shape}")
    n, c = x.shape[:2]
    stats = (running_mean, running_var)
    own = [Tensor(t.array.copy()[None].repeat(n, 0).reshape(-1)) if t.o.eager else t for t in stats]
    y = batch_norm(reshape(x, (1, n * c, *x.shape[2:])), own[0], own[1], None, None, True, momentum, eps)
    for running, moved in zip(stats, own):
        if running.o.eager:
            running.array[...] = moved.array.reshape(n, c).mean(0)
            Writes.note(running.array)
    row = (1, c, *(1,) * (x.ndim - 2))
    y = reshape(y, x.shape)
    y = y if weight is None else y * reshape(weight, row)
    return y if bias is None else y + reshape(bias, row)
