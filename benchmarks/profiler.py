"""What profiling costs, and how much of a step it finds: each workload with `mg.profile()` and without, in turn.

    python benchmarks/profiler.py [-w e,a,h] [-r 15] [--steps 1]

`overhead` is the median over rounds of (time with) / (time without) of the same round, less 1; `in ops` the part of the
step that rows by op, update and waiting for data account for.  The bars, on e: overhead at most 10 %, in ops at least
95 %.  One BLAS thread.
"""

import argparse
import os
import sys
import time
from pathlib import Path

os.environ.update(dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
sys.path[0] = str(Path(__file__).resolve().parent.parent)  # instead of this folder

import numpy as np  # noqa: E402

import minigrad as mg  # noqa: E402
from benchmarks import workloads  # noqa: E402
from benchmarks.peers import minigrad_eager  # noqa: E402


def seconds_of(step, steps: int) -> float:
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return time.perf_counter() - start


def rounds(workload: str, n: int, steps: int, allocations: bool) -> tuple[list[float], list[float]]:
    """(ratios with : without, shares of the time in ops); who goes first changes every round."""
    step = minigrad_eager.make(workload, 0)
    seconds_of(step, 3)
    with mg.profile(allocations=allocations):  # numba loads
        step()
    ratios, shares = [], []
    for k in range(n):
        times = {}
        for profiled in (k % 2 == 0, k % 2 == 1):
            if profiled:
                with mg.profile(allocations=allocations) as p:
                    times[True] = seconds_of(step, steps)
                shares.append(p.share_in_ops)
            else:
                times[False] = seconds_of(step, steps)
        ratios.append(times[True] / times[False])
    return ratios, shares


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-w", default="e,a,h", help="workloads")
    parser.add_argument("-r", type=int, default=15, help="rounds")
    parser.add_argument("--steps", type=int, default=1, help="steps of a sample")
    asked = parser.parse_args()
    print(f"{'workload':10}{'arrays':>12}{'overhead %':>12}{'quartiles':>16}{'in ops %':>10}{'least':>8}")
    for workload in asked.w.split(","):
        for allocations in (True, False):
            ratios, shares = rounds(workload, asked.r, asked.steps, allocations)
            low, middle, high = 100 * (np.percentile(ratios, (25, 50, 75)) - 1)
            counted = "counted" if allocations else "not counted"
            print(f"{workload:10}{counted:>12}{middle:>12.1f}{f'{low:.1f} … {high:.1f}':>16}"
                  f"{100 * np.median(shares):>10.1f}{100 * min(shares):>8.1f}", flush=True)
    print("\n".join(f"{w}: {workloads.DESCRIPTIONS[w]}" for w in asked.w.split(",")))


if __name__ == "__main__":
    main()
