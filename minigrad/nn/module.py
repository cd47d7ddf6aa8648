"""Module: a function with parameters, made of smaller ones; as `torch.nn.Module`.

Parameters, buffers and children are plain attributes, found by what they are, in the order they were assigned.
A call sets the scope of the pictures: the names of the modules being called.  After `state.py`, which walks and
moves their values; `containers.py` and `layers.py` come next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Self

import numpy as np

from minigrad.autograd import RemovableHandle
from minigrad.dtype import float16, float32, float64, is_float
from minigrad.nn import hooks
from minigrad.nn.parameter import Parameter
from minigrad.nn.state import change, load_state, own_buffers, own_parameters, state_of
from minigrad.nn.text import module_text
from minigrad.rows import Rows
from minigrad.tensor import MODE, Mode, Tensor, current

UNSAVED = ("_inner",)  # attributes that are not copied, pickled or compared


class Module:
    """Base of all layers and models: assign parameters and modules as attributes, write `forward`."""

    training = True
    transparent = False  # a container that is never called: its children carry its name
    _name: str | None = None  # the attribute it was last assigned to
    _inner: tuple[Mode | None, Mode | None] = (None, None)  # the mode it was last called in, and the one it set
    _marks: dict[str, bool] = {}  # buffers: name -> whether state_dict has it
    _hooks: dict[str, dict[int, Any]] = {}  # place -> hooks, made anew for the first one: `hooks.py`

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no forward(): write def forward(self, x)")

    # -- calling
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        now = current()
        token = MODE.set(self._inside(now) if now.grad or now.observers else now)
        try:
            return hooks.call(self, args, kwargs) if self._hooks else self.forward(*args, **kwargs)
        except AttributeError as e:
            self._explain(e, args)
            raise
        finally:
            MODE.reset(token)

    def _explain(self, e: AttributeError, args: tuple) -> None:
        """TypeError if the attribute is one of a Tensor's and was sought in an argument that is none."""
        strange = [a for a in args if a is e.obj and isinstance(a, np.ndarray | list | tuple | int | float | None)]
        if strange and hasattr(Tensor, e.name):
            raise TypeError(
                f"{type(self).__name__}: expected a Tensor, got {type(strange[0]).__name__}. "
                "Make it a tensor first: mg.tensor(...)"
            ) from e

    def _inside(self, now: Mode) -> Mode:
        """`now` with this module's name at the end of its scope; the last one is kept, as calls repeat."""
        outer, inner = self._inner
        if outer is now and inner is not None:
            return inner
        name = type(self).__name__ if self._name is None else self._name
        inner = replace(now, scope=(*now.scope, name))
        if not now.observers:
            self.__dict__["_inner"] = now, inner
        return inner

    # -- hooks: each returns a handle; `handle.remove()`, or the end of `with handle:`, takes the hook away
    def register_forward_pre_hook(
        self, hook: Callable, *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, args)` before forward; what it returns takes the place of the arguments.

        `with_kwargs`: hook(module, args, kwargs), which returns None or (args, kwargs)."""
        return hooks.register(self, "forward_pre", (hook, with_kwargs), prepend)

    def register_forward_hook(
        self, hook: Callable, *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, args, output)` after forward; what it returns takes the place of the output.

        `with_kwargs`: hook(module, args, kwargs, output).  `always_call`: with None even if forward raises."""
        return hooks.register(self, "forward", (hook, with_kwargs, always_call), prepend)

    def register_full_backward_pre_hook(self, hook: Callable, prepend: bool = False) -> RemovableHandle:
        """Call `hook(module, grad_output)` before backward goes through the module: a tuple, one for each output.
        A tuple that it returns takes its place."""
        return hooks.register(self, "backward_pre", hook, prepend)

    def register_full_backward_hook(self, hook: Callable, prepend: bool = False) -> RemovableHandle:
        """Call `hook(module, grad_input, grad_output)` when the gradients of the positional arguments are known:
        tuples, None for what has no gradient.  A tuple that it returns takes the place of grad_input."""
        return hooks.register(self, "backward", hook, prepend)

    def register_state_dict_pre_hook(self, hook: Callable) -> RemovableHandle:
        """Call `hook(module, prefix, keep_vars)` before `state_dict`, of a parent too, reads this module."""
        return hooks.register(self, "state_pre", hook)

    def register_state_dict_post_hook(self, hook: Callable) -> RemovableHandle:
        """Call `hook(module, state_dict, prefix, local_metadata)` after; it may change the dict, in place."""
        return hooks.register(self, "state_post", hook)

    def register_load_state_dict_pre_hook(self, hook: Callable) -> RemovableHandle:
        """Call `hook(module, state_dict, prefix, local_metadata, strict, missing, unexpected, errors)` before loading;
        it may change the dict, a copy, in place: renamed keys, for one."""
        return hooks.register(self, "load_pre", hook)

    def register_load_state_dict_post_hook(self, hook: Callable) -> RemovableHandle:
        """Call `hook(module, incompatible_keys)` after loading; what it takes from the two lists is no error."""
        return hooks.register(self, "load_post", hook)

    # -- attributes
    def __setattr__(self, name: str, value: Any) -> None:
        old = self.__dict__.get(name)
        if isinstance(old, Parameter) and not (value is None or isinstance(value, Parameter)):
            raise TypeError(
                f"{type(self).__name__}.{name} is a Parameter and cannot become a {type(value).__name__}. "
                f"Assign a Parameter or None, or change its values: with mg.no_grad(): m.{name}.copy_(...)"
            )
        if name in self._marks and not (value is None or isinstance(value, Tensor)):
            raise TypeError(
                f"{type(self).__name__}.{name} is a buffer: assign a Tensor or None, not a {type(value).__name__}"
            )
        object.__setattr__(self, name, value)
        if isinstance(value, Module):
            value._called_as(self._prefix() + name)

    def _prefix(self) -> str:
        """What stands before the names of the children in scopes."""
        return f"{self._name}." if self.transparent and self._name is not None else ""

    def _called_as(self, name: str) -> None:
        self.__dict__["_name"] = name
        self.__dict__.pop("_inner", None)
        if self.transparent:
            for key, child in self.named_children():
                child._called_as(f"{name}.{key}")

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Assign a Parameter, or None for one that is left out."""
        if not (param is None or isinstance(param, Parameter)):
            raise TypeError(f"register_parameter: {name!r} is a {type(param).__name__}, not a Parameter or None")
        setattr(self, _free(self, name), param)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Assign a tensor that moves with the module and, if `persistent`, is part of its state, but is not trained."""
        if not (tensor is None or isinstance(tensor, Tensor)):
            raise TypeError(f"register_buffer: {name!r} is a {type(tensor).__name__}, not a Tensor or None")
        if name not in self._marks:
            _free(self, name)
            if (taken := self.__dict__.get(name)) is not None:
                raise KeyError(f"register_buffer: {type(self).__name__}.{name} is a {type(taken).__name__} already")
        self.__dict__["_marks"] = {**self._marks, name: persistent}
        setattr(self, name, tensor)

    def add_module(self, name: str, module: Module | None) -> None:
        """Assign a child under a name that need not be an identifier."""
        if not (module is None or isinstance(module, Module)):
            raise TypeError(f"add_module: {name!r} is a {type(module).__name__}, not a Module or None")
        setattr(self, _free(self, name), module)

    register_module = add_module

    # -- walking
    def named_children(self) -> Iterator[tuple[str, Module]]:
        """(name, module) of each direct child, each once."""
        seen = set()
        for name, value in self.__dict__.items():
            if isinstance(value, Module) and id(value) not in seen:
                seen.add(id(value))
                yield name, value

    def children(self) -> Iterator[Module]:
        return (child for _, child in self.named_children())

    def named_modules(self, prefix: str = "", remove_duplicate: bool = True) -> Iterator[tuple[str, Module]]:
        """(dotted name, module) of this module and all below, parents first."""
        seen: set[int] = set()
        stack: list[tuple[str, Module]] = [(prefix, self)]
        while stack:
            name, module = stack.pop()
            if remove_duplicate and id(module) in seen:
                continue
            seen.add(id(module))
            yield name, module
            below = [(f"{name}.{k}" if name else k, v) for k, v in module.__dict__.items() if isinstance(v, Module)]
            stack += reversed(below)

    def modules(self) -> Iterator[Module]:
        return (module for _, module in self.named_modules())

    def _named(
        self, own: Callable[[Module], Iterator[tuple[str, Any]]], prefix: str, recurse: bool, once: bool
    ) -> Iterator[tuple[str, Any]]:
        """(dotted name, value) of what `own` finds in each module; `once`: by identity."""
        seen: set[int] = set()
        modules = self.named_modules(prefix, remove_duplicate=once) if recurse else [(prefix, self)]
        for path, module in modules:
            for name, value in own(module):
                if not (once and id(value) in seen):
                    seen.add(id(value))
                    yield (f"{path}.{name}" if path else name), value

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """(dotted name, parameter); a tied one once, unless `remove_duplicate` is off."""
        return self._named(own_parameters, prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        return (p for _, p in self.named_parameters(recurse=recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        return self._named(own_buffers, prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        return (b for _, b in self.named_buffers(recurse=recurse))

    def get_submodule(self, target: str) -> Module:
        """The module at a dotted name; "" is this one."""
        found: Any = self
        for name in filter(None, target.split(".")):
            found = found.__dict__.get(name)
            if not isinstance(found, Module):
                raise AttributeError(f"{type(self).__name__} has no module {target!r}")
        return found

    # -- state
    def state_dict(self, prefix: str = "", keep_vars: bool = False) -> dict[str, Tensor]:
        """{dotted name: tensor} of parameters and persistent buffers.  The tensors are live: they share the memory."""
        return state_of(self, prefix, keep_vars)

    def load_state_dict(self, state_dict: dict[str, Tensor], strict: bool = True, assign: bool = False):
        """Copy values in, in place; returns (missing_keys, unexpected_keys).

        RuntimeError lists every key that is missing or unexpected (if `strict`) or of another shape; then nothing
        is changed.  `assign` takes the given tensors themselves."""
        return load_state(self, state_dict, strict, assign)

    def __getstate__(self) -> dict:
        return {k: v for k, v in self.__dict__.items() if k not in UNSAVED}

    # -- changing everything
    def apply(self, fn: Callable[[Module], None]) -> Self:
        """fn(module) for every module, children first."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    def train(self, mode: bool = True) -> Self:
        """Training mode, or evaluation mode: it tells dropout and batch norm what to do."""
        for module in self.modules():
            module.training = bool(mode)
        return self

    def eval(self) -> Self:
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Whether the parameters want a gradient: False freezes them."""
        for p in self.parameters():
            p.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, or fill them with zeros."""
        for p in self.parameters():
            if p.grad is not None:
                p.grad = None if set_to_none else (p.grad.detach() if p.grad.requires_grad else p.grad).zero_()

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move to a device, or convert floats to a dtype, in place: `m.to("sim:0")`, `m.to(mg.float64)`."""
        kwargs.pop("non_blocking", None)
        for dtype in (*args, kwargs.get("dtype")):
            if isinstance(dtype, np.dtype | type) and not is_float(np.dtype(dtype)):
                raise TypeError(f"{type(self).__name__}.to: parameters are floats, got the dtype {np.dtype(dtype)}")
        for t in {id(t): t for each in (self.parameters(), self.buffers()) for t in each}.values():
            change(t, args, kwargs)
            if t.grad is not None:
                if t.grad.__class__ is Rows:
                    t.grad = t.grad.to(*args, **kwargs)
                else:
                    change(t.grad, args, kwargs)
        return self

    def double(self) -> Self:
        return self.to(float64)

    def float(self) -> Self:
        return self.to(float32)

    def half(self) -> Self:
        return self.to(float16)

    def cpu(self) -> Self:
        return self.to("cpu")

    def cuda(self, index: int = 0) -> Self:
        return self.to(f"cuda:{index}")

    # -- text
    def extra_repr(self) -> str:
        """What stands between the brackets in the module's text."""
        return ""

    def __repr__(self) -> str:
        return module_text(
            type(self).__name__, self.extra_repr(), [(k, v) for k, v in self.__dict__.items() if isinstance(v, Module)]
        )


def _free(module: Module, name: str) -> str:
    """`name`, if it can become an attribute of the module."""
    if not isinstance(name, str) or not name or "." in name:
        raise KeyError(f"{type(module).__name__}: the name {name!r} must be a text without dots and not empty")
    if hasattr(type(module), name):
        raise KeyError(f"{type(module).__name__}: the name {name!r} is taken by the class")
    return name
