"""Training that talks rarely: with one step between meetings it is data parallel, with a plain outer step DiLoCo is
LocalSGD, and any run is what NumPy says of as many single devices."""
from __future__ import annotations

import numpy as np
import pytest

import minigrad as mg
from minigrad import nn
from simulator.errors import RankFailed
from simulator.spawn import spawn
from simulator.strategies import DiLoCo, LocalSGD

EPS = np.finfo(np.float64).eps
STEPS = 6


def made(seed=4):
    mg.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def batches(rank, steps=STEPS):
    rng = np.random.default_rng(rank)
    return [(mg.tensor(rng.standard_normal((2, 3))), mg.tensor(rng.standard_normal((2, 2)))) for _ in range(steps)]


def loss_of(model, batch):
    return 3 * ((model(batch[0]) - batch[1]) ** 2).mean()


def sgd(params):
    return mg.optim.SGD(params, lr=0.1)


def adamw(params):
    return mg.optim.AdamW(params, lr=0.02)


def nesterov(params):
    return mg.optim.SGD(params, lr=0.7, momentum=0.9, nesterov=True)


def values(model):
    return [p.detach().numpy().copy() for p in model.parameters()]


def close(got, want):
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype and np.abs(a - b).max() <= 64 * EPS * max(1.0, np.abs(b).max())


def own_steps(local, model, each):
    for batch in each:
        local.zero_grad()
        loss_of(model, batch).backward()
        local.step()


def local_run(comm, every, optimizer_of=sgd, steps=None, **how):
    model = made()
    local = LocalSGD(comm, model, optimizer_of(model.parameters()), every, **how)
    own_steps(local, model, batches(comm.rank, (steps or [STEPS] * comm.world_size)[comm.rank]))
    if steps:
        local.leave()
    return values(model)


def diloco_run(comm, every, outer_of=None, optimizer_of=adamw, **how):
    model = made()
    outer = outer_of and outer_of(model.parameters())
    own_steps(DiLoCo(comm, model, optimizer_of(model.parameters()), outer, every, **how), model, batches(comm.rank))
    return values(model)


