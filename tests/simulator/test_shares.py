"""Batch shares: whatever they are, a step is that of one device; as speeds are found, all ranks are ready together."""
from __future__ import annotations

import numpy as np
import pytest

import minigrad as mg
from minigrad import nn
from simulator.cluster import uniform
from simulator.device import device
from simulator.errors import RankFailed
from simulator.spawn import spawn
from simulator.strategies import DDP, BatchShares, shares_of

EPS = np.finfo(np.float64).eps
BATCH = 12


@pytest.mark.parametrize("seed", range(40))
def test_shares_are_in_proportion_and_their_sum_is_the_batch(seed):
    rng = np.random.default_rng(seed)
    world, least = int(rng.integers(1, 9)), int(rng.integers(0, 3))
    batch = int(rng.integers(max(1, least * world), 200))
    speeds = rng.exponential(size=world) ** 2 * (rng.random(world) > 0.2)
    sizes = shares_of(speeds.tolist(), batch, least)
    assert sum(sizes) == batch and min(sizes) >= least
    order = np.argsort(speeds)
    assert all(sizes[a] <= sizes[b] + (speeds[a] == speeds[b]) for a, b in zip(order, order[1:]))   # no slower has more
    quotas = batch * speeds / speeds.sum() if speeds.sum() else np.full(world, batch / world)
    if (quotas >= least).all():
        assert (np.abs(np.array(sizes) - quotas) < 1).all()                      # the quota rule of largest remainders


@pytest.mark.parametrize("speeds, batch, least, want", [
    ([1, 1, 1], 7, 1, [3, 2, 2]), ([1, 2, 3], 6, 1, [1, 2, 3]), ([5, 3, 1], 10, 1, [6, 3, 1]), ([100, 1], 8, 1, [7, 1]),
    ([100, 1], 8, 0, [8, 0]), ([0, 0], 4, 1, [2, 2]), ([1, 0, 0], 5, 2, None), ([4], 9, 1, [9])])
def test_shares_by_hand(speeds, batch, least, want):
    if want is None:
        with pytest.raises(ValueError, match="a batch of 5 has no 2 for each of 3"):
            shares_of(speeds, batch, least)
    else:
        assert shares_of(speeds, batch, least) == want


def made():
    mg.manual_seed(2)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def data(steps):
    rng = np.random.default_rng(1)
    return [(mg.tensor(rng.standard_normal((BATCH, 3))), mg.tensor(rng.standard_normal((BATCH, 2))))
            for _ in range(steps)]


def loss_of(model, x, y, reduction):
    squares = ((model(x) - y) ** 2).sum(1)
    return squares.sum() if reduction == "sum" else squares.mean()


def trained(comm, sizes, reduction, steps=3):
    model = made()
    ddp = DDP(model, comm)
    optimizer = mg.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    shares = BatchShares(comm, BATCH, sizes=sizes)
    for x, y in data(steps):
        optimizer.zero_grad()
        shares.weigh(loss_of(ddp, x[shares.rows], y[shares.rows], reduction), reduction).backward()
        optimizer.step()
    return [p.detach().numpy() for p in model.parameters()]


def one_device(steps=3):
    model = made()
    optimizer = mg.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    for x, y in data(steps):
        optimizer.zero_grad()
        loss_of(model, x, y, "mean").backward()
        optimizer.step()
    return [p.detach().numpy() for p in model.parameters()]


@pytest.mark.parametrize("sizes", [[12], [6, 6], [11, 1], [1, 11], [4, 4, 4], [1, 2, 9], [0, 5, 7], [12, 0, 0],
                                   [1, 1, 1, 9], [2, 3, 1, 5, 1]])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_step_is_that_of_one_device_whatever_the_shares(sizes, reduction):
    if reduction == "mean" and 0 in sizes:
        with pytest.raises(RankFailed, match="the mean of none"):
            spawn(trained, len(sizes), sizes, reduction, timeout=60)
        return
    want = one_device()
    for got in spawn(trained, len(sizes), sizes, reduction).values:
        for a, b in zip(got, want):
            assert np.abs(a - b).max() <= 64 * EPS * np.abs(b).max()


# ---- measured ------------------------------------------------------------------------------------
def steps_of(comm, speeds_at, steps, batch=100, fixed_s=0.0, **how):
    """(seconds of each step, sizes) with examples a second as `speeds_at(step)` says."""
    shares = BatchShares(comm, batch, **how)
    took = []
    for step in range(steps):
        before = comm.time
        with shares.timed():
            comm.compute(fixed_s + shares.size / speeds_at(step)[comm.rank])
        shares.rebalance()
        took.append(comm.time - before)
    return took, shares


@pytest.mark.parametrize("seed", range(15))
def test_the_time_of_a_step_comes_to_that_of_all_speeds_added(seed):
    rng = np.random.default_rng(seed)
    world = int(rng.integers(2, 7))
    speeds = (1000 * rng.uniform(0.2, 3, world)).tolist()
    results = spawn(steps_of, world, lambda step: speeds, 4, tolerance=0.0).values
    assert len({str(shares.changes) for _, shares in results}) == 1              # all ranks decide the same
    ideal = 100 / sum(speeds)
    talk = 1e-3                                                                  # eight bytes to each
    for took, shares in results:
        assert took[-1] <= ideal + 1 / min(speeds) + talk                        # rounding: one example of the slowest
        assert max(n / v for n, v in zip(shares.sizes, speeds)) <= ideal + 1 / min(speeds)
        assert took[-1] <= took[0] + 1e-12 and shares.speeds == pytest.approx(speeds)


