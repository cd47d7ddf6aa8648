"""MoE: the gathered form equals a loop over tokens, at every capacity; the gate, the loss and the gradients."""

import math

import numpy as np
import pytest

import minigrad as mg
import minigrad.nn.functional as F
from minigrad import nn

RNG = np.random.default_rng(0)
CASES = [(1, None), (2, None), (3, None), (1, 1.0), (2, 1.0), (2, 0.3), (1, 0.01), (2, 4.0)]


def layer(k, capacity_factor, experts=5, seed=1):
    mg.manual_seed(seed)
    return nn.MoE(4, 6, experts, k, capacity_factor, activation=F.gelu).double()


def drawn(*shape):
    return mg.tensor(RNG.standard_normal(shape), requires_grad=True)


def token_by_token(m, x):
    """Token after token, all first choices before the second ones; an expert that is full gives nothing."""
    n = x.shape[0]
    p = (x @ m.gate.weight.mT).softmax(-1)
    most = n * m.k if m.capacity_factor is None else math.ceil(m.capacity_factor * m.k * n / m.n_experts)
    room = [most] * m.n_experts
    order = np.argsort(-p.detach().numpy(), -1, kind="stable")[:, : m.k]
    y, dropped = [mg.zeros(4, dtype=mg.float64) for _ in range(n)], 0
    for choice in range(m.k):
        for i in range(n):
            e = int(order[i, choice])
            if not room[e]:
                dropped += 1
                continue
            room[e] -= 1
            gate = p[i, e] / (sum(p[i, int(j)] for j in order[i]) if m.k > 1 else 1)
            hidden = F.gelu(m.w1[e] @ x[i] + m.b1[e, 0])
            y[i] = y[i] + gate * (m.w2[e] @ hidden + m.b2[e, 0])
    share = np.bincount(order.ravel(), minlength=m.n_experts) / (n * m.k)
    return mg.stack(y), m.n_experts * (p.mean(0) * mg.tensor(share)).sum(), dropped


@pytest.mark.parametrize(("k", "capacity_factor"), CASES)
def test_gathered_equals_token_by_token(k, capacity_factor):
    m, x = layer(k, capacity_factor), drawn(9, 4)
    g, parameters = mg.tensor(RNG.standard_normal((9, 4))), list(m.parameters())
    got, loss = m(x)
    want, balance, dropped = token_by_token(m, x)
    np.testing.assert_allclose(got.detach(), want.detach(), rtol=1e-12, atol=1e-14)
    assert loss.item() == pytest.approx(balance.item(), rel=1e-12)
    assert int((~m.route(x).kept).sum().item()) == dropped and (dropped > 0) == (capacity_factor in (0.3, 0.01, 1.0))
    leaves = [x, *parameters]
    a = mg.autograd.grad([got, loss], leaves, [g, mg.tensor(0.7, dtype=mg.float64)])
    b = mg.autograd.grad([want, balance], leaves, [g, mg.tensor(0.7, dtype=mg.float64)], materialize_grads=True)
    for u, v in zip(a, b):
        np.testing.assert_allclose(u, v, rtol=1e-10, atol=1e-13)


def test_central_differences():
    m = layer(2, 1.0)
    assert mg.gradcheck(lambda x: m(x), [drawn(2, 3, 4)])


def test_an_expert_that_nobody_visits_has_a_gradient_of_zero():
    m = layer(1, None)
    with mg.no_grad():
        m.gate.weight.fill_(0.0)
        m.gate.weight[2] = 10.0
    x = drawn(6, 4)
    with mg.no_grad():
        x.abs_()
    y, loss = m(x)
    assert m.route(x).experts.flatten().tolist() == [2] * 6 and loss.item() == pytest.approx(5, rel=1e-3)
    y.sum().backward()
    visited = np.abs(m.w1.grad.numpy()).max((1, 2)) > 0
    assert visited.tolist() == [False, False, True, False, False]


def test_the_loss_is_one_when_balanced_and_a_dropped_token_passes_by():
    m = layer(1, 0.2)
    with mg.no_grad():
        m.gate.weight.fill_(0.0)
    x = drawn(10, 4)
    y, loss = m(x)
    assert loss.item() == pytest.approx(1)
    assert (np.abs((x + y - x).detach().numpy()).max(-1) > 0).sum() == 1  # one seat each, and all went to one expert


@pytest.mark.parametrize("shape", [(4,), (0, 4), (2, 0, 4), (2, 3, 4)], ids=str)
def test_shapes(shape):
    for capacity_factor in (1.0, None):
        y, loss = layer(2, capacity_factor)(mg.zeros(*shape, dtype=mg.float64))
        assert y.shape == shape and loss.shape == ()


def test_what_is_refused():
    for wrong, text in (({"k": 6}, "exceeds"), ({"k": 0}, "at least 1"), ({"capacity_factor": 0.0}, "above 0")):
        with pytest.raises(ValueError, match=text):
            nn.MoE(4, 6, 5, **wrong)
    with pytest.raises(ValueError, match=r"expected \(…, 4\)"):
        layer(1, None)(mg.zeros(3, 5))


def test_no_tokens_leave_nothing_to_balance():
    y, balance = nn.MoE(4, 8, 3)(mg.ones(0, 4))
    assert y.shape == (0, 4) and balance.item() == 0
