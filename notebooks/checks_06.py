"""The self-checks of notebook 06, in the order in which they are met.

An optimiser of the reader's is led through the same gradients as the library's, and compared after every step.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from lesson import ask, check, close, expect

import minigrad as mg

SIZES = (3.0, 1e-3, -200.0, 1e-9)  # gradients of four orders: an epsilon in the wrong place shows in the last


def _beside(rule: Callable, kind: type, options: dict, what: str, **constants: float) -> None:
    """Eight steps of `rule` on float64 tensors beside the optimiser `kind`."""
    rng, state = np.random.default_rng(0), {}
    ours = mg.tensor([1.0, -2.0, 3.0, 0.5], dtype=mg.float64, requires_grad=True)
    optimizer, x = kind([ours], **options), ours.detach().clone()
    for step in range(1, 9):
        drawn = np.array(SIZES) * (1 + 0.3 * rng.standard_normal(4)) * (-1 if step in (3, 6) else 1)
        g = mg.tensor(drawn.tolist(), dtype=mg.float64)
        ours.grad = g.clone()
        x = ask(rule, x, g, state, *constants.values())
        expect(isinstance(x, mg.Tensor), f"{what}: you return a {type(x).__name__}, expected the new x")
        optimizer.step()
        close(x, ours.detach().numpy(), f"{what}, step {step}: x")
        expect(g.tolist() == drawn.tolist(), f"{what}, step {step}: your rule changed the gradient itself")


@check
def check_momentum(rule: Callable) -> str:
    """rule(x, g, state, lr, beta) beside SGD with momentum."""
    for lr, beta in ((0.01, 0.9), (0.1, 0.5), (0.1, 0.0)):
        options = {"lr": lr, "momentum": beta}
        _beside(rule, mg.optim.SGD, options, f"lr {lr}, beta {beta}", lr=lr, beta=beta)
    return "three runs of 8 steps beside the library, a ball without memory (beta 0) among them"


@check
def check_adam(rule: Callable) -> str:
    """rule(x, g, state, lr, beta1, beta2, eps) beside Adam."""
    for lr, betas, eps in ((0.1, (0.9, 0.999), 1e-8), (0.1, (0.5, 0.9), 1e-8), (0.1, (0.9, 0.99), 1e-3)):
        options = {"lr": lr, "betas": betas, "eps": eps}
        what = f"betas {betas}, eps {eps:g}"
        _beside(rule, mg.optim.Adam, options, what, lr=lr, beta1=betas[0], beta2=betas[1], eps=eps)
    return "three runs of 8 steps beside the library, with gradients from 1e-9 to 200"


@check
def check_warmup(rate: Callable) -> str:
    """rate(step, warmup, total): a line up to 1, then half a cosine down to 0."""
    for warmup, total in ((10, 100), (1, 5), (5, 7)):
        for step in range(total + 1):
            climb, way = (step + 1) / warmup, (step - warmup) / (total - warmup)
            want = climb if step < warmup else (1 + math.cos(math.pi * way)) / 2
            got = ask(rate, step, warmup, total)
            expect(
                math.isclose(got, want, abs_tol=1e-6),
                f"step {step} of {total}, warm-up {warmup}: {got:.4g} is off by {abs(got - want):.3g}",
            )
    return "three schedules: up, down, and 0 at the end"


@check
def check_clip(clip: Callable) -> str:
    """clip(grads, max_norm) for several tensors with one common norm."""
    small, large = [[0.3], [0.4, 0.0]], [[30.0, 0.0], [[-40.0]], [0.0]]
    uneven = [[1e-3, 2e-3], [100.0]]
    for values, most in ((small, 1.0), (large, 5.0), (uneven, 1.0), (large, 50.5)):
        given = [mg.tensor(v) for v in values]
        holders = [mg.zeros(*g.shape, requires_grad=True) for g in given]
        for p, g in zip(holders, given):
            p.grad = g.clone()
        mg.nn.utils.clip_grad_norm_(holders, most)
        found = ask(clip, given, most)
        expect(
            isinstance(found, list | tuple) and len(found) == len(given),
            f"return a list of {len(given)} gradients, got a {type(found).__name__}",
        )
        for k, (got, p) in enumerate(zip(found, holders)):
            close(got, p.grad.numpy(), f"gradients {values}, max_norm {most:g}: tensor {k}")
    return "one common norm: the direction of the whole step is kept, and a short one is left alone"


@check
def check_scales(scales: Callable) -> str:
    """scales(sizes): the factor of each micro-batch's mean loss."""
    for sizes in ([16, 16, 16, 16], [16, 16, 8], [1, 99], [7]):
        got = ask(scales, sizes)
        expect(
            isinstance(got, list | tuple) and len(got) == len(sizes),
            f"micro-batches of {sizes}: return a list of {len(sizes)} factors, got {got!r}",
        )
        for k, (factor, n) in enumerate(zip(got, sizes)):
            off = abs(factor - n / sum(sizes))
            expect(off < 1e-6, f"micro-batches of {sizes}: factor {k} is off by {off:.3g}")
    return "uneven parts too: each example counts once, in whichever part it comes"
