"""Numbers in a row: integrals and slopes by differences, covariances, histograms.  After `statistics.py`."""

from __future__ import annotations

import math

import numpy as np

from minigrad.dtype import is_float
from minigrad.errors import ArgumentError, DTypeError, ShapeError
from minigrad.ops.doors import literal
from minigrad.ops.linalg import matmul
from minigrad.ops.reduce import axes_of
from minigrad.ops.reduce_functions import mean, sum
from minigrad.ops.scan import cumsum
from minigrad.ops.shape import cat
from minigrad.ops.statistics import clamp_within, sqrt
from minigrad.ops.structure import axis_of, narrow
from minigrad.ops.views import reshape, transpose, unsqueeze
from minigrad.tensor import Tensor


# ---- integrals -----------------------------------------------------------------------------------
def _steps(y: Tensor, x, dx, dim: int, name: str) -> tuple[Tensor, int]:
    """(the areas between neighbours along an axis, the axis)."""
    axis = axis_of(y, dim, name)
    n = y.shape[axis]
    if x is not None and dx is not None:
        raise ArgumentError(f"{name}: give x or dx, not both")
    if n < 2:
        return narrow(y, axis, 0, 0) * 1.0, axis
    pairs = narrow(y, axis, 1, n - 1) + narrow(y, axis, 0, n - 1)
    if x is None:
        return pairs * ((1 if dx is None else dx) / 2), axis
    if x.ndim == 1 and x.shape[0] == n:
        x = reshape(x, (n, *(1,) * (y.ndim - axis - 1)))
        gaps = narrow(x, 0, 1, n - 1) - narrow(x, 0, 0, n - 1)
    else:
        along = axis - y.ndim
        if x.ndim < -along or x.shape[along] != n:
            raise ShapeError(f"{name}: there must be one x for each of the {n} y along dim {dim}, got {x.shape}")
        gaps = narrow(x, along, 1, n - 1) - narrow(x, along, 0, n - 1)
    return pairs * gaps / 2, axis


def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float | None = None, dim: int = -1) -> Tensor:
    """The integral of y along `dim` by trapezia, over the places x or steps of dx (1)."""
    areas, axis = _steps(y, x, dx, dim, "trapezoid")
    return sum(areas, axis - y.ndim)


def cumulative_trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float | None = None, dim: int = -1) -> Tensor:
    """The integrals of y up to the second, third, … place along `dim`."""
    areas, axis = _steps(y, x, dx, dim, "cumulative_trapezoid")
    return cumsum(areas, axis - y.ndim)


# ---- slopes --------------------------------------------------------------------------------------
def gradient(input: Tensor, *, spacing=None, dim=None, edge_order: int = 1) -> tuple[Tensor, ...]:
    """The slopes along each axis by central differences, exact for parabolas; at the ends one-sided, of order 1 or 2.

    `spacing` is a step, a list of steps, or a list of vectors with the places along each axis."""
    axes = list(range(input.ndim)) if dim is None else list(axes_of(dim, input.ndim, "gradient"))
    spacing = 1 if spacing is None else spacing
    given = [spacing] * len(axes) if isinstance(spacing, int | float) else list(spacing)
    if len(given) != len(axes) or edge_order not in (1, 2):
        raise ArgumentError(f"gradient: {len(given)} spacings for {len(axes)} axes, edge_order {edge_order} (1 or 2)")
    if any(input.shape[a] < edge_order + 1 for a in axes):
        raise ShapeError(f"gradient: {input.shape} needs at least {edge_order + 1} elements along each axis")
    return tuple(_slope(input, a, h, edge_order) for a, h in zip(axes, given))


