"""Making tensors: from data, filled, counted and drawn from the streams of `streams.py`.  After `methods.py`."""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from minigrad.algebra import algebra
from minigrad.aval import Aval
from minigrad.device import META, Device, backend_of, device as as_device
from minigrad.dtype import as_dtype, bool_, get_default_dtype, int64, is_float, promote
from minigrad.errors import ArgumentError, DTypeError, ShapeError
from minigrad.ops.random import Normal, Uniform
from minigrad.ops.views import shape_arg
from minigrad.streams import (  # noqa: F401 - offered from here too
    Generator,
    default_generator,
    drawing_from,
    get_rng_state,
    manual_seed,
    next_key,
    set_rng_state,
    stream,
)
from minigrad.tensor import LEAF, Tensor, apply, current

Shape = Sequence[int]
MAX_AXES = 64                                                     # NumPy's limit


# ---- from data ---------------------------------------------------------------------------------
def tensor(data, *, dtype=None, device: str | Device | None = None, requires_grad: bool = False) -> Tensor:
    """A new tensor with a copy of `data`: numbers, nested lists, a NumPy array or a Tensor.

    Python floats become the default dtype (float32), integers int64; arrays, and lists that begin with a Tensor or a
    NumPy number, keep theirs."""
    if isinstance(data, Tensor):
        out = data.detach().to(dtype=dtype, device=device)
        return finished(out.array if out.array is not data.array else out.clone().array, requires_grad)
    host = _host(data)
    if dtype is not None:
        host = _narrowed(host, as_dtype(dtype))
    elif not isinstance(data, np.ndarray | np.generic):
        kind = get_default_dtype() if host.dtype.kind == "f" or host.size == 0 else as_dtype(host.dtype)
        host = host.astype(_typed(data, kind))
    return finished(place(host.astype(as_dtype(host.dtype), copy=False), device or "cpu"), requires_grad)


def _host(data) -> np.ndarray:
    """A new host array of numbers, nested sequences, arrays and Tensors."""
    host = np.array(_plain(data))
    if host.dtype == object and not isinstance(data, np.ndarray):  # integers beyond 64 bits
        raise ArgumentError("tensor: an integer does not fit into int64. Write it as a float")
    return host


def _typed(data, kind: np.dtype) -> np.dtype:
    """The dtype of a sequence: `kind`, unless its first element is a Tensor or NumPy's and brings its own."""
    while isinstance(data, list | tuple) and data:
        data = data[0]
    return promote(data.dtype, kind if kind.kind != "f" else data.dtype) if hasattr(data, "dtype") else kind


