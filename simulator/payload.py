"""What travels: a tensor, an array or a number becomes a host array, and that becomes one of them again.

Everything that can be refused is refused here, before anything moves.  After `errors.py`; `communicator.py` calls it.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import minigrad as mg

Sendable = mg.Tensor | np.ndarray | float | int | bool
REDUCTIONS = {"sum": np.add, "mean": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


@dataclass(frozen=True, slots=True)
class Form:
    """What a thing was before it became an array: "tensor" on a kind of device, "array" or "number"."""

    kind: str
    device: str = "cpu"                      # its type: "cpu", "sim", "cuda"

    def __str__(self) -> str:
        return f"tensor on {self.device}" if self.kind == "tensor" else self.kind


def values(x: Any, what: str) -> tuple[np.ndarray, Form]:
    """The values of `x` as a host array, its own memory where that is on the host; `what` names the call in errors."""
    if isinstance(x, mg.Tensor):
        _check_tensor(x, what)
        if x.o.device.type == "cpu":
            return x.detach().numpy(), Form("tensor")
        return x.detach().cpu().numpy(), Form("tensor", x.o.device.type)
    if isinstance(x, np.ndarray):
        if x.dtype.hasobject or x.dtype.names:
            raise TypeError(f"{what}: an array of {x.dtype} has no plain numbers to send. Use a float, int or bool "
                            f"dtype")
        return x, Form("array")
    if isinstance(x, (bool, int, float, complex, np.generic)):
        return np.asarray(x), Form("number")
    raise TypeError(f"{what}: expected a tensor, an array or a number, got {type(x).__name__}"
                    + (". Tensors of another shape each: use all_to_all, scatter or reduce_scatter with a list"
                       if isinstance(x, (list, tuple)) else ""))


def _check_tensor(x: mg.Tensor, what: str) -> None:
    if x.requires_grad and mg.is_grad_enabled():
        raise TypeError(f"{what}: the tensor of shape {tuple(x.shape)} needs its gradient, and a raw message carries "
                        f"none. Send x.detach(), or wrap the call in no_grad(), or use the operations of comm_ops")
    if x.o.device.type == "meta":
        raise TypeError(f"{what}: a meta tensor of shape {tuple(x.shape)} has no values to send. Make it on 'cpu'")


def taken(x: Any, what: str) -> tuple[np.ndarray, Form]:
    """The values as they are now, in memory of their own: the sender may write to `x` at once."""
    array, form = values(x, what)
    return np.array(array, order="C"), form


def given(array: np.ndarray, form: Form, rank: int) -> Any:
    """An array that nobody else has, as the thing that rank `rank` works with; device tensors arrive on its device."""
    if form.kind == "tensor":
        t = mg.from_numpy(array)
        return t if form.device == "cpu" else t.to(f"{form.device}:{rank}")
    return array.item() if form.kind == "number" else array


def check_writable(x: Any, what: str) -> None:
    """That `x` can be written in place, each element on its own."""
    if not isinstance(x, (mg.Tensor, np.ndarray)):
        raise TypeError(f"{what}: writes in place, so it needs a tensor or an array, got {type(x).__name__}")
    strides = x.strides if isinstance(x, np.ndarray) else x.aval.strides
    if any(step == 0 and size > 1 for step, size in zip(strides, x.shape)):
        raise ValueError(f"{what}: several elements of the tensor of shape {tuple(x.shape)} share their memory "
                         f"(expanded), so it cannot be written. Use .contiguous() first")
    if isinstance(x, np.ndarray) and not x.flags.writeable:
        raise ValueError(f"{what}: the array of shape {x.shape} is read-only. Use .copy() first")


def write(x: Any, array: np.ndarray) -> None:
    """`x`, also a strided view, holds these values."""
    if isinstance(x, np.ndarray):
        x[...] = array
        return
    with mg.no_grad():
        x.copy_(mg.from_numpy(array).to(x.o.device))


def reduction(op: str, dtype: np.dtype, what: str) -> np.ufunc:
    """The ufunc that adds two contributions."""
    if op not in REDUCTIONS:
        raise ValueError(f"{what}: op is one of {', '.join(REDUCTIONS)}, got {op!r}")
    if op == "mean" and dtype.kind in "biu":
        raise TypeError(f"{what}: the mean of {dtype} is no {dtype}. Convert to a float dtype, or use 'sum'")
    if dtype.kind == "c" and op in ("min", "max"):
        raise TypeError(f"{what}: complex numbers have no order, so no {op}")
    return REDUCTIONS[op]


def finish(array: np.ndarray, op: str, count: int) -> np.ndarray:
    """The sum of `count` contributions as their mean, where that was asked for."""
    return np.asarray(array / array.dtype.type(count), array.dtype) if op == "mean" else array


__all__ = ["Form", "REDUCTIONS", "check_writable", "finish", "given", "reduction", "taken", "values", "write"]
