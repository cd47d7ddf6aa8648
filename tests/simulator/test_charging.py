"""What a rank's ops take on its clock: what `step_cost` says, each once, and beside what is sent meanwhile."""
from __future__ import annotations

import pytest

import minigrad as mg
from simulator.cluster import uniform
from simulator.cost import step_cost
from simulator.shapes import switch
from simulator.spawn import spawn
from simulator.topology import Link


def test_ops_take_what_their_device_needs_forward_and_backward():
    def step(comm):
        mg.manual_seed(0)
        model, x = mlp(), mg.randn(32, 64)
        comm.compute(0.0, name="mark")
        loss = (model(x) ** 2).sum()
        loss.backward()
        return loss.item()
    on_meta = mlp().to("meta")
    cost = step_cost(lambda x: (on_meta(x) ** 2).sum(), (32, 64))
    result = spawn(step, 2, timed=True)
    spec, own = result.cluster.devices[0], list(result.trace.where(rank=1, kind="compute"))
    own = own[[e.name for e in own].index("mark") + 1:]
    took = {way: sum(e.duration_s for e in own if e.name.endswith(" backward") == way) for way in (False, True)}
    assert took[False] == pytest.approx(cost.seconds(spec, "forward"), rel=1e-9)
    assert took[True] == pytest.approx(cost.seconds(spec, "backward"), rel=1e-9)
    untimed = spawn(step, 2)
    assert untimed.time_s == 0.0 and untimed.values == result.values


def test_a_gradient_that_is_handed_on_is_free_and_none_counts_twice():
    def step(comm, graph):
        x = mg.ones(40, 30, requires_grad=True)
        y = ((x.t().reshape(-1) + 1) * 2).exp().sum()
        comm.compute(0.0, name="mark")
        y.backward(create_graph=graph)
    cost = step_cost(lambda x: ((x.t().reshape(-1) + 1) * 2).exp().sum(),
                     mg.ones(40, 30, device="meta", requires_grad=True))
    for graph in (False, True):
        result = spawn(step, 1, graph, timed=True)
        own = list(result.trace.where(kind="compute"))
        own = own[[e.name for e in own].index("mark") + 1:]
        assert {e.name for e in own} == {"Sum backward", "Exp backward", "Mul backward"}
        took = sum(e.duration_s for e in own)
        assert took == pytest.approx(cost.seconds(result.cluster.devices[0], "backward"), rel=1e-9)


def mlp():
    return mg.nn.Sequential(mg.nn.Linear(64, 128), mg.nn.ReLU(), mg.nn.Linear(128, 10))


def test_an_all_reduce_that_begins_within_backward_is_hidden_by_it():
    def step(comm, overlapped):
        mg.manual_seed(0)
        handles, y = [], mg.ones(256, 512)
        for layer in [mg.nn.Linear(512, 512) for _ in range(4)]:
            w = layer.weight * 1
            w.register_hook(lambda g: handles.append(comm.all_reduce(g.detach(), "mean", async_op=overlapped)))
            y = mg.nn.functional.linear(y, w, layer.bias).tanh()
        y.sum().backward()
        return [(h.wait() if overlapped else h).sum().item() for h in handles], comm.time
    cluster = uniform(4, topology=switch(4, Link("wire", 50e9, 5e-6)))
    (there, fast), (here, slow) = (spawn(step, 4, way, cluster=cluster, timed=True).values[0] for way in (True, False))
    assert there == here and len(there) == 4 and fast < 0.95 * slow
