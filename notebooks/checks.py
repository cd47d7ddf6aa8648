"""The self-checks of the notebooks, in the order in which they are met.

How a check speaks stands in `lesson.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from lesson import ask, check, close, expect

import minigrad as mg
from minigrad.viz.describe import data


# ---- 00 tour ------------------------------------------------------------------------------------
@check
def check_conv(parameters: Callable) -> str:
    """parameters(i, o, k) of a convolution, with its bias."""
    for i, o, k in ((1, 16, 3), (16, 32, 3), (3, 8, 5)):
        got, want = ask(parameters, i, o, k), sum(p.numel() for p in mg.nn.Conv2d(i, o, k).parameters())
        expect(
            got == want,
            f"from {i} to {o} channels, {k} × {k} windows: {got} is off by {abs(got - want)}",
        )
    return "each output channel has a window on each input channel, and a bias"


@check
def check_cross_entropy(loss: float) -> str:
    """The loss where the right answer always gets one half."""
    want = -float(np.log(0.5))
    expect(
        np.isclose(loss, want, rtol=0.02),
        f"{loss} is off by {abs(loss - want):.2g}. The formula stands in section 2",
    )
    return "a loss can be read back: exp(-loss) is the probability that the truth was given"


@check
def check_bytes(guess: int) -> str:
    """Bytes kept for a batch of 256, asked of the engine on meta."""
    from minigrad.tour import saved_bytes

    net, images = mg.nn.models.DigitsCNN(16).to("meta"), mg.zeros(256, 1, 8, 8, device="meta")
    kept = saved_bytes(
        mg.nn.functional.cross_entropy(net(images), mg.zeros(256, dtype=mg.int64, device="meta"))
    )
    expect(
        abs(guess / kept - 1) < 0.05,
        f"{guess:,} is {abs(guess / kept - 1):.0%} off. How does what is saved grow with the batch?",
    )
    return f"{kept:,} bytes: nearly everything that is kept has the batch as its first axis"


# ---- 01 tensors ---------------------------------------------------------------------------------
@check
def check_offset(cell: Callable) -> str:
    """cell(index, strides, start) for real arrays, where NumPy knows."""
    x = np.arange(24).reshape(2, 3, 4)  # the number in a cell is the number of the cell
    for view in (x, x.transpose(2, 0, 1), x[:, 1:, ::3], x[1, 2], x[:, ::-1]):
        strides, start = tuple(s // x.itemsize for s in view.strides), int(view[(0,) * view.ndim])
        for index in np.ndindex(view.shape):
            got = ask(cell, index, strides, start)
            expect(
                got == view[index],
                f"index {index}, strides {strides}, start {start}: it is not in cell {got}",
            )
    return "five readings of one memory, one of them backwards, all found"


@check
def check_broadcast(broadcast: Callable) -> str:
    """broadcast(a, b) for shapes that fit."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        shape = rng.integers(0, 4, rng.integers(0, 5))
        a, b = (
            tuple(int(n) for n in np.where(rng.random(len(shape)) < 0.3, 1, shape))[
                rng.integers(0, len(shape) + 1) :
            ]
            for _ in "ab"
        )
        got, want = ask(broadcast, a, b), np.broadcast_shapes(a, b)
        expect(
            isinstance(got, tuple | list),
            f"shapes {a} and {b}: you return a {type(got).__name__}, expected a tuple",
        )
        expect(
            len(got) == len(want),
            f"shapes {a} and {b}: you return {len(got)} axes, expected {len(want)}",
        )
        for axis, (g, w) in enumerate(zip(got, want)):
            expect(g == w, f"shapes {a} and {b}: {got} is wrong on axis {axis}")
    return "200 pairs of shapes, with axes of size 0 and 1 among them"


