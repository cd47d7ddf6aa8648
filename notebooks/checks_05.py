"""The self-checks of notebook 05, in the order in which they are met."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from lesson import ask, check, close, expect

import minigrad as mg
from minigrad.nn import functional as F


def _stream(seed: int) -> mg.Generator:
    return mg.Generator().manual_seed(seed)


def _drawn(seed: int, *shape: int) -> mg.Tensor:
    return mg.randn(*shape, generator=_stream(seed))


@check
def check_lstm(step: Callable) -> str:
    """step(x, h, c, w, u, b) -> (h, c): one step of an LSTM, gates in the order i, f, g, o."""
    for seed, (batch, inputs, hidden) in enumerate(((1, 3, 2), (4, 2, 5))):
        cell = mg.nn.LSTMCell(inputs, hidden)
        for k, p in enumerate(cell.parameters()):
            p.data.copy_(_drawn(10 * seed + k, *p.shape))
        x, h, c = (_drawn(50 + k, batch, n) for k, n in enumerate((inputs, hidden, hidden)))
        b = cell.bias_ih.detach() + cell.bias_hh.detach()
        found = ask(step, x, h, c, cell.weight_ih.detach(), cell.weight_hh.detach(), b)
        expect(
            isinstance(found, tuple | list) and len(found) == 2,
            f"return the new h and the new c, got a {type(found).__name__}",
        )
        for name, got, want in (("c", found[1], cell(x, (h, c))[1]), ("h", found[0], cell(x, (h, c))[0])):
            close(got, want.detach().numpy(), f"batch {batch}, {inputs} inputs, {hidden} hidden: the new {name}")
    return "both states, as nn.LSTMCell has them"


@check
def check_attention(attention: Callable) -> str:
    """attention(q, k, v, causal), for any number of leading axes, and with its gradients."""
    for lead, rows, seen, inner, outer, causal in (
        ((), 3, 5, 4, 2, False),
        ((2, 3), 4, 4, 8, 8, False),
        ((), 5, 5, 4, 3, True),
        ((2, 3), 6, 6, 16, 4, True),
    ):
        q, k, v = (
            mg.randn(*lead, n, e, generator=_stream(s)).requires_grad_()
            for s, n, e in ((1, rows, inner), (2, seen, inner), (3, seen, outer))
        )
        g = _drawn(4, *lead, rows, outer)
        want = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        slopes = mg.autograd.grad(want, (q, k, v), grad_outputs=g)
        what = f"q {q.shape}, k {k.shape}, v {v.shape}{', causal' if causal else ''}"
        got = ask(attention, q, k, v, causal)
        close(got, want.detach().numpy(), f"{what}: the result")
        for name, mine, ours in zip("qkv", mg.autograd.grad(got, (q, k, v), grad_outputs=g), slopes):
            close(mine, ours.numpy(), f"{what}: the gradient of {name}")
    return "values and gradients, with and without a mask, with and without batch and heads"


# ---- layers that a probe of the reader's must judge -----------------------------------------------
def _weights(n: int, seed: int) -> mg.Tensor:
    return _drawn(seed, n, n) / n**0.5


def _attending(x: mg.Tensor, how: str) -> mg.Tensor:
    scores = x @ _weights(x.shape[-1], 7) @ x.mT
    seen = mg.ones(len(x), len(x)).tril()
    if how == "before":
        return (scores + (1 - seen) * -1e9).softmax(-1) @ x
    if how == "after":
        return (scores.softmax(-1) * seen) @ x
    return scores.softmax(-1) @ x


def _normed_over_time(x: mg.Tensor) -> mg.Tensor:
    return (x - x.mean(0)) / (x.var(0) + 1e-5).sqrt()


CAUSAL = {
    "a causal attention": lambda x: _attending(x, "before"),
    "a running sum": lambda x: x.cumsum(0),
    "a layer that sees each place alone": lambda x: x.tanh(),
    "a layer that sees only the place before": lambda x: mg.cat([x[:1] * 0, x[:-1]]),
}
LEAKING = {
    "an attention without a mask": lambda x: _attending(x, ""),
    "an attention with its mask after softmax": lambda x: _attending(x, "after"),
    "a running sum from the end": lambda x: x.flip(0).cumsum(0).flip(0),
    "a layer that sees one place ahead": lambda x: mg.cat([x[1:], x[:1] * 0]),
    "a layer that sees the last place, at the first": lambda x: mg.cat([x[:1] + 0.5 * x[-1:], x[1:]]),
    "a layer that sees one place ahead, in the middle only": lambda x: mg.cat([x[:2], x[2:3] + x[3:4], x[3:]]),
    "a norm over time": _normed_over_time,
}


@check
def check_probe(leaks: Callable) -> str:
    """leaks(layer, n, width) -> True if a place of layer(x), x (n, width), depends on a later one."""
    right, found = 0, []
    for said, layers in ((False, CAUSAL), (True, LEAKING)):
        for name, layer in layers.items():
            got = ask(leaks, layer, 6, 4)
            expect(isinstance(got, bool | np.bool_), f"{name}: return True or False, not {got!r}")
            right += bool(got) is said
            found += [name] * (bool(got) is not said)
    expect(
        not found,
        f"{right} of {len(CAUSAL) + len(LEAKING)} layers are judged right. One that is not: {found[:1] and found[0]}",
    )
    return f"{right} layers judged, {len(LEAKING)} of them leak"


@check
def check_block(count: Callable) -> str:
    """count(c): the numbers in a transformer block of c features."""
    for c in (1, 8, 48):
        got, want = ask(count, c), sum(p.numel() for p in mg.nn.TransformerBlock(c, 1).parameters())
        expect(got == want, f"C = {c}: {got} is off by {abs(got - want)}")
    return "counted for three widths"


@check
def check_sampling(probabilities: Callable) -> str:
    """probabilities(logits, temperature, top_k) of one row of logits."""
    for logits, temperature, top_k in (
        ([1.0, 2.0, 0.5, 3.0], 1.0, 4),
        ([1.0, 2.0, 0.5, 3.0], 0.5, 4),
        ([1.0, 2.0, 0.5, 3.0], 2.0, 2),
        ([-1.0, 5.0, 4.0, 4.5, -3.0], 1.5, 3),
        ([0.0, -200.0, 300.0], 1.0, 1),
    ):
        scaled = np.array(logits) / temperature
        scaled[np.argsort(scaled)[: len(logits) - top_k]] = -np.inf
        want = np.exp(scaled - scaled.max())
        got = ask(probabilities, mg.tensor(logits), temperature, top_k)
        close(got, want / want.sum(), f"logits {logits}, temperature {temperature}, top_k {top_k}: the row")
    return "hot and cold, all and one"
