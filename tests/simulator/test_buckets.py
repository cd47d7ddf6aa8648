"""Buckets on the clock: what overlaps, what it costs, in which order they go; and gradients that are compressed or have
few rows."""
from __future__ import annotations

import numpy as np
import pytest

import minigrad as mg
from minigrad import nn
from simulator import shapes
from simulator.cluster import Cluster, uniform
from simulator.collectives import closed_form
from simulator.compression import ErrorFeedback, Float16, Int8, PowerSGD, TopK
from simulator.device import device
from simulator.spawn import spawn
from simulator.strategies import DDP, reducer, token_loss
from simulator.strategies.buckets import MIB, assign_buckets
from simulator.topology import Link

ALPHA_S, BYTES_PER_S = 3e-6, 1e9
EPS = np.finfo(np.float64).eps


def on_a_ring(n):
    return Cluster((device("A100"),) * n, shapes.ring(n, Link("wire", BYTES_PER_S, ALPHA_S)))


# ---- which parameters travel together ------------------------------------------------------------
def params(*sizes, dtype=mg.float32):
    return [mg.zeros(n, dtype=dtype) for n in sizes]


def numbers(buckets):
    return [b.numbers for b in buckets]


def test_a_bucket_closes_when_it_has_as_many_bytes_as_were_said():
    ps = params(10, 10, 10, 30, 5)
    assert numbers(assign_buckets(ps, range(5), 80)) == [(0, 1), (2, 3), (4,)]
    assert numbers(assign_buckets(ps, [4, 3, 2, 1, 0], 80)) == [(4, 3), (2, 1), (0,)]
    assert numbers(assign_buckets(ps, range(5), 0)) == [(0,), (1,), (2,), (3,), (4,)]
    assert numbers(assign_buckets(ps, range(5), 1e9)) == [(0, 1, 2, 3, 4)]