@check
def check_power(power: Callable) -> str:
    """power(x, n) by repeated squaring: value, gradient, number of nodes."""
    for n in (1, 2, 3, 8, 13, 100):
        x = mg.tensor(1.01, dtype=mg.float64, requires_grad=True)
        y = ask(power, x, n)
        expect(
            isinstance(y, mg.Tensor) and y.requires_grad,
            f"power(x, {n}) is no tensor with a history",
        )
        close(y, np.array(1.01**n), f"power(1.01, {n})")
        graph = data(y, params={})
        kinds = {node.get("op") for node in graph["nodes"]} - {None, "mul"}
        expect(
            not kinds,
            f"the graph of power(x, {n}) holds {', '.join(sorted(kinds))}; use x * y only",
        )
        most = n.bit_length() + n.bit_count() - 2
        expect(
            graph["operations"] <= most,
            f"power(x, {n}) left {graph['operations']} multiplications behind; {most} are enough",
        )
        if n > 1:
            y.backward()
            close(x.grad, np.array(n * 1.01 ** (n - 1)), f"the gradient of power(x, {n})")
    return "values, gradients, and a graph that grows with log n"


KEPT_BY = ("a + b", "a * b", "a.sum()", "a.sigmoid()", "a * 3", "a / b", "a.reshape(10, 100)")


def judged(answers: dict, asked: tuple[str, ...]) -> None:
    """Off unless every line that was asked has True or False beside it, and no other line."""
    expect(set(answers) == set(asked), f"{len(asked)} lines were asked, {len(set(answers) & set(asked))} are there")
    for what, says in answers.items():
        expect(isinstance(says, bool), f"{what}: write True or False, not {says!r}")


@check
def check_keeps(answers: dict) -> str:
    """Which operations keep a full-size array, asked of the engine itself."""
    judged(answers, KEPT_BY)
    wrong = [what for what, says in answers.items() if says is not _keeps(what)]
    expect(
        not wrong,
        f"{len(answers) - len(wrong)} of {len(answers)} are right. "
        "Write down the derivative of each: which of a, b, y stand in it?",
    )
    return "what a rule names is what a node keeps"


def _keeps(what: str) -> bool:
    a, b = (mg.full((1000,), v, requires_grad=True) for v in (1.0, 2.0))
    return any(getattr(v, "shape", ()) == (1000,) for v in eval(what, {"a": a, "b": b}).node.saved)


# ---- 02 autodiff --------------------------------------------------------------------------------
ORDERS = ("y u v h a b", "y u h v a b", "y v u h b a", "y u h a b v", "a b h u v y")


@check
def check_order(answers: dict) -> str:
    """Which orders of y = u · v, u = 3h, v = h + 1, h = a · b go on from whole gradients only."""
    readers = {"a": "h", "b": "h", "h": "uv", "u": "y", "v": "y", "y": ""}
    fits = lambda order: all(order.index(r) < order.index(v) for v in readers for r in readers[v])
    judged(answers, ORDERS)
    right = [says is fits(order.split()) for order, says in answers.items()]
    expect(
        all(right),
        f"{sum(right)} of {len(right)} are judged right. A value comes after all that read it",
    )
    return "readers first; among values that do not read each other the order is free"


@check
def check_engine(value: type, backward: Callable) -> str:
    """The reader's engine against minigrad: random graphs, upstream gradients other than 1."""
    for seed in range(200):
        rng = np.random.default_rng(seed)
        leaves, upstream, steps = (
            rng.normal(size=3),
            float(rng.normal()),
            rng.integers(0, 99, (rng.integers(3, 15), 3)),
        )
        own = [value(float(v)) for v in leaves]
        ours = [mg.tensor(v, dtype=mg.float64, requires_grad=True) for v in leaves.tolist()]
        y, z = _program(own, steps), _program(ours, steps)
        close(y.value, np.array(z.item()), f"graph {seed}: the value")
        backward(y, upstream)
        z.backward(mg.tensor(upstream, dtype=mg.float64))
        for k, (a, b) in enumerate(zip(own, ours)):
            close(
                a.grad,
                np.array(0.0 if b.grad is None else b.grad.item()),
                f"graph {seed}: the gradient of leaf {k}",
            )
    _twice(value, backward)
    _row_and_chain(value, backward)
    return "200 random graphs as minigrad says, a second backward adds, a row and a long chain take one visit a value"


def _twice(value: type, backward: Callable) -> None:
    x = value(2.0)
    for _ in range(2):
        backward(x * 3, 1.0)
    close(x.grad, np.array(6.0), "x * 3, backward twice on graphs of their own: the gradient of x")


