"""Schedules: each equals its closed form, goes on as before when resumed, and leaves a rate changed by hand changed."""

import io
import math

import numpy as np
import pytest

import minigrad as mg
from minigrad import optim
from minigrad.optim import lr_scheduler as L, swa_utils


def half_cosine(t, low=0.0, high=1.0):
    return low + (high - low) * (1 + math.cos(math.pi * t)) / 2


def one_cycle(t, total=14, top=5.0):
    """Up to `top` in the first half (steps 0 to 6), from there down to 1 / 1000 of the start."""
    return half_cosine(t / 6, top, top / 10) if t <= 6 else half_cosine((t - 6) / 7, top / 10_000, top)


def triangle(t):
    """Up in 4 steps from 0.1 to 1, down in 2, half as high in the second cycle."""
    cycle, x = divmod(t, 6)
    return 0.1 + 0.9 * (x / 4 if x <= 4 else (6 - x) / 2) / 2**cycle


def restarts(t):
    """Periods of 2, 4, 8: from 1 down to 0.1."""
    for period in (2, 4, 8, 16):
        if t < period:
            return half_cosine(t / period, 0.1)
        t -= period


CLOSED = {
    "step": (lambda o: L.StepLR(o, 3, 0.5), lambda t: 0.5 ** (t // 3)),
    "multi": (lambda o: L.MultiStepLR(o, [2, 5, 5], 0.1), lambda t: 0.1 ** ((t >= 2) + 2 * (t >= 5))),
    "exponential": (lambda o: L.ExponentialLR(o, 0.9), lambda t: 0.9**t),
    "cosine": (lambda o: L.CosineAnnealingLR(o, 6, 0.1), lambda t: half_cosine(t / 6, 0.1)),
    "lambda": (lambda o: L.LambdaLR(o, lambda t: 1 / (1 + t)), lambda t: 1 / (1 + t)),
    "multiplicative": (lambda o: L.MultiplicativeLR(o, lambda t: t), lambda t: math.factorial(t)),
    "constant": (lambda o: L.ConstantLR(o, 0.2, 4), lambda t: 0.2 if t < 4 else 1.0),
    "linear": (lambda o: L.LinearLR(o, 0.2, 0.8, 6), lambda t: 0.2 + 0.6 * min(t, 6) / 6),
    "polynomial": (lambda o: L.PolynomialLR(o, 9, 2.0), lambda t: max(0, 1 - t / 9) ** 2),
    "restarts": (lambda o: L.CosineAnnealingWarmRestarts(o, 2, 2, 0.1), restarts),
    "one cycle": (lambda o: L.OneCycleLR(o, 5.0, 14, pct_start=0.5, div_factor=10, final_div_factor=1e3), one_cycle),
    "triangles": (lambda o: L.CyclicLR(o, 0.1, 1.0, 4, 2, "triangular2"), triangle),
    "warm-up": (
        lambda o: L.warm_up(o, 4, lambda o: L.ExponentialLR(o, 0.5), 0.2),
        lambda t: 0.2 + 0.8 * t / 4 if t <= 4 else 0.5 ** (t - 4),
    ),
    "sequence in a sequence": (
        lambda o: L.SequentialLR(o, [L.ConstantLR(o, 0.5, 99), L.warm_up(o, 4, lambda o: L.StepLR(o, 5))], [3]),
        lambda t: 0.5 if t < 3 else min(1, 0.01 + 0.99 * (t - 3) / 4) if t < 12 else 0.1,
    ),
    "chain": (
        lambda o: L.ChainedScheduler([L.ExponentialLR(o, 0.9), L.ConstantLR(o, 0.1, 3)]),
        lambda t: 0.9**t * (0.1 if t < 3 else 1.0),
    ),
    "swa": (lambda o: swa_utils.SWALR(o, 0.2, 5), lambda t: half_cosine(min(t, 5) / 5, 0.2)),
    "swa linear": (lambda o: swa_utils.SWALR(o, 0.2, 5, "linear"), lambda t: 1 - 0.8 * min(t, 5) / 5),
}


JUMP = "step multi exponential cosine lambda constant linear polynomial restarts one triangles".split()


def optimiser_at(lr):
    return optim.SGD([mg.zeros(1, requires_grad=True)], lr=lr, momentum=0.9)


def through_a_file(state):
    file = io.BytesIO()
    mg.save(state, file)
    file.seek(0)
    return mg.load(file)


def rates(make, steps, resume_after=None):
    optimiser = optimiser_at(1.0)
    schedule = make(optimiser)
    found = [optimiser.param_groups[0]["lr"]]
    for k in range(steps):
        if k == resume_after:
            state = through_a_file([optimiser.state_dict(), schedule.state_dict()])
            optimiser = optimiser_at(7.0)
            schedule = make(optimiser)
            optimiser.load_state_dict(state[0])
            schedule.load_state_dict(state[1])
        optimiser.step()
        schedule.step()
        found.append(optimiser.param_groups[0]["lr"])
        assert schedule.get_last_lr() == [found[-1]]
    return found


@pytest.mark.parametrize("name", CLOSED)
def test_a_schedule_equals_its_closed_form(name):
    make, closed = CLOSED[name]
    np.testing.assert_allclose(rates(make, 13), [closed(t) for t in range(14)], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", [n for n in CLOSED if n.split()[0] in JUMP])
def test_a_jump_equals_the_closed_form(name):
    make, closed = CLOSED[name]
    schedule = make(optimiser_at(1.0))
    for epoch in (5, 2, 2, 11, 0):
        schedule.step(epoch)
        np.testing.assert_allclose(schedule.get_last_lr(), [closed(epoch)], rtol=1e-12)


@pytest.mark.parametrize("after", [0, 4, 9])
@pytest.mark.parametrize("name", CLOSED)
def test_a_resumed_schedule_goes_on_as_before(name, after):
    make, _ = CLOSED[name]
    assert rates(make, 13, resume_after=after) == rates(make, 13)


def test_restarts_move_within_an_epoch():
    schedule = L.CosineAnnealingWarmRestarts(optimiser_at(1.0), 4)
    schedule.step(1.5)
    assert schedule.get_last_lr() == [pytest.approx(half_cosine(1.5 / 4))] and schedule.last_epoch == 1
    schedule.step(5.25)
    assert schedule.get_last_lr() == [pytest.approx(half_cosine(1.25 / 4))]
    with pytest.raises(ValueError, match="at least 0"):
        schedule.step(-1)


def test_schedules_chain_and_keep_a_rate_changed_by_hand():
    optimiser = optimiser_at(1.0)
    both = [L.ExponentialLR(optimiser, 0.5), L.StepLR(optimiser, 1, 0.1)]
    for schedule in both:
        schedule.step()
    assert optimiser.param_groups[0]["lr"] == pytest.approx(0.05)
    optimiser.param_groups[0]["lr"] = 8.0
    both[0].step()
    assert optimiser.param_groups[0]["lr"] == 4.0


def test_groups_have_rates_of_their_own():
    a, b = (mg.zeros(1, requires_grad=True) for _ in range(2))
    optimiser = optim.SGD([{"params": a, "lr": 1.0}, {"params": b, "lr": 0.5}])
    schedule = L.LambdaLR(optimiser, [lambda t: 0.5**t, lambda t: 1.0])
    schedule.step()
    assert schedule.get_last_lr() == [0.5, 0.5]
    with pytest.raises(ValueError, match="1 values for 2"):
        L.LambdaLR(optimiser, [lambda t: 1.0])


@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam])
def test_momentum_falls_while_the_rate_rises(kind):
    optimiser = kind([mg.zeros(1, requires_grad=True)], **({"momentum": 0.5} if kind is optim.SGD else {}))
    schedule = L.OneCycleLR(optimiser, 1.0, 10, pct_start=0.5, base_momentum=0.8, max_momentum=0.9)
    seen = []
    for _ in range(9):
        group = optimiser.param_groups[0]
        seen.append(group["momentum"] if kind is optim.SGD else group["betas"][0])
        schedule.step()
    assert seen[0] == 0.9 and seen[4] == pytest.approx(0.8) and sorted(seen[:5], reverse=True) == seen[:5]
    assert sorted(seen[4:]) == seen[4:]


def test_plateau_counts_only_epochs_without_improvement():
    optimiser = optimiser_at(1.0)
    schedule = L.ReduceLROnPlateau(optimiser, factor=0.5, patience=2, cooldown=1, threshold=0.1)
    seen = []
    for loss in [1.0, 0.95, 0.8, 0.79, 0.79, 0.79, 0.79, 0.79, 0.79, 0.79]:
        schedule.step(mg.tensor(loss))
        seen.append(optimiser.param_groups[0]["lr"])
    # 0.8 is better by a tenth; three epochs later the rate falls; one epoch of cooldown, and three more
    assert seen == [1, 1, 1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.25]


def test_a_function_object_is_part_of_the_state():
    class Shrinking:
        def __init__(self, by):
            self.by = by

        def __call__(self, t):
            return self.by**t

    old = L.LambdaLR(optimiser_at(1.0), Shrinking(0.5))
    new = L.LambdaLR(optimiser_at(1.0), Shrinking(0.1))
    new.load_state_dict(through_a_file(old.state_dict()))
    new.step()
    assert new.get_last_lr() == [0.5]


WRONG = {
    "no optimiser": (lambda o: L.StepLR(None, 3), TypeError, "Optimizer"),
    "resumed too early": (lambda o: L.StepLR(o, 3, last_epoch=2), KeyError, "initial_lr"),
    "no momentum": (
        lambda o: L.CyclicLR(optim.Adagrad([mg.zeros(1, requires_grad=True)]), 0.1, 1.0), ValueError, "cycle_momentum",
    ),
    "no steps": (lambda o: L.warm_up(o, 0, lambda o: L.StepLR(o, 3)), ValueError, "at least 1"),
    "too many milestones": (lambda o: L.SequentialLR(o, [L.StepLR(o, 3)], [4]), ValueError, "0 milestones, got 1"),
    "another's": (
        lambda o: L.ChainedScheduler([L.StepLR(o, 3), L.StepLR(optimiser_at(1.0), 3)]), ValueError, "another",
    ),
    "a plateau inside": (lambda o: L.ChainedScheduler([L.ReduceLROnPlateau(o)]), ValueError, "apart"),
    "nothing": (lambda o: L.ChainedScheduler([]), ValueError, "at least one"),
    "strategy": (lambda o: swa_utils.SWALR(o, 0.1, anneal_strategy="x"), ValueError, "'x'"),
    "annealing": (lambda o: swa_utils.SWALR(o, 0.1, -1), ValueError, "at least 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_refused(name):
    make, error, words = WRONG[name]
    with pytest.raises(error, match=words):
        make(optimiser_at(1.0))