def test_the_first_is_small_so_that_sending_begins_early():
    ps = params(*[MIB // 16] * 12)                           # of a quarter MiB
    assert numbers(assign_buckets(ps, range(12), 2 * MIB)) == [tuple(range(4)), tuple(range(4, 12))]


def test_dtypes_are_apart_and_rows_alone_in_the_order_in_which_they_are_complete():
    ps = [*params(4, 4), *params(2, 2, dtype=mg.float64), *params(9)]
    got = assign_buckets(ps, [0, 2, 4, 1, 3], 32, frozenset({4}))
    assert [(b.numbers, b.rows) for b in got] == [((4,), True), ((0, 1), False), ((2, 3), False)]


@pytest.mark.parametrize("seed", range(20))
def test_every_parameter_is_in_one_bucket(seed):
    rng = np.random.default_rng(seed)
    ps = [*params(*rng.integers(0, 50, 8)), *params(*rng.integers(0, 50, 8), dtype=mg.float64)]
    order = rng.permutation(16).tolist()
    got = assign_buckets(ps, order, int(rng.integers(0, 400)), frozenset(rng.integers(0, 16, 2).tolist()))
    assert sorted(k for b in got for k in b.numbers) == list(range(16))
    for b in got:
        assert len({ps[k].dtype for k in b.numbers}) == 1
        assert [order.index(k) for k in b.numbers] == sorted(order.index(k) for k in b.numbers)


# ---- times ---------------------------------------------------------------------------------------
class Slow(mg.autograd.Function):
    """Identity, whose gradient takes so many seconds."""

    @staticmethod
    def forward(ctx, x, comm, seconds):
        ctx.comm, ctx.seconds = comm, seconds
        return x

    @staticmethod
    def backward(ctx, g):
        ctx.comm.compute(ctx.seconds)
        return g, None, None


class Layers(nn.Module):
    """`count` layers of size², the gradient of each of which takes `seconds`."""

    def __init__(self, comm, count, size, seconds):
        self.layers = nn.ModuleList([nn.Linear(size, size, bias=False) for _ in range(count)])
        self.comm, self.seconds = comm, seconds

    def forward(self, x):
        for layer in self.layers:
            x = Slow.apply(layer(x), self.comm, self.seconds)
        return x


def step(comm, count, size, seconds, how):
    """When a step began and ended, after one that has told the order."""
    ddp = DDP(Layers(comm, count, size, seconds), comm, algorithm="ring", **how)
    for _ in range(2):
        comm.barrier()
        begin_s = comm.time
        ddp(mg.ones(1, size)).sum().backward()
    return begin_s, comm.time


def step_s(n, *args):
    """From where the last rank begins until the last is done."""
    begins, ends = zip(*spawn(step, n, *args, cluster=on_a_ring(n)).values)
    return max(ends) - max(begins)


@pytest.mark.parametrize("n", (2, 3, 4, 5))
@pytest.mark.parametrize("ratio", (0.1, 0.9, 1.0, 1.1, 7.0))
def test_steps_take_as_long_as_their_formula_says(n, ratio):
    """L layers of c seconds each, r for the all-reduce of one: naive L (c + r); one bucket L c + r(L layers);
    overlapped c + L r where r >= c, else L c + r."""
    count, size = 6, 30
    nbytes = 4 * size * size
    r = closed_form("all_reduce", "ring", n, nbytes, ALPHA_S, BYTES_PER_S).time_s
    c = r * ratio
    naive = step_s(n, count, size, c, {"bucket_cap_mb": 0, "overlap": False})
    one = step_s(n, count, size, c, {"overlap": False})
    overlapped = step_s(n, count, size, c, {"bucket_cap_mb": 0})
    whole = closed_form("all_reduce", "ring", n, count * nbytes, ALPHA_S, BYTES_PER_S).time_s
    assert naive == pytest.approx(count * (c + r), rel=1e-9)
    assert one == pytest.approx(count * c + whole, rel=1e-9)
    assert overlapped == pytest.approx(max(c + count * r, count * c + r), rel=1e-9)


@pytest.mark.parametrize("n", (2, 3, 5, 8))
@pytest.mark.parametrize("size", (2, 16))
def test_overlapped_is_never_later_than_bucketed_nor_that_than_naive(n, size):
    """For messages that cost their latency, with every op of the model on the clock."""
    def program(comm, how):
        mg.manual_seed(0)
        model = nn.Sequential(*[m for _ in range(5) for m in (nn.Linear(size, size), nn.Tanh())])
        ddp = DDP(model, comm, **how)
        for _ in range(3):
            comm.barrier()
            begin_s = comm.time
            ddp(mg.ones(4, size)).sum().backward()
            took_s = comm.time - begin_s
        return took_s
    for cap in (25, 16 * size * size / MIB):
        naive, bucketed, overlapped = (
            max(spawn(program, n, how, timed=True).values)
            for how in ({"bucket_cap_mb": 0, "overlap": False}, {"bucket_cap_mb": cap, "overlap": False},
                        {"bucket_cap_mb": cap}))
        assert overlapped <= bucketed < naive
        assert overlapped < bucketed or cap == 25            # one bucket is full when backward is over


def test_bytes_of_a_step_are_those_of_one_ring_all_reduce_of_the_gradients():
    def program(comm, steps):
        ddp = DDP(nn.Linear(30, 20), comm, algorithm="ring")
        for _ in range(steps):
            ddp(mg.ones(1, 30)).sum().backward()
    for n in (2, 3, 4):
        once, twice = (spawn(program, n, steps, cluster=on_a_ring(n)).nbytes.sum() for steps in (1, 2))
        want = closed_form("all_reduce", "ring", n, 4 * 620, ALPHA_S, BYTES_PER_S).total_bytes
        assert twice - once == pytest.approx(want)


# ---- the order of buckets ------------------------------------------------------------------------
class Shuffled(nn.Module):
    """Layers used in an order that may change."""

    def __init__(self):
        self.layers = nn.ModuleList([nn.Linear(3, 3, bias=False) for _ in range(4)])

    def forward(self, x, order):
        for k in order:
            x = self.layers[k](x)
        return x


def orders(comm, used, **how):
    """The order of buckets after each step."""
    ddp, seen = DDP(Shuffled(), comm, bucket_cap_mb=0, **how), []
    for order in used:
        ddp.zero_grad()
        ddp(mg.ones(1, 3) * (comm.rank + 1), order).sum().backward()
        seen.append(ddp.reducer.order)
    return seen


def test_buckets_go_in_the_real_order_of_backward_from_the_second_step():
    assert spawn(orders, 3, [(2, 0, 3, 1)] * 2).values == [[(1, 3, 0, 2)] * 2] * 3


def test_the_order_of_rank_0_counts_where_ranks_differ():
    def program(comm):
        return orders(comm, [(0, 1, 2, 3) if comm.rank else (3, 2, 1, 0)] * 2)
    assert spawn(program, 2).values == [[(0, 1, 2, 3)] * 2] * 2


def test_it_is_looked_at_again(monkeypatch):
    monkeypatch.setattr(reducer, "LOOK_AGAIN", 3)
    used = [(0, 1, 2, 3), (3, 2, 1, 0), (3, 2, 1, 0)]
    assert spawn(orders, 2, used).values == [[(3, 2, 1, 0), (3, 2, 1, 0), (0, 1, 2, 3)]] * 2


def test_where_who_takes_part_is_asked_the_order_follows_at_once():
    used = [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3)]
    want = [(3, 2, 1, 0), (0, 1, 2, 3), (3, 1, 0, 2)]
    assert spawn(orders, 2, used, find_unused_parameters=True).values == [want] * 2


def test_without_overlap_nothing_is_asked():
    assert spawn(orders, 2, [(2, 0, 3, 1)], overlap=False).values == [[(3, 2, 1, 0)]] * 2


# ---- sums ----------------------------------------------------------------------------------------
def test_sums_of_float16_do_not_overflow():
    def program(comm):
        model = nn.Linear(1, 1, bias=False).half()
        DDP(model, comm)(mg.full((1, 1), 60000.0, dtype=mg.float16)).sum().backward()
        return model.weight.grad.item()
    assert spawn(program, 4).values == [59999.0 + 1] * 4


def test_gradient_as_sum():
    def program(comm):
        mg.manual_seed(0)
        model = nn.Linear(2, 1).double()
        DDP(model, comm, gradient_as="sum")(mg.ones(1, 2, dtype=mg.float64) * comm.rank).sum().backward()
        return model.weight.grad.tolist()
    assert spawn(program, 3).values == [[[3.0, 3.0]]] * 3


# ---- compressed ----------------------------------------------------------------------------------
X = np.random.default_rng(2).standard_normal((4, 8))


def compressed(comm, make, steps=1, cap=25, zero=True, **how):
    mg.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    ddp = DDP(model, comm, compression=make, bucket_cap_mb=cap, **how)
    total = None
    for _ in range(steps):
        ddp.zero_grad()
        ddp(mg.tensor(X[comm.rank::comm.world_size])).sum().backward()
        grads = [p.grad.numpy().copy() for p in model.parameters()]
        total = grads if total is None else [a + b for a, b in zip(total, grads)]
    return total, ddp.reducer.compressors


def exact(world):
    return [a * 1.0 for a in spawn(compressed, world, None).values[0][0]]


@pytest.mark.parametrize("world", (1, 2, 4))
@pytest.mark.parametrize("cap", (0, 25))
def test_all_values_kept_is_no_compression(world, cap):
    """TopK of everything, and PowerSGD where a factor would be no smaller, send the gradients themselves."""
    for make in (lambda: TopK(10**6), lambda: PowerSGD(8), lambda: ErrorFeedback(TopK(10**6))):
        for grads, _ in spawn(compressed, world, make, cap=cap).values:
            for a, b in zip(grads, exact(world)):
                np.testing.assert_allclose(a, b, rtol=1e-14, atol=1e-14)


def test_the_sum_instead_of_the_mean():
    got = spawn(compressed, 3, lambda: TopK(10**6), gradient_as="sum").values[0][0]
    for a, b in zip(got, exact(3)):
        np.testing.assert_allclose(a, 3 * b, rtol=1e-13)


def test_float16_is_near_and_the_same_on_all_ranks():
    ranks = [grads for grads, _ in spawn(compressed, 2, Float16).values]
    for a, b, want in zip(*ranks, exact(2)):
        assert np.array_equal(a, b)
        np.testing.assert_allclose(a, want, rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("cap", (0, 25))
def test_error_feedback_loses_nothing_over_the_steps(cap):
    """The sum of what was applied and the mean of what is left in the memories are the sum of the gradients."""
    steps, world = 5, 2
    ranks = spawn(compressed, world, lambda: ErrorFeedback(TopK(0.2)), steps, cap).values
    left = [np.concatenate([c.residual.reshape(-1) for _, c in sorted(compressors.items())])
            for _, compressors in ranks]
    order = (3, 2, 1, 0)                                     # buckets begin at the last parameter
    applied = np.concatenate([ranks[0][0][k].reshape(-1) for k in order])
    want = np.concatenate([steps * exact(world)[k].reshape(-1) for k in order])
    np.testing.assert_allclose(applied + sum(left) / world, want, rtol=1e-12, atol=1e-12)
    assert np.abs(left[0]).max() > 0


def test_each_bucket_has_a_compressor_of_its_own_and_matrices_their_shape():
    _, compressors = spawn(compressed, 2, lambda: PowerSGD(1), 2, 0).values[0]
    assert len(compressors) == 4 and {c.q is None or c.q.shape for c in compressors.values()} == {True, (8, 1)}


def test_fewer_bytes_travel():
    def program(comm, make):
        mg.manual_seed(0)
        ddp = DDP(nn.Linear(100, 100), comm, compression=make)
        ddp(mg.ones(1, 100)).sum().backward()
    full, half, int8, few = (int(spawn(program, 2, make).nbytes.sum()) for make in
                             (None, Float16, lambda: Int8(256), lambda: TopK(0.01)))
    start = 40_400                                           # of the values on wrapping
    assert full > half > int8 > few > start


def test_a_compressor_itself_is_no_way_to_make_one():
    with pytest.raises(Exception, match="compression=lambda: TopK"):
        spawn(compressed, 2, TopK(0.1))


def test_seconds_on_a_switch_of_unequal_devices():
    """One device is slow: the others wait for its bucket, and all end together."""
    slow = uniform(3, device("A100"))
    slow = slow.with_(device={1: slow.devices[1].with_(efficiency=slow.devices[1].efficiency / 4)})

    def program(comm):
        model = nn.Linear(512, 512, bias=False)
        DDP(model, comm)(mg.ones(2048, 512)).sum().backward()
        return comm.time
    times = spawn(program, 3, cluster=slow, timed=True).values
    assert max(times) - min(times) < 0.05 * max(times)


# ---- few rows -----------------------------------------------------------------------
@pytest.mark.parametrize("sparse", (True, False))
@pytest.mark.parametrize("world", (1, 2, 3, 4, 5))
def test_rows_of_a_table(world, sparse):
    words = np.random.default_rng(3).integers(0, 20, (6, 4))

    def model_of():
        mg.manual_seed(0)
        return nn.Sequential(nn.Embedding(20, 3, sparse=sparse), nn.Flatten(), nn.Linear(12, 1)).double()

    def program(comm):
        model = model_of()
        ddp = DDP(model, comm, bucket_cap_mb=3e-4)
        for _ in range(2):
            ddp.zero_grad()
            x = mg.tensor(words[comm.rank::comm.world_size])
            token_loss((ddp(x) ** 2).sum(), len(x), comm).backward()
        grad = model[0].weight.grad
        assert getattr(grad, "is_sparse", False) == sparse
        return grad.to_dense() if sparse else grad, model[2].weight.grad
    alone = model_of()
    ((alone(mg.tensor(words)) ** 2).sum() / 6).backward()
    want = alone[0].weight.grad
    for table, weight in spawn(program, world).values:
        for got, ref in ((table, want.to_dense() if sparse else want), (weight, alone[2].weight.grad)):
            np.testing.assert_allclose(got.numpy(), ref.numpy(), rtol=0, atol=64 * EPS * np.abs(ref.numpy()).max())


def test_few_rows_send_fewer_bytes_than_the_table():
    def program(comm, sparse):
        mg.manual_seed(0)
        model = nn.Embedding(10_000, 4, sparse=sparse)
        DDP(model, comm)(mg.tensor([comm.rank, 7])).sum().backward()
    few, all_rows = (spawn(program, 2, sparse).nbytes.sum() for sparse in (True, False))
    start = 4 * 40_000                                       # of the broadcast on wrapping
    assert few - start < 500 and all_rows - start > start * 1.99

    def often(comm):
        DDP(nn.Embedding(10_000, 4, sparse=True), comm)(mg.tensor([7] * 1000)).sum().backward()
    assert spawn(often, 2).nbytes.sum() - start < 500        # a row that is read often travels once
