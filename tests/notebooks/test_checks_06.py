"""The checks of notebook 06: right answers pass, plausible wrong ones do not; its pictures find their way."""

import math
import re

import checks_06 as checks
import numpy as np
from pictures import curves
from pictures_06 import race

import minigrad as mg
from tests.notebooks.check_laws import (  # noqa: F401
    test_a_right_answer_passes,
    test_a_wrong_answer_is_told_what_is_off_in_one_line,
    test_an_open_answer_stops_nothing,
    test_every_check_has_right_and_wrong_answers,
)


# ---- momentum and its mutants -------------------------------------------------------------------
def momentum(share=lambda beta: 1.0, look=False, sign=-1.0, keep=True, first=True):
    """Right by default; each argument plants one mistake."""

    def rule(x, g, state, lr, beta):
        b = beta * state.get("b", 0) + (g if first and "b" not in state else share(beta) * g)
        if keep:
            state["b"] = b
        return x + sign * lr * (g + beta * b if look else b)

    return rule


def nesterov_past(x, g, state, lr, beta):
    """Walks with the momentum of the step before."""
    old = state.get("b", 0 * g)
    state["b"] = beta * old + g
    return x - lr * old


def rate_inside(x, g, state, lr, beta):
    """The rate inside the sum: the same while the rate is constant."""
    state["b"] = beta * state.get("b", 0) + lr * g
    return x - state["b"]


def in_place(x, g, state, lr, beta):
    state["b"] = g.mul_(1.0).add_(beta * state.get("b", 0))
    return x - lr * state["b"]


# ---- Adam and its mutants -----------------------------------------------------------------------
def adam(start=1, correct=(True, True), power=2, inside=False, late=False, swapped=False, minus=1.0):
    def rule(x, g, state, lr, beta1, beta2, eps):
        if swapped:
            beta1, beta2 = beta2, beta1
        t = state["t"] = state.get("t", start - 1) + 1
        m = state["m"] = beta1 * state.get("m", 0) + (1 - beta1) * g
        v = state["v"] = beta2 * state.get("v", 0) + (1 - beta2) * g.abs() ** power
        m = m / (1 - beta1**t) if correct[0] else m
        root = v.sqrt() + eps if late else v.sqrt()
        root = root / (1 - beta2**t) ** 0.5 if correct[1] else root
        below = (root**2 + eps).sqrt() if inside else root if late else root + eps
        return x - minus * lr * m / below

    return rule


def stores_corrected(x, g, state, lr, beta1, beta2, eps):
    t = state["t"] = state.get("t", 0) + 1
    state["m"] = (beta1 * state.get("m", 0) + (1 - beta1) * g) / (1 - beta1**t)
    state["v"] = (beta2 * state.get("v", 0) + (1 - beta2) * g * g) / (1 - beta2**t)
    return x - lr * state["m"] / (state["v"].sqrt() + eps)


# ---- the others ---------------------------------------------------------------------------------
def warmup(first=1, shift=0, floor=0.0, line=False):
    def rate(step, warmup, total):
        if step < warmup:
            return (step + first) / warmup
        way = (step - warmup + shift) / (total - warmup)
        return 1 - way if line else floor + (1 - floor) * (1 + math.cos(math.pi * way)) / 2

    return rate


def whole_cosine(step, warmup, total):
    return (step + 1) / warmup if step < warmup else (1 + math.cos(math.pi * step / total)) / 2


def norm_of(grads):
    return sum(float((g * g).sum().item()) for g in grads) ** 0.5


def clip(norm=norm_of, always=False):
    def clipped(grads, max_norm):
        scale = max_norm / norm(grads)
        return [g * (scale if always else min(1.0, scale)) for g in grads]

    return clipped


def each_alone(grads, max_norm):
    return [g * min(1.0, max_norm / max(norm_of([g]), 1e-12)) for g in grads]


