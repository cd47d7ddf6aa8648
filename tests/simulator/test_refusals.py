"""What would train something else than was meant, in silence, is refused by name before anything moves."""

import copy

import numpy as np
import pytest

import minigrad as mg
import simulator as sim
from minigrad import nn
from simulator import shapes, strategies as st


def linear(n=3):
    mg.manual_seed(0)
    return nn.Linear(n, 1)


def refused(program, match, error=sim.RankFailed, world=2, **how):
    with pytest.raises(error, match=match):
        sim.spawn(program, world, **how)


def unfrozen(net):
    net[0].weight.requires_grad_(True)


def added(net):
    net.append(nn.Linear(1, 1))


def replaced(net):
    net[0].bias = nn.Parameter(mg.zeros(1))


@pytest.mark.parametrize("change, name", [(unfrozen, "0.weight"), (added, "1.weight"), (replaced, "0.bias")])
def test_parameters_that_change_after_wrapping(change, name):
    def program(comm):
        net = nn.Sequential(linear())
        net[0].weight.requires_grad_(False)
        model = st.DDP(net, comm)
        change(net)
        model(mg.ones(2, 3))
    refused(program, f"{name}.* after the module was wrapped.*Wrap the module anew")


def test_an_optimiser_of_other_parameters():
    def inner(comm):
        st.LocalSGD(comm, linear(), mg.optim.SGD(linear().parameters(), lr=0.1), 2)

    def outer(comm):
        model = linear()
        st.DiLoCo(comm, model, mg.optim.SGD(model.parameters(), lr=0.1), mg.optim.SGD(linear().parameters(), lr=0.1))
    refused(inner, "LocalSGD: SGD has none of the parameters of the model")
    refused(outer, "DiLoCo: SGD has none of the parameters of the model")


def test_memory_is_looked_at_to_the_end_of_a_program():
    pytest.importorskip("numba")
    machine = sim.cluster("2 x A100")
    small = machine.with_(device={k: machine.devices[k].with_(memory_bytes=5e6) for k in (0, 1)})

    def program(comm):
        return len([mg.ones(10**6) for _ in range(3)])
    refused(program, "MemoryError.*its device has 5 MB", cluster=small, memory=True)
    assert sim.spawn(program, 2, cluster=machine, memory=True).values == [3, 3]


def test_names_where_things_are_wanted():
    machine = sim.cluster("2 x A100")
    with pytest.raises(TypeError, match="device 0 .* must be a DeviceSpec, got 'A100'"):
        machine.with_(device={0: "A100"})
    with pytest.raises(TypeError, match="must be a Link, got 'NVLink3'"):
        shapes.torus((2, 2), "NVLink3")
    with pytest.raises(TypeError, match="simulator.cluster gives one by name.* got 'DGX-1'"):
        sim.spawn(lambda comm: 0, 2, cluster="DGX-1")
    with pytest.raises(TypeError, match="simulator.cluster gives one by name"):
        sim.spawn(lambda comm: 0, 2).on("DGX-1")
    with pytest.raises(TypeError, match="name must be a str, got 5"):
        sim.cluster(5)


def test_programs_that_are_none():
    def pieces(comm):
        yield 1

    async def waits(comm):
        return 1
    for program in (pieces, waits):
        refused(program, "plain blocking Python", TypeError)
    refused(3, "program must be a function, got 3", TypeError)
    refused(lambda comm: 0, "timeout is more than 0", ValueError, timeout=-1)


def test_ranks_that_are_none():
    for call in (lambda comm: comm.reduce(1.0, dst=None), lambda comm: comm.gather(1.0, dst=None)):
        refused(call, "dst is the number of a rank, got None")
    result = sim.spawn(lambda comm: comm.barrier(), 2)
    for rank in ("0", None, 1.5):
        with pytest.raises(TypeError, match="why_idle: rank must be a whole number of at least 0 and at most 1"):
            result.why_idle(rank)
    with pytest.raises(TypeError, match="timeline: ranks must be an Iterable, got 3"):
        result.timeline(ranks=3)
    with pytest.raises(ValueError, match="timeline: a rank must be .* at most 1, got 2"):
        result.timeline(ranks=[2])


def test_cross_entropy_and_servers():
    def smooth(comm):
        st.vocab_parallel_cross_entropy(mg.zeros(2, 4), mg.tensor([1, 2]), comm, label_smoothing=2)

    def never(comm):
        st.parameter_server(comm, linear(), lambda ps: mg.optim.SGD(ps, lr=0.1), lambda m, x: m(x).sum(),
                            lambda *_: [mg.ones(1, 3)], every=0)
    refused(smooth, "label_smoothing is a share between 0 and 1, got 2")
    refused(never, "every is a number of updates from 1, got 0")


@pytest.mark.parametrize("world", [3, 4, 5])
def test_more_ranks_than_features(world):
    a, b, x = nn.Linear(3, 3).double(), nn.Linear(3, 2).double(), mg.randn(2, 5, 3, dtype=mg.float64)

    def program(comm):
        net = nn.Sequential(st.ColumnParallelLinear(copy.deepcopy(a), comm), nn.ReLU(),
                            st.RowParallelLinear(copy.deepcopy(b), comm))
        mine = x.clone().requires_grad_()
        y = net(mine)
        y.pow(2).sum().backward()
        return y.detach().numpy(), mine.grad.numpy()
    mine = x.clone().requires_grad_()
    y = b(a(mine).relu())
    y.pow(2).sum().backward()
    for got, grad in sim.spawn(program, world).values:
        np.testing.assert_allclose(got, y.detach().numpy(), rtol=1e-13, atol=1e-14)
        np.testing.assert_allclose(grad, mine.grad.numpy(), rtol=1e-13, atol=1e-14)
