"""A border of constants, mirrored, repeated or wrapped elements.  After `structure.py`."""

from __future__ import annotations

import math

import numpy as np

from minigrad.algebra import algebra
from minigrad.errors import ArgumentError, ShapeError
from minigrad.ops.index import getitem
from minigrad.ops.shape import Pad
from minigrad.ops.views import cut
from minigrad.tensor import Tensor, apply


def pad(input: Tensor, pad, mode: str = "constant", value: float | None = None) -> Tensor:
    """A border around the last axes: `pad` counts (before, after) from the last axis on; negative numbers crop.

    Modes: "constant", "reflect" (mirrored without the edge), "replicate" (the edge repeated), "circular"."""
    counts = [int(n) for n in pad]
    if len(counts) % 2 or len(counts) > 2 * input.ndim:
        raise ShapeError(f"pad: {tuple(counts)} must hold (before, after) for some of the last axes of {input.shape}")
    pairs = list(zip(counts[::2], counts[1::2]))[::-1]
    widths = [(0, 0)] * (input.ndim - len(pairs)) + pairs
    if mode == "constant":
        return _constant(input, widths, 0.0 if value is None else value)
    if mode not in _PLACES:
        raise ArgumentError(f"pad: mode {mode!r} is not one of 'constant', 'reflect', 'replicate', 'circular'")
    if len(pairs) not in (input.ndim - 2, input.ndim - 1):
        raise ShapeError(f"pad: mode {mode!r} borders all axes but one or two; {len(pairs)} pairs for {input.shape}")
    if value:
        raise ArgumentError(f"pad: mode {mode!r} takes no value, got {value}")
    crop = tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(input.shape, widths))
    if mode == "circular" and min(map(min, widths)) < 0:        # PyTorch crops first, then wraps what is left
        input, widths = cut(input, crop), [(max(a, 0), max(b, 0)) for a, b in widths]
    for axis, (before, after) in enumerate(widths):
        if before or after:
            input = _bordered(input, axis, before, after, mode)
    return input


def _constant(x: Tensor, widths: list[tuple[int, int]], value: float) -> Tensor:
    """Cropped where a width is negative, then bordered."""
    if any(n + a + b < 0 for n, (a, b) in zip(x.shape, widths)):
        raise ShapeError(f"pad: widths {widths} leave a negative size of {x.shape}")
    if min(map(min, widths), default=0) < 0:
        x = cut(x, tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(x.shape, widths)))
    grown = tuple((max(a, 0), max(b, 0)) for a, b in widths)
    return apply(Pad.of(grown, value), x) if any(map(any, grown)) else x.clone()


_PLACES = {
    "reflect": lambda k, n: np.abs((k - (n - 1)) % max(2 * (n - 1), 1) - (n - 1)),
    "replicate": lambda k, n: np.clip(k, 0, n - 1),
    "circular": lambda k, n: k % n,
}


def _bordered(x: Tensor, axis: int, before: int, after: int, mode: str) -> Tensor:
    """One axis with a border whose elements come from inside."""
    n = x.shape[axis]
    most = {"reflect": n - 1, "replicate": math.inf if n else 0, "circular": n}[mode]
    if max(before, after) > most or n + before + after < 1:
        raise ShapeError(f"pad: mode {mode!r} cannot make borders of {before} and {after} from an axis of {n}")
    at = _PLACES[mode](np.arange(-before, n + after), n)
    index = Tensor(algebra(x.o.device, np.dtype(np.int64)).upload(at)) if x.o.eager else at
    return getitem(x, (*(slice(None),) * axis, index))
