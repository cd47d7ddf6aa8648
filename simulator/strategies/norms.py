"""Numbers of the whole batch and of the whole model, of which each rank has a part: the norm of all gradients, the mean
over all tokens, the mean over a dataset.
"""
from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import minigrad as mg
from minigrad.nn.clip import norm_of
from minigrad.rows import Rows, values_of

if TYPE_CHECKING:
    from simulator.communicator import Communicator

Gradients = Iterable[mg.Tensor | Rows | None]


def grad_norm(comm: Communicator, *, sharded: Gradients = (), replicated: Gradients = (),
              norm_type: float = 2.0) -> float:
    """The p-norm of all gradients as one vector, each logical element counted once; the same on all ranks.

    `sharded`: gradients of which this rank has its own part (their powers are added over the ranks); `replicated`:
    those that all ranks hold alike, as after data parallel.  None, for a parameter without gradient, counts nothing."""
    p, norms = float(norm_type), [norm_of(values_of(g), float(norm_type)) for g in sharded if g is not None]
    whole = [norm_of(values_of(g), p) for g in replicated if g is not None]
    if p == math.inf:
        return max([comm.all_reduce(_largest(norms), "max"), _largest(whole)], key=_nan_first)
    return (comm.all_reduce(float(sum(n**p for n in norms))) + sum(n**p for n in whole)) ** (1 / p)


def _largest(norms: Sequence[float]) -> float:
    return max(norms, key=_nan_first, default=0.0)


def _nan_first(x: float) -> float:
    return math.inf if math.isnan(x) else x


def clip_grad_norm_(comm: Communicator, max_norm: float, *, sharded: Sequence[mg.Tensor | Rows | None] = (),
                    replicated: Sequence[mg.Tensor | Rows | None] = (), norm_type: float = 2.0) -> float:
    """Scale all these gradients, in place, so that `grad_norm` is at most `max_norm`; returns the norm they had.  As
    `nn.utils.clip_grad_norm_` does on one device."""
    total = grad_norm(comm, sharded=sharded, replicated=replicated, norm_type=norm_type)
    scale = max_norm / (total + 1e-6)
    if not scale >= 1:                                       # a NaN scales, too: it shows
        for g in (*sharded, *replicated):
            if g is not None:
                g.mul_(scale)
    return total


def token_loss(loss_sum: mg.Tensor, n_tokens: int, comm: Communicator) -> mg.Tensor:
    """What to call `backward()` on under data parallel, which averages over ranks, so that gradients are those of the
    mean over the tokens of all ranks: world_size * loss_sum / (tokens of all ranks).

    `loss_sum`: the sum of the losses of this rank's `n_tokens` tokens, which may be 0.  A mean over each rank's own
    tokens would let ranks with few of them weigh more."""
    if n_tokens < 0:
        raise ValueError(f"token_loss: a number of tokens is at least 0, got {n_tokens}")
    total = comm.all_reduce(int(n_tokens))
    if not total:
        raise ValueError(f"token_loss: no rank of {comm.world_size} has a token, and the mean of none is no number. "
                         "Leave the step out")
    return loss_sum * (comm.world_size / total)


def exact_mean(comm: Communicator, values: Iterable[Any], n_total: int) -> float:
    """The mean over a dataset of `n_total` items, each counted once, the same on every number of ranks to the last bit.

    `values`: a number for each item that this rank got from `DistributedSampler`, in its order.  What the sampler
    repeats to fill up the last ranks is left out; what it dropped (`drop_last`) does not count.  The sum is rounded
    once (Shewchuk 1997), so its order does not matter."""
    own = np.asarray([float(v) for v in values], np.float64)
    gathered = comm.all_gather(own)
    counted = [v for rank, each in enumerate(gathered) for v in each[:_real(n_total, rank, comm.world_size)].tolist()]
    if not counted:
        raise ValueError(f"exact_mean: {comm.world_size} ranks have no value among them")
    return math.fsum(counted) / len(counted)


def _real(n_total: int, rank: int, world_size: int) -> int:
    """How many of a rank's items are not there a second time: of rank, rank + world_size, … those below n_total."""
    return len(range(rank, n_total, world_size))


__all__ = ["clip_grad_norm_", "exact_mean", "grad_norm", "token_loss"]
