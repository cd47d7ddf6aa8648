"""What the laws of `laws.py` are put to: a sample of an op with its arrays, and the ways in which an input may lie.

After `check.py`.
"""
from __future__ import annotations

import numpy as np

from minigrad.algebra import algebra_of
from minigrad.autograd import grad
from minigrad.check import F8
from minigrad.dtype import is_float
from minigrad.ops.diagonals import Diagonal
from minigrad.ops.doors import function
from minigrad.ops.samples import Sample
from minigrad.ops.views import Cut, Permute, Reshape, ViewOp, freeze_key
from minigrad.tensor import Tensor, apply


def first(x):
    return x[0] if isinstance(x, tuple) else x


def narrow_to(arrays: list, dtype: str = "f4") -> list:
    return [a.astype(dtype) if a.dtype == F8 else a for a in arrays]


class Trial:
    """One sample, its arrays, and which inputs are differentiated."""

    def __init__(self, sample: Sample, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.op, self.arrays, self.narrower = sample.op, sample.arrays(self.rng), sample.dtypes
        names = [self.op.input_name(i) for i in range(len(self.arrays))]
        self.wrt = [i for i, n in enumerate(names) if n in self.op.reads and self.arrays[i].dtype == F8]
        self.names = names
        self.y = self.run(self.arrays)
        self.g = self.rng.standard_normal(self.y.shape)

    def run(self, arrays: list):
        """y of the raw forward, in the dtype of the first float array."""
        return first(self.forward(arrays))

    def forward(self, arrays: list):
        o = next((algebra_of(a) for a in arrays if is_float(a.dtype)), algebra_of(arrays[0]))
        outs = self.op.forward(o, *arrays)
        return tuple(map(np.asarray, outs)) if self.op.extra else np.asarray(outs)

    def leaves(self, arrays: list | None = None) -> list[Tensor]:
        made = [Tensor(a.copy(order="K"), i in self.wrt) for i, a in enumerate(arrays or self.arrays)]
        return made

    def gradients(self, xs: list[Tensor], **how):
        y = first(apply(self.op, *xs))
        return grad(y, [xs[i] for i in self.wrt], Tensor(self.g), **how)


def y_floats(y: Tensor) -> bool:
    return is_float(y.dtype)


def through_door(op, *xs):
    """The op through its door, if it has one."""
    plain = isinstance(op, ViewOp) or op.extra or op.variadic
    return first(apply(op, *xs)) if plain else function(type(op), *op.values)(*xs)


def dense(g: Tensor) -> np.ndarray:
    """The array of a gradient, row-sparse or not."""
    return g.to_dense().array


def ways_to_lie(shape: tuple[int, ...]) -> dict[str, tuple[tuple[int, ...], tuple]]:
    """{name: (shape of a base, the view ops that show something of `shape` of it)}."""
    n, size = len(shape), int(np.prod(shape))
    cut = lambda *key: Cut.of(freeze_key(key))  # noqa: E731
    if not n:
        return {"slice": ((3,), (cut(1),)), "corner": ((2, 3), (Permute.of((1, 0)), cut(2, 1)))}
    return {
        "slice": (tuple(k + 2 for k in shape), (cut(*(slice(1, -1),) * n),)),
        "transpose": (shape[::-1], (Permute.of(tuple(reversed(range(n)))),)),
        "diagonal": ((*shape, shape[-1]), (Diagonal.of(0, n - 1, n),)),
        "flat": ((2 * size,), (cut(slice(None, None, 2)), Reshape.of(shape))),
    }


__all__ = ["Trial", "dense", "first", "narrow_to", "through_door", "ways_to_lie", "y_floats"]
