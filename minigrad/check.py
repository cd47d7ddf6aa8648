"""Checking the gradients of any function: `gradcheck` and `gradgradcheck` compare them with central differences.

The laws that every op of the catalogue obeys are in `laws.py`.  After `create.py`.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from minigrad.autograd import grad
from minigrad.errors import GraphError
from minigrad.tensor import Tensor

F8 = np.dtype("f8")


def gradcheck(
    func: Callable,
    inputs: Sequence[Tensor] | Tensor,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
) -> bool:
    """Whether the gradients of `func` equal central differences, element by element, in float64.

    `inputs` are float64 tensors; those that require a gradient are varied.  Upstream gradients are random."""
    xs = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    wanted = [x for x in xs if isinstance(x, Tensor) and x.requires_grad]
    if not wanted:
        raise ValueError("gradcheck: no input requires a gradient")
    if any(x.dtype != F8 for x in wanted):
        raise ValueError(
            "gradcheck: inputs must be float64; differences in float32 are too coarse. Convert with .double()"
        )
    ys = _outputs(func, xs)
    rng = np.random.default_rng(0)
    gs = [rng.standard_normal(y.shape) for y in ys]
    found = grad(ys, wanted, [Tensor(g) for g in gs], allow_unused=True)
    for k, (x, got) in enumerate(zip(wanted, found)):
        want = _differences(lambda: sum((y.detach().numpy() * g).sum() for y, g in zip(_outputs(func, xs), gs)), x, eps)
        have = np.zeros(x.shape) if got is None else got.detach().numpy()
        if not np.allclose(have, want, rtol=rtol, atol=atol):
            at = np.unravel_index(np.abs(have - want).argmax(), x.shape) if x.shape else ()
            if raise_exception:
                raise GraphError(
                    f"gradcheck: input {k}: at {tuple(map(int, at))} the gradient is {have[at]:.6g}, "
                    f"differences say {want[at]:.6g}"
                )
            return False
    return True


def _outputs(func: Callable, xs: list) -> list[Tensor]:
    ys = func(*xs)
    return [y for y in (ys if isinstance(ys, tuple | list) else (ys,)) if isinstance(y, Tensor) and y.requires_grad]


def _differences(f: Callable[[], float], x: Tensor, eps: float) -> np.ndarray:
    """Central differences of f by each element of x, which is changed and put back."""
    out = np.zeros(x.shape)
    for at in np.ndindex(*x.shape):
        old = x.array[at].copy()
        x.array[at] = old + eps
        high = f()
        x.array[at] = old - eps
        low = f()
        x.array[at] = old
        out[at] = (high - low) / (2 * eps)
    return out


def gradgradcheck(func: Callable, inputs: Sequence[Tensor] | Tensor, **how) -> bool:
    """As gradcheck, of the gradients themselves: second derivatives, by the inputs and by the upstream gradients."""
    xs = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    rng, count = np.random.default_rng(1), len(xs)
    # Upstream gradients are inputs, too: a gradient without a graph of its own then still counts as an output.
    up = [Tensor(rng.standard_normal(y.shape), requires_grad=True) for y in _outputs(func, xs)]

    def gradients(*both):
        xs, up = both[:count], both[count:]
        wanted = [x for x in xs if isinstance(x, Tensor) and x.requires_grad]
        return grad(_outputs(func, xs), wanted, up, create_graph=True, materialize_grads=True)

    return gradcheck(gradients, [*xs, *up], **how)
