"""Doors: `apply` written out flat for the ops of one, two and three inputs, as source made per op.

A door serves float arrays on the host that nobody watches, and hands everything else to `apply`, which is the meaning;
a test holds the two bit-equal.  Measured on 1,000 tiny ops: a door costs a third of `apply`.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from types import FunctionType

import numpy as np

from minigrad.algebra import algebra, algebra_of
from minigrad.aval import Aval
from minigrad.device import CPU
from minigrad.dtype import category, of_number
from minigrad.ops.plan import build, chosen, saved_names
from minigrad.ops.symbols import PYTHON, NotSymbolic, emit
from minigrad.tensor import (
    INTERNAL,
    LEAF,
    Family,
    Node,
    Tensor,
    View,
    apply,
    call_site,
    check_saved,
    current,
    frame,
    tick,
)

NUMBERS = (bool, int, float, np.number, np.bool_)
KNOWN = (Tensor, *NUMBERS, np.ndarray)   # what an operator answers for; an array it refuses, with the way out


# ---- Python numbers as inputs -------------------------------------------------------------------------------------
@lru_cache(4096, typed=True)
def _literal(value, o) -> Tensor:
    try:
        return Tensor(o.upload(np.array(value, o.dtype)) if o.eager else Aval((), o.dtype))
    except OverflowError:
        way_out = "convert the tensor first: .to(mg.float64)"
        raise OverflowError(f"the number {value} does not fit into {o.dtype}; {way_out}") from None


def literal(value, like: Tensor, name: str = "operation") -> Tensor:
    """`value` as an operand beside `like`: a Tensor as it is, a Python number as a 0-d constant of its device and
    dtype."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.number | np.bool_):
        value = value.item()
    if not isinstance(value, bool | int | float):
        place = "" if like.o.device is CPU else f", device='{like.o.device}'"
        raise TypeError(
            f"{name}: expected a Tensor or a number beside a tensor of shape {like.shape}, got {type(value).__name__}. "
            f"Make it a tensor first: mg.tensor(...{place})"
        )
    o = like.o
    if not o.floating and category(of_number(value)) > category(o.dtype):
        o = algebra(o.device, of_number(value))
    if value == 0 and math.copysign(1, value) < 0:                  # -0.0 equals 0.0 but is not the same
        return _literal.__wrapped__(value, o)
    return _literal(value, o)


def only_tensor(value, like: Tensor, name: str = "operation") -> Tensor:
    """`value`, which must be a Tensor, as PyTorch has it for some functions of two."""
    if isinstance(value, Tensor):
        return value
    raise TypeError(f"{name}: expected a Tensor beside a tensor of shape {like.shape}, got {value!r}. Make it a tensor "
                    "first: mg.tensor(...)")


def operand(value, beside, name: str) -> Tensor:
    """The first operand of a public function: a Tensor, or a number beside a Tensor."""
    if isinstance(value, Tensor):
        return value
    if isinstance(beside, Tensor) and isinstance(value, NUMBERS):
        return literal(value, beside)
    raise TypeError(f"{name}: expected a Tensor, got {type(value).__name__}. Make it a tensor first: mg.tensor(...)")


# ---- the source of a door -------------------------------------------------------------------------------------------
_HEAD = """def {name}({args}):
    "{doc}"
    if a.__class__ is not Tensor and a.__class__ is not View: a = operand(a, {last}, {label!r})
{lift}    now = current(); o = a.o
    if {other}not o.fast or now.observers: return apply(op, {args})
    {arrays}
    try: y = {forward}
    except (ValueError, TypeError): return apply(op, {args})
    if y.__class__ is not ndarray: y = asarray(y)
    t = new(now.kind); t.array = y; t.o = {o}
"""
_LIFT = ("    if {0}.__class__ is not Tensor and {0}.__class__ is not View: {0} = literal({0}, a, {label!r})\n", """\
    if {0}.__class__ is not Tensor and {0}.__class__ is not View:
        if not isinstance({0}, KNOWN): return NotImplemented
        {0} = literal({0}, a, {label!r})
""")
_RECORD = """    {nodes}
    if {none} or not now.grad:
        t.node = None
        return t
    t.node = n = new(Node)
    n.o = o; n.seq = tick(); n.scope = now.scope
    {shape}
{branches}
    if now.sites:
        global user
        f = frame(1); c = f.f_code
        if c is user: n.code = c; n.lasti = f.f_lasti
        elif c.co_filename in INTERNAL: n.code, n.lasti = call_site(2)
        else: user = n.code = c; n.lasti = f.f_lasti
    else: n.code = None
    return t
"""


