"""Indexing: `x[key]` and `x[key] = v` with integers, slices, None, …, index and truth tensors; gather and scatter_add.

A key splits into a `pattern` (hashable) and the index tensors that fill its holes; those are inputs of the op.
A truth tensor becomes the integer places where it holds.  After `matmul.py`.
"""
from __future__ import annotations

import operator

import numpy as np

from minigrad import aval
from minigrad.aval import Aval, aval_of
from minigrad.device import CPU
from minigrad.dtype import bool_, int64, is_float, uint8
from minigrad.errors import DTypeError, ImplicitTransfer, PlaceError, ShapeError
from minigrad.indexing import HOLE, filled
from minigrad.inplace import check_writable, overwrite, store
from minigrad.ops.doors import literal
from minigrad.ops.op import NoOnnx, Op, cast, op
from minigrad.ops.reduce import axes_of
from minigrad.ops.samples import Sample
from minigrad.ops.shape import Overwrite, check_fits
from minigrad.ops.views import Cut, freeze_key, look, reshape, thaw_key
from minigrad.tensor import Tensor, apply, current


class Pattern(Op):
    """An op with a `frozen` pattern."""

    as_is = ("index",)

    @property
    def pattern(self) -> tuple:
        return thaw_key(self.frozen)

    def shown(self, x: Aval, index) -> tuple[int, ...]:
        """The shape of x[key]."""
        key = filled(self.pattern, tuple(np.broadcast_to(np.zeros((), np.int64), i.shape) for i in index))
        try:
            return (
                aval.stand_in(x)[key].shape if x.size < 1 << 24 else np.broadcast_to(np.zeros(()), x.shape)[key].shape
            )
        except IndexError as e:
            raise PlaceError(f"index: a tensor of shape {x.shape} cannot be indexed so: {e}") from None


@op
class At(Pattern):
    """x[key] by index tensors: a copy"""

    frozen: tuple
    onnx = NoOnnx("GatherND")

    def forward(self, o, x, *index):
        return o.at(x, self.pattern, index)

    def dx(self, o, g, x_shape, index):
        return o.add_at(g, self.pattern, index, x_shape)

    def infer(self, x: Aval, *index: Aval) -> Aval:
        return Aval(self.shown(x, index), x.dtype)

    def flops(self, y: Aval, x: Aval, *index: Aval) -> int:
        return 0

    def bytes(self, y: Aval, x: Aval, *index: Aval) -> int:
        return 2 * y.nbytes + sum(i.nbytes for i in index)    # of x what is read

    @classmethod
    def samples(cls) -> list[Sample]:
        return [
            Sample(cls.of((HOLE,)), ("normal(4,2)", "index(3)<4")),
            Sample(cls.of((HOLE,)), ("normal(4)", "index(2,2)<4")),
            Sample(cls.of(freeze_key((slice(None), HOLE))), ("normal(2,4)", "index(3)<4")),
            Sample(cls.of((HOLE, HOLE)), ("normal(4,3)", "index(3)<4", "index(3)<3")),
            Sample(cls.of((HOLE,)), ("normal(4,2)", "index(0)<4")),
        ]


@op
class AddAt(Pattern):
    """The adjoint of At: x added into zeros of `shape`"""

    frozen: tuple
    shape: tuple[int, ...]
    onnx = NoOnnx("ScatterND")

    def forward(self, o, x, *index):
        return o.add_at(x, self.pattern, index, self.shape)

    def dx(self, o, g, index):
        return o.at(g, self.pattern, index)

    def infer(self, x: Aval, *index: Aval) -> Aval:
        return Aval(self.shape, x.dtype)

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of((HOLE,), (4, 2)), ("normal(3,2)", "index(3)<4"))]


