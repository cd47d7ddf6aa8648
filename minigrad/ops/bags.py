"""Bags of rows of a table: embedding_bag; and channels dealt anew.  After `embed.py` and `indexed.py`."""

from __future__ import annotations

import numpy as np

from minigrad.aval import aval_of
from minigrad.dtype import is_float
from minigrad.errors import ArgumentError, DTypeError, ShapeError
from minigrad.ops.embed import embedding
from minigrad.ops.indexed import index_add, index_reduce
from minigrad.ops.op import cast
from minigrad.ops.views import permute, reshape, unsqueeze
from minigrad.tensor import Tensor


def _bag_numbers(input: Tensor, offsets: Tensor | None, last: bool) -> tuple[Tensor, np.ndarray]:
    """(the flat row numbers, the bag that each belongs to)."""
    if input.ndim == 2:
        if offsets is not None:
            raise ShapeError("embedding_bag: a matrix of numbers has a bag in each row, so it takes no offsets")
        return reshape(input, -1), np.repeat(np.arange(input.shape[0]), input.shape[1])
    if input.ndim != 1 or offsets is None or offsets.ndim != 1 or not offsets.o.eager:
        raise ShapeError(f"embedding_bag: expected numbers (B, N), or (N) with offsets, got {input.shape}")
    starts = offsets.o.host(offsets.array)[:-1] if last else offsets.o.host(offsets.array)
    if starts.size and (starts[0] != 0 or (np.diff(starts) < 0).any() or starts[-1] > input.shape[0]):
        raise ArgumentError(f"embedding_bag: offsets must begin with 0 and rise to at most {input.shape[0]}")
    return input, np.searchsorted(starts, np.arange(input.shape[0]), "right") - 1


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """The sum, mean or maximum of bags of rows of `weight` (V, D): a bag is a row of `input` (B, N), or begins at
    each of `offsets` in `input` (N).  Rows `padding_idx` do not count; an empty bag is 0."""
    if mode not in ("sum", "mean", "max"):
        raise ArgumentError(f"embedding_bag: mode {mode!r} is not one of 'sum', 'mean', 'max'")
    if per_sample_weights is not None and (mode != "sum" or per_sample_weights.shape != input.shape):
        raise ArgumentError(f"embedding_bag: per_sample_weights need mode 'sum' and the shape {input.shape}, got "
                            f"{mode!r} and {per_sample_weights.shape}")
    if is_float(input.dtype):
        raise DTypeError(f"embedding_bag: expected integer row numbers, got {input.dtype}. Convert with .long()")
    numbers, bag = _bag_numbers(input, offsets, include_last_offset)
    n = input.shape[0] if input.ndim == 2 else offsets.shape[0] - include_last_offset
    rows = embedding(numbers, weight, None, max_norm, norm_type, scale_grad_by_freq, sparse)
    kept = numbers == numbers if padding_idx is None else numbers != padding_idx % weight.shape[0]
    at = Tensor(input.o.upload(bag) if input.o.eager else aval_of(bag))
    zeros = Tensor(weight.o.full((n, weight.shape[1]), 0) if weight.o.eager else weight.aval)
    if mode == "max":
        some = kept.nonzero()[:, 0]
        return index_reduce(zeros, 0, at[some], rows[some], "amax", include_self=False)
    share = cast(kept, rows.dtype) if per_sample_weights is None else (
        reshape(per_sample_weights, -1) * cast(kept, rows.dtype))
    total = index_add(zeros, 0, at, rows * unsqueeze(share, 1))
    if mode == "sum":
        return total
    counts = index_add(zeros[:, 0], 0, at, cast(kept, rows.dtype))
    return total / unsqueeze(counts.clamp(min=1), 1)


def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """The channels (axis 1) of `groups` groups dealt in turn, as ShuffleNet does (Zhang et al. 2018)."""
    if input.ndim < 3 or groups < 1 or input.shape[1] % groups:
        raise ShapeError(f"channel_shuffle: {groups} groups of the channels of {input.shape}: expected (N, C, …)")
    n, c, *rest = input.shape
    grid = reshape(input, (n, groups, c // groups, *rest))
    return reshape(permute(grid, 0, 2, 1, *range(3, grid.ndim)), input.shape)
