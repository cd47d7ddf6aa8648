"""Mistakes of rank programs: each is named within a second, and nothing hangs or is left behind."""
from __future__ import annotations

import _thread
import random
import re
import threading
import time

import numpy as np
import pytest

from simulator.clocks import Clocks
from simulator.cluster import Cluster
from simulator.device import device
from simulator.errors import (
    CollectiveMismatch,
    CommunicationError,
    Deadlock,
    RankFailed,
    RankTimeout,
    Stopped,
    UnreceivedMessage,
)
from simulator.executors.local import World
from simulator.spawn import spawn
from simulator.topology import Edge, Link, Topology


def rank_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("minigrad rank")]


# ---- whoever waits for ever is told ---------------------------------------------------------------
def test_a_ring_of_waits_is_named_with_its_lines():
    def program(comm):
        comm.isend(1.0, (comm.rank + 1) % comm.world_size, tag=3)
        comm.recv((comm.rank + 1) % comm.world_size)
    with pytest.raises(Deadlock, match="0 -> 1 -> 2 -> 3 -> 0") as told:
        spawn(program, 4)
    assert told.value.cycle == (0, 1, 2, 3)
    assert str(told.value).count("comm.recv((comm.rank + 1)") == 4 and "never received" in str(told.value)
    assert "rank 0 to rank 1 (tag 3)" in str(told.value)


def test_a_message_from_a_rank_that_has_returned_and_one_that_nobody_took():
    with pytest.raises(Deadlock, match=r"rank 1 waits for a message from rank 0 \(tag 0\) \(rank 0 has returned\)"):
        spawn(lambda comm: comm.recv(0) if comm.rank else None, 2)
    with pytest.raises(UnreceivedMessage, match=r"rank 0 to rank 1 \(tag 5\)"):
        spawn(lambda comm: comm.send(1.0, 1, tag=5) if comm.rank == 0 else None, 2)


def test_a_rank_that_had_ended_before_the_call_and_one_that_ends_after_it():
    def early(comm):
        if comm.rank == 0:
            return
        comm.recv(2) if comm.rank == 1 else comm.isend(1.0, 1)
        comm.barrier()

    def late(comm):
        comm.barrier() if comm.rank else None
    for program in (early, late):
        with pytest.raises(CollectiveMismatch, match="barrier is call 1 .*rank 0 ended without making it"):
            spawn(program, 3)


def test_a_communicator_serves_its_rank_within_its_run():
    comms = {}

    def program(comm):
        comms[comm.rank] = comm
        comm.barrier()
        with pytest.raises(RuntimeError, match="rank . was called by another thread"):
            comms[1 - comm.rank].isend(1.0, comm.rank)
        caught = []
        thread = threading.Thread(target=lambda: caught.append(failing(comm)))
        thread.start()
        thread.join(10)
        return caught

    def failing(comm):
        try:
            comm.isend(1.0, 1 - comm.rank)
        except RuntimeError as error:
            return str(error)
    assert all("another thread" in text for texts in spawn(program, 2).values for text in texts)
    with pytest.raises(RuntimeError, match="after its run"):
        comms[0].barrier()


@pytest.mark.parametrize("program", [
    lambda comm: comm.send(1.0, 2) if comm.rank == 0 else comm.recv(0) if comm.rank == 2 else None,
    lambda comm: comm.all_reduce(1.0),
])
def test_ranks_that_no_link_joins(program):
    edges = [Edge(0, 1, Link("wire", 1e9, 0.0)), Edge(1, 0, Link("wire", 1e9, 0.0))]
    apart = Cluster((device("A100"),) * 3, Topology("a pair and one alone", 3, tuple(edges)))
    with pytest.raises(RankFailed, match="no way from"):
        spawn(program, cluster=apart)
    assert spawn(program, cluster=apart, check=False).nbytes.sum() == 0


def test_an_error_of_the_clocks_ends_the_run(monkeypatch):
    def broken(self):
        raise ArithmeticError("clocks")

    def program(comm):
        comm.compute(1.0)
        comm.barrier() if comm.rank else comm.time
    monkeypatch.setattr(World, "_take_first", broken)
    with pytest.raises(ArithmeticError, match="clocks"):
        spawn(lambda comm: comm.recv_any() if comm.rank == 0 else comm.recv(0), 2)
    monkeypatch.undo()
    monkeypatch.setattr(Clocks, "advance", broken)
    with pytest.raises((ArithmeticError, RankFailed), match="clocks"):
        spawn(program, 2)
    assert not rank_threads()


def test_two_groups_in_different_order():
    def program(comm):
        a, b = comm.split(0), comm.split(0)
        for group in (a, b) if comm.rank else (b, a):
            group.all_reduce(1.0)
    with pytest.raises(Deadlock, match="0 -> 1 -> 0"):
        spawn(program, 2)


def test_an_exception_of_a_rank_has_its_own_traceback():
    def broken(x):
        return x / 0

    def program(comm):
        if comm.rank == 1:
            broken(1)
        comm.barrier()
    with pytest.raises(RankFailed, match="rank 1 of 3 raised ZeroDivisionError.*in broken") as told:
        spawn(program, 3)
    assert told.value.rank == 1 and list(told.value.failures) == [1]
    cause, names = told.value.__cause__, []
    tb = cause.__traceback__
    while tb:
        names.append(tb.tb_frame.f_code.co_name)
        tb = tb.tb_next
    assert isinstance(cause, ZeroDivisionError) and names[-2:] == ["program", "broken"]


