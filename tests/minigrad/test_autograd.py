"""Backward: order, accumulation, refusals, hooks, modes, memory.  Gradients are checked with non-unit upstream ones."""
import asyncio
import contextvars
import gc
import sys
import threading
import weakref

import numpy as np
import pytest

import minigrad as mg
from minigrad.errors import GraphError, ShapeError
from minigrad.tensor import Node, Tensor, Writes


def leaf(*values, dtype=mg.float64):
    return mg.tensor(list(values), dtype=dtype, requires_grad=True)


def here(offset=0):
    """'this file:line' of the caller, for messages that must name it."""
    frame = sys._getframe(1)
    return f"{frame.f_code.co_filename}:{frame.f_lineno + offset}"


# -- order

def test_a_node_waits_for_every_gradient_that_reaches_it():
    x = leaf(2.0)
    y = x * x
    (x + y * x).backward(mg.tensor([3.0], dtype=mg.float64))
    assert x.grad.tolist() == [39.0]                             # 3 (3 x² + 1)


def test_a_ladder_of_diamonds_doubles_at_each_step():
    x = leaf(1.0)
    y = x
    for _ in range(40):
        y = y + y
    y.sum().backward()
    assert x.grad.item() == 2.0**40


def test_random_graphs_have_the_gradients_of_forward_mode():
    """Sums and products of earlier values, in any order, with values used many times."""
    for seed in range(20):
        r = np.random.default_rng(seed)
        xs = [leaf(*r.standard_normal(2)) for _ in range(3)]
        values = [(x, np.eye(3)[k][:, None] * np.ones(2)) for k, x in enumerate(xs)]
        for _ in range(12):
            (a, da), (b, db) = values[r.integers(len(values))], values[r.integers(len(values))]
            if r.random() < 0.5:
                values.append((a + b, da + db))
            else:
                values.append((a * b * 0.5, 0.5 * (da * b.detach().numpy() + db * a.detach().numpy())))
        y, dy = values[-1]
        g = r.standard_normal(2)
        for x, got, want in zip(xs, mg.autograd.grad(y, xs, mg.tensor(g), materialize_grads=True), dy):
            np.testing.assert_allclose(got.numpy(), want * g, rtol=1e-12, atol=1e-12)


def test_runs_are_bit_equal():
    """Nothing depends on addresses or hashes: twenty runs give the same bits."""
    def run():
        r = np.random.default_rng(3)
        w = mg.tensor(r.standard_normal((8, 8)).astype("f4"), requires_grad=True)
        h = mg.tensor(r.standard_normal((4, 8)).astype("f4"))
        for _ in range(3):
            h = (h @ w + h.mean(1, True)).tanh() * h.softmax(1) + h
        h.sum().backward()
        return w.grad.numpy().tobytes()
    assert len({run() for _ in range(20)}) == 1


# -- accumulation

def test_gradients_add_up_and_buffers_are_not_shared():
    """A010: an add hands both inputs one array."""
    for device in ("cpu", "sim:0"):
        x, y = (mg.ones(2, device=device, requires_grad=True) for _ in "xy")
        (x + y).sum().backward()
        with mg.no_grad():
            x.grad.mul_(10)
        (x + y).sum().backward()
        assert (x.grad.tolist(), y.grad.tolist()) == ([11, 11], [2, 2])


@pytest.mark.parametrize("how", ["create_graph", "observed"])
def test_buffers_are_not_shared_on_tensors_either(how):
    x, y = leaf(1.0), leaf(2.0)
    with mg.observe(lambda *_: None if how == "observed" else None):
        (x + y).backward(mg.tensor([3.0], dtype=mg.float64), create_graph=how == "create_graph")
    assert x.grad is not y.grad and not np.shares_memory(x.grad.array, y.grad.array)


def test_the_seed_is_not_the_gradient():
    x, g = leaf(1.0, 2.0), mg.ones(2, dtype=mg.float64)
    (x + 0).backward(g)
    x.grad.zero_()
    assert g.tolist() == [1, 1]


def test_backward_accumulates_in_place_and_grad_does_not_touch():
    x = leaf(1.0, 2.0)
    (x * 3).sum().backward()
    kept = x.grad
    (got,) = mg.autograd.grad((x * 5).sum(), x)
    (x * 2).sum().backward()
    assert x.grad is kept and kept.tolist() == [5, 5] and got.tolist() == [5, 5]


