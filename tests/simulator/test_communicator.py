"""The communicator: what ranks get is what NumPy says, whatever the algorithm, and what cannot be is refused."""
from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import minigrad as mg
from simulator.cluster import uniform
from simulator.collectives import algorithms, bytes_matrix, make_plan, replay as replay_plan
from simulator.device import device
from simulator.errors import CollectiveMismatch, CommunicationError, RankFailed
from simulator.network import Network
from simulator.payload import REDUCTIONS
from simulator.spawn import spawn

DTYPES = ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
WORLDS = (1, 2, 3, 5, 8)
SHAPES = ((3, 5), (0,), (1,), (), (2, 0, 3), (13,))


@cache
def draw(shape, dtype: str, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 4, shape).astype(dtype)


def close(got, want) -> None:
    got = got.numpy() if isinstance(got, mg.Tensor) else np.asarray(got)
    assert got.dtype == want.dtype and got.shape == want.shape
    np.testing.assert_array_equal(got, want)          # small integers: sums are exact in every order


def given(dtype: str, world: int, shape) -> list[np.ndarray]:
    return [draw(shape, dtype, seed=rank) for rank in range(world)]


def summed(xs: list[np.ndarray], op: str = "sum") -> np.ndarray:
    out = xs[0]
    for x in xs[1:]:
        out = REDUCTIONS[op](out, x)
    return out


# ---- every collective × algorithm × world × dtype ------------------------------------------------
def cases(kind: str):
    return [(algorithm, world) for algorithm in algorithms(kind) for world in WORLDS]


def tensors(program, world: int, *args, **how):
    return spawn(program, world, *args, timeout=60, **how).values


