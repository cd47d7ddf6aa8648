"""The kernels of the host compute what the ops say, in pieces of any size and in any number of lanes."""

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np
import pytest

import minigrad as mg
from minigrad import kernels, lanes
from minigrad.algebra import algebra
from minigrad.device import CPU
from minigrad.nn import functional as F
from minigrad.ops.conv import Conv2d, MaxPool2d
from minigrad.ops.fused import BatchNorm
from minigrad.ops.norms import GroupNorm
from minigrad.ops.sorting import TopK

F8 = algebra(CPU, np.dtype("f8"))
CONVOLUTIONS = [  # x, w, stride, padding, dilation, groups
    ((3, 2, 6, 5), (4, 2, 3, 2), (1, 1), (0, 0), (1, 1), 1),
    ((3, 2, 6, 5), (4, 2, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    ((2, 4, 6, 7), (6, 2, 3, 3), (1, 1), (1, 2), (1, 1), 2),
    ((2, 4, 7, 7), (4, 1, 3, 3), (1, 1), (2, 2), (2, 1), 4),
    ((2, 3, 7, 6), (2, 3, 3, 2), (2, 1), (1, 0), (1, 1), 1),
    ((2, 4, 7, 6), (2, 2, 3, 2), (2, 3), (1, 1), (1, 2), 2),
    ((3, 2, 4, 4), (5, 2, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    ((3, 4, 4, 4), (6, 2, 1, 1), (1, 1), (0, 0), (1, 1), 2),
    ((3, 2, 5, 4), (5, 2, 1, 1), (2, 2), (0, 0), (1, 1), 1),
    ((2, 2, 4, 4), (9, 2, 3, 3), (1, 1), (0, 0), (1, 1), 1),
    ((2, 2, 4, 4), (2, 2, 2, 2), (1, 1), (3, 3), (1, 1), 1),
    ((1, 1, 1, 1), (1, 1, 1, 1), (1, 1), (0, 0), (1, 1), 1),
]


@pytest.fixture(params=["whole", "pieces", "lanes", "lanes and pieces"])
def cut_up(request, monkeypatch):
    """Every way to cut the work up."""
    if "pieces" in request.param:
        monkeypatch.setattr(kernels, "CACHE_BYTES", 1)
    if "lanes" in request.param:
        monkeypatch.setattr(lanes, "WORTH_BYTES", 0)
        switch = Blas(2)
        monkeypatch.setattr(lanes, "_blas", lambda: switch)


class Blas:
    """A switch that remembers."""

    def __init__(self, threads):
        self.threads, self.told = threads, []

    def get_num_threads(self):
        return self.threads

    def set_num_threads(self, n):
        self.threads = n
        self.told.append(n)


def drawn(*shapes):
    rng = np.random.default_rng(5)
    return [rng.standard_normal(s) for s in shapes]


def in_general(monkeypatch, function):
    """What `function` gives without the kernels."""
    with monkeypatch.context() as m:
        m.setattr(kernels, "serves", lambda *arrays: False)
        return function()


# ---- convolution -------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", CONVOLUTIONS, ids=str)
def test_a_convolution_is_the_sum_over_windows(sizes, cut_up):
    x, w = drawn(*sizes[:2])
    y = kernels.convolve(kernels.convolution(*sizes), x, w)
    np.testing.assert_allclose(y, Conv2d.of(*sizes[2:]).reference(x, w), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("sizes", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True)])
def test_its_gradients_are_its_adjoints(sizes, needs, cut_up):
    c, (x, w) = kernels.convolution(*sizes), drawn(*sizes[:2])
    (g,) = drawn((x.shape[0], w.shape[0], *c.out))
    dx, dw = kernels.convolve_back(c, needs, g, x if needs[1] else None, w if needs[0] else None)
    assert (dx is not None, dw is not None) == needs
    other_x, other_w = drawn(x.shape, w.shape)
    if needs[0]:
        np.testing.assert_allclose((dx * other_x).sum(), (kernels.convolve(c, other_x, w) * g).sum(), rtol=1e-10)
    if needs[1]:
        np.testing.assert_allclose((dw * other_w).sum(), (kernels.convolve(c, x, other_w) * g).sum(), rtol=1e-10)


@pytest.mark.parametrize("sizes", CONVOLUTIONS, ids=str)
def test_host_and_general_rules_agree(sizes, monkeypatch):
    op, (x, w) = Conv2d.of(*sizes[2:]), drawn(*sizes[:2])
    (g,) = drawn((x.shape[0], w.shape[0], *kernels.convolution(*sizes).out))
    all_of_it = lambda: (op.forward(F8, x, w), *op.vjp(F8, (True, True), g, x, w))
    for here, there in zip(all_of_it(), in_general(monkeypatch, all_of_it)):
        np.testing.assert_allclose(here, there, rtol=1e-11, atol=1e-12)


def test_both_ways_back_are_taken():
    ways = {kernels.convolution(*sizes).turned is None for sizes in CONVOLUTIONS}
    assert ways == {True, False}


def test_inputs_may_lie_in_any_order_and_stay_as_they_are():
    x, w, g = drawn((5, 2, 6, 3), (4, 2, 3, 3), (3, 4, 5, 6))
    x, g = x.transpose(3, 1, 0, 2), g                                    # (3, 2, 5, 6)
    before = x.copy(), w.copy(), g.copy()
    c = kernels.convolution(x.shape, w.shape, (1, 1), (1, 1), (1, 1), 1)
    y, back = kernels.convolve(c, x, w), kernels.convolve_back(c, (True, True), g, x, w)
    dense = np.ascontiguousarray(x)
    np.testing.assert_array_equal(y, kernels.convolve(c, dense, w))
    for here, there in zip(back, kernels.convolve_back(c, (True, True), g, dense, w)):
        np.testing.assert_array_equal(here, there)
    for array, was in zip((x, w, g), before):
        np.testing.assert_array_equal(array, was)


@pytest.mark.parametrize("dtype", ["f2", "i8"])
def test_other_dtypes_go_the_general_way(dtype):
    assert not kernels.serves(np.ones(3, dtype)) and not kernels.serves(np.ones(3, "f4"), np.ones(3, "f8"))
    assert not kernels.serves(mg.ones(3)) and kernels.serves(np.ones(3, "f4")) and not kernels.serves(np.ones(0, "f4"))


# ---- the largest of windows --------------------------------------------------------------------------

POOLS = [((2, 2), (2, 2), (0, 0), (1, 1)), ((3, 2), (1, 2), (1, 1), (1, 1)), ((2, 3), (1, 1), (0, 1), (2, 1)),
         ((1, 2), (3, 3), (0, 0), (1, 1)), ((2, 2), (3, 1), (1, 0), (1, 1))]


@pytest.mark.parametrize("pool", POOLS, ids=str)
@pytest.mark.parametrize("values", ["distinct", "ties", "nan"])
def test_the_largest_and_where_it_stands(pool, values, monkeypatch):
    op, (x,) = MaxPool2d.of(*pool), drawn((2, 3, 7, 6))
    x = np.round(x) if values == "ties" else np.where(x > 1, np.nan, x) if values == "nan" else x
    (y, index), (want, at) = op.forward(F8, x), in_general(monkeypatch, lambda: op.forward(F8, x))
    np.testing.assert_array_equal(y, want)
    np.testing.assert_array_equal(index, at)
    assert index.dtype == np.int64
    (g,) = drawn(y.shape)
    np.testing.assert_allclose(op.dx(F8, g, x.shape, index),
                               in_general(monkeypatch, lambda: op.dx(F8, g, x.shape, index)), rtol=1e-14)


# ---- batch normalisation -----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4, 3, 5), (3, 2, 4, 5), (1, 2, 2, 2, 2)], ids=str)
def test_batch_norm_and_its_gradient_are_the_rules_of_the_op(shape, cut_up, monkeypatch):
    op, (x, g) = BatchNorm.of(1e-3), drawn(shape, shape)
    x, (w, b) = x * 3 + 7, drawn((shape[1],), (shape[1],))
    y, mean, var = op.forward(F8, x, w, b)
    needs = [op.vjp(F8, (needed, True, True), g, x, w, mean, var) for needed in (True, False)]
    with monkeypatch.context() as m:
        m.setattr(kernels, "serves", lambda *arrays: False)
        want, back = op.forward(F8, x, w, b), op.vjp(F8, (True, True, True), g, x, w, mean, var)
    for here, there in zip((y, mean, var, *needs[0]), (*want, *back)):
        assert here.shape == there.shape
        np.testing.assert_allclose(here, there, rtol=1e-9, atol=1e-11)
    assert needs[1][0] is None and all((a == b).all() for a, b in zip(needs[0][1:], needs[1][1:]))


def test_a_large_mean_costs_no_digits():
    x = (np.random.default_rng(0).standard_normal((64, 2, 50)) + 1000).astype("f4")
    y, _, var = kernels.normalise(x, np.ones(2, "f4"), np.zeros(2, "f4"), 0.0)
    exact = x.astype("f8") - x.astype("f8").mean((0, 2), keepdims=True)
    np.testing.assert_allclose(var[:, 0], (exact**2).mean((0, 2)), rtol=1e-4)
    np.testing.assert_allclose(y, exact / np.sqrt((exact**2).mean((0, 2), keepdims=True)), atol=1e-3)


@pytest.mark.parametrize("shape, groups", [((3, 6, 5), 2), ((2, 4, 2, 3), 4), ((2, 3), 1), ((5, 2, 1, 1), 1)])
def test_group_norm_and_its_gradient_are_the_rules_of_the_op(shape, groups, cut_up, monkeypatch):
    op, (x, g) = GroupNorm.of(groups, 1e-3), drawn(shape, shape)
    x, (w, b) = x * 3 + 7, drawn((shape[1],), (shape[1],))
    all_of_it = lambda: (*(out := op.forward(F8, x, w, b)), *op.vjp(F8, (True,) * 3, g, x, w, *out[1:]))
    for here, there in zip(all_of_it(), in_general(monkeypatch, all_of_it), strict=True):
        assert here.shape == there.shape
        np.testing.assert_allclose(here, there, rtol=1e-9, atol=1e-10)


# ---- the first of an order -----------------------------------------------------------------------------


@pytest.mark.parametrize("values", ["distinct", "ties", "nan", "infinite"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("largest", [True, False])
def test_the_first_are_those_of_the_stable_sort(values, axis, largest, monkeypatch):
    (x,) = drawn((40, 50))
    x = np.round(4 * x) if values == "ties" else x
    if values in ("nan", "infinite"):
        x[np.abs(x) > 1.5] = np.nan if values == "nan" else np.inf
    op = TopK.of(axis, 5, largest)
    (y, index), (want, at) = op.forward(F8, x), in_general(monkeypatch, lambda: op.forward(F8, x))
    np.testing.assert_array_equal(y, want)
    np.testing.assert_array_equal(index, at)


def test_only_ties_and_nan_are_sorted():
    (x,) = drawn((40, 50))
    assert kernels.first(x, 5, True) is not None and kernels.first(np.round(x), 5, True) is None
    x[0, 0], x[1, :6] = np.nan, 9.0                     # one row has an element too few, one has one too many
    assert kernels.first(x, 5, True) is None


# ---- lanes -------------------------------------------------------------------------------------------


@pytest.fixture
def blas(monkeypatch):
    switch = Blas(3)
    monkeypatch.setattr(lanes, "_blas", lambda: switch)
    return switch


def test_lanes_cover_the_batch_in_order_and_restore_the_threads_of_blas(blas):
    seen = lanes.in_lanes(lambda a, b: (a, b, blas.threads, threading.get_ident()), 7, lanes.WORTH_BYTES)
    assert [s[:3] for s in seen] == [(0, 2, 1), (2, 4, 1), (4, 7, 1)]
    assert seen[0][3] == threading.get_ident() != seen[1][3]
    assert blas.threads == 3 and blas.told == [1, 3]


@pytest.mark.parametrize("n, nbytes", [(1, 1 << 30), (7, 10)])
def test_little_work_and_single_rows_stay_in_one_lane(blas, n, nbytes):
    assert lanes.in_lanes(lambda a, b: (a, b), n, nbytes) == [(0, n)] and not blas.told


@pytest.mark.parametrize("where", [0, 2, 4])
def test_an_error_in_a_lane_is_raised_when_all_have_ended(blas, where):
    ended = []

    def work(a, b):
        ended.append(a)
        if a == where:
            raise FloatingPointError(f"lane {a}")

    with pytest.raises(FloatingPointError, match=f"lane {where}"):
        lanes.in_lanes(work, 7, lanes.WORTH_BYTES)
    assert sorted(ended) == [0, 2, 4] and blas.threads == 3


def test_lanes_see_the_context_of_their_caller(blas):
    with np.errstate(over="ignore"), warnings.catch_warnings():
        warnings.simplefilter("error")
        lanes.in_lanes(lambda a, b: np.exp(np.full(3, 1e4)), 3, lanes.WORTH_BYTES)


def test_training_gives_the_same_numbers_twice(blas, monkeypatch):
    monkeypatch.setattr(lanes, "WORTH_BYTES", 0)
    x, w = (mg.tensor(a.astype("f4"), requires_grad=True) for a in drawn((6, 3, 8, 8), (4, 3, 3, 3)))
    runs = []
    for _ in range(2):
        x.grad = w.grad = None
        y = F.batch_norm(F.conv2d(x, w, padding=1), None, None, training=True)
        (F.max_pool2d(y, 2) * mg.arange(16.0).reshape(4, 4)).sum().backward()
        runs.append((x.grad.numpy(), w.grad.numpy()))
    for a, b in product(range(2), repeat=2):
        np.testing.assert_array_equal(runs[a][0], runs[b][0])
        np.testing.assert_array_equal(runs[a][1], runs[b][1])


@pytest.mark.parametrize("key", [(), (slice(0, 2),), (slice(None), slice(None, None, 2))])
@pytest.mark.parametrize("shape", [(3000,), (30, 70)])
def test_rows_that_are_read_often_get_the_sum_of_their_gradients(shape, key):
    rng = np.random.default_rng(0)
    x = mg.tensor(rng.standard_normal((7, 5, 3)), requires_grad=True)
    index = rng.integers(-7, 7, shape)
    y = x[(mg.tensor(index), *key)]
    g = rng.standard_normal(y.shape)
    y.backward(mg.tensor(g))
    expected = np.zeros((7, 5, 3))
    np.add.at(expected, (index, *key), g)
    assert np.allclose(x.grad.numpy(), expected, rtol=0, atol=1e-12)


def test_sigmoid_of_what_overflows_is_quiet_in_every_thread():
    x = mg.full((4096,), -1e4)
    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(lambda _: bool((mg.sigmoid(x) == 0).all()), range(64)))
