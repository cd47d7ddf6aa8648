#!/usr/bin/env python3
"""What lifetimes by choice cost in time beside what they gain in bytes.  `python benchmarks/lifetimes.py`

One chain of n layers, Linear and GELU, whose activations have a bytes each; a plain step keeps 2 n of them.  Columns:
activations at the peak by closed form and as measured (in units of a; needs numba), and the time of a step over that of
a plain step of the same run: median of interleaved rounds.  All rows give the same gradients bit for bit, but
`accumulate`, which adds them up in another order.  Nothing is asserted: tests/minigrad/test_lifetimes.py does that.
"""

import argparse
import statistics
import sys
import tempfile
import time
from math import ceil, isqrt
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)  # instead of this folder

import minigrad as mg
from minigrad import nn
from minigrad.memory import checkpointed, offload, plan_checkpoints, release
from minigrad.memory.meter import activations
from minigrad.nn import functional as F
from minigrad.optim import SGD, Accumulate

WAITING = 3  # activations on their way to the disk at most, and fetched ahead


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        self.linear = nn.Linear(width, width)

    def forward(self, x: mg.Tensor) -> mg.Tensor:
        return F.gelu(self.linear(x))


class InPlace(Layer):
    """The engine computes the result beside its input, saves it, and then writes it over the input: so both live."""

    def forward(self, x: mg.Tensor) -> mg.Tensor:
        return self.linear(x).relu_()


class OutOfPlace(Layer):
    def forward(self, x: mg.Tensor) -> mg.Tensor:
        return self.linear(x).relu()


def run(layers: list, x: mg.Tensor) -> mg.Tensor:
    for layer in layers:
        x = layer(x)
    return x


class Steps:
    """The step of each row, on one net and one batch.  `input`: a copy of the batch as a loader would give it."""

    def __init__(self, n: int, width: int, batch: int) -> None:
        mg.manual_seed(0)
        self.n, self.layers = n, [Layer(width) for _ in range(n)]
        self.relus = {kind: [kind(width) for _ in range(n)] for kind in (InPlace, OutOfPlace)}
        self.batch = mg.randn(batch, width)
        self.a = self.batch.array.nbytes
        whole = plan_checkpoints(self.layers, self.batch, budget=1 << 40)
        self.plan = plan_checkpoints(self.layers, self.batch, budget=(whole.plain + whole.least) // 2)
        self.accumulate = Accumulate(SGD([p for m in self.layers for p in m.parameters()], lr=0.0), every=4)
        self.away: list[offload] = []

    def step(self, forward=run, layers: list | None = None, let_go: bool = False) -> None:
        x = self.batch.clone()
        h = x * 0.5
        if let_go:
            release(x)
        forward(self.layers if layers is None else layers, h).square().mean().backward()

    def offloaded(self) -> None:
        with tempfile.TemporaryDirectory() as folder, self.offload_to(folder) as o:
            self.step()
        self.away.append(o)

    def offload_to(self, folder: str) -> offload:
        return offload("disk", folder=folder, prefetch=WAITING, in_flight=WAITING * self.a)

    def accumulated(self) -> None:
        x = self.batch.clone() * 0.5
        for part in x.chunk(4):
            self.accumulate.backward(run(self.layers, part).square().mean())

    def rows(self) -> dict:
        """{name: (step, activations at the peak by closed form)}.  What a step takes beside its layers' 2 n (the batch,
        gradients on their way, workspace) is measured at a chain of one layer: `around`."""
        n, root = self.n, isqrt(self.n - 1) + 1
        around, around_relu = self.around(self.layers, 2), self.around(self.relus[OutOfPlace], 1)
        in_n = lambda k: lambda layers, x: checkpointed(layers, x, segments=k)  # noqa: E731
        return {
            "plain": (self.step, 2 * n + around),
            "checkpoint each": (lambda: self.step(in_n(n)), n + 1 + around),
            "checkpoint √n": (lambda: self.step(in_n("sqrt")), root - 1 + 2 * ceil(n / root) + around),
            "budget, half way": (lambda: self.step(self.plan), self.plan.peak / self.a + 2),
            "accumulate 4": (self.accumulated, (2 * n + around - 2) / 4 + 2),
            "offload to disk": (self.offloaded, 2 * WAITING + around),
            "release the batch": (lambda: self.step(let_go=True), 2 * n + around - 1),
            "relu": (lambda: self.step(layers=self.relus[OutOfPlace]), n + around_relu),
            "relu in place": (lambda: self.step(layers=self.relus[InPlace]), n + around_relu),
        }

    def around(self, layers: list, saved: int) -> float:
        step = lambda: self.step(layers=layers[:1])  # noqa: E731
        step()
        return peak(step) / self.a - saved


def peak(step) -> int:
    with activations() as meter:
        step()
    return meter.peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("layers", 36), ("width", 256), ("batch", 512), ("rounds", 7)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    steps = Steps(options.layers, options.width, options.batch)
    rows = steps.rows()
    times: dict[str, list[float]] = {name: [] for name in rows}
    for step, _ in rows.values():
        step()  # warm
    for _ in range(options.rounds):
        for name, (step, _) in rows.items():
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    print(f"{options.layers} layers, a = {steps.a:,} bytes, {options.rounds} rounds")
    print(f"{'':20}{'closed form':>12}{'measured':>10}{'x time':>8}")
    for name, (step, closed) in rows.items():
        ratio = statistics.median(t / p for t, p in zip(times[name], times["plain"]))
        told = "" if closed is None else f"{closed:.1f}"
        print(f"{name:20}{told:>12}{peak(step) / steps.a:>10.1f}{ratio:>8.2f}")
    print(f"relu in place is to be read beside relu.  {steps.away[options.rounds // 2]}")
    print(steps.plan.__str__().split("\n")[1])


if __name__ == "__main__":
    main()