def test_several_roots():
    x = leaf(1.0, 2.0)
    mg.autograd.backward([x * 2, (x * x).sum()], [mg.tensor([1.0, 10.0], dtype=mg.float64), None])
    assert x.grad.tolist() == [4, 24]
    (g,) = mg.autograd.grad([x * 2, x * 3], [x], [mg.ones(2, dtype=mg.float64)] * 2)
    assert g.tolist() == [5, 5]


@pytest.mark.parametrize("wrong", [mg.ones(3), mg.ones(2, dtype=mg.float32)])
def test_a_grad_unlike_its_leaf_is_refused(wrong):
    x = leaf(1.0, 2.0)
    x.grad = wrong
    with pytest.raises(GraphError, match=r"grad.*float64\[2\]"):
        x.sum().backward()


# -- refusals

def test_second_backward_names_the_way_out_and_retain_doubles():
    x = leaf(1.0)
    y = (x * x).sum()
    y.backward()
    with pytest.raises(GraphError, match="retain_graph=True"):
        y.backward()
    z = (x * x).sum()
    z.backward(retain_graph=True)
    z.backward()
    assert x.grad.item() == 6.0


@pytest.mark.parametrize("bad, error, words", [
    (lambda x: x.detach().sum().backward(), GraphError, "no history"),
    (lambda x: (x * 2).backward(), GraphError, r"shape \(2,\).*gradient="),
    (lambda x: (x * 2).backward(mg.ones(3)), ShapeError, r"\(3,\).*\(2,\)"),
    (lambda x: (x * 2).backward(2.0), TypeError, "Tensor, got float"),
    (lambda x: (x * 2).backward(mg.ones(2, device="sim:0")), GraphError, "sim:0.*cpu"),
    (lambda x: mg.autograd.grad(x.sum(), mg.ones(2)), GraphError, "does not require"),
    (lambda x: mg.autograd.grad(x.sum(), leaf(1.0)), GraphError, "allow_unused"),
    (lambda x: mg.autograd.grad([x.sum(), x.sum()], x, [None]), ValueError, "2 outputs and 1"),
    (lambda x: mg.tensor([1]).requires_grad_(), TypeError, "float"),
    (lambda x: (x * 2).requires_grad_(False), GraphError, "detach"),
    (lambda x: x.numpy(), GraphError, "detach"),
    (lambda x: mg.ones(1).register_hook(print), GraphError, "requires_grad_"),
    (lambda x: mg.ones(1).retain_grad(), GraphError, "requires no gradient"),
])
def test_a_wrong_moment_says_what_and_what_to_do(bad, error, words):
    with pytest.raises(error, match=words):
        bad(leaf(1.0, 2.0))


def test_unused_inputs():
    x, y = leaf(1.0), leaf(2.0, 3.0)
    z = (x * 2).sum()
    assert mg.autograd.grad(z, [y, x], allow_unused=True, retain_graph=True)[0] is None
    (g,) = mg.autograd.grad(z, [y], materialize_grads=True)
    assert g.tolist() == [0, 0]


# -- second and third derivatives

def test_third_derivative():
    x = leaf(2.0, -1.0)
    y = x**4
    for factor, power in ((4, 3), (12, 2), (24, 1)):
        (y,) = mg.autograd.grad(y.sum(), x, create_graph=True)
        np.testing.assert_allclose(y.detach().numpy(), factor * np.array([2.0, -1.0]) ** power)


def test_gradient_penalty_trains_through_backward():
    """create_graph in backward(): the gradient of |dy/dx|² by w, which is 2 w x²·… in closed form."""
    w, x = leaf(3.0), leaf(2.0)
    (g,) = mg.autograd.grad((w * x * x).sum(), x, create_graph=True)      # 2 w x
    (g * g).sum().backward()                                              # 4 w² x²
    assert w.grad.item() == 8 * 3 * 4 and x.grad.item() == 8 * 9 * 2


def test_plain_backward_leaves_no_history_and_create_graph_does():
    x = leaf(2.0)
    (x * x).sum().backward()
    assert not x.grad.requires_grad
    x.grad = None
    (x * x).sum().backward(create_graph=True)
    assert x.grad.requires_grad


# -- choosing inputs, deferring

def test_inputs_leaf_and_not():
    x, w = leaf(1.0, 2.0), leaf(5.0, 5.0)
    y = x * 2
    (y * w * 3).sum().backward(inputs=[x, y])
    assert x.grad.tolist() == [30, 30] and y.grad.tolist() == [15, 15] and w.grad is None


