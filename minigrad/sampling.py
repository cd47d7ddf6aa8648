"""Draws from other distributions, and tensors exchanged with other libraries.  After `create.py`, whose streams
they use."""

from __future__ import annotations

import numpy as np

from minigrad.create import Generator, finished, next_key, place, randn, sizes, stream
from minigrad.device import backend_of, device as as_device
from minigrad.dtype import as_dtype, get_default_dtype, int64, is_float, promote, result_type as common
from minigrad.errors import ArgumentError, DTypeError, ShapeError
from minigrad.ops.doors import literal
from minigrad.ops.random import Normal
from minigrad.tensor import Tensor, apply


def _host(x: Tensor, name: str) -> np.ndarray:
    """The parameters of a draw on the host."""
    if not x.o.eager:
        raise RuntimeError(f"{name}: a meta tensor has no values to draw by")
    return x.o.host(x.array)


def _like(x: Tensor, host: np.ndarray, dtype=None) -> Tensor:
    """A draw on the device and in the dtype of its parameters."""
    return Tensor(x.o.upload(host.astype(x.dtype if dtype is None else dtype)))


def bernoulli(input: Tensor, *, generator: Generator | None = None) -> Tensor:
    """1 with the probability that stands there, else 0."""
    p = _host(input, "bernoulli")
    if not is_float(input.dtype) or (p.size and not (0 <= p.min() and p.max() <= 1)):
        raise ArgumentError(
            f"bernoulli: expected float probabilities in [0, 1], got {input.dtype} from {p.min()} to {p.max()}"
        )
    return _like(input, stream(generator).host().random(p.shape) < p)


def poisson(input: Tensor, generator: Generator | None = None) -> Tensor:
    """Counts with the rates that stand there."""
    rate = _host(input, "poisson")
    if not is_float(input.dtype) or (rate < 0).any():
        raise ArgumentError(f"poisson: expected float rates from 0, got {input.dtype}")
    return _like(input, stream(generator).host().poisson(rate))


def multinomial(
    input: Tensor, num_samples: int, replacement: bool = False, *, generator: Generator | None = None
) -> Tensor:
    """int64 numbers drawn by the weights in each row of (C) or (N, C)."""
    w = _host(input, "multinomial").astype("f8")
    if w.ndim not in (1, 2) or not is_float(input.dtype) or num_samples < 1:
        raise ShapeError(
            f"multinomial: expected float weights (C) or (N, C) and at least one draw, got {input.dtype}{input.shape}"
        )
    rows = w.reshape(-1, w.shape[-1])
    if (rows < 0).any() or not np.isfinite(rows).all() or (rows.sum(1) <= 0).any():
        raise ArgumentError("multinomial: weights must be finite and not negative, and in each row some above 0")
    if not replacement and ((rows > 0).sum(1) < num_samples).any():
        raise ArgumentError(f"multinomial: {num_samples} draws without replacement from rows of fewer weights above 0")
    rng = stream(generator).host()
    found = [rng.choice(rows.shape[1], num_samples, replacement, row / row.sum()) for row in rows]
    return _like(input, np.array(found, "i8").reshape(*w.shape[:-1], num_samples), int64)


def normal(mean, std=1.0, size=None, *, dtype=None, device="cpu", generator: Generator | None = None) -> Tensor:
    """Normal numbers with these means and deviations: tensors that broadcast, or numbers and a size."""
    like = mean if isinstance(mean, Tensor) else std if isinstance(std, Tensor) else None
    if bool((std < 0).any()) if isinstance(std, Tensor) and std.o.eager else not isinstance(std, Tensor) and std < 0:
        raise ArgumentError(f"normal: a deviation is at least 0, got {std}")
    if like is None:
        where, kind = as_device(device), as_dtype(dtype or get_default_dtype())
        if size is None:
            raise TypeError("normal: numbers for mean and std need a size")
        return randn(*sizes(size), dtype=kind, device=where, generator=generator) * std + mean
    shape = np.broadcast_shapes(*(p.shape for p in (mean, std) if isinstance(p, Tensor)))
    drawn = apply(Normal.of(tuple(shape)), like.detach(), next_key(generator))
    scale, shift = (p.detach() if isinstance(p, Tensor) else p for p in (std, mean))
    return drawn * scale + shift


