"""Sequences, images and volumes at another size: by the nearest element, by means, linearly or by cubics.

Each axis is one product with a matrix of weights, so the gradient is the product with its transpose.  After
`convolutions.py`.
"""

from __future__ import annotations

import math

import numpy as np

from minigrad.aval import Aval
from minigrad.errors import ShapeError
from minigrad.ops.matmul import matmul
from minigrad.ops.pooling import cells_of, sizes_of
from minigrad.ops.views import reshape, transpose
from minigrad.tensor import Tensor

ANY = (1, 2, 3)
AXES = {"nearest": ANY, "nearest-exact": ANY, "area": ANY, "linear": (1,), "bilinear": (2,), "trilinear": (3,),
        "bicubic": (2,)}


def weights(n: int, m: int, mode: str, align_corners: bool, scale: float | None) -> np.ndarray:
    """(m, n): how much each of n elements counts in each of m.  `scale`: the factor asked for, else m / n."""
    at = np.arange(m)
    ratio = 1 / scale if scale else n / m
    if mode == "area":
        return np.stack([np.bincount(np.arange(c.start, c.stop), minlength=n) / (c.stop - c.start)
                         for c in cells_of(n, m)])
    if mode.startswith("nearest"):                           # in float32, as PyTorch rounds it
        place = np.float32(ratio) * (at + (0.5 if mode == "nearest-exact" else 0)).astype("f4")
        return np.eye(n)[np.minimum(np.floor(place).astype(int), n - 1)]
    # pixels are squares whose centres are matched, unless the outermost centres are
    place = at * ((n - 1) / (m - 1) if m > 1 else 0.0) if align_corners else (at + 0.5) * ratio - 0.5
    if mode == "bicubic":
        return _cubic(place, n)
    place = np.maximum(place, 0)
    low = np.minimum(np.floor(place).astype(int), n - 1)
    high, part = np.minimum(low + 1, n - 1), (place - low)[:, None]
    return np.eye(n)[low] * (1 - part) + np.eye(n)[high] * part


def _cubic(place: np.ndarray, n: int, a: float = -0.75) -> np.ndarray:
    """Keys 1981: four neighbours by piecewise cubics of their distance; beyond the ends the end itself counts."""
    low = np.floor(place).astype(int)
    total = np.zeros((len(place), n))
    for k in range(-1, 3):
        d = np.abs(place - (low + k))
        near, far = ((a + 2) * d - (a + 3)) * d * d + 1, ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        total += np.eye(n)[np.clip(low + k, 0, n - 1)] * np.where(d <= 1, near, far)[:, None]
    return total


def interpolate(
    input: Tensor, size=None, scale_factor=None, mode: str = "nearest", align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None, antialias: bool = False,
) -> Tensor:
    """(N, C, L), (N, C, H, W) or (N, C, D, H, W) at another size: `size`, or `scale_factor` times the old one, rounded
    down.

    Modes: "nearest", "nearest-exact", "area" (means); "linear" of sequences, "bilinear" and "bicubic" of images,
    "trilinear" of volumes, with the outermost elements kept in place if `align_corners`.  `recompute_scale_factor`:
    distances by the sizes, not by the factor."""
    n = input.ndim - 2
    if mode not in AXES or antialias:
        raise NotImplementedError(f"interpolate: antialias, or mode {mode!r} which is none of {', '.join(AXES)}")
    if n not in AXES[mode]:
        raise ShapeError(
            f"interpolate: mode {mode!r} of {input.shape}: expected {' or '.join(str(a + 2) for a in AXES[mode])} axes")
    if align_corners is not None and "linear" not in mode and mode != "bicubic":
        raise ValueError("interpolate: align_corners is for 'linear', 'bilinear', 'bicubic' and 'trilinear'")
    x, old = input, input.shape[2:]
    new, scales = _sizes(old, size, scale_factor, bool(recompute_scale_factor))
    for k, (a, b, scale) in enumerate(zip(old, new, scales)):
        host = weights(a, b, mode, bool(align_corners), scale)
        w = Tensor(x.o.constant(host) if x.o.eager else Aval(host.shape, x.dtype))  # (b, a)
        if k == n - 1:
            x = matmul(x, transpose(w, 0, 1))
        else:                                                # the axes after this one as one
            after = x.shape[k + 3 :]
            x = reshape(matmul(w, reshape(x, (*x.shape[: k + 3], -1))), (*x.shape[: k + 2], b, *after))
    return x


def _sizes(old: tuple[int, ...], size, scale_factor, recompute: bool) -> tuple[tuple, tuple]:
    """The new sizes, and for each axis the factor by which distances are scaled, None where the sizes say it."""
    n = len(old)
    scales: tuple = (None,) * n
    if (size is None) == (scale_factor is None):
        raise ValueError(f"interpolate: give either size or scale_factor, got {size} and {scale_factor}")
    if scale_factor is None:
        if recompute:
            raise ValueError("interpolate: recompute_scale_factor goes with scale_factor, not with size")
        new = sizes_of(size, n, "interpolate: size")
    else:
        several = isinstance(scale_factor, tuple | list)
        factors = tuple(map(float, scale_factor)) if several else (float(scale_factor),) * n
        if len(factors) != n:
            raise ValueError(f"interpolate: {len(factors)} factors for {n} axes of {old}")
        new = tuple(math.floor(m * s) for m, s in zip(old, factors))
        scales = scales if recompute else factors
    if min(*old, *new) < 1:
        raise ShapeError(f"interpolate: from {old} to {new}: sizes of at least 1 are needed")
    return new, scales
