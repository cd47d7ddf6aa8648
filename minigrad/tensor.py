"""Tensor, Node and `apply`: the graph appears as Python runs, one Node per application of an op.

`apply` is the meaning of running an op; `ops/doors.py` holds the same written out flat for the hot path.  A Node keeps
edges and the few values its gradient rules name, never the input Tensors, so values die by reference count.
After `algebra.py`; `ops/` comes next and `autograd.py` walks what is recorded here.
"""
from __future__ import annotations

import inspect
import itertools
import weakref
from contextlib import ContextDecorator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import wraps

import numpy as np

from minigrad.algebra import algebra_of, size_of
from minigrad.aval import Aval, aval_of
from minigrad.errors import GraphError
from minigrad.probes import begin
from minigrad.sites import INTERNAL, call_site, cells, frame, line_text, site_text  # noqa: F401 - offered from here too

LEAF = type("Leaf", (), {"__repr__": lambda self: "LEAF"})()    # in Tensor.node: wants a gradient, made by no op
tick = itertools.count(1).__next__                              # the one clock: it numbers nodes and writes


# ---- writes: a saved value is stale if its buffer was written after the node was made -------------------------------
class Writes:
    """When each buffer was last written, on the clock that numbers nodes; an unwritten graph pays one comparison a
    node."""

    last: int = 0
    table: dict[int, tuple] = {}

    @classmethod
    def note(cls, array) -> None:
        """`array`'s buffer has just been written."""
        if array.__class__ is Aval:
            return
        owner = algebra_of(array).storage(array)
        key = id(owner)
        cls.last = seq = tick()
        old = cls.table.get(key)
        ref = old[2] if old else weakref.ref(owner, lambda _, k=key: cls.table.pop(k, None))
        cls.table[key] = seq, call_site(2), ref

    @classmethod
    def of(cls, array) -> tuple:
        """(clock, call site, …) of the last write, (0, …) if there was none."""
        return cls.table.get(id(algebra_of(array).storage(array)), (0, (None, 0), None))


# ---- Node ---------------------------------------------------------------------------------------------------------
class Node:
    """One application.  `edges`: for each input that needs a gradient its producer Node, or the leaf Tensor itself.
    A leaf does not point back, so there is no cycle.  `plan` is the op with what it saves and how it pulls."""

    __slots__ = ("plan", "o", "edges", "saved", "shape", "seq", "code", "lasti", "scope")

    @property
    def op(self):
        return self.plan.op

    @property
    def made_at(self) -> str:
        return site_text(self.code, self.lasti)

    @property
    def line(self) -> str:
        """The user's line itself: 'y = x.log()'."""
        return line_text(self.code, self.lasti)

    @property
    def next_functions(self) -> tuple:
        """As PyTorch: ((producer or leaf, 0), …)."""
        return tuple((e, 0) for e in self.edges or ())

    def name(self) -> str:
        return f"{type(self.op).__name__}Backward"

    def __repr__(self) -> str:
        return f"<{self.op} at {self.made_at}>"


# ---- Tensor ---------------------------------------------------------------------------------------------------------
_UNSET = {"grad": None, "hooks": None, "family": None}          # slots that read as None until they are set


class Tensor:
    """An array of any device with its place in the graph.  `array` is the raw array (an Aval on `meta`)."""

    __slots__ = ("array", "o", "node", "grad", "hooks", "family", "__weakref__")
    __array_ufunc__ = None                                        # so that NumPy arrays leave mixed operators to us

    def __init__(self, array, requires_grad: bool = False) -> None:
        self.array = array = np.asarray(array) if isinstance(array, np.generic) else array
        self.o = algebra_of(array)
        self.node = LEAF if requires_grad else None
        self.grad = self.hooks = None

    def __getattr__(self, name: str):
        """Reached only for a slot never set: the hot path leaves `grad`, `hooks` and `family` unset."""
        if name in _UNSET:
            return None
        raise AttributeError(f"'{type(self).__name__}' object has no attribute {name!r}")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype:
        return self.o.dtype

    @property
    def ndim(self) -> int:
        return len(self.array.shape)

    @property
    def aval(self) -> Aval:
        return aval_of(self.array)

    @property
    def requires_grad(self) -> bool:
        return self.node is not None

    @property
    def is_leaf(self) -> bool:
        return self.node is None or self.node is LEAF

    @property
    def grad_fn(self) -> Node | None:
        return None if self.is_leaf else self.node

    @property
    def made_at(self) -> str:
        """The user's line that made this tensor: 'file:line, in function'."""
        return "a leaf: made by no recorded operation" if self.is_leaf else self.node.made_at


