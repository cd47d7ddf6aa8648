"""Where the arrays that nodes save live until backward: hooks that pack and unpack them, as `torch.autograd.graph`.

A `Saver` is a probe: while one is there ops go through `apply`, and each node that is made hands what it saves over.
Nodes without one pay nothing.  After `autograd.py`, which users reach it through: `mg.autograd.graph`.
"""
from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from minigrad.algebra import algebra_of
from minigrad.autograd import check_observed, observe
from minigrad.aval import Aval, aval_of
from minigrad.buffers import Place, taken_apart
from minigrad.device import CPU, backend_of, device_of
from minigrad.errors import GraphError
from minigrad.ops.plan import Plan
from minigrad.probes import Probe
from minigrad.sweep import Hooked
from minigrad.tensor import LEAF, Node, Tensor, View, Writes, changed, current


class Box:
    """Stands in `Node.saved` for an array that is elsewhere."""

    __slots__ = ("__weakref__",)

    def open(self) -> Any:
        """The array."""
        raise NotImplementedError

    def spare(self, x: Tensor, shows: Callable[[Any, Tensor], bool]) -> None:
        """The memory of `x` is about to be written, and this value is still needed."""


class Saver(Probe):
    """`with Saver():` decides what nodes keep in place of the arrays that they save.  Of several the innermost is
    asked, alone, as in PyTorch."""

    def __init__(self) -> None:
        self._changes: list[observe] = []

    def pack(self, value: Any, x: Tensor | None) -> Any:
        """A Box for a raw array, or the array itself if it is to stay; `x` is the input that holds it, if one does."""
        raise NotImplementedError

    def __call__(self, op: Any, xs: tuple, ys: tuple) -> None:
        n = ys[0].node
        if n.__class__ is Node and n.op is op and innermost(current().observers) is self:
            self.take(n, xs)

    def take(self, n: Node, xs: tuple) -> None:
        """Pack what a new node saved from its inputs `xs`."""
        given = {id(x.array): x for x in xs if isinstance(x, Tensor)}
        put = lambda v: self.pack(v, given.get(id(v))) if hasattr(v, "dtype") else v  # noqa: E731
        with changed(grad=False):
            saved = tuple(tuple(map(put, v)) if isinstance(v, tuple) else put(v) for v in n.saved)
        if any(map(_has_box, saved)):
            n.saved = saved
            if isinstance(n.plan, Hooked):
                n.plan.inner = Packed(n.plan.inner)
            else:
                n.plan = Packed(n.plan)

    def __enter__(self) -> Any:
        message = _DISABLED.get()
        if message is not None:
            raise RuntimeError(message)
        change = observe(self)
        change.__enter__()
        self._changes.append(change)
        return self

    def __exit__(self, *_: object) -> None:
        check_observed(type(self).__name__, self)
        self._changes.pop().__exit__()


def innermost(observers: tuple) -> Saver | None:
    return next((s for s in reversed(observers) if isinstance(s, Saver)), None)


def _has_box(v: Any) -> bool:
    return isinstance(v, Box) or isinstance(v, tuple) and any(isinstance(each, Box) for each in v)


def _opened(v: Any) -> Any:
    return v.open() if isinstance(v, Box) else tuple(map(_opened, v)) if _has_box(v) else v


class Packed(Plan):
    """The plan of a node that saved boxes: opened when the node's turn comes, and closed after it."""

    __slots__ = ("inner", "boxes")

    def __init__(self, inner: Plan) -> None:
        self.op, self.mask, self.names, self.keep = inner.op, inner.mask, inner.names, inner.keep
        self.inner = inner
        self.boxes: tuple | None = None

    def ready(self, n: Node) -> None:
        with changed(grad=False):
            opened = tuple(map(_opened, n.saved))
        self.boxes, n.saved = n.saved, opened

    def rest(self, n: Node) -> None:
        n.saved, self.boxes = self.boxes, None

    def pull(self, n: Node, g, grads) -> None:
        self.ready(n)
        try:
            self.inner.pull(n, g, grads)
        finally:
            self.rest(n)

    def __getattr__(self, name: str):
        return getattr(self.inner, name)


