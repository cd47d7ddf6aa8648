"""What ranks in processes compute, send and need in time is what ranks in threads do: bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

import minigrad as mg
from simulator.cluster import cluster, uniform
from simulator.collectives import algorithms
from simulator.device import device
from simulator.shapes import switch
from simulator.spawn import spawn
from simulator.topology import Link

KINDS = ("all_reduce", "reduce", "reduce_scatter", "broadcast", "all_gather", "gather", "scatter", "all_to_all")


def arrays(x) -> list:
    if x is None:
        return [None]
    if isinstance(x, list | tuple):
        return [a for part in x for a in arrays(part)]
    return [x.numpy() if isinstance(x, mg.Tensor) else np.asarray(x)]


def equal(here, there) -> None:
    """Values, messages and times."""
    for a, b in zip(here.values, there.values):
        xs, ys = arrays(a), arrays(b)
        assert len(xs) == len(ys)
        for x, y in zip(xs, ys):
            if x is None or y is None:
                assert x is y
            else:
                assert x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()
    assert here.times_s == there.times_s and here.time_s == there.time_s
    np.testing.assert_array_equal(here.nbytes, there.nbytes)
    assert here.link_nbytes == there.link_nbytes
    assert rows(here) == rows(there)
    transported(there)


def rows(result) -> list:
    """All events of the trace, but for the lines, which have other numbers where a function travels as source."""
    t = result.trace
    names = ("rank", "stream", "name", "kind", "start_s", "end_s", "bytes")
    return sorted(zip(*(map(str, t.column(name)) for name in names)))


def transported(result) -> None:
    """What the transport saw, on both sides, is what the clocks were told."""
    sent = np.zeros_like(result.nbytes)
    for (src, dst), sizes in result.transport.items():
        sent[src, dst] = sizes.sum()
    np.testing.assert_array_equal(sent, result.nbytes)


def collectives(comm, kind, names, dtype):
    """Random numbers of many sizes, so that another order of additions would show."""
    rng = np.random.default_rng(comm.rank)
    n, out = comm.world_size, []
    for algorithm in names:
        for size in (0, 1, 7 * n, 10_000 * n):
            x = (rng.standard_normal(size) * 10.0 ** rng.integers(-3, 4, size)).astype(dtype)
            if kind in ("reduce_scatter", "all_to_all"):
                x = x if size % n == 0 else np.resize(x, n)
            if kind == "scatter":
                x = np.resize(x, (n, size)) if comm.rank == 1 % n else None
            root = {"dst": 1 % n} if kind in ("reduce", "gather") else {"src": 1 % n} if kind in ("broadcast",
                                                                                              "scatter") else {}
            out.append(getattr(comm, kind)(x, algorithm=algorithm, **root))
    return out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", [2, 3, 5])
def test_collectives(run, kind, world):
    names = algorithms(kind) if world == 3 else algorithms(kind)[:2]
    dtype = "float32" if world == 3 else "float64"
    there = run(collectives, world, kind, names, dtype)
    equal(spawn(collectives, world, kind, names, dtype), there)


def conversation(comm, rounds):
    """Neighbours, sub-groups, calls beside the program, and questions for the time."""
    n, got, times = comm.world_size, [], []
    half = comm.split(comm.rank % 2, key=-comm.rank)
    for k in range(rounds):
        comm.compute(1e-5 * ((comm.rank + k) % 3))
        comm.isend(mg.ones(k + 1) * comm.rank, (comm.rank + 1) % n, tag=k % 2)
        handle = half.all_reduce(np.ones(1000) * comm.rank, async_op=True)
        later = comm.irecv((comm.rank - 1) % n, tag=k % 2)
        if k % 2:
            times.append(comm.time)
        got += [handle.wait(), later.wait()]
    comm.barrier()
    return got, times, comm.time


@pytest.mark.parametrize("world", [2, 4, 5])
def test_messages_groups_and_the_time_that_ranks_see(run, world):
    wire = Link("wire", 1e8, 1e-5)                     # slow, and shared: the order in which links are taken counts
    machine = uniform(world, topology=switch(world, wire))
    here = spawn(conversation, None, 4, cluster=machine)
    equal(here, run(conversation, None, 4, cluster=machine))


def served(comm, steps):
    """A server takes whoever comes first, on the modelled clock."""
    if comm.rank:
        for k in range(steps):
            comm.compute(1e-4 * (1 + (comm.rank * 7 + k * 3) % 5))
            comm.send(np.full(50 * comm.rank, k), 0)
            comm.recv(0)
        return None
    order = []
    for _ in range(steps * (comm.world_size - 1)):
        src, x = comm.recv_any()
        order.append((src, float(x[0]), comm.time))
        comm.isend(1.0, src)
    return order


def test_whoever_comes_first_on_the_clocks_is_served_first(run):
    here = spawn(served, 4, 3)
    for _ in range(3):
        equal(here, run(served, 4, 3))


def timed(comm):
    mg.manual_seed(comm.rank)
    layer = mg.nn.Linear(8, 4)
    loss = (layer(mg.randn(5, 8)) ** 2).sum()
    loss.backward()
    comm.all_reduce_(layer.weight.grad, "mean")
    return layer.weight.grad, comm.time


def test_ops_take_the_time_of_the_device(run):
    machine = cluster("3 x A100")
    equal(spawn(timed, cluster=machine, timed=True), run(timed, cluster=machine, timed=True))


def test_random_numbers_and_modes_begin_as_the_callers(run):
    def program(comm):
        return mg.is_grad_enabled(), mg.randn(3).tolist()
    mg.manual_seed(11)
    with mg.no_grad():
        here, there = spawn(program, 2).values, run(program, 2).values
    assert here == there and here[0][0] is False
    mg.manual_seed(11)
    assert mg.randn(3).tolist() == here[0][1]          # nobody outside saw a draw


def test_simulated_devices_have_the_memory_of_the_cluster(run):
    small = uniform(2).with_(device=device("A100").with_(memory_bytes=4096))

    def program(comm, n):
        x = comm.all_reduce(mg.ones(n, device=comm.device))
        assert str(x.o.device) == comm.device == f"sim:{comm.rank}"
        return x.tolist()[0]
    there = run(program, 2, 100, cluster=small, device="sim")
    assert there.values == [2.0, 2.0] and there.peak_bytes == spawn(program, 2, 100, cluster=small,
                                                                    device="sim").peak_bytes
    with pytest.raises(RuntimeError, match="out of memory"):
        run(program, 2, 2000, cluster=small, device="sim")


def test_what_comes_belongs_to_the_receiver_and_what_was_sent_may_be_written(run):
    def program(comm):
        n = comm.world_size
        for size in (3, 100_000):
            x = np.zeros(size)
            for dst in range(1, n):
                if comm.rank == 0:
                    comm.isend(x, dst)
            x[...] = 7
            if comm.rank:
                x = comm.recv(0)
                assert x.flags.writeable and x.flags.aligned and not x.any()
                x += comm.rank
            parts = comm.all_gather(x)
            parts[0][...] = comm.rank
            comm.barrier()
            assert [float(p[0]) for p in parts] == [float(comm.rank), *map(float, range(1, n))]
            assert comm.rank or (x == 7).all()
        return True
    assert run(program, 5).values == [True] * 5            # five ranks on three workers: some share a process


@pytest.mark.parametrize("dtype", ["float16", "bool", "uint8", "int64", "complex64"])
def test_kinds_of_numbers_and_shapes(run, dtype):
    def program(comm):
        xs = [np.arange(6).reshape(2, 3).astype(dtype), np.zeros((0, 4), dtype), np.ones((), dtype), np.ones(3, dtype)]
        comm.isend(True, 1 - comm.rank)
        for x in xs:
            comm.isend(x, 1 - comm.rank)
        out = [comm.recv(1 - comm.rank) for _ in range(5)]
        assert out[0] is True
        for x, y in zip(xs, out[1:]):
            assert x.dtype == y.dtype and x.shape == y.shape and (x == y).all()
        return 1
    assert run(program, 2).values == [1, 1]
