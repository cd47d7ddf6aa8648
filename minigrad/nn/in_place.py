"""Activations as functions that may write into their input: `F.relu(x, inplace=True)`.  After `drawn.py`.

PyTorch's argument `inplace` comes last in each; the modules of `activations.py` have one of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature

from minigrad.inplace import overwrite
from minigrad.nn import drawn
from minigrad.ops import activations, derived, limits
from minigrad.tensor import Tensor, tick


def may_write(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`f` with a last argument `inplace`: whether the input takes the result, as methods ending in `_` do."""
    count, name = len(signature(f).parameters), f.__name__

    @wraps(f)
    def wide(input: Tensor, *args, inplace: bool = False, **how) -> Tensor:
        if len(args) == count:                               # counted without `input`, with `inplace`
            args, inplace = args[:-1], args[-1]
        if not inplace:
            return f(input, *args, **how)
        since = tick()
        return overwrite(input, f(input, *args, **how), name, since)

    return wide


_table = derived("functional")
relu, silu, mish = (may_write(_table[name]) for name in ("relu", "silu", "mish"))
hardsigmoid, hardswish = (may_write(_table[name]) for name in ("hardsigmoid", "hardswish"))
elu, selu, celu = map(may_write, (activations.elu, activations.selu, activations.celu))
hardtanh, relu6 = map(may_write, (limits.hardtanh, limits.relu6))
leaky_relu, threshold = map(may_write, (limits.leaky_relu, limits.threshold))
rrelu = may_write(drawn.rrelu)