@pytest.mark.parametrize("algorithm, world", cases("all_reduce"))
def test_all_reduce(algorithm, world):
    def program(comm):
        for dtype, shape in [*((d, (3, 5)) for d in DTYPES), *(("float64", s) for s in SHAPES)]:
            xs = given(dtype, world, shape)
            x = mg.tensor(xs[comm.rank])
            close(comm.all_reduce(x, algorithm=algorithm), summed(xs))
            close(x, xs[comm.rank])                    # what was given stays
        for op in ("prod", "min", "max"):
            xs = given("int64", world, (4, 2))
            close(comm.all_reduce(xs[comm.rank], op, algorithm=algorithm), summed(xs, op))
        xs = given("float64", world, (4,))
        close(comm.all_reduce(xs[comm.rank], "mean", algorithm=algorithm), summed(xs) / world)
        return comm.all_reduce(comm.rank, algorithm=algorithm)
    assert tensors(program, world) == [world * (world - 1) // 2] * world


@pytest.mark.parametrize("algorithm, world", cases("reduce"))
def test_reduce(algorithm, world):
    def program(comm):
        for dtype in DTYPES:
            dst = len(dtype) % world
            xs = given(dtype, world, (3, 2))
            got = comm.reduce(mg.tensor(xs[comm.rank]), dst, algorithm=algorithm)
            if comm.rank == dst:
                close(got, summed(xs))
            else:
                assert got is None
    tensors(program, world)


@pytest.mark.parametrize("algorithm, world", cases("broadcast"))
def test_broadcast(algorithm, world):
    def program(comm):
        for dtype, shape in [*((d, (3, 5)) for d in DTYPES), *(("float64", s) for s in SHAPES)]:
            src = len(dtype) % world
            xs = given(dtype, world, shape)
            close(comm.broadcast(mg.tensor(xs[comm.rank]), src, algorithm=algorithm), xs[src])
            close(comm.broadcast(xs[src] if comm.rank == src else None, src, algorithm=algorithm), xs[src])
    tensors(program, world)


@pytest.mark.parametrize("algorithm, world", cases("all_gather"))
def test_all_gather_also_of_ragged_rows(algorithm, world):
    def program(comm):
        for dtype in DTYPES:
            xs = [draw((rank % 3, 2), dtype, rank) for rank in range(world)]
            got = comm.all_gather(mg.tensor(xs[comm.rank]), algorithm=algorithm)
            assert len(got) == world
            for g, x in zip(got, xs):
                close(g, x)
    tensors(program, world)


@pytest.mark.parametrize("kind, algorithm, world", [(k, *c) for k in ("gather", "scatter") for c in cases(k)])
def test_gather_and_scatter(kind, algorithm, world):
    def program(comm):
        for dtype in DTYPES:
            root = len(dtype) % world
            xs = [draw((rank % 3, 2), dtype, rank) for rank in range(world)]
            if kind == "scatter":
                tensors = [mg.tensor(x) for x in xs] if comm.rank == root else None
                close(comm.scatter(tensors, root, algorithm=algorithm), xs[comm.rank])
                continue
            got = comm.gather(mg.tensor(xs[comm.rank]), root, algorithm=algorithm)
            assert (got is None) == (comm.rank != root)
            for g, x in zip(got or (), xs):
                close(g, x)
    tensors(program, world)


@pytest.mark.parametrize("algorithm, world", cases("reduce_scatter"))
def test_reduce_scatter(algorithm, world):
    def program(comm):
        for dtype in DTYPES:
            xs = given(dtype, world, (2 * world, 3))
            got = comm.reduce_scatter(mg.tensor(xs[comm.rank]), algorithm=algorithm)
            close(got, summed(xs)[2 * comm.rank:2 * comm.rank + 2])
            ragged = [[draw((rank % 3,), dtype, 100 * rank + seed) for rank in range(world)] for seed in range(world)]
            close(comm.reduce_scatter(ragged[comm.rank], algorithm=algorithm), summed([r[comm.rank] for r in ragged]))
    tensors(program, world)


@pytest.mark.parametrize("algorithm, world", cases("all_to_all"))
def test_all_to_all(algorithm, world):
    def program(comm):
        for dtype in DTYPES:
            xs = [[draw(((src + dst) % 3, 2), dtype, 100 * src + dst) for dst in range(world)] for src in range(world)]
            got = comm.all_to_all([mg.tensor(x) for x in xs[comm.rank]], algorithm=algorithm)
            for src in range(world):
                close(got[src], xs[src][comm.rank])
            whole = given(dtype, world, (2 * world,))
            for src, piece in enumerate(comm.all_to_all(whole[comm.rank], algorithm=algorithm)):
                close(piece, whole[src][2 * comm.rank:2 * comm.rank + 2])
    tensors(program, world)


# ---- bytes and times -----------------------------------------------------------------------------
@pytest.mark.parametrize("kind, algorithm", [(k, a) for k in ("all_reduce", "broadcast", "all_gather", "all_to_all")
                                             for a in algorithms(k)])
@pytest.mark.parametrize("world", [1, 2, 5, 8])
def test_bytes_and_times_are_those_of_the_plan(kind, algorithm, world):
    def program(comm):
        x = np.ones(1000)
        if kind == "all_gather":
            return comm.all_gather(x, algorithm=algorithm)
        if kind == "all_to_all":
            return comm.all_to_all([x] * world, algorithm=algorithm)
        return getattr(comm, kind)(x, algorithm=algorithm)
    result = spawn(program, world)
    plan = make_plan(kind, algorithm, world)
    total = 8000 if kind in ("all_reduce", "broadcast") else 8000 * world
    sizes = [8 * s for s in plan.sizes(total // 8)]
    np.testing.assert_array_equal(result.nbytes, bytes_matrix(plan, sizes))
    replayed = replay_plan(plan, Network(uniform(world)), sizes)
    assert result.time_s == pytest.approx(replayed.time_s, rel=1e-12)


def test_what_the_transport_saw_and_what_the_clocks_saw_agree():
    def program(comm):
        comm.all_reduce(np.ones(100), algorithm="tree")
        if comm.rank == 0:
            comm.send(np.ones(7), 2)
        if comm.rank == 2:
            comm.recv(0)
    result = spawn(program, 4)
    seen = np.zeros((4, 4), np.int64)
    for (src, dst), nbytes in result.clocks.nbytes.items():
        seen[src, dst] = nbytes
    np.testing.assert_array_equal(result.nbytes, seen)
    messages = result.trace.where(kind="send")
    assert messages.column("bytes").sum() == result.nbytes.sum()


# ---- in place, strided, sub-groups, handles ------------------------------------------------------
def test_in_place_on_views_of_arrays_and_tensors():
    def program(comm):
        whole = np.zeros((4, 6))
        view = whole[::2, 1::2]
        view[...] = comm.rank + 1
        assert comm.all_reduce_(view) is view
        t = mg.zeros(4, 6, dtype=mg.float64)
        part = t[::2, 1::2]
        part.copy_(mg.ones(2, 3, dtype=mg.float64) * (comm.rank + 1))
        assert comm.all_reduce_(part) is part
        b = np.full((3, 2), comm.rank).T[:, 1:]
        assert comm.broadcast_(b, 2) is b
        return whole, t.numpy(), b.copy()
    for whole, t, b in spawn(program, 3).values:
        want = np.zeros((4, 6))
        want[::2, 1::2] = 6
        close(whole, want)
        close(t, want)
        assert (b == 2).all() and b.shape == (2, 2)


def test_in_place_is_seen_by_the_graph():
    def program(comm):
        w = mg.ones(3, requires_grad=True)
        y = (w * 1.0).exp()
        comm.all_reduce_(y.detach())
        y.sum().backward()
    with pytest.raises(RankFailed, match="changed|written"):
        spawn(program, 2)


def test_a_gradient_can_be_reduced_in_place_and_a_parameter_under_no_grad():
    def program(comm):
        w = mg.full((3,), float(comm.rank), requires_grad=True)
        (w * (comm.rank + 1)).sum().backward()
        comm.all_reduce_(w.grad, "mean")
        with mg.no_grad():
            comm.broadcast_(w, 1)
        assert w.requires_grad and w.is_leaf
        return w.grad.tolist(), w.tolist()
    assert spawn(program, 3).values == [([2.0] * 3, [1.0] * 3)] * 3


def test_sub_groups_are_communicators_of_their_own():
    def program(comm):
        row, column = comm.split(comm.rank // 3), comm.split(comm.rank % 3, key=-comm.rank)
        assert (row.rank, row.world_size, row.ranks) == (comm.rank % 3, 3, tuple(range(3 * (comm.rank // 3), 3 *
                                                                                       (comm.rank // 3) + 3)))
        assert column.ranks == (comm.rank % 3 + 3, comm.rank % 3)
        a = row.all_reduce(comm.rank)
        b = column.all_gather(np.array([comm.rank]))
        row.isend(float(comm.rank), (row.rank + 1) % 3)
        c = row.recv((row.rank - 1) % 3)
        alone = comm.split(0 if comm.rank == 4 else None)
        assert (alone is None) == (comm.rank != 4)
        return a, [int(x[0]) for x in b], c
    for rank, (a, b, c) in enumerate(spawn(program, 6).values):
        row = 3 * (rank // 3)
        assert a == 3 * row + 3 and b == [rank % 3 + 3, rank % 3] and c == row + (rank - 1) % 3


def test_async_calls_end_at_wait_and_take_what_was_given_at_the_call():
    def program(comm):
        x, y = np.full(4, comm.rank + 1.0), np.full(4, comm.rank + 1.0)
        first, second = comm.all_reduce(x, async_op=True), comm.all_reduce_(y, async_op=True)
        x[...] = 99
        before = y.copy()
        comm.compute(1.0)
        assert (first.wait() == 6).all() and first.wait() is first.wait()
        assert second.wait() is y and (y == 6).all() and (before == comm.rank + 1).all()
        return comm.time
    assert spawn(program, 3).values == [1.0] * 3      # hidden behind what was computed


@pytest.mark.parametrize("sender", [0, 1])              # rank 0 runs first: sends come before receives, or after
def test_messages_keep_their_order_and_their_tags(sender):
    def program(comm):
        if comm.rank == sender:
            for k in range(5):
                comm.isend(mg.tensor([k, k]), 1 - sender, tag=k % 2)
            return None
        later, last = comm.irecv(sender, tag=0), comm.irecv(sender, tag=0)
        odd = [comm.recv(sender, tag=1).tolist() for _ in range(2)]
        out = mg.zeros(2, dtype=mg.int64)
        assert comm.recv(sender, out=out) is out
        return odd, last.wait().tolist(), later.wait().tolist(), out.tolist()
    assert spawn(program, 2).values[1 - sender] == ([[1, 1], [3, 3]], [2, 2], [0, 0], [4, 4])


def test_what_was_sent_may_be_written_to_and_what_came_belongs_to_the_receiver():
    def program(comm):
        x = np.zeros(3)
        if comm.rank == 0:
            for other in (1, 2):
                comm.isend(x, other)
            x[...] = 7
        else:
            y = comm.recv(0)
            y += comm.rank
            comm.barrier() if comm.rank == 9 else None
            x = y
        parts = comm.all_gather(x)
        parts[0][...] = comm.rank                      # nobody else's
        comm.barrier()
        return [p.tolist() for p in parts]
    for rank, got in enumerate(spawn(program, 3).values):
        assert got == [[float(rank)] * 3, [1.0] * 3, [2.0] * 3]


def test_devices_of_their_own_with_the_memory_of_the_cluster():
    small = uniform(2).with_(device=device("A100").with_(memory_bytes=4096))

    def program(comm):
        x = mg.ones(100, device=comm.device)
        y = comm.all_reduce(x)
        comm.isend(y, 1 - comm.rank)
        z = comm.recv(1 - comm.rank)
        assert str(y.o.device) == str(z.o.device) == comm.device == f"sim:{comm.rank}"
        return z.tolist()[0]
    result = spawn(program, 2, cluster=small, device="sim")
    assert result.values == [2.0, 2.0] and all(800 <= peak <= 4096 for peak in result.peak_bytes)
    with pytest.raises(RankFailed, match="out of memory"):
        spawn(lambda comm: mg.ones(2000, device=comm.device), 2, cluster=small, device="sim")


# ---- refused before anything moves ---------------------------------------------------------------
def wrong(comm, what):
    x = mg.ones(5, requires_grad=True)
    y = np.ones(5)
    return {
        "a rank out of range": lambda: comm.send(y, 3),
        "a negative rank": lambda: comm.recv(-1),
        "itself": lambda: comm.send(y, comm.rank),
        "no rank": lambda: comm.broadcast(y, "0"),
        "root out of range": lambda: comm.reduce(y, 7),
        "needs a gradient": lambda: comm.all_reduce(x),
        "a result needs a gradient": lambda: comm.isend(x * 2, 1),
        "meta": lambda: comm.all_reduce(mg.ones(3, device="meta")),
        "does not divide": lambda: comm.reduce_scatter(y),
        "cannot be cut": lambda: comm.all_to_all(np.array(1.0)),
        "a list too short": lambda: comm.all_to_all([y, y]),
        "mixed dtypes": lambda: comm.all_to_all([y, y, y.astype("float32")]),
        "mixed devices": lambda: comm.all_to_all([mg.ones(2), mg.ones(2, device="sim:0"), mg.ones(2)]),
        "no such op": lambda: comm.all_reduce(y, "average"),
        "mean of integers": lambda: comm.all_reduce(np.ones(3, int), "mean"),
        "no such algorithm": lambda: comm.all_reduce(y, algorithm="rong"),
        "no such choice": lambda: comm.all_reduce(y, algorithm="ring", servers=2),
        "text": lambda: comm.all_reduce("text"),
        "objects": lambda: comm.all_reduce(np.array([None])),
        "read-only": lambda: comm.all_reduce_(np.broadcast_to(np.ones(1), (3,))),
        "expanded": lambda: comm.all_reduce_(mg.ones(1).expand(3)),
        "a number in place": lambda: comm.all_reduce_(1.0),
        "nothing to broadcast": lambda: comm.broadcast(None, comm.rank),
        "negative time": lambda: comm.compute(-1.0),
        "two to scatter": lambda: comm.scatter([y] * 3, (comm.rank + 1) % 3),
        "too large": lambda: comm.all_gather(np.ones(4000, "int8")),
        "too large to send": lambda: comm.isend(np.ones(5001, "int8"), (comm.rank + 1) % 3),
    }[what]()


WRONG = {
    "a rank out of range": "dst=3.*0 … 2", "a negative rank": "src=-1", "itself": "this rank itself",
    "no rank": "'0'", "root out of range": "dst=7", "needs a gradient": r"\(5,\) needs its gradient.*detach",
    "a result needs a gradient": "needs its gradient", "meta": "no values", "does not divide": "5 rows, which 3 ranks",
    "cannot be cut": "no dimensions", "a list too short": "3 ranks, got 2", "mixed dtypes": "float64 .*float32",
    "mixed devices": "on cpu.* on sim", "no such op": "'average'", "mean of integers": "float dtype",
    "no such algorithm": "'rong'.*ring", "no such choice": "no such choice", "text": "got str", "objects": "object",
    "read-only": "share|read-only", "expanded": "expanded", "a number in place": "needs a tensor",
    "nothing to broadcast": "is src", "negative time": "-1", "two to scatter": "gives the tensors",
    "too large": "do not fit", "too large to send": r"5\.001 kB do not fit.*5 kB",
}


@pytest.mark.parametrize("what", WRONG)
def test_refused_before_anything_moves(what):
    small = uniform(3).with_(device=device("A100").with_(memory_bytes=5000))
    with pytest.raises((RankFailed, CollectiveMismatch), match=WRONG[what]):
        spawn(wrong, 3, what, cluster=small, timeout=20)
    result = spawn(wrong, 3, what, cluster=small, check=False, timeout=20)
    assert result.nbytes.sum() == 0 and 0 in result.failures
    assert isinstance(result.failures[0], (ValueError, TypeError, MemoryError, CommunicationError))


@pytest.mark.parametrize("field, program", [
    ("kind", lambda comm: comm.all_reduce(np.ones(2)) if comm.rank else comm.all_gather(np.ones(2))),
    ("shape", lambda comm: comm.all_reduce(np.ones(2 + comm.rank % 2))),
    ("dtype", lambda comm: comm.all_reduce(np.ones(2, "float32" if comm.rank == 2 else "float64"))),
    ("op", lambda comm: comm.all_reduce(np.ones(2), "sum" if comm.rank else "max")),
    ("root", lambda comm: comm.broadcast(np.ones(2), comm.rank % 2)),
    ("algorithm", lambda comm: comm.all_reduce(np.ones(2), algorithm="ring" if comm.rank else "tree")),
    ("form", lambda comm: comm.all_reduce(mg.ones(2, dtype=mg.float64) if comm.rank else np.ones(2))),
    ("form", lambda comm: comm.all_reduce(mg.ones(2, device="sim:0" if comm.rank else "cpu"))),
    ("shape", lambda comm: comm.all_gather(np.ones((2, 2 + comm.rank % 2)))),
])
def test_calls_that_differ_are_named_with_both_ranks_and_lines(field, program):
    def whole(comm):
        comm.barrier()
        return program(comm)
    with pytest.raises(CollectiveMismatch, match=f"ranks . and . differ in {field}") as told:
        spawn(whole, 3, timeout=20)
    text = str(told.value)
    assert "call 2 of all 3 ranks" in text and "<-- HERE" in text and text.count("test_communicator.py") >= 2
