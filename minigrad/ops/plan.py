"""Plan: what an op saves and how its gradients are pulled, for one choice of inputs that have a history.

`keep` and `pull` are written out as source and compiled, as dataclasses are, so that a rule of an elementwise op is
inlined and any other is one plain call.  `op.dx` and friends remain the meaning: `autograd` calls them directly
whenever
it differentiates twice, prunes or defers, and a test holds both bit-equal.
"""
from __future__ import annotations

import linecache
import sys
from functools import lru_cache
from types import CodeType
from weakref import WeakSet

import numpy as np

from minigrad.ops.symbols import PYTHON, NotSymbolic, emit
from minigrad.tensor import INTERNAL


class Plan:
    """`names` are saved; `keep(xs, ys)` picks them; `pull(n, g, grads)` adds each gradient to `grads[edge]`.
    One per op, light; the code is shared by all ops of a class and compiled when first called."""

    __slots__ = ("op", "mask", "names", "keep", "pull", "__weakref__")

    def __init__(self, op, mask: int, names: tuple[str, ...], keep, pull) -> None:
        self.op, self.mask, self.names, self.keep, self.pull = op, mask, names, keep, pull


class Code:
    """`keep` and `pull` of one op class for one choice of inputs, compiled when first needed."""

    def __init__(self, op, mask: int, same: bool) -> None:
        self.names = saved_names(op, mask)
        self.functions: tuple = ()
        self.op_mask_same = op, mask, same
        self.waiting: WeakSet[Plan] = WeakSet()  # an op that is gone waits no more

    def plan(self, op) -> Plan:
        """A plan of `op`; until the code is compiled its functions see to that first."""
        mask = self.op_mask_same[1]
        if self.functions:
            return Plan(op, mask, self.names, *self.functions)
        plan = Plan(op, mask, self.names, lambda xs, ys: self.compiled()[0](xs, ys),
                    lambda n, g, grads: self.compiled()[1](n, g, grads))
        self.waiting.add(plan)
        return plan

    def compiled(self) -> tuple:
        """(keep, pull), put into every plan that waits for them."""
        if not self.functions:
            op, mask, same = self.op_mask_same
            source = _keep_source(op, self.names) + _pull_source(op, mask, self.names, same)
            title = f"<minigrad plan of {type(op).__name__}, inputs {mask:b}{' alike' if same else ''}>"
            scope = build(source, title, {"unbroadcast": unbroadcast, "ours": ours, "pull_wide": pull_wide})
            self.functions = scope["keep"], scope["pull"]
        while self.waiting:
            plan = self.waiting.pop()
            plan.keep, plan.pull = self.functions
        return self.functions


def chosen(op, mask: int) -> list[int]:
    """The numbers of the inputs in a bit mask."""
    return [i for i in range(mask.bit_length()) if mask >> i & 1]


def saved_names(op, mask: int) -> tuple[str, ...]:
    """The names that the rules of the chosen inputs read, each once; TypeError if one has no rule."""
    names: dict[str, None] = {}
    for i in chosen(op, mask):
        if op.input_name(i) not in op.reads:
            raise TypeError(f"{op.label}: not differentiable with respect to its input `{op.input_name(i)}`. "
                            "Detach it first: x.detach()")
        names.update(dict.fromkeys(op.reads[op.input_name(i)]))
    return tuple(names)


def make_plan(op, mask: int, same: bool) -> Plan:
    """The plan of `op` for the inputs in `mask`.  `same`: every input has y's shape, so nothing was broadcast."""
    codes, key = type(op).codes, (mask, same)
    code = codes.get(key)
    if code is None:
        code = codes[key] = Code(op, mask, same)
    return code.plan(op)


def build(source: str, title: str, scope: dict) -> dict:
    """Compile generated source so that tracebacks can show it, and run it in `scope`."""
    linecache.cache[title] = (len(source), None, source.splitlines(True), title)
    INTERNAL.add(title)
    exec(_code(source, title), scope)
    return scope


@lru_cache(4096)  # ops that differ in a number alone have one text
def _code(source: str, title: str) -> CodeType:
    return compile(source, title, "exec")


def value_of(op, name: str) -> str:
    """Where `keep(xs, ys)` finds a name."""
    if name.endswith("_shape"):
        source = value_of(op, name.removesuffix("_shape"))
        return f"tuple(x.shape for x in {source})" if source.startswith("tuple") else f"{source}.shape"
    if name in op.inputs:
        i = op.inputs.index(name)
        return f"tuple(x.array for x in xs[{i}:])" if op.variadic and i == len(op.inputs) - 1 else f"xs[{i}].array"
    return f"ys[{('y', *op.extra).index(name)}].array"


def _keep_source(op, names) -> str:
    return f"def keep(xs, ys): return ({''.join(value_of(op, n) + ', ' for n in names)})\n"


def rule_text(op, name: str) -> str:
    """The gradient of input `name` as an expression in o, g and the saved names: inlined if it has text, else a
    call."""
    try:
        if op.inline and not op.attributes:
            return emit(op, PYTHON, name, op.as_is)
    except NotSymbolic:
        pass
    return f"op.d{name}(o, g, {', '.join(op.reads[name])})"


