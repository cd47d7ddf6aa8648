"""What happens around a module's forward and backward: hooks, in the order they were registered.

`Module.__call__` comes here once a hook is registered; a module without hooks pays nothing.  Gradients are caught by a
`Gate` around the inputs and one around the outputs: each is an identity in forward, and a node in the graph.
After `text.py`, before `state.py`.
"""
from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from minigrad.autograd import RemovableHandle
from minigrad.errors import HookError
from minigrad.function import Function
from minigrad.tensor import Tensor, current


def register(module: Any, place: str, entry: Any, prepend: bool = False) -> RemovableHandle:
    """Put `entry` behind, or before, the hooks that are at `place`."""
    hooks = module.__dict__.setdefault("_hooks", {}).setdefault(place, {})
    key = max(hooks, default=0) + 1
    hooks[key] = entry
    if prepend:
        for k in tuple(hooks)[:-1]:
            hooks[k] = hooks.pop(k)
    return RemovableHandle(hooks, key)


def at(module: Any, place: str) -> tuple:
    """The hooks there, as they are now."""
    return tuple(module._hooks.get(place, {}).values())


# ---- around forward ------------------------------------------------------------------------------
def call(module: Any, args: tuple, kwargs: dict) -> Any:
    """forward between its hooks; hooks registered with `always_call` see None where forward raised."""
    after = list(at(module, "forward"))
    out = None
    try:
        args, kwargs = _before(module, args, kwargs)
        gates = Gates.around(module)
        args = gates.enter(args) if gates else args
        out = module.forward(*args, **kwargs)
        while after:
            out = _after(module, after.pop(0), args, kwargs, out)
        return gates.leave(out) if gates else out
    except Exception:
        for entry in [each for each in after if each[2]]:
            try:
                out = _after(module, entry, args, kwargs, out)
            except Exception as error:
                text = f"a forward hook with always_call raised {error!r} after forward had failed"
                warnings.warn(text, stacklevel=2)
        raise


def _before(module: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    for hook, with_kwargs in at(module, "forward_pre"):
        got = hook(module, args, kwargs) if with_kwargs else hook(module, args)
        if got is None:
            continue
        if not with_kwargs:
            args = got if isinstance(got, tuple) else (got,)
        elif isinstance(got, tuple) and len(got) == 2:
            args, kwargs = got
        else:
            raise HookError(f"forward pre-hook: with kwargs it returns None or (args, kwargs), not {got!r}")
    return args, kwargs


def _after(module: Any, entry: tuple, args: tuple, kwargs: dict, out: Any) -> Any:
    hook, with_kwargs, _ = entry
    got = hook(module, args, kwargs, out) if with_kwargs else hook(module, args, out)
    return out if got is None else got


# ---- around backward -----------------------------------------------------------------------------
class Gates:
    """The two gates of one call: what came in from above waits here until the gradients of the inputs are known."""

    def __init__(self, module: Any, before: tuple, after: tuple) -> None:
        self.module, self.before, self.after = module, before, after
        self.inputs: list[int] | None = None                 # which arguments want a gradient
        self.n_args = 0
        self.upstream: tuple | None = None

    @classmethod
    def around(cls, module: Any) -> Gates | None:
        """Gates, if the module has backward hooks and gradients are recorded."""
        before, after = at(module, "backward_pre"), at(module, "backward")
        return cls(module, before, after) if (before or after) and current().grad else None

    def enter(self, args: tuple) -> tuple:
        self.n_args = len(args)
        self.inputs = [i for i, a in enumerate(args) if isinstance(a, Tensor) and a.requires_grad]
        return _through(self, self._of_inputs, args, self.inputs) if self.inputs and self.after else args

    def leave(self, out: Any) -> Any:
        outs = out if isinstance(out, tuple | list) else (out,)
        which = [i for i, y in enumerate(outs) if isinstance(y, Tensor) and y.requires_grad]
        if not which:
            return out
        gated = _through(self, self._of_outputs, tuple(outs), which)
        if not isinstance(out, tuple | list):
            return gated[0]
        return type(out)(*gated) if hasattr(out, "_fields") else type(out)(gated)

    def _of_outputs(self, grads: tuple) -> tuple:
        """The gradients of the outputs, through the pre-hooks."""
        for hook in self.before:
            grads = _replaced(grads, hook(self.module, grads), "backward pre-hook")
        self.upstream = grads
        if not self.inputs:
            nothing = (None,) * self.n_args
            for hook in self.after:
                got = hook(self.module, nothing, grads)
                if got is not None and any(g is not None for g in _tuple(got)):
                    raise HookError("backward hook: no input wants a gradient, so it may return only None")
            self.upstream = None
        return grads

    def _of_inputs(self, grads: tuple) -> tuple:
        """The gradients of the inputs, through the hooks."""
        if self.upstream is not None:
            for hook in self.after:
                grads = _replaced(grads, hook(self.module, grads, self.upstream), "backward hook")
            self.upstream = None
        return grads


class Gate(Function):
    """Tensors as they are; their gradients go through `look`, with None for what has none."""

    @staticmethod
    def forward(ctx, look: Callable, n: int, which: tuple[int, ...], *xs: Tensor):
        ctx.look, ctx.n, ctx.which = look, n, which
        ctx.set_materialize_grads(False)
        return tuple(x.clone() for x in xs)                   # so that a write inside does not reach outside unseen

    @staticmethod
    def backward(ctx, *grads: Tensor | None):
        full: list = [None] * ctx.n
        for i, g in zip(ctx.which, grads):
            full[i] = g
        full = ctx.look(tuple(full))
        return (None, None, None, *(full[i] for i in ctx.which))


def _through(gates: Gates, look: Callable, xs: tuple, which: list[int]) -> tuple:
    """`xs` with the chosen ones passed through a gate."""
    passed = dict(zip(which, Gate.apply(look, len(xs), tuple(which), *(xs[i] for i in which))))
    return tuple(passed.get(i, x) for i, x in enumerate(xs))


def _tuple(x: Any) -> tuple:
    return x if isinstance(x, tuple) else (x,)


def _replaced(grads: tuple, got: Any, name: str) -> tuple:
    """What a hook returned in place of `grads`, if anything."""
    if got is None:
        return grads
    if len(_tuple(got)) != len(grads):
        raise HookError(f"{name}: returned {len(_tuple(got))} gradients for {len(grads)}; None leaves them as they are")
    return _tuple(got)


__all__ = ["Gate", "Gates", "at", "call", "register"]
