"""Dtypes: NumPy's own objects under PyTorch's names, their categories, and what mixing two of them gives.

First file of the story; `aval.py` comes next.  Promotion follows PyTorch (`torch.result_type`), which differs from
NumPy: an integer tensor never widens a float one, and a Python number never widens a tensor of its own category.
"""
from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from minigrad.errors import DTypeError

bool_ = np.dtype(np.bool_)
uint8, int8, int16, int32, int64 = map(np.dtype, ("uint8", "int8", "int16", "int32", "int64"))
float16, float32, float64 = map(np.dtype, ("float16", "float32", "float64"))
half, single, double, short, int_, long = float16, float32, float64, int16, int32, int64
DTYPES = {
    "bool": bool_, "uint8": uint8, "int8": int8, "int16": int16, "int32": int32, "int64": int64,
    "float16": float16, "float32": float32, "float64": float64,
}


def _bfloat16() -> np.dtype | None:
    try:
        import ml_dtypes
    except ImportError:
        return None
    return np.dtype(ml_dtypes.bfloat16)


def __getattr__(name: str) -> np.dtype:
    """`bfloat16` is looked for when first asked: it needs the small package ml_dtypes."""
    if name != "bfloat16":
        raise AttributeError(f"module 'minigrad.dtype' has no attribute {name!r}")
    found = _bfloat16()
    if found is None:
        raise DTypeError("bfloat16 needs the package ml_dtypes: pip install ml_dtypes")
    DTYPES["bfloat16"] = globals()["bfloat16"] = found
    return found


class Defaults:
    """Process-wide defaults, changed by `set_default_dtype`."""

    dtype = float32


def get_default_dtype() -> np.dtype:
    """The dtype of float tensors made from Python numbers: float32 unless changed."""
    return Defaults.dtype


def set_default_dtype(dtype: np.dtype) -> None:
    """Set the dtype of float tensors made from Python numbers, for the whole process."""
    dtype = as_dtype(dtype)
    if not is_float(dtype):
        raise DTypeError(f"set_default_dtype: {dtype} is not a float dtype; use float32, float64 or float16")
    Defaults.dtype = dtype


def as_dtype(dtype: Any) -> np.dtype:
    """The NumPy dtype meant by a dtype, its name, or Python's bool, int and float (which mean bool, int64 and the
    default)."""
    if dtype is float:
        return Defaults.dtype
    try:
        found = np.dtype(int64 if dtype is int else dtype)
    except TypeError:
        raise DTypeError(f"{dtype!r} is not a dtype; use one of {', '.join(DTYPES)}") from None
    if found.name == "bfloat16":
        return globals().get("bfloat16") or __getattr__("bfloat16")
    if found.name not in DTYPES:
        raise DTypeError(f"dtype {found} is not supported; use one of {', '.join(DTYPES)}")
    return DTYPES[found.name]                                     # one object each, in the machine's byte order


_CATEGORY = {"b": 0, "u": 1, "i": 1, "f": 2}


def category(dtype: np.dtype) -> int | None:
    """0 for bool, 1 for integers, 2 for floats, None for anything else."""
    if dtype.name == "bfloat16":
        return 2
    return _CATEGORY.get(dtype.kind)


def is_float(dtype: np.dtype) -> bool:
    return dtype.kind == "f" or dtype.name == "bfloat16"


def finest(dtype: np.dtype) -> tuple[float, float]:
    """(the distance from 1 to the next number, the largest number) of a float dtype."""
    if dtype.name == "bfloat16":
        return 2.0**-7, (2 - 2.0**-7) * 2.0**127
    info = np.finfo(dtype)
    return float(info.eps), float(info.max)


def promote(a: np.dtype, b: np.dtype) -> np.dtype:
    """The dtype of an operation on tensors (not scalars) of dtypes `a` and `b`, as in PyTorch."""
    if a == b:
        return a
    rank_a, rank_b = category(a), category(b)
    if rank_a != rank_b:
        return a if rank_a > rank_b else b
    if rank_a == 2 and a.itemsize == b.itemsize:            # float16 with bfloat16
        return float32
    if uint8 in (a, b) and int8 in (a, b):
        return int16
    return a if a.itemsize > b.itemsize else b


def of_number(value: bool | int | float) -> np.dtype:
    """The dtype a Python number has on its own."""
    return (
        bool_
        if isinstance(value, bool | np.bool_)
        else int64
        if isinstance(value, int | np.integer)
        else Defaults.dtype
    )


def result_type(dims: list[np.dtype], zeros: list[np.dtype], numbers: list[np.dtype]) -> np.dtype:
    """PyTorch's rule of three: tensors with axes decide, 0-d tensors and then numbers only lift the category."""
    groups = [reduce(promote, group) for group in (dims, zeros, numbers) if group]
    return max(groups, key=lambda dtype: category(dtype) or 0)              # of equals the first