def _narrowed(host: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """`host` in `dtype`; refuses integers that it cannot hold."""
    found = host.astype(dtype)
    if host.dtype.kind in "iu" and dtype.kind in "iu" and (found != host).any():
        raise ArgumentError(f"tensor: {host[found != host][0]} does not fit into {dtype}")
    return found


def _plain(data, depth: int = 0):
    """Nested sequences with the Tensors in them as numbers; refuses ragged and endless ones."""
    if isinstance(data, Tensor):
        return data.tolist()
    if isinstance(data, list | tuple):
        if depth == MAX_AXES:
            raise ShapeError(f"tensor: lists nested more than {MAX_AXES} deep")
        rows = [_plain(v, depth + 1) for v in data]
        shapes = {np.shape(row) if row.__class__ in (list, np.ndarray) else () for row in rows}
        if len(shapes) > 1:
            raise ShapeError(
                f"tensor: the {len(rows)} rows have different shapes: {', '.join(map(str, sorted(shapes)))}. "
                "Pad them, or keep a list of tensors"
            )
        return rows
    if isinstance(data, bool | int | float | np.ndarray | np.generic | range):
        return data
    if hasattr(data, "__array__"):
        return np.asarray(data)
    raise TypeError(f"tensor: cannot make a tensor of {type(data).__name__}")


def place(host: np.ndarray, device: str | Device):
    """A host array as a raw array of a device; on the host the same array."""
    where = as_device(device)
    return host if where.type == "cpu" else backend_of(where).put(where.index, host)


def finished(array, requires_grad: bool) -> Tensor:
    """A leaf on a raw array."""
    t = current().kind(array)
    if requires_grad:
        check_differentiable(t.dtype)
        t.node = LEAF
    return t


def check_differentiable(dtype: np.dtype) -> None:
    if not is_float(dtype):
        raise DTypeError(f"only float tensors can require a gradient, got {dtype}. Convert with .float() first")


def from_numpy(array: np.ndarray) -> Tensor:
    """A Tensor on the same memory as a NumPy array."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"from_numpy: expected a NumPy array, got {type(array).__name__}")
    if as_dtype(array.dtype) != array.dtype:
        raise DTypeError(
            f"from_numpy: {array.dtype} has another byte order than this machine; "
            f"convert with .astype({array.dtype.name!r})"
        )
    return Tensor(array.view(np.ndarray))


def as_tensor(data, dtype=None, device: str | Device | None = None) -> Tensor:
    """`data` as a tensor, without a copy where it is one, or a NumPy array, already."""
    t = data if isinstance(data, Tensor) else from_numpy(data) if isinstance(data, np.ndarray) else tensor(data)
    return t.to(dtype=dtype, device=device)


# ---- filled ------------------------------------------------------------------------------------
def full(size: Shape, fill_value, *, dtype=None, device="cpu", requires_grad: bool = False) -> Tensor:
    """A tensor of one value."""
    guessed = bool_ if isinstance(fill_value, bool) else int64 if isinstance(fill_value, int) else get_default_dtype()
    dtype = guessed if dtype is None else as_dtype(dtype)
    where, shape = as_device(device), sizes(size)
    if where is META:
        return finished(Aval(shape, dtype), requires_grad)
    return finished(algebra(where, dtype).full(shape, fill_value), requires_grad)


def sizes(size) -> tuple[int, ...]:
    shape = (size,) if hasattr(size, "__index__") else size
    if not isinstance(shape, tuple | list) or not all(hasattr(n, "__index__") for n in shape):
        raise TypeError(f"a shape is integers, got {size!r}")
    shape = tuple(n.__index__() for n in shape)
    if any(n < 0 for n in shape):
        raise ShapeError(f"a size may not be negative: {shape}")
    return shape


def zeros(*size, dtype=None, device="cpu", requires_grad: bool = False) -> Tensor:
    return full(shape_arg(size), 0, dtype=dtype or get_default_dtype(), device=device, requires_grad=requires_grad)


def ones(*size, dtype=None, device="cpu", requires_grad: bool = False) -> Tensor:
    return full(shape_arg(size), 1, dtype=dtype or get_default_dtype(), device=device, requires_grad=requires_grad)


def empty(*size, dtype=None, device="cpu", requires_grad: bool = False) -> Tensor:
    """Zeros: unset memory would make runs differ."""
    return zeros(*size, dtype=dtype, device=device, requires_grad=requires_grad)


def full_like(x: Tensor, fill_value, *, dtype=None, device=None, requires_grad: bool = False) -> Tensor:
    return full(x.shape, fill_value, dtype=dtype or x.dtype, device=device or x.o.device, requires_grad=requires_grad)


def zeros_like(x: Tensor, **how) -> Tensor:
    return full_like(x, 0, **how)


def ones_like(x: Tensor, **how) -> Tensor:
    return full_like(x, 1, **how)


def empty_like(x: Tensor, **how) -> Tensor:
    return full_like(x, 0, **how)


def arange(*bounds, start=None, end=None, step=None, dtype=None, device="cpu", requires_grad: bool = False) -> Tensor:
    """end, or start, end, or start, end, step: `end` excluded; int64 unless a bound is a float."""
    bounds = (*(() if start is None else (start,)), *bounds, *(() if end is None else (end,)))
    bounds = bounds if step is None else (0, *bounds, step)[-3:]
    if not 1 <= len(bounds) <= 3 or not all(isinstance(b, int | float | np.number | Tensor) for b in bounds):
        raise TypeError(f"arange: expected end, or start, end, or start, end, step, got {bounds}")
    bounds = tuple(b.item() if isinstance(b, Tensor) else b for b in bounds)
    if dtype is not None and not is_float(as_dtype(dtype)):
        bounds = tuple(map(int, bounds))
    start, end, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    if step == 0 or not all(map(math.isfinite, bounds)) or (end - start) * step < 0:
        raise ArgumentError(f"arange: from {start} to {end} in steps of {step} never ends")
    host = np.arange(start, end, step)
    host = host.astype(as_dtype(dtype) if dtype else int64 if host.dtype.kind == "i" else get_default_dtype())
    return finished(place(host, device), requires_grad)


def linspace(start: float, end: float, steps: int, *, dtype=None, device="cpu", requires_grad: bool = False) -> Tensor:
    """`steps` numbers from `start` to `end`, both included."""
    if steps < 0:
        raise ArgumentError(f"linspace: steps must not be negative, got {steps}")
    start, end = (v.item() if isinstance(v, Tensor) else v for v in (start, end))
    if dtype is not None and not is_float(as_dtype(dtype)):
        start, end = int(start), int(end)
    host = np.linspace(start, end, steps).astype(as_dtype(dtype or get_default_dtype()))
    return finished(place(host, device), requires_grad)


def eye(n: int, m: int | None = None, *, dtype=None, device="cpu", requires_grad: bool = False) -> Tensor:
    """Ones on the diagonal."""
    sizes((n, n if m is None else m))
    return finished(place(np.eye(n, m, dtype=as_dtype(dtype or get_default_dtype())), device), requires_grad)


# ---- drawn -------------------------------------------------------------------------------------
def _drawn(cls, size: tuple, dtype, device, requires_grad: bool, generator: Generator | None) -> Tensor:
    dtype = as_dtype(dtype or get_default_dtype())
    if not is_float(dtype):
        raise DTypeError(
            f"{cls.__name__.lower()}: random floats need a float dtype, got {dtype}; for integers use randint"
        )
    where, key = as_device(device), next_key(generator)
    like = Tensor(Aval((), dtype) if where is META else algebra(where, dtype).zero)
    return finished(apply(cls.of(sizes(shape_arg(size))), like, key).array, requires_grad)


def randn(*size, dtype=None, device="cpu", requires_grad: bool = False, generator: Generator | None = None) -> Tensor:
    """Standard normal numbers; the same on every device for the same seed."""
    return _drawn(Normal, size, dtype, device, requires_grad, generator)


def rand(*size, dtype=None, device="cpu", requires_grad: bool = False, generator: Generator | None = None) -> Tensor:
    """Numbers evenly from [0, 1)."""
    return _drawn(Uniform, size, dtype, device, requires_grad, generator)


def randn_like(x: Tensor, **how) -> Tensor:
    return randn(*x.shape, **{"dtype": x.dtype, "device": x.o.device, **how})


def rand_like(x: Tensor, **how) -> Tensor:
    return rand(*x.shape, **{"dtype": x.dtype, "device": x.o.device, **how})


def randint(
    low: int,
    high: int | Shape,
    size: Shape | None = None,
    *,
    dtype=None,
    device="cpu",
    generator: Generator | None = None,
) -> Tensor:
    """Integers from low … high - 1; with two arguments from 0 … first - 1."""
    if size is None:
        return randint(0, low, high, dtype=dtype, device=device, generator=generator)
    if high <= low:
        raise ArgumentError(f"randint: no integer in {low} … {high - 1}")
    host = stream(generator).host().integers(low, high, sizes(size))
    return finished(place(host.astype(as_dtype(dtype or int64)), device), False)


def randperm(n: int, *, device="cpu", generator: Generator | None = None) -> Tensor:
    """0 … n - 1 in a random order."""
    (n,) = sizes(n)
    return finished(place(stream(generator).host().permutation(n).astype(np.int64), device), False)


pi, inf, nan = math.pi, math.inf, math.nan
