"""The op contract: one frozen class holds everything there is to know about an operation.

`forward(o, *inputs)`; for each differentiable input `x` one rule `dx(o, g, names…)`, or one `vjp(o, needs, g, names…)`
where the work is shared; `infer(*avals)`; `flops`, `bytes`, `precision`, `onnx`, `samples`.  The parameter names of a
rule say what it reads – an input, `y` the output, an extra output, `x_shape` only a shape – so what a Node saves is
derived, and a rule cannot read what was not saved.  Scalars and index arrays are inputs; fields are what shapes the op.
"""
from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass
from functools import cached_property, lru_cache
from inspect import CO_VARARGS
from typing import dataclass_transform

import numpy as np

from minigrad import aval
from minigrad.aval import Aval
from minigrad.dtype import category, get_default_dtype, is_float, result_type
from minigrad.errors import DeviceMismatch, DTypeError, ShapeError
from minigrad.ops.plan import Plan, make_plan
from minigrad.ops.samples import Sample, elementwise_samples
from minigrad.tensor import Tensor, apply, current

CATALOGUE: list[type[Op]] = []         # every op, in the order of the story


@dataclass(frozen=True)
class NoOnnx:
    """In place of an ONNX name: why there is none."""

    reason: str


@dataclass_transform(frozen_default=True)
def op(cls: type) -> type:
    """Class decorator: freeze it, read its rules, enter it in the catalogue."""
    cls.attributes = tuple(cls.__dict__.get("__annotations__", ()))
    _read_rules(cls)
    CATALOGUE.append(cls)
    return cls


class Op:
    """Base of all ops.  Subclasses are decorated with `@op`."""

    extra: tuple[str, ...] = ()        # outputs after y that carry no gradient of their own
    attributes: tuple[str, ...] = ()   # the names of its fields
    method: str | None = None          # the Tensor method it is offered as
    functional: str | None = None      # the name in mg and mg.nn.functional
    precision: str = "follow"          # what autocast does: "low", "high" or "follow"
    onnx: str | NoOnnx = NoOnnx("not said")
    # "float": integers are converted to the default float dtype; "only float": refused; "numbers": truth values are
    takes: str = "any"
    mixes: bool = False                # inputs of different dtypes are promoted, as PyTorch does elementwise
    exact: bool = False                # rules give each gradient in its input's own shape (set for one input)
    flat: bool = True                  # may have a door: its output is never a view
    inline: bool = False               # rules may be written out as text in generated source
    numbers: str = "both"              # where a Python number may stand for a Tensor: "both", "second" or "none"
    as_is: tuple[str, ...] = ()        # inputs whose dtype is theirs: conditions, indices, keys
    on_host: tuple[str, ...] = ()      # inputs that stay on the host on every device: random keys

    def __init__(self, *values, **named) -> None:
        """Its fields, in order or by name, with the defaults of the class: as a frozen dataclass, but one function for
        all ops, where `dataclass` compiles three for each, which costs import 0.1 s."""
        given = {**dict(zip(self.attributes, values)), **named}
        lost = [name for name in self.attributes if name not in given and not hasattr(type(self), name)]
        if lost or len(given) != len(values) + len(named) or not {*given} <= {*self.attributes}:
            raise TypeError(f"{type(self).__name__}: expected {', '.join(self.attributes) or 'no fields'}, got "
                            f"{values} {named or ''}")
        self.__dict__.update({name: given[name] if name in given else getattr(type(self), name)
                              for name in self.attributes})

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"{type(self).__name__}: cannot set {name!r}: ops are shared. Make another one")

    def forward(self, o, *inputs):
        raise NotImplementedError

    def infer(self, *avals: Aval):
        raise NotImplementedError

    def flops(self, y: Aval, *avals: Aval) -> int:
        """Floating-point operations of one forward."""
        return y.size

    def bytes(self, y: Aval, *avals: Aval) -> int:
        """Bytes read and written if nothing stays in a cache."""
        return y.nbytes + sum(a.nbytes for a in avals)

    def aliases(self, x) -> bool:
        """Whether the output shows `x`'s memory."""
        return False

    @classmethod
    def samples(cls) -> list[Sample]:
        raise NotImplementedError(f"{cls.__name__} declares no samples")

    @classmethod
    def of(cls, *attributes):
        """The op with these attributes, interned: equal attributes, the same object."""
        return _of(cls, *attributes)

    def plan(self, mask: int, same: bool) -> Plan:
        """What this op saves and how it pulls when the inputs in the bit mask have a history; made when first met."""
        found = self.plans.get((mask, same))
        if found is None:
            found = self.plans[mask, same] = make_plan(self, mask, same)
        return found

    @cached_property
    def plans(self) -> dict[tuple[int, bool], Plan]:
        return {}

    def agree(self, xs: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], object]:
        """The inputs on one device and in one dtype where the op wants that, and the algebra the op runs in."""
        o = xs[self.lead].o
        if o.floating and all(x.o is o or (name in self.as_is and x.o.device is o.device) or name in self.on_host
                              for x, name in zip(xs, self.names(len(xs)))):
            return xs, o
        _check_devices(self, xs)
        movable = [i for i, x in enumerate(xs) if self.input_name(i) not in (*self.as_is, *self.on_host)]
        if movable:
            dtype = _common_dtype(self, [xs[i] for i in movable])
            xs = tuple(cast(x, dtype) if i in movable and x.dtype != dtype else x for i, x in enumerate(xs))
            return xs, xs[movable[0]].o
        return xs, next((x.o for i, x in enumerate(xs) if self.input_name(i) not in self.on_host), xs[0].o)

    def names(self, n: int) -> tuple[str, ...]:
        """The names of `n` inputs."""
        return self.inputs if n == len(self.inputs) else self.inputs + self.inputs[-1:] * (n - len(self.inputs))

    def input_name(self, i: int) -> str:
        """The name of input number `i`; those of a variadic op share the last one."""
        return self.inputs[min(i, len(self.inputs) - 1)]

    @property
    def values(self) -> tuple:
        return tuple(getattr(self, name) for name in self.attributes)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.values == other.values

    def __hash__(self) -> int:
        return hash((type(self), self.values))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.attributes)
        return f"{type(self).__name__}({shown})"

    @property
    def label(self) -> str:
        """The short name for pictures and messages."""
        return self.functional or self.method or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()


