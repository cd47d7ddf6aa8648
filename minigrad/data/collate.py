"""From a list of items to a batch: tensors are stacked, dicts and tuples are kept.  After `sampler.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minigrad.create import tensor
from minigrad.dtype import float64
from minigrad.errors import ShapeError
from minigrad.ops.shape import stack
from minigrad.tensor import Tensor


def default_collate(batch: list) -> Any:
    """A batch of items of one kind: tensors and arrays stacked, numbers as a tensor, texts as a list, the inside of
    dicts, tuples and lists each on its own."""
    first = batch[0]
    if isinstance(first, Tensor | np.ndarray):
        return stacked([x if isinstance(x, Tensor) else Tensor(np.array(x)) for x in batch])
    if isinstance(first, bool | int | float | np.generic):
        return tensor(np.array(batch), dtype=float64 if isinstance(first, float) else None)
    if isinstance(first, str | bytes) or first is None:
        return batch
    if isinstance(first, Mapping):
        return {key: default_collate([item[key] for item in batch]) for key in first}
    if isinstance(first, Sequence):
        return _sequence(first, batch)
    raise TypeError(
        f"default_collate: cannot make a batch of {type(first).__name__}; pass a collate_fn to the DataLoader"
    )


def stacked(batch: list[Tensor]) -> Tensor:
    shapes = {x.shape for x in batch}
    if len(shapes) > 1:
        raise ShapeError(
            f"default_collate: the items have different shapes: {', '.join(map(str, sorted(shapes)))}. "
            "Pad them, or pass a collate_fn to the DataLoader"
        )
    return stack(batch)


def _sequence(first: Any, batch: list) -> Any:
    lengths = {len(item) for item in batch}
    if len(lengths) > 1:
        raise ShapeError(
            f"default_collate: the items have different lengths: {sorted(lengths)}. Pass a collate_fn to the DataLoader"
        )
    parts = [default_collate(list(part)) for part in zip(*batch)]
    return type(first)(*parts) if hasattr(first, "_fields") else parts
