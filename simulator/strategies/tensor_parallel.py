"""Tensor parallel: a matrix product cut among ranks, by columns and then by rows, so that one sum at the end is all the
talk (Shoeybi et al. 2019, Megatron-LM).

    y = RowParallelLinear(b, comm)(ColumnParallelLinear(a, comm)(x).tanh())      # = b(a(x).tanh()), on each rank

All ranks have the same x and compute the same loss.  After `shards.py` and `sequence.py`.
"""
from __future__ import annotations

import minigrad as mg
from minigrad import nn
from minigrad.nn import functional as F
from simulator.comm_ops import copy_to, gather_from, reduce_from, scatter_to
from simulator.communicator import Communicator
from simulator.strategies.sequence import SequenceRegion
from simulator.strategies.shards import Shard


def gathered(x: mg.Tensor, comm: Communicator, sequence: SequenceRegion | None) -> mg.Tensor:
    """x for each rank to go its own way with, all of it, where each has a part of the sequence."""
    return copy_to(x, comm) if sequence is None else sequence.gather(x)


def summed(x: mg.Tensor, comm: Communicator, sequence: SequenceRegion | None) -> mg.Tensor:
    """The sum over the ways of all ranks, for all alike, or for each its part of the sequence."""
    return reduce_from(x, comm) if sequence is None else sequence.reduce_scatter(x)


class ColumnParallelLinear(nn.Module):
    """`linear` with its outputs cut: (…, in) that all ranks have to (…, this rank's part of out).

    In backward the gradients of x are summed (one all-reduce).  `gather_output`: all ranks have all of out.
    `sequence`: x is this rank's part of a sequence, gathered first.  `input_is_copied`: neither, since x comes from
    `copy_to` or was gathered, once for several products."""

    def __init__(self, linear: nn.Linear, comm: Communicator, *, gather_output: bool = False,
                 shard: Shard | None = None, sequence: SequenceRegion | None = None,
                 input_is_copied: bool = False) -> None:
        shard = shard or Shard.even(comm, 0, linear.out_features)
        if gather_output and not shard.in_order:
            raise ValueError(f"ColumnParallelLinear: {shard} is not cut in order, so its outputs cannot be joined. Use "
                             f"gather_output=False")
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.comm, self.gather_output, self.sequence = comm, gather_output, sequence
        self.input_is_copied = input_is_copied
        self.weight = shard.parameter(linear.weight, "weight")
        self.bias = None if linear.bias is None else shard.parameter(linear.bias, "bias")
        self.shards = {"weight": shard} | ({} if self.bias is None else {"bias": shard})

    def forward(self, x: mg.Tensor) -> mg.Tensor:
        if not self.input_is_copied:
            x = gathered(x, self.comm, self.sequence)
        y = F.linear(x, self.weight, self.bias)
        return gather_from(y, self.comm) if self.gather_output else y

    def extra_repr(self) -> str:
        return _told(self, self.weight.shape[0], self.out_features)


class RowParallelLinear(nn.Module):
    """`linear` with its inputs cut: (…, this rank's part of in) to (…, out), the sum over ranks (one all-reduce).

    The bias is whole on each rank and added once, after the sum.  `input_is_parallel=False`: all ranks have all of x,
    and each takes its part.  `sequence`: each rank gets its part of the sequence of the sum."""

    def __init__(self, linear: nn.Linear, comm: Communicator, *, input_is_parallel: bool = True,
                 shard: Shard | None = None, sequence: SequenceRegion | None = None) -> None:
        shard = shard or Shard.even(comm, 1, linear.in_features)
        if not input_is_parallel and not shard.in_order:
            raise ValueError(f"RowParallelLinear: {shard} is not cut in order, so x cannot be cut by it. Use "
                             f"input_is_parallel=True")
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.comm, self.input_is_parallel, self.sequence = comm, input_is_parallel, sequence
        self.weight, self.bias = shard.parameter(linear.weight, "weight"), linear.bias
        self.shards = {"weight": shard}

    def forward(self, x: mg.Tensor) -> mg.Tensor:
        if not self.input_is_parallel:
            x = scatter_to(x, self.comm, sizes=self.shards["weight"].sizes)
        y = F.linear(x, self.weight)
        y = summed(y, self.comm, self.sequence)
        if self.bias is None:
            return y
        return y + (self.bias if self.sequence is None else copy_to(self.bias, self.comm))

    def extra_repr(self) -> str:
        return _told(self, self.out_features, self.out_features)


def _told(module: ColumnParallelLinear | RowParallelLinear, rows: int, of: int) -> str:
    comm = module.comm
    return (f"{module.in_features}, {module.out_features}: {tuple(module.weight.shape)} on rank {comm.rank} of "
            f"{comm.world_size}, bias={module.bias is not None}")


__all__ = ["ColumnParallelLinear", "RowParallelLinear", "gathered", "summed"]
