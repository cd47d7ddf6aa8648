"""Draws in place: by the seed, in the tensor's own memory, without a history."""

import numpy as np
import pytest

import minigrad as mg

DRAWS = {
    "normal_": ((2.0, 0.5), 2.0, 0.5),
    "uniform_": ((1.0, 3.0), 2.0, 2 / 12**0.5),
    "exponential_": ((0.5,), 2.0, 2.0),
    "bernoulli_": ((0.25,), 0.25, 0.1875**0.5),
    "geometric_": ((0.5,), 2.0, 2**0.5),
    "log_normal_": ((0.0, 0.25), np.exp(1 / 32), np.exp(1 / 32) * np.expm1(1 / 16) ** 0.5),
    "random_": ((0, 11), 5.0, 10**0.5),
}


@pytest.mark.parametrize("name", DRAWS)
def test_moments_and_seed(name):
    args, mean, std = DRAWS[name]
    x = mg.zeros(20000, dtype=mg.float64)
    memory = x.numpy()
    mg.manual_seed(3)
    assert getattr(x, name)(*args) is x and np.shares_memory(memory, x.numpy())
    assert abs(x.mean().item() - mean) < 5 * std / 141 and abs(x.std().item() - std) < 0.05 * std + 1e-9
    first = x.tolist()
    mg.manual_seed(3)
    assert getattr(mg.zeros(20000, dtype=mg.float64), name)(*args).tolist() == first
    assert getattr(x, name)(*args).tolist() != first                        # the next draw is another
    g = mg.Generator(9)
    again = getattr(mg.zeros(5), name)(*args, generator=g).tolist()
    assert getattr(mg.zeros(5), name)(*args, generator=mg.Generator(9)).tolist() == again


def test_the_median_of_cauchy_numbers():
    assert abs(mg.zeros(20001).cauchy_(3.0, 0.5).median().item() - 3) < 0.05


def test_a_draw_ends_the_history_of_what_it_writes():
    x = mg.ones(4, requires_grad=True)
    y = x * 2
    y[:2].normal_()
    y.sum().backward()
    assert x.grad.tolist() == [0, 0, 2, 2]
    with pytest.raises(RuntimeError, match="leaf"):
        x.uniform_()


def test_integers_and_refusals():
    n = mg.zeros(1000, dtype=mg.int64).random_(5)
    assert sorted(set(n.tolist())) == [0, 1, 2, 3, 4]
    assert set(mg.zeros(100, dtype=mg.bool).random_().tolist()) == {True, False}
    for bad in (
        lambda: mg.zeros(2).normal_(0, -1),
        lambda: mg.zeros(2).uniform_(2, 1),
        lambda: mg.zeros(2).exponential_(0),
        lambda: mg.zeros(2).bernoulli_(1.5),
        lambda: mg.zeros(2).geometric_(0),
        lambda: mg.zeros(2).random_(5, 5),
        lambda: n.normal_(),
    ):
        with pytest.raises(RuntimeError):
            bad()
