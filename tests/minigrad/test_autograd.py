"""Backward: order, accumulation, refusals, choosing inputs, higher derivatives, places.

Gradients are checked with non-unit upstream ones.
"""

import sys

import numpy as np
import pytest

import minigrad as mg
from minigrad.errors import GraphError, ShapeError


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
    assert x.grad.tolist() == [39.0]  # 3 (3 x² + 1)


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
        for got, want in zip(mg.autograd.grad(y, xs, mg.tensor(g), materialize_grads=True), dy):
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


@pytest.mark.parametrize(
    "bad, error, words",
    [
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
    ],
)
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
    (g,) = mg.autograd.grad((w * x * x).sum(), x, create_graph=True)  # 2 w x
    (g * g).sum().backward()  # 4 w² x²
    assert w.grad.item() == 8 * 3 * 4 and x.grad.item() == 8 * 9 * 2


def test_plain_backward_leaves_no_history_and_create_graph_does():
    x = leaf(2.0)
    (x * x).sum().backward()
    assert not x.grad.requires_grad
    x.grad = None
    (x * x).sum().backward(create_graph=True)
    assert x.grad.requires_grad


# -- conventions, where a function has a corner

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "f, at, want",
    [
        (lambda x: x.relu(), [-0.0, 0.0, 1.0, NAN], [0, 0, 1, 1]),  # A027
        (lambda x: x.abs(), [-0.0, 0.0, -2.0], [0, 0, -1]),
        (lambda x: x.sign(), [0.0, 2.0], [0, 0]),
        (lambda x: mg.maximum(x, mg.tensor([4.0, 2.0, 9.0], dtype=mg.float64)), [4.0, 5.0, 3.0], [0.5, 1, 0]),  # A024
        (lambda x: mg.minimum(x, mg.tensor([4.0, 2.0, 9.0], dtype=mg.float64)), [4.0, 5.0, 3.0], [0.5, 0, 1]),
        (lambda x: x.amax(), [1.0, 3.0, 3.0], [0, 0.5, 0.5]),
        (lambda x: x.max(0)[0], [1.0, 3.0, 3.0], [0, 1, 0]),
        (lambda x: x.clamp(0, 1), [-1.0, 0.0, 0.5, 1.0, 2.0], [0, 1, 1, 1, 0]),  # A026
        (lambda x: x.norm(), [0.0, 0.0], [0, 0]),
        (lambda x: x**2, [0.0], [0]),
        (lambda x: x**0, [0.0, 2.0], [0, 0]),
        (lambda x: x.var(), [2.0, 2.0, 2.0], [0, 0, 0]),  # A035
        (lambda x: mg.where(x > 0, x, NAN), [1.0, 2.0], [1, 1]),  # A022
        (lambda x: mg.logsumexp(x, 0), [-INF, 1.0], [0, 1]),  # A036
        (lambda x: mg.softmax(x, 0)[0], [1e4, 0.0], [0, 0]),
    ],
)
def test_gradients_at_corners(f, at, want):
    x = leaf(*at)
    (f(x) * 3).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 3 * np.array(want), atol=1e-12)


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


def test_deferred_work_notices_a_write():
    x, w = leaf(3.0), leaf(2.0)
    h = x.exp()
    work = (h * w).sum().backward(defer=[w])
    with mg.no_grad():
        h.zero_()
    with pytest.raises(GraphError, match="changed in place"):
        work[0]()


# -- places


def composite(x):
    return mg.nn.functional.cross_entropy(x.reshape(1, -1), mg.tensor([0]))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x * 2,
        lambda x: 2 - x,
        lambda x: x.exp(),
        lambda x: mg.softmax(x, 0),
        lambda x: x.log_softmax(0),
        lambda x: x.norm(),
        lambda x: x.clamp(0, 1),
        lambda x: x[0],
        lambda x: x[[0, 1]],
        lambda x: x.reshape(2, 1),
        lambda x: mg.cat([x, x]),
        lambda x: x @ x,
        lambda x: mg.logsumexp(x, 0),
        lambda x: x.max(0)[0],
        lambda x: mg.where(x > 0, x, 0),
        lambda x: x.var(),
        composite,
        lambda x: mg.nn.functional.linear(x, mg.ones(3, 2, dtype=mg.float64)),
        lambda x: mg.nn.Sequential(mg.nn.Tanh())(x),
    ],
)
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


def test_backward_into_no_inputs_is_refused():
    with pytest.raises(GraphError, match="inputs is empty"):
        leaf(1.0).sum().backward(inputs=[])
