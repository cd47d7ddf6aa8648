"""View ops, which show the same memory: reshape, permute, expand, basic index.

A view op knows how to look (`forward`) and how to put back what it shows (`back`); a write through a chain of views is
recorded on the base as `WriteThrough` of that chain.  After `reduce.py`, before `shape.py`, which copies.
"""
from __future__ import annotations

import math
from functools import cached_property
from operator import index

import numpy as np

from minigrad import aval
from minigrad.algebra import algebra_of
from minigrad.aval import Aval
from minigrad.errors import ShapeError
from minigrad.ops.doors import look
from minigrad.ops.op import NoOnnx, Op, op
from minigrad.ops.reduce import axes_of
from minigrad.ops.samples import Sample
from minigrad.tensor import Tensor


class ViewOp(Op):
    """An op that shows the memory of its input."""

    flat = False
    always = True                      # it shows the memory of every input, however that lies
    repeats = False                    # one cell may be several elements of the output, which is never written then

    def aliases(self, x) -> bool:
        return True

    @cached_property
    def looking(self):
        """The plan where x has a history."""
        return self.plan(1, False)

    def infer(self, x: Aval) -> Aval:
        return aval.view_of(x, lambda a: self.forward(algebra_of(a), a))

    def back(self, o, x, y):
        """`x` in which what this op shows of it is `y`."""
        raise NotImplementedError

    def written(self, chain: tuple) -> Op:
        return WriteThrough.of(chain)

    def flops(self, y: Aval, x: Aval) -> int:
        return 0

    def bytes(self, y: Aval, x: Aval) -> int:
        return 0


@op
class Reshape(ViewOp):
    """The same elements, row-major, in another shape: a view where the strides allow it, else a copy"""

    shape: tuple[int, ...]
    onnx, always = "Reshape", False
    reference = lambda self, x: np.reshape(x, self.shape)  # noqa: E731

    def forward(self, o, x):
        return o.reshape(x, self.shape)

    def dx(self, o, g, x_shape):
        return o.reshape(g, x_shape)

    def back(self, o, x, y):
        return o.reshape(y, x.shape)

    def aliases(self, x) -> bool:
        return aval.seen_as(aval.aval_of(x), self.shape) is not None

    def infer(self, x: Aval) -> Aval:
        if math.prod(self.shape) != x.size:
            raise ShapeError(f"reshape: {x.shape} has {x.size} elements, {self.shape} has {math.prod(self.shape)}")
        return aval.seen_as(x, self.shape) or Aval(self.shape, x.dtype)

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of((4, 3)), (s,)) for s in ("normal(3,4)", "normal(3,4).T", "normal(12)[::2]")] + [
            Sample(cls.of((1, 1)), ("normal()",)),
            Sample(cls.of((3, 2, 2)), ("normal(3,4).T",)),
            Sample(cls.of((0,)), ("normal(0,3)",)),
        ]


@op
class Permute(ViewOp):
    """The axes in another order"""

    axes: tuple[int, ...]
    onnx = "Transpose"
    reference = lambda self, x: np.transpose(x, self.axes)  # noqa: E731

    @cached_property
    def inverse(self) -> tuple[int, ...]:
        return tuple(int(i) for i in np.argsort(self.axes))

    def forward(self, o, x):
        return o.transpose(x, self.axes)

    def dx(self, o, g):
        return o.transpose(g, self.inverse)

    def back(self, o, x, y):
        return o.transpose(y, self.inverse)

    @classmethod
    def samples(cls) -> list[Sample]:
        return [
            Sample(cls.of((1, 0)), ("normal(3,4)",)),
            Sample(cls.of((2, 0, 1)), ("normal(2,3,4)",)),
            Sample(cls.of(()), ("normal()",)),
        ]


@op
class Expand(ViewOp):
    """Axes of size 1 shown many times"""

    shape: tuple[int, ...]
    exact, repeats = False, True                      # the sum over the new places is autograd's un-broadcast
    onnx = "Expand"
    reference = lambda self, x: np.broadcast_to(x, self.shape)  # noqa: E731

    def forward(self, o, x):
        return o.broadcast_to(x, self.shape)

    def dx(self, o, g):
        return g

    def infer(self, x: Aval) -> Aval:
        try:
            return super().infer(x)
        except ValueError:
            raise ShapeError(
                f"expand: {x.shape} cannot be shown as {self.shape}: only axes of size 1 can grow"
            ) from None

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of((3, 4)), (f"normal({s})",)) for s in ("3,1", "4", "1,4", "")]


def freeze_key(key: tuple) -> tuple:
    """A basic key as a hashable value: a slice becomes ("slice", start, stop, step)."""
    return tuple(("slice", k.start, k.stop, k.step) if isinstance(k, slice) else k for k in key)


