"""gelu, exactly and by a tanh (Hendrycks & Gimpel 2016); on the host in blocks that stay in the cache.

In both x is multiplied by a share s(x), and the gradient takes s = y / x from the output, which the layer behind keeps
anyway: no second exponential.  After `activations.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from minigrad import transcendental
from minigrad.errors import ArgumentError
from minigrad.kernels import serves
from minigrad.lanes import in_lanes
from minigrad.ops.doors import function
from minigrad.ops.limits import Activation
from minigrad.ops.op import NoOnnx, op
from minigrad.tensor import Tensor

BLOCK = 1 << 17  # elements: few enough for the cache, many enough that lanes seldom wait for each other
SLOPE, CUBE = math.sqrt(2 / math.pi), 0.044715


class Shared(Activation):
    """x · share(x)."""

    inline = False  # its text would be the plain formula, without blocks

    def forward(self, o, x):
        if _in_blocks(x):
            return by_blocks(self.block_forward, x)
        return x * self.share(o, x)

    def dx(self, o, g, x, y):
        if _in_blocks(x, y, g):
            return by_blocks(self.block_gradient, x, y, g)
        return g * self.slope(o, x)


@op
class Gelu(Shared):
    """x · Φ(x), with the normal distribution Φ"""

    onnx, ops_per_element = "Gelu", 34

    def share(self, o, x):
        return (o.erf(x * o.lit(math.sqrt(0.5))) + o.one) * o.lit(0.5)

    def slope(self, o, x):
        return self.share(o, x) + x * o.exp(x * x * o.lit(-0.5)) * o.lit(1 / math.sqrt(2 * math.pi))

    @staticmethod
    def block_forward(out, t, u, x):
        half, one = x.dtype.type(0.5), x.dtype.type(1)
        s = transcendental.erf(np, np.multiply(x, x.dtype.type(math.sqrt(0.5)), out=t))
        np.multiply(np.multiply(np.add(s, one, out=s), half, out=s), x, out=out)

    @staticmethod
    def block_gradient(out, t, u, x, y, g):
        s, density = share_of(x, y, out), np.multiply(x, x, out=t)
        np.exp(np.multiply(density, x.dtype.type(-0.5), out=t), out=t)
        t *= x.dtype.type(1 / math.sqrt(2 * math.pi))
        np.multiply(np.add(np.multiply(t, x, out=t), s, out=t), g, out=out)

    @staticmethod
    def reference(x):
        return x * (1 + np.vectorize(math.erf, otypes=["f8"])(x / math.sqrt(2))) / 2


@op
class GeluTanh(Shared):
    """x · (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2, close to gelu"""

    onnx, ops_per_element = NoOnnx("Gelu with approximate='tanh'"), 18

    def share(self, o, x):
        """(1 + tanh(u)) / 2 = sigmoid(2u)."""
        return o.sigmoid(x * (x * x * o.lit(2 * SLOPE * CUBE) + o.lit(2 * SLOPE)))

    def slope(self, o, x):
        s = self.share(o, x)
        return s + x * s * (o.one - s) * (x * x * o.lit(6 * SLOPE * CUBE) + o.lit(2 * SLOPE))

    @staticmethod
    def block_forward(out, t, u, x):
        number = x.dtype.type
        np.multiply(np.multiply(x, x, out=t), number(-2 * SLOPE * CUBE), out=t)
        np.multiply(np.add(t, number(-2 * SLOPE), out=t), x, out=t)
        np.add(np.exp(t, out=t), number(1), out=t)
        np.divide(x, t, out=out)

    @staticmethod
    def block_gradient(out, t, u, x, y, g):
        number, s = x.dtype.type, share_of(x, y, out)
        np.multiply(np.multiply(x, x, out=t), number(6 * SLOPE * CUBE), out=t)
        np.multiply(np.add(t, number(2 * SLOPE), out=t), y, out=t)
        t *= np.subtract(number(1), s, out=u)
        np.multiply(np.add(t, s, out=t), g, out=out)

    @staticmethod
    def reference(x):
        return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


# ---- blocks --------------------------------------------------------------------------------------
def _in_blocks(x, *others) -> bool:
    """Whether these are row-major host arrays, large enough to be worth it."""
    return (
        x.__class__ is np.ndarray
        and x.size >= 1024
        and serves(x, *others)
        and all(a.flags.c_contiguous and a.shape == x.shape for a in (x, *others))
    )


def by_blocks(kernel: Callable[..., None], *arrays: np.ndarray) -> np.ndarray:
    """kernel(out, t, u, *arrays) block by block: it writes `out`, and `t` and `u` are memory to work in."""
    out, size = np.empty(arrays[0].shape, arrays[0].dtype), arrays[0].size
    flat = [a.reshape(-1) for a in (out, *arrays)]

    def work(first: int, last: int) -> None:
        t, u = np.empty((2, min(size, BLOCK)), out.dtype)
        with np.errstate(over="ignore", under="ignore"):  # far to the left the exponential overflows, and s is 0
            for start in range(first * BLOCK, min(last * BLOCK, size), BLOCK):
                y, *xs = (a[start : start + BLOCK] for a in flat)
                kernel(y, t[: y.size], u[: y.size], *xs)

    in_lanes(work, -(-size // BLOCK), out.nbytes)
    return out


def share_of(x: np.ndarray, y: np.ndarray, out: np.ndarray) -> np.ndarray:
    """s = y / x, written to `out`; where x is 0 it is a half."""
    if x.all():
        return np.divide(y, x, out=out)
    zero = x == 0
    np.divide(y, np.where(zero, x.dtype.type(1), x), out=out)
    out[zero] = 0.5
    return out


# ---- as a function -------------------------------------------------------------------------------
def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """x · Φ(x), exactly or by a tanh (Hendrycks and Gimpel 2016)."""
    if approximate not in ("none", "tanh"):
        raise ArgumentError(f"gelu: approximate {approximate!r} is not one of 'none', 'tanh'")
    return function(Gelu if approximate == "none" else GeluTanh)(input)
