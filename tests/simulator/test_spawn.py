"""`spawn`: results by rank, and ranks that share nothing with each other or the caller."""
from __future__ import annotations

import threading
from xml.etree import ElementTree

import numpy as np
import pytest

import minigrad as mg
from simulator.cluster import uniform
from simulator.device import device
from simulator.errors import RankFailed
from simulator.shapes import switch
from simulator.spawn import spawn
from simulator.topology import Link
from simulator.viz import messages


def rank_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("minigrad rank")]


# ---- results, random numbers, contexts -----------------------------------------------------------
def test_values_and_arguments_by_rank():
    result = spawn(lambda comm, a, *, b: (comm.rank, comm.world_size, a, b), 3, "a", b=2)
    assert result.values == [(rank, 3, "a", 2) for rank in range(3)] and not result.failures
    assert "3 ranks" in str(result) and "rank 2" in str(result)
    assert len(spawn(lambda comm: comm.rank, cluster=uniform(5)).values) == 5


def test_random_numbers_of_a_rank_are_its_own():
    mg.manual_seed(7)
    here = mg.randn(3).tolist()
    mg.manual_seed(7)

    def program(comm, seeds):
        first = mg.randn(3).tolist()
        comm.barrier()
        if seeds:
            mg.manual_seed(comm.rank)
        comm.barrier()
        x = mg.nn.functional.dropout(mg.ones(20)).tolist()
        state = mg.get_rng_state()
        comm.barrier()
        assert mg.get_rng_state().tolist() == state.tolist()
        return first, x
    same = spawn(program, 3, False).values
    own = spawn(program, 3, True).values
    assert all(first == here for first, _ in same + own)
    assert same[0] == same[1] == same[2] and len({str(x) for _, x in own}) == 3
    assert mg.randn(3).tolist() == here               # nobody outside saw a draw


def test_modes_belong_to_a_rank_and_begin_as_the_callers():
    def program(comm):
        begins = mg.is_grad_enabled()
        if comm.rank == 0:
            with mg.no_grad():
                comm.barrier()
                assert not mg.is_grad_enabled()
                comm.barrier()
        else:
            comm.barrier()
            mg.set_grad_enabled(True)
            comm.barrier()
        return begins, mg.is_grad_enabled()
    with mg.no_grad():
        assert spawn(program, 2).values == [(False, False), (False, True)]
        assert not mg.is_grad_enabled()


def test_spawn_within_a_rank():
    def inner(comm, k):
        return comm.all_reduce(k)

    def program(comm):
        k = spawn(inner, 2, comm.rank + 1).values[0]
        return comm.all_reduce(k)
    assert spawn(program, 3).values == [12, 12, 12]


@pytest.mark.parametrize("how, error, match", [
    (dict(world_size=0), ValueError, "from 1, got 0"), (dict(world_size=True), ValueError, "True"),
    (dict(world_size=None), TypeError, "cluster"), (dict(world_size=2, executor="mpi"), ValueError, "'mpi'.*local"),
    (dict(world_size=2, device="cuda"), ValueError, "'cuda'"),
    (dict(world_size=2, cluster=uniform(3)), ValueError, "world_size=2, and the cluster has 3"),
])
def test_what_spawn_does_not_take(how, error, match):
    with pytest.raises(error, match=match):
        spawn(lambda comm: None, **how)


def test_thousands_of_runs_leave_no_thread():
    def program(comm, k):
        comm.isend(k, 1 - comm.rank)
        if k % 3 == 0 and comm.rank:
            raise ValueError
        return comm.recv(1 - comm.rank)
    before = threading.active_count()
    for k in range(2000):
        if k % 3:
            assert spawn(program, 2, k).values == [k, k]
        else:
            with pytest.raises(RankFailed):
                spawn(program, 2, k)
    assert threading.active_count() == before and not rank_threads()


def test_many_ranks():
    many = uniform(100, topology=switch(100, Link("wire", 1e9, 5e-6)))
    result = spawn(lambda comm: comm.all_reduce(comm.rank, algorithm="doubling"), cluster=many)
    assert result.values == [4950] * 100


# ---- memory --------------------------------------------------------------------------------------
def test_each_rank_holds_what_it_made_and_what_it_was_given():
    pytest.importorskip("numba")
    kB = 1000

    def program(comm):
        own = np.ones(125 * comm.rank)                 # rank kB
        if comm.rank == 1:
            comm.send(np.ones(125 * 10), 2)            # made here, held there: 10 kB, and as much while it is copied
        got = comm.recv(1) if comm.rank == 2 else None
        parts = comm.all_gather(np.ones(125 * 4))      # 4 kB of each of three, and what it gave
        comm.barrier()
        return own.nbytes, got is None, len(parts)
    small = uniform(3).with_(device=device("A100").with_(memory_bytes=100 * kB))
    result = spawn(program, 3, memory=True, cluster=small)
    for peak, least in zip(result.peak_bytes, (4 + 4 + 12, 1 + 4 + 4 + 12, 2 + 10 + 4 + 4 + 12)):
        assert least * kB <= peak < least * kB + 100, result.peak_bytes          # what is given is taken as a copy

    def alone(comm):
        if comm.rank == 1:
            x = np.ones(125 * 50)
            y = x * 2
            del x
            comm.send(y.sum(), 0)
        return comm.recv(1) if comm.rank == 0 else None
    peaks = spawn(alone, 2, memory=True).peak_bytes
    assert peaks[0] < 1 * kB and 100 * kB <= peaks[1] <= 101 * kB
    with pytest.raises(RankFailed, match="rank 1 of 2 raised MemoryError: rank 1 held 100 kB of arrays.* 60 kB"):
        spawn(alone, 2, memory=True, cluster=uniform(2).with_(device=device("A100").with_(memory_bytes=60 * kB)))


# ---- the matrix of messages ------------------------------------------------------------------------
def test_the_matrix_shows_all_bytes_and_the_busiest_links():
    def program(comm):
        if comm.rank == 0:
            comm.send(np.ones(1000), 2)
        elif comm.rank == 2:
            comm.recv(0)
    wire = Link("wire", 1e9, 0.0)
    result = spawn(program, 3, cluster=uniform(3, topology=switch(3, wire)))
    told = messages.data(result.matrix())
    assert told["nbytes"] == [[0, 0, 8000], [0, 0, 0], [0, 0, 0]]
    assert [(link["nbytes"], link["share"]) for link in told["links"]] == [(8000, pytest.approx(1.0))] * 2
    lines = str(result.matrix()).splitlines()
    assert lines[1].split() == ["0", "·", "·", "8", "kB", "8", "kB"] and "busy 100% of 8 us" in lines[-1]
    picture = messages.html(result.matrix())
    assert picture.count("fill-opacity") == 9 + 2 * messages.BINS
    assert "0 to 2: 8 kB" in picture and ElementTree.fromstring(picture) is not None
    many = spawn(lambda comm: None, cluster=uniform(70, topology=switch(70, wire)))
    many = many.matrix()
    assert "0–2" in messages.text(many) and messages.html(many).count("fill-opacity") == 24**2