def devices(world, every, optimizer_of, outer_of=None, weights=None):
    """The same on `world` models of one process: the mean of their parameters, or an outer step."""
    models, start = [made() for _ in range(world)], made()
    optimizers = [optimizer_of(m.parameters()) for m in models]
    outer = outer_of and outer_of(start.parameters())
    shares = np.array(weights or [1.0] * world) / sum(weights or [1.0] * world)
    for step in range(STEPS):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers)):
            optimizer.zero_grad()
            loss_of(model, batches(rank)[step]).backward()
            optimizer.step()
        if (step + 1) % every:
            continue
        means = [sum(share * p for share, p in zip(shares, each)) for each in zip(*map(values, models))]
        for p, mean in zip(start.parameters(), means):
            p.grad = mg.tensor(p.detach().numpy() - mean)
            if outer is None:
                p.detach().numpy()[...] = mean
        if outer is not None:
            outer.step()
        for model in models:
            model.load_state_dict(start.state_dict())
    return [values(m) for m in models]


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_meeting_after_each_plain_step_is_one_device_on_the_joined_batch(world):
    model = made()
    optimizer = sgd(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        parts = [batches(rank)[step] for rank in range(world)]
        loss_of(model, [mg.cat([part[k] for part in parts]) for k in (0, 1)]).backward()
        optimizer.step()
    for got in spawn(local_run, world, 1).values:
        close(got, values(model))


@pytest.mark.parametrize("optimizer_of", [sgd, adamw])
@pytest.mark.parametrize("every", [1, 2, 3, 4])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_local_sgd_is_the_mean_of_single_devices(world, every, optimizer_of):
    for got, want in zip(spawn(local_run, world, every, optimizer_of).values, devices(world, every, optimizer_of)):
        close(got, want)


@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_diloco_is_an_outer_step_towards_the_mean(world, every):
    want = devices(world, every, adamw, nesterov)
    for outer_of in (nesterov, None):                        # which is the default
        for got, each in zip(spawn(diloco_run, world, every, outer_of).values, want):
            close(got, each)


@pytest.mark.parametrize("every", [2, 3])
def test_diloco_with_a_plain_outer_step_is_local_sgd(every):
    def plain(params):
        return mg.optim.SGD(params, lr=1.0)
    for got, want in zip(spawn(diloco_run, 3, every, plain).values, spawn(local_run, 3, every, adamw).values):
        close(got, want)


def test_weights():
    weights = [1.0, 2.0, 5.0]

    def program(comm):
        return local_run(comm, 2, weight=weights[comm.rank])
    for got, want in zip(spawn(program, 3).values, devices(3, 2, sgd, weights=weights)):
        close(got, want)


def test_who_leaves_early_weighs_no_more_and_gets_the_model_of_the_others():
    steps = [6, 2, 3]
    got = spawn(local_run, 3, 2, steps=steps).values
    models = [made() for _ in range(3)]
    optimizers = [sgd(m.parameters()) for m in models]
    for turn in (0, 2, 4):                                   # meetings after steps 2, 4 and 6 of rank 0
        giving = []
        for rank in range(3):
            for batch in batches(rank)[turn:min(turn + 2, steps[rank])]:
                optimizers[rank].zero_grad()
                loss_of(models[rank], batch).backward()
                optimizers[rank].step()
            giving += [rank] * (steps[rank] > turn)
        mean = [sum(each) / len(giving) for each in zip(*(values(models[rank]) for rank in giving))]
        for model in models:
            for p, value in zip(model.parameters(), mean):
                p.detach().numpy()[...] = value
    for each in got:
        close(each, values(models[0]))


def test_bytes_are_those_of_the_meetings():
    count = 3 * 4 + 4 + 4 * 2 + 2
    for every in (1, 2, 3, 6, 7):
        result = spawn(local_run, 2, every, algorithm="direct")
        before = 8 * count + 8 * 2                           # from rank 0; the weights of both
        assert result.nbytes.sum() == before + (STEPS // every) * 2 * 8 * (count + 1)


def test_ranks_wait_for_the_slowest_only_when_they_meet():
    def program(comm, every):
        model = made()
        local = LocalSGD(comm, model, sgd(model.parameters()), every)
        for k, batch in enumerate(batches(comm.rank)):
            comm.compute(10e-3 if k % comm.world_size == comm.rank else 1e-3)       # each is slow once in three steps
            own_steps(local, model, [batch])
        return comm.time
    every_step, rare = (max(spawn(program, 3, every).values) for every in (1, 6))
    assert every_step == pytest.approx(STEPS * 10e-3, rel=0.01) and rare == pytest.approx(24e-3, rel=0.01)


@pytest.mark.parametrize("dtype", [mg.float16, mg.float32])
def test_other_dtypes_and_large_weights(dtype):
    def program(comm):
        model = nn.Linear(1, 1, bias=False).to(dtype)
        with mg.no_grad():
            model.weight.fill_(0.0)
        local = LocalSGD(comm, model, sgd(model.parameters()), 1, weight=30000.0)
        with mg.no_grad():
            model.weight.fill_(100.0 * comm.rank)
        local.sync()
        return model.weight.item()
    assert spawn(program, 3).values == pytest.approx([100.0] * 3, rel=2e-3)      # of float16: 11 bits


def test_what_is_refused():
    def refused(match, make):
        with pytest.raises(RankFailed, match=match):
            spawn(make, 2, timeout=60)
    refused("sync_every is a number of steps from 1, got 0", lambda comm: local_run(comm, 0))
    refused("weight is more than 0", lambda comm: local_run(comm, 1, weight=0.0))

    def after(comm):
        model = made()
        local = LocalSGD(comm, model, sgd(model.parameters()), 2)
        local.leave()
        local.step()
    refused("has left", after)
    refused("nothing to average",
            lambda comm: LocalSGD(comm, made().requires_grad_(False), sgd([mg.ones(1, requires_grad=True)]), 2))


def test_gradients_that_are_there_at_an_outer_step_stay():
    def program(comm):
        model = made()
        diloco = DiLoCo(comm, model, sgd(model.parameters()), sync_every=1)
        loss_of(model, batches(0)[0]).backward()
        before = [p.grad.numpy().copy() for p in model.parameters()]
        diloco.step()
        return before, [p.grad.numpy() for p in model.parameters()]
    for before, after in spawn(program, 2).values:
        close(after, before)
