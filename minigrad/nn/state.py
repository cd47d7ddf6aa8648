"""The state of a module: what it owns, as {dotted name: tensor} out and in, and moved to another dtype or device.

After `text.py`, before `module.py`, whose methods these are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from minigrad.autograd import no_grad
from minigrad.device import Device
from minigrad.dtype import is_float
from minigrad.nn import hooks
from minigrad.nn.parameter import Parameter
from minigrad.tensor import Tensor


def own_parameters(module: Any) -> Iterator[tuple[str, Parameter]]:
    return ((k, v) for k, v in module.__dict__.items() if isinstance(v, Parameter))


def own_buffers(module: Any) -> Iterator[tuple[str, Tensor]]:
    found = ((name, getattr(module, name, None)) for name in module._marks)
    return ((name, value) for name, value in found if value is not None)


class Incompatible(NamedTuple):
    """What `load_state_dict` did not find a place, or a value, for."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        found = f"missing_keys={self.missing_keys}, unexpected_keys={self.unexpected_keys}"
        return f"<{found}>" if any(self) else "<All keys matched successfully>"


def places(module: Any) -> dict[str, tuple[Any, str]]:
    """{dotted name: (module, attribute)} of all parameters and persistent buffers, tied ones under each name."""
    found = {}
    for path, m in module.named_modules(remove_duplicate=False):
        names = [name for name, _ in own_parameters(m)]
        names += [name for name, _ in own_buffers(m) if m._marks[name]]
        found.update({f"{path}.{name}" if path else name: (m, name) for name in names})
    return found


def state_of(module: Any, prefix: str, keep_vars: bool) -> dict[str, Tensor]:
    """The live tensors, detached unless `keep_vars`; a tied one is one and the same tensor under each name."""
    for path, m in _hooked(module, "state_pre"):
        for hook in hooks.at(m, "state_pre"):
            hook(m, prefix + path, keep_vars)
    once: dict[int, Tensor] = {}
    state = {}
    for key, (m, name) in places(module).items():
        value = getattr(m, name)
        state[prefix + key] = value if keep_vars else once.setdefault(id(value), value.detach())
    for path, m in _hooked(module, "state_post"):
        for hook in hooks.at(m, "state_post"):
            hook(m, state, prefix + path, {})
    return state


def _hooked(module: Any, place: str) -> list[tuple[str, Any]]:
    """(prefix of its keys, module) of the modules with hooks there."""
    found = module.named_modules(remove_duplicate=False)
    return [(f"{path}." if path else "", m) for path, m in found if m._hooks.get(place)]


def load_state(module: Any, state: dict[str, Tensor], strict: bool, assign: bool) -> Incompatible:
    """Check everything, then copy everything."""
    if not hasattr(state, "items"):
        raise TypeError(f"load_state_dict: expected a dict of tensors, got {type(state).__name__}")
    state, errors = dict(state), list[str]()
    for path, m in _hooked(module, "load_pre"):
        for hook in hooks.at(m, "load_pre"):
            hook(m, state, path, {}, strict, [], [], errors)
    here = places(module)
    missing = [key for key in here if key not in state]
    unexpected = [key for key in state if key not in here]
    complaints = [_complaint(key, m, name, state[key]) for key, (m, name) in here.items() if key in state]
    lines = [line for line in complaints if line] + errors
    forgiving = _hooked(module, "load_post")
    if strict and not forgiving:
        lines += [f"missing: {', '.join(missing)}"] * bool(missing)
        lines += [f"unexpected: {', '.join(map(str, unexpected))}"] * bool(unexpected)
    if lines:
        raise RuntimeError(
            f"load_state_dict: the state does not fit {type(module).__name__}; nothing was loaded.\n  "
            + "\n  ".join(lines)
            + ("\nstrict=False ignores missing and unexpected keys" if missing or unexpected else "")
        )
    for key, (m, name) in here.items():
        if key in state:
            _put(m, name, state[key], assign)
    found = Incompatible(missing, unexpected)
    for _, m in forgiving:
        for hook in hooks.at(m, "load_post"):
            hook(m, found)
    if strict and forgiving and any(found):
        raise RuntimeError(f"load_state_dict: {type(module).__name__}: {found}; what was there is loaded")
    return found


def _complaint(key: str, module: Any, name: str, value: Any) -> str | None:
    if not isinstance(value, Tensor):
        return f"{key}: expected a Tensor, got {type(value).__name__}"
    have = getattr(module, name).shape
    return None if value.shape == have else f"{key}: shape {value.shape} in the state, {have} in the module"


def _put(module: Any, name: str, value: Tensor, assign: bool) -> None:
    target = getattr(module, name)
    if not assign:
        with no_grad():
            target.copy_(value)
    elif name in module._marks:
        setattr(module, name, value)
    else:
        setattr(module, name, type(target)(value, target.requires_grad))


def change(t: Tensor, args: tuple, kwargs: dict) -> None:
    """`t` in place as `t.to(...)` says; integers keep their dtype."""
    if not is_float(t.dtype):
        args = tuple(a for a in args if isinstance(a, Device | str | Tensor))
        args = tuple(a.o.device if isinstance(a, Tensor) else a for a in args)
        kwargs = {k: v for k, v in kwargs.items() if k != "dtype"}
    t.data = t.detach().to(*args, **kwargs)
