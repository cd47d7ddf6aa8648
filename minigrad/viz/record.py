"""What was recorded: the part of the graph that some tensors depend on, in topological order.

The engine keeps edges only where a gradient flows.  An input without a history is known here if
the operation saved it: a number, or a `Constant`.  Iterative: a chain of 100,000 operations is no
problem.  First file of viz; `fold.py` is next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
Slot = Node | Tensor | Constant | int | float | bool | None  # None: a constant nobody saved


@dataclass(frozen=True)
class Graph:
    """`items`: leaves and constants just before their first use, operations as they ran."""

    items: list[Item]
    edges: dict[Node, Sequence[Item]]  # what each operation reads, in order
    roots: dict[Item, Tensor | None]
    freed: int = 0  # operations whose history backward() let go


def recorded(obj: Tensor | Iterable[Tensor]) -> Graph:
    """The graph behind a tensor, or behind several."""
    roots = {_item(t): t for t in _tensors(obj)}
    edges = _edges(_nodes(roots))
    items: dict[Item, None] = {}
    for n, read in edges.items():
        for item in read:
            items.setdefault(item)  # a node stands there already
        items[n] = None
    items.update(dict.fromkeys(r for r in roots if not isinstance(r, Node)))
    return Graph(list(items), edges, roots, sum(n.edges is None for n in edges))


def _tensors(obj) -> list[Tensor]:
    """The tensors to draw; TypeError for anything else."""
    found = list(obj.values()) if isinstance(obj, dict) else obj
    found = list(found) if isinstance(found, list | tuple) else [found]
    for t in found:
        if not isinstance(t, Tensor):
            raise TypeError(
                f"draw: expected a Tensor, or a list of them, got {type(t).__name__}. "
                "Draw what the model returns: draw(model(x))"
            )
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


# ---- the inputs of one operation --------------------------------------------------------
def _edges(nodes: list[Node]) -> dict[Node, Sequence[Item]]:
    """What each node reads; one Constant for all that saved the same array."""
    constants: dict[int, Constant] = {}
    places: dict[object, list[int]] = {}  # of each plan: which saved values to look at
    edges: dict[Node, Sequence[Item]] = {}
    for n in nodes:
        if n.plan not in places:
            places[n.plan] = _unwatched(n)
        if n.edges is None or not any(_has_axes(n.saved[k]) for k in places[n.plan]):
            edges[n] = n.edges or ()
        else:
            slots = [s for s in _slots(n) if isinstance(s, Node | Tensor) or _has_axes(s)]
            edges[n] = [
                s if isinstance(s, Node | Tensor) else constants.setdefault(id(s), Constant(s, n.o))
                for s in slots
            ]
    return edges


def _has_axes(saved) -> bool:
    """Whether a saved value is worth a box of its own: an array, or several, and not a number."""
    return saved is not None and (saved.__class__ is tuple or saved.shape != ())


def _unwatched(n: Node) -> list[int]:
    """Where among its saved values `n` keeps inputs without a history."""
    if not isinstance(n.op, Op):
        return []
    op = n.op
    watched = {name for i, name in enumerate(op.inputs) if n.plan.mask >> i & 1 and not op.variadic}
    wanted = set(op.inputs) - watched - set(op.on_host)
    return [k for k, name in enumerate(n.plan.names) if name in wanted]


def _is_constant(slot) -> bool:
    return slot is not None and not isinstance(slot, Node | Tensor)


def _slots(n: Node) -> list:
    """What went in, in order: edges, saved arrays, None for what was not saved."""
    if n.edges is None or not isinstance(n.op, Op):
        return list(n.edges or ())
    saved, edges = dict(zip(n.plan.names, n.saved)), iter(n.edges)
    return [
        next(edges) if n.plan.mask >> i & 1 else saved_input(n, i, saved)
        for i in range(_arity(n, saved))
        if n.op.input_name(i) not in n.op.on_host
    ]


def _arity(n: Node, saved: dict) -> int:
    """How many inputs there were; a variadic operation may know only of those with a history."""
    if not n.op.variadic:
        return len(n.op.inputs)
    last = saved.get(n.op.inputs[-1])
    return len(n.op.inputs) - 1 + len(last) if isinstance(last, tuple) else n.plan.mask.bit_length()


def saved_input(n: Node, i: int, saved: dict):
    """The array that went in as input `i`, or None."""
    value = saved.get(n.op.input_name(i))
    return value[i - len(n.op.inputs) + 1] if isinstance(value, tuple) else value


def inputs_of(n: Node, graph: Graph) -> list[Slot]:
    """The items that `n` reads, the numbers between them, and None for a constant nobody saved."""
    items, slots = iter(graph.edges[n]), _slots(n)
    number = [s is None or (_is_constant(s) and s.shape == ()) for s in slots]
    return [_number(s, n) if is_one else next(items) for s, is_one in zip(slots, number)]


def _number(array, n: Node) -> int | float | bool | None:
    """The value of a 0-d array; None on meta."""
    return None if array is None or isinstance(array, Aval) else np.asarray(n.o.host(array)).item()
