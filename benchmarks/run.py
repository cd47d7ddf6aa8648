#!/usr/bin/env python3
"""Interleaved comparison of frameworks: a process per peer, sampled in turn A B C A B C …

A peer is MODULE[:NAME=VALUE…], with environment variables: torch_eager:TUNED=1. Two are for all:
NT=1 is the thread budget (2 if not given), PIN=0 or PIN=0+1 holds the process to cores (Linux).
There is a table for each workload. Its columns:
ms        milliseconds per step: median over the clean samples of the median of a sample
lo        the tenth percentile of the steps: median over the better half of the samples
x ref     ms over the reference's of the same round: median over the clean rounds
x lo      lo over the reference's lo
RSS MB    most memory that the whole process held (1 MB = 1e6 bytes)
cores     CPU time of the process over wall time
foreign   cores that others kept busy meanwhile; ! = more than half of the samples were disturbed
first4 s  import, building and the first four steps
losses    of these four steps
"-" is what this system does not tell. The status is 1 if losses differ or a peer failed; a peer
that is not installed is no failure. See README.md for what may be concluded.
"""

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)  # instead of this folder

from benchmarks import workloads
from benchmarks.table import Run, Sample, disagreements, is_clean, numbers, table

HERE = Path(__file__).resolve().parent
PEERS = "torch_eager,torch_eager:TUNED=1,minigrad_eager"
TRIES = 3  # of a sample, while the rest of the machine is busy
THREAD_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)
# For old OpenBLAS builds some machines set these; they slow a current NumPy.
UNSET = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


def environment(settings: list[str]) -> dict[str, str]:
    """Environment of a peer with `NAME=VALUE` settings: one thread budget for every library."""
    result = {name: value for name, value in os.environ.items() if name not in UNSET}
    result |= {"NT": "2"} | dict(setting.split("=", 1) for setting in settings)
    result |= dict.fromkeys(THREAD_VARIABLES, result["NT"])
    if result["NT"] == "1":
        result["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    return result


class Child:
    """The process of one peer, told to take samples; leaving the context ends it."""

    def __init__(self, peer: str, settings: str, workload: str, seed: int):
        module, *own = peer.split(":")
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "child.py"), module, workload, str(seed)],
            env=environment([*own, *filter(None, settings.split(":"))]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            encoding="utf-8",
        )

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, kind, *_) -> None:
        if kind:
            self.process.kill()
        self.process.communicate()
        self.errors.close()

    def read(self) -> dict:
        """Its next answer; a failure with its last words if it has died."""
        answer = self.process.stdout.readline()
        if answer:
            return json.loads(answer)
        self.process.wait()
        self.errors.seek(0)
        words = self.errors.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
        return {"failure": f"ended with status {self.process.returncode}: {words}"}

    def sample(self, seconds: float) -> Sample | str:
        """One sample, or why there is none."""
        with suppress(OSError):  # it has died: read() says how
            print(seconds, file=self.process.stdin, flush=True)
        answer = self.read()
        return answer.get("failure") or Sample(**answer)


def quiet_sample(child: Child, seconds: float, foreign_limit: float) -> Sample | str:
    """The least disturbed of up to three samples, stopping at the first clean one."""
    best = None
    for _ in range(TRIES):
        sample = child.sample(seconds)
        if isinstance(sample, str):
            return sample
        if best is None or (sample.foreign_cores or 0.0) < (best.foreign_cores or 0.0):
            best = sample
        if is_clean(best, foreign_limit):
            break
        time.sleep(0.1)
    return best


def compare(workload: str, options: argparse.Namespace) -> list[Run]:
    """All peers on one workload; their processes end with this function, however it ends."""
    with ExitStack() as stack:
        children, runs = [], []
        for peer in options.p.split(","):  # in turn: their starts are timed too
            children.append(stack.enter_context(Child(peer, options.env, workload, options.seed)))
            runs.append(Run(peer, **children[-1].read()))
        for _ in range(options.r):
            runs = [
                one_more(run, child, options) for run, child in zip(runs, children, strict=True)
            ]
        return runs


def one_more(run: Run, child: Child, options: argparse.Namespace) -> Run:
    """The run with a further sample, or as it is if the peer has failed: the others go on."""
    if run.absent or run.failure:
        return run
    sample = quiet_sample(child, options.s, options.foreign)
    if isinstance(sample, str):
        return replace(run, failure=sample)
    return replace(run, samples=(*run.samples, sample))


def circumstances() -> dict:
    """Where and when: what the ratios of a file are true of."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="minutes"),
        "system": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cpu_count": os.cpu_count(),
        "python": platform.python_version(),
        "command": sys.argv[1:],
    }


def record(workload: str, run: Run, reference: Run | None, foreign_limit: float) -> dict:
    """A run with its numbers, for the output file."""
    columns = numbers(run, reference, foreign_limit) if run.samples else {}
    return {"workload": workload, "columns": columns, **asdict(run)}


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """The command line, with every name checked before anything starts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("-w", metavar="WORKLOADS", default=",".join(workloads.ALL), help="default: all")
    add("-p", metavar="PEERS", default=PEERS, help=f"default: {PEERS}")
    add("-r", metavar="ROUNDS", type=int, default=5)
    add("-s", metavar="SECONDS", type=float, default=0.4, help="length of a sample")
    add("-o", metavar="FILE", help="write everything as JSON")
    add("--ref", metavar="PEER", default="torch_eager", help="what ratios refer to")
    add("--env", metavar="SETTINGS", default="", help="for every peer: NT=1:PIN=0")
    add("--foreign", metavar="CORES", type=float, default=0.12, help="load to sample again above")
    add("--seed", type=int, default=0)
    options = parser.parse_args(words)
    if complaint := mistake(options):
        parser.error(complaint)
    return options


def mistake(options: argparse.Namespace) -> str:
    """What is wrong with the command line, in words."""
    for workload in options.w.split(","):
        if workload not in workloads.DESCRIPTIONS:
            return f"no workload {workload!r}: there are {', '.join(workloads.DESCRIPTIONS)}"
    known = sorted(path.stem for path in (HERE / "peers").glob("[!_]*.py"))
    for peer in options.p.split(","):
        module, *settings = peer.split(":")
        if module not in known and not importlib.util.find_spec(module):
            return f"no peer {module!r}: there are {', '.join(known)}, or modules on PYTHONPATH"
        for setting in (*settings, *filter(None, options.env.split(":"))):
            if "=" not in setting:
                return f"settings are NAME=VALUE, with colons between: got {setting!r}"
    return "" if options.r >= 1 else f"-r {options.r}: at least one round"


def main(words: list[str] | None = None) -> int:
    """Compare, print and record; the exit status."""
    options = arguments(words)
    output, bad = {"circumstances": circumstances(), "runs": []}, False
    for workload in options.w.split(","):
        runs = compare(workload, options)
        reference = next((run for run in runs if run.peer == options.ref and run.samples), None)
        title = f"{workload}: {workloads.DESCRIPTIONS[workload]}"
        print(table(title, runs, reference, options.foreign), end="\n\n", flush=True)
        bad = bad or any(run.failure for run in runs) or bool(disagreements(runs, reference))
        output["runs"] += [record(workload, run, reference, options.foreign) for run in runs]
        if options.o:
            Path(options.o).write_text(json.dumps(output, indent=1), encoding="utf-8")
    return int(bad)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted: the processes of the peers have been ended")
