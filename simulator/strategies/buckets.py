"""Buckets: gradients of many parameters that travel as one flat array, since each message costs its latency anew
(Li et al. 2020, PyTorch Distributed).  Before `reducer.py`, which fills and sends them.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import minigrad as mg
from minigrad.algebra import algebra_of
from minigrad.rows import Rows, written

if TYPE_CHECKING:
    from simulator.communicator import Communicator

MIB = 2**20
FIRST_BYTES = 1 * MIB                        # of the first bucket at most, so that sending begins early (PyTorch's)


@dataclass(frozen=True)
class Bucket:
    """`numbers`: its parameters, in the order in which they lie in the flat array.  `rows`: one parameter whose
    gradient has few rows, which travel alone."""

    numbers: tuple[int, ...]
    rows: bool = False


def assign_buckets(params: Sequence[mg.Tensor], order: Iterable[int], cap_bytes: float,
                   sparse: frozenset[int] = frozenset()) -> list[Bucket]:
    """Parameters in this order, into buckets of one dtype and device, each closed when it has at least `cap_bytes` (the
    first: at most 1 MiB); 0 puts each alone.  They stand in the order in which their last parameter comes.

    PyTorch's `_compute_bucket_assignment_by_size`."""
    filling: dict[Any, list[int]] = {}
    filled: dict[Any, int] = {}
    caps: dict[Any, float] = {}
    done: list[tuple[int, Bucket]] = []
    for place, k in enumerate(order):
        if k in sparse:
            done.append((place, Bucket((k,), rows=True)))
            continue
        key = params[k].o
        filling.setdefault(key, []).append(k)
        filled[key] = filled.get(key, 0) + prod(params[k].shape) * params[k].dtype.itemsize
        if filled[key] >= caps.get(key, min(FIRST_BYTES, cap_bytes)):
            done.append((place, Bucket(tuple(filling.pop(key)))))
            filled[key], caps[key] = 0, cap_bytes
    place = len(params)
    done += [(place, Bucket(tuple(numbers))) for numbers in filling.values()]
    return [bucket for _, bucket in sorted(done, key=lambda pair: pair[0])]


def flatten(arrays: Sequence[Any]) -> mg.Tensor:
    """Raw arrays of one dtype and device, one after the other in a flat tensor of its own."""
    o = algebra_of(arrays[0])
    return mg.Tensor(o.cat(tuple(o.reshape(a, (-1,)) for a in arrays), 0))


def unflatten(flat: mg.Tensor, shapes: Iterable[tuple[int, ...]]) -> list[Any]:
    """The raw arrays of these shapes that lie in a flat tensor: views of it."""
    found, at = [], 0
    for shape in shapes:
        found.append(flat.o.reshape(flat.array[at:at + prod(shape)], shape))
        at += prod(shape)
    return found


def broadcast_tensors(comm: Communicator, tensors: Iterable[mg.Tensor], src: int = 0) -> None:
    """All ranks' tensors hold what those of `src` do: one message for each dtype and device."""
    alike: dict[Any, list[mg.Tensor]] = {}
    for t in tensors:
        alike.setdefault(t.o, []).append(t)
    for group in alike.values():
        flat = comm.broadcast(flatten([t.array for t in group]), src)
        if comm.rank != src:
            for t, array in zip(group, unflatten(flat, [t.shape for t in group])):
                written(t, array)


# ---- on their way --------------------------------------------------------------------------------
def send_flat(comm: Communicator, like: Sequence[mg.Tensor], arrays: Sequence[Any], count: float,
              algorithm: str | None) -> Callable[[], list[Any]]:
    """Begin to add up these arrays over all ranks, as one message; what it returns waits for the sums over `count`.

    Sums of 16-bit floats are divided before, as PyTorch does, so that they do not overflow."""
    flat = flatten(arrays)
    o, first = flat.o, flat.o.narrow
    if first:
        flat.array /= o.lit(count)
    handle = comm.all_reduce(flat, algorithm=algorithm, async_op=True)

    def wait() -> list[Any]:
        total = handle.wait()
        if not first:
            total.array /= o.lit(count)
        return unflatten(total, [p.shape for p in like])
    return wait


def send_rows(comm: Communicator, like: mg.Tensor, grad: Rows | mg.Tensor | None,
              count: float) -> Callable[[], list[Any]]:
    """The same for one gradient with few rows: these and their numbers are gathered, not the table."""
    o = like.o
    index = o.arange(like.shape[0])
    if grad is None:
        grad = Rows(index[:0], o.zeros((0, *like.shape[1:]), like.dtype), like.shape)
    elif not isinstance(grad, Rows):                         # a dense gradient beside it has made it dense
        grad = Rows(index, grad.array, like.shape)
    own = grad.coalesce()
    handles = [comm.all_gather(mg.Tensor(a), async_op=True) for a in (own.array_index, own.array_values)]

    def wait() -> list[Any]:
        numbers, values = (o.cat(tuple(t.array for t in handle.wait()), 0) for handle in handles)
        total = Rows(numbers, values, like.shape).coalesce()
        total.array_values = total.array_values / o.lit(count)
        return [total]
    return wait


__all__ = ["Bucket", "FIRST_BYTES", "MIB", "assign_buckets", "broadcast_tensors", "flatten", "send_flat", "send_rows",
           "unflatten"]
