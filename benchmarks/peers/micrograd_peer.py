"""micrograd, which knows scalars only: h, with one number where the others have four equal ones."""

import sys

from micrograd.engine import Value

from benchmarks import workloads
from benchmarks.workloads import Step

sys.setrecursionlimit(100_000)  # its backward walks the graph by recursion


def tiny(workload: str, seed: int) -> Step:
    """Multiply, add, relu, subtract, over and over."""
    a_all, x_all = workloads.data(workload, seed)

    def step():
        a, b = Value(float(a_all[0])), Value(float(x_all[0]))
        x = b
        for _ in range(workloads.H_ROUNDS):
            c = a * b + x
            b = c.relu()
            a = c - b
        loss = a + b
        loss.backward()
        return len(a_all) * loss.data

    return step


def make(workload: str, seed: int) -> Step:
    """The step of a workload."""
    return workloads.build({"h": tiny}, workload, seed)
