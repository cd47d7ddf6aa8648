"""Hooks that run when a leaf has its whole gradient: once each, as early as can be, whatever walk is taken."""

import numpy as np
import pytest

import minigrad as mg
from minigrad.errors import GraphError, HookError


def chain(n=5):
    """n layers, the first of them used once more at the end."""
    mg.manual_seed(0)
    return [mg.randn(3, 3, dtype=mg.float64).requires_grad_() for _ in range(n)]


def forward(ws, x):
    for w in ws:
        x = (x @ w).tanh()
    return (x @ ws[0]).sum()


X = np.linspace(-1, 1, 6).reshape(2, 3)
WALKS = {
    "plain": lambda loss, ws: loss.backward(),
    "graph kept": lambda loss, ws: loss.backward(retain_graph=True),
    "second order": lambda loss, ws: loss.backward(create_graph=True),
    "inputs": lambda loss, ws: loss.backward(inputs=ws),
    "profiled": lambda loss, ws: profiled(loss),
    "anomaly": lambda loss, ws: anomaly(loss),
    "deferred": lambda loss, ws: [work() for work in mg.autograd.backward(loss, defer=ws)],
}


def profiled(loss):
    with mg.profile():
        loss.backward()


def anomaly(loss):
    with mg.autograd.detect_anomaly():
        loss.backward()


def test_each_walk_gives_the_same_gradients():
    want = chain()
    forward(want, mg.tensor(X)).backward()
    for name, walk in WALKS.items():
        ws = chain()
        walk(forward(ws, mg.tensor(X)), ws)
        assert all(np.array_equal(w.grad.detach().numpy(), v.grad.numpy()) for w, v in zip(ws, want)), name


@pytest.mark.parametrize("name", WALKS)
def test_each_leaf_is_told_once_with_its_whole_gradient_in_order_of_completion(name):
    want = chain()
    forward(want, mg.tensor(X)).backward()
    ws, seen = chain(), []
    for k, w in enumerate(ws):
        w.register_post_accumulate_grad_hook(lambda w, k=k: seen.append((k, w.grad.detach().clone())))
    WALKS[name](forward(ws, mg.tensor(X)), ws)
    assert [k for k, _ in seen] == [4, 3, 2, 1, 0]            # the first layer's is whole last of all
    assert all(np.array_equal(g.numpy(), want[k].grad.numpy()) for k, g in seen)


def test_it_comes_before_the_rest_of_the_walk():
    ws, order = chain(3), []
    x = mg.tensor(X)
    for k, w in enumerate(ws[1:], 1):
        w.register_post_accumulate_grad_hook(lambda _, k=k: order.append(f"leaf {k}"))
    for k, w in enumerate(ws):
        x = (x @ w).tanh()
        x.register_hook(lambda g, k=k: order.append(f"value {k}"))
    x.sum().backward()
    assert order == ["value 2", "leaf 2", "value 1", "leaf 1", "value 0"]


def test_a_step_within_backward_equals_one_after_it():
    inside, after = chain(), chain()
    for w in inside:
        w.register_post_accumulate_grad_hook(lambda w: (w.sub_(w.grad * 0.1), setattr(w, "grad", None)) and None)
    forward(inside, mg.tensor(X)).backward()
    forward(after, mg.tensor(X)).backward()
    with mg.no_grad():
        for w in after:
            w.sub_(w.grad * 0.1)
    assert all(np.array_equal(a.detach().numpy(), b.detach().numpy()) for a, b in zip(inside, after))
    assert all(w.grad is None for w in inside)


def test_gradients_accumulate_and_hooks_on_the_gradient_come_first():
    w, seen = mg.tensor([2.0], requires_grad=True), []
    w.register_hook(lambda g: g * 10)
    w.register_post_accumulate_grad_hook(lambda w: seen.append(w.grad.tolist()))
    (w * 3).backward()
    (w * 1 + w * 2).backward()
    assert seen == [[30.0], [60.0]]


def test_nothing_is_said_of_a_leaf_that_took_no_part_or_of_a_gradient_asked_for():
    a, b, seen = mg.tensor([1.0], requires_grad=True), mg.tensor([1.0], requires_grad=True), []
    for leaf in (a, b):
        leaf.register_post_accumulate_grad_hook(seen.append)
    (a * 2).backward()
    mg.autograd.grad(b * 2, b)
    (a * b).backward(inputs=[b])
    assert len(seen) == 2 and seen[0] is a and seen[1] is b


