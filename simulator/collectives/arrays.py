"""A plan carried out on real arrays of all ranks in one place: what the communicator does with ranks that run apart.

After `plan.py` and `algorithms.py`.  A rank's values are a dict from chunk to flat array.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from simulator.collectives.algorithms import make_plan
from simulator.collectives.plan import REDUCING, WHOLE, Plan, cut

Values = dict[int, np.ndarray]


def run(plan: Plan, values: Sequence[Values], combine: Callable[..., Any] = np.add) -> Sequence[Values]:
    """The values of all ranks after the plan; arrays given are written to.  `combine`: a commutative ufunc."""
    for messages in plan.messages:
        moving = [(message, [values[message.src][chunk].copy() for chunk in message.chunks]) for message in messages]
        for message, payload in moving:
            own = values[message.dst]
            for chunk, reduce, new in zip(message.chunks, message.reduce, payload):
                if reduce:
                    combine(own[chunk], new, out=own[chunk])
                elif chunk in own:
                    own[chunk][...] = new
                else:
                    own[chunk] = new
    return values


def pieces(flat: np.ndarray, sizes: Sequence[int], chunks: Sequence[int] | None = None) -> Values:
    """Views of a flat array, one after the other, as chunks 0, 1 … or those named."""
    ends = np.cumsum([0, *sizes])
    if ends[-1] != flat.size:
        raise ValueError(f"pieces: sizes {list(sizes)} make {ends[-1]} elements, the array has {flat.size}")
    names = range(len(sizes)) if chunks is None else chunks
    return {chunk: flat[a:b] for chunk, a, b in zip(names, ends[:-1].tolist(), ends[1:].tolist())}


def collective(kind: str, arrays: Sequence[np.ndarray], algorithm: str | None = None, *,
               rows: Sequence[int] | None = None, combine: Callable[..., Any] = np.add,
               **how: Any) -> list[np.ndarray | None]:
    """The result of each rank, new arrays; None for a rank that gets none.  `arrays`: what each rank gives.

    all_gather, gather: joined along the first dimension, in which they may differ.  scatter, reduce_scatter: cut along
    it, into `rows` rows for each rank or as evenly as it goes.  all_to_all: the same for what each rank gives; rank d
    gets the d-th piece of each, joined.  broadcast, scatter: what is not the root's counts for nothing."""
    plan = make_plan(kind, algorithm, len(arrays), **how)
    given = [np.asarray(array) for array in arrays]
    like = _alike(plan, given)
    before = _given_chunks(plan, given, like, rows)
    after = run(plan, before, combine)
    shapes = [_shape(plan, given, like, rows, rank) for rank in range(plan.world)]
    return [_result([after[rank][chunk] for chunk in plan.goal(rank)], like.dtype, shape)
            for rank, shape in enumerate(shapes)]


def _alike(plan: Plan, given: list[np.ndarray]) -> np.ndarray:
    """The array whose dtype and shape counts; ValueError where others do not fit to it."""
    like = given[plan.root]
    if plan.kind in ("broadcast", "scatter"):
        return like
    whole = plan.kind in REDUCING
    for rank, array in enumerate(given):
        shapes = (array.shape, like.shape) if whole else (array.shape[1:], like.shape[1:])
        if array.dtype != like.dtype or shapes[0] != shapes[1] or (not whole and array.ndim == 0):
            raise ValueError(f"{plan.kind}: rank {rank} gives {array.dtype} {array.shape}, rank {plan.root} "
                             f"{like.dtype} {like.shape}: the dtype and the shape"
                             f"{'' if whole else ' after the first dimension'} must be equal")
    return like


def _given_chunks(plan: Plan, given: list[np.ndarray], like: np.ndarray, rows: Sequence[int] | None) -> list[Values]:
    each = plan.chunks // plan.world if plan.kind not in WHOLE else 1
    if plan.kind in ("all_gather", "gather"):
        return [pieces(a.ravel().copy(), cut(a.size, each), plan.start(r)) for r, a in enumerate(given)]
    if plan.kind == "all_to_all":
        return [pieces(a.ravel().copy(), _row_sizes(plan, a, rows), plan.start(r)) for r, a in enumerate(given)]
    if plan.kind in WHOLE:
        sizes = plan.sizes(like.size)
    else:
        sizes = [size for block in _row_sizes(plan, like, rows) for size in cut(block, each)]
    return [pieces(a.ravel().copy(), sizes) if plan.start(r) else {} for r, a in enumerate(given)]


def _row_sizes(plan: Plan, array: np.ndarray, rows: Sequence[int] | None) -> list[int]:
    """Elements of each rank's piece."""
    counts = _row_counts(plan, array, rows)
    width = array.size // len(array) if len(array) else 0
    return [count * width for count in counts]


def _row_counts(plan: Plan, array: np.ndarray, rows: Sequence[int] | None) -> list[int]:
    if array.ndim == 0:
        raise ValueError(f"{plan.kind}: an array without dimensions cannot be cut among {plan.world} ranks")
    counts = cut(len(array), plan.world) if rows is None else list(rows)
    if len(counts) != plan.world or sum(counts) != len(array) or min(counts) < 0:
        raise ValueError(f"{plan.kind}: rows {counts} for {plan.world} ranks and an array of {len(array)} rows; as "
                         f"many numbers as ranks, which add up to the rows")
    return counts


def _shape(plan: Plan, given: list[np.ndarray], like: np.ndarray, rows: Sequence[int] | None,
           rank: int) -> tuple[int, ...]:
    """Of the result of a rank that gets one."""
    if plan.kind in WHOLE:
        return like.shape
    if plan.kind in ("all_gather", "gather"):
        count = sum(map(len, given))
    elif plan.kind == "all_to_all":
        count = sum(_row_counts(plan, array, rows)[rank] for array in given)
    else:
        count = _row_counts(plan, like, rows)[rank]
    return count, *like.shape[1:]


def _result(found: list[np.ndarray], dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray | None:
    return np.concatenate(found).astype(dtype, copy=False).reshape(shape) if found else None


__all__ = ["Values", "collective", "pieces", "run"]
