#!/usr/bin/env python3
"""What it is worth to keep memory that a step frees: four processes, sampled in turn, for each workload.

plain    glibc as it is: it gives large blocks back to the system, and asks for each anew
mallopt  as the engine ships: glibc keeps what was freed (`keep_freed_memory`, minigrad/kernels.py)
pool     `mg.memory.pool()` over plain, and pool+ over mallopt

`x plain` and `x mallopt` are ratios of the same rounds (median), `x lo` of the better halves to mallopt's; faults are
pages that the system handed out per step. What may be concluded: README.md. Where glibc is not, the first two are one.
"""

import argparse
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)  # instead of this folder

from benchmarks import workloads
from benchmarks.run import Child, quiet_sample
from benchmarks.table import Sample, clean, is_disturbed, lo_s, paired_ratio

PLAIN = "MINIGRAD_KEEP_FREED_MEMORY=0"
PEERS = {
    "plain": f"minigrad_eager:{PLAIN}",
    "mallopt": "minigrad_eager",
    "pool": f"minigrad_pool:{PLAIN}",
    "pool+": "minigrad_pool",
}


def measured(workload: str, options: argparse.Namespace) -> dict[str, list[Sample]]:
    """The samples of each; RuntimeError if one fails or their first losses differ in any bit."""
    with ExitStack() as stack:
        children, losses = {}, {}
        for name, peer in PEERS.items():
            children[name] = stack.enter_context(Child(peer, options.env, workload, 0))
            hello = children[name].read()
            losses[name] = hello.get("losses", hello)
        if any(told != losses["plain"] or isinstance(told, dict) for told in losses.values()):
            raise RuntimeError(f"{workload}: not all computed the same: {losses}")
        samples = {name: [] for name in PEERS}
        for _ in range(options.r):
            for name, child in children.items():
                sample = quiet_sample(child, options.s, options.foreign)
                if isinstance(sample, str):
                    raise RuntimeError(f"{workload}, {name}: {sample}")
                samples[name].append(sample)
        return samples


def rows(samples: dict[str, list[Sample]], limit: float) -> list[str]:
    """The table of one workload."""
    names = f"{'ms':>9}{'lo':>9}{'x plain':>9}{'x mallopt':>11}{'x lo':>7}{'faults':>9}{'RSS MB':>8}{'foreign':>9}"
    lines = [" " * 9 + names]
    for name, own in samples.items():
        told = [1e3 * statistics.median(s.median_s for s in clean(own, limit)), 1e3 * lo_s(own)]
        told += [paired_ratio(own, samples[other], limit) for other in ("plain", "mallopt")]
        told.append(lo_s(own) / lo_s(samples["mallopt"]))
        line = f"{name:9}{told[0]:9.2f}{told[1]:9.2f}{told[2]:9.2f}{told[3]:11.2f}{told[4]:7.2f}"
        for values, width in (([s.faults for s in own], 9), ([s.rss_bytes and s.rss_bytes / 1e6 for s in own], 8)):
            known = [v for v in values if v is not None]
            line += f"{statistics.median(known) if known else float('nan'):{width},.0f}"
        foreign = [s.foreign_cores for s in own if s.foreign_cores is not None]
        busy = f"{statistics.median(foreign):.2f}{'!' * is_disturbed(own, limit)}" if foreign else "-"
        lines.append(line + f"{busy:>9}")
    return lines


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("-w", metavar="WORKLOADS", default="c,d,e", help="default: c,d,e")
    add("-r", metavar="ROUNDS", type=int, default=9)
    add("-s", metavar="SECONDS", type=float, default=1.0, help="length of a sample")
    add("--env", metavar="SETTINGS", default="", help="for every process: NT=1:PIN=0")
    add("--foreign", metavar="CORES", type=float, default=0.12, help="load to sample again above")
    options = parser.parse_args(words)
    for workload in options.w.split(","):
        print(f"== {workload}: {workloads.DESCRIPTIONS[workload]}")
        print("\n".join(rows(measured(workload, options), options.foreign)), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
