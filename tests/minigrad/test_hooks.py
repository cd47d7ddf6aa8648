"""Hooks see and replace whole gradients; modes switch recording, in blocks, decorators, threads and tasks."""

import asyncio
import contextvars
import threading

import numpy as np
import pytest

import minigrad as mg
from minigrad.errors import GraphError


def leaf(*values, dtype=mg.float64):
    return mg.tensor(list(values), dtype=dtype, requires_grad=True)


# -- hooks


def test_a_hook_sees_the_whole_gradient_once():
    """A080"""
    x, seen = leaf(1.0), []
    y = x * 2
    y.register_hook(lambda g: (seen.append(g.tolist()), g * 10)[1])
    (y * 3 + y * 4).sum().backward()
    assert seen == [[7.0]] and x.grad.tolist() == [140.0]


def test_hooks_run_in_order_are_removed_and_may_replace():
    x, seen = leaf(1.0), []
    first = x.register_hook(lambda g: (seen.append(1), g + 1)[1])
    x.register_hook(lambda g: (seen.append(2), g * 10)[1])
    (x * 2).sum().backward()
    assert seen == [1, 2] and x.grad.item() == 30
    first.remove()
    first.remove()
    x.grad = None
    (x * 2).sum().backward()
    assert seen == [1, 2, 2] and x.grad.item() == 20
    assert mg.autograd.grad((x * 2).sum(), x)[0].item() == 20


def test_a_hook_belongs_to_the_value_it_was_put_on():
    """A081: registered before an in-place op, it sees the gradient of the old value."""
    x, seen = leaf(1.0), []
    y = x.clone()
    y.register_hook(lambda g: seen.append(("old", g.item())))
    y.mul_(3)
    y.register_hook(lambda g: seen.append(("new", g.item())))
    (y * 5).sum().backward()
    assert seen == [("new", 5.0), ("old", 15.0)]


def test_a_hook_that_returns_nonsense_is_refused():
    for answer in (1.0, mg.ones(3, dtype=mg.float64), mg.ones(1), mg.ones(1, dtype=mg.float64, device="sim:0")):
        x = leaf(1.0)
        y = x * 2
        y.register_hook(lambda g, a=answer: a)
        with pytest.raises((ValueError, TypeError, RuntimeError), match="hook"):
            y.sum().backward()


def test_removing_twice_removes_nobody_else():
    x, seen = leaf(1.0), []
    handle = x.register_hook(lambda g: seen.append(1))
    handle.remove()
    x.register_hook(lambda g: seen.append(2))
    handle.remove()
    (x * 2).sum().backward()
    assert seen == [2]


@pytest.mark.parametrize("interrupt", [ValueError, KeyboardInterrupt])
def test_an_exception_in_a_hook_leaves_everything_sane(interrupt):
    x, w = leaf(1.0), leaf(2.0)

    def bad(g):
        raise interrupt

    y = x * 2
    y.register_hook(bad)
    with pytest.raises(interrupt):
        (y * w).sum().backward()
    assert x.grad is None and w.grad is None and mg.is_grad_enabled()
    (x * w).sum().backward()
    assert (x.grad.item(), w.grad.item()) == (2, 1)


def test_backward_inside_a_hook():
    """Re-entrant: gradients live in the walk, not in the nodes."""
    w = leaf(3.0)

    def hook(g):
        with mg.enable_grad():
            (w * w).sum().backward()

    x = leaf(1.0)
    y = x * 2
    y.register_hook(hook)
    (y * w).sum().backward()
    assert x.grad.item() == 6 and w.grad.item() == 6 + 2


def test_retain_grad():
    x = leaf(1.0, 2.0)
    y = x * 2
    y.retain_grad()
    y.retain_grad()
    z = (y * y).sum()
    z.backward(retain_graph=True)
    assert y.grad.tolist() == [4, 8] and x.grad.tolist() == [8, 16]
    z.backward()
    assert y.grad.tolist() == [8, 16]