def test_a_rank_that_slows_gets_less_and_small_differences_change_nothing():
    def speeds_at(step):
        return [1000, 1000, 1000 if step < 3 else 250, 1030]
    _, shares = spawn(steps_of, 4, speeds_at, 8).values[0]
    assert [step for step, _ in shares.changes] == [0, 4]                        # seen once, after its first slow step
    assert shares.sizes == shares_of([1000, 1000, 250, 1030], 100)
    _, lively = spawn(steps_of, 4, speeds_at, 8, tolerance=0.0).values[0]
    assert lively.sizes == shares.sizes


@pytest.mark.parametrize("fixed_s", [0.0, 5e-3, 50e-3])
def test_costs_that_do_not_grow_with_the_rows_do_not_make_it_swing(fixed_s):
    speeds = [3000.0, 1000.0, 500.0]
    took, shares = spawn(steps_of, 3, lambda step: speeds, 40, fixed_s=fixed_s, tolerance=0.02).values[0]
    times = [fixed_s + n / v for n, v in zip(shares.sizes, speeds)]
    assert max(times) <= fixed_s + 100 / sum(speeds) + 2 / min(speeds)
    assert len(shares.changes) <= 12 and shares.changes[-1][0] < 20              # it comes to rest


def test_what_rounding_leaves_unequal_stays():
    _, shares = spawn(steps_of, 2, lambda step: [1000, 1000], 5, batch=3).values[0]
    assert shares.changes == [(0, [2, 1])]                   # 2 to 1 is no better than 2 to 1


def test_every_so_many_steps_the_mean_of_them_counts():
    result = spawn(steps_of, 2, lambda step: [1000, 1000 if step % 2 else 500], 8, every=4)
    _, shares = result.values[0]
    assert [step for step, _ in shares.changes] == [0, 4]
    assert shares.changes[1][1] == shares_of([1000, 2 / 3 * 1000], 100)
    assert shares.speeds == pytest.approx([1000, 2 / 3 * 1000])
    assert result.nbytes.sum() == 2 * 2 * 8                                      # eight bytes each, twice


def unequal():
    """Three devices so slow that messages take little beside; the last one four times slower than the others."""
    fast = device("A100").with_(launch_s=0.0, memory_bytes_per_s=1e18, efficiency=0.001)
    slow = fast.with_(efficiency=fast.efficiency / 4)
    return uniform(3).with_(device={0: fast, 1: fast, 2: slow})


def test_training_on_unequal_devices_takes_as_long_as_their_speeds_added():
    def program(comm, share):
        mg.manual_seed(0)
        x, y = mg.randn(90, 512), mg.randn(90, 512)
        model = DDP(nn.Linear(512, 512), comm)
        shares, took = BatchShares(comm, 90), []
        for _ in range(4):
            before = comm.time
            with shares.timed():
                loss = ((model(x[shares.rows]) - y[shares.rows]) ** 2).mean()
            shares.weigh(loss).backward()
            took.append(comm.time - before)
            if share:
                shares.rebalance()
        return shares.sizes, took
    (balanced, quick), (equal, slow) = (spawn(program, None, share, cluster=unequal(), timed=True).values[0]
                                        for share in (True, False))
    assert balanced == [40, 40, 10] and equal == [30, 30, 30]
    talk = spawn(lambda comm: comm.all_reduce(mg.ones(512 * 513)), cluster=unequal()).time_s
    work = slow[-1] - talk                                                       # 30 rows on the slow one
    assert quick[0] == pytest.approx(slow[0], rel=1e-9) and work > 100 * talk
    assert quick[-1] - talk == pytest.approx(work / 3, rel=0.01)                 # 10 there, 40 on the others


def test_a_rank_that_had_no_rows_gets_the_least_until_it_is_measured():
    _, shares = spawn(steps_of, 3, lambda step: [1000, 1000, 1000], 4, sizes=[50, 50, 0], tolerance=0.0).values[0]
    assert [sizes for _, sizes in shares.changes][0] == [50, 50, 0] and sum(shares.sizes) == 100


def test_a_rank_without_rows_is_remembered_as_it_was_measured():
    def speeds_at(step):
        return [1000 if step < 3 else 1, 1]
    _, shares = spawn(steps_of, 2, speeds_at, 5, batch=6, least=0).values[0]
    assert [sizes for _, sizes in shares.changes] == [[3, 3], [6, 0], [3, 3]]


def test_what_is_refused():
    def refused(match, **how):
        with pytest.raises(RankFailed, match=match):
            spawn(lambda comm: BatchShares(comm, 10, **how), 2, timeout=60)
    refused("no parts of a batch of 10", sizes=[5, 6])
    refused("no parts of a batch of 10", sizes=[11, -1])
    refused("speeds has 3 numbers for 2 ranks", speeds=[1, 2, 3])
    refused("no 6 for each of 2 ranks", least=6)
    refused("tolerance is at least 0", tolerance=-0.1)
    with pytest.raises(RankFailed, match="took no time"):
        spawn(lambda comm: BatchShares(comm, 10).rebalance(), 2, timeout=60)
    with pytest.raises(RankFailed, match="at least 0 s and finite"):
        spawn(lambda comm: BatchShares(comm, 10).measured(float("nan")), 2, timeout=60)
