"""Where a gradient arrives: added to the `.grad` of its leaf, with the hooks of leaves before and after.

Before `sweep.py`, whose walk ends here.
"""
from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from minigrad.errors import GraphError, HookError
from minigrad.ops.shape import clone
from minigrad.probes import begin, end
from minigrad.rows import Rows
from minigrad.tensor import Tensor, Writes, changed, current


class LeafHooks(dict[int, Callable]):
    """The hooks on a leaf's gradient, by number; and `after`, those that run when it was added to `.grad`."""

    __slots__ = ("after",)
    ever = False                                             # whether any leaf had one of the latter: else none looks

    def __init__(self) -> None:
        self.after: dict[int, Callable] = {}


def waits(leaf: Tensor) -> bool:
    """Whether hooks are to run as soon as this leaf has its whole gradient."""
    return leaf.hooks.__class__ is LeafHooks and bool(leaf.hooks.after)


def deposit(grads: dict, leaf: Tensor, on_tensors: bool) -> None:
    """Add the whole gradient of a leaf, taken out of `grads`, to what it has; nothing if it got none."""
    if grads[leaf] is None:
        return
    observers = current().observers
    if observers:
        begin(observers, "leaf", leaf)
    accumulate(leaf, grads.pop(leaf), on_tensors)
    if observers:
        end(observers, "leaf", leaf, (leaf.grad,))
    if LeafHooks.ever:
        run_after(leaf, on_tensors)


def run_after(leaf: Tensor, on_tensors: bool) -> None:
    """The hooks that run when a leaf's whole gradient is in `.grad`."""
    if not on_tensors and waits(leaf):
        with changed(grad=False):
            return run_after(leaf, True)
    for hook in tuple(leaf.hooks.after.values()) if waits(leaf) else ():
        if hook(leaf) is not None:
            raise HookError("register_post_accumulate_grad_hook: a hook of this kind returns None. Write to leaf.grad "
                            "to change it")


# ---- at the end ------------------------------------------------------------------------------------
class _Ending(threading.local):
    """Of a thread, not of a context: a checkpoint runs its function again in the context of forward."""

    queued: list[Callable[[], None]] | None = None           # while a backward runs


_ENDING = _Ending()


def queue_callback(callback: Callable[[], None]) -> None:
    """Call `callback()` once the backward that is running has added all gradients: where a hook waits for what it and
    others began (PyTorch: `Variable._execution_engine.queue_callback`).  Of a backward in a backward: the outer one."""
    if _ENDING.queued is None:
        raise GraphError("queue_callback: no backward is running. Call it from a hook of one")
    _ENDING.queued.append(callback)


def to_the_end(walk: Callable, *how: Any) -> Any:
    """walk(*how), then what hooks have queued meanwhile."""
    if _ENDING.queued is not None:
        return walk(*how)
    _ENDING.queued = []
    try:
        result = walk(*how)
        for callback in _ENDING.queued:
            callback()
    finally:
        _ENDING.queued = None
    return result


# ---- adding ------------------------------------------------------------------------------------------
_SOLE = (lambda g: sys.getrefcount(g))(object())             # what a sole owner looks like to this interpreter


def accumulate(leaf: Tensor, g, on_tensors: bool = False) -> None:
    """leaf.grad += g.  An array that someone else may hold too (an add gives both inputs the same g) is copied."""
    if g.__class__ is Rows or leaf.grad.__class__ is Rows:
        g = _with_rows(leaf, g)
        if g is None:
            return
    if leaf.hooks:
        g = run_hooks(leaf.hooks, g, on_tensors)
    old = leaf.grad
    if old is not None:
        _check_grad(leaf, old)
        if not on_tensors and old.node is None and old.o.eager:
            old.array += g
            Writes.note(old.array)
            return
    if on_tensors:
        g = clone(g) if old is None else g
    else:
        shared = sys.getrefcount(g) > _SOLE or isinstance(g, np.generic) or getattr(g, "base", None) is not None
        g = Tensor(leaf.o.copy(np.asarray(g) if isinstance(g, np.generic) else g) if shared else g)
    leaf.grad = g if old is None else old + g


def _with_rows(leaf, g):
    """Rows stay rows beside rows, or alone, in `leaf.grad` (then None); a hook or a dense one makes both dense."""
    if g.__class__ is Rows and not leaf.hooks and (leaf.grad is None or leaf.grad.__class__ is Rows):
        leaf.grad = g.owned() if leaf.grad is None else leaf.grad + g
        return None
    if leaf.grad.__class__ is Rows:
        leaf.grad = leaf.grad.to_dense()
    return g.spread() if g.__class__ is Rows else g


def _check_grad(leaf: Tensor, old) -> None:
    """Refuse a `.grad` that somebody set to what cannot be a gradient of this leaf."""
    if not isinstance(old, Tensor) or old.o is not leaf.o or old.shape != leaf.shape:
        told = f"{old.o}{list(old.shape)}" if isinstance(old, Tensor) else repr(old)
        raise GraphError(
            f"backward: the .grad of this leaf is {told}, the leaf is {leaf.o}{list(leaf.shape)}. "
            "Set .grad to None or to a tensor like the leaf"
        )


def run_hooks(hooks: dict, g, on_tensors: bool):
    """Pass a gradient through hooks in the order they were registered; what one returns replaces it."""
    if not on_tensors:
        with changed(grad=False):
            return run_hooks(hooks, Tensor(g), True).array
    t = g
    for hook in tuple(hooks.values()):
        got = hook(t)
        if got is not None:
            if not isinstance(got, Tensor) or got.shape != t.shape or got.o is not t.o:
                told = f"{got.o}{list(got.shape)}" if isinstance(got, Tensor) else type(got).__name__
                raise HookError(f"hook: returned {told}, "
                                f"expected None or a tensor like the gradient, {t.o}{list(t.shape)}")
            t = got
    return t


__all__ = ["LeafHooks", "accumulate", "deposit", "queue_callback", "run_after", "run_hooks", "to_the_end", "waits"]
