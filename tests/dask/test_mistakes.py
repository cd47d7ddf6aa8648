"""Mistakes of rank programs, in processes: each is named in time, no rank is left behind, the cluster goes on."""

from __future__ import annotations

import _thread
import threading
import time

import numpy as np
import pytest

import minigrad as mg
from simulator.cluster import uniform
from simulator.device import device
from simulator.errors import CollectiveMismatch, Deadlock, RankFailed, RankTimeout, UnreceivedMessage
from simulator.executors.service import look
from simulator.spawn import spawn


@pytest.fixture(autouse=True)
def nothing_is_left(client, run):
    """After each: no seat, no transport, no thread of a rank on any worker; and the next run is right."""
    yield
    until = time.monotonic() + 3
    while any(client.run(left).values()) and time.monotonic() < until:
        time.sleep(0.02)
    assert not any(client.run(left).values())
    assert run(lambda comm: comm.all_reduce(1), 4).values == [4] * 4


def left(dask_worker):
    hub = dask_worker.extensions.get("minigrad")
    threads = [t.name for t in threading.enumerate() if t.name.startswith("minigrad rank")]
    return [*threads, *([*hub.places, *hub.transports] if hub else [])]


def quickly(seconds: float = 2.0):
    """That what is raised is raised in time, on a busy machine too."""
    start = time.monotonic()
    return lambda: time.monotonic() - start < seconds + 3


def test_a_ring_of_waits_is_named_with_its_lines(run):
    def program(comm):
        comm.isend(1.0, (comm.rank + 1) % comm.world_size, tag=3)
        comm.recv((comm.rank + 1) % comm.world_size)
    soon = quickly()
    with pytest.raises(Deadlock, match="0 -> 1 -> 2 -> 3 -> 0") as told:
        run(program, 4)
    assert soon() and told.value.cycle == (0, 1, 2, 3)
    assert str(told.value).count("comm.recv((comm.rank + 1)") == 4 and "rank 0 to rank 1 (tag 3)" in str(told.value)


def test_waits_for_ranks_that_have_ended(run):
    soon = quickly()
    with pytest.raises(Deadlock, match=r"rank 1 waits for a message from rank 0 \(tag 0\) \(rank 0 has returned\)"):
        run(lambda comm: comm.recv(0) if comm.rank else None, 2)
    with pytest.raises(UnreceivedMessage, match=r"rank 0 to rank 1 \(tag 5\)"):
        run(lambda comm: comm.send(1.0, 1, tag=5) if comm.rank == 0 else None, 2)
    with pytest.raises(CollectiveMismatch, match="barrier is call 1 .*rank 0 ended without making it"):
        run(lambda comm: comm.barrier() if comm.rank else None, 3)
    assert soon()


@pytest.mark.parametrize("wrong, field", [
    (lambda comm: comm.all_reduce(np.ones(3 + comm.rank)), "shape"),
    (lambda comm: comm.all_reduce(np.ones(3, "float32" if comm.rank else "float64")), "dtype"),
    (lambda comm: comm.barrier() if comm.rank == 1 else comm.all_reduce(np.ones(3)), "kind"),
    (lambda comm: comm.broadcast(1.0, comm.rank), "root"),
    (lambda comm: comm.all_reduce(1.0, "max" if comm.rank else "sum"), "op"),
    (lambda comm: comm.all_reduce(1.0, algorithm="tree" if comm.rank else "ring"), "algorithm"),
])
def test_calls_that_do_not_fit(run, wrong, field):
    def program(comm):
        comm.all_reduce(np.ones(2))
        wrong(comm)
    with pytest.raises(CollectiveMismatch, match=f"differ in {field}") as told:
        run(program, 3)
    text = str(told.value)
    assert "Nothing was moved" in text and "HERE" in text and "call 1" in text and "call 2" in text
    assert text.count("all_reduce (2,)") == 3              # the table has all ranks


def test_two_groups_in_different_order(run):
    def program(comm):
        a, b = comm.split(0), comm.split(0)
        for group in (a, b) if comm.rank else (b, a):
            group.all_reduce(1.0)
    with pytest.raises(Deadlock, match="0 -> 1 -> 0"):
        run(program, 2)


class Mine(Exception):
    """Of a kind that only this module has."""


def broken(x):
    raise Mine(f"no {x}")


def test_an_exception_of_a_rank_comes_with_its_traceback_and_line(run):
    def program(comm):
        if comm.rank == 1:
            broken(7)
        comm.barrier()
    soon = quickly()
    with pytest.raises(RankFailed, match="rank 1 of 3 raised Mine: no 7, at .*test_mistakes.py:.*in broken; the other 2"
                       ) as told:
        run(program, 3)
    assert soon() and told.value.rank == 1 and list(told.value.failures) == [1]
    assert isinstance(told.value.__cause__, Mine)
    note = "".join(told.value.__cause__.__notes__)
    assert "broken(7)" in note and "test_mistakes.py" in note and 'raise Mine(f"no {x}")' in note