def test_only_what_leads_to_the_inputs_is_computed():
    seen = []
    x, w = leaf(1.0), leaf(2.0)
    h = w.exp()
    h.register_hook(lambda g: seen.append(g))
    mg.autograd.grad((h * x).sum(), x)
    assert seen == []


@pytest.mark.parametrize("order", [1, -1])
def test_deferred_gradients_equal_backward(order):
    """defer=params: the same gradients once the work is done, in any order; the others at once."""
    r = np.random.default_rng(0)
    w1, w2, x = (mg.tensor(r.standard_normal((3, 3)), requires_grad=True) for _ in range(3))

    def loss():
        return (((x @ w1).tanh() @ w2 + w1) ** 2).sum()
    loss().backward()
    want = [t.grad.numpy().copy() for t in (w1, w2, x)]
    for t in (w1, w2, x):
        t.grad = None
    work = loss().backward(defer=[w1, w2])
    assert w1.grad is None and w2.grad is None and len(work) == 3
    np.testing.assert_array_equal(x.grad.numpy(), want[2])
    for task in work[::order]:
        task()
    for t, w in zip((w1, w2), want):
        np.testing.assert_allclose(t.grad.numpy(), w, rtol=1e-14)


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
    for answer in (1.0, mg.ones(3, dtype=mg.float64)):
        x = leaf(1.0)
        (x * 2).register_hook(lambda g, a=answer: a)
        y = x * 2
        y.register_hook(lambda g, a=answer: a)
        with pytest.raises(ShapeError, match=r"hook.*\(1,\)"):
            y.sum().backward()


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
            1 / 0
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

    def generator():
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
    return sum(isinstance(o, kinds) for o in gc.get_objects())


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
        settled = blocks(plain, 2500)                            # Python's own free lists fill up first
        assert blocks(plain, 7500) - settled < 100
        blocks(rich, 300)
        assert (live(Tensor, Node), len(Writes.table)) == before
    finally:
        gc.enable()


class Payload:
    """Something that a weak reference can watch."""


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("kind", ["plain", "hook", "retain", "view", "write", "function", "create_graph"])
def test_graphs_die_by_reference_count(kind, backward):
    """A087: no cycle holds a value until the collector runs, with hooks, views, writes and Functions too."""
    class Triple(mg.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.note = payload
            ctx.save_for_backward(x)
            return x * 3, x * 4

        @staticmethod
        def backward(ctx, g, h):
            return g * 3 + h * 4

    def build():
        x = leaf(1.0, 2.0)
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
            y = Triple.apply(y)[1]
        z = (y * y).sum()
        if backward:
            z.backward(create_graph=kind == "create_graph")
            if kind == "create_graph":
                x.grad = None                                    # as in PyTorch, .grad and the leaf hold each other
        return [weakref.ref(t) for t in (x, y, z, y.array, payload)]
    gc.collect()
    gc.disable()
    try:
        payload = Payload()
        dead = build()
        del payload
        assert [r() is None for r in dead] == [True] * 5
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


# -- places

def composite(x):
    return mg.nn.functional.cross_entropy(x.reshape(1, -1), mg.tensor([0]))


@pytest.mark.parametrize("f", [
    lambda x: x * 2, lambda x: 2 - x, lambda x: x.exp(), lambda x: mg.softmax(x, 0), lambda x: x.log_softmax(0), lambda x: x.norm(), lambda x: x.clamp(0, 1),
    lambda x: x[0], lambda x: x[[0, 1]], lambda x: x.reshape(2, 1), lambda x: mg.cat([x, x]), lambda x: x @ x, lambda x: mg.logsumexp(x, 0),
    lambda x: x.max(0)[0], lambda x: mg.where(x > 0, x, 0), lambda x: x.var(), composite,
    lambda x: mg.nn.functional.linear(x, mg.ones(3, 2, dtype=mg.float64)), lambda x: mg.nn.Sequential(mg.nn.Tanh())(x),
])
def test_made_at_is_the_users_line(f):
    y = f(leaf(1.0, 2.0))
    assert y.made_at.startswith(f"{__file__}:{f.__code__.co_firstlineno + (f is composite)}, in ")


def test_a_stale_value_names_both_lines():
    x = leaf(1.0, 2.0)
    y = x.exp()
    ran = here(-1)
    y.add_(1)
    wrote = here(-1)
    with pytest.raises(GraphError) as e:
        y.sum().backward()
    assert ran in str(e.value) and wrote in str(e.value) and "Exp" in str(e.value) and "clone()" in str(e.value)
