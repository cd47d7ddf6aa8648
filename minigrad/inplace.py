"""Writing in place: a functional op first, then a write into the tensor's own memory.

The tensor takes the history of the functional result; a view hands it to its base as one `WriteThrough`.
After `tensor.py`, before `ops/`.
"""

from __future__ import annotations

from minigrad.algebra import size_of
from minigrad.errors import GraphError
from minigrad.probes import begin
from minigrad.tensor import (
    LEAF,
    InferenceTensor,
    Node,
    Tensor,
    View,
    Writes,
    current,
    is_inference_mode_enabled,
    record,
    tick,
)


def overwrite(x: Tensor, out: Tensor, what: str, since: int | None = None) -> Tensor:
    """`x` takes the values of `out` in its own memory, and its history: what every method ending in `_` does.
    `since`: the clock when the steps that made `out` began; None if it was one op."""
    check_writable(x, out.shape, what)
    _keep_old(x, out.node, since)
    old = x.node
    if current().grad:
        if isinstance(x, View):
            rewrite_base(x, out)
        else:
            x.node = out.node
            if x.family is not None:
                x.family.writes += 1
        _hand_on_retained(old, x)
    store(x, out)
    if x.__class__ is Tensor and out.node.__class__ is Node and x.node is out.node:
        _save_here(x, out)
    return x


def _save_here(x: Tensor, out: Tensor) -> None:
    """What the node of `out` saved of its result lies in `x` now: one buffer, not two.  The node counts as made after
    the write; a later write raises in backward, as in PyTorch."""
    n = out.node
    if x.o.eager and n.saved and any(v is out.array for v in n.saved):
        n.saved = tuple(x.array if v is out.array else v for v in n.saved)
        n.seq = tick()


def _keep_old(x: Tensor, newest, since: int | None) -> None:
    """The nodes just made may need the values that are about to be overwritten: they keep a copy of their own."""
    if newest.__class__ is not Node:
        return
    first = newest.seq if since is None else since
    waiting, met = [newest], {newest}
    while waiting:
        n = waiting.pop()
        if n.saved:
            n.saved = tuple(n.o.copy(v) if _shows(v, x) else v for v in n.saved)
            for box in [v for v in n.saved if hasattr(v, "spare")]:
                box.spare(x, _shows)
        fresh = [e for e in n.edges or () if e.__class__ is Node and e.seq >= first and e not in met]
        met.update(fresh)
        waiting += fresh


def _shows(value, x: Tensor) -> bool:
    """Whether a saved value lies in the memory of `x`, of which an op may have saved another view."""
    if value is x.array:
        return True
    if getattr(value, "base", None) is None or not x.o.eager:
        return False
    return x.o.storage(value) is x.o.storage(x.array)


def _hand_on_retained(old, x: Tensor) -> None:
    """`x` was written: what it retains (`retain_grad`) is the gradient of its new value."""
    if getattr(getattr(old, "plan", None), "last", None) and x.node.__class__ is Node:
        old.plan.hand_on(x.node)


def store(x: Tensor, out: Tensor) -> None:
    """Write the values alone."""
    if x.o.eager:
        x.array[...] = out.array
        Writes.note(x.array)


def check_writable(x: Tensor, shape: tuple, what: str) -> None:
    """Refuse a write that PyTorch refuses: to a leaf with a history, to overlapping memory, of another shape."""
    base = x.base if isinstance(x, View) else x
    if base.__class__ is InferenceTensor and not is_inference_mode_enabled():
        raise GraphError(f"{what}: a tensor {x.shape} made in inference_mode may be written only there. Clone it first")
    if current().grad and (base.node is LEAF or x.node is LEAF):
        kind = "a view of a leaf" if base is not x else "a leaf"
        raise GraphError(f"{what}: {kind} that requires grad may be changed in place only under no_grad(). "
                         "Write to a clone(), or wrap the update in `with mg.no_grad():`")
    if current().grad and base is not x and x.node is None and base.node is not None:
        raise GraphError(
            f"{what}: this view was made under no_grad(), without a history. "
            "Make it again outside, or write under no_grad()"
        )
    overlaps = size_of(x.shape) and any(s == 0 and n > 1 for s, n in zip(x.array.strides, x.shape))
    if overlaps or not _is_writable(x):
        raise GraphError(
            f"{what}: the memory of this tensor {x.shape} is read-only, or, as it is expanded, one cell of it is "
            "several elements. Write to a clone()"
        )
    if shape != x.shape:
        raise GraphError(f"{what}: the result has shape {shape}, which does not fit into {x.shape} in place. "
                         "Use the form without `_`")


def _is_writable(x: Tensor) -> bool:
    """Whether each element has a cell of its own that may be written, also where a view shows part of an expanded
    tensor."""
    if isinstance(x, View) and any(op.repeats for op in x.chain):
        return False
    return getattr(getattr(x.array, "flags", None), "writeable", True)


def shown_in_place(look, name: str):
    """The method that makes a tensor itself what `look` shows of it: `t_`, `squeeze_` … move no values."""

    def method(x: Tensor, *args, **kwargs) -> Tensor:
        if current().grad and (x.node is LEAF or isinstance(x, View) and x.base.node is LEAF):
            raise GraphError(f"{name}: a leaf that requires grad may be changed in place only under no_grad()")
        if isinstance(x, View):
            y = look(x, *args, **kwargs)
            x.array, x.chain, x.node, x.seen = y.array, y.chain, y.node, y.seen
            return x
        if x.family is not None:
            raise GraphError(f"{name}: views of this tensor {x.shape} are in use, which count on its shape. Use "
                             f"x.{name[:-1]}(...)")
        before = Tensor(x.array)                              # the views of it are views of this one
        before.node = x.node
        y = look(before, *args, **kwargs)
        x.array, x.node = y.array, y.node
        return x

    method.__name__, method.__doc__ = name, f"The tensor itself with other axes: {(look.__doc__ or '').splitlines()[0]}"
    return method


def rewrite_base(x: View, out: Tensor) -> None:
    """Record on the base that what `x` shows comes from `out` now; `x` and its siblings rebuild when next asked.
    The op is recorded without being run: the values are written in place."""
    base, now = x.base, current()
    if base.node is None and out.node is None:
        return
    op, old = x.chain[0].written(x.chain), base.node
    begin(now.observers, "op", op, (base, out))
    record(op, base.o, (base, out), (base,), now)
    for observer in now.observers:
        observer(op, (base, out), (base,))
    base.family.writes += 1
    _hand_on_retained(old, base)