@op
class PutAt(Pattern):
    """x with v at index tensors; at a place that occurs twice the last value stays"""

    frozen: tuple
    exact, onnx = False, NoOnnx("ScatterND")

    def forward(self, o, x, v, *index):
        return o.put_at(x, self.pattern, index, v)

    def dx(self, o, g, index):
        return o.put_at(g, self.pattern, index, o.zero)

    def dv(self, o, g, index):
        return o.at(g, self.pattern, index)

    def infer(self, x: Aval, v: Aval, *index: Aval) -> Aval:
        check_fits(v.shape, self.shown(x, index))
        return aval.like(x.shape, x.dtype, x)

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of((1, HOLE)), ("normal(3,4)", "normal()", "index(1)<4")),
                Sample(cls.of((HOLE,)), ("normal(4,2)", "normal(2)", "index(1)<4"))]


@op
class TakeAlong(Op):
    """gather: along an axis, the elements at `index`"""

    axis: int
    as_is, onnx, functional = ("index",), "GatherElements", "gather"
    reference = lambda self, x, index: np.take_along_axis(x, index, self.axis)  # noqa: E731

    def forward(self, o, x, index):
        return o.take_along(x, index, self.axis)

    def dx(self, o, g, x_shape, index):
        return o.add_along(g, index, self.axis, x_shape[self.axis])

    def infer(self, x: Aval, index: Aval) -> Aval:
        return Aval(index.shape, x.dtype)

    def flops(self, y: Aval, x: Aval, index: Aval) -> int:
        return 0

    def bytes(self, y: Aval, x: Aval, index: Aval) -> int:
        return 2 * y.nbytes + index.nbytes                    # of x what is read

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of(1), ("normal(3,4)", "index(3,5)<4")), Sample(cls.of(0), ("normal(3,4)", "index(1,4)<3"))]


@op
class AddAlong(Op):
    """The adjoint of TakeAlong: along an axis of length n, x added at `index`"""

    axis: int
    n: int
    as_is, onnx = ("index",), NoOnnx("ScatterElements")

    def forward(self, o, x, index):
        return o.add_along(x, index, self.axis, self.n)

    def dx(self, o, g, index):
        return o.take_along(g, index, self.axis)

    def infer(self, x: Aval, index: Aval) -> Aval:
        return Aval((*x.shape[:self.axis], self.n, *x.shape[self.axis + 1:]), x.dtype)

    @classmethod
    def samples(cls) -> list[Sample]:
        return [
            Sample(cls.of(1, 4), ("normal(3,5)", "index(3,5)<4")),
            Sample(cls.of(0, 4), ("normal(1,2)", "index(1,2)<4")),
        ]


@op
class OneHot(Op):
    """Ones where the class number is, zeros elsewhere, in the dtype of `like`"""

    n: int
    as_is, onnx = ("t", "like"), "OneHot"

    def forward(self, o, t, like):
        return o.one_hot(t, self.n, like)

    def infer(self, t: Aval, like: Aval) -> Aval:
        return Aval((*t.shape, self.n), like.dtype)

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of(4), ("index(3)<4", "normal(2)"))]


# ---- keys --------------------------------------------------------------------------------------
def split_key(x: Tensor, key) -> tuple[tuple, tuple, tuple[Tensor, ...]]:
    """(basic key, pattern, index tensors): x[key] is x[basic][pattern filled with the index tensors].

    So integers and slices act first, as in PyTorch; NumPy would count an integer beside an index array as one more."""
    parts = [_part(x, k) for k in (key if isinstance(key, tuple) else (key,))]
    if not any(isinstance(k, Tensor) for k in parts):
        return tuple(parts), (), ()
    parts = _without_ellipsis(x, _numbers_apart(parts))
    basic: list = []
    pattern: list = []
    index: list[Tensor] = []
    for k in parts:
        if isinstance(k, Tensor):
            found = places(x, k, sum(1 for b in basic if b is not None))
            basic += [slice(None)] * len(found)
            pattern += [HOLE] * len(found)
            index += found
        else:
            basic.append(k)
            pattern += [slice(None)] if k is None or isinstance(k, slice) else []
    while pattern[-1] is not HOLE:
        pattern.pop()
    return tuple(basic), tuple(pattern), tuple(index)


