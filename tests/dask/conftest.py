"""One cluster of worker processes for all tests here; those that kill a worker make their own."""

from __future__ import annotations

import os
import warnings
from functools import partial

import pytest

pytest.importorskip("distributed")

from distributed import Client

from simulator.executors.dask import local_cluster
from simulator.spawn import spawn

WORKERS = 3


def alive(pids) -> list[int]:
    """Those processes that are still there."""

    def there(pid: int) -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True

    return [pid for pid in pids if there(pid)]


@pytest.fixture(scope="session")
def client():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Dask's own, at its start and end
        with local_cluster(WORKERS) as cluster, Client(cluster, set_as_default=False) as made:
            spawn(lambda comm: comm.all_reduce(1), WORKERS, executor="dask", client=made, timeout=60)
            yield made


@pytest.fixture
def run(client):
    """`spawn` on the cluster."""
    return partial(spawn, executor="dask", client=client, timeout=60)
