"""The self-checks of notebook 07, in the order in which they are met.

What an operation keeps is asked of the engine, and what a plan holds is measured while it runs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from lesson import ask, check, close, expect

import minigrad as mg
from minigrad import nn

OPS = {
    "exp": lambda x: x.exp(),
    "sin": lambda x: x.sin(),
    "tanh": lambda x: x.tanh(),
    "square": lambda x: x.square(),
    "plus 1": lambda x: x + 1,
    "times 3": lambda x: x * 3,
    "sqrt": lambda x: x.sqrt(),
}


@check
def check_ledger(ledger: Callable) -> str:
    """ledger(parameters, per_example, batch): bytes of a step with Adam, in float32."""
    for p, a, b in ((1000, 10, 1), (742_922, 6154, 1797), (7, 1, 0), (5, 1000, 64)):
        found, want = ask(ledger, p, a, b), 4 * (4 * p + a * b)
        expect(
            isinstance(found, int | float) and abs(found - want) < 0.5,
            f"{p:,} parameters, {a:,} numbers an example, batch {b:,}: {found:,} is off by {abs(found - want):,} bytes",
        )
    return "four steps, one of them without any example"


def keeps(f: Callable) -> str:
    """What the graph of f keeps of a tensor that goes in, or of the one that comes out."""
    x = mg.full((3, 3), 0.5, requires_grad=True)
    y = f(x)
    saved = [v for v in y.node.saved if isinstance(v, np.ndarray) and v.shape == (3, 3)]
    return "output" if any(v is y.array for v in saved) else "input" if any(v is x.array for v in saved) else "neither"


@check
def check_kept(answers: dict) -> str:
    """{"exp": "input", "output" or "neither", …}"""
    unknown = {v for v in answers.values() if v not in ("input", "output", "neither")}
    expect(not unknown, f"say 'input', 'output' or 'neither', not {', '.join(map(repr, sorted(map(str, unknown))))}")
    wrong = [name for name, f in OPS.items() if answers.get(name) != keeps(f)]
    expect(not wrong, f"{len(wrong)} of {len(OPS)} are wrong: write down the derivative of each")
    return f"all {len(OPS)}: the derivative decides what is kept"


@check
def check_segments(run: Callable) -> str:
    """run(layers, x, size): a chain, each `size` layers under one checkpoint."""
    from minigrad.memory.meter import activations

    mg.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(18)]
    x = mg.randn(64, 16)
    plainly = x
    for layer in layers:
        plainly = layer(plainly)
    plainly.square().sum().backward()
    want, out = [p.grad.numpy().copy() for layer in layers for p in layer.parameters()], plainly.detach().numpy()
    del plainly
    for size in (3, 4, 6, 17):
        for layer in layers:
            layer.zero_grad()
        with activations(x) as meter:
            y = ask(run, layers, x, size)
            close(y, out, f"18 layers in segments of {size}: the result")
            held = meter.now / x.nbytes
            y.square().sum().backward()
        for p, w in zip((p for layer in layers for p in layer.parameters()), want):
            expect(p.grad is not None, f"segments of {size}: a parameter has no gradient")
            close(p.grad, w, f"segments of {size}: a gradient")
        most = -(-18 // size) + size  # borders and the last segment, which may as well keep what it saves
        found = f"segments of {size}: the graph holds {held:.0f} activations after forward"
        expect(held < most + 0.5, f"{found}, which is too many")
        peak = meter.peak / x.nbytes  # with the gradients on their way, and what the loss keeps
        expect(peak < most + 3.5, f"segments of {size}: {peak:.0f} activations at the peak of backward are too many")
    return "four sizes, two that do not divide 18: same result, same gradients, few activations"


@check
def check_best_fit(place: Callable) -> str:
    """place(holes, nbytes): where the block begins, or -1.  `holes` is a list of (start, size)."""
    cases = [
        ([(0, 10), (20, 8)], 7),
        ([(0, 4), (8, 6), (30, 5)], 5),
        ([(0, 3), (8, 2)], 4),
        ([(40, 9), (0, 6), (20, 7)], 6),
        ([], 1),
        ([(64, 5)], 5),
    ]
    for holes, nbytes in cases:
        given = list(holes)
        found = ask(place, given, nbytes)
        fits = [(size, start) for start, size in holes if size >= nbytes]
        want = min(fits)[1] if fits else -1
        expect(type(found) is int, f"holes {holes}: return a whole number, got {found!r}")
        expect(found == want, f"holes {holes}, a block of {nbytes}: {found} is not the best place")
        expect(given == holes, f"holes {holes}: your function changed the list")
    return "six pools, with a hole that fits exactly, and with none"


LEAKS = {"a": False, "b": True, "c": True, "d": False, "e": True, "f": False}


@check
def check_leaks(answers: dict) -> str:
    """{"a": whether it holds more with each step, …}"""
    expect(
        all(isinstance(v, bool) for v in answers.values()),
        "say True or False for each",
    )
    wrong = sum(answers.get(name) is not truth for name, truth in LEAKS.items())
    expect(not wrong, f"{wrong} of {len(LEAKS)} are wrong: who holds a tensor with a graph when the step is over?")
    return "six loops, judged"
