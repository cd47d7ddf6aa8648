"""Diagonals and triangles of matrices.  A diagonal is a view: writing it writes the matrix.  After `views.py`."""

from __future__ import annotations

import numpy as np

from minigrad.aval import Aval, like
from minigrad.errors import ShapeError
from minigrad.ops.op import NoOnnx, Op, op
from minigrad.ops.reduce import axes_of
from minigrad.ops.reduce_functions import sum
from minigrad.ops.samples import Sample
from minigrad.ops.views import ViewOp, reshape
from minigrad.tensor import Tensor, apply


@op
class Diagonal(ViewOp):
    """The diagonal of two axes, as a last axis"""

    offset: int = 0
    axis1: int = 0
    axis2: int = 1
    onnx = NoOnnx("GatherND")
    reference = lambda self, x: np.diagonal(x, self.offset, self.axis1, self.axis2)  # noqa: E731

    def forward(self, o, x):
        return o.diagonal(x, self.offset, self.axis1, self.axis2)

    def dx(self, o, g, x_shape):
        return o.on_diagonal(g, x_shape, self.offset, self.axis1, self.axis2)

    def back(self, o, x, y):
        return o.put_diagonal(x, y, self.offset, self.axis1, self.axis2)

    @classmethod
    def samples(cls) -> list[Sample]:
        ways = [((), "3,4)"), ((1,), "3,4).T"), ((-1, 0, 2), "3,2,4)"), ((0, 1, 0), "3,3)"), ((5,), "3,4)")]
        return [Sample(cls.of(*w), (f"normal({s}",)) for w, s in ways]


@op
class OnDiagonal(Op):
    """The adjoint of Diagonal: x on the diagonal of zeros"""

    shape: tuple[int, ...]
    offset: int = 0
    axis1: int = 0
    axis2: int = 1
    onnx = NoOnnx("ScatterND")

    def forward(self, o, x):
        return o.on_diagonal(x, self.shape, self.offset, self.axis1, self.axis2)

    def dx(self, o, g):
        return o.diagonal(g, self.offset, self.axis1, self.axis2)

    def infer(self, x: Aval) -> Aval:
        return Aval(self.shape, x.dtype)

    def flops(self, y: Aval, x: Aval) -> int:
        return 0

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of((3, 4), 1), ("normal(3)",)), Sample(cls.of((3, 2, 4), -1, 0, 2), ("normal(2,2)",))]


@op
class PutDiagonal(Op):
    """x with v on its diagonal"""

    offset: int = 0
    axis1: int = 0
    axis2: int = 1
    onnx, exact = NoOnnx("ScatterND"), True

    def forward(self, o, x, v):
        return o.put_diagonal(x, v, self.offset, self.axis1, self.axis2)

    def dx(self, o, g, v_shape):
        return o.put_diagonal(g, o.broadcast_to(o.zero, v_shape), self.offset, self.axis1, self.axis2)

    def dv(self, o, g):
        return o.diagonal(g, self.offset, self.axis1, self.axis2)

    def infer(self, x: Aval, v: Aval) -> Aval:
        want = Diagonal.of(self.offset, self.axis1, self.axis2).infer(x).shape
        if v.shape != want:
            raise ShapeError(f"diagonal: a value of shape {v.shape} does not fit on a diagonal of shape {want}")
        return like(x.shape, x.dtype, x)

    def flops(self, y: Aval, x: Aval, v: Aval) -> int:
        return 0

    @classmethod
    def samples(cls) -> list[Sample]:
        return [
            Sample(cls.of(1), ("normal(3,4)", "normal(3)")),
            Sample(cls.of(-1, 0, 2), ("normal(3,2,4)", "normal(2,2)")),
        ]


class Triangle(Op):
    """A part of the last two axes, zeros elsewhere."""

    def infer(self, x: Aval) -> Aval:
        if x.ndim < 2:
            raise ShapeError(f"{self.label}: expected a matrix or a stack of them, got {x.shape}")
        return Aval(x.shape, x.dtype)

    def flops(self, y: Aval, x: Aval) -> int:
        return 0

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of(k), (s,)) for k, s in ((0, "normal(3,4)"), (1, "normal(2,3,3)"), (-1, "normal(4,3).T"))]


