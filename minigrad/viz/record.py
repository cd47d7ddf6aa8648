"""What was recorded: the part of the graph that some tensors depend on, in topological order.

The engine keeps edges only where a gradient flows.  An input without a history is known here if the operation saved it:
a number, or a `Constant`.  Iterative: a chain of 100,000 operations is no problem.  First file of viz; `fold.py` is next.
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np

from minigrad.aval import Aval
from minigrad.ops.op import Op
from minigrad.tensor import Node, Tensor


@dataclass(frozen=True, eq=False)
class Constant:
    """An input that wants no gradient, known because an operation saved it."""

    array: object
    o: object

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape


Item = Node | Tensor | Constant
Slot = Node | Tensor | Constant | int | float | bool | None        # None: a constant that nobody saved


@dataclass(frozen=True)
class Graph:
    """`items`: leaves and constants just before their first use, operations in the order in which they ran."""

    items: list[Item]
    inputs: dict[Node, list[Slot]]
    roots: dict[Item, Tensor | None]
    freed: int = 0                                                 # operations whose history backward() let go
    edges: dict[Node, list[Item]] = field(default_factory=dict)    # the inputs that are items


def recorded(obj: Tensor | Iterable[Tensor]) -> Graph:
    """The graph behind a tensor, or behind several."""
    roots = {_item(t): t for t in _tensors(obj)}
    nodes = _nodes(roots)
    constants: dict[int, Constant] = {}
    inputs = {n: inputs_of(n, constants) for n in nodes}
    edges = {n: [s for s in slots if isinstance(s, Item)] for n, slots in inputs.items()}
    items: dict[Item, None] = {}
    for n in nodes:
        items.update((s, None) for s in edges[n] if not isinstance(s, Node))
        items[n] = None
    items.update(dict.fromkeys(r for r in roots if not isinstance(r, Node)))
    return Graph(list(items), inputs, roots, sum(n.edges is None for n in nodes), edges)


def _tensors(obj) -> list[Tensor]:
    """The tensors to draw; TypeError for anything else."""
    found = list(obj.values()) if isinstance(obj, dict) else obj
    found = list(found) if isinstance(found, list | tuple) else [found]
    for t in found:
        if not isinstance(t, Tensor):
            raise TypeError(f"draw: expected a Tensor, or a list of them, got {type(t).__name__}. "
                            "Draw what the model returns: draw(model(x))")
    if not found:
        raise ValueError("draw: an empty list has no graph; give at least one Tensor")
    return found


def _item(t: Tensor) -> Item:
    return t.node if isinstance(t.node, Node) else t


def _nodes(roots: Iterable[Item]) -> list[Node]:
    """Every operation the roots depend on, oldest first: nodes are numbered as they run."""
    found = {r for r in roots if isinstance(r, Node)}
    stack = list(found)
    while stack:
        for e in stack.pop().edges or ():
            if e.__class__ is Node and e not in found:
                found.add(e)
                stack.append(e)
    return sorted(found, key=attrgetter("seq"))


# ---- the inputs of one operation -------------------------------------------------------------------------------
def inputs_of(n: Node, constants: dict[int, Constant]) -> list[Slot]:
    """What went in, in the order of the operation's inputs; none where backward() has freed the node."""
    if n.edges is None or not isinstance(n.op, Op):
        return list(n.edges or ())
    saved, edges = dict(zip(n.plan.names, n.saved)), iter(n.edges)
    return [next(edges) if n.plan.mask >> i & 1 else _unwatched(n, i, saved, constants)
            for i in range(_arity(n, saved)) if n.op.input_name(i) not in n.op.on_host]


def _arity(n: Node, saved: dict) -> int:
    """How many inputs there were; of a variadic operation that saved none, those up to the last with a history."""
    if not n.op.variadic:
        return len(n.op.inputs)
    last = saved.get(n.op.inputs[-1])
    return len(n.op.inputs) - 1 + len(last) if isinstance(last, tuple) else n.plan.mask.bit_length()


def saved_input(n: Node, i: int, saved: dict):
    """The array that went in as input `i`, or None."""
    value = saved.get(n.op.input_name(i))
    return value[i - len(n.op.inputs) + 1] if isinstance(value, tuple) else value


def _unwatched(n: Node, i: int, saved: dict, constants: dict[int, Constant]) -> Slot:
    """An input without a history: its number if it is one, else a Constant, shared by all that saved the same array."""
    array = saved_input(n, i, saved)
    if array is None:
        return None
    if array.shape == () and not isinstance(array, Aval):
        return np.asarray(n.o.host(array)).item()
    return constants.setdefault(id(array), Constant(array, n.o))
