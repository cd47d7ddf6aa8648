"""Child-Sum Tree-LSTM: level by level equals node by node equals the paper's equations; what is no tree is refused."""

import numpy as np
import pytest

import minigrad as mg
from minigrad import nn
from minigrad.autograd import grad
from minigrad.check import gradcheck
from minigrad.nn import tree

TREES = {
    "one node": [[]],
    "a chain": [[], [0], [1], [2]],
    "a star": [[1, 2, 3], [], [], []],
    "root in the middle": [[], [], [4, 1], [], [0, 3]],
    "a forest": [[], [0], [], [4, 2], []],
}


def random_tree(rng, n):
    """Each node hangs on an earlier one; numbers shuffled, so children come before and after their parents."""
    names = rng.permutation(n).tolist()
    children = [[] for _ in range(n)]
    for k in range(1, n):
        children[names[int(rng.integers(0, k))]].append(names[k])
    return children


def made(bias=True):
    mg.manual_seed(1)
    return nn.ChildSumTreeLSTM(3, 4, bias=bias).double()


def inputs(n, seed=0):
    return mg.tensor(np.random.default_rng(seed).standard_normal((n, 3)), requires_grad=True)


def by_the_paper(net, x, children, k):
    """h and c of node k: equations 2 to 8, in NumPy."""
    s = lambda v: 1 / (1 + np.exp(-v))
    w = {name: p.detach().numpy() for name, p in net.named_parameters()}
    below = [by_the_paper(net, x, children, j) for j in children[k]]
    total = sum((h for h, _ in below), np.zeros(4))
    i, o, u = np.split(w["iou_x.weight"] @ x[k] + w["iou_x.bias"] + w["iou_h.weight"] @ total, 3)
    forget = [s(w["f_x.weight"] @ x[k] + w["f_x.bias"] + w["f_h.weight"] @ h) for h, _ in below]
    c = s(i) * np.tanh(u) + sum((f * c for f, (_, c) in zip(forget, below)), np.zeros(4))
    return s(o) * np.tanh(c), c


@pytest.mark.parametrize("name", TREES)
def test_both_ways_equal_the_paper(name):
    net, children = made(), TREES[name]
    x = inputs(len(children))
    for by_level in (True, False):
        h, c = net(x, children, by_level)
        for k in range(len(children)):
            want = by_the_paper(net, x.detach().numpy(), children, k)
            np.testing.assert_allclose(h[k].detach(), want[0], rtol=1e-12)
            np.testing.assert_allclose(c[k].detach(), want[1], rtol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_many_trees_at_once_equal_each_node_by_node(seed):
    rng, net = np.random.default_rng(seed), made(bias=seed % 2 == 0)
    trees = [random_tree(rng, int(n)) for n in rng.integers(1, 14, 6)]
    children, first = tree.join(trees)
    x = inputs(len(children), seed)
    up = mg.tensor(rng.standard_normal((2, len(children), 4)))
    together = sum((s * u).sum() for s, u in zip(net(x, children), up))
    apart = 0
    for start, each in zip(first, trees):
        rows = slice(start, start + len(each))
        apart = apart + sum((s * u[rows]).sum() for s, u in zip(net(x[rows], each, by_level=False), up))
    np.testing.assert_allclose(together.item(), apart.item(), rtol=1e-12)
    for a, b in zip(grad(together, [x, *net.parameters()]), grad(apart, [x, *net.parameters()])):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-10, atol=1e-12)


def test_gradients_of_both_ways():
    net, children = made(), TREES["root in the middle"]
    for by_level in (True, False):
        assert gradcheck(lambda x, way=by_level: net(x, children, way), inputs(5))


def test_a_node_of_your_own_walk():
    net, children, x = made(), TREES["root in the middle"], inputs(5)
    visit = lambda k: net.node(x[k], [visit(j) for j in children[k]])
    h, c = visit(2)
    want = net(x, children)
    np.testing.assert_allclose(h.detach(), want[0][2].detach(), rtol=1e-12)
    np.testing.assert_allclose(c.detach(), want[1][2].detach(), rtol=1e-12)


@pytest.mark.parametrize("by_level", [True, False])
def test_a_tree_two_thousand_deep(by_level):
    n = 2000
    net, x = nn.ChildSumTreeLSTM(3, 2), mg.ones(n, 3, requires_grad=True)
    h, _ = net(x, [[k + 1] if k + 1 < n else [] for k in range(n)], by_level)
    h[0].sum().backward()
    assert np.isfinite(x.grad.numpy()).all() and x.grad[0].abs().sum().item() > 0


def test_levels_have_the_children_of_a_node_side_by_side():
    assert tree.levels(TREES["root in the middle"]) == [[2], [4, 1], [0, 3]]
    assert tree.join([[[]], [[1], []]]) == ([[], [2], []], [0, 1])


def test_what_is_no_tree_is_refused():
    net = made()
    for children, said in (
        ([[1], [2]], "the child 2, but the nodes are 0 … 1"),
        ([[-1], []], "the child -1"),
        ([[2], [2], []], "node 2 is a child of 0 and of 1"),
        ([[1, 1], []], "twice a child of 0"),
        ([[1], [0]], r"nodes \[0, 1\] hang together in a cycle"),
        ([[], [1]], r"nodes \[1\]"),
    ):
        for by_level in (True, False):
            with pytest.raises(ValueError, match=said):
                net(inputs(len(children)), children, by_level)
    with pytest.raises(ValueError, match="for 3 nodes"):
        net(inputs(2), [[], [], [0, 1]])
    with pytest.raises(ValueError, match="for 0 nodes"):
        net(mg.zeros(0, 3).double(), [])
    with pytest.raises(ValueError, match="hidden_size"):
        nn.ChildSumTreeLSTM(3, 0)


@pytest.mark.parametrize("kind", [tuple, np.array, lambda c: mg.tensor(c, dtype=mg.int64)])
@pytest.mark.parametrize("by_level", [True, False])
def test_children_may_be_tuples_arrays_or_tensors(kind, by_level):
    children, x = [[1, 2], [3], [], []], mg.randn(4, 3)
    net = nn.ChildSumTreeLSTM(3, 2)
    given = [kind(np.array(c, int)) if kind is np.array else kind(c) for c in children]
    assert mg.equal(net(x, given, by_level)[0], net(x, children, by_level)[0])


@pytest.mark.parametrize("children", [[[1.0], []], [["1"], []], {0: [1], 1: []}])
def test_children_that_are_no_integers_are_refused_by_name(children):
    with pytest.raises(TypeError, match="tree: children must be"):
        nn.ChildSumTreeLSTM(3, 2)(mg.ones(2, 3), children)