@lru_cache(8192, typed=True)
def _of(cls, *attributes):
    return cls(*attributes)


def _parameters(rule: Callable, skip: int) -> tuple[str, ...]:
    """The names of a rule's parameters after the first `skip`; as `inspect.signature`, at a thirtieth of its cost."""
    code = rule.__code__
    return code.co_varnames[skip:code.co_argcount + bool(code.co_flags & CO_VARARGS)]


def _read_rules(cls: type) -> None:
    """Set `inputs`, `variadic` and `reads` (for each differentiable input, the names its rule reads)."""
    cls.inputs = _parameters(cls.forward, 2)
    cls.variadic = bool(cls.forward.__code__.co_flags & CO_VARARGS)
    free = [i for i, name in enumerate(cls.inputs) if name not in (*cls.as_is, *cls.on_host)]
    cls.codes = {}
    cls.lead = free[0] if free else 0
    cls.exact = cls.__dict__.get("exact", len(cls.inputs) == 1)
    if hasattr(cls, "vjp"):
        shared = _parameters(cls.vjp, 4)
        cls.reads = {i: shared for i in cls.inputs if i not in (*cls.as_is, *cls.on_host)}
    else:
        cls.reads = {i: _parameters(getattr(cls, "d" + i), 3) for i in cls.inputs if hasattr(cls, "d" + i)}
    cls.extras_read = _parameters(cls.extras, 2) if hasattr(cls, "extras") else ()
    if {"y", "g", "o"} & {*cls.inputs}:
        raise TypeError(
            f"{cls.__name__}: an input may not be called y, g or o: {cls.inputs}. Rules give these names another "
            f"meaning"
        )
    known = {*cls.inputs, "y", *cls.extra, *(i + "_shape" for i in cls.inputs)}
    for i, read in cls.reads.items():
        if not known.issuperset(read):
            raise TypeError(f"{cls.__name__}.d{i} reads {sorted(set(read) - known)}, which is none of {sorted(known)}")


def _check_devices(op: Op, xs) -> None:
    """Every input on one device, but for those that live on the host by contract."""
    on = {x.o.device: x for i, x in enumerate(xs) if op.input_name(i) not in op.on_host}
    if len(on) > 1:
        listed = ", ".join(f"{op.input_name(i)}: {x.dtype}{list(x.shape)} on {x.o.device}" for i, x in enumerate(xs))
        raise DeviceMismatch(
            f"{op.label}: inputs on {len(on)} devices ({listed}). Move them with .to('{next(iter(on))}')"
        )


