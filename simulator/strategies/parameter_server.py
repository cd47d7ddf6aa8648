"""Parameter servers: the first ranks keep the parameters, the others compute gradients (Li et al. 2014); in step with
each other, each at its own pace, or not too far apart.

    def program(comm, batches):
        model = mg.nn.Linear(3, 1)
        history = parameter_server(comm, model, partial(mg.optim.SGD, lr=0.1), loss_of, batches, mode="async")
        return model.weight                  # on all ranks what the servers had at the end

After `servers.py`.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import index as whole
from typing import TYPE_CHECKING, Any

import numpy as np

import minigrad as mg
from minigrad import nn
from minigrad.rows import Rows
from simulator.strategies.buckets import broadcast_tensors, flatten, unflatten
from simulator.strategies.history import History, host
from simulator.strategies.pieces import (
    DONE,
    NONE,
    PULL,
    PUSH,
    WHOLE,
    Part,
    Piece,
    Request,
    ask,
    cut_over,
    recv_values,
    row_sparse,
    write_rows,
)
from simulator.strategies.servers import MODES, MakeOptimizer, Server

if TYPE_CHECKING:
    from simulator.communicator import Communicator

WantedRows = Mapping[str, Any]               # {name of a table: the numbers of its rows that will be read}


def parameter_server(comm: Communicator, model: nn.Module, make_optimizer: MakeOptimizer,
                     loss_of: Callable[[nn.Module, Any], mg.Tensor], batches: Callable[[int, int], Iterable[Any]], *,
                     servers: int = 1, mode: str = "sync", staleness: int | None = None, aware: bool = True,
                     rows_of: Callable[[Any], WantedRows] | None = None,
                     examples_of: Callable[[Any], int] | None = None, every: int = 1) -> History:
    """Train `model` on the batches of all workers; at the end it is the same on all ranks.  All ranks call it.

    The first `servers` ranks of `comm` are servers, the others workers 0, 1, …: `batches(worker, workers)` are those of
    one worker, `loss_of(model, batch)` the mean loss of one.  `make_optimizer(params)` is called on the servers, with
    their rows of the parameters.

    `mode`: "sync", "async" or "stale" with its bound `staleness`, and `aware`: see `Server`.  `rows_of(batch)`: which
    rows of tables the batch reads (Embedding with sparse=True): only these are pulled.  `examples_of(batch)`: how much
    it weighs in the mean of "sync"; else all batches weigh the same.  `every`: one snapshot in so many updates.

    Buffers (running statistics) stay each worker's own.  The servers' updates take no time on the modelled clock, as
    optimisers do nowhere (`cost.NOT_COUNTED`); their wires do."""
    role = take_role(comm, model, make_optimizer, servers=servers, mode=mode, staleness=staleness, aware=aware,
                     every=every)
    if isinstance(role, Server):
        history = role.serve()
    else:
        for batch in batches(role.number, role.workers):
            role.pull(rows_of(batch) if rows_of else None)
            loss = loss_of(model, batch)
            loss.backward()
            role.note(loss)
            role.push(examples_of(batch) if examples_of else 1)
        role.done()
        history = role.history
    collect(role, model)
    return history


def take_role(comm: Communicator, model: nn.Module, make_optimizer: MakeOptimizer, *, servers: int = 1,
              mode: str = "sync", staleness: int | None = None, aware: bool = True, every: int = 1) -> Server | Worker:
    """What this rank is, for programs with a loop of their own: a Server, to `serve()`, or a Worker, to `pull()`,
    compute gradients, `push()` and at last be `done()`; afterwards `collect(role, model)`.  All ranks call it.

    Parameters and buffers become those of rank 0."""
    _check(comm, servers, mode, staleness)
    if whole(every) < 1:
        raise ValueError(f"parameter_server: every is a number of updates from 1, got {every}")
    params = [p for p in model.parameters() if p.requires_grad]
    pieces = cut_over(params, servers)
    group = comm.split(0)                                    # messages of the user's own keep apart
    assert group is not None
    with mg.no_grad():
        broadcast_tensors(group, [*model.parameters(), *model.buffers()])
    if comm.rank < servers:
        bound = staleness if mode == "stale" else None
        return Server(group, params, pieces[comm.rank], range(servers, comm.world_size), make_optimizer, mode, bound,
                      aware, every)
    return Worker(group, model, params, pieces)


def _check(comm: Communicator, servers: int, mode: str, staleness: int | None) -> None:
    if not 1 <= whole(servers) < comm.world_size:
        raise ValueError(f"parameter server: servers={servers} of {comm.world_size} ranks: at least one server and one "
                         f"worker. Run it on more ranks")
    if mode not in MODES:
        raise ValueError(f"parameter server: mode {mode!r} is none of {', '.join(MODES)}")
    if (mode == "stale") != (staleness is not None):
        raise ValueError(f"parameter server: mode={mode!r} and staleness={staleness}: the bound goes with "
                         f"mode=\"stale\", which needs it")
    if staleness is not None and whole(staleness) < 0:
        raise ValueError(f"parameter server: staleness is at least 0 pushes, got {staleness}")


class Worker:
    """Worker `number` of `workers`: computes gradients at the parameters that it pulled."""

    def __init__(self, comm: Communicator, model: nn.Module, params: Sequence[nn.Parameter],
                 pieces: list[list[Piece]]) -> None:
        self.comm, self.params, self.pieces = comm, params, pieces
        self.number, self.workers = comm.rank - len(pieces), comm.world_size - len(pieces)
        first = self.number % len(pieces)                    # each begins with another one: else all crowd at one wire
        self._turns = [*range(first, len(pieces)), *range(first)]
        self.clock = 0                                       # how often it pushed
        self.history = History(comm.rank)
        self._numbers = {id(p): k for k, p in enumerate(params)}
        self._names = {name: self._numbers[id(p)] for name, p in model.named_parameters(remove_duplicate=False)
                       if id(p) in self._numbers}
        self._sparse = row_sparse(model, params)
        self._pulled: dict[int, np.ndarray] | None = None    # rows that are fresh, of tables pulled by rows

    def pull(self, rows: WantedRows | None = None) -> None:
        """The model's parameters become the servers'; of the tables named in `rows` only the rows of these numbers.
        Waits for other workers where the mode says so."""
        wanted = self._wanted(rows or {})
        indices = [[_within(wanted.get(piece.number), piece) for piece in pieces] for pieces in self.pieces]
        for server in self._turns:
            parts = [Part(self._on_device(index), None) for index in indices[server] if index is not None]
            counts = tuple(WHOLE if index is None else len(index) for index in indices[server])
            ask(self.comm, server, Request(PULL, self.clock, 0, counts), parts)
        for server in self._turns:
            self._read(server, indices[server])
        self._pulled = wanted

    def _read(self, server: int, indices: Sequence[np.ndarray | None]) -> None:
        pieces = self.pieces[server]
        shapes = []
        for piece, index in zip(pieces, indices):
            p = self.params[piece.number]
            shapes.append((p.dtype, piece.shape(p) if index is None else (len(index), *p.shape[1:])))
        for piece, index, values in zip(pieces, indices, recv_values(self.comm, server, shapes)):
            on_device = None if index is None else self._on_device(index)
            write_rows(self.params[piece.number], piece, on_device, values)

    def push(self, examples: int = 1) -> None:
        """Send the gradients, as the mean over so many examples, and take them away; goes on at once."""
        if self._pulled is None:
            raise RuntimeError(f"push: worker {self.number} has not pulled since it pushed, so nobody knows at which "
                               "parameters these gradients were computed. Call pull() first; several backward() add up")
        if whole(examples) < 0:
            raise ValueError(f"push: a number of examples is at least 0, got {examples}")
        grads = [self._gradient(k, p) for k, p in enumerate(self.params)]
        for server in self._turns:
            parts = [_part(grads[piece.number], piece) for piece in self.pieces[server]]
            counts = tuple(NONE if part is None else WHOLE if part.numbers is None else part.numbers.shape[0]
                           for part in parts)
            ask(self.comm, server, Request(PUSH, self.clock, examples, counts), [part for part in parts if part])
        for p in self.params:
            p.grad = None
        self.clock, self._pulled = self.clock + 1, None

    def done(self) -> None:
        """No more batches: nobody waits for this worker any more."""
        for server, pieces in enumerate(self.pieces):
            ask(self.comm, server, Request(DONE, self.clock, 0, (NONE,) * len(pieces)))

    def note(self, loss: mg.Tensor | float) -> None:
        """Keep this loss and the time, in `history`."""
        self.history.losses.append((self.comm.time, float(loss)))

    # -- rows
    def _wanted(self, rows: WantedRows) -> dict[int, np.ndarray]:
        found = {}
        for name, numbers in rows.items():
            k = self._names.get(name)
            if k not in self._sparse:
                tables = [n for n, number in self._names.items() if number in self._sparse]
                raise ValueError(f"pull: rows of {name!r}, which is no trained table of Embedding(sparse=True); "
                                 f"there are {', '.join(tables) or 'none'}. Leave it out: then all of it is pulled")
            index = np.unique(host(numbers) if isinstance(numbers, mg.Tensor) else np.asarray(numbers, np.int64))
            size = self.params[k].shape[0]
            if index.size and not 0 <= index[0] <= index[-1] < size:
                raise IndexError(f"pull: {name} has rows 0 … {size - 1}, asked for {index[0]} … {index[-1]}")
            found[k] = index
        return found

    def _gradient(self, k: int, p: mg.Tensor) -> Any:
        """(raw array or None, None), or (values, host row numbers in order) where rows alone travel."""
        g = p.grad
        if g is None:
            return None, None
        fresh = (self._pulled or {}).get(k)
        if not isinstance(g, Rows):
            if fresh is not None:
                raise ValueError(f"push: the gradient of {self._name(k)} is dense, so all its rows may have been read, "
                                 f"and {len(fresh)} of {p.shape[0]} were pulled. Pull it whole: leave it out of rows")
            return g.array, None
        g = g.coalesce()
        numbers = host(mg.Tensor(g.array_index))
        old = numbers[:0] if fresh is None else np.setdiff1d(numbers, fresh)
        if old.size:
            name = self._name(k)
            raise ValueError(f"push: the gradient of {name} has rows {old[:4].tolist()} … that were not pulled, so old "
                             f"values were read. Name all rows that the batch reads: pull({{{name!r}: …}})")
        return g.array_values, numbers

    def _name(self, k: int) -> str:
        return next(name for name, number in self._names.items() if number == k)

    def _on_device(self, index: np.ndarray) -> Any:
        return mg.tensor(index, dtype=mg.int64, device=self.comm.device).array


def _within(index: np.ndarray | None, piece: Piece) -> np.ndarray | None:
    """Those of the row numbers, in order, that lie in this piece, counted from its start."""
    if index is None:
        return None
    return index[slice(*np.searchsorted(index, [piece.start, piece.stop]))] - piece.start


def _part(gradient: tuple[Any, np.ndarray | None], piece: Piece) -> Part | None:
    """What of a gradient goes to the server of this piece."""
    values, numbers = gradient
    if values is None or numbers is None:
        return None if values is None else Part(None, piece.of(values))
    a, b = np.searchsorted(numbers, [piece.start, piece.stop])
    index = mg.tensor(numbers[a:b] - piece.start, dtype=mg.int64, device=str(mg.Tensor(values).device)).array
    return Part(index, values[a:b])


def collect(role: Server | Worker, model: nn.Module) -> None:
    """`model` gets, on all ranks, the parameters that the servers have at the end.  All ranks call it."""
    params = [p for p in model.parameters() if p.requires_grad]
    servers = role.comm.world_size - role.workers
    for server, pieces in enumerate(cut_over(params, servers)):
        own = dict(zip(pieces, role.own)) if isinstance(role, Server) and role.comm.rank == server else {}
        for dtype in dict.fromkeys(params[piece.number].dtype for piece in pieces):
            alike = [piece for piece in pieces if params[piece.number].dtype == dtype]
            flat = role.comm.broadcast(flatten([own[p].array for p in alike]) if own else None, server)
            shapes = [piece.shape(params[piece.number]) for piece in alike]
            for piece, values in zip(alike, unflatten(flat, shapes)):
                write_rows(params[piece.number], piece, None, values)


__all__ = ["Worker", "collect", "parameter_server", "take_role"]
