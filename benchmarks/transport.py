#!/usr/bin/env python3
"""What a message between worker processes costs on this computer.  `python benchmarks/transport.py -r 5`

Rows are ms of real time, median and least of interleaved rounds; `x pipe` is over the same bytes through a pipe between
two processes (`multiprocessing`, pickled) in the same round.  "launch" is a whole run of a program that does nothing,
against the no-op tasks of Dask alone.  "local" is the same program on ranks in threads.
"""

import argparse
import multiprocessing
import statistics
import sys
import time
import warnings
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)  # instead of this folder

import numpy as np
from distributed import Client

from simulator.executors.dask import local_cluster
from simulator.spawn import spawn

SIZES = {"1 KiB": (1024, 100), "1 MiB": (2**20, 30), "64 MiB": (2**26, 4)}


def ping_pong(comm, nbytes: int, count: int) -> float:
    """ms one way."""
    x = np.zeros(nbytes // 8)
    for k in range(count + 2):
        if k == 2:
            start = time.perf_counter()
        if k % 2 == comm.rank:
            comm.send(x, 1 - comm.rank)
        else:
            comm.recv(1 - comm.rank)
    return (time.perf_counter() - start) / count * 1e3


def all_reduce(comm, count: int, nbytes: int, algorithm: str) -> float:
    """ms each."""
    x = np.ones(nbytes // 8)
    comm.all_reduce(x, algorithm=algorithm)
    start = time.perf_counter()
    for _ in range(count):
        comm.all_reduce(x, algorithm=algorithm)
    return (time.perf_counter() - start) / count * 1e3


def nothing(comm) -> None:
    pass


def _echo(pipe) -> None:
    while (x := pipe.recv()) is not None:
        pipe.send(x)


def piped(pipe, nbytes: int, count: int) -> float:
    x = np.zeros(nbytes // 8)
    start = time.perf_counter()
    for _ in range(count // 2):
        pipe.send(x)
        pipe.recv()
    return (time.perf_counter() - start) / (count // 2 * 2) * 1e3


def timed(work, *args, **how) -> float:
    start = time.perf_counter()
    work(*args, **how)
    return (time.perf_counter() - start) * 1e3


def no_tasks(client: Client) -> None:
    """As many tasks as ranks, pinned, that do nothing."""
    workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
    client.gather([client.submit(int, workers=[w], pure=False) for w in workers])


def measured(client: Client, pipe) -> dict[str, float]:
    """One round: name -> ms."""

    def on(program, ranks, *args, executor="dask"):
        here = {"executor": "dask", "client": client} if executor == "dask" else {}
        return max(spawn(program, ranks, *args, timeout=120, **here).values)

    found = {}
    for name, (nbytes, count) in SIZES.items():
        found[f"{name} pipe"] = piped(pipe, nbytes, count)
        found[f"{name} one way"] = on(ping_pong, 2, nbytes, count)
    found["all-reduce 10 MB x 4, ring"] = on(all_reduce, 4, 3, 10**7, "ring")
    found["all-reduce 8 kB x 2, direct"] = on(all_reduce, 2, 20, 8000, "direct")
    found["all-reduce 8 kB x 4, direct"] = on(all_reduce, 4, 10, 8000, "direct")
    found["all-reduce 8 kB x 4, local"] = on(all_reduce, 4, 10, 8000, "direct", executor="local")
    found["launch x 2"] = timed(spawn, nothing, 2, executor="dask", client=client)
    found["launch x 4"] = timed(spawn, nothing, 4, executor="dask", client=client)
    found["4 tasks of Dask"] = timed(no_tasks, client)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-r", "--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    echo = context.Process(target=_echo, args=(there,), daemon=True)
    echo.start()
    warnings.simplefilter("ignore")
    with local_cluster(4) as cluster, Client(cluster, set_as_default=False) as client:
        measured(client, here)  # imports and connections
        samples = [measured(client, here) for _ in range(rounds)]
    here.send(None)
    echo.join(10)
    print(f"{'':32}{'median ms':>12}{'least':>10}{'x pipe':>9}")
    for name in samples[0]:
        values = [sample[name] for sample in samples]
        size = name.rsplit(" ", 2)[0]
        pipes = [sample.get(f"{size} pipe") for sample in samples]
        ratio = f"{statistics.median(v / p for v, p in zip(values, pipes)):9.1f}" if all(pipes) else ""
        print(f"{name:32}{statistics.median(values):12.3f}{min(values):10.3f}{ratio}")


if __name__ == "__main__":
    main()
