"""What cases of distributed training call (`mg.dist`), in terms of `simulator`: each name leads to one public thing.

MG_EXECUTOR names the executor of the ranks; "local" is the default.
"""
from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import minigrad as mg
import simulator as sim
from simulator import comm_ops, strategies
from simulator.strategies import DistributedSampler
from simulator.strategies.regions import dropout
from simulator.strategies.tensor_parallel import ColumnParallelLinear, RowParallelLinear


class RankError(RuntimeError):
    """A rank failed, hung past the timeout, or made a call that does not fit those of the others."""


def run_ranks(world: int, fn: Callable[..., Any], *args: Any, timeout: float = 30, retries: int = 0) -> list[Any]:
    """[fn(ctx, *args) of each rank].  `retries`: all ranks again from the start, with nothing of what failed."""
    executor = os.environ.get("MG_EXECUTOR", "local")
    for attempt in range(retries + 1):
        try:
            return sim.spawn(_on_rank, world, fn, args, executor=executor, timeout=timeout).values
        except (sim.CommunicationError, MemoryError) as error:
            if attempt == retries:
                raise RankError(f"{type(error).__name__}: {error}") from error
    raise AssertionError("unreachable")


def _on_rank(comm: sim.Communicator, fn: Callable[..., Any], args: tuple) -> Any:
    return fn(Context(comm), *args)


def exact_mean(ctx: Context, values: Any, n_total: int) -> float:
    return strategies.exact_mean(ctx.comm, values, n_total)


class Context:
    """What a rank's function is given."""

    def __init__(self, comm: sim.Communicator) -> None:
        self.comm, self.rank, self.world = comm, comm.rank, comm.world_size

    # -- collectives; those of tensors that want a gradient carry it
    def all_reduce(self, t: mg.Tensor, op: str = "sum") -> mg.Tensor:
        return comm_ops.all_reduce(t, self.comm, op) if _differentiated(t) else self.comm.all_reduce(t, op)

    def all_gather(self, t: mg.Tensor) -> list[mg.Tensor]:
        if not _differentiated(t):
            return self.comm.all_gather(t)
        rows = [int(n) for n in self.comm.all_gather(mg.tensor([t.shape[0]]))]
        return list(mg.split(comm_ops.all_gather(t, self.comm), rows))

    def broadcast(self, t: mg.Tensor, src: int) -> mg.Tensor:
        return comm_ops.broadcast(t, self.comm, src) if _differentiated(t) else self.comm.broadcast(t, src)

    def barrier(self) -> None:
        self.comm.barrier()

    def all_reduce_(self, t: mg.Tensor) -> mg.Tensor:
        with mg.no_grad():
            return self.comm.all_reduce_(t)

    # -- data parallel
    def DDP(self, module: mg.nn.Module, find_unused: bool = False, bucket_mb: float = 25) -> strategies.DDP:
        return strategies.DDP(module, self.comm, find_unused_parameters=find_unused, bucket_cap_mb=bucket_mb)

    def SyncBatchNorm(self, num_features: int) -> strategies.SyncBatchNorm:
        return strategies.SyncBatchNorm(num_features, comm=self.comm)

    def token_loss(self, loss_sum: mg.Tensor, n_tokens: int) -> mg.Tensor:
        return strategies.token_loss(loss_sum, n_tokens, self.comm)

    def grad_norm(self, sharded: Any = (), replicated: Any = ()) -> float:
        return strategies.grad_norm(self.comm, sharded=sharded, replicated=replicated)

    # -- tensor parallel
    def column_linear(self, lin: mg.nn.Linear) -> mg.nn.Module:
        return ColumnParallelLinear(lin, self.comm)

    def row_linear(self, lin: mg.nn.Linear) -> mg.nn.Module:
        return RowParallelLinear(lin, self.comm)

    def tp_dropout(self, x: mg.Tensor, p: float, seed: int, region: str) -> mg.Tensor:
        return dropout(x, p, self.comm, region, generator=mg.Generator(seed))

    # -- what comes with pipelines
    def ZeroAdam(self, params: Any, lr: float) -> Any:
        raise NotImplementedError("ZeroAdam: sharded optimiser state comes with pipelines")

    def pipeline_step(self, stage: Any, x: Any, y: Any, n_micro: int, loss_sum: Any, tied: tuple = ()) -> Any:
        raise NotImplementedError("pipeline_step: pipelines are not there yet")


def _differentiated(t: Any) -> bool:
    return isinstance(t, mg.Tensor) and t.requires_grad and mg.is_grad_enabled()


__all__ = ["Context", "DistributedSampler", "RankError", "exact_mean", "run_ranks"]