def test_a_loss_that_is_a_leaf():
    a, seen = mg.tensor(1.0, requires_grad=True), []
    a.register_post_accumulate_grad_hook(lambda a: seen.append(a.grad.item()))
    mg.autograd.backward([a, a * 3])
    assert seen == [4.0]


def test_removed_hooks_are_silent_and_it_records_nothing():
    a, seen = mg.tensor([1.0], requires_grad=True), []
    handle = a.register_post_accumulate_grad_hook(lambda a: seen.append((a.grad * a).requires_grad))
    (a * 2).backward()
    handle.remove()
    handle.remove()
    (a * 2).backward()
    assert seen == [False]


def test_what_is_refused():
    a = mg.tensor([1.0], requires_grad=True)
    with pytest.raises(GraphError, match="made by an operation"):
        (a * 2).register_post_accumulate_grad_hook(print)
    with pytest.raises(GraphError, match="requires none"):
        mg.tensor([1.0]).register_post_accumulate_grad_hook(print)
    a.register_post_accumulate_grad_hook(lambda a: a.grad)
    with pytest.raises(HookError, match="returns None"):
        (a * 2).backward()


def test_rows_and_checkpoints_and_trees():
    table = mg.nn.Embedding(5, 2, sparse=True)
    seen = []
    table.weight.register_post_accumulate_grad_hook(lambda w: seen.append(type(w.grad).__name__))
    table(mg.tensor([1, 3, 1])).sum().backward()
    assert seen == ["Rows"]
    ws, order = chain(), []
    for k, w in enumerate(ws):
        w.register_post_accumulate_grad_hook(lambda w, k=k: order.append(k))
    mg.utils.checkpoint.checkpoint(lambda x: forward(ws, x), mg.tensor(X, requires_grad=True)).backward()
    assert sorted(order) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", WALKS)
def test_what_hooks_queue_runs_once_all_gradients_are_there(name):
    ws, seen = chain(), []
    end = lambda: seen.append([w.grad is not None for w in ws])
    ws[-1].register_hook(lambda g: mg.autograd.queue_callback(end))
    WALKS[name](forward(ws, mg.tensor(X)), ws) if name != "deferred" else forward(ws, mg.tensor(X)).backward()
    assert seen == [[True] * 5]


def test_what_is_queued_may_queue_more_and_waits_for_the_outer_backward():
    a, seen = mg.tensor([1.0], requires_grad=True), []
    queue = mg.autograd.queue_callback

    def inner(g):
        queue(lambda: (seen.append("first"), queue(lambda: seen.append("second"))))
        b = mg.tensor([1.0], requires_grad=True)
        b.register_hook(lambda g: queue(lambda: seen.append("of the inner")))
        with mg.enable_grad():
            (b * 2).backward()
        seen.append("inner is over")
    a.register_hook(inner)
    (a * 2).backward()
    assert seen == ["inner is over", "first", "of the inner", "second"]


def test_nothing_is_queued_without_a_backward_nor_left_by_one_that_raised():
    a, seen = mg.tensor([1.0], requires_grad=True), []
    with pytest.raises(GraphError, match="no backward is running"):
        mg.autograd.queue_callback(print)
    handle = a.register_hook(lambda g: (mg.autograd.queue_callback(lambda: seen.append(1)), 1 / 0))
    with pytest.raises(ZeroDivisionError):
        (a * 2).backward()
    handle.remove()
    (a * 2).backward()
    assert seen == []
    with pytest.raises(GraphError, match="no backward is running"):
        mg.autograd.queue_callback(print)


def test_what_a_checkpoint_runs_again_knows_of_the_backward_around_it():
    seen = []

    def function(x):
        try:
            mg.autograd.queue_callback(lambda: seen.append("at the end"))
        except GraphError:
            seen.append("forward")
        return x * x
    mg.utils.checkpoint.checkpoint(function, mg.tensor([2.0], requires_grad=True)).backward()
    assert seen == ["forward", "at the end"]
