"""Optimisers and schedules: each step equals the published formula, written here in NumPy; resuming changes nothing."""

import copy
import io
import math
import pickle

import numpy as np
import pytest

import minigrad as mg
from minigrad import nn, optim
from minigrad.optim import blocks, lr_scheduler as L

KINDS = {
    "sgd": (optim.SGD, dict(lr=0.1)),
    "momentum": (optim.SGD, dict(lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.1)),
    "nesterov": (optim.SGD, dict(lr=0.1, momentum=0.9, nesterov=True, maximize=True)),
    "adam": (optim.Adam, dict(lr=0.1, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.1)),
    "amsgrad": (optim.Adam, dict(lr=0.1, amsgrad=True, maximize=True)),
    "adamw": (optim.AdamW, dict(lr=0.1, weight_decay=0.1)),
    "rmsprop": (optim.RMSprop, dict(lr=0.1, alpha=0.9, momentum=0.5, weight_decay=0.1)),
    "centered": (optim.RMSprop, dict(lr=0.1, centered=True, eps=0.1)),
    "adagrad": (optim.Adagrad, dict(lr=0.1, lr_decay=0.2, initial_accumulator_value=0.3)),
}


def reference(kind, x, gradients):
    """x after one step per gradient, by the papers' formulas in float64."""
    cls, given = KINDS[kind]
    o = {**dict(momentum=0.0, dampening=0, weight_decay=0.01 if cls is optim.AdamW else 0), **given}
    m = v = top = np.zeros_like(x)
    b1, b2 = o.get("betas", (0.9, 0.999))
    for t, g in enumerate(gradients, 1):
        g = -g if o.get("maximize") else g
        if cls is optim.AdamW:
            x = x * (1 - o["lr"] * o["weight_decay"])
        else:
            g = g + o["weight_decay"] * x
        if cls is optim.SGD:
            m = g if t == 1 else o["momentum"] * m + (1 - o["dampening"]) * g
            x = x - o["lr"] * (g + o["momentum"] * m if o.get("nesterov") else m if o["momentum"] else g)
            continue
        if cls is optim.Adagrad:
            v = v + g * g + (0.3 if t == 1 else 0)
            x = x - o["lr"] / (1 + (t - 1) * o["lr_decay"]) * g / (np.sqrt(v) + 1e-10)
            continue
        if cls is optim.RMSprop:
            a = o.get("alpha", 0.99)
            v, top = a * v + (1 - a) * g * g, a * top + (1 - a) * g
            second = v - top**2 if o.get("centered") else v
            m = o.get("momentum", 0) * m + g / (np.sqrt(second) + o.get("eps", 1e-8))
            x = x - o["lr"] * m
            continue
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        top = np.maximum(top, v)
        second = (top if o.get("amsgrad") else v) / (1 - b2**t)
        x = x - o["lr"] * (m / (1 - b1**t)) / (np.sqrt(second) + o.get("eps", 1e-8))
    return x


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


def test_a_state_for_other_parameters_is_refused():
    two = optim.SGD([mg.zeros(1, requires_grad=True), mg.zeros(1, requires_grad=True)], 0.1)
    with pytest.raises(ValueError, match=r"groups of \[2\]"):
        optim.SGD(P, 0.1).load_state_dict(two.state_dict())


def test_a_gradient_of_another_shape_is_refused():
    p = mg.zeros(2, requires_grad=True)
    p.grad = mg.zeros(3)
    with pytest.raises(ValueError, match="gradient of shape"):
        optim.SGD([p], 0.1).step()


# ---- schedules -----------------------------------------------------------------------------------

SCHEDULES = {
    "step": (lambda o: L.StepLR(o, 3, 0.5), lambda t: 0.5 ** (t // 3)),
    "multi": (lambda o: L.MultiStepLR(o, [2, 5, 5], 0.1), lambda t: 0.1 ** ((t >= 2) + 2 * (t >= 5))),
    "exponential": (lambda o: L.ExponentialLR(o, 0.9), lambda t: 0.9**t),
    "cosine": (lambda o: L.CosineAnnealingLR(o, 6, 0.1), lambda t: 0.1 + 0.9 * (1 + math.cos(math.pi * t / 6)) / 2),
    "lambda": (lambda o: L.LambdaLR(o, lambda t: 1 / (1 + t)), lambda t: 1 / (1 + t)),
}


def rates(make, steps, resume_after=None):
    optimiser = optim.SGD([mg.zeros(1, requires_grad=True)], lr=1.0)
    schedule = make(optimiser)
    found = [optimiser.param_groups[0]["lr"]]
    for k in range(steps):
        if k == resume_after:
            state = optimiser.state_dict(), schedule.state_dict()
            optimiser = optim.SGD([mg.zeros(1, requires_grad=True)], lr=7.0)
            optimiser.load_state_dict(state[0])
            schedule = make(optimiser)
            schedule.load_state_dict(state[1])
        optimiser.step()
        schedule.step()
        found.append(optimiser.param_groups[0]["lr"])
        assert schedule.get_last_lr() == [found[-1]]
    return found


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_equals_its_closed_form(name):
    make, closed = SCHEDULES[name]
    np.testing.assert_allclose(rates(make, 14), [closed(t) for t in range(15)], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_resumed_schedule_goes_on_as_before(name):
    make, _ = SCHEDULES[name]
    assert rates(make, 9, resume_after=4) == rates(make, 9)


def test_schedules_chain_and_keep_a_rate_changed_by_hand():
    optimiser = optim.SGD([mg.zeros(1, requires_grad=True)], lr=1.0)
    both = [L.ExponentialLR(optimiser, 0.5), L.StepLR(optimiser, 1, 0.1)]
    for schedule in both:
        schedule.step()
    assert optimiser.param_groups[0]["lr"] == pytest.approx(0.05)
    optimiser.param_groups[0]["lr"] = 8.0
    both[0].step()
    assert optimiser.param_groups[0]["lr"] == 4.0
