"""The self-checks of the notebooks, in the order in which they are met.  How a check speaks: `lesson.py`."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np
from lesson import Off, ask, check, close, expect

import minigrad as mg
from minigrad.viz.describe import data


# ---- 01 tensors ---------------------------------------------------------------------------------------------------
@check
def check_offset(cell: Callable) -> str:
    """cell(index, strides, start) for real arrays, where NumPy knows."""
    x = np.arange(24).reshape(2, 3, 4)                            # the number in a cell is the number of the cell
    for view in (x, x.transpose(2, 0, 1), x[:, 1:, ::3], x[1, 2], x[:, ::-1]):
        strides, start = tuple(s // x.itemsize for s in view.strides), int(view[(0,) * view.ndim])
        for index in np.ndindex(view.shape):
            got = ask(cell, index, strides, start)
            expect(got == view[index], f"index {index}, strides {strides}, start {start}: you say cell {got}, it is another one")
    return "five readings of one memory, one of them backwards, all found"


@check
def check_broadcast(broadcast: Callable) -> str:
    """broadcast(a, b) for shapes that fit."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        shape = rng.integers(0, 4, rng.integers(0, 5))
        a, b = (tuple(int(n) for n in np.where(rng.random(len(shape)) < 0.3, 1, shape))[rng.integers(0, len(shape) + 1):] for _ in "ab")
        got, want = ask(broadcast, a, b), np.broadcast_shapes(a, b)
        expect(isinstance(got, tuple | list), f"shapes {a} and {b}: you return a {type(got).__name__}, expected a tuple")
        expect(len(got) == len(want), f"shapes {a} and {b}: you return {len(got)} axes, expected {len(want)}")
        expect(tuple(got) == want, f"shapes {a} and {b}: {got} has a wrong size on axis {next(k for k, n in enumerate(want) if n != got[k])}")
    return "200 pairs of shapes, with axes of size 0 and 1 among them"


@check
def check_power(power: Callable) -> str:
    """power(x, n) by repeated squaring: value, gradient, number of nodes."""
    for n in (1, 2, 3, 8, 13, 100):
        x = mg.tensor(1.01, dtype=mg.float64, requires_grad=True)
        y = ask(power, x, n)
        expect(isinstance(y, mg.Tensor) and y.requires_grad, f"power(x, {n}) is no tensor with a history")
        close(y, np.array(1.01**n), f"power(1.01, {n})")
        graph = data(y, params={})
        kinds = {node.get("op") for node in graph["nodes"]} - {None, "mul"}
        expect(not kinds, f"the graph of power(x, {n}) holds {', '.join(sorted(kinds))}; use x * y only")
        most = n.bit_length() + n.bit_count() - 2
        expect(graph["operations"] <= most, f"power(x, {n}) left {graph['operations']} multiplications behind; {most} are enough")
        if n > 1:
            y.backward()
            close(x.grad, np.array(n * 1.01 ** (n - 1)), f"the gradient of power(x, {n})")
    return "values, gradients, and a graph that grows with log n"


@check
def check_keeps(answers: dict) -> str:
    """Which operations keep a full-size array, asked of the engine itself."""
    wrong = [what for what, says in answers.items() if bool(says) is not _keeps(what)]
    expect(not wrong, f"{len(answers) - len(wrong)} of {len(answers)} are right. Write down the derivative of each: "
                      "which of a, b, y stand in it?")
    return "what a rule names is what a node keeps"


def _keeps(what: str) -> bool:
    a, b = (mg.full((1000,), v, requires_grad=True) for v in (1.0, 2.0))
    return any(getattr(v, "shape", ()) == (1000,) for v in eval(what, {"a": a, "b": b}).node.saved)
