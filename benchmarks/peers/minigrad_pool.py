"""minigrad eager whose large arrays lie in its caching pool: what `with mg.memory.pool():` around a program does."""

import minigrad as mg
from benchmarks.peers import minigrad_eager
from benchmarks.workloads import Step

pool = mg.memory.pool()


def make(workload: str, seed: int) -> Step:
    """The step of minigrad_eager; the pool stays open until the process ends."""
    pool.__enter__()
    return minigrad_eager.make(workload, seed)
