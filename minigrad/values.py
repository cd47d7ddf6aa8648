"""A tensor seen from Python: its size, its values as numbers, arrays and text.

Text is number for number what PyTorch prints, so that a printed page of either reads the same: four decimals, or four
in
scientific form where the magnitudes are far apart; past 1,000 elements the first and last three of each axis.
After `copying.py`, before `methods.py`, which puts these on Tensor.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from minigrad.algebra import size_of
from minigrad.device import CPU
from minigrad.dtype import bool_, get_default_dtype, int64, is_float
from minigrad.errors import GraphError
from minigrad.ops.reduce import axes_of
from minigrad.tensor import LEAF, Tensor


def size(x: Tensor, dim: int | None = None):
    """The shape, or one size of it."""
    return x.shape if dim is None else x.shape[axes_of(dim, x.ndim, "size")[0]]


def numpy(x: Tensor) -> np.ndarray:
    """The values as a NumPy array on the same memory; refused on a device (use .cpu()) and with a history (use
    .detach())."""
    if x.node is not None:
        raise GraphError("numpy(): this tensor requires a gradient, which NumPy would not see. Use .detach().numpy()")
    if x.o.device is not CPU:
        raise TypeError(f"numpy(): the tensor is on {x.o.device}; copy it first: .cpu().numpy()")
    return x.array


def host(x: Tensor) -> np.ndarray:
    """The values on the host: the same memory on cpu, a copy from a device."""
    check_values(x)
    return x.o.host(x.array)


def check_values(x: Tensor) -> None:
    if not x.o.eager:
        raise RuntimeError(f"a meta tensor has no values (shape {x.shape}, {x.dtype}): make it on 'cpu' to compute")


def item(x: Tensor) -> bool | int | float:
    """The one element as a Python number."""
    if size_of(x.shape) != 1:
        raise GraphError(f"item(): a tensor of shape {x.shape} is not one element. Use .tolist()")
    return host(x).item()


def tolist(x: Tensor):
    """The values as nested lists of Python numbers."""
    return host(x).tolist()


def as_bool(x: Tensor) -> bool:
    if size_of(x.shape) != 1:
        raise GraphError(
            f"bool(): a tensor of shape {x.shape} is neither true nor false as a whole. Use .any() or .all()"
        )
    return bool(item(x))


def length(x: Tensor) -> int:
    if not x.ndim:
        raise TypeError("len() of a 0-d tensor")
    return x.shape[0]


def iterate(x: Tensor):
    if not x.ndim:
        raise TypeError("iteration over a 0-d tensor")
    return (x[k] for k in range(x.shape[0]))


def contains(x: Tensor, value) -> bool:
    return bool((x == value).any())


def as_array(x: Tensor, dtype=None, copy=None) -> np.ndarray:
    """For `np.asarray(t)`: as `.numpy()`; `np.array(t)` copies."""
    found = numpy(x)
    if dtype is not None and dtype != found.dtype:
        if copy is False:
            raise ValueError(f"np.asarray(copy=False): {found.dtype} as {dtype} needs a copy")
        return found.astype(dtype)
    return found.copy() if copy else found


def as_dlpack(x: Tensor, **how):
    """For `other.from_dlpack(t)`: the same memory, seen by another library."""
    if x.node is not None:
        raise GraphError("__dlpack__: this tensor requires a gradient, which the other library would not see. Use "
                         ".detach()")
    check_values(x)
    return x.array.__dlpack__(**how)


def dlpack_device(x: Tensor) -> tuple[int, int]:
    check_values(x)
    return x.array.__dlpack_device__()


def as_index(x: Tensor) -> int:
    if is_float(x.dtype):
        raise TypeError(f"only an integer tensor of one element can be an index, got {x.dtype}. Convert with int(...)")
    return int(item(x))


def formatted(x: Tensor, spec: str) -> str:
    """f"{loss:.4f}": a 0-d tensor formats as its number."""
    return format(item(x), spec) if x.ndim == 0 and x.o.eager else object.__format__(x, spec)


# ---- text --------------------------------------------------------------------------------------
LINE, EDGE, THRESHOLD = 80, 3, 1000



def as_text(x: Tensor) -> str:
    """As PyTorch: values, device, dtype where it is not the default, and what is known of the history."""
    start, empty = "tensor(", size_of(x.shape) == 0
    notes = [] if x.o.device is CPU else [f"device='{x.o.device}'"]
    notes += [f"size={x.shape}"] if not x.o.eager or (empty and x.ndim != 1) else []
    notes += [] if x.dtype == get_default_dtype() or (x.dtype in (int64, bool_) and not empty) else [f"dtype={x.dtype}"]
    notes += ["requires_grad=True"] if x.node is LEAF else [f"grad_fn=<{x.node.name()}>"] if x.node is not None else []
    return with_notes(start + (array_text(host(x), len(start)) if x.o.eager else "..."), notes, len(start))


def array_text(a: np.ndarray, indent: int) -> str:
    """The values between their brackets; later lines are indented by `indent`."""
    if a.size == 0:
        return "[]"
    short = a.size > THRESHOLD
    write, width = _format(_edges(a) if short else a)
    return _block(a, indent, short, write, width)


def with_notes(text: str, notes: list[str], indent: int) -> str:
    """`text` and what is said after it, on a new line where the old one is full, and the closing bracket."""
    used = len(text) - text.rfind("\n") + 1
    for note in notes:
        wrapped = used + len(note) + 2 > LINE
        text += (",\n" + " " * indent if wrapped else ", ") + note
        used = indent + len(note) if wrapped else used + len(note) + 2
    return text + ")"


def _edges(a: np.ndarray) -> np.ndarray:
    """What of `a` is shown."""
    for axis, n in enumerate(a.shape):
        if n > 2 * EDGE:
            a = np.take(a, [*range(EDGE), *range(n - EDGE, n)], axis)
    return a


def _format(a: np.ndarray) -> tuple[Callable[[Any], str], int]:
    """(function value -> text, common width) for these values."""
    values = a.ravel().tolist()
    if a.dtype.kind in "biu":
        return str, max(len(str(v)) for v in values)
    seen = [v for v in values if v != 0 and math.isfinite(v)]
    sizes = [abs(v) for v in seen] or [1.0]
    low, high, whole = min(sizes), max(sizes), all(v == math.ceil(v) for v in seen)
    exponents = high / low > 1000 or high > 1e8 or (low < 1e-4 and not whole)
    write: Callable[[Any], str] = "{:.4e}".format if exponents else _whole if whole else "{:.4f}".format
    return write, max((len(write(v)) for v in seen), default=1)


def _whole(v: float) -> str:
    return f"{v:.0f}." if math.isfinite(v) else f"{v:.0f}"


def _block(a: np.ndarray, indent: int, short: bool, write: Callable[[Any], str], width: int) -> str:
    if a.ndim == 0:
        return write(a.item()).rjust(width)
    cut = short and len(a) > 2 * EDGE
    rows = [*a[:EDGE], None, *a[-EDGE:]] if cut else list(a)
    if a.ndim == 1:
        words = [" ..." if v is None else write(v.item()).rjust(width) for v in rows]
        n = max(1, (LINE - indent) // (width + 2))
        lines = [", ".join(words[k:k + n]) for k in range(0, len(words), n)]
        return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"
    blocks = ["..." if row is None else _block(row, indent + 1, short, write, width) for row in rows]
    return "[" + ("," + "\n" * (a.ndim - 1) + " " * (indent + 1)).join(blocks) + "]"
