"""The self-checks of notebook 12, in the order in which they are met.

Programs of the reader's run on simulated devices; formulas are held against such runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from lesson import Off, Unanswered, ask, check, close, expect

import minigrad as mg
import simulator as sim
from simulator import Cluster, shapes
from simulator.strategies.buckets import assign_buckets


@check
def check_average(average: Callable) -> str:
    """average(comm, parameters): each .grad becomes the mean of those of all ranks."""
    for n in (1, 2, 3, 5):
        result = _run(lambda comm: _averaged(comm, average), n, f"{_ranks(n)}")
        for rank, (grads, answered) in enumerate(result):
            if answered is ...:
                raise Unanswered("the gradients are as they were")
            for k, g in enumerate(grads):
                want = np.full((k + 1, 2), (n - 1) / 2 + 10 * k)
                expect(g is not None, f"{_ranks(n)}: parameter {k} has no gradient on rank {rank}")
                close(g, want, f"{_ranks(n)}: the gradient of parameter {k} on rank {rank}")
    return "1, 2, 3 and 5 ranks, three parameters, alike on all"


def _averaged(comm, average: Callable) -> tuple[list, object]:
    parameters = [mg.zeros(k + 1, 2, requires_grad=True) for k in range(3)]
    for k, p in enumerate(parameters):
        p.grad = mg.full((k + 1, 2), float(comm.rank + 10 * k))
    average(comm, parameters)
    as_before = all((p.grad == comm.rank + 10 * k).all().item() for k, p in enumerate(parameters))
    return [p.grad for p in parameters], ... if comm.world_size > 1 and as_before and _does_nothing(average) else None


def _does_nothing(function: Callable) -> bool:
    """A body that is still `...`, or returns None at once."""
    code = getattr(function, "__code__", None)
    return code is not None and not code.co_names


def _run(program: Callable, n: int, what: str) -> list:
    try:
        return sim.spawn(program, n, timeout=20).values
    except sim.RankFailed:
        raise
    except sim.CommunicationError as error:
        raise Off(f"{what}: {str(error).splitlines()[0]}") from error


SIZES = ((400, 40, 400, 40, 400, 40), (100,), (1000, 10, 10, 10, 1000, 10), (8, 8, 8, 8, 8, 8, 8), (5000, 4, 4))


@check
def check_buckets(buckets: Callable) -> str:
    """buckets(sizes, cap): numbers of parameters, from the last to the first, in buckets of at least cap bytes."""
    for sizes in SIZES:
        for cap in (16, 440, 800):
            like = [mg.zeros(size, dtype=mg.int8) for size in sizes]
            want = [list(b.numbers) for b in assign_buckets(like, reversed(range(len(like))), cap)]
            found = ask(buckets, list(sizes), cap)
            expect(isinstance(found, list | tuple), f"a {type(found).__name__}, expected a list of lists of numbers")
            found = [list(b) for b in found]
            flat, what = [k for b in found for k in b], f"sizes {list(sizes)}, cap {cap}"
            expect(all(found), f"{what}: an empty bucket")
            expect(sorted(flat) == list(range(len(sizes))), f"{what}: not each parameter in one bucket")
            expect(flat == sorted(flat, reverse=True), f"{what}: expected from the last parameter to the first")
            at = next((k for k, pair in enumerate(zip(found, want)) if pair[0] != pair[1]), None)
            held = sum(sizes[k] for k in found[at or 0])
            expect(at is None, f"{what}: bucket number {at} has {held} bytes; it is closed too early or too late")
    return "five nets, three sizes; small tensors travel together, a large one alone"


@check
def check_exposed(exposed: Callable) -> str:
    """exposed(ready, seconds, end): how long a rank waits after the end of backward, one bucket after the other."""
    cases = [
        ([1, 2, 3], [0.5, 0.5, 0.5], 3),
        ([1, 2, 3], [2, 2, 2], 3),
        ([1, 2, 3], [0.5, 3, 0.5], 4),
        ([1, 2], [0.2, 0.2], 9),
        ([1, 5, 6], [3, 0.1, 2], 6),
        ([2], [1], 2),
    ]
    for ready, seconds, end in cases:
        found = ask(exposed, list(ready), list(seconds), end)
        want, what = _waited(ready, seconds, end), f"ready at {ready}, taking {seconds}, backward until {end}"
        expect(isinstance(found, int | float | np.number), f"a {type(found).__name__}, expected a number")
        expect(abs(found - want) < 1e-6, f"{what}: {found:g} is off by {abs(found - want):.3g}")
    return "six backwards, each run on simulated devices"


def _waited(ready: Sequence[float], seconds: Sequence[float], end: float) -> float:
    """Measured: two ranks, a link of a byte a second, all-reduces of `seconds` bytes that go beside the computing."""
    link = sim.Link("a slow link", 1000.0, 0.0)
    machine = Cluster((sim.device("A100"),) * 2, shapes.fully_connected(2, link))

    def program(comm):
        handles = []
        for at, time in zip(ready, seconds):
            comm.compute(seconds=at - comm.time)
            handles.append(comm.all_reduce(np.zeros(round(1000 * time), np.int8), async_op=True))
        comm.compute(seconds=end - comm.time)
        for handle in handles:
            handle.wait()
        return comm.time - end

    return sim.spawn(program, cluster=machine).values[0]


@check
def check_scale(scale: Callable) -> str:
    """scale(rows, rank): what a rank multiplies its mean loss with, when gradients are averaged over ranks."""
    rng = np.random.default_rng(0)
    for rows in ([5, 5], [10, 2, 3], [1, 1, 1, 7], [8], [4, 0, 2]):
        values = [rng.normal(size=n) for n in rows]
        factors = [ask(scale, list(rows), rank) for rank in range(len(rows))]
        expect(
            all(isinstance(f, int | float | np.number) for f in factors),
            f"rows {rows}: a {type(factors[0]).__name__}, expected a number",
        )
        total = sum(f * v.mean() for f, v in zip(factors, values) if v.size) / len(rows)
        off = abs(total - np.concatenate(values).mean())
        expect(off < 1e-9, f"rows {rows}: the mean of the scaled losses is off by {off:.2g}")
        weights = [f / n for f, n in zip(factors, rows) if n]
        expect(np.ptp(weights) < 1e-9, f"rows {rows}: rows of one rank weigh more than rows of another")
    return "each row weighs the same, on whatever rank it is"


def _ranks(n: int) -> str:
    return f"{n} rank{'s' * (n != 1)}"