RIGHT = {
    checks.check_momentum: [momentum(), rate_inside],
    checks.check_adam: [adam()],
    checks.check_warmup: [warmup()],
    checks.check_clip: [clip()],
    checks.check_scales: [lambda sizes: [n / sum(sizes) for n in sizes]],
}
WRONG = {
    checks.check_momentum: [
        momentum(share=lambda beta: 1 - beta),
        momentum(share=lambda beta: 1 - beta, first=False),
        momentum(look=True),
        momentum(sign=1.0),
        momentum(keep=False),
        nesterov_past,
        in_place,
        lambda x, g, state, lr, beta: x - lr * g,
        lambda x, g, state, lr, beta: (x - lr * g).numpy(),
    ],
    checks.check_adam: [
        adam(correct=(False, False)),
        adam(correct=(True, False)),
        adam(correct=(False, True)),
        adam(start=2),
        adam(power=1),
        adam(inside=True),
        adam(late=True),
        adam(swapped=True),
        adam(minus=-1.0),
        stores_corrected,
    ],
    checks.check_warmup: [
        warmup(first=0),
        warmup(shift=1),
        warmup(floor=0.1),
        warmup(line=True),
        whole_cosine,
        lambda step, warmup, total: min(1.0, (step + 1) / warmup),
    ],
    checks.check_clip: [
        each_alone,
        clip(always=True),
        clip(norm=lambda grads: norm_of(grads) ** 2),
        clip(norm=lambda grads: sum(norm_of([g]) for g in grads)),
        clip(norm=lambda grads: max(float(g.abs().max().item()) for g in grads)),
        lambda grads, max_norm: [g.clamp(-max_norm, max_norm) for g in grads],
        lambda grads, max_norm: grads[:1],
    ],
    checks.check_scales: [
        lambda sizes: [1 / len(sizes)] * len(sizes),
        lambda sizes: [1.0] * len(sizes),
        lambda sizes: list(sizes),
        lambda sizes: [sum(sizes) / n for n in sizes],
        lambda sizes: [n / max(sizes) for n in sizes],
        lambda sizes: 1 / len(sizes),
    ],
}


# ---- pictures -----------------------------------------------------------------------------------
def bowl(x):
    return x[0] * x[0] + x[1] * x[1]


def test_a_race_says_when_each_arrives_to_stay():
    visits = [(1.0, 0.0), (0.0, 0.0), (1.0, 0.0), (0.1, 0.0)]  # through the goal, out, and back
    paths = {"there": visits, "away": [(1.0, 1.0)] * 3, "at once": [(0.0, 0.0)] * 2, "lost": [(0.0, math.nan)]}
    text = race(bowl, (-1, 1, -1, 1), (0.5,), paths, (0, 0), 2, close_to=0.02).text
    assert "there: there after 3 steps" in text and "away: not there in 2" in text
    assert "at once: there after 0 steps" in text and "lost: not there in 0" in text


def test_contours_lie_where_the_function_has_the_level():
    from pictures_06 import _segments

    xs = np.linspace(-1, 1, 41)
    ends = [p for pair in _segments(bowl(np.meshgrid(xs, xs)) - 0.5, xs, xs) for p in pair]
    assert len(ends) > 80 and all(abs(bowl(p) - 0.5) < 0.01 for p in ends)


def test_labels_of_curves_do_not_cover_each_other():
    drawing = curves({f"curve {k}": [1.0, 0.01 * k] for k in range(6)}, "loss")
    heights = sorted(float(y) for y in re.findall(r'<path d="M470 ([\d.]+)h14"', drawing.body))
    assert len(heights) == 6 and all(b - a > 16 for a, b in zip(heights, heights[1:]))
    assert "curve 5: 1 at first, 0.05 at the end" in drawing.text


def test_curves_over_powers_of_ten_and_at_places():
    drawing = curves({"a": [1e-3, 10.0]}, log=True, x=[5, 25])
    assert ">1e-3<" in drawing.svg and ">1e1<" in drawing.svg and ">25<" in drawing.svg


def test_the_momentum_limit_that_the_notebook_states():
    """2 (1 + beta) / curvature, on one weight."""
    for beta in (0.0, 0.5, 0.9):
        for factor, grows in ((0.99, False), (1.01, True)):
            x = mg.tensor(1.0, dtype=mg.float64, requires_grad=True)
            optimizer = mg.optim.SGD([x], lr=factor * 2 * (1 + beta) / 10, momentum=beta)
            for _ in range(2000):
                x.grad = x.detach() * 10
                optimizer.step()
            assert (abs(x.item()) > 1) is grows