def _branch(op, mask: int, keyword: str) -> str:
    """The lines of one choice of inputs with a history: edges, saved values, plan."""
    names = saved_names(op, mask)
    numbers = chosen(op, mask)
    where = {**{c: "xyz"[i] + "_" for i, c in enumerate(op.inputs)}, "y": "y"}
    value = lambda n: where[n.removesuffix("_shape")] + (".shape" if n.endswith("_shape") else "")  # noqa: E731
    saved = "".join(value(n) + ", " for n in names)
    edges = "".join(f"{'abc'[i]} if e{i} is LEAF else e{i}, " for i in numbers)
    plan = f"p{mask}a" if op.exact else f"p{mask}a if alike else p{mask}"
    constant = [c for i, c in enumerate("abc"[:len(op.inputs)]) if i not in numbers and op.inputs[i] in names]
    checks = "".join(f"; {c}.__class__ is Tensor or check_saved({c}, op)" for c in constant)
    return f"    {keyword}: n.edges = ({edges}); n.saved = ({saved}); n.plan = {plan}{checks}\n"


def _branches(op) -> str:
    """One branch for each choice of inputs with a history, the fullest first."""
    n = len(op.inputs)
    text = ""
    for k, mask in enumerate(sorted(range(1, 1 << n), key=lambda m: -bin(m).count("1"))):
        present = " and ".join(f"e{i} is not None" for i in chosen(op, mask))
        text += _branch(op, mask, ("if " if k == 0 else "elif ") + present)
    return text


def _shape_text(op) -> str:
    """The line that sets n.shape and, where inputs may have been broadcast, `alike`: whether every one has y's
    shape."""
    if op.exact or not op.inline:
        return "n.shape = y.shape; alike = False"
    first, *others = ["xyz"[i] + "_" for i in range(len(op.inputs))]
    same = " and ".join(f"shape == {z}.shape" for z in others)
    return f"shape = {first}.shape; alike = {same}; n.shape = shape if alike else y.shape"


def _forward_text(op) -> str:
    names = ["xyz"[i] + "_" for i in range(len(op.inputs))]
    try:
        if op.inline and not op.attributes:
            text = emit(_Renamed(op, names), PYTHON, None)
            return text
    except NotSymbolic:
        pass
    return f"op.forward(o, {', '.join(names)})"


class _Renamed:
    """An op whose inputs go by other names, for the text of its forward."""

    def __init__(self, op, names) -> None:
        self.op, self.inputs, self.variadic, self.forward = op, tuple(names), False, op.forward


def door_source(op, operator: bool = False) -> str:
    """The flattened `apply` of one op; as an `operator` it leaves operands it does not know to Python to ask."""
    n = len(op.inputs)
    args = "abc"[:n]
    branches = _branches(op) if op.reads else ""
    label = op.functional or op.method or type(op).__name__
    lift = "".join(_LIFT[operator].format(c, label=label) for c in args[1:])
    recorded = _RECORD if op.reads else "    t.node = None\n    return t\n"
    return (_HEAD + recorded).format(
        shape=_shape_text(op),
        o="o" if op.reads else "algebra_of(y)",
        name=label,
        args=", ".join(args),
        label=label,
        last=args[-1],
        lift=lift,
        doc=(type(op).__doc__ or "").split("\n")[0],
        other="".join(f"{c}.o is not o or " for c in args[1:]),
        forward=_forward_text(op),
        arrays="; ".join(f"{'xyz'[i]}_ = {c}.array" for i, c in enumerate(args)),
        nodes="; ".join(f"e{i} = {c}.node" for i, c in enumerate(args)),
        none="(" + " and ".join(f"e{i} is None" for i in range(n)) + ")",
        branches=branches.rstrip("\n"),
    )


def function(cls: type, *attributes) -> Callable[..., Tensor]:
    """The callable of an op, interned: `function(Sum, (0,), True)(x)`.  A door where the op has one, else `apply`."""
    return _with_attributes(cls, *attributes) if attributes else _plain(cls)


@lru_cache(None)
def _plain(cls: type) -> Callable[..., Tensor]:
    return _callable(cls)


@lru_cache(512, typed=True)  # a program may change a slope or a rate at each step: 8 KB a door
def _with_attributes(cls: type, *attributes) -> Callable[..., Tensor]:
    return _callable(cls, *attributes)


def _callable(cls: type, *attributes) -> Callable[..., Tensor]:
    op = cls.of(*attributes)
    if op.extra or op.variadic or len(op.inputs) > 3 or op.as_is or op.on_host or not op.flat:
        return partial(apply, op)
    return door(op)