def _pull_source(op, mask: int, names, same: bool) -> str:
    numbers = chosen(op, mask)
    lines = ["def pull(n, g, grads):"]
    if names:
        lines.append(f"    {', '.join(names)}, = n.saved")
    lines.append(f"    {', '.join(f'e{k}' for k in range(len(numbers)))}, = n.edges")
    shared = hasattr(op, "vjp")
    if shared:
        asked = tuple(i in numbers for i in range(max(mask.bit_length(), len(op.inputs))))
        lines.append(f"    r = op.vjp(o, {asked}, g{''.join(', ' + n for n in names)})")
    for k, i in enumerate(numbers):
        if hasattr(op, f"into_{op.input_name(i)}"):
            lines += _give_into(f"e{k}", op, op.input_name(i))
            continue
        lines.append(f"    d = {f'r[{i}]' if shared else rule_text(op, op.input_name(i))}")
        lines += _give(f"e{k}", check=not (same or op.exact), optional=shared)
    if any("o." in line or "(o, " in line for line in lines):
        lines.insert(1, "    o = n.o")
    if any("op." in line for line in lines):
        lines.insert(1, "    op = n.plan.op")
    if op.precision == "high":
        lines.insert(1, f"    if n.o.narrow: return pull_wide(n, g, grads, {numbers})")
    return "\n".join(lines) + "\n"


def _give(edge: str, check: bool, optional: bool) -> list[str]:
    """Lines that add `d` to the gradient of an edge, summed down to its shape where it was broadcast."""
    body = [f"if d.shape != {edge}.shape: d = unbroadcast(o, d, {edge}.shape)"] if check else []
    body += [f"old = grads[{edge}]", f"grads[{edge}] = d if old is None else old + d"]
    if optional:
        return ["    if d is not None:"] + ["        " + line for line in body]
    return ["    " + line for line in body]


def _give_into(edge: str, op, name: str) -> list[str]:
    """Lines that let the op add its part into the gradient of an edge, without a full one of zeros around it."""
    read = "".join(", " + n for n in op.reads[name])
    return [f"    if grads[{edge}] is None: grads[{edge}] = op.d{name}(o, g{read})",
            f"    else: op.into_{name}(o, ours(o, grads, {edge}), g{read})"]


_SOLE = (lambda grads, e: sys.getrefcount(grads[e]))({0: object()}, 0)     # held by `grads` alone


def ours(o, grads: dict, edge):
    """The gradient of an edge as a buffer that nobody else holds or shows: itself, or a copy of it in its place.
    (A simulated device's views hold the buffer, not the array: there it is always copied.)"""
    if (grads[edge].__class__ is np.ndarray and grads[edge].base is None and sys.getrefcount(grads[edge]) == _SOLE):
        return grads[edge]                                       # by far the commonest
    if hasattr(grads[edge], "spread"):                           # row-sparse: dense from here on
        grads[edge] = grads[edge].spread()
    elif (sys.getrefcount(grads[edge]) > _SOLE or isinstance(grads[edge], np.generic) or grads[edge].base is not None
            or o.device.type == "sim"):
        grads[edge] = o.copy(grads[edge])
    return grads[edge]


def pull_wide(n, g, grads, numbers: list[int]) -> None:
    """The pull of an op of precision "high" on 16-bit floats: in float32, each gradient rounded once."""
    found = wide_gradients(n.plan.op, n.o, g, dict(zip(n.plan.names, n.saved)), numbers)
    for i, e in zip(numbers, n.edges):
        d = found[i]
        if d is not None:
            d = d if d.shape == e.shape else unbroadcast(n.o, d, e.shape)
            grads[e] = d if grads[e] is None else grads[e] + d


def wide_gradients(op, o, g, values: dict, numbers: list[int]):
    """{number of an input: its gradient in the dtype of `o`}, by the op's rules in float32."""
    wide = o.wide
    read = lambda i: (_grown(o, values[k]) for k in op.reads[op.input_name(i)])  # noqa: E731
    if hasattr(op, "vjp"):
        asked = tuple(i in numbers for i in range(max(max(numbers) + 1, len(op.inputs))))
        found = op.vjp(wide, asked, _grown(o, g), *read(numbers[0]))
    else:
        found = {i: getattr(op, "d" + op.input_name(i))(wide, _grown(o, g), *read(i)) for i in numbers}
    return {i: None if found[i] is None else o.cast(found[i], o.dtype) for i in numbers}


def _grown(o, value):
    """A saved value of the dtype of `o` in float32; shapes and what is wide already as they are."""
    if isinstance(value, tuple):
        return tuple(_grown(o, v) for v in value)
    return o.wide.cast(value, o.wide.dtype) if getattr(value, "dtype", None) == o.dtype else value


def unbroadcast(o, g, shape: tuple[int, ...]):
    """`g` summed over the axes along which an input of `shape` was broadcast."""
    lead = len(g.shape) - len(shape)
    axes = tuple(range(lead)) + tuple(i + lead for i, k in enumerate(shape) if k == 1 != g.shape[i + lead])
    summed = o.sum(g, axes)
    return summed if summed.shape == shape else o.reshape(summed, shape)
