"""Copies of tensors: `copy.deepcopy` and `pickle`, with their values, device and `requires_grad`.

A view takes only its own elements along; a tensor met twice (a tied weight) is copied once, by Python's
own memo.  After `function.py`, before `methods.py`, which puts both on Tensor.
"""

from __future__ import annotations

import copy

import numpy as np

from minigrad.aval import Aval
from minigrad.device import backend_of, device
from minigrad.errors import GraphError
from minigrad.tensor import LEAF, InferenceTensor, Tensor, View


def on_device(host: np.ndarray, where: str):
    """A host array as a raw array of a device; on the host the same array."""
    place = device(where)
    return host if place.type == "cpu" else backend_of(place).put(place.index, host)


def rebuilt(kind: type[Tensor], values, where: str, requires_grad: bool, rest: dict) -> Tensor:
    """The tensor that `reduce` took apart."""
    t = kind.__new__(kind)
    Tensor.__init__(t, values if isinstance(values, Aval) else on_device(values, where))
    t.node = LEAF if requires_grad else None
    if rest:
        t.__dict__.update(rest)
    return t


def reduce(x: Tensor) -> tuple:
    """For pickle: the values on the host and where they belong; the history stays behind."""
    kind = Tensor if isinstance(x, View | InferenceTensor) else type(x)
    values = x.o.host(x.array) if x.o.eager else x.array
    return rebuilt, (kind, values, str(x.o.device), x.node is not None, getattr(x, "__dict__", {}))


def deepcopy(x: Tensor, memo: dict) -> Tensor:
    """A leaf of its own with the same values and gradient, on the same device."""
    if not x.is_leaf:
        raise GraphError(
            f"deepcopy: a tensor of shape {x.shape} that an operation made cannot be "
            "copied with its history. Copy x.detach(), or use x.clone()"
        )
    kind = Tensor if isinstance(x, View | InferenceTensor) else type(x)
    t = kind.__new__(kind)
    memo[id(x)] = t
    Tensor.__init__(t, x.o.copy(x.array) if x.o.eager else Aval(x.shape, x.dtype))
    t.node = x.node
    if hasattr(x, "__dict__"):
        t.__dict__.update(copy.deepcopy(x.__dict__, memo))
    t.grad = None if x.grad is None else copy.deepcopy(x.grad.detach(), {})
    return t
