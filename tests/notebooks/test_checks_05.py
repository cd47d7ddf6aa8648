"""The checks of notebook 05: right answers pass, plausible wrong ones do not; its picture shows what is there."""

import checks_05 as checks
import numpy as np
from pictures_05 import maps

import minigrad as mg
from tests.notebooks.check_laws import (  # noqa: F401
    test_a_right_answer_passes,
    test_a_wrong_answer_is_told_what_is_off_in_one_line,
    test_an_open_answer_stops_nothing,
    test_every_check_has_right_and_wrong_answers,
)


# ---- an LSTM step and its mutants ---------------------------------------------------------------
def lstm(order=(0, 1, 2, 3), squash=True, open_gates=False, flat_g=False, old=False, no_state=False, plus=False):
    def step(x, h, c, w, u, b):
        gates = x @ w.T + (0 if no_state else h @ u.T) + b
        parts = gates.chunk(4, -1)
        i, f, g, o = (parts[k] for k in order)
        i, f, o = (v if open_gates else v.sigmoid() for v in (i, f, o))
        g = g.sigmoid() if flat_g else g.tanh()
        new = (f + c if plus else f * c) + i * g
        return o * ((c if old else new).tanh() if squash else new), new

    return step


# ---- attention and its mutants ------------------------------------------------------------------
def attention(scale=0.5, axis=-1, mask="before", turned=False, strict=0, detached=False):
    def attend(q, k, v, causal):
        s = q @ k.mT * (1 / q.shape[-1] ** scale)
        s = s.detach() if detached else s
        seen = mg.ones(*s.shape[-2:])
        seen = (seen.triu() if turned else seen.tril(strict)) if causal else seen
        if mask == "before":
            return s.masked_fill(seen == 0, -1e9).softmax(axis) @ v
        if mask == "after":
            return (s.softmax(axis) * seen) @ v
        if mask == "product":
            return (s * seen).softmax(axis) @ v
        return s.softmax(axis) @ v

    return attend


def by_keys(q, k, v, causal):
    """Scaled by the number of keys."""
    s = q @ k.mT / k.shape[-2] ** 0.5
    seen = mg.ones(*s.shape[-2:])
    return s.masked_fill((seen.tril() if causal else seen) == 0, -1e9).softmax(-1) @ v


def renormalised(q, k, v, causal):
    """Right, the long way: weights after the mask divided by their sum."""
    p = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
    p = p.tril() if causal else p
    return (p / p.sum(-1, keepdim=True)) @ v


# ---- probes -------------------------------------------------------------------------------------
def by_change(first=0, last_only=False, reverse=False, tolerance=0.0, past=False):
    """Change one input, look at the outputs before it; each argument makes it miss something."""

    def leaks(layer, n, width):
        x = mg.randn(n, width, generator=mg.Generator().manual_seed(3))
        base = layer(x).numpy()
        for j in [n - 1] if last_only else range(1, n):
            y = x.clone()
            y[j] = y[j] + 1.0
            moved = np.abs(layer(y).numpy() - base) > tolerance
            rows = moved[: j + 1] if reverse else moved[j:] if past else moved[first:j]
            if rows.any():
                return True
        return False

    return leaks


def by_gradient(layer, n, width):
    x = mg.randn(n, width, generator=mg.Generator().manual_seed(3)).requires_grad_()
    for i in range(n - 1):
        y = layer(x)
        (g,) = mg.autograd.grad(y[i], x, grad_outputs=mg.randn(width, generator=mg.Generator().manual_seed(i)))
        if bool((g[i + 1 :] != 0).any().item()):
            return True
    return False


def next_only(layer, n, width):
    x = mg.randn(n, width, generator=mg.Generator().manual_seed(3)).requires_grad_()
    return any(bool((mg.autograd.grad(layer(x)[i].sum(), x)[0][i + 1] != 0).any().item()) for i in range(n - 1))


# ---- the others ---------------------------------------------------------------------------------
def sampling(times=False, before=True, keep=0, log=False, drop=True):
    def probabilities(logits, temperature, top_k):
        scaled = logits * temperature if times else logits / temperature
        least = logits.sort().values[max(len(logits.tolist()) - top_k - keep, 0)].item()
        out = logits < least
        if drop and before:
            scaled = scaled.masked_fill(out, -1e9)
        p = scaled.log_softmax(-1) if log else scaled.softmax(-1)
        return p.masked_fill(out, 0.0) if drop and not before else p

    return probabilities


def numbers(per=lambda c: 0):
    return lambda c: 12 * c * c + 13 * c + per(c)


RIGHT = {
    checks.check_lstm: [lstm(), lambda *a: list(lstm()(*a))],
    checks.check_attention: [attention(), renormalised],
    checks.check_probe: [by_change(), by_gradient],
    checks.check_block: [numbers()],
    checks.check_sampling: [sampling()],
}
WRONG = {
    checks.check_lstm: [
        lstm(order=(1, 0, 2, 3)),
        lstm(order=(0, 1, 3, 2)),
        lstm(squash=False),
        lstm(open_gates=True),
        lstm(flat_g=True),
        lstm(old=True),
        lstm(no_state=True),
        lstm(plus=True),
        lambda *a: lstm()(*a)[::-1],
        lambda *a: lstm()(*a)[0],
    ],
    checks.check_attention: [
        attention(scale=0),
        attention(scale=1),
        attention(axis=-2),
        attention(mask="after"),
        attention(mask="product"),
        attention(mask="none"),
        attention(turned=True),
        attention(strict=1),
        attention(strict=-1),
        attention(detached=True),
        by_keys,
        lambda q, k, v, causal: (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1),
    ],
    checks.check_probe: [
        by_change(last_only=True),
        by_change(first=1),
        by_change(reverse=True),
        by_change(past=True),
        by_change(tolerance=10.0),
        next_only,
        lambda layer, n, width: False,
        lambda layer, n, width: True,
        lambda layer, n, width: 1,
    ],
    checks.check_block: [
        numbers(lambda c: -4 * c),
        numbers(lambda c: 4 * c * c),
        numbers(lambda c: -13 * c),
        numbers(lambda c: -2 * c),
    ],
    checks.check_sampling: [
        sampling(times=True),
        sampling(before=False),
        sampling(keep=1),
        sampling(log=True),
        sampling(drop=False),
        lambda logits, temperature, top_k: logits / temperature,
    ],
}


# ---- the picture --------------------------------------------------------------------------------
def test_a_map_shows_zero_as_nothing_and_the_smallest_leak_as_something():
    drawing = maps({"a": [[1.0, 1e-12], [0.0, 0.5]]}, "xy", "x ")
    assert drawing.body.count('fill-opacity="') == 3 and ">␣<" in drawing.body
    assert drawing.text == "a: 1 cells above the diagonal are not zero\n90\n.4"


def test_maps_stand_side_by_side():
    drawing = maps({"one": np.eye(3), "another": np.eye(5)})
    assert drawing.text.count("0 cells above") == 2 and drawing.body.count("translate(") == 2
    assert drawing.width > 8 * 22 and drawing.svg.startswith("<svg")
