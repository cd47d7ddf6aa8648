"""Data parallel: each rank has the whole model and a part of the batch, and gradients are averaged while backward still
runs (Li et al. 2020); as `torch.nn.parallel.DistributedDataParallel`.

    model = DDP(model, comm)
    loss_of(model(x[comm.rank::comm.world_size])).backward()      # .grad is the mean over ranks, on each of them

After `reducer.py`; `uneven.py` is for ranks with different numbers of batches.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

import minigrad as mg
from minigrad import nn
from simulator.compression import Compressor
from simulator.strategies.buckets import MIB, broadcast_tensors
from simulator.strategies.reducer import Reducer, in_backward, reducer_of
from simulator.strategies.shards import shards_of
from simulator.strategies.uneven import Uneven

if TYPE_CHECKING:
    from simulator.communicator import Communicator

UNUSED = ("error", "zero", "skip")
GRADIENTS_AS = ("mean", "sum")


class DistributedDataParallel(nn.Module):
    """`module`, whose gradients after each backward are the mean over the ranks of `comm` (`gradient_as="sum"`: their
    sum).

    On wrapping, all ranks must have the same parameters and buffers (names, shapes, dtypes: else RuntimeError), and get
    rank 0's values.  Then every forward and backward of one rank needs one of all others; `join` is for fewer.  A
    backward through `module` itself is averaged, too.

    - `bucket_cap_mb`: gradients travel in buckets of about so many MiB; 0 sends each alone ("naive").
    - `overlap`: a bucket goes as soon as its last gradient is there, buckets in the order in which gradients came on
      rank 0 in the first step (looked at again every 100 steps); else all go when backward is over.
    - `find_unused_parameters`: parameters may take no part, other ones on each rank and in each step; which did is
      asked of all ranks (a byte a parameter).  Without it that is a RuntimeError: at the end of backward if no other
      can bring the gradient, else at the next forward.
    - `unused`: what becomes of those that took part on no rank: "skip" (their gradient stays as it is, None), "zero" or
      "error" (RuntimeError).  "zero" and "skip" imply `find_unused_parameters`, whose default is "skip".
    - `broadcast_buffers`: before a forward that follows a reduced one, buffers become those of rank 0.
    - `algorithm`: of the all-reduce (`simulator.collectives`).
    - `compression`: makes the compressor of a bucket (`simulator.compression`): `lambda: ErrorFeedback(TopK(0.01))`.
      Buckets then wait for each other and keep their order.  A bucket of one parameter has its shape, any other is
      flat, so PowerSGD wants `bucket_cap_mb=0`.

    Copying into buckets and out of them takes no time on the modelled clock (PyTorch's `gradient_as_bucket_view`)."""

    def __init__(self, module: nn.Module, comm: Communicator, *, bucket_cap_mb: float = 25,
                 find_unused_parameters: bool = False, overlap: bool = True, broadcast_buffers: bool = True,
                 unused: str | None = None, algorithm: str | None = None,
                 compression: Callable[[], Compressor] | None = None, gradient_as: str = "mean") -> None:
        if not bucket_cap_mb >= 0:
            raise ValueError(f"DistributedDataParallel: bucket_cap_mb is at least 0 MiB, got {bucket_cap_mb}")
        if unused is not None and unused not in UNUSED:
            raise ValueError(f"DistributedDataParallel: unused={unused!r} is none of {', '.join(UNUSED)}")
        if gradient_as not in GRADIENTS_AS:
            raise ValueError(f"DistributedDataParallel: gradient_as={gradient_as!r} is none of "
                             f"{', '.join(GRADIENTS_AS)}")
        if compression is not None and (isinstance(compression, Compressor) or not callable(compression)):
            raise TypeError("DistributedDataParallel: compression makes a compressor, as each bucket needs one of its "
                            f"own: compression=lambda: {type(compression).__name__}(…)")
        trained = _trained(module, comm)
        find = find_unused_parameters or unused in ("zero", "skip")
        _check_alike(module, comm, dict(
            bucket_cap_mb=bucket_cap_mb, unused=unused, find_unused_parameters=find, overlap=overlap,
            broadcast_buffers=broadcast_buffers, algorithm=algorithm, compression=compression is not None,
            gradient_as=gradient_as, sparse=sorted(_sparse(module, trained))))
        self.module, self.broadcast_buffers = module, broadcast_buffers
        self.comm = comm = _own_group(comm)
        with mg.no_grad():
            broadcast_tensors(comm, self._all_values())
        _check_own([], trained, comm)                        # by now ranks that share a module have met
        self.reducer = Reducer(
            comm, list(trained), list(trained.values()), cap_bytes=bucket_cap_mb * MIB, sparse=_sparse(module, trained),
            find_unused=find, unused=unused or "skip", overlap=overlap, algorithm=algorithm, compression=compression,
            divide_by=comm.world_size if gradient_as == "mean" else None)
        self.require_backward_grad_sync = True
        self._buffers_due = True                             # whether the last forward ended in a reduction
        self._uneven: Uneven | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if in_backward():                                    # of a checkpoint, which runs forward again
            return self.module(*args, **kwargs)
        grad = mg.is_grad_enabled()
        sync = grad and self.require_backward_grad_sync
        if grad:
            self.reducer.check_done()
            self._check_wrapped()
        if grad and self._uneven is not None:
            self._uneven.announce(sync, self._buffers_due)
        if self._buffers_due:
            self._send_buffers()
        out = self.module(*args, **kwargs)
        self._buffers_due = sync
        if sync:
            self.reducer.expect(out)
        elif grad:
            self.reducer.sync = False
        return out

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of forwards in here stay this rank's own and add up; the first backward of a forward after it
        averages all of them."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def join(self, divide_by_initial_world_size: bool = True, enable: bool = True,
             throw_on_early_termination: bool = False) -> AbstractContextManager[None]:
        """`with model.join():` around the training loop of ranks that have different numbers of batches: a rank that
        leaves it early helps the others with zeros until the last is out, and then gets its model.

        Sums are divided by all ranks, or (`divide_by_initial_world_size=False`) by those that still have data.
        `throw_on_early_termination`: RuntimeError on all ranks instead, when the first runs out."""
        return Uneven(self, divide_by_initial_world_size, throw_on_early_termination).around(enable)

    def _check_wrapped(self) -> None:
        """RuntimeError for parameters that came after wrapping, whose gradients nobody would average."""
        known = {id(p) for p in self.reducer.params}
        new = [name for name, p in self.module.named_parameters() if p.requires_grad and id(p) not in known]
        if new:
            raise RuntimeError(f"DistributedDataParallel, rank {self.comm.rank}: {', '.join(new[:8])} came, changed "
                               "or began to require a gradient after the module was wrapped, so that ranks would drift "
                               "apart. Wrap the module anew on all ranks")

    def _all_values(self) -> list[mg.Tensor]:
        return [*self.module.parameters(), *self.module.buffers()]

    def _send_buffers(self) -> None:
        if self.broadcast_buffers:
            with mg.no_grad():
                broadcast_tensors(self.comm, self.module.buffers(), self.reducer.root)

    def extra_repr(self) -> str:
        r = self.reducer
        return (f"rank {self.comm.rank} of {self.comm.world_size}, {len(r.params)} parameters in {len(r.buckets)} "
                "buckets")


