"""A server: some rows of the parameters, and an optimiser for them; workers pull the rows and push gradients (Li et al.
2014, Scaling Distributed Machine Learning with the Parameter Server).

After `pieces.py`, which says what travels; `parameter_server.py` has the workers.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import minigrad as mg
from minigrad import nn
from minigrad.algebra import algebra_of
from minigrad.rows import Rows
from simulator.strategies.history import Grant, History, Update
from simulator.strategies.pieces import (
    DONE,
    NONE,
    PULL,
    REQUEST,
    Part,
    Piece,
    Request,
    asked,
    recv_index,
    recv_values,
    send_parts,
)

if TYPE_CHECKING:
    from minigrad.optim import Optimizer
    from simulator.communicator import Communicator

MakeOptimizer = Callable[[list[nn.Parameter]], "Optimizer"]
MODES = ("sync", "async", "stale")


class Server:
    """`serve()` answers the workers until the last is done.  Requests are served as they arrive on the modelled clock,
    so a run is the same each time.

    Modes differ in which pulls wait and when gradients count.  A worker's clock is how often it has pushed.

        mode    a pull at clock c waits until          a pushed gradient
        sync    c updates were made                    counts in one mean with those of all workers, by examples
        async   never                                  is one update, at once
        stale   every worker has pushed c - s times    is one update, at once        (s: `staleness`; Ho et al. 2013)

    A worker that is done is waited for no more.  `aware`: an update that is `k` > 1 updates late is made with lr / k
    (Zhang et al. 2016, Staleness-aware Async-SGD)."""

    def __init__(self, comm: Communicator, params: Sequence[mg.Tensor], pieces: Sequence[Piece], workers: Sequence[int],
                 make_optimizer: MakeOptimizer, mode: str, staleness: int | None, aware: bool, every: int) -> None:
        self.comm, self.pieces, self.mode, self.bound, self.aware = comm, list(pieces), mode, staleness, aware
        self.own = [nn.Parameter(mg.Tensor(p.o.copy(piece.of(p.array)))) for piece in pieces
                    for p in [params[piece.number]]]
        self.optimizer = make_optimizer(self.own)
        self._check_whole(params)
        self.workers = len(workers)
        self.version = self.batches = 0                      # updates made, and gradients that they were made of
        self.clocks = dict.fromkeys(workers, 0)              # worker -> pushes that have arrived, while it works
        self._read = dict.fromkeys(workers, 0)               # worker -> the version it pulled last
        self._waiting: dict[int, tuple[Request, list[Any]]] = {}     # pulls not yet answered, in order of arrival
        self._round: dict[int, tuple[int, list]] = {}        # sync: worker -> (examples, gradients) of the next update
        self.history = History(comm.rank, every)

    @property
    def slowest(self) -> int | None:
        """The smallest clock of those who work; None when all are done."""
        return min(self.clocks.values(), default=None)

    def serve(self) -> History:
        """Until all workers are done."""
        self._snap()
        while self.clocks:
            worker, header = self.comm.recv_any(REQUEST)
            request = asked(header)
            if request.kind == DONE:
                del self.clocks[worker]
            elif request.kind == PULL:
                self._waiting[worker] = request, recv_index(self.comm, worker, request.counts)
            else:
                self._take(worker, request)
            self._end_round()
            for each in [w for w, (pull, _) in self._waiting.items() if self._may_read(pull.clock)]:
                self._answer(each)
        return self.history

    # -- pulls
    def _may_read(self, clock: int) -> bool:
        if self.mode == "sync":
            return self.version >= clock
        return self.bound is None or self.slowest is None or clock - self.slowest <= self.bound

    def _answer(self, worker: int) -> None:
        request, indices = self._waiting.pop(worker)
        self._read[worker] = self.version
        self.history.grants.append(Grant(self.comm.time, worker, request.clock, self.slowest))
        send_parts(self.comm, worker, [Part(None, p.array if index is None else p.array[index])
                                       for p, index in zip(self.own, indices)])

    # -- pushes
    def _take(self, worker: int, request: Request) -> None:
        indices = recv_index(self.comm, worker, request.counts)
        given = [k for k, count in enumerate(request.counts) if count != NONE]
        shapes = [(p.dtype, tuple(p.shape) if index is None else (index.shape[0], *p.shape[1:]))
                  for p, index in zip(self.own, indices)]
        values = recv_values(self.comm, worker, [shapes[k] for k in given])
        grads: list[Any] = [None] * len(self.own)
        for k, array in zip(given, values):
            grads[k] = array if indices[k] is None else Rows(indices[k], array, tuple(self.own[k].shape))
        self.clocks[worker] += 1
        if self.mode == "sync":
            self._round[worker] = request.examples, grads
        else:
            self.batches += 1
            self._update(worker, grads, self.version - self._read[worker])

    def _end_round(self) -> None:
        """The synchronous update, once all who work have pushed: the mean over the examples of all."""
        if not self._round or self.clocks.keys() - self._round.keys():
            return
        total = sum(examples for examples, _ in self._round.values())
        mean: list[Any] = [None] * len(self.own)
        for worker in sorted(self._round):
            examples, grads = self._round[worker]
            for k, g in enumerate(grads):
                if g is not None:
                    part = _scaled(g, examples / total if total else 0.0)
                    mean[k] = part if mean[k] is None else mean[k] + part
        self.batches += len(self._round)
        self._round.clear()
        self._update(self.comm.rank, mean, 0)

    def _update(self, worker: int, grads: Sequence[Any], staleness: int) -> None:
        for p, g in zip(self.own, grads):
            p.grad = g if g is None or isinstance(g, Rows) else mg.Tensor(g)             # type: ignore[assignment]
        groups = self.optimizer.param_groups
        rates = [group["lr"] for group in groups]
        try:
            for group, lr in zip(groups, rates):
                group["lr"] = lr / staleness if self.aware and staleness > 1 else lr
            self.optimizer.step()
        finally:
            for group, lr in zip(groups, rates):
                group["lr"] = lr
        self.optimizer.zero_grad()
        self.version += 1
        self.history.updates.append(Update(self.comm.time, worker, staleness))
        self._snap()

    # -- the rest
    def _snap(self) -> None:
        values = {(piece.number, piece.start): p for piece, p in zip(self.pieces, self.own)}
        self.history.snap(self.comm.time, self.version, self.batches, values)

    def _check_whole(self, params: Sequence[mg.Tensor]) -> None:
        """An optimiser that needs the norm of a parameter cannot have a part of it."""
        cut_ones = [piece for piece in self.pieces if piece.shape(params[piece.number]) != params[piece.number].shape]
        if cut_ones and self.optimizer.whole:
            first = cut_ones[0]
            raise ValueError(f"parameter server: {type(self.optimizer).__name__} needs each parameter whole, and a "
                             f"server has rows {first.start} … {first.stop - 1} of one of shape "
                             f"{tuple(params[first.number].shape)}. Use servers=1, or an optimiser of elements")


def _scaled(g: Any, weight: float) -> Any:
    if weight == 1:
        return g
    return g * weight if isinstance(g, Rows) else g * algebra_of(g).lit(weight)


__all__ = ["MODES", "MakeOptimizer", "Server"]
