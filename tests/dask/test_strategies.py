"""Strategies on processes: what trains is what trains on ranks in threads, bit for bit, as long on the clocks."""

from __future__ import annotations

import numpy as np
import pytest

import minigrad as mg
from minigrad import nn
from simulator.cluster import cluster
from simulator.spawn import spawn
from simulator.strategies import DDP, parameter_server


def model():
    mg.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))


def batches(rank, world, steps=3):
    rng = np.random.default_rng(0)
    joined = [(rng.standard_normal((12, 4)), rng.standard_normal((12, 2))) for _ in range(steps)]
    return [(mg.tensor(x[rank::world].astype("float32")), mg.tensor(y[rank::world].astype("float32")))
            for x, y in joined]


def loss_of(net, batch):
    return ((net(batch[0]) - batch[1]) ** 2).mean()


def weights(net):
    return [p.detach().numpy().tobytes() for p in net.parameters()]


def data_parallel(comm, how):
    ddp = DDP(model(), comm, **how)
    optimizer = mg.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    for batch in batches(comm.rank, comm.world_size):
        optimizer.zero_grad()
        loss_of(ddp, batch).backward()
        optimizer.step()
    return weights(ddp), comm.time


@pytest.mark.parametrize("how", [{"bucket_cap_mb": 0}, {"bucket_cap_mb": 2e-4}, {"find_unused_parameters": True}],
                         ids=["naive", "overlapped", "who takes part is asked"])
def test_data_parallel(run, how):
    machine = cluster("3 x A100")
    here = spawn(data_parallel, None, how, cluster=machine, timed=True)
    there = run(data_parallel, None, how, cluster=machine, timed=True)
    assert here.values == there.values and len({str(v) for v, _ in there.values}) == 1
    assert here.time_s == there.time_s and (here.nbytes == there.nbytes).all()


def served(comm, mode, speeds):
    """Workers of unlike speed: out of step, who comes first decides, and it does so on the modelled clock."""
    net = model()

    def timed(net, batch):
        comm.compute(1e-3 / speeds[comm.rank])
        return loss_of(net, batch)
    parameter_server(comm, net, lambda ps: mg.optim.Adam(ps, lr=0.02), timed, batches, **mode)
    return weights(net), comm.time


@pytest.mark.parametrize("mode", [{"mode": "sync"}, {"mode": "async"}, {"mode": "stale", "staleness": 1}],
                         ids=lambda mode: mode["mode"])
def test_parameter_server(run, mode):
    here = spawn(served, 4, mode, (1, 1, 3, 7))
    there = run(served, 4, mode, (1, 1, 3, 7))
    assert here.values == there.values and here.times_s == there.times_s
