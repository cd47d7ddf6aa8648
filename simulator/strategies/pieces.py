"""Parameters cut over servers, and what travels between a worker and a server: requests, rows and their numbers.

After `history.py`; `servers.py` is the one end, `parameter_server.py` the other.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import minigrad as mg
from minigrad import nn
from minigrad.rows import written
from minigrad.tensor import Writes
from simulator.collectives import cut
from simulator.strategies.buckets import flatten, unflatten

if TYPE_CHECKING:
    from simulator.communicator import Communicator

PULL, PUSH, DONE = range(3)                  # kinds of requests
REQUEST, DATA = range(2)                     # tags
NONE, WHOLE = -1, -2                         # in place of a number of rows: no gradient; all rows, no numbers needed


class Piece(NamedTuple):
    """The rows `start` … `stop` - 1 of parameter number `number` (one without dimensions is one row)."""

    number: int
    start: int
    stop: int

    def of(self, array: Any) -> Any:
        """Its rows of a raw array of the whole parameter: a view."""
        return array[self.start:self.stop] if array.ndim else array

    def shape(self, p: mg.Tensor) -> tuple[int, ...]:
        return (self.stop - self.start, *p.shape[1:]) if p.ndim else ()


class Part(NamedTuple):
    """What of a piece travels: raw `values` of its rows of these `numbers`, counted from its start (None: of all)."""

    numbers: Any | None
    values: Any


class Request(NamedTuple):
    """What a worker asks: `counts`, for each piece of that server, WHOLE, NONE, or how many rows."""

    kind: int
    clock: int
    examples: int
    counts: tuple[int, ...]


def cut_over(params: Sequence[mg.Tensor], servers: int) -> list[list[Piece]]:
    """The pieces of each server: each parameter cut by rows as evenly as can be; which server gets the larger pieces
    goes round, so that many small parameters are spread."""
    found: list[list[Piece]] = [[] for _ in range(servers)]
    for number, p in enumerate(params):
        start = 0
        for k, rows in enumerate(cut(p.shape[0] if p.ndim else 1, servers)):
            if rows:
                found[(number + k) % servers].append(Piece(number, start, start + rows))
            start += rows
    empty = [k for k, pieces in enumerate(found) if not pieces]
    if empty:
        raise ValueError(f"parameter server: servers={servers}, and the {len(params)} parameters, of shapes "
                         f"{[tuple(p.shape) for p in params][:4]}, have no row for {len(empty)} of them. Use at most "
                         f"{servers - len(empty)}")
    return found


def row_sparse(model: nn.Module, params: Sequence[mg.Tensor]) -> frozenset[int]:
    """The numbers of parameters of which few rows are read at a time: tables of Embedding(sparse=True)."""
    tables = {id(p) for m in model.modules() if getattr(m, "sparse", False) for p in m.parameters(recurse=False)}
    return frozenset(k for k, p in enumerate(params) if id(p) in tables)


# ---- on the wire ---------------------------------------------------------------------------------
def ask(comm: Communicator, dst: int, request: Request, parts: Iterable[Part] = ()) -> None:
    """Send a request; what belongs to it goes first, so that it is there when the request is."""
    send_parts(comm, dst, parts)
    comm.isend(np.array([*request[:3], *request.counts], np.int64), dst, REQUEST)


def asked(header: np.ndarray) -> Request:
    kind, clock, examples, *counts = header.tolist()
    return Request(kind, clock, examples, tuple(counts))


def send_parts(comm: Communicator, dst: int, parts: Iterable[Part]) -> None:
    """One message with the row numbers of all parts, if there are any, and one with the values for each dtype."""
    parts = list(parts)
    for arrays in ([part.numbers for part in parts if part.numbers is not None], *_by_dtype([p.values for p in parts])):
        if sum(a.size for a in arrays):
            comm.isend(flatten(arrays), dst, DATA)


def recv_index(comm: Communicator, src: int, counts: Iterable[int]) -> list[Any]:
    """The row numbers (raw) of each piece, None where no numbers come."""
    counts = list(counts)
    told = [n for n in counts if n >= 0]
    flat = comm.recv(src, DATA) if sum(told) else mg.empty(0, dtype=mg.int64, device=comm.device)
    arrays = iter(unflatten(flat, [(n,) for n in told]))
    return [next(arrays) if n >= 0 else None for n in counts]


def recv_values(comm: Communicator, src: int, shapes: Sequence[tuple[np.dtype, tuple[int, ...]]]) -> list[Any]:
    """The raw arrays of these dtypes and shapes, in this order."""
    like = [np.empty((0,), dtype) for dtype, _ in shapes]
    found: list[Any] = [None] * len(shapes)
    for dtype in dict.fromkeys(a.dtype for a in like):
        places = [k for k, (each, _) in enumerate(shapes) if each == dtype]
        wanted = [shapes[k][1] for k in places]
        empty = not sum(int(np.prod(shape)) for shape in wanted)
        flat = mg.empty(0, dtype=dtype, device=comm.device) if empty else comm.recv(src, DATA)
        for k, array in zip(places, unflatten(flat, wanted)):
            found[k] = array
    return found


def _by_dtype(arrays: Iterable[Any]) -> list[list[Any]]:
    alike: dict[Any, list[Any]] = {}
    for a in arrays:
        if a is not None:
            alike.setdefault(a.dtype, []).append(a)
    return list(alike.values())


def write_rows(p: mg.Tensor, piece: Piece, index: Any | None, values: Any) -> None:
    """These rows of the piece, or all of them, take these values."""
    if index is None:
        written(mg.Tensor(piece.of(p.array)), values)
    else:
        p.array[index + piece.start] = values
        Writes.note(p.array)


__all__ = ["DATA", "DONE", "NONE", "PULL", "PUSH", "Part", "Piece", "REQUEST", "Request", "WHOLE", "ask", "asked",
           "cut_over", "recv_index", "recv_values", "row_sparse", "send_parts", "write_rows"]