class InferenceTensor(Tensor):
    """What an operation made in `inference_mode`: it never takes part in a backward, and is written there alone."""

    __slots__ = ()


class Family:
    """How often a base was rewritten with its history: shared by the base and all its views."""

    __slots__ = ("writes",)

    def __init__(self) -> None:
        self.writes = 0


class View(Tensor):
    """A Tensor that shares storage and history with `base`; `chain` holds the ops that lead from the base to it.

    Its node is made anew when the base was written since (by itself, or through a sibling): `node` is a property here,
    and a plain slot in a plain Tensor, so that only views pay for it."""

    __slots__ = ("_node", "base", "chain", "seen")

    @property
    def node(self):
        if self.seen != self.family.writes and self._node is not LEAF:
            self.seen, old = self.family.writes, self._node
            with changed(grad=True, observers=()):
                self._node = self._from_base().node
            if getattr(getattr(old, "plan", None), "last", None) and self._node.__class__ is Node:
                old.plan.hand_on(self._node)                     # what is retained is the gradient of the new value
        return self._node

    @node.setter
    def node(self, node) -> None:
        self._node = node

    def _from_base(self) -> Tensor:
        t = self.base
        for op in self.chain:
            t = apply(op, t)
        return t

    def look(self, x):
        """What this view shows of `x`, a raw array laid out as the base."""
        return seen_through(self.chain, x)


def seen_through(chain: tuple, x):
    """`x`, a raw array, looked at through view ops one after the other."""
    o = algebra_of(x)
    for op in chain:
        x = op.forward(o, x)
    return x


def view(op, x: Tensor, array) -> View:
    """A Tensor on `array`, which `op` shows of `x`'s memory."""
    t = object.__new__(View)
    base, chain = (x.base, x.chain) if isinstance(x, View) else (x, ())
    if base.family is None:
        base.family = Family()
    t.array, t.o, t._node = array, algebra_of(array), None
    t.base, t.chain, t.family, t.seen = base, (*chain, op), base.family, base.family.writes
    return t


# ---- how things are done now: one context variable, one frozen value, read once per op ---------------------------
@dataclass(frozen=True, slots=True)
class Mode:
    grad: bool = True
    observers: tuple = ()              # each called as f(op, inputs, outputs) after an op ran
    sites: bool = True                 # remember the source line of each node
    scope: tuple = ()                  # names of the modules being called, outermost first
    kind: type = Tensor                # of what ops make: `InferenceTensor` under inference_mode


MODE: ContextVar[Mode] = ContextVar("minigrad.mode", default=Mode())  # noqa: B039 - Mode is frozen
current = MODE.get


class changed(ContextDecorator):
    """`with changed(grad=False):` – the mode with these fields replaced; also a decorator."""

    def __init__(self, **fields) -> None:
        self.fields, self.tokens = fields, []

    def __enter__(self) -> None:
        now = current()
        fields = self.fields
        if len(fields) == 1 and "grad" in fields:                  # the commonest change, without the generic machinery
            grad = fields["grad"] and now.kind is Tensor           # nothing is recorded in inference_mode
            self.tokens.append(MODE.set(Mode(grad, now.observers, now.sites, now.scope, now.kind)))
        else:
            self.tokens.append(MODE.set(replace(now, **fields)))

    def __exit__(self, *_) -> None:
        MODE.reset(self.tokens.pop())

    def __call__(self, function):
        if inspect.isgeneratorfunction(function):
            return self._in_pieces(function)
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{type(self).__name__}: cannot decorate {function.__name__}, which waits for others; "
                            f"put `with {type(self).__name__}():` inside it")
        return super().__call__(function)

    def _in_pieces(self, function):
        """A generator function whose every piece runs in this mode, and what is between them does not."""
        @wraps(function)
        def pieces(*args, **kwargs):
            generator, piece, value = function(*args, **kwargs), "send", None
            while True:
                with self._recreate_cm():
                    try:
                        got = getattr(generator, piece)(value)
                    except StopIteration as end:
                        return end.value
                try:
                    piece, value = "send", (yield got)
                except GeneratorExit:
                    with self._recreate_cm():
                        generator.close()
                    raise
                except BaseException as error:
                    piece, value = "throw", error
        return pieces

    def _recreate_cm(self) -> changed:
        return changed(**self.fields)


