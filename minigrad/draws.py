"""Draws in the shape and dtype of a tensor that is there: what `x.normal_()` and its kin write.  After `streams.py`."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np

from minigrad.dtype import category, finest, is_float
from minigrad.errors import ArgumentError, DTypeError
from minigrad.streams import Generator, stream
from minigrad.tensor import Tensor


def _drawn(x: Tensor, name: str, generator: Generator | None, draw: Callable[[np.random.Generator], np.ndarray],
           kind: str = "float") -> Tensor:
    """`draw` of the next host generator, on the device and in the dtype of `x`; nothing on meta."""
    if kind == "float" and not is_float(x.dtype):
        raise DTypeError(f"{name}: random floats need a float tensor, got {x.dtype}. Convert with .float()")
    rng = stream(generator).host()
    return Tensor(x.o.upload(np.asarray(draw(rng)).astype(x.dtype)) if x.o.eager else x.array)


def normal_(x: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Normal numbers."""
    if std < 0:
        raise ArgumentError(f"normal_: std must not be negative, got {std}")
    return _drawn(x, "normal_", generator, lambda r: r.standard_normal(x.shape) * std + mean)


def uniform_(x: Tensor, low: float = 0.0, to: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Numbers evenly from [low, to): `from` is a word of Python, so it is `low` here."""
    if low > to:
        raise ArgumentError(f"uniform_: low {low} is above to {to}")
    return _drawn(x, "uniform_", generator, lambda r: r.random(x.shape) * (to - low) + low)


def log_normal_(x: Tensor, mean: float = 1.0, std: float = 2.0, *, generator: Generator | None = None) -> Tensor:
    """exp of normal numbers."""
    if std <= 0:
        raise ArgumentError(f"log_normal_: std must be above 0, got {std}")
    return _drawn(x, "log_normal_", generator, lambda r: np.exp(r.standard_normal(x.shape) * std + mean))


def exponential_(x: Tensor, lambd: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Waiting times at the rate lambd."""
    if lambd <= 0:
        raise ArgumentError(f"exponential_: lambd must be above 0, got {lambd}")
    return _drawn(x, "exponential_", generator, lambda r: r.standard_exponential(x.shape) / lambd)


def cauchy_(x: Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Cauchy numbers."""
    if sigma <= 0:
        raise ArgumentError(f"cauchy_: sigma must be above 0, got {sigma}")
    return _drawn(x, "cauchy_", generator, lambda r: r.standard_cauchy(x.shape) * sigma + median)


def geometric_(x: Tensor, p: float, *, generator: Generator | None = None) -> Tensor:
    """How many trials with probability p until the first success."""
    if not 0 < p < 1:
        raise ArgumentError(f"geometric_: p must lie between 0 and 1, got {p}")
    return _drawn(x, "geometric_", generator, lambda r: r.geometric(p, x.shape), "any")


def bernoulli_(x: Tensor, p=0.5, *, generator: Generator | None = None) -> Tensor:
    """1 with probability p, a number or a tensor that broadcasts, else 0."""
    share = p.o.host(p.array) if isinstance(p, Tensor) else np.asarray(p)
    if share.size and not (0 <= share.min() and share.max() <= 1):
        raise ArgumentError(f"bernoulli_: p must lie in [0, 1], got {share.min()} … {share.max()}")
    return _drawn(x, "bernoulli_", generator, lambda r: r.random(x.shape) < share, "any")


def random_(x: Tensor, low: int = 0, high: int | None = None, *, generator: Generator | None = None) -> Tensor:
    """Integers from low … high - 1; of one number from 0 … low - 1; of none all that the dtype holds exactly."""
    if high is None and low:
        low, high = 0, low
    if high is None:
        kind = category(x.dtype)
        high = 2 if kind == 0 else int(2 / finest(x.dtype)[0]) + 1 if kind == 2 else int(np.iinfo(x.dtype).max)
    if low >= high:
        raise ArgumentError(f"random_: no integer in {low} … {high - 1}")
    return _drawn(x, "random_", generator, lambda r: r.integers(low, high, x.shape), "any")


IN_PLACE = {f.__name__: f for f in (
    normal_, uniform_, log_normal_, exponential_, cauchy_, geometric_, bernoulli_, random_)}
