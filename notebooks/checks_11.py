"""The self-checks of notebook 11, in the order in which they are met.

Times and bytes are asked of the simulator; a program of the reader's runs on it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from lesson import Off, ask, check, close, expect

import minigrad as mg
import simulator as sim
from simulator import Cluster, Network, shapes
from simulator.collectives import make_plan, replay
from simulator.compression import TopK
from simulator.shapes import CUBE_MESH


@check
def check_message_time(time: Callable) -> str:
    """time(nbytes, alpha, rate): seconds of one message."""
    for alpha, rate in ((3.4e-6, 232e9), (1e-3, 1e6)):
        network = Network(_joined(2, sim.Link("a link", rate, alpha)))
        for nbytes in (0, 1000, 10**9):
            found, want = ask(time, nbytes, alpha, rate), network.idle_s(0, 1, nbytes)
            _near(found, want, f"{nbytes:,} bytes, latency {alpha:g} s, {rate:g} bytes a second")
    return "from a message of nothing to one of a gigabyte, over two links"


@check
def check_ring_time(time: Callable) -> str:
    """time(n, nbytes, alpha, rate): seconds of a ring all-reduce."""
    alpha, rate = 3.4e-6, 232e9
    for n in (1, 2, 3, 8, 16):
        machine = _joined(n, sim.Link("a link", rate, alpha))
        for nbytes in (0, n * 1000, n * 10**8):
            want = replay(make_plan("all_reduce", "ring", n), Network(machine), nbytes).time_s
            _near(ask(time, n, nbytes, alpha, rate), want, f"{_ranks(n)}, {nbytes:,} bytes")
    return "the formula and 15 replays, message by message, agree"


def _joined(n: int, link: sim.Link) -> Cluster:
    return Cluster((sim.device("A100"),) * n, shapes.fully_connected(n, link))


def _near(found: object, want: float, what: str) -> None:
    expect(isinstance(found, int | float), f"{what}: a {type(found).__name__}, expected seconds as a number")
    expect(abs(found - want) <= 1e-6 * want + 1e-15, f"{what}: {found:.4g} s is off by {abs(found - want):.2g} s")


@check
def check_all_gather(gather: Callable) -> str:
    """gather(comm, pieces): rank r has the whole of pieces[(r + 1) % n]; afterwards all have all."""
    for n in (1, 2, 3, 5, 8):
        whole = [mg.arange(4, dtype=mg.float32) + 10 * k for k in range(n)]

        def program(comm, whole=whole, n=n):
            pieces = [whole[k] if k == (comm.rank + 1) % n else mg.full((4,), -1.0) for k in range(n)]
            return gather(comm, pieces)

        try:
            result = sim.spawn(program, n, timeout=20)
        except sim.CommunicationError as error:
            raise Off(f"{_ranks(n)}: {str(error).splitlines()[0]}") from error
        if all(value is None for value in result.values):
            ask(lambda values=result.values: values[0])
        for rank, pieces in enumerate(result.values):
            expect(
                isinstance(pieces, list | tuple) and len(pieces) == n,
                f"{_ranks(n)}: rank {rank} returns a {type(pieces).__name__}, expected a list of {n} pieces",
            )
            for k, piece in enumerate(pieces):
                close(piece, whole[k].numpy(), f"{_ranks(n)}: piece {k} on rank {rank}")
        _ring_only(result.nbytes, n)
    return "1, 2, 3, 5 and 8 ranks; each talked to its neighbour only, and sent nothing twice"


def _ring_only(sent: np.ndarray, n: int) -> None:
    for src, dst in zip(*np.nonzero(sent)):
        expect((src + 1) % n == dst, f"{_ranks(n)}: rank {src} sent something to rank {dst}, which is not its right")
    most = int(sent.max())
    expect(most <= 16 * (n - 1), f"{_ranks(n)}: a rank sent {most} bytes; {n - 1} pieces of 16 bytes are enough")


@check
def check_ring(order: list) -> str:
    """An order of the GPUs 0 … 5 of a DGX-1 in which neighbours, and the last and the first, have a wire."""
    expect(isinstance(order, list | tuple), f"a {type(order).__name__}, expected a list of six numbers")
    expect(sorted(order) == list(range(6)), f"{list(order)}: expected each of 0 … 5 once")
    for a, b in zip(order, [*order[1:], order[0]]):
        expect((min(a, b), max(a, b)) in CUBE_MESH, f"GPU {a} and GPU {b} are neighbours in it, and have no wire")
    return "a ring; as a wire has two directions, it can be gone the other way round too"


@check
def check_crossing(nodes_time: Callable) -> str:
    """nodes_time(nodes, nbytes, rate): seconds of the part between nodes, each card with its share of the bytes."""
    for nodes in (2, 4, 8):
        for nbytes in (8 * 10**7, 8 * 10**9):
            each, rate = nbytes / 8, 25e9
            want = 2 * (nodes - 1) / nodes * each / rate
            _near(ask(nodes_time, nodes, nbytes, rate), want, f"{nodes} nodes of 8, {nbytes:,} bytes, {rate:g} B/s")
    return "eight rings between nodes, side by side, one for each card"


@check
def check_saving(saving: Callable) -> str:
    """saving(n, keep): how many times fewer bytes top-k sends than a dense ring all-reduce, for float32."""
    for n in (2, 4, 10):
        for keep in (0.01, 0.05):
            want = _dense(n) / _sparse(n, keep)
            found = ask(saving, n, keep)
            expect(isinstance(found, int | float), f"a {type(found).__name__}, expected a number")
            expect(
                abs(found / want - 1) < 0.02,
                f"{_ranks(n)} that keep {keep:.0%}: {found:.3g} times is {abs(found / want - 1):.0%} off. "
                "What does one kept value take, and to how many others does it go?",
            )
    return "counted in six runs"


def _dense(n: int) -> int:
    return int(sim.spawn(lambda comm: comm.all_reduce(np.zeros(10_000, np.float32)), n).nbytes.sum())


def _sparse(n: int, keep: float) -> int:
    gradient = np.arange(10_000, dtype=np.float32)
    return int(sim.spawn(lambda comm: TopK(keep).average(gradient, comm), n).nbytes.sum())


def _ranks(n: int) -> str:
    return f"{n} rank{'s' * (n != 1)}"