def _part(x: Tensor, k):
    """One part of a key: an integer, a slice of integers, None, Ellipsis, or a Tensor of integers or truth values."""
    if k is None or k is Ellipsis:
        return k
    if isinstance(k, slice):
        return slice(*(None if v is None else operator.index(v) for v in (k.start, k.stop, k.step)))
    if isinstance(k, bool | np.bool_):
        raise TypeError("index: True and False are no places; compare tensors to get a mask")
    if isinstance(k, Tensor | np.ndarray | list | range):
        return _index_tensor(x, k)
    if hasattr(k, "__index__"):
        return k.__index__()
    raise TypeError(f"index: {k!r} is no integer, slice, None, ... or tensor")


def _index_tensor(x: Tensor, k) -> Tensor:
    if not isinstance(k, Tensor):
        if isinstance(k, np.ndarray) and x.o.eager and x.o.device is not CPU:
            raise ImplicitTransfer(
                f"index: {type(k).__name__} is on the host, the tensor {x.shape} on {x.o.device}. "
                f"Move it: mg.tensor(..., device='{x.o.device}')"
            )
        host = np.asarray(k, None if len(k) else np.int64)
        if host.dtype.kind not in "biuf":
            raise TypeError(f"index: {k!r} is no list of integers or truth values")
        k = Tensor(x.o.upload(host) if x.o.eager else aval_of(host))
    if is_float(k.dtype):
        raise DTypeError(f"index: expected integers or truth values, got {k.dtype}. Convert with .long()")
    if k.dtype == uint8:
        raise DTypeError("index: uint8 may mean places or, as in old PyTorch, a mask. Say which: .long() or .bool()")
    if k.dtype == bool_ and k.ndim == 0:
        raise TypeError("index: a 0-d truth tensor is no mask of any axis")
    return k


def _numbers_apart(parts: list) -> list:
    """0-d index tensors as the integers they hold where longer ones stand beside them."""
    if not any(isinstance(k, Tensor) and k.ndim for k in parts):
        return parts
    held = lambda k: int(k.array.item()) if k.o.eager else 0  # noqa: E731 - on meta any place has the same shape
    return [held(k) if isinstance(k, Tensor) and not k.ndim else k for k in parts]


def _without_ellipsis(x: Tensor, parts: list) -> list:
    """... written out as full slices."""
    at = [i for i, k in enumerate(parts) if k is Ellipsis]
    used = sum(k.ndim if isinstance(k, Tensor) and k.dtype == bool_ else k is not None for k in parts) - len(at)
    if len(at) > 1 or used > x.ndim:
        raise PlaceError(f"index: {len(at)} ellipses and {used} places for a tensor of shape {x.shape}")
    return parts[:at[0]] + [slice(None)] * (x.ndim - used) + parts[at[0] + 1:] if at else parts


def places(x: Tensor, k: Tensor, axis: int) -> list[Tensor]:
    """Integer tensors for an index at `axis`: itself, or the places where a truth tensor holds."""
    if k.dtype != bool_:
        return [cast(k, int64)]
    if x.shape[axis:axis + k.ndim] != k.shape:
        raise PlaceError(f"index: a mask of shape {k.shape} does not fit a tensor of shape {x.shape} at axis {axis}")
    if not k.o.eager:
        raise RuntimeError("index: how many places a truth tensor holds is not known on meta; use mg.where")
    return [Tensor(k.o.upload(p)) for p in np.nonzero(k.o.host(k.array))]


def _looked_at(x: Tensor, basic: tuple) -> Tensor:
    """x[basic], without a step where that is x."""
    return x if all(isinstance(k, slice) and k == slice(None) for k in basic) else apply(Cut.of(freeze_key(basic)), x)


def plain_key(key) -> tuple | None:
    """A key of Python's own integers, slices, None and … as `freeze_key` gives it; None for any other."""
    frozen = []
    for k in key if key.__class__ is tuple else (key,):
        if k.__class__ is slice and (k.start.__class__, k.stop.__class__, k.step.__class__) in _PLAIN:
            frozen.append(("slice", k.start, k.stop, k.step))
        elif k.__class__ is int or k is None or k is Ellipsis:
            frozen.append(k)
        else:
            return None
    return tuple(frozen)


_KINDS = int, type(None)
_PLAIN = {(a, b, c) for a in _KINDS for b in _KINDS for c in _KINDS}