# ---- apply -------------------------------------------------------------------------------------
def apply(op, *xs: Tensor):
    """The one place where an op runs: run or infer, record if an input needs it, tell the observers.
    Returns a Tensor, or a tuple for an op with extra outputs."""
    now, o = current(), xs[0].o
    for x in xs:
        if x.o is not o or not o.floating:
            xs, o = op.agree(xs)
            break
    if now.observers:
        begin(now.observers, "op", op, xs)
    outs = run(op, o, xs)
    y = view(op, xs[0], outs[0]) if not op.flat and op.aliases(xs[0].array) else now.kind(outs[0])
    ys = (y, *map(now.kind, outs[1:])) if op.extra else (y,)
    if now.grad and op.reads:
        record(op, o, xs, ys, now)
    for observer in now.observers:
        observer(op, xs, ys)
    return ys if op.extra else y


def run(op, o, xs: tuple) -> tuple:
    """The op's outputs as raw arrays (Avals on meta)."""
    try:
        if o.narrow and op.precision == "high":
            outs = run_wide(op, o, xs)
        else:
            outs = op.forward(o, *(x.array for x in xs)) if o.eager else op.infer(*(x.array for x in xs))
    except (ValueError, IndexError, TypeError) as e:
        raise explained(op, xs, e) from None
    return outs if op.extra else (outs,)


def run_wide(op, o, xs: tuple):
    """The op on 16-bit floats as computed in float32 and rounded once; what it hands to its gradient stays wide."""
    wide = o.wide
    outs = op.forward(wide, *(wide.cast(x.array, wide.dtype) if x.o is o else x.array for x in xs))
    first, rest = (outs[0], outs[1:]) if op.extra else (outs, ())
    y = o.cast(first, o.dtype) if first.dtype == wide.dtype else first
    return (y, *rest) if op.extra else y


def explained(op, xs: tuple, e: Exception) -> Exception:
    """The error of the op's own shape rule, which names shapes and the way out; else `e` with the op noted on it."""
    try:
        op.infer(*(x.aval for x in xs))
    except (ValueError, IndexError, TypeError) as better:
        return better
    e.add_note(f"in {op} on {', '.join(f'{x.dtype}{list(x.shape)}' for x in xs)}")
    return e


def record(op, o, xs: tuple, ys: tuple, now: Mode) -> None:
    """Give ys[0] its Node, if an input has a history and the op can be differentiated."""
    mask, bit, edges = 0, 1, []
    for x in xs:
        e = x.node
        if e is not None:
            mask |= bit
            edges.append(x if e is LEAF else e)
        bit += bit
    if not mask:
        return
    n = object.__new__(Node)
    n.plan = plan = op.plans.get((mask, False)) or op.plan(mask, False)
    for i, x in enumerate(xs):
        if x.__class__ is not Tensor and not mask >> i & 1 and op.input_name(i) in plan.names:
            check_saved(x, op)
    n.o, n.edges, n.saved, n.shape, n.seq, n.scope = o, tuple(edges), plan.keep(xs, ys), ys[0].shape, tick(), now.scope
    n.code, n.lasti = call_site(3) if now.sites else (None, 0)
    ys[0].node = n


def is_inference(x: Tensor) -> bool:
    """Whether `x`, or what it shows, was made in `inference_mode`."""
    return (x.base if isinstance(x, View) else x).__class__ is InferenceTensor


def check_saved(x: Tensor, op) -> None:
    """Refuse a tensor made in inference_mode as a value that backward will read."""
    if is_inference(x):
        raise GraphError(f"{op}: a tensor {x.shape} made in inference_mode cannot be saved for backward. "
                         "Clone it outside, x.clone(), or make it under no_grad() instead")


def is_grad_enabled() -> bool:
    return current().grad


def is_inference_mode_enabled() -> bool:
    return current().kind is InferenceTensor


def numel(x: Tensor) -> int:
    return size_of(x.shape)
