"""The self-checks of notebook 03, in the order in which they are met."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
from lesson import ask, check, close, expect

import minigrad as mg
from minigrad import nn


def _draw(seed: int, *shape: int) -> mg.Tensor:
    return mg.randn(*shape, dtype=mg.float64, generator=mg.Generator().manual_seed(seed))


def _random_tree(rng: np.random.Generator, n: int, deep: bool) -> list[list[int]]:
    """Children of n nodes under random numbers, so that neither parents nor children come first."""
    name, children = rng.permutation(n).tolist(), [[] for _ in range(n)]
    for k in range(1, n):
        parent = k - 1 if deep and rng.random() < 0.7 else int(rng.integers(0, k))
        children[name[parent]].append(name[k])
    return children


@check
def check_bottom_up(order: Callable) -> str:
    """order(children, root): all nodes, each after its children; without recursion."""
    rng = np.random.default_rng(0)
    trees = [_random_tree(rng, int(rng.integers(1, 40)), deep=k % 2 == 0) for k in range(100)]
    chain = [[k + 1] for k in range(20_000)] + [[]]
    for k, children in enumerate([*trees, chain]):
        (root,) = set(range(len(children))) - {c for below in children for c in below}
        found = list(ask(order, children, root))
        what = "the chain of 20,001 nodes" if children is chain else f"tree {k} of {len(children)} nodes"
        expect(sorted(found) == list(range(len(children))), f"{what}: {len(found)} nodes, {len(set(found))} different")
        place = {node: at for at, node in enumerate(found)}
        early = [node for node, below in enumerate(children) if any(place[c] > place[node] for c in below)]
        expect(not early, f"{what}: {len(early)} nodes come before a child of theirs")
    return "100 random trees, and a chain that is too deep for a recursion"


@check
def check_node(node: Callable) -> str:
    """node(cell, x, below): one Child-Sum Tree-LSTM node, from the four layers of `cell`."""
    mg.manual_seed(0)
    lstm = nn.ChildSumTreeLSTM(5, 4).double()
    layers = SimpleNamespace(iou_x=lstm.iou_x, iou_h=lstm.iou_h, f_x=lstm.f_x, f_h=lstm.f_h)
    for count in (0, 1, 2, 5):
        x, below = _draw(count, 5), [(_draw(9 * k + 1, 4), _draw(9 * k + 2, 4)) for k in range(count)]
        got = ask(node, layers, x, below)
        expect(isinstance(got, tuple | list) and len(got) == 2, f"return h and c, got {type(got).__name__}")
        for name, value, want in zip("hc", got, lstm.node(x, below)):
            close(value, want.detach().numpy(), f"a node with {count} children: {name}")
    return "no child, one, two, five: h and c as the library says"


@check
def check_heights(heights: Callable) -> str:
    """heights(children): 0 for a leaf, else one more than its highest child."""
    rng = np.random.default_rng(1)
    for k in range(100):
        children = _random_tree(rng, int(rng.integers(1, 30)), deep=k % 2 == 0)
        want = [-1] * len(children)
        while min(want) < 0:
            for node, below in enumerate(children):
                if all(want[c] >= 0 for c in below):
                    want[node] = max((want[c] + 1 for c in below), default=0)
        got = list(ask(heights, children))
        expect(len(got) == len(want), f"tree {k}: {len(got)} heights for {len(want)} nodes")
        off = [node for node, (g, w) in enumerate(zip(got, want)) if g != w]
        expect(not off, f"tree {k} with children {children}: {len(off)} heights are off, the first at node {off[:1]}")
    return "100 trees: nodes of one height do not wait for each other"


@check
def check_masked_mean(mean: Callable) -> str:
    """mean(x, lengths): the mean of the first lengths[n] rows of each x[n], whatever stands behind them."""
    for shape, lengths in (((3, 5, 2), [5, 1, 3]), ((1, 4, 3), [2]), ((4, 6, 1), [1, 2, 3, 4])):
        x = _draw(sum(shape), *shape).numpy()
        want = np.stack([row[:n].mean(0) for row, n in zip(x, lengths)])
        for rest, name in ((0.0, "zeros"), (1e3, "large numbers"), (np.nan, "NaN")):
            padded = x.copy()
            for row, n in zip(padded, lengths):
                row[n:] = rest
            given = mg.tensor(padded, requires_grad=True)
            got = ask(mean, given, mg.tensor(lengths))
            what = f"x {shape}, lengths {lengths}, {name} in the padding"
            close(got, want, f"{what}: the mean")
            got.sum().backward()
            share = np.array([[1 / n if t < n else 0 for t in range(shape[1])] for n in lengths])
            close(given.grad, np.broadcast_to(share[:, :, None], shape), f"{what}: the gradient")
    return "value and gradient know nothing of the padding, not even of NaN"


@check
def check_place(place: Callable) -> str:
    """place(index, canvas, side): row and column of a window, from its number among all places."""
    for canvas, side in ((20, 8), (9, 8), (8, 8), (30, 5)):
        n = canvas - side + 1
        for index in range(n * n):
            got = ask(place, index, canvas, side)
            expect(isinstance(got, tuple | list) and len(got) == 2, f"return a row and a column, got {got!r}")
            row, column = got
            inside = 0 <= row < n and 0 <= column < n
            expect(
                inside and row * n + column == index,
                f"canvas {canvas}, window {side}: place {index} is not at row {row}, column {column}",
            )
    return "every place of four canvases"