def door(op, operator: bool = False) -> Callable[..., Tensor]:
    """The flattened `apply` of `op`.  Its code is compiled when it is first called, and put into the same function
    object:
    importing the package compiles nothing, and whoever holds the function has the fast one."""
    stub = _STUBS[len(op.inputs)]
    scope = {"open_door": open_door, "op": op, "operator": operator}
    scope["me"] = me = FunctionType(stub.__code__, scope, op.functional or op.method or type(op).__name__)
    me.__doc__, me.__qualname__, me.__module__ = type(op).__doc__, me.__name__, "minigrad"
    return me


def open_door(me: FunctionType) -> FunctionType:
    """Compile a door's code in its own scope and put it in place."""
    scope, op = me.__globals__, me.__globals__["op"]
    free = scope["operator"] or op.numbers == "both"
    scope.update(Tensor=Tensor, Node=Node, LEAF=LEAF, INTERNAL=INTERNAL, apply=apply,
                 literal=only_tensor if op.numbers == "none" else literal,
                 operand=operand if free else lambda a, _, name: operand(a, None, name),
                 current=current, call_site=call_site, frame=frame, tick=tick, ndarray=np.ndarray, asarray=np.asarray,
                 new=object.__new__, View=View, check_saved=check_saved, algebra_of=algebra_of, KNOWN=KNOWN, user=None)
    for mask in range(1, 1 << len(op.inputs)) if op.reads else ():
        scope[f"p{mask}"], scope[f"p{mask}a"] = op.plan(mask, False), op.plan(mask, True)
    source = door_source(op, scope["operator"])
    build(source, f"<minigrad {'operator' if scope['operator'] else 'door'} of {type(op).__name__}>", scope)
    me.__code__ = scope[me.__name__].__code__
    return me


me: FunctionType | None = None         # in a door's own scope: the door itself
_STUBS = {1: lambda a: open_door(me)(a), 2: lambda a, b: open_door(me)(a, b),
          3: lambda a, b, c: open_door(me)(a, b, c)}


# ---- the door of view ops ----------------------------------------------------------------------
def look(op, x: Tensor, depth: int = 3) -> Tensor:
    """`apply` of a view op, written out flat for float arrays on the host that nobody watches; else `apply` itself.
    The user's frame is at least `depth` above the look for it: a public function stands between."""
    now, o, array = current(), x.o, x.array
    if not o.fast or now.observers or not (op.always or array.flags.c_contiguous):
        return apply(op, x)
    try:
        shown = op.forward(o, array)
    except (ValueError, IndexError, TypeError):
        return apply(op, x)                                  # which explains
    t = object.__new__(View)                                 # as `view` makes it
    t.base, chain = (x.base, x.chain) if x.__class__ is View else (x, ())
    family = t.base.family
    if family is None:
        t.base.family = family = Family()
    t.o = o if shown.dtype is o.dtype else algebra_of(shown)
    t.array, t._node, t.chain, t.family, t.seen = shown, None, (*chain, op), family, family.writes
    e = x._node if x.__class__ is View and x.seen == x.family.writes else x.node
    if e is not None and now.grad:
        t._node = n = object.__new__(Node)
        n.plan = plan = op.looking
        n.o, n.edges, n.saved, n.shape = o, (x if e is LEAF else e,), plan.keep((x,), (t,)), shown.shape
        n.seq, n.scope = tick(), now.scope
        n.code, n.lasti = call_site(depth) if now.sites else (None, 0)
    return t


# ---- the door of ops on any number of tensors ----------------------------------------------------
def joined(op, xs: tuple[Tensor, ...]) -> Tensor:
    """`apply` written out flat for float arrays of one dtype on the host that nobody watches; else `apply` itself."""
    now, o = current(), xs[0].o
    if not o.fast or now.observers:
        return apply(op, *xs)
    arrays, edges, mask, bit = [], [], 0, 1
    for x in xs:
        if x.o is not o:
            return apply(op, *xs)
        arrays.append(x.array)
        e = x.node
        if e is not None:
            mask |= bit
            edges.append(x if e is LEAF else e)
        bit += bit
    try:
        t = now.kind(op.forward(o, *arrays))
    except (ValueError, TypeError):
        return apply(op, *xs)                                # which explains
    if mask and now.grad:
        t.node = n = object.__new__(Node)
        n.plan = plan = op.plans.get((mask, False)) or op.plan(mask, False)
        n.o, n.edges, n.saved, n.shape = o, tuple(edges), plan.keep(xs, (t,)), t.array.shape
        n.seq, n.scope = tick(), now.scope
        n.code, n.lasti = call_site(3) if now.sites else (None, 0)
    return t
