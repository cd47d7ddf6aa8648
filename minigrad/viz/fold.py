"""Fewer boxes: the operations of one call of a module become one, what is over the cap another.

A box is always an interval of the order in which things ran, so edges between boxes still run
forward only: a module that is called twice with other work between is two boxes.  After
`record.py`, before `known.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from minigrad.tensor import Node
from minigrad.viz.record import Constant, Graph, Item


@dataclass
class Box:
    """One box of the picture.  `scope` is set for a module, `more` for the rest over the cap."""

    items: list[Item] = field(default_factory=list)
    scope: tuple[str, ...] = ()
    more: bool = False

    @property
    def whole(self) -> bool:
        """Whether it stands for several items, or for one and no more than that."""
        return self.more or len(self.items) > 1


def folded(graph: Graph, fold="auto", depth: int | None = None, max_nodes: int = 80) -> list[Box]:
    """At most `max_nodes` boxes.

    `fold`: False – by the cap alone; True – by module; "auto" – by module if there are more.
    `depth`: how many names of a scope are told apart; 1 makes one box of an outermost module."""
    if fold not in (True, False, "auto"):
        raise ValueError(f'draw: fold must be True, False or "auto", got {fold!r}')
    if max_nodes < 1 or (depth is not None and depth < 1):
        raise ValueError(
            f"draw: max_nodes and depth must be at least 1, got {max_nodes} and {depth}"
        )
    if depth is not None and fold is not False:
        return capped(by_module(graph, depth), max_nodes)
    if fold is False or (fold == "auto" and len(graph.items) <= max_nodes):
        return capped(graph.items, max_nodes)
    return capped(_best(graph, fold, max_nodes), max_nodes)


def _best(graph: Graph, fold, max_nodes: int) -> list:
    """Asked to fold: the coarsest depth that shows more than one module.  "auto": the finest that
    fits, unless so little is left then that a finer one under the cap says more."""
    deepest = max((len(n.scope) for n in graph.edges), default=0)
    boxes: list = graph.items
    for depth in range(1, deepest + 1) if fold is True else range(deepest, 0, -1):
        finer, boxes = boxes, by_module(graph, depth)
        if fold is True and sum(isinstance(b, Box) for b in boxes) > 1:
            break
        if fold == "auto" and len(boxes) <= max_nodes:
            return boxes if len(boxes) > 2 else finer
    return boxes


def by_module(graph: Graph, depth: int) -> list[Box | Item]:
    """In topological order, each call of a module as one box, with the leaves only it uses."""
    boxes: list[Box] = []
    home: dict[Node, int] = {}
    for n in graph.edges:
        scope = n.scope[:depth] if len(n.scope) >= depth else ()
        if not (scope and boxes and boxes[-1].scope == scope):
            boxes.append(Box(scope=scope))
        boxes[-1].items.append(n)
        home[n] = len(boxes) - 1
    return _with_leaves(graph, boxes, home)


def _with_leaves(graph: Graph, boxes: list[Box], home: dict[Node, int]) -> list[Box | Item]:
    """Leaves go into the only module that uses them, else before their first user."""
    users: dict[Item, set[int]] = {i: set() for i in graph.items if not isinstance(i, Node)}
    fed = set()  # boxes that read another box
    for n, edges in graph.edges.items():
        for e in edges:
            if e in users:
                users[e].add(home[n])
            elif home[e] != home[n]:
                fed.add(home[n])
    before: dict[int, list[Item]] = {}
    for leaf, at in users.items():
        only = min(at) if len(at) == 1 and leaf not in graph.roots else None
        if (
            only is not None
            and boxes[only].scope
            and (only in fed or not isinstance(leaf, Constant))
        ):
            boxes[only].items.append(leaf)
        else:
            before.setdefault(min(at, default=len(boxes)), []).append(leaf)
    placed = [[*before.get(k, ()), b if b.whole else b.items[0]] for k, b in enumerate(boxes)]
    return [b for group in [*placed, before.get(len(boxes), [])] for b in group]


def capped(boxes: Sequence[Box | Item], max_nodes: int) -> list[Box]:
    """The first quarter and the last three as they are, and what lies between as one box."""
    if len(boxes) <= max_nodes:
        return [_box(b) for b in boxes]
    head = (max_nodes - 1) // 4
    tail = len(boxes) - (max_nodes - 1 - head)
    rest = Box(
        [i for b in boxes[head:tail] for i in (b.items if isinstance(b, Box) else (b,))], more=True
    )
    return [*map(_box, boxes[:head]), rest, *map(_box, boxes[tail:])]


def _box(b: Box | Item) -> Box:
    return b if isinstance(b, Box) else Box([b])