def _common_dtype(op: Op, xs) -> np.dtype:
    """The dtype the op computes in: PyTorch's promotion where the op mixes dtypes, else they must be equal."""
    if not op.mixes and len({x.dtype for x in xs}) > 1:
        listed = ", ".join(f"{x.dtype}{list(x.shape)}" for x in xs)
        raise DTypeError(f"{op.label}: inputs must have one dtype, got {listed}. Convert with .to(dtype)")
    if op.takes == "only float":
        for x in xs:
            accept(x.dtype, op.label, "float")
    dtype = result_type([x.dtype for x in xs if x.ndim], [x.dtype for x in xs if not x.ndim], [])
    if op.takes == "numbers" and category(dtype) == 0:
        shapes = " and ".join(f"{x.dtype}{list(x.shape)}" for x in xs)
        raise DTypeError(f"{op.label}: not defined for truth values, got {shapes}. Convert with .long()")
    return get_default_dtype() if op.takes == "float" and not is_float(dtype) else dtype


# ---- the two commonest families -----------------------------------------------------------------------------------
class Elementwise(Op):
    """Each element of y from the elements at its place.  `domain` names where its samples are drawn."""

    mixes = inline = True
    domain: tuple[str, ...] = ("normal",)
    ops_per_element: int = 1

    def infer(self, *avals: Aval) -> Aval:
        return aval.like(broadcast(self, avals), self.out_dtype(avals), *avals)

    def out_dtype(self, avals) -> np.dtype:
        """The dtype of y: that of the first input that is not a condition."""
        return next(a.dtype for i, a in zip(self.inputs, avals) if i not in self.as_is)

    def flops(self, y: Aval, *avals: Aval) -> int:
        return self.ops_per_element * y.size

    @classmethod
    def samples(cls) -> list[Sample]:
        return elementwise_samples(cls)


class Predicate(Elementwise):
    """An elementwise op whose result is bool; it has no gradient."""

    def out_dtype(self, avals) -> np.dtype:
        return np.dtype(bool)

    def flops(self, y: Aval, *avals: Aval) -> int:
        return 0


def broadcast(op: Op, avals) -> tuple[int, ...]:
    """The common shape of the inputs, or the error that says which axis does not fit."""
    try:
        return np.broadcast_shapes(*(a.shape for a in avals))
    except ValueError:
        shapes = " and ".join(str(a.shape) for a in avals)
        at, sizes = _first_clash([a.shape for a in avals])
        raise ShapeError(f"{op.label}: shapes {shapes} do not broadcast: axis {at} has sizes {sizes}. "
                         "Sizes must be equal or 1, counted from the last axis") from None


def _first_clash(shapes) -> tuple[int, str]:
    for at in range(1, max(map(len, shapes)) + 1):
        sizes = {s[-at] for s in shapes if len(s) >= at} - {1}
        if len(sizes) > 1:
            return -at, " and ".join(map(str, sorted(sizes)))
    raise AssertionError("no clash")


# ---- Cast: the one op that the contract itself needs --------------------------------------------------------------
@op
class Cast(Op):
    """x in another dtype; its gradient goes back in the old one."""

    source: np.dtype
    target: np.dtype
    as_is = ("x",)
    onnx = "Cast"

    def forward(self, o, x):
        return o.cast(x, self.target)

    def dx(self, o, g):
        return o.cast(g, self.source)

    def infer(self, x: Aval) -> Aval:
        return aval.like(x.shape, self.target, x)

    def flops(self, y: Aval, x: Aval) -> int:
        return 0

    @classmethod
    def samples(cls) -> list[Sample]:
        f8 = np.dtype("f8")
        return [Sample(cls.of(f8, f8), (text,), dtypes=()) for text in ("normal(3,4)", "normal(3,4).T")]


def cast(x: Tensor, dtype: np.dtype) -> Tensor:
    """`x` in `dtype`; differentiable between float dtypes, a constant otherwise."""
    if x.dtype == dtype:
        return x
    if is_float(dtype) or x.node is None:
        return apply(Cast.of(x.dtype, dtype), x)
    return current().kind(x.o.cast(x.array, dtype) if x.o.eager else aval.like(x.shape, dtype, x.aval))


def accept(dtype: np.dtype, op_name: str, kind: str) -> None:
    """Refuse a dtype by category: kind is "float", "integer" or "bool"."""
    wanted = {"float": 2, "integer": 1, "bool": 0}[kind]
    if category(dtype) != wanted:
        raise DTypeError(f"{op_name}: expected a {kind} tensor, got {dtype}. Convert it with .to(...)")