# ---- hooks of the user's own ---------------------------------------------------------------------
class saved_tensors_hooks(Saver):
    """`with saved_tensors_hooks(pack_hook, unpack_hook):` – what `pack_hook(tensor)` returns is kept in place of each
    tensor that an operation saves, and `unpack_hook` makes a tensor of it again each time backward needs it.

    All are packed, parameters too (a leaf comes as itself, so `tensor.is_leaf` tells), and a tensor that several
    operations save once for each.  Both run without recording.  What is unpacked is not checked for writes: the hooks
    alone know where it comes from."""

    def __init__(self, pack_hook: Callable[[Tensor], Any], unpack_hook: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.pack_hook, self.unpack_hook = pack_hook, unpack_hook

    def __enter__(self) -> None:
        if not (callable(self.pack_hook) and callable(self.unpack_hook)):
            raise TypeError(f"saved_tensors_hooks: expected two functions, pack_hook(tensor) and unpack_hook(packed), "
                            f"got {self.pack_hook!r} and {self.unpack_hook!r}")
        super().__enter__()

    def pack(self, value: Any, x: Tensor | None) -> Any:
        if x is not None and x.node is None and not x.shape and x.o.eager:
            x = Tensor(x.o.copy(value))                      # a number beside a tensor is shared by the whole process
        written = Writes.of(value)[0] if algebra_of(value).eager else 0
        box = _HookBox(self.pack_hook(Tensor(value) if x is None else x), self.unpack_hook, aval_of(value))
        if algebra_of(value).eager and Writes.of(value)[0] != written:
            raise GraphError(f"saved_tensors_hooks: pack_hook wrote to its input {value.shape} in place, which the "
                             "program goes on using. Write to a clone()")
        return box


class _HookBox(Box):
    __slots__ = ("packed", "unpack", "like")

    def __init__(self, packed: Any, unpack: Callable, like: Aval) -> None:
        self.packed, self.unpack, self.like = packed, unpack, like

    def open(self) -> Any:
        t = self.unpack(self.packed)
        if not isinstance(t, Tensor):
            raise TypeError(f"Output of saved tensor unpack_hook expected to be a Tensor but got result of type "
                            f"{type(t).__name__}")
        if t.shape != self.like.shape or t.dtype != self.like.dtype:
            raise GraphError(f"saved_tensors_hooks: unpack_hook gave {t.dtype}{list(t.shape)} for what was saved as "
                             f"{self.like.dtype}{list(self.like.shape)}. Give back what pack_hook got")
        return t.array

    def spare(self, x: Tensor, shows: Callable[[Any, Tensor], bool]) -> None:
        if isinstance(self.packed, Tensor) and shows(self.packed.array, x):
            self.packed = Tensor(self.packed.o.copy(self.packed.array))


_DISABLED: ContextVar[str | None] = ContextVar("minigrad.saved_tensors_hooks_disabled", default=None)


@contextmanager
def disable_saved_tensors_hooks(error_message: str) -> Iterator[None]:
    """In this block RuntimeError with this message when hooks for saved tensors are used, or are in use already."""
    if innermost(current().observers) is not None:
        raise RuntimeError(error_message)
    token = _DISABLED.set(error_message)
    try:
        yield
    finally:
        _DISABLED.reset(token)


# ---- to the host ---------------------------------------------------------------------------------
class save_on_cpu(Saver):
    """`with save_on_cpu():` – what operations save in this block waits on the host for backward, and is copied back
    then.  Arrays that are on the host stay as they are.

    What a leaf holds (a parameter, for one) stays on its device, as it is alive there anyway, and an array that several
    operations save is copied once; PyTorch copies both each time.  `pin_memory` changes nothing: copies are counted,
    and wait.  `minigrad.memory.offload` copies in the background."""

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
        super().__init__()
        self._copies: weakref.WeakValueDictionary[int, _Copy] = weakref.WeakValueDictionary()

    def pack(self, value: Any, x: Tensor | None) -> Any:
        apart = None if held_by_leaf(x) or device_of(value) is CPU else taken_apart(value)
        if apart is None:
            return value
        flat, place = apart
        owner = algebra_of(value).storage(value)
        copy = self._copies.get(id(owner))
        if copy is None or copy.owner() is not owner or copy.written != Writes.of(value)[0]:
            where = device_of(flat)
            copy = _Copy(backend_of(where).get(flat), where, weakref.ref(owner), Writes.of(value)[0])
            self._copies[id(owner)] = copy
        return _CopyBox(copy, place)


class _Copy:
    """The host's copy of a device's buffer, for all boxes whose arrays lie in it."""

    __slots__ = ("host", "where", "owner", "written", "__weakref__")

    def __init__(self, *parts: Any) -> None:
        self.host, self.where, self.owner, self.written = parts


class _CopyBox(Box):
    __slots__ = ("copy", "place")

    def __init__(self, copy: _Copy, place: Place) -> None:
        self.copy, self.place = copy, place

    def open(self) -> Any:
        where = self.copy.where
        return self.place.look(backend_of(where).put(where.index, self.copy.host))


def held_by_leaf(x: Tensor | None) -> bool:
    """Whether a leaf, or a view of one, keeps this memory alive anyway."""
    return x is not None and ((x.base if isinstance(x, View) else x).node is LEAF)


# ---- arguments of a checkpoint --------------------------------------------------------------------
class Kept(NamedTuple):
    """A tensor whose array is in a box, with its place in the graph."""

    box: Box
    node: Any

    def again(self) -> Tensor:
        t = Tensor(self.box.open())
        t.node = self.node
        return t


def put_away(x: Any, saver: Saver) -> Any:
    """A tensor as what the saver keeps of it; anything else, a leaf, and what is to stay, as it is."""
    if not isinstance(x, Tensor) or x.node is LEAF or not x.o.eager:
        return x
    with changed(grad=False):
        box = saver.pack(x.array, x)
    return Kept(box, x.node) if isinstance(box, Box) else x


def fetched(x: Any) -> Any:
    if not isinstance(x, Kept):
        return x
    with changed(grad=False):
        return x.again()


__all__ = ["disable_saved_tensors_hooks", "save_on_cpu", "saved_tensors_hooks"]