def getitem(x: Tensor, key) -> Tensor:
    """x[key]: a view for integers, slices, None and …; a copy where a tensor or a list indexes."""
    kind = key.__class__
    if kind is int:
        return _known(x, (key,))
    if kind is slice and (key.start.__class__, key.stop.__class__, key.step.__class__) in _PLAIN:
        return _known(x, (("slice", key.start, key.stop, key.step),))
    frozen = plain_key(key)
    basic, pattern, index = split_key(x, key) if frozen is None else ((), (), ())
    try:
        if frozen is not None:
            return look(Cut.of(frozen), x)
        if index:
            return apply(At.of(freeze_key(pattern)), _looked_at(x, basic), *index)
        return apply(Cut.of(freeze_key(basic)), x)
    except IndexError as e:
        raise PlaceError(f"index: {e} (a tensor of shape {x.shape})") from None


_CUTS: dict[tuple, Cut] = {}                                 # the commonest keys, without asking `of`


def _known(x: Tensor, frozen: tuple) -> Tensor:
    """x cut by one integer or slice."""
    op = _CUTS.get(frozen)
    if op is None:
        if len(_CUTS) > 4096:
            _CUTS.clear()
        op = _CUTS[frozen] = Cut.of(frozen)
    try:
        return look(op, x, 4)
    except IndexError as e:
        raise PlaceError(f"index: {e} (a tensor of shape {x.shape})") from None


def setitem(x: Tensor, key, value) -> None:
    """x[key] = value, in place and in the history."""
    basic, pattern, index = split_key(x, key)
    value = cast(literal(value, x), x.dtype)
    if not index:
        target = getitem(x, key)
        overwrite(target, apply(Overwrite.of(), target, _fitted(value, target.ndim)), "index assignment")
        return
    target, op = _looked_at(x, basic), PutAt.of(freeze_key(pattern))
    value = _fitted(value, len(op.shown(target.aval, [i.aval for i in index])))
    if current().grad and (target.node is not None or value.node is not None):
        overwrite(target, apply(op, target, value, *index), "index assignment")
    else:
        check_writable(target, target.shape, "index assignment")
        store(target, apply(op, target, value, *index))


def _fitted(value: Tensor, ndim: int) -> Tensor:
    """`value` without leading axes of size 1 that the place it goes to has not."""
    lead = value.ndim - ndim
    return reshape(value, value.shape[lead:]) if lead > 0 and set(value.shape[:lead]) == {1} else value


def gather(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """y[i][j] = x[index[i][j]][j] for dim 0, and so on; index must not be larger than x beside `dim`."""
    (axis,) = axes_of(dim, x.ndim, "gather") or (0,)
    if x.ndim == 0 and index.ndim < 2:
        return reshape(gather(reshape(x, 1), 0, reshape(index, -1)), index.shape)
    if not index.array.size:
        return reshape(x, -1)[:0] * 1 if index.ndim == 1 else apply(At.of((HOLE,)), reshape(x, -1), cast(index, int64))
    if index.ndim != x.ndim or any(n > m for k, (n, m) in enumerate(zip(index.shape, x.shape)) if k != axis):
        raise ShapeError(f"gather: index {index.shape} is larger than x {x.shape} beside dim {dim}")
    check_index(index, x.shape[axis], "gather")
    fit = tuple(slice(0, n) if k != axis else slice(None) for k, n in enumerate(index.shape))
    return apply(TakeAlong.of(axis), getitem(x, fit), cast(index, int64))


def check_index(index: Tensor, n: int, name: str) -> None:
    """Refuse numbers outside 0 … n-1 (looks at the values: on a device this waits for it)."""
    if is_float(index.dtype) or index.dtype == bool_:
        raise DTypeError(f"{name}: expected an integer index, got {index.dtype}")
    if index.o.eager and index.array.size:
        low, high = int(index.array.min().item()), int(index.array.max().item())
        if low < 0 or high >= n:
            raise PlaceError(f"{name}: index holds {low if low < 0 else high}, which is outside 0 … {n - 1}")