DDP = DistributedDataParallel


# ---- on wrapping ---------------------------------------------------------------------------------
def _check_own(inner: list[str], trained: dict[str, nn.Parameter], comm: Communicator) -> None:
    """ValueError if somebody averages these gradients already: this rank, or another one that has the same module."""
    wrapped = {name: reducer for name, p in trained.items() if (reducer := reducer_of(p)) is not None}
    others = sorted({r.comm.ranks[r.comm.rank] for r in wrapped.values()} - {comm.ranks[comm.rank]})
    if others:
        raise ValueError(f"DistributedDataParallel: rank {others[0]} has wrapped this very module, and ranks share no "
                         "memory. Build it within the program of each rank, or take copy.deepcopy(module) there")
    if inner or wrapped:
        raise ValueError(f"DistributedDataParallel: {', '.join(inner or wrapped)} is wrapped already, and gradients "
                         "would be averaged twice. Wrap the module once, and wrap no part of it")


def _trained(module: nn.Module, comm: Communicator) -> dict[str, nn.Parameter]:
    """{name: parameter} of those that want a gradient; refuses what cannot be wrapped."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"DistributedDataParallel: wraps a Module, got {type(module).__name__}")
    inner = [name or "the module" for name, m in module.named_modules() if isinstance(m, DistributedDataParallel)]
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    _check_own(inner, trained, comm)
    _check_whole(module, comm)
    if not trained:
        raise RuntimeError("DistributedDataParallel: no parameter requires a gradient, so there is nothing to average. "
                           "Use the module itself")
    kinds = dict.fromkeys(str(p.o.device) for p in trained.values())
    if len(kinds) > 1:
        raise ValueError(f"DistributedDataParallel: parameters on {', '.join(kinds)}; a rank has one device. Move the "
                         "module to one with .to(…)")
    return trained


def _check_whole(module: nn.Module, comm: Communicator) -> None:
    """ValueError for a parameter of which ranks of `comm` hold different parts: the mean of those means nothing."""
    for name, shard in shards_of(module):
        shared = sorted({*shard.comm.ranks} & {*comm.ranks})
        if len(shared) > 1:
            raise ValueError(f"DistributedDataParallel: {name} is cut among ranks {', '.join(map(str, shared))}, and "
                             "their parts are not copies of each other. Wrap what is whole on each rank, or average "
                             "along the axis of a Mesh in which it is not cut")


def _own_group(comm: Communicator) -> Communicator:
    """The same ranks as a group of their own: buckets then go in their order, whatever else is called meanwhile."""
    group = comm.split(0)
    assert group is not None
    return group


def _sparse(module: nn.Module, trained: dict[str, nn.Parameter]) -> frozenset[int]:
    """The numbers of parameters whose gradients have few rows: tables of Embedding(sparse=True)."""
    tables = {id(p) for m in module.modules() if getattr(m, "sparse", False) for p in m.parameters(recurse=False)}
    return frozenset(k for k, p in enumerate(trained.values()) if id(p) in tables)


def _check_alike(module: nn.Module, comm: Communicator, options: dict[str, Any]) -> None:
    """RuntimeError on all ranks unless all have the same parameters and buffers, and gave the same options."""
    told = [f"{name}={value}" for name, value in options.items()]
    told += [f"parameter {name}: {tuple(p.shape)} {p.dtype}{'' if p.requires_grad else ', frozen'}"
             for name, p in module.named_parameters()]
    told += [f"buffer {name}: {tuple(b.shape)} {b.dtype}" for name, b in module.named_buffers()]
    gathered = comm.all_gather(np.frombuffer("\n".join(told).encode(), np.uint8))
    first, *others = ([*bytes(a).decode().split("\n"), "nothing more"] for a in gathered)
    for rank, lines in enumerate(others, 1):
        if lines != first:
            one, two = next((a, b) for a, b in zip(first, lines) if a != b)
            raise RuntimeError(f"DistributedDataParallel: ranks 0 and {rank} differ: {one} on rank 0, {two} on rank "
                               f"{rank}. Build the same module on all ranks, freeze the same parameters, and give the "
                               "same options")


__all__ = ["DDP", "DistributedDataParallel"]