def thaw_key(key: tuple) -> tuple:
    """The key itself, with an Ellipsis: without one NumPy answers a full set of integers with a number, not a 0-d
    view."""
    thawed = tuple(slice(*k[1:]) if isinstance(k, tuple) else k for k in key)
    return thawed if any(k is Ellipsis for k in thawed) else (*thawed, Ellipsis)


@op
class Cut(ViewOp):
    """Basic indexing: integers, slices, None and Ellipsis"""

    frozen: tuple
    onnx = NoOnnx("Slice, Squeeze and Unsqueeze")
    reference = lambda self, x: x[self.key]  # noqa: E731

    @cached_property
    def key(self) -> tuple:
        return thaw_key(self.frozen)

    def forward(self, o, x):
        return o.cut(x, self.key)

    def dx(self, o, g, x_shape):
        return o.place(g, self.key, x_shape)

    def into_x(self, o, total, g, x_shape):
        """Add dx to `total`, a buffer that may be written: as many slices as there are cost one full gradient."""
        place = total[self.key]
        place += g

    def back(self, o, x, y):
        return o.put(x, self.key, y)

    @classmethod
    def samples(cls) -> list[Sample]:
        keys = [
            (1,),
            (slice(None), 2),
            (slice(1, 3),),
            (Ellipsis, None, slice(None, None, 2)),
            (slice(3, 0, -2), 1),
            (slice(0, 0),),
        ]
        return [Sample(cls.of(freeze_key(k)), (s,)) for k in keys for s in ("normal(3,4)", "normal(4,3).T")]


@op
class Place(Op):
    """The adjoint of Cut: x at a basic key in zeros"""

    frozen: tuple
    shape: tuple[int, ...]
    onnx = NoOnnx("Pad or ScatterND")

    @cached_property
    def key(self) -> tuple:
        return thaw_key(self.frozen)

    def forward(self, o, x):
        return o.place(x, self.key, self.shape)

    def dx(self, o, g):
        return o.cut(g, self.key)

    def infer(self, x: Aval) -> Aval:
        return Aval(self.shape, x.dtype)

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of(freeze_key((slice(1, 3), 0)), (4, 2)), ("normal(2)",))]


@op
class Put(Op):
    """x with v at a basic key"""

    frozen: tuple
    onnx = NoOnnx("ScatterND")

    @cached_property
    def key(self) -> tuple:
        return thaw_key(self.frozen)

    def forward(self, o, x, v):
        return o.put(x, self.key, v)

    def dx(self, o, g, v_shape):
        return o.put(g, self.key, o.zero)

    def dv(self, o, g):
        return o.cut(g, self.key)

    def infer(self, x: Aval, v: Aval) -> Aval:
        return aval.like(x.shape, x.dtype, x)

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of(freeze_key((slice(1, 3), 0))), ("normal(4,2)", "normal(2)")),
                Sample(cls.of(freeze_key((slice(1, 3),))), ("normal(4,2)", "normal(2)"))]


@op
class WriteThrough(Op):
    """x after v was written where a chain of views looks"""

    chain: tuple
    exact = True
    onnx = NoOnnx("ScatterND")

    def forward(self, o, x, v):
        return self._back(o, x, v, 0)

    def _back(self, o, x, v, k: int):
        if k == len(self.chain):
            return v
        return self.chain[k].back(o, x, self._back(o, self.chain[k].forward(o, x), v, k + 1))

    def dx(self, o, g, v_shape):
        return self.forward(o, g, o.broadcast_to(o.zero, v_shape))

    def dv(self, o, g):
        for step in self.chain:
            g = step.forward(o, g)
        return g

    def infer(self, x: Aval, v: Aval) -> Aval:
        return Aval(x.shape, x.dtype)

    @classmethod
    def samples(cls) -> list[Sample]:
        chain = (
            Cut.of(freeze_key((slice(1, 3),))),
            Permute.of((1, 0)),
            Reshape.of((4,)),
            Cut.of(freeze_key((slice(0, 3),))),
        )
        return [
            Sample(cls(chain[:1]), ("normal(4,2)", "normal(2,2)")),
            Sample(cls(chain[:2]), ("normal(4,2)", "normal(2,2)")),
            Sample(cls((Reshape.of((8,)), Cut.of(freeze_key((3,))))), ("normal(4,2)", "normal()")),
            Sample(cls(chain), ("normal(4,2)", "normal(3)")),
        ]


# ---- as functions ------------------------------------------------------------------------------
def shape_arg(args: tuple) -> tuple:
    """A shape given as one sequence or as several integers."""
    return tuple(args[0]) if len(args) == 1 and isinstance(args[0], tuple | list | np.ndarray) else args


