"""The three ways through the engine give the same bits: flattened doors, `apply`, and the rules themselves.

Doors run forward on the host and `apply` under an observer; `backward` runs compiled pulls and `grad` the rules.
"""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import minigrad as mg
from minigrad.ops.doors import function
from minigrad.ops.matmul import linear
from minigrad.ops.reduce import Sum

UNARY = ("exp", "tanh", "relu", "sigmoid", "neg", "abs", "square", "sin", "cos", "sign")
BINARY = (
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: a * b,
    lambda a, b: a / (b * b + 1),
    mg.maximum,
    mg.minimum,
    lambda a, b: mg.where(a > b, a, b * 2),
)
NUMBERS = (2, -1.5, 0.0, -0.0, True, 1e30, np.float32(3.5), 0.5)
SHAPES = ((3, 4), (4,), (3, 1), (), (1, 4), (0, 4))

steps = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8
)
shapes = st.lists(st.sampled_from(SHAPES[:5]), min_size=2, max_size=3) | st.just([(0, 4), (4,)])


def leaves(shapes, dtype):
    r = np.random.default_rng(0)
    return [mg.tensor(r.standard_normal(s).astype(dtype), requires_grad=k != 2) for k, s in enumerate(shapes)]


def step(values, kind, i, j, k):
    a, b, n = values[i % len(values)], values[j % len(values)], NUMBERS[k % len(NUMBERS)]
    try:
        np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        b = b.sum()
    if kind == 0:
        return getattr(a, UNARY[k % len(UNARY)])()
    if kind == 1:
        return BINARY[k % len(BINARY)](a, b)
    if kind == 2:
        return (a + n, n - a, a * n, n * a, a / 3, a**2, a.clamp(-1, 1))[j % 7]
    if kind == 3:
        return a.sum(0 if a.ndim else None, keepdim=j % 2 == 0) if k % 2 else a.mean()
    if kind == 4:
        return (a.T, a.reshape(-1), a.expand(2, *a.shape))[k % 3]
    return a @ b if a.ndim == b.ndim == 2 and a.shape[1] == b.shape[0] else (a - b).tanh()


def run(program, xs):
    values = list(xs)
    for s in program:
        values.append(step(values, *s))
    return sum((v * (k + 0.5)).sum() for k, v in enumerate(values))


def bits(tensors):
    return [None if t is None else (t.dtype, t.shape, t.numpy().tobytes()) for t in tensors]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@settings(max_examples=80, deadline=None, derandomize=True)
@given(program=steps, shapes=shapes)
def test_every_way_gives_the_same_bits(dtype, program, shapes):
    def by(watched, rules):
        xs = leaves(shapes, dtype)
        if watched:
            with mg.observe(lambda *_: None):
                y = run(program, xs)
        else:
            y = run(program, xs)
        wanted = [x for x in xs if x.requires_grad]
        if rules:
            return bits([y.detach(), *mg.autograd.grad(y, wanted, allow_unused=True)])
        y.backward()
        return bits([y.detach(), *(x.grad for x in wanted)])

    with np.errstate(all="ignore"):
        want = by(watched=True, rules=True)
        assert by(watched=False, rules=False) == want
        assert by(watched=True, rules=False) == want
        assert by(watched=False, rules=True) == want


def test_a_door_takes_subclasses_numbers_and_nothing_else():
    p = mg.nn.Parameter(mg.ones(2))
    for y in (p + 1, 1 + p, p * p, mg.add(1, p), mg.fmod(p, 3), p.exp(), p.sum(), p - mg.ones(2)):
        assert y.requires_grad and type(y) is mg.Tensor
    for bad in (
        lambda: mg.add(1, 2),
        lambda: mg.exp(1.0),
        lambda: mg.add(p, "x"),
        lambda: mg.maximum(p, [1]),
        lambda: mg.relu(None),
        lambda: mg.where(p, p, p),
    ):
        with pytest.raises(TypeError, match="Tensor|bool"):
            bad()
    for bad in (lambda: p + "x", lambda: [1] * p, lambda: p - None, lambda: p @ 2, lambda: p < "x", lambda: p ** (1j)):
        with pytest.raises(TypeError):
            bad()
    assert (p == None) is False and (p != "x") is True  # noqa: E711


def test_a_door_knows_an_error_and_says_it_as_apply_does():
    for f in (
        lambda: mg.ones(2) + mg.ones(3),
        lambda: mg.ones(2, 3) @ mg.ones(2, 3),
        lambda: linear(mg.ones(2, 3), mg.ones(4, 2), mg.ones(4)),
        lambda: linear(mg.ones(2, 3), mg.ones(5, 4, 3)),
    ):
        with pytest.raises(RuntimeError) as plain:
            f()
        with mg.observe(lambda *_: None), pytest.raises(RuntimeError) as watched:
            f()
        assert str(plain.value) == str(watched.value) and "(" in str(plain.value)


def test_constants_are_kept_apart():
    """-0.0 is not 0.0, True is not 1, and a constant of another dtype is another constant."""
    x = mg.tensor([1.0])
    assert (
        np.signbit((x * 0.0).numpy()) == [False]
        and np.signbit((x * -0.0).numpy()) == [True]
        and np.signbit((-0.0 * x).numpy()) == [True]
    )
    i = mg.tensor([3])
    assert (i * True).dtype == (i * 1).dtype == mg.int64 and (i * 1.0).dtype == mg.float32
    assert (mg.tensor([True]) * True).dtype == mg.bool_ and (mg.tensor([True]) * 1).dtype == mg.int64
    assert (x * 1e30).item() == np.float32(1e30) and (x * 2**70).item() == 2.0**70 and (x * float("nan")).isnan().item()
    y = mg.fmod(x, 5.0)
    y.zero_()
    assert mg.fmod(x * 0 + 7, 5.0).item() == 2.0


def test_an_op_is_interned_by_its_attributes():
    assert function(Sum, (0,), True) is function(Sum, (0,), True) is not function(Sum, (0,), False)
    assert Sum.of((0,), True) is function(Sum, (0,), True)(mg.ones(1, requires_grad=True)).grad_fn.op


def test_text_computes_no_value_twice():
    """A rule that uses a value twice is called, where text would write the value out twice (silu once cost double)."""
    from minigrad.ops.activations import Silu
    from minigrad.ops.symbols import NUMBA, PYTHON, NotSymbolic, emit

    with pytest.raises(NotSymbolic, match="twice"):
        emit(Silu.of(), PYTHON, "x")
    assert emit(Silu.of(), NUMBA, "x").count("exp") == 2          # there the compiler finds equal parts
