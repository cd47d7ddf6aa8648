"""Ranks with different numbers of batches: who is out of data goes on to answer the calls of those who are not, with
zeros; as `torch.distributed.algorithms.Join`.  Before `data_parallel.py`, whose `join` this is.
"""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

import minigrad as mg
from simulator.strategies.buckets import broadcast_tensors

if TYPE_CHECKING:
    from simulator.strategies.data_parallel import DistributedDataParallel

DATA, SYNC, BUFFERS = range(3)               # rows of what ranks tell: has data; will average; sends buffers


class Uneven:
    """What one `join` remembers.  Before each forward of a rank that has data all ranks tell, as one small sum, who has
    data; the lowest of these stands for rank 0 where that is out."""

    def __init__(self, ddp: DistributedDataParallel, by_initial_world_size: bool, throw: bool) -> None:
        self.ddp, self.by_initial_world_size, self.throw = ddp, by_initial_world_size, throw
        self.last: int | None = None                         # the lowest rank that had data when any had

    @contextmanager
    def around(self, enable: bool) -> Iterator[None]:
        ddp = self.ddp
        if ddp._uneven is not None:
            raise RuntimeError("join: this model is in a join already")
        if not enable:
            yield
            return
        before = ddp.reducer.root, ddp.reducer.divide_by
        ddp._uneven = self
        try:
            yield
            self._help()
        finally:
            ddp._uneven = None
            ddp.reducer.root, ddp.reducer.divide_by = before

    def announce(self, sync: bool, buffers: bool) -> None:
        """This rank has a batch, and whether its forward sends buffers, its backward gradients."""
        told = self._tell(True, sync, buffers)
        self._check_same(told[SYNC], told[DATA])

    def _tell(self, *own: bool) -> np.ndarray:
        """What all ranks tell, (3, world size)."""
        comm, reducer = self.ddp.comm, self.ddp.reducer
        table = np.zeros((3, comm.world_size), np.uint8)
        table[:, comm.rank] = own
        table = comm.all_reduce(table)
        having = np.flatnonzero(table[DATA])
        if having.size:
            self.last = reducer.root = int(having[0])
            if self.throw and having.size < comm.world_size:
                out = ", ".join(map(str, np.flatnonzero(table[DATA] == 0)))
                raise RuntimeError(f"join: rank {out} of {comm.world_size} has no more data, and "
                                   "throw_on_early_termination was asked for")
            if reducer.divide_by is not None and not self.by_initial_world_size:
                reducer.divide_by = having.size
        return table

    def _check_same(self, sync: np.ndarray, having: np.ndarray) -> None:
        if sync.any() and (sync != having).any():
            alone = ", ".join(map(str, np.flatnonzero(sync != having)))
            raise RuntimeError(f"join: rank {alone} is in no_sync() in this step, and the others are not. All ranks "
                               "that have data average in the same steps")

    def _help(self) -> None:
        """Until nobody has data: what a forward and a backward of those who have would need of this rank."""
        ddp = self.ddp
        ddp.reducer.check_done()
        while (told := self._tell(False, False, False))[DATA].any():
            if told[BUFFERS].any():
                ddp._send_buffers()
            if told[SYNC].any():
                ddp.reducer.finish(empty=True)
        if self.last is not None:
            with mg.no_grad():
                broadcast_tensors(ddp.comm, ddp._all_values(), self.last)


__all__ = ["Uneven"]
