"""Sequences and images at another size: by the nearest element, or linearly between two.  After `convolutions.py`.

Each axis is one product with a matrix of weights, so the gradient is the product with its transpose.
"""

from __future__ import annotations

import math

import numpy as np

from minigrad.aval import Aval
from minigrad.errors import ShapeError
from minigrad.ops.matmul import matmul
from minigrad.ops.pooling import sizes_of
from minigrad.ops.views import transpose
from minigrad.tensor import Tensor

AXES = {"nearest": (1, 2), "linear": (1,), "bilinear": (2,)}


def weights(n: int, m: int, mode: str, align_corners: bool, scale: float | None) -> np.ndarray:
    """(m, n): how much each of n elements counts in each of m.  `scale`: the factor asked for, else m / n."""
    at = np.arange(m)
    ratio = 1 / scale if scale else n / m
    if mode == "nearest":
        low = np.minimum(np.floor(at * ratio).astype(int), n - 1)
        return np.eye(n)[low]
    # pixels are squares whose centres are matched, unless the outermost centres are
    place = at * ((n - 1) / (m - 1) if m > 1 else 0.0) if align_corners else np.maximum((at + 0.5) * ratio - 0.5, 0)
    low = np.minimum(np.floor(place).astype(int), n - 1)
    high, part = np.minimum(low + 1, n - 1), (place - low)[:, None]
    return np.eye(n)[low] * (1 - part) + np.eye(n)[high] * part


def interpolate(
    input: Tensor, size=None, scale_factor=None, mode: str = "nearest", align_corners: bool | None = None
) -> Tensor:
    """(N, C, L) or (N, C, H, W) at another size: `size`, or `scale_factor` times the old one, rounded down.

    Modes: "nearest"; "linear" of sequences and "bilinear" of images, with the outermost elements kept in place if
    `align_corners`."""
    n = input.ndim - 2
    if mode not in AXES:
        raise NotImplementedError(f"interpolate: mode {mode!r} is none of {', '.join(AXES)}")
    if n not in AXES[mode]:
        raise ShapeError(f"interpolate: mode {mode!r} of {input.shape}: expected {[a + 2 for a in AXES[mode]]} axes")
    if (size is None) == (scale_factor is None):
        raise ValueError(f"interpolate: give either size or scale_factor, got {size} and {scale_factor}")
    if align_corners is not None and mode == "nearest":
        raise ValueError("interpolate: align_corners is for 'linear' and 'bilinear'")
    old: tuple[int, ...] = input.shape[2:]
    scales: tuple[float | None, ...] = (None,) * n
    if scale_factor is not None:
        several = isinstance(scale_factor, tuple | list)
        factors = tuple(map(float, scale_factor)) if several else (float(scale_factor),) * n
        scales, new = factors, tuple(math.floor(m * s) for m, s in zip(old, factors))
    else:
        new = sizes_of(size, n, "interpolate: size")
    if len(scales) != n or min(*old, *new) < 1:
        raise ShapeError(f"interpolate: from {old} to {new}: {n} sizes of at least 1 are needed")
    x = input
    for k, (a, b, scale) in enumerate(zip(old, new, scales)):
        host = weights(a, b, mode, bool(align_corners), scale)
        w = Tensor(x.o.constant(host) if x.o.eager else Aval(host.shape, x.dtype))  # (b, a)
        x = matmul(x, transpose(w, 0, 1)) if k == n - 1 else matmul(w, x)
    return x