def _slope(y: Tensor, axis: int, spacing, edge_order: int) -> Tensor:
    n = y.shape[axis]
    part = lambda start, count=1: narrow(y, axis, start, count)
    if isinstance(spacing, Tensor):
        if spacing.shape != (n,):
            raise ShapeError(f"gradient: {spacing.shape} places along an axis of {n} elements")
        places = reshape(spacing, (n, *(1,) * (y.ndim - axis - 1)))
        h = narrow(places, 0, 1, n - 1) - narrow(places, 0, 0, n - 1)
        before, after = narrow(h, 0, 0, n - 2), narrow(h, 0, 1, n - 2)
        a, b = -after / (before * (before + after)), (after - before) / (before * after)
        c = before / (after * (before + after))
        first, second, last, one_before = (narrow(h, 0, k, 1) for k in (0, min(1, n - 2), n - 2, max(n - 3, 0)))
    else:
        first = second = last = one_before = spacing
    if isinstance(spacing, Tensor):
        inside = part(0, n - 2) * a + part(1, n - 2) * b + part(2, n - 2) * c
    else:
        inside = (part(2, n - 2) - part(0, n - 2)) * (0.5 / spacing)
    if edge_order == 1:
        return cat([(part(1) - part(0)) / first, inside, (part(n - 1) - part(n - 2)) / last], axis)
    left = _parabola(part(0), part(1), part(2), first, second)
    right = _parabola(part(n - 1), part(n - 2), part(n - 3), last, one_before) * -1
    return cat([left, inside, right], axis)


def _parabola(y0: Tensor, y1: Tensor, y2: Tensor, h1, h2) -> Tensor:
    """The slope at the first of three points of a parabola, h1 and h2 apart."""
    return y0 * (-(h1 * 2 + h2) / (h1 * (h1 + h2))) + y1 * ((h1 + h2) / (h1 * h2)) - y2 * (h1 / (h2 * (h1 + h2)))


# ---- covariances ---------------------------------------------------------------------------------
def cov(
    input: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None
) -> Tensor:
    """Covariances of the rows of a matrix (variables) over its columns (observations), which may be weighed: by how
    often each occurs (`fweights`, integers) and by how much it counts (`aweights`)."""
    if input.ndim > 2:
        raise ShapeError(f"cov: expected at most two axes, got {input.shape}")
    x = reshape(input, (1, -1)) if input.ndim < 2 else input
    n = x.shape[1]
    for name, w in (("fweights", fweights), ("aweights", aweights)):
        if w is not None and (w.shape != (n,) or is_float(w.dtype) != (name == "aweights")
                              or (w.o.eager and bool((w < 0).any()))):
            raise ArgumentError(f"cov: {name} must be {n} {'floats' if name[0] == 'a' else 'integers'} from 0, got "
                                f"{w.dtype}{list(w.shape)}")
    if not is_float(x.dtype):
        x = x * 1.0
    w = aweights if fweights is None else fweights if aweights is None else fweights * aweights
    if w is None:
        centred, total = x - mean(x, 1, True), literal(float(n), x)
        share = total - correction
    else:
        total = sum(w * 1.0)
        centred = x - unsqueeze(sum(x * w, 1) / total, 1)
        share = total - correction if aweights is None or correction == 0 else (
            total - sum(w * aweights) / total * correction)
    y = matmul(centred if w is None else centred * w, transpose(centred, 0, 1)) / clamp_within(share, 0.0, math.inf)
    return y if x.shape[0] > 1 else reshape(y, ())


def corrcoef(input: Tensor) -> Tensor:
    """Correlations of the rows of a matrix: covariances over the roots of variances, within -1 … 1."""
    c = cov(input)
    if not c.ndim:
        return c / c
    d = sqrt(c.diagonal())
    return clamp_within(c / unsqueeze(d, 1) / unsqueeze(d, 0), -1.0, 1.0)


def histogram(input: Tensor, bins, *, range=None, weight: Tensor | None = None, density: bool = False):
    """(how many elements lie in each bin, the edges): `bins` equal ones, or between the edges given."""
    if not is_float(input.dtype):
        raise DTypeError(f"histogram: expected a float tensor, got {input.dtype}")
    if not input.o.eager:
        raise RuntimeError("histogram: a meta tensor has no values to count")
    host, edges = input.o.host(input.array), bins.tolist() if isinstance(bins, Tensor) else bins
    weights = None if weight is None else weight.o.host(weight.array)
    if range is not None and (len(range) != 2 or range[0] > range[1]):
        raise ArgumentError(f"histogram: range {range} must be (lowest, highest)")
    low, high = (range or (host.min(), host.max())) if host.size else (range or (0.0, 1.0))
    limits = None if isinstance(bins, Tensor) else (low, high) if low != high else (low - 0.5, high + 0.5)
    counts, edges = np.histogram(host, edges, limits, density, weights)
    return tuple(Tensor(input.o.upload(a.astype(input.dtype))) for a in (counts, edges))