def _row_and_chain(value: type, backward: Callable) -> None:
    """A row of doublings has many paths and few values; a chain is deep."""
    x, calls = value(1.0), []
    row = x
    for _ in range(40):
        row = row + row
        row.rule = _counted(row.rule, calls)
    backward(row, 1.0)
    close(x.grad, np.array(2.0**40), "the row of 40 doublings: the gradient of x")
    y = x = value(1.0)
    for _ in range(20_000):
        y = y + 1
    backward(y, 1.0)
    close(x.grad, np.array(1.0), "the chain of 20,000 additions: the gradient of x")


def _counted(rule: Callable, calls: list) -> Callable:
    def counting(g):
        calls.append(g)
        expect(len(calls) <= 400, "the row of 40 doublings: a rule was called more than 400 times for 41 values")
        return rule(g)

    return counting


def _program(values: list, steps: np.ndarray):
    """A random computation that both engines understand: each step reads two earlier values."""
    kinds = (
        lambda a, b: a + b,
        lambda a, b: a - b,
        lambda a, b: a * b,
        lambda a, b: (a * 2 + 0.5).tanh(),
    )
    values = list(values)
    for kind, i, j in steps:
        values.append(kinds[kind % 4](values[i % len(values)], values[j % len(values)]))
    return values[-1]


@check
def check_divide(divide: Callable) -> str:
    """divide(a, b) as a `Value` with a rule of its own, for an upstream gradient other than 1."""
    value = divide.__globals__["Value"]
    for a, b, g in ((6.0, 3.0, 1.0), (1.0, -4.0, 2.5), (-3.0, 0.5, -1.0)):
        parents = value(a), value(b)
        y = ask(divide, *parents)
        expect(isinstance(y, value), f"divide returns a {type(y).__name__}, expected a Value")
        close(y.value, np.array(a / b), f"divide({a}, {b})")
        expect(
            len(y.parents) == 2 and y.rule,
            f"divide({a}, {b}): expected two parents and a rule, got {len(y.parents)} parents",
        )
        expect(
            all(own is given for own, given in zip(y.parents, parents)),
            f"divide({a}, {b}): the parents are not the two values that were given, in their order",
        )
        found = y.rule(g)
        expect(
            len(found) == 2,
            f"the rule returns {len(found)} gradients, expected one for each of the 2 parents",
        )
        close(found[0], np.array(g / b), f"divide({a}, {b}), upstream {g}: the gradient of a")
        close(
            found[1], np.array(-g * a / b**2), f"divide({a}, {b}), upstream {g}: the gradient of b"
        )
    return "value and both gradients, also for an upstream gradient other than 1"


@check
def check_matmul_vjp(vjp: Callable) -> str:
    """vjp(g, a, b) -> (gradient of a, gradient of b) of y = a @ b."""
    for n, k, m in ((2, 3, 4), (1, 5, 1), (4, 4, 4)):
        a, b, g = (mg.randn(*s, generator=_stream(n * k + m)) for s in ((n, k), (k, m), (n, m)))
        found = ask(vjp, g, a, b)
        expect(
            isinstance(found, tuple | list) and len(found) == 2,
            f"return two gradients, got {type(found).__name__}",
        )
        for name, d, want in zip("ab", found, (g.array @ b.array.T, a.array.T @ g.array)):
            close(d, want, f"a {(n, k)} @ b {(k, m)}: the gradient of {name}")
    return "no Jacobian was built: two matrix products are enough"


@check
def check_softmax_vjp(vjp: Callable) -> str:
    """vjp(g, y) of y = softmax(x) along the last axis, from y alone."""
    for shape in ((3,), (2, 5)):
        x, g = (mg.randn(*shape, generator=_stream(k)) for k in (1, 2))
        y = x.softmax(-1)
        close(
            ask(vjp, g, y),
            y.array * (g.array - (g.array * y.array).sum(-1, keepdims=True)),
            f"softmax of shape {shape}: the gradient",
        )
    return "and the gradient over each row adds up to 0, since probabilities always add up to 1"


def _stream(seed: int) -> mg.Generator:
    return mg.Generator().manual_seed(seed)