def test_retain_grad_sees_what_hooks_made():
    x = leaf(1.0)
    y = x * 2
    y.retain_grad()
    y.register_hook(lambda g: g * 10)
    y.sum().backward()
    assert y.grad.item() == 10


# -- modes


def test_modes_as_contexts_nest_and_survive_exceptions():
    with mg.no_grad():
        assert not mg.is_grad_enabled()
        with mg.enable_grad():
            assert mg.is_grad_enabled() and (leaf(1.0) * 2).requires_grad
        with pytest.raises(ZeroDivisionError), mg.set_grad_enabled(True):
            raise ZeroDivisionError
        assert not mg.is_grad_enabled() and not (leaf(1.0) * 2).requires_grad
    assert mg.is_grad_enabled()


def test_modes_as_decorators():
    @mg.no_grad()
    def off():
        return mg.is_grad_enabled(), mg.enable_grad(mg.is_grad_enabled)()

    @mg.no_grad
    def bare():
        return mg.is_grad_enabled()

    @mg.set_grad_enabled(False)
    def switched():
        return mg.is_grad_enabled()

    assert mg.is_grad_enabled()
    assert off() == (False, True) and not bare() and not switched() and mg.is_grad_enabled()


def test_set_grad_enabled_as_a_statement():
    mg.set_grad_enabled(False)
    try:
        assert not mg.is_grad_enabled()
    finally:
        mg.set_grad_enabled(True)
    assert mg.is_grad_enabled()


def test_decorating_what_runs_in_pieces_is_refused():
    async def coroutine():
        pass

    async def generator():
        yield

    for f in (coroutine, generator):
        with pytest.raises(TypeError, match="inside"):
            mg.no_grad()(f)


def test_threads_start_with_the_defaults_and_copied_contexts_carry():
    seen = []

    def look():
        seen.append(mg.is_grad_enabled())

    with mg.no_grad():
        context = contextvars.copy_context()
        for target in (look, lambda: context.run(look)):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
    assert seen == [True, False]


def test_tasks_do_not_disturb_each_other():
    async def off():
        with mg.no_grad():
            await asyncio.sleep(0)
            return mg.is_grad_enabled()

    async def on():
        await asyncio.sleep(0)
        return mg.is_grad_enabled()

    async def both():
        return await asyncio.gather(off(), on(), off())

    assert asyncio.run(both()) == [False, True, False]


def test_threads_build_and_differentiate_at_once():
    """Four threads, each its own graph over one shared leaf: every gradient as if alone."""
    w = mg.tensor(np.arange(1.0, 5.0), requires_grad=True)
    got = {}

    def work(k):
        for _ in range(50):
            y = ((w * k).exp() * w).sum()
            (got[k],) = mg.autograd.grad(y, w)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    v = np.arange(1.0, 5.0)
    for k in range(4):
        np.testing.assert_allclose(got[k].numpy(), np.exp(k * v) * (1 + k * v), rtol=1e-12)


def test_observers_see_forward_and_backward():
    seen = []
    x = leaf(2.0)
    with mg.observe(lambda op, inputs, outputs: seen.append(op.label)):
        y = (x * x).sum()
        y.backward()
    assert seen[:2] == ["mul", "sum"] and "mul" in seen[2:]
    assert x.grad.item() == 4


def test_two_retained_gradients_do_not_share_a_buffer():
    """An add hands one array to both: each retained gradient is a copy."""
    a, b = leaf(1.0, 2.0), leaf(3.0, 4.0)
    h1 = a * 1
    h2 = h1 + b
    h1.retain_grad()
    h2.retain_grad()
    h2.sum().backward()
    h1.grad.mul_(0)
    assert h2.grad.tolist() == [1, 1] and a.grad.tolist() == [1, 1]


def test_a_gradient_that_a_graph_saved_is_noticed_when_backward_adds_to_it():
    x, w = leaf(1.0, 2.0), leaf(3.0, 4.0)
    (x * 2).sum().backward()
    y = (w * x.grad).sum()
    (x * 2).sum().backward()
    with pytest.raises(GraphError, match="changed in place"):
        y.backward()
