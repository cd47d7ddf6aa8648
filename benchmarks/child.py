"""One peer with one workload in a process of its own, started by run.py.

`child.py MODULE WORKLOAD SEED`: the first line out says how it started; then each line in,
a number of seconds, is answered by one sample. Lines out are JSON; what a framework prints goes
to the error stream.
"""

import importlib
import json
import os
import statistics
import sys
import time
from dataclasses import asdict
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)  # instead of this folder

from benchmarks import machine
from benchmarks.table import Sample, tenth_percentile

FIRST_STEPS = 4  # timed together with the import, and their losses compared
WARM_STEPS, WARM_S = 12, 2.0  # enough to see every shape of the pools once
LIBRARIES = ("numpy", "minigrad", "torch", "jax", "autograd", "mygrad", "micrograd")


def load(module: str):
    """The peer of this name: one of benchmarks/peers, or else any importable module."""
    ours = Path(__file__).with_name("peers") / f"{module}.py"
    return importlib.import_module(f"benchmarks.peers.{module}" if ours.exists() else module)


def start(module: str, workload: str, seed: int) -> tuple:
    """The step (None when there is none) and what to tell the parent about the start."""
    begin = time.perf_counter()
    try:
        if "PIN" in os.environ:
            machine.pin(os.environ["PIN"])
        step = load(module).make(workload, seed)
        losses = [step() for _ in range(FIRST_STEPS)]
    except Exception as error:  # a line of the table, not the end of the run
        return None, excuse(error)
    return step, {"losses": losses, "first4_s": time.perf_counter() - begin, "versions": versions()}


def excuse(error: Exception) -> dict[str, str]:
    """Why there is no step: not installed and not offered are no failures, installed in part is."""
    if isinstance(error, ModuleNotFoundError) and "." not in (error.name or "."):
        return {"absent": f"not installed: {error.name}"}
    if isinstance(error, NotImplementedError):
        return {"absent": f"not offered: {error}"}
    return {"failure": f"{type(error).__name__}: {error}"[:300]}


def versions() -> dict[str, str]:
    """Versions of the libraries that this peer has loaded."""
    return {
        name: getattr(sys.modules[name], "__version__", "?")
        for name in LIBRARIES
        if name in sys.modules
    }


def warm(step) -> None:
    """A few more steps, unmeasured."""
    begin = time.perf_counter()
    for _ in range(WARM_STEPS):
        step()
        if time.perf_counter() - begin > WARM_S:
            return


def sample(step, seconds: float) -> Sample:
    """Steps for about `seconds`, three at least, and who used the CPU meanwhile."""
    busy, faults = machine.busy_cpu_s(), machine.page_faults()
    own, begin = time.process_time(), time.perf_counter()
    times, end = [], begin
    while end - begin <= seconds or len(times) < 3:
        a = time.perf_counter()
        step()
        end = time.perf_counter()
        times.append(end - a)
    wall, own = end - begin, time.process_time() - own
    foreign = None if busy is None else max(0.0, machine.busy_cpu_s() - busy - own) / wall
    return Sample(
        statistics.median(times),
        tenth_percentile(times),
        min(times),
        len(times),
        own / wall,
        foreign,
        machine.peak_rss_bytes(),
        None if faults is None else (machine.page_faults() - faults) / len(times),
    )


def main(module: str, workload: str, seed: int) -> None:
    """Talk with run.py until it closes our standard input."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    step, hello = start(module, workload, seed)
    if step:
        warm(step)
    print(json.dumps(hello), file=answers, flush=True)
    for line in sys.stdin if step else ():
        print(json.dumps(asdict(sample(step, float(line)))), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
