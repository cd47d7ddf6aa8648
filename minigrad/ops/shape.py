"""Shape ops that copy: clone, contiguous, pad, cat, stack; and Overwrite, what `copy_` and `fill_` record."""
from __future__ import annotations

import numpy as np

from minigrad import aval
from minigrad.aval import Aval
from minigrad.errors import ShapeError
from minigrad.ops.doors import function, joined
from minigrad.ops.op import NoOnnx, Op, op
from minigrad.ops.reduce import axes_of
from minigrad.ops.samples import Sample
from minigrad.tensor import Tensor, apply


@op
class Clone(Op):
    """A copy, laid out as the input"""

    functional, onnx = "clone", "Identity"
    reference = lambda self, x: x  # noqa: E731

    def forward(self, o, x):
        return o.copy(x)

    def dx(self, o, g):
        return g

    def infer(self, x: Aval) -> Aval:
        return aval.like(x.shape, x.dtype, x)

    def flops(self, y: Aval, x: Aval) -> int:
        return 0

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of(), (s,)) for s in ("normal(3,4)", "normal(3,4).T", "normal()")]


@op
class Dense(Op):
    """A row-major copy"""

    onnx = "Identity"

    def forward(self, o, x):
        return o.dense_copy(x)

    def dx(self, o, g):
        return g

    def infer(self, x: Aval) -> Aval:
        return Aval(x.shape, x.dtype)

    def flops(self, y: Aval, x: Aval) -> int:
        return 0

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of(), (s,)) for s in ("normal(3,4)", "normal(3,4).T")]


def check_fits(value: tuple[int, ...], place: tuple[int, ...]) -> None:
    """Refuse an assignment whose value cannot be broadcast to the place it goes to."""
    lead = len(place) - len(value)
    if lead < 0 or any(n not in (1, m) for n, m in zip(value, place[lead:])):
        raise ShapeError(f"assignment: a value of shape {value} does not fit into {place}")


@op
class Overwrite(Op):
    """v in the shape and dtype of x, whose values and gradient end here"""

    mixes, exact, as_is, onnx = True, False, ("x", "v"), NoOnnx("Identity of v")

    def forward(self, o, x, v):
        return o.dense_copy(o.broadcast_to(v, x.shape))

    def dx(self, o, g):
        return o.broadcast_to(o.zero, g.shape)

    def dv(self, o, g):
        return g

    def infer(self, x: Aval, v: Aval) -> Aval:
        check_fits(v.shape, x.shape)
        return Aval(x.shape, x.dtype)

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of(), ("normal(3,4)", "normal(4)"))]


@op
class Pad(Op):
    """x with a border of one value: `widths` holds (before, after) for each axis"""

    widths: tuple[tuple[int, int], ...]
    value: float = 0.0
    onnx, functional = "Pad", "pad"

    def forward(self, o, x):
        return o.pad(x, self.widths, self.value)

    def dx(self, o, g):
        return o.cut(g, tuple(slice(a, n - b) for (a, b), n in zip(self.widths, g.shape)))

    def infer(self, x: Aval) -> Aval:
        return Aval(tuple(n + a + b for n, (a, b) in zip(x.shape, self.widths)), x.dtype)

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of(((1, 0), (2, 1)), 0.5), ("normal(2,3)",))]


@op
class Cat(Op):
    """Tensors one after the other along an axis"""

    axis: int
    mixes, onnx, functional, exact = True, "Concat", "cat", True

    def forward(self, o, *xs):
        return o.cat(xs, self.axis)

    def vjp(self, o, needs, g, xs_shape):
        ends = np.cumsum([s[self.axis] for s in xs_shape]).tolist()
        lead = (slice(None),) * self.axis
        return tuple(o.cut(g, (*lead, slice(end - s[self.axis], end))) for s, end in zip(xs_shape, ends))

    def infer(self, *xs: Aval) -> Aval:
        rest = {(x.shape[:self.axis], x.shape[self.axis + 1:]) for x in xs}
        if len(rest) != 1:
            raise ShapeError(f"cat: shapes {', '.join(str(x.shape) for x in xs)} differ beside dim {self.axis}")
        n = sum(x.shape[self.axis] for x in xs)
        return Aval((*xs[0].shape[:self.axis], n, *xs[0].shape[self.axis + 1:]), xs[0].dtype)

    def flops(self, y: Aval, *xs: Aval) -> int:
        return 0

    @classmethod
    def samples(cls) -> list[Sample]:
        return [
            Sample(cls.of(0), ("normal(2,3)", "normal(1,3)", "normal(0,3)")),
            Sample(cls.of(1), ("normal(2,3)", "normal(2,1)")),
        ]


@op
class Stack(Op):
    """Tensors of one shape along a new axis"""

    axis: int
    mixes, onnx, functional, exact = True, NoOnnx("Unsqueeze and Concat"), "stack", True

    def forward(self, o, *xs):
        return o.stack(xs, self.axis)

    def vjp(self, o, needs, g):
        if self.axis == 0 and g.__class__ is np.ndarray and g.ndim > 1:
            return tuple(g)                                  # its rows
        lead = (slice(None),) * self.axis
        return tuple(o.cut(g, (*lead, k, Ellipsis)) if need else None for k, need in enumerate(needs))

    def infer(self, *xs: Aval) -> Aval:
        return Aval((*xs[0].shape[:self.axis], len(xs), *xs[0].shape[self.axis:]), xs[0].dtype)

    def flops(self, y: Aval, *xs: Aval) -> int:
        return 0

    @classmethod
    def samples(cls) -> list[Sample]:
        return [
            Sample(cls.of(0), ("normal(2,3)", "normal(2,3).T")),
            Sample(cls.of(1), ("normal(2)", "normal(2)", "normal(2)")),
            Sample(cls.of(0), ("normal()", "normal()")),
        ]


# ---- as functions ------------------------------------------------------------------------------
def contiguous(x: Tensor) -> Tensor:
    """Row-major: `x` itself where it is so already, else a copy."""
    return x if x.aval.is_contiguous() else apply(Dense.of(), x)


def clone(x: Tensor) -> Tensor:
    """A copy that keeps the history."""
    return function(Clone)(x)


def _tensors(tensors, name: str) -> tuple[Tensor, ...]:
    xs = tuple(tensors)
    if not xs:
        raise ShapeError(f"{name}: expected at least one tensor")
    for x in xs:
        if x.__class__ is not Tensor and not isinstance(x, Tensor):
            raise TypeError(f"{name}: expected a sequence of Tensors, one of them is a {type(x).__name__}")
    return xs


def cat(tensors, dim: int = 0) -> Tensor:
    """Tensors one after the other along `dim`; the other sizes must be equal."""
    xs = _tensors(tensors, "cat")
    if any([len(x.array.shape) == 1 and x.array.shape[0] == 0 for x in xs]):
        xs = tuple(x for x in xs if x.shape != (0,)) or xs[:1]   # as PyTorch: they fit beside anything
    if any(x.ndim == 0 for x in xs):
        raise RuntimeError("cat: a 0-d tensor cannot be joined; use mg.stack")
    return joined(Cat.of(axes_of(dim, xs[0].ndim, "cat")[0]), xs)


def stack(tensors, dim: int = 0) -> Tensor:
    """Tensors of one shape along a new axis `dim`."""
    xs = _tensors(tensors, "stack")
    shape = xs[0].array.shape
    if any([x.array.shape != shape for x in xs]):
        raise ShapeError(f"stack: expected tensors of one shape, got {[x.shape for x in xs]}")
    return joined(Stack.of(axes_of(dim, len(shape) + 1, "stack")[0]), xs)