def test_failures_by_rank_where_they_are_asked_for(run):
    def program(comm):
        if comm.rank == 1:
            raise KeyError("gone")
        if comm.rank == 2:
            comm.recv(1)
        return "done"
    result = run(program, 3, check=False)
    assert result.values == ["done", None, None] and list(result.failures) == [1, 2]
    assert isinstance(result.failures[1], KeyError) and isinstance(result.failures[2], Deadlock)
    assert "rank 1 has failed" in str(result.failures[2])


def test_errors_that_are_found_when_all_are_there(run):
    small = uniform(2).with_(device=device("A100").with_(memory_bytes=1000))
    with pytest.raises(RankFailed, match="MemoryError.*would get do not fit"):
        run(lambda comm: comm.all_gather(np.ones(100)), 2, cluster=small)


def test_ranks_that_wait_compute_or_catch_everything_are_stopped(run):
    def program(comm):
        if comm.rank == 0:
            time.sleep(0.3)
            raise ValueError("first")
        while comm.rank == 1:
            pass
        while True:
            try:
                comm.recv(0)
            except Exception:                              # noqa: BLE001 - what a careless program does
                continue
    soon = quickly()
    with pytest.raises(RankFailed, match="first"):
        run(program, 3)
    assert soon()


def test_a_time_limit_says_who_was_running_where(run):
    def program(comm):
        while comm.rank == 1:
            sum(range(100))
        comm.barrier()
    soon = quickly()
    with pytest.raises(RankTimeout, match="1 s; rank 1 was running, at .*test_mistakes.py.*in program"):
        run(program, 2, **{"timeout": 1.0})
    assert soon()


def test_ctrl_c_at_the_driver_stops_all_ranks(run):
    def program(comm):
        while True:
            comm.barrier()
            if comm.rank == 1:
                sum(range(1000))
    key = threading.Timer(0.7, _thread.interrupt_main)
    key.start()
    soon = quickly(2.7)
    with pytest.raises(KeyboardInterrupt):
        run(program, 4)
    key.join(10)
    assert soon()


# ---- what cannot be sent, and what spawn does not take ---------------------------------------------
def test_what_cannot_be_sent_is_named(run):
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"argument 2 \(lock\) cannot be sent"):
        run(lambda comm, a, b: None, 2, 1, lock)
    with pytest.raises(TypeError, match=r"argument 'b' \(lock\)"):
        run(lambda comm, b: None, 2, b=lock)
    with pytest.raises(TypeError, match=r"the program \(function\)"):
        run(lambda comm: lock, 2)
    with pytest.raises(RankFailed, match="rank 0 returned a lock that cannot be sent"):
        run(lambda comm: threading.Lock(), 1)


def test_a_tensor_comes_back_without_its_graph_and_a_large_argument_arrives(run):
    x = np.arange(300_000.0)

    def program(comm, x):
        w = mg.ones(3, requires_grad=True)
        return w, (w * 2).detach(), float(x.sum())
    w, y, total = run(program, 2, x).values[1]
    assert w.requires_grad and y.tolist() == [2.0] * 3 and total == x.sum()


@pytest.mark.parametrize("how, error, match", [
    (dict(memory=True), ValueError, "memory=True.*executor=\"local\""),
    (dict(client=7), TypeError, "client is a distributed.Client.*int"),
])
def test_what_spawn_does_not_take_on_dask(run, how, error, match):
    with pytest.raises(error, match=match):
        run(lambda comm: None, 2, **how)
    with pytest.raises(ValueError, match="client is for"):
        spawn(lambda comm: None, 2, client=7)


def test_no_scheduler_at_the_address():
    soon = quickly(6)
    with pytest.raises(ConnectionError, match="no Dask scheduler answers at 'tcp://127.0.0.1:9'.*dask scheduler"):
        spawn(lambda comm: None, 2, executor="dask", client="tcp://127.0.0.1:9")
    assert soon()


def test_what_the_driver_asks_workers_is_empty_for_a_run_that_is_not(client):
    assert all(not found for found in client.run(look, "no such run").values())


def test_two_runs_at_once(run):
    def program(comm, k):
        return [comm.all_reduce(k) for _ in range(10)][-1]
    found = {}
    threads = [threading.Thread(target=lambda k=k: found.update({k: run(program, 3, k).values})) for k in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {k: [3 * k] * 3 for k in (1, 2, 3)}


def test_many_runs_leave_nothing(run, client):
    def program(comm, k):
        comm.isend(k, 1 - comm.rank)
        if k % 3 == 0 and comm.rank:
            raise ValueError
        return comm.recv(1 - comm.rank)
    for k in range(15):
        if k % 3:
            assert run(program, 2, k).values == [k, k]
        else:
            with pytest.raises(RankFailed):
                run(program, 2, k)
