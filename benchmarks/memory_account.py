#!/usr/bin/env python3
"""Is the tracker's account true, and what does it cost?  `python benchmarks/memory_account.py -w a,e`

Each workload runs in a process of its own.  After every step the tracked bytes are held against a count of all arrays
that are alive, found here by a walk of its own; the categories against their sum at every event.  The peak of `e` is
held against tracemalloc's NumPy domain.  Columns: MB tracked after the last step and at most; differences from the
count, in bytes (0 is what they should be); growth of the process from the first step on, with the tracker off; time of
a step with the tracker over one without, median of interleaved rounds.
"""

import argparse
import functools
import gc
import inspect
import json
import statistics
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)  # instead of this folder

import numpy as np

import minigrad as mg
from benchmarks import machine
from benchmarks.peers import minigrad_eager
from minigrad.probes import Probe
from minigrad.tensor import changed

WORKLOADS = "abcdefgh"
HEAD = f"{'':4}{'MB':>9}{'peak MB':>9}{'steps':>7}{'differ B':>10}{'sums B':>8}{'grew MB':>9}{'x time':>8}"


def counted_bytes() -> int:
    """Bytes of all host arrays that own their memory and that something refers to; an empty one has a byte."""
    waiting = [*gc.get_objects(), *running_variables()]
    met, owners, is_array = set(), {}, functools.cache(lambda kind: np.ndarray in kind.__mro__)
    while waiting:
        some = gc.get_referents(*waiting[-1000:])
        del waiting[-1000:]
        for thing in some:
            kind = type(thing)
            if kind is tuple or kind is dict:  # not tracked if it holds arrays alone
                if not gc.is_tracked(thing) and id(thing) not in met:
                    met.add(id(thing))
                    waiting.append(thing)
            elif is_array(kind):
                while thing.base is not None and is_array(type(thing.base)):
                    thing = thing.base
                if thing.flags.owndata:
                    owners[id(thing)] = max(thing.nbytes, 1)
    return sum(owners.values())


def running_variables() -> list[dict]:
    """Those of every function that runs in some thread."""
    found = []
    for frame in sys._current_frames().values():
        while frame is not None:
            shown = frame.f_locals
            found.append(dict(shown))
            if type(shown) is dict and shown is not frame.f_globals and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
                shown.clear()  # before Python 3.13 it would keep what the function has dropped
            frame = frame.f_back
    return found


def account(workload: str, steps: int, rounds: int) -> dict:
    """The tracker against the count, after each step; and its cost."""
    step = minigrad_eager.make(workload, 0)
    step(), step()
    before = machine.peak_rss_bytes() or 0
    for _ in range(steps):
        step()
    grew = (machine.peak_rss_bytes() or 0) - before
    differences = []
    with mg.memory.track() as t:
        for _ in range(steps):
            step()
            differences.append(t.live - counted_bytes())
        live, peak = t.live, t.peak
        by_event = [sum(c) for c in zip(*t.timeline()[1].values(), strict=True)]
        sums = abs(max(by_event) - peak) + abs(by_event[-1] - live) + abs(sum(t.by_category().values()) - live)
    return {"live": live, "peak": peak, "steps": steps, "differ": max(map(abs, differences)), "sums": sums,
            "grew": grew, "ratio": cost(step, rounds), "lost": t.lost}


def cost(step, rounds: int) -> float:
    """Median over rounds of the time of a step with the tracker over that without, taken in turn."""
    def seconds():
        times = []
        for _ in range(3):
            begin = time.perf_counter()
            step()
            times.append(time.perf_counter() - begin)
        return min(times)

    ratios = []
    for _ in range(rounds):
        off = seconds()
        with mg.memory.track():
            ratios.append(seconds() / off)
    return statistics.median(ratios)


class At(Probe):
    """Calls `look` at each beginning and end in the engine, with the number of the call."""

    def __init__(self, look) -> None:
        self.look, self.number = look, 0

    def begin(self, kind, thing, inputs) -> None:
        self.number += 1
        self.look(self.number)

    def end(self, kind, thing, outputs) -> None:
        self.begin(kind, thing, outputs)


def peaks(workload: str) -> dict:
    """The tracker's peak of a step, and tracemalloc's: its peak of everything less Python's share at that place.
    Also the bytes of both at one and the same call, where the tracker saw most."""
    tracemalloc.start(1)
    step = minigrad_eager.make(workload, 0)
    step(), step()
    seen = []
    with mg.memory.track() as t, changed(observers=(t, At(lambda k: seen.append((t.live, k))))):
        step()
    most, number = max(seen)
    found = {}

    def look(k):
        if k == number:
            found["all"] = tracemalloc.get_traced_memory()[0]
            found["numpy"] = numpy_domain_bytes()

    with changed(observers=(At(lambda k: None),)):
        tracemalloc.reset_peak()
        step()
        peak = tracemalloc.get_traced_memory()[1]
    with changed(observers=(At(look),)):
        step()
    return {"tracked": t.peak, "tracemalloc": peak - (found["all"] - found["numpy"]), "tracked_there": most,
            "tracemalloc_there": found["numpy"]}


def numpy_domain_bytes() -> int:
    domain = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
    return sum(s.size for s in tracemalloc.take_snapshot().filter_traces([domain]).statistics("filename"))


def row(workload: str, n: dict) -> str:
    lost = f"  {n['lost']} events lost" if n["lost"] else ""
    return (f"{workload:4}{n['live'] / 1e6:9.2f}{n['peak'] / 1e6:9.2f}{n['steps']:7}{n['differ']:10}{n['sums']:8}"
            f"{n['grew'] / 1e6:9.2f}{n['ratio']:8.2f}{lost}")


def peak_text(workload: str, n: dict) -> str:
    return (f"peak of {workload}: tracked {n['tracked'] / 1e6:.3f} MB, tracemalloc's NumPy domain "
            f"{n['tracemalloc'] / 1e6:.3f} MB ({n['tracked'] / n['tracemalloc'] - 1:+.2%}); at the call where the "
            f"tracker saw most: {n['tracked_there'] / 1e6:.3f} and {n['tracemalloc_there'] / 1e6:.3f} MB")


def in_child(what: str, options: argparse.Namespace) -> dict:
    words = [sys.executable, __file__, "--child", what, "-n", str(options.n), "-r", str(options.r)]
    done = subprocess.run(words, stdout=subprocess.PIPE, encoding="utf-8", check=True, timeout=1800)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-w", default=",".join(WORKLOADS), help="workloads, of " + ", ".join(WORKLOADS))
    parser.add_argument("-n", type=int, default=3, help="steps")
    parser.add_argument("-r", type=int, default=5, help="rounds for the cost")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name = options.child.removesuffix(":peaks")
        print(json.dumps(peaks(name) if name != options.child else account(name, options.n, options.r)))
        return
    print(HEAD)
    for workload in options.w.split(","):
        print(row(workload, in_child(workload, options)), flush=True)
    if "e" in options.w.split(","):
        print(peak_text("e", in_child("e:peaks", options)))


if __name__ == "__main__":
    main()
