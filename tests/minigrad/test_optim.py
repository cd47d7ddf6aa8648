"""Optimisers: each step equals the published formula, which `optim_formulas.py` writes in NumPy; resuming changes
nothing."""

import copy
import io
import pickle

import numpy as np
import pytest

import minigrad as mg
from minigrad import nn, optim
from minigrad.optim import blocks, lr_scheduler as L
from tests.minigrad.optim_formulas import KINDS, reference


def stepped(kind, x, gradients, device="cpu", dtype=mg.float64):
    cls, options = KINDS[kind]
    p = mg.tensor(x, dtype=dtype).to(device).requires_grad_()
    optimiser = cls([p], **options)
    for g in gradients:
        p.grad = mg.tensor(g, dtype=dtype).to(device)
        optimiser.step()
    return p.detach()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(), (3, 4), (0, 2), (3, 7)], ids=str)
def test_steps_equal_the_formula(kind, shape, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", 15)  # so that the last shape goes in pieces
    rng = np.random.default_rng(0)
    x, gradients = rng.standard_normal(shape), rng.standard_normal((5, *shape))
    got = stepped(kind, x, gradients).numpy()
    np.testing.assert_allclose(got, reference(kind, x, gradients), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", KINDS)
def test_float32_stays_float32_and_near(kind):
    rng = np.random.default_rng(1)
    x, gradients = rng.standard_normal(50), rng.standard_normal((50, 50))
    got = stepped(kind, x, gradients, dtype=mg.float32)
    assert got.dtype == mg.float32
    # 50 steps, each rounded a few times at 6e-8 of values around 1
    np.testing.assert_allclose(got.numpy(), reference(kind, x, gradients), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_sim_equals_cpu(kind):
    rng = np.random.default_rng(2)
    x, gradients = rng.standard_normal((3, 2)), rng.standard_normal((4, 3, 2))
    here, there = (stepped(kind, x, gradients, d, mg.float32) for d in ("cpu", "sim:0"))
    np.testing.assert_array_equal(there.cpu().numpy(), here.numpy())


def test_a_parameter_that_lies_otherwise_in_memory_is_updated_the_same(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", 15)
    rng = np.random.default_rng(3)
    x, g = rng.standard_normal((2, 20, 20))
    for kind in KINDS:
        cls, options = KINDS[kind]
        turned = mg.from_numpy(x.T.copy()).t().detach().requires_grad_()
        optimiser = cls([turned], **options)
        turned.grad = mg.tensor(g)
        optimiser.step()
        np.testing.assert_array_equal(turned.detach().numpy(), stepped(kind, x, [g]).numpy())


# ---- resuming ------------------------------------------------------------------------------------


def trained(steps, kind, resume_after=None, through=copy.deepcopy):
    """Parameters after `steps`; `resume_after`: the whole state goes through `through` into new objects."""
    cls, options = KINDS[kind]

    def made():
        mg.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        optimiser = cls(net.parameters(), **options)
        return net, optimiser, L.CosineAnnealingLR(optimiser, 5)

    net, optimiser, schedule = made()
    x, y = mg.randn(6, 3), mg.randint(2, (6,))
    for k in range(steps):
        if k == resume_after:
            state = through([each.state_dict() for each in (net, optimiser, schedule)])
            net, optimiser, schedule = made()
            for each, s in zip((net, optimiser, schedule), state):
                each.load_state_dict(s)
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()
        schedule.step()
    return [p.detach().numpy() for p in net.parameters()]


def through_a_file(state):
    file = io.BytesIO()
    mg.save(state, file)
    file.seek(0)
    return mg.load(file)


@pytest.mark.parametrize("after", [0, 1, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_is_bit_equal(kind, after):
    through = [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s)), through_a_file][after % 3]
    for a, b in zip(trained(7, kind), trained(7, kind, after, through)):
        np.testing.assert_array_equal(a, b)


def test_the_state_has_pytorchs_names_and_numbers():
    net = nn.Linear(2, 1)
    optimiser = optim.Adam(net.parameters(), lr=0.5)
    assert optimiser.state_dict()["state"] == {}
    net(mg.ones(1, 2)).sum().backward()
    optimiser.step()
    state = optimiser.state_dict()
    assert state["param_groups"][0]["params"] == [0, 1]
    assert {k for k in state["state"][0]} == {"step", "exp_avg", "exp_avg_sq"}
    assert state["state"][1]["step"] == 1


def test_a_copied_optimiser_steps_its_own_parameters():
    p = mg.tensor([1.0], requires_grad=True)
    optimiser = optim.SGD([p], lr=1.0, momentum=0.5)
    both = copy.deepcopy([p, optimiser])
    q = both[1].param_groups[0]["params"][0]
    assert q is both[0]
    q.grad = mg.ones(1)
    both[1].step()
    assert (p.item(), q.item()) == (1.0, 0.0)


# ---- what a step does and does not do ------------------------------------------------------------


def test_no_gradient_no_change_but_zeros_count():
    p = mg.tensor([1.0], requires_grad=True)
    optimiser = optim.SGD([p], lr=0.1, momentum=0.5, weight_decay=1.0)
    p.grad = mg.ones(1)
    optimiser.step()
    optimiser.zero_grad()
    optimiser.step()
    assert p.grad is None and np.isclose(p.item(), 0.8)
    p.grad = mg.ones(1)
    optimiser.zero_grad(set_to_none=False)
    assert p.grad.item() == 0
    optimiser.step()
    assert np.isclose(p.item(), 0.8 - 0.1 * (0.5 * 2.0 + 0.8))


def test_the_gradient_is_left_as_it_was():
    for kind in KINDS:
        p = mg.tensor([1.0, 2.0], requires_grad=True)
        optimiser = KINDS[kind][0]([p], **KINDS[kind][1])
        for _ in range(2):
            p.grad = mg.tensor([3.0, 4.0])
            optimiser.step()
            assert p.grad.tolist() == [3.0, 4.0]


def test_a_step_makes_older_graphs_stale():
    p = mg.tensor([2.0], requires_grad=True)
    y = (p * p).sum()
    p.grad = mg.ones(1)
    optim.SGD([p], lr=0.1).step()
    with pytest.raises(RuntimeError, match="changed in place"):
        y.backward()


def test_a_closure_computes_the_loss_with_gradients():
    p = mg.tensor([2.0], requires_grad=True)
    optimiser = optim.SGD([p], lr=0.25)

    def closure():
        optimiser.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    with mg.no_grad():
        loss = optimiser.step(closure)
    assert (loss.item(), p.item()) == (4.0, 1.0)


def test_groups_have_options_of_their_own():
    a, b = mg.tensor([1.0], requires_grad=True), mg.tensor([1.0], requires_grad=True)
    optimiser = optim.SGD([{"params": a}, {"params": [b], "lr": 0.5}], lr=0.1)
    c = mg.tensor([1.0], requires_grad=True)
    optimiser.add_param_group({"params": c, "weight_decay": 1.0})
    for p in (a, b, c):
        p.grad = mg.ones(1)
    optimiser.step()
    np.testing.assert_allclose([a.item(), b.item(), c.item()], [0.9, 0.5, 0.8])


def test_meta_parameters_get_their_state_but_no_values():
    net = nn.Linear(3, 2, device="meta")
    optimiser = optim.Adam(net.parameters())
    net(mg.zeros(4, 3, device="meta")).sum().backward()
    optimiser.step()
    assert optimiser.state[net.weight]["exp_avg"].shape == (2, 3)


P = [mg.tensor([1.0], requires_grad=True)]
WRONG = {
    "negative lr": (lambda: optim.SGD(P, lr=-1), ValueError, "lr = -1"),
    "lr a tensor": (lambda: optim.Adam(P, lr=mg.tensor(0.1)), ValueError, "lr"),
    "rho above 1": (lambda: optim.Adadelta(P, rho=1.5), ValueError, "rho"),
    "etas that do not shrink": (lambda: optim.Rprop(P, etas=(1.0, 1.2)), ValueError, "etas"),
    "negative momentum decay": (lambda: optim.NAdam(P, momentum_decay=-1), ValueError, "momentum_decay"),
    "beta above 1": (lambda: optim.Lion(P, betas=(0.9, 1.5)), ValueError, "betas"),
    "negative trust": (lambda: optim.LARS(P, trust_coefficient=-1), ValueError, "trust_coefficient"),
    "beta of 1": (lambda: optim.Adam(P, betas=(1.0, 0.9)), ValueError, "betas"),
    "negative eps": (lambda: optim.AdamW(P, eps=-1e-8), ValueError, "eps"),
    "nesterov without momentum": (lambda: optim.SGD(P, 0.1, nesterov=True), ValueError, "nesterov"),
    "one tensor": (lambda: optim.SGD(P[0], 0.1), TypeError, "Put it in a list"),
    "an exhausted generator": (lambda: optim.SGD(iter(()), 0.1), ValueError, "generator"),
    "no leaf": (lambda: optim.SGD([P[0] * 2], 0.1), ValueError, "made by an operation"),
    "no tensor": (lambda: optim.SGD([3.0], 0.1), TypeError, "float"),
    "twice": (lambda: optim.SGD([*P, *P], 0.1), ValueError, "twice"),
    "in two groups": (lambda: optim.SGD([{"params": P}, {"params": P}], 0.1), ValueError, "twice"),
    "wrong in a group": (lambda: optim.SGD([{"params": P, "lr": -2}], 0.1), ValueError, "lr = -2"),
    "no params": (lambda: optim.SGD([{"lr": 1}], 0.1), TypeError, "'params'"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_refused(what):
    make, error, words = WRONG[what]
    with pytest.raises(error, match=words):
        make()


def test_what_pytorch_has_for_its_kernels_is_refused():
    for name in ("foreach", "fused", "capturable", "differentiable"):
        with pytest.raises(TypeError, match=name):
            optim.Adam(P, **{name: True})


def test_a_state_for_other_parameters_is_refused():
    two = optim.SGD([mg.zeros(1, requires_grad=True), mg.zeros(1, requires_grad=True)], 0.1)
    with pytest.raises(ValueError, match=r"groups of \[2\]"):
        optim.SGD(P, 0.1).load_state_dict(two.state_dict())


def test_a_gradient_of_another_shape_is_refused():
    p = mg.zeros(2, requires_grad=True)
    p.grad = mg.zeros(3)
    optimiser = optim.Adam([p], 0.1)
    with pytest.raises(ValueError, match="gradient of shape"):
        optimiser.step()
    assert optimiser.state == {}  # as it was before


def test_asgd_averages_from_t0_on():
    p = mg.tensor([0.0], dtype=mg.float64, requires_grad=True)
    optimiser = optim.ASGD([p], lr=1.0, lambd=0.0, t0=2)
    seen = []
    for g in [1.0, 2.0, 3.0, 4.0]:
        p.grad = mg.tensor([-g], dtype=mg.float64)
        optimiser.step()
        seen.append(p.item())
    # mu = 1 up to step t0 + 2, so the mean starts at the third value
    np.testing.assert_allclose(optimiser.state[p]["ax"].item(), seen[3], rtol=1e-12)


@pytest.mark.parametrize("kind", [optim.LARS, optim.LAMB])
def test_a_step_in_proportion_to_the_parameter(kind):
    """Ten times the parameter and any multiple of the gradient: ten times the step (no decay, eps next to nothing)."""
    rng = np.random.default_rng(5)
    x, g = rng.standard_normal((2, 4, 3))
    moved = []
    for size, slope in ((1, 1), (10, 7)):
        p = mg.tensor(size * x, requires_grad=True)
        optimiser = kind([p], lr=0.1, weight_decay=0.0, eps=1e-14)
        p.grad = mg.tensor(slope * g)
        optimiser.step()
        moved.append((p.detach().numpy() - size * x) / size)
    np.testing.assert_allclose(moved[1], moved[0], rtol=1e-9)


@pytest.mark.parametrize("kind", [optim.LARS, optim.LAMB])
def test_a_parameter_of_zeros_moves_too(kind):
    p = mg.zeros(3, requires_grad=True)
    optimiser = kind([p], lr=0.5, weight_decay=0.0)
    p.grad = mg.zeros(3)
    optimiser.step()  # 0 / 0 nowhere
    p.grad = mg.ones(3)
    optimiser.step()
    assert (p.detach().numpy() < -0.1).all()


def test_named_parameters_give_the_group_its_names():
    net = nn.Linear(2, 2)
    named, plain = optim.SGD(net.named_parameters(), lr=0.1), optim.SGD(net.parameters(), lr=0.2)
    assert named.state_dict()["param_groups"][0]["param_names"] == [name for name, _ in net.named_parameters()]
    named.load_state_dict(plain.state_dict())
    assert named.param_groups[0]["param_names"] == ["weight", "bias"] and named.param_groups[0]["lr"] == 0.2
    plain.load_state_dict(named.state_dict())
    assert plain.param_groups[0]["param_names"] == ["weight", "bias"]


def test_names_for_some_parameters_alone_are_refused():
    p, q = (nn.Parameter(mg.ones(1)) for _ in range(2))
    for groups in ([("p", p), q], [{"params": [("p", p)]}, {"params": [q]}]):
        with pytest.raises(ValueError, match="names to all parameters"):
            optim.SGD(groups, lr=0.1)
