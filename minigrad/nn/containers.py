"""Modules made of modules: Sequential, ModuleList, ModuleDict, ParameterList, ParameterDict.  After `module.py`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from minigrad.nn.module import Module
from minigrad.nn.parameter import Parameter
from minigrad.nn.text import folded_text, module_text
from minigrad.tensor import Tensor


class Numbered(Module):
    """Base of the containers that behave as a list: the items are the attributes "0", "1", …"""

    _kind: type = Module

    def _items(self) -> list:
        return [v for k, v in self.__dict__.items() if k.isdigit()]

    def _renumber(self, items: Iterable) -> None:
        for key in [k for k in self.__dict__ if k.isdigit()]:
            del self.__dict__[key]
        for i, item in enumerate(items):
            setattr(self, str(i), self._checked(item))

    def _checked(self, item: Any) -> Any:
        if not isinstance(item, self._kind):
            raise TypeError(f"{type(self).__name__}: {type(item).__name__} is not a {self._kind.__name__}")
        return item

    def __len__(self) -> int:
        return len(self._items())

    def __iter__(self) -> Iterator:
        return iter(self._items())

    def __getitem__(self, key: int | slice) -> Any:
        if isinstance(key, slice):
            kind: Any = type(self)
            return kind(*self._items()[key]) if isinstance(self, Sequential) else kind(self._items()[key])
        return self._items()[key]

    def __setitem__(self, key: int, item: Any) -> None:
        setattr(self, str(range(len(self))[key]), self._checked(item))

    def __delitem__(self, key: int | slice) -> None:
        items = self._items()
        del items[key]
        self._renumber(items)

    def append(self, item: Any) -> Self:
        """Add at the end."""
        setattr(self, str(len(self)), self._checked(item))
        return self

    def extend(self, items: Iterable) -> Self:
        """Add several at the end."""
        for item in items:
            self.append(item)
        return self

    def insert(self, index: int, item: Any) -> None:
        """Put before place `index`."""
        items = self._items()
        items.insert(index, self._checked(item))
        self._renumber(items)

    def pop(self, key: int = -1) -> Any:
        """Take out and return."""
        item = self[key]
        del self[key]
        return item


class Sequential(Numbered):
    """Modules called one after the other: from arguments, or from a dict that names them."""

    def __init__(self, *modules: Any) -> None:
        named = modules[0].items() if len(modules) == 1 and isinstance(modules[0], Mapping) else enumerate(modules)
        for name, module in named:
            self.add_module(str(name), self._checked(module))

    def _items(self) -> list[Module]:
        return [v for v in self.__dict__.values() if isinstance(v, Module)]

    def forward(self, x: Any) -> Any:
        for module in self._items():
            x = module(x)
        return x

    def __setitem__(self, key: int, item: Module) -> None:
        names = [k for k, v in self.__dict__.items() if isinstance(v, Module)]
        setattr(self, names[key], self._checked(item))


class ModuleList(Numbered):
    """A list of modules; call them yourself."""

    transparent = True

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        self.extend(modules)

    def __repr__(self) -> str:
        return folded_text(type(self).__name__, self._items())


class Named(Module):
    """What the two dicts share: items are attributes, in the order in which they were put in."""

    _kind: type = Module

    def __init__(self, items: Mapping[str, Any] | Iterable = ()) -> None:
        self.update(items)

    def _found(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if isinstance(v, self._kind)}

    def update(self, items: Mapping[str, Any] | Iterable) -> None:
        """Put in several, from a mapping or from pairs."""
        for name, item in dict(items).items():
            self[name] = item

    def __getitem__(self, name: str) -> Any:
        return self._found()[name]

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise KeyError(name)
        delattr(self, name)

    def pop(self, name: str) -> Any:
        """Take out and return."""
        item = self[name]
        del self[name]
        return item

    def clear(self) -> None:
        """Take out all."""
        for name in self._found():
            del self[name]

    def __len__(self) -> int:
        return len(self._found())

    def __iter__(self) -> Iterator[str]:
        return iter(self._found())

    def __contains__(self, name: object) -> bool:
        return name in self._found()

    def keys(self):
        return self._found().keys()

    def values(self):
        return self._found().values()

    def items(self):
        return self._found().items()


class ModuleDict(Named):
    """A dict of modules; call them yourself."""

    transparent = True

    def __setitem__(self, name: str, module: Module) -> None:
        self.add_module(name, module)


class ParameterList(Numbered):
    """A list of parameters; plain tensors become parameters."""

    _kind = Tensor

    def __init__(self, parameters: Iterable[Tensor] = ()) -> None:
        self.extend(parameters)

    def _checked(self, item: Any) -> Parameter:
        item = super()._checked(item)
        return item if isinstance(item, Parameter) else Parameter(item)

    def __repr__(self) -> str:
        lines = [(str(i), f"Parameter of shape {tuple(p.shape)}, {p.dtype}") for i, p in enumerate(self)]
        return module_text(type(self).__name__, "", [(k, _Text(v)) for k, v in lines])


class ParameterDict(Named):
    """A dict of parameters; plain tensors become parameters."""

    _kind = Parameter

    def __setitem__(self, name: str, value: Tensor) -> None:
        if not isinstance(value, Tensor):
            raise TypeError(f"ParameterDict: {name!r} is a {type(value).__name__}, not a Tensor")
        made = value if isinstance(value, Parameter) else Parameter(value)
        if name in self:
            setattr(self, name, made)
        else:
            self.register_parameter(name, made)

    def __repr__(self) -> str:
        lines = [(k, f"Parameter of shape {tuple(p.shape)}, {p.dtype}") for k, p in self.items()]
        return module_text(type(self).__name__, "", [(k, _Text(v)) for k, v in lines])


class _Text(str):
    """A text that is its own repr."""

    __repr__ = str.__str__
