"""Gradients over several small batches, and gradients pruned to their largest elements."""

import numpy as np
import pytest

import minigrad as mg
from minigrad import nn, optim
from minigrad.nn import functional as F
from minigrad.nn.utils import TopKGradient, prune_gradient_

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((10, 3)), RNG.standard_normal((10, 1))


def weights(every, sizes, batches, scaler=None, before=None):
    """Weights after one pass in small batches of the given sizes."""
    w = mg.zeros(3, 1, dtype=mg.float64, requires_grad=True)
    acc = optim.Accumulate(optim.SGD([w], lr=0.1), every, scaler=scaler, before_step=before and (lambda: before(w)))
    steps, at = 0, 0
    for n in sizes:
        x, y = mg.tensor(X[at:at + n]), mg.tensor(Y[at:at + n])
        steps += acc.backward(F.mse_loss(x @ w, y), weight=n)
        at += n
    steps += acc.step()
    assert steps == batches and not acc.step() and w.grad is None
    return w.detach().numpy()


@pytest.mark.parametrize("scaler", [None, mg.GradScaler(init_scale=2.0**8)], ids=["plain", "scaled"])
def test_small_batches_are_the_large_one(scaler):
    want = weights(1, [6, 4], 2)
    np.testing.assert_allclose(weights(3, [2, 1, 3, 4], 2, scaler), want, rtol=1e-12)      # the last group is smaller
    np.testing.assert_allclose(weights(4, [1, 2, 3, 4], 1, scaler), weights(1, [10], 1), rtol=1e-12)


def test_clipping_sees_the_finished_gradient():
    norms = []
    clip = lambda w: norms.append(nn.utils.clip_grad_norm_([w], 0.1).item())  # noqa: E731
    want = weights(1, [10], 1, before=clip)
    np.testing.assert_allclose(weights(5, [2] * 5, 1, before=clip, scaler=mg.GradScaler()), want, rtol=1e-12)
    np.testing.assert_allclose(norms[0], norms[1])
    with pytest.raises(ValueError, match="every"):
        optim.Accumulate(optim.SGD([mg.ones(1, requires_grad=True)]), 0)


def test_an_accumulated_table_stays_sparse():
    w = mg.zeros(5, 2, requires_grad=True)
    acc = optim.Accumulate(optim.SGD([w], lr=1.0), 2)
    for n in (1, 1):
        acc.backward(F.embedding(mg.tensor([n, 3]), w, sparse=True).sum())
    assert w.detach().tolist() == [[0, 0], [-1, -1], [0, 0], [-1, -1], [0, 0]]


@pytest.mark.parametrize("device", ["cpu", "sim:0"])
@pytest.mark.parametrize("amount, kept", [(0.75, 3), (0.0, 12), (0.99, 1), (10, 2), (0, 12), (50, 1)])
def test_the_largest_stay(amount, kept, device):
    values = RNG.permutation(np.arange(1.0, 13.0)).reshape(3, 4) * RNG.choice([-1, 1], (3, 4))
    x = mg.zeros(3, 4, device=device, dtype=mg.float64, requires_grad=True)
    with prune_gradient_(x, amount):
        (x * mg.tensor(values).to(device)).sum().backward()
    got = x.grad.cpu().numpy()
    want = np.where(np.abs(values) > 12 - kept, values, 0)
    np.testing.assert_array_equal(got, want)
    x.grad = None
    (x * mg.tensor(values).to(device)).sum().backward()
    np.testing.assert_array_equal(x.grad.cpu().numpy(), values)


def test_feedback_loses_nothing():
    """Sum of what was handed on and what is left = sum of all gradients (Aji & Heafield 2017)."""
    x = mg.zeros(8, dtype=mg.float64, requires_grad=True)
    hook = TopKGradient(0.75, feedback=True)
    x.register_hook(hook)
    total = np.zeros(8)
    for _ in range(20):
        g = RNG.standard_normal(8)
        total += g
        before = 0 if x.grad is None else x.grad.numpy().copy()
        (x * mg.tensor(g)).sum().backward()
        assert np.count_nonzero(x.grad.numpy() - before) == 2
    np.testing.assert_allclose(x.grad.numpy() + hook.rest.numpy(), total)


def test_pruning_is_differentiable_and_refuses_nonsense():
    x = mg.tensor([1.0, 2.0, 3.0], requires_grad=True)
    with prune_gradient_([x], 2):
        (g,) = mg.autograd.grad((x**3).sum(), x, create_graph=True)
        assert g.tolist() == [0, 0, 27]
    (h,) = mg.autograd.grad(g.sum(), x)
    assert h.tolist() == [0, 0, 18]
    for amount in (-1, 1.0, True, 1.5):
        with pytest.raises(ValueError, match="amount"):
            TopKGradient(amount)
    with pytest.raises(RuntimeError, match="leaf"):
        prune_gradient_(x * 2, 0.5)


def gradients(accumulated, parts):
    """Of a net with dropout over parts of a batch: accumulated, or each alone and added afterwards in order."""
    mg.manual_seed(0)
    net, sums, seen = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1)), None, []
    x, y = mg.tensor(X, dtype=mg.float32), mg.tensor(Y, dtype=mg.float32)
    note = lambda: seen.extend(p.grad.numpy().copy() for p in net.parameters())  # noqa: E731
    acc = optim.Accumulate(optim.SGD(net.parameters(), lr=0.1), len(parts), before_step=note)
    for a, b in parts:
        loss = F.mse_loss(net(x[a:b]), y[a:b])
        if accumulated:
            acc.backward(loss, weight=b - a)
            continue
        net.zero_grad()
        (loss * float(b - a)).backward()
        found = [p.grad.numpy().copy() for p in net.parameters()]
        sums = found if sums is None else [s + g for s, g in zip(sums, found)]
    return seen if accumulated else [s / np.float32(len(X)) for s in sums]


def test_accumulated_gradients_are_bit_for_bit_the_sum_of_those_of_the_parts():
    parts = [(0, 3), (3, 4), (4, 8), (8, 10)]
    for a, b in zip(gradients(True, parts), gradients(False, parts), strict=True):
        assert np.array_equal(a, b)


def test_where_arithmetic_is_exact_they_are_bit_for_bit_those_of_the_large_batch():
    whole = RNG.integers(-8, 8, (8, 3)).astype(np.float32)
    w = mg.tensor(np.array([[1.0], [2.0], [-3.0]], np.float32), requires_grad=True)
    found = []
    acc = optim.Accumulate(optim.SGD([w], lr=0.0), 4, before_step=lambda: found.append(w.grad.numpy().copy()))
    for k in range(0, 8, 2):
        acc.backward(((mg.tensor(whole[k:k + 2]) @ w) ** 2).mean(), weight=2)
    ((mg.tensor(whole) @ w) ** 2).mean().backward()
    assert np.array_equal(found[0], w.grad.numpy())
