"""The transport alone: what was posted is what is taken, and what comes too late or in vain is dropped."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from distributed import Client, LocalCluster
from distributed.core import Status

from simulator.errors import Stopped
from simulator.executors.transport import Hub, Transport
from simulator.spawn import spawn

ADDRESS = "tcp://127.0.0.1:1"


@pytest.fixture
def hub():
    worker = SimpleNamespace(loop=SimpleNamespace(asyncio_loop=None), address=ADDRESS, handlers={}, extensions={},
                             status=Status.running)
    return Hub.of(worker)


def pair(hub):
    return [Transport(hub, "job", rank, [ADDRESS] * 2) for rank in (0, 1)]


def test_there_is_one_hub_for_a_worker(hub):
    assert Hub.of(hub.worker) is hub and len(hub.worker.handlers) == 2


def test_within_a_process_a_message_is_no_longer_the_senders_memory(hub):
    a, b = pair(hub)
    x = np.arange(200_000.0)
    assert a.post(1, ("k", 1), "header", x) is None
    x[...] = 0
    header, got = b.take(0, ("k", 1), 1.0)
    assert header == "header" and (got == np.arange(200_000.0)).all()
    assert list(a.posted[1]) == [x.nbytes] and b.arrived[0] == x.nbytes


def test_messages_are_told_apart_by_sender_and_key_whatever_their_order(hub):
    a, b = pair(hub)
    for k in (2, 0, 1):
        a.post(1, k, None, np.full(2, k))
    a.post(0, 0, None, np.full(2, 7))
    assert [int(b.take(0, k, 1.0)[1][0]) for k in range(3)] == [0, 1, 2]
    assert int(a.take(0, 0, 1.0)[1][0]) == 7


def test_a_wait_ends(hub):
    a, b = pair(hub)
    with pytest.raises(TimeoutError, match="no message from rank 0 within 0.05 s"):
        b.take(0, "k", 0.05)
    threading.Timer(0.1, b.stop).start()
    start = time.monotonic()
    with pytest.raises(Stopped):
        b.take(0, "k", 10.0)
    assert time.monotonic() - start < 5


def test_what_comes_for_a_job_that_is_over_is_dropped(hub):
    a, b = pair(hub)
    b.close()
    a.post(1, "k", None, np.ones(3))
    letter = pickle.dumps(("k", None, np.dtype("float64"), (3,)))
    for job, dst in (("job", 1), ("no such job", 0)):
        assert not asyncio.run(hub._posted(job, 0, dst, letter, np.zeros(24, np.uint8)))
    assert not hub.heard("no such job", [(0, ("stop",))])
    assert list(hub.transports) == [("job", 0)] and not hub.places


def test_what_came_is_aligned_and_may_be_written(hub):
    _, b = pair(hub)
    raw = np.zeros(25, np.uint8)
    for data in (raw[1:], np.frombuffer(bytes(24), np.uint8)):
        letter = pickle.dumps(("k", None, np.dtype("float64"), (3,)))
        assert asyncio.run(hub._posted("job", 0, 1, letter, data))
        got = b.take(0, "k", 1.0)[1]
        assert got.flags.aligned and got.flags.writeable and got.dtype == float and got.shape == (3,)


def test_workers_that_are_threads_of_one_process():
    def program(comm):
        n = comm.world_size
        x = np.full(50_000, comm.rank + 1.0)
        for algorithm in ("doubling", "ring", "direct"):
            assert (comm.all_reduce(x, algorithm=algorithm) == n * (n + 1) / 2).all()
        comm.isend(x, (comm.rank + 1) % n)
        x[...] = -1
        return float(comm.recv((comm.rank - 1) % n)[-1])
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster:
        with Client(cluster, set_as_default=False) as client:
            for _ in range(3):
                assert spawn(program, 4, executor="dask", client=client, timeout=60).values == [4.0, 1.0, 2.0, 3.0]
            assert spawn(program, 4, executor="dask", client=cluster, timeout=60).values == [4.0, 1.0, 2.0, 3.0]
