"""The memory hierarchy of this machine, and what a leak check costs a loop.

    python benchmarks/hierarchy.py                    # every table; --html DIR writes the pictures too
    python benchmarks/hierarchy.py --quick            # tiny sizes, to see that it runs

The leak check is a ratio of loops of one run, taken in turn; nothing is asserted.  The rest measures the machine, so it
wants a quiet one.
"""

import argparse
import sys
import time
from pathlib import Path
from statistics import median

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)  # instead of this folder

import minigrad as mg
from minigrad import nn
from minigrad.viz import hierarchy as viz


def loop_s(steps: int, checked: bool) -> float:
    """Seconds of so many steps of a small classifier, with or without `LeakCheck`; its opening and end are counted."""
    mg.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    opt = mg.optim.Adam(net.parameters())
    x, y = mg.randn(64, 64), mg.randint(0, 10, (64,))
    check = mg.memory.LeakCheck()

    def train() -> None:
        for _ in range(steps):
            opt.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            opt.step()
            if checked:
                check.step()

    start = time.perf_counter()
    if checked:
        with check:
            train()
    else:
        train()
    took = time.perf_counter() - start
    if check.report.leaks:
        raise RuntimeError(str(check.report))
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--html", type=Path, help="a folder for the pictures")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    hierarchy = mg.memory.hierarchy
    for name in ("cache_ladder", "strides", "blocked_transpose", "tiled_matmul", "roofline"):
        found = getattr(hierarchy, name)(quick=args.quick)
        print(f"== {name}\n{found}\n", flush=True)
        if args.html is not None:
            args.html.mkdir(parents=True, exist_ok=True)
            (args.html / f"{name}.html").write_text(viz.html(found), encoding="utf-8")
    steps = 20 if args.quick else 2000
    rounds = [(loop_s(steps, True), loop_s(steps, False)) for _ in range(1 if args.quick else args.rounds)]
    ratio = median(a / b for a, b in rounds)
    print(f"== leak check, {steps} steps: {ratio:.2f} of the time without, median of {len(rounds)} rounds in turn")


if __name__ == "__main__":
    main()
