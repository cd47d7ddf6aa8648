#!/usr/bin/env python3
"""What a message between ranks costs on this computer.  `python benchmarks/ranks.py -r 5`

Rows are µs of real time a message (for `spawn` a run), median and least of interleaved rounds; `x bare` is over
a hand-over between two bare threads by locks in the same round, the least that a rank in a thread can cost.  At the end
a count of the threads that many runs left behind.  "asks": each rank reads `comm.time` before it sends, so that links
are taken in the order of time while the program runs.
"""

import argparse
import statistics
import sys
import threading
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)  # instead of this folder

import numpy as np

from simulator.cluster import uniform
from simulator.shapes import switch
from simulator.spawn import spawn
from simulator.topology import Link


def bare(count: int) -> None:
    """Two threads hand a baton to and fro."""
    batons = [threading.Lock(), threading.Lock()]
    for baton in batons:
        baton.acquire()

    def body(k: int) -> None:
        for _ in range(count // 2):
            batons[k].acquire()
            batons[1 - k].release()

    threads = [threading.Thread(target=body, args=(k,)) for k in (0, 1)]
    for thread in threads:
        thread.start()
    batons[0].release()
    for thread in threads:
        thread.join()


def ping_pong(comm, count: int, ask: bool) -> None:
    x = np.zeros(1)
    for k in range(count):
        if k % 2 == comm.rank:
            if ask:
                comm.time  # noqa: B018 - asking is the point
            comm.isend(x, 1 - comm.rank)
        else:
            comm.recv(1 - comm.rank)


def ring(comm, count: int, ask: bool) -> None:
    x = np.ones(1024)
    for _ in range(count):
        if ask:
            comm.time  # noqa: B018
        comm.all_reduce(x, algorithm="ring")


def contended(n: int):
    """All at one switch, where messages wait for each other."""
    return uniform(n, topology=switch(n, Link("wire", 25e9, 5e-6)))


ROUNDS = 30                                  # all-reduces of a run: its start has a row of its own
WORK = {
    "bare hand-over": (lambda: bare(2000), 2000),
    "ping-pong": (lambda: spawn(ping_pong, 2, 2000, False), 2000),
    "ping-pong, asks": (lambda: spawn(ping_pong, 2, 2000, True), 2000),
    "ring all-reduce, 8 ranks": (lambda: spawn(ring, 8, ROUNDS, False), ROUNDS * 112),
    "the same at one switch": (lambda: spawn(ring, 8, ROUNDS, False, cluster=contended(8)), ROUNDS * 112),
    "the same, asks": (lambda: spawn(ring, 8, ROUNDS, True, cluster=contended(8)), ROUNDS * 112),
    "spawn, 2 ranks": (lambda: [spawn(lambda comm: None, 2) for _ in range(50)], 50),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-r", "--rounds", type=int, default=5)
    parser.add_argument("-n", "--runs", type=int, default=10_000, help="of which no thread may be left")
    told = parser.parse_args()
    took: dict[str, list[float]] = {name: [] for name in WORK}
    for _ in range(told.rounds + 1):
        for name, (run, count) in WORK.items():
            start = time.perf_counter()
            run()
            took[name].append((time.perf_counter() - start) / count * 1e6)
    print(f"{'':26}{'median us':>10}{'least us':>10}{'x bare':>8}")
    for name, each in took.items():
        ratio = statistics.median(a / b for a, b in zip(each[1:], took["bare hand-over"][1:]))
        print(f"{name:26}{statistics.median(each[1:]):10.2f}{min(each[1:]):10.2f}{ratio:8.2f}")
    before = threading.active_count()
    for _ in range(told.runs):
        spawn(ping_pong, 2, 2, False)
    print(f"{told.runs} runs left {threading.active_count() - before} threads")


if __name__ == "__main__":
    main()