@op
class Tril(Triangle):
    """The elements on and below the diagonal number k"""

    k: int = 0
    onnx = "Trilu"
    reference = lambda self, x: np.tril(x, self.k)  # noqa: E731

    def forward(self, o, x):
        return o.tril(x, self.k)

    dx = forward


@op
class Triu(Triangle):
    """The elements on and above the diagonal number k"""

    k: int = 0
    onnx = NoOnnx("Trilu with upper=1")
    reference = lambda self, x: np.triu(x, self.k)  # noqa: E731

    def forward(self, o, x):
        return o.triu(x, self.k)

    dx = forward


# ---- as functions --------------------------------------------------------------------------------
def tril(input: Tensor, diagonal: int = 0) -> Tensor:
    """The elements on and below a diagonal of the last two axes, zeros above."""
    Tril.of().infer(input.aval)
    return apply(Tril.of(diagonal), input)


def triu(input: Tensor, diagonal: int = 0) -> Tensor:
    """The elements on and above a diagonal of the last two axes, zeros below."""
    Triu.of().infer(input.aval)
    return apply(Triu.of(diagonal), input)


def _two(x: Tensor, dim1: int, dim2: int, ndim: int, name: str) -> tuple[int, int]:
    if ndim < 2:
        raise ShapeError(f"{name}: expected at least two axes, got {x.shape}")
    (a,), (b,) = axes_of(dim1, ndim, name), axes_of(dim2, ndim, name)
    if a == b:
        raise RuntimeError(f"{name}: dim1 and dim2 are the same axis, {dim1} and {dim2}")
    return a, b


def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The diagonal of two axes, as a new last axis: a view."""
    return apply(Diagonal.of(offset, *_two(input, dim1, dim2, input.ndim, "diagonal")), input)


def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """The last axis as the diagonal of two new ones, zeros elsewhere."""
    if not input.ndim:
        raise ShapeError("diag_embed: a 0-d tensor has no axis to put on a diagonal")
    a, b = _two(input, dim1, dim2, input.ndim + 1, "diag_embed")
    n = input.shape[-1] + abs(offset)
    rest = list(input.shape[:-1])
    for axis in sorted((a, b)):
        rest.insert(axis, n)
    return apply(OnDiagonal.of(tuple(rest), offset, a, b), input)


def diag(input: Tensor, diagonal: int = 0) -> Tensor:
    """Of a vector the matrix with it on the diagonal; of a matrix its diagonal, a copy."""
    if input.ndim not in (1, 2):
        raise ShapeError(f"diag: expected a vector or a matrix, got {input.shape}. Use diagonal or diag_embed")
    return diag_embed(input, diagonal) if input.ndim == 1 else apply(Diagonal.of(diagonal), input).clone()


def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """The matrix with all elements on the diagonal."""
    return diag_embed(reshape(input, -1), offset)


def trace(input: Tensor) -> Tensor:
    """The sum of the diagonal of a matrix."""
    if input.ndim != 2:
        raise ShapeError(f"trace: expected a matrix, got {input.shape}")
    return sum(apply(Diagonal.of(), input))


def unique_letters(x: Tensor, letters: str) -> tuple[Tensor, str]:
    """`x` looked at along the diagonals of the letters that name more than one of its axes."""
    for c in dict.fromkeys(letters):
        while letters.count(c) > 1:
            a, b = letters.index(c), letters.rindex(c)
            if x.shape[a] != x.shape[b]:
                raise ShapeError(
                    f"einsum: the letter {c!r} names axes of sizes {x.shape[a]} and {x.shape[b]} in one operand"
                )
            x = apply(Diagonal.of(0, a, b), x)
            letters = letters[:a] + letters[a + 1 : b] + letters[b + 1 :] + c
    return x, letters
