"""Graphs are long, many and gone at once: no recursion, no leak, no wait for the garbage collector."""

import gc
import sys
import weakref

import pytest

import minigrad as mg
from minigrad.tensor import Node, Tensor, Writes


def leaf(*values, dtype=mg.float64):
    return mg.tensor(list(values), dtype=dtype, requires_grad=True)


# -- memory


def test_a_long_chain():
    """100,000 nodes: forward, backward and freeing without recursion."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(200)
    try:
        x = leaf(1.0)
        for backward in (True, False):
            y = x
            for _ in range(100_000):
                y = y + x
            if backward:
                y.backward()
            del y
    finally:
        sys.setrecursionlimit(limit)
    assert x.grad.item() == 100_001


def live(*kinds):
    return sum(issubclass(type(o), kinds) for o in gc.get_objects())


def test_ten_thousand_steps_leak_nothing():
    """With the collector off: as many Tensors, Nodes and noted writes after as before, and no new memory."""
    w, v = leaf(0.5), leaf(0.1)

    def plain():
        (w * v).tanh().sum().backward()
        with mg.no_grad():
            w.sub_(w.grad * 1e-3)
        w.grad = v.grad = None

    def rich():
        h = w * 2
        h[0] = v[0] * w[0]
        h.register_hook(lambda g: g)
        (h * h).sum().backward(create_graph=True)
        w.grad = v.grad = None

    def blocks(step, n):
        for _ in range(n):
            step()
        return sys.getallocatedblocks()

    gc.collect()
    gc.disable()
    try:
        rich(), plain()
        before = live(Tensor, Node), len(Writes.table)
        settled = blocks(plain, 2500)  # Python's own free lists fill up first
        assert blocks(plain, 7500) - settled < 100
        blocks(rich, 300)
        assert (live(Tensor, Node), len(Writes.table)) == before
    finally:
        gc.enable()


class Payload:
    """Something that a weak reference can watch."""


class Both(mg.Function):
    """3 x and 4 x, with a note kept on the context."""

    @staticmethod
    def forward(ctx, x, note):
        ctx.note = note
        ctx.save_for_backward(x)
        return x * 3, x * 4

    @staticmethod
    def backward(ctx, g, h):
        return g * 3 + h * 4, None


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("kind", ["plain", "hook", "retain", "view", "write", "function", "create_graph"])
def test_graphs_die_by_reference_count(kind, backward):
    """A087: no cycle holds a value until the collector runs, with hooks, views, writes and Functions too."""

    def build():
        x, payload = leaf(1.0, 2.0), Payload()
        y = x.exp() * 2
        if kind == "hook":
            y.register_hook(lambda g, p=payload: None)
        elif kind == "retain":
            y.retain_grad()
        elif kind == "view":
            y = y.reshape(2, 1)[0]
        elif kind == "write":
            y[0] = x[1]
        elif kind == "function":
            y = Both.apply(y, payload)[1]
        z = (y * y).sum()
        if backward:
            z.backward(create_graph=kind == "create_graph")
            if kind == "create_graph":
                x.grad = None  # as in PyTorch, .grad and the leaf hold each other
        return [weakref.ref(t) for t in (x, y, z, y.array, payload)]

    gc.collect()
    gc.disable()
    try:
        assert [r() is None for r in build()] == [True] * 5
    finally:
        gc.enable()


def test_backward_lets_go_of_saved_values_as_it_passes():
    x = leaf(1.0, 2.0)
    y = x.exp()
    z = (y * y).sum()
    kept = weakref.ref(y.array)
    del y
    assert kept() is not None
    z.backward()
    assert kept() is None and z.requires_grad