def wanted_shape(x: Tensor, shape: tuple, name: str) -> tuple[int, ...]:
    """A shape with its one -1 worked out."""
    shape = tuple(map(index, shape))
    size = math.prod(x.shape)
    if shape.count(-1) > 1 or any(n < -1 for n in shape):
        raise ShapeError(f"{name}: shape {shape} may hold one -1 and no other negative size")
    if -1 in shape:
        rest = math.prod(n for n in shape if n != -1)
        if rest == 0 or size % rest:
            raise ShapeError(f"{name}: {size} elements of shape {x.shape} cannot be laid out as {shape}")
        shape = tuple(size // rest if n == -1 else n for n in shape)
    if math.prod(shape) != size:
        raise ShapeError(f"{name}: shape {x.shape} has {size} elements, {shape} wants {math.prod(shape)}")
    return shape


def reshape(x: Tensor, *shape) -> Tensor:
    """The same elements in another shape: a view where possible, else a copy.  One size may be -1."""
    return look(Reshape.of(wanted_shape(x, shape_arg(shape), "reshape")), x)


def view(x: Tensor, *shape) -> Tensor:
    """As `reshape`, but never a copy: refused where the strides do not allow a view."""
    shape = wanted_shape(x, shape_arg(shape), "view")
    if aval.seen_as(x.aval, shape) is None:
        raise ShapeError(
            f"view: {x.shape} with strides {x.stride()} (elements) cannot be seen as {shape} without a copy. "
            "Use .reshape(...), or .contiguous().view(...)"
        )
    return look(Reshape.of(shape), x)


def flatten(x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Axes start_dim … end_dim as one."""
    if x.ndim == 0:
        return reshape(x, 1)
    (a,), (b,) = axes_of(start_dim, x.ndim, "flatten"), axes_of(end_dim, x.ndim, "flatten")
    if a > b:
        raise RuntimeError(f"flatten: start_dim {start_dim} comes after end_dim {end_dim}")
    return reshape(x, (*x.shape[:a], math.prod(x.shape[a:b + 1]), *x.shape[b + 1:]))


def permute(x: Tensor, *dims) -> Tensor:
    """The axes in the order `dims`."""
    dims = shape_arg(dims)
    order = tuple(axes_of(d, x.ndim, "permute")[0] for d in dims) if x.ndim else ()
    if sorted(order) != list(range(x.ndim)):
        raise RuntimeError(f"permute: {dims} is not an order of the {x.ndim} axes of {x.shape}")
    return look(Permute.of(order), x)


def transpose(x: Tensor, dim0: int, dim1: int) -> Tensor:
    """Two axes exchanged."""
    if x.ndim == 0:
        return permute(x)
    (a,), (b,) = axes_of(dim0, x.ndim, "transpose"), axes_of(dim1, x.ndim, "transpose")
    order = list(range(x.ndim))
    order[a], order[b] = b, a
    return look(Permute.of(tuple(order)), x)


def t(x: Tensor) -> Tensor:
    """A matrix transposed; a vector or a number as it is."""
    if x.ndim > 2:
        raise RuntimeError(f"t: expected at most 2 axes, got {x.shape}. Use .transpose(a, b) or .mT")
    return permute(x, *reversed(range(x.ndim)))


def expand(x: Tensor, *sizes) -> Tensor:
    """Axes of size 1 shown many times without copying; -1 keeps a size."""
    sizes = shape_arg(sizes)
    lead = len(sizes) - x.ndim
    if lead < 0 or any(n == -1 for n in sizes[:lead]):
        raise ShapeError(f"expand: {sizes} has too few axes, or a -1 among new ones, for a tensor of shape {x.shape}")
    want = tuple(x.shape[i - lead] if n == -1 else index(n) for i, n in enumerate(sizes))
    if math.prod(want) == math.prod(x.shape) and want[lead:] == x.shape:
        return reshape(x, want)                              # nothing is repeated: an ordinary, writable view
    return look(Expand.of(want), x)


def cut(x: Tensor, key: tuple) -> Tensor:
    """x[key] for a key of integers, slices, None and …: a view."""
    return look(Cut.of(freeze_key(key)), x)


def unsqueeze(x: Tensor, dim: int) -> Tensor:
    """A new axis of size 1 at `dim`."""
    (at,) = axes_of(dim, x.ndim + 1, "unsqueeze")
    return look(Reshape.of((*x.shape[:at], 1, *x.shape[at:])), x)


def squeeze(x: Tensor, dim=None) -> Tensor:
    """Without the axes of size 1, or without those of them in `dim`."""
    gone = range(x.ndim) if dim is None else axes_of(dim, x.ndim, "squeeze") or ()
    return reshape(x, tuple(n for i, n in enumerate(x.shape) if not (i in gone and n == 1)))