def test_failures_by_rank_where_they_are_asked_for():
    def program(comm):
        if comm.rank == 1:
            raise KeyError("gone")
        if comm.rank == 2:
            comm.recv(1)
        return "done"
    result = spawn(program, 3, check=False)
    assert result.values == ["done", None, None] and list(result.failures) == [1, 2]
    assert isinstance(result.failures[1], KeyError) and isinstance(result.failures[2], Deadlock)
    assert "rank 1 has failed" in str(result.failures[2])


def test_an_error_that_is_no_ranks_own_is_raised_all_the_same():
    with pytest.raises(UnreceivedMessage):
        spawn(lambda comm: comm.isend(1.0, 1) if comm.rank == 0 else None, 2, check=False)
    result = spawn(lambda comm: comm.recv(1 - comm.rank), 2, check=False)
    assert [type(e) for e in result.failures.values()] == [Deadlock] * 2
    assert all(isinstance(e, RankTimeout) for e in spawn(forever, 2, check=False, timeout=0.2).failures.values())


def forever(comm):
    while True:
        comm.barrier()


def test_stopped_ranks_clean_up_and_cannot_go_on():
    seen = []

    def program(comm):
        if comm.rank == 0:
            raise ValueError("first")
        while True:
            try:
                comm.recv(0)
            except Exception:                          # noqa: BLE001 - what a careless program does
                seen.append("caught")
            finally:
                seen.append("cleaned")
    with pytest.raises(RankFailed, match="first"):
        spawn(program, 3)
    assert not rank_threads() and "caught" not in seen and issubclass(Stopped, BaseException)


def test_a_time_limit_ends_a_rank_that_never_says_anything():
    def program(comm):
        while comm.rank == 1:
            pass
        comm.barrier()
    start = time.monotonic()
    with pytest.raises(RankTimeout, match="0.3 s; rank 1 was running, at .*test_mistakes.py"):
        spawn(program, 2, timeout=0.3)
    assert time.monotonic() - start < 5 and not rank_threads()


def test_ctrl_c_stops_all_ranks():
    def program(comm):
        while True:
            comm.barrier()
    key = threading.Timer(0.3, _thread.interrupt_main)
    key.start()
    with pytest.raises(KeyboardInterrupt):
        spawn(program, 4, timeout=20)
    key.join(10)
    assert not rank_threads()
    assert spawn(lambda comm: comm.all_reduce(1), 4).values == [4] * 4


# ---- random programs with one planted mistake ------------------------------------------------------
CALLS = {
    "all_reduce": lambda comm, n: comm.all_reduce(np.ones(n)),
    "broadcast": lambda comm, n: comm.broadcast(np.ones(n), 1),
    "all_gather": lambda comm, n: comm.all_gather(np.ones((2, n))),
    "barrier": lambda comm, n: comm.barrier(),
    "reduce_scatter": lambda comm, n: comm.reduce_scatter(np.ones(n * comm.world_size)),
    "neighbours": lambda comm, n: (comm.isend(np.ones(n), (comm.rank + 1) % comm.world_size),
                                   comm.recv((comm.rank - 1) % comm.world_size)),
}
SIZED = {"all_reduce": "shape", "broadcast": "shape", "all_gather": "shape", "reduce_scatter": "shape"}


def planted(comm, steps, mistake, at, rank):
    """`steps`, but rank `rank` makes a mistake at step `at`."""
    for k, (name, n) in enumerate(steps):
        here = k == at and comm.rank == rank
        if here and mistake == "missing":
            return
        if k == at and mistake == "cycle":
            comm.recv((comm.rank + 1) % comm.world_size, tag=77)
        if here and mistake == "order":
            name = "broadcast" if name != "broadcast" else "all_reduce"
        if here and mistake == "dtype":
            comm.all_reduce(np.ones(n, "float32"))
        elif k == at and mistake == "dtype":
            comm.all_reduce(np.ones(n))
        CALLS[name](comm, n + (here and mistake == "shape"))


@pytest.mark.parametrize("seed", range(20))
def test_a_planted_mistake_is_named_within_a_second(seed):
    rng = random.Random(seed)
    mistake = ("order", "shape", "dtype", "missing", "cycle")[seed % 5]
    world = rng.randrange(2, 7)
    steps = [(rng.choice(list(CALLS)), rng.randrange(1, 9)) for _ in range(rng.randrange(4, 12))]
    at, rank = rng.randrange(len(steps)), rng.randrange(world)
    if mistake in ("shape", "missing", "order"):
        steps[at] = rng.choice(list(SIZED)), steps[at][1]
    spawn(planted, world, steps, None, None, None, timeout=20)
    start = time.monotonic()
    with pytest.raises(CommunicationError) as told:
        spawn(planted, world, steps, mistake, at, rank, timeout=20)
    assert time.monotonic() - start < 1.0
    text = str(told.value)
    kinds = {"order": CollectiveMismatch, "shape": CollectiveMismatch, "dtype": CollectiveMismatch,
             "missing": CollectiveMismatch, "cycle": Deadlock}
    assert type(told.value) is kinds[mistake], text
    words = {"order": "differ in kind", "shape": "differ in shape", "dtype": "differ in dtype",
             "missing": f"rank {rank} ended without", "cycle": "each waits for the next: 0 -> 1"}
    assert words[mistake] in text
    if mistake not in ("cycle", "missing"):
        ranks = set(map(int, re.search(r"ranks (\d+) and (\d+) differ", text).groups()))
        assert rank in ranks
    assert "test_mistakes.py" in text and not rank_threads()
