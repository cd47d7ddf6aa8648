"""Child-Sum Tree-LSTM (Tai, Socher & Manning 2015, equations 2 to 8): node by node, or level by level.  After `rnn.py`.

A tree is `children[i]`: the numbers of the children of node i, in any order.  Several trees in one numbering are a
forest (`join`).  Both ways give the same numbers; the second makes one batch of all nodes at one depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import index

import numpy as np

from minigrad.errors import ShapeError
from minigrad.indexing import HOLE
from minigrad.nn.layers import Linear, sized
from minigrad.nn.module import Module
from minigrad.nn.packed import numbers, take_rows
from minigrad.ops.cells import TreeStep
from minigrad.ops.doors import function
from minigrad.ops.elementwise import Sigmoid
from minigrad.ops.index import AddAt, At
from minigrad.ops.reduce_functions import sum
from minigrad.ops.shape import cat, stack
from minigrad.ops.structure import split
from minigrad.ops.views import cut, freeze_key
from minigrad.tensor import Tensor, apply

EACH = freeze_key((HOLE,))  # x[index]
Children = Sequence[Sequence[int]]  # tuples and integer arrays too: `plain` makes lists of them
sigmoid, step = function(Sigmoid), function(TreeStep)


def plain(children: Children) -> list[list[int]]:
    """The children as lists of Python's integers.  TypeError for what is no sequence of integers."""
    try:
        return [[index(child) for child in below] for below in children]
    except TypeError as wrong:
        raise TypeError(
            f"tree: children must be the numbers of each node's children, such as [[1, 2], [], []]: {wrong}"
        ) from None


def parents(children: Children) -> list[int]:
    """The parent of each node, -1 for a root.  ValueError for a number that is no node, two parents, or a cycle."""
    n = len(children)
    above = [-1] * n
    for node, below in enumerate(children):
        for child in below:
            if not 0 <= child < n:
                raise ValueError(f"tree: node {node} has the child {child}, but the nodes are 0 … {n - 1}")
            if above[child] >= 0:
                twice = "twice a child" if above[child] == node else f"a child of {above[child]} and"
                raise ValueError(f"tree: node {child} is {twice} of {node}; a node has one parent")
            above[child] = node
    reached = walk(children, above)
    if len(reached) < n:
        lost = sorted(set(range(n)) - set(reached))
        raise ValueError(f"tree: nodes {lost[:8]} hang together in a cycle: no root leads to them")
    return above


def walk(children: Children, above: list[int]) -> list[int]:
    """Nodes from the roots down, parents before their children."""
    order = [node for node, parent in enumerate(above) if parent < 0]
    for node in order:
        order += children[node]
    return order


def levels(children: Children) -> list[list[int]]:
    """The nodes by depth, roots first; in each level the children of one node side by side, in its order."""
    children = plain(children)
    found = [[node for node, parent in enumerate(parents(children)) if parent < 0]]
    while found[-1]:
        found.append([child for node in found[-1] for child in children[node]])
    return found[:-1]


def join(trees: Sequence[Children]) -> tuple[list[list[int]], list[int]]:
    """Several trees as one forest, in one numbering: (children, first number of each tree)."""
    first = [0, *accumulate(len(tree) for tree in trees)]
    joined = [[start + child for child in below] for start, tree in zip(first, trees) for below in tree]
    return joined, first[:-1]


class ChildSumTreeLSTM(Module):
    """States h and c of each node from its own input and the states of its children.

    Of a node: h~ the sum of its children's h; gates i, o and candidate u from x and h~; a forget gate for each child
    from x and that child's h; c = i u + the sum of f c over the children; h = o tanh(c)."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, device="cpu", dtype=None) -> None:
        sized(input_size=input_size, hidden_size=hidden_size)
        self.input_size, self.hidden_size = input_size, hidden_size
        how = {"device": device, "dtype": dtype}
        self.iou_x = Linear(input_size, 3 * hidden_size, bias, **how)
        self.iou_h = Linear(hidden_size, 3 * hidden_size, False, **how)
        self.f_x = Linear(input_size, hidden_size, bias, **how)
        self.f_h = Linear(hidden_size, hidden_size, False, **how)

    def forward(self, x: Tensor, children: Children, by_level: bool = True) -> tuple[Tensor, Tensor]:
        """h and c (nodes, hidden_size) of all nodes of a tree or forest with inputs x (nodes, input_size)."""
        if x.shape != (len(children), self.input_size) or not len(children):
            raise ShapeError(
                f"ChildSumTreeLSTM: inputs {x.shape} for {len(children)} nodes, expected (nodes, {self.input_size})"
            )
        children = plain(children)
        iou, f = self.iou_x(x), self.f_x(x)
        return self._by_level(iou, f, children) if by_level else self._by_node(iou, f, children)

    def _halves(self, both: Tensor) -> tuple[Tensor, Tensor]:
        """h and c, which lie side by side."""
        h = self.hidden_size
        return cut(both, (Ellipsis, slice(0, h))), cut(both, (Ellipsis, slice(h, None)))

    # -- node by node
    def node(self, x: Tensor, below: Sequence[tuple[Tensor, Tensor]] = ()) -> tuple[Tensor, Tensor]:
        """(h, c) of one node from its input (input_size) and the (h, c) of its children, for a walk of your own."""
        return self._halves(self._node(self.iou_x(x), self.f_x(x), [cat(pair) for pair in below]))

    def _node(self, iou: Tensor, f: Tensor, below: list[Tensor]) -> Tensor:
        """h and c side by side from those of the children."""
        if not below:
            return step(iou, f.detach() * 0)
        h, c = self._halves(stack(below))  # (children, H)
        kept = sum(sigmoid(f + self.f_h(h)) * c, 0)
        return step(iou + self.iou_h(sum(h, 0)), kept)

    def _by_node(self, iou: Tensor, f: Tensor, children: Children) -> tuple[Tensor, Tensor]:
        both: dict[int, Tensor] = {}
        for k in reversed(walk(children, parents(children))):
            both[k] = self._node(iou[k], f[k], [both[j] for j in children[k]])
        return self._halves(stack([both[k] for k in range(len(children))]))

    # -- level by level
    def _by_level(self, iou: Tensor, f: Tensor, children: Children) -> tuple[Tensor, Tensor]:
        """From the deepest level up: the children of a level are the level before it, whole and in order."""
        depths = levels(children)[::-1]
        order = np.array([node for level in depths for node in level])
        sizes = [len(level) for level in depths]
        found: list[Tensor] = []
        for level, gates, x in zip(depths, split(take_rows(iou, order), sizes), split(take_rows(f, order), sizes)):
            kept = x.detach() * 0
            if found:
                h, c = self._halves(found[-1])
                above = np.repeat(np.arange(len(level)), [len(children[node]) for node in level])
                of = numbers(above, iou)  # the parent of each child, as a row of this level
                add = AddAt.of(EACH, x.shape)
                kept = apply(add, sigmoid(apply(At.of(EACH), x, of) + self.f_h(h)) * c, of)
                gates = gates + self.iou_h(apply(add, h, of))
            found.append(step(gates, kept))
        return self._halves(take_rows(cat(found, 0), np.argsort(order)))

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}"