def randint_like(
    x: Tensor, low: int, high: int | None = None, *, dtype=None, generator: Generator | None = None
) -> Tensor:
    """Integers from low … high - 1 (or 0 … low - 1) in the shape, dtype and on the device of `x`."""
    low, high = (0, low) if high is None else (low, high)
    host = stream(generator).host().integers(low, high, x.shape)
    return finished(place(host.astype(as_dtype(dtype or x.dtype)), x.o.device), False)


# ---- counted -------------------------------------------------------------------------------------
def logspace(
    start: float, end: float, steps: int, base: float = 10.0, *, dtype=None, device="cpu", requires_grad: bool = False
) -> Tensor:
    """`steps` powers of `base`, with exponents evenly from start to end."""
    start, end = (v.item() if isinstance(v, Tensor) else v for v in (start, end))
    if steps < 0:
        raise ArgumentError(f"logspace: steps must be at least 0, got {steps}")
    host = np.logspace(start, end, steps, base=base).astype(as_dtype(dtype or get_default_dtype()))
    return finished(place(host, device), requires_grad)


def tril_indices(row: int, col: int, offset: int = 0, *, dtype=None, device="cpu") -> Tensor:
    """(2, n): rows and columns of the elements on and below a diagonal."""
    return finished(place(np.array(np.tril_indices(row, offset, col)).astype(as_dtype(dtype or int64)), device), False)


def triu_indices(row: int, col: int, offset: int = 0, *, dtype=None, device="cpu") -> Tensor:
    """(2, n): rows and columns of the elements on and above a diagonal."""
    return finished(place(np.array(np.triu_indices(row, offset, col)).astype(as_dtype(dtype or int64)), device), False)


# ---- exchanged, and asked about ------------------------------------------------------------------
def from_dlpack(x) -> Tensor:
    """A Tensor on the memory of another library's array, on the host or a CUDA device."""
    kind, index = x.__dlpack_device__()
    if kind not in (1, 2, 3):
        raise TypeError(
            f"from_dlpack: an array on DLPack device {kind}:{index} is neither on the host nor on a CUDA device"
        )
    xp = np if kind != 2 else backend_of(as_device(f"cuda:{index}")).xp()
    array = xp.from_dlpack(x)
    if array.dtype.kind not in "fiub" or as_dtype(array.dtype) is None:
        raise DTypeError(f"from_dlpack: {array.dtype} is not supported")
    return Tensor(array)


def is_tensor(x) -> bool:
    """Whether `x` is a Tensor."""
    return isinstance(x, Tensor)


def is_floating_point(x: Tensor) -> bool:
    """Whether the dtype is a float one."""
    return is_float(x.dtype)


def numel(x: Tensor) -> int:
    """How many elements there are."""
    return x.numel()


def promote_types(type1, type2) -> np.dtype:
    """The dtype of an operation on tensors of these two."""
    return promote(as_dtype(type1), as_dtype(type2))


def result_type(a, b) -> np.dtype:
    """The dtype of an operation on these two tensors or numbers."""
    xs = [v if isinstance(v, Tensor) else literal(v, a if isinstance(a, Tensor) else b) for v in (a, b)]
    dims, zeros = [x.dtype for x in xs if x.ndim], [x.dtype for x in xs if not x.ndim]
    return common(dims, zeros, []) if dims else common([], zeros, [])


def can_cast(from_, to) -> bool:
    """Whether PyTorch converts so on its own: not from floats to integers, nor from numbers to bool."""
    kinds = ["b", "iu", "f"]
    rank = lambda dtype: next(k for k, names in enumerate(kinds) if as_dtype(dtype).kind in names)
    return rank(from_) <= rank(to)
