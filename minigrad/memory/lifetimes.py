"""Which layers of a chain keep what they save for backward, and which compute it again: per segment, √n segments, or
the least work that a budget of bytes allows.

A plan is a row of steps: a layer that keeps, or a segment of layers under one checkpoint (Chen et al. 2016).  The chain
as a model, with what layers keep, hold and need meanwhile measured, is that of Beaumont et al. 2019 ("Optimal
checkpointing for heterogeneous chains", arXiv:1911.13214), here with one level of recomputation.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, isqrt
from time import perf_counter
from typing import Any

from minigrad.arguments import function, of_kind, whole
from minigrad.checkpoint import _in_turn, checkpoint
from minigrad.errors import BudgetError
from minigrad.memory.chains import Chain, Step
from minigrad.memory.meter import activations, chain_costs, layer_name, step_alone
from minigrad.tensor import Tensor


@dataclass(frozen=True)
class CheckpointPlan:
    """`plan(layers, x)` runs a chain by the plan; `print(plan)` shows it.

    `peak`: bytes of activations at most, from the beginning of forward to the end of backward, the result and the
    gradient that comes in included, `x`, gradients of parameters and what the loss takes not; `plain`: the same without
    checkpoints; `least`: of all plans.  `again_flops` of `flops` are computed twice.  None where nothing was
    measured."""

    steps: tuple[Step, ...]
    names: tuple[str, ...]
    budget: int | None = None
    peak: int | None = None
    plain: int | None = None
    least: int | None = None
    flops: int | None = None
    again_flops: int | None = None

    def __call__(self, layers: Iterable[Callable], x: Tensor) -> Tensor:
        layers = list(layers)
        if len(layers) != len(self.names):
            raise ValueError(f"checkpointed: a plan for {len(self.names)} layers, and {len(layers)} are given")
        for step in self.steps:
            run = _in_turn(layers[step.start:step.stop])
            x = checkpoint(run, x) if step.again else run(x)
        return x

    @property
    def kept(self) -> list[int]:
        """The numbers of the layers that keep what they save."""
        return [step.start for step in self.steps if not step.again]

    @property
    def extra_time(self) -> float | None:
        """What is computed again as a share of a plain step, with backward taken as twice forward's FLOPs."""
        return None if self.flops is None or self.again_flops is None else self.again_flops / (3 * max(self.flops, 1))

    def __str__(self) -> str:
        again = [s for s in self.steps if s.again]
        rows = [f"{len(self.names)} layers: {len(self.kept)} keep what they save, "
                f"{sum(s.stop - s.start for s in again)} in {len(again)} segments are computed again"]
        if self.peak is not None and self.plain is not None and self.extra_time is not None:
            asked = "" if self.budget is None else f" of a budget of {self.budget:,}"
            rows += [f"predicted peak {self.peak:,} bytes{asked} (all kept {self.plain:,}, the least {self.least:,}); "
                     f"+{self.extra_time:.0%} FLOPs"]
        return "\n".join([*rows, *_grouped(self.steps, self.names)])

    __repr__ = __str__


def _grouped(steps: Sequence[Step], names: Sequence[str]) -> list[str]:
    """A row for each segment, and for each run of layers that keep."""
    groups: list[list[int | bool]] = []
    for s in steps:
        if groups and not s.again and not groups[-1][2]:
            groups[-1][1] = s.stop
        else:
            groups.append([s.start, s.stop, s.again])
    rows = []
    for start, stop, again in groups:
        which = f"{start}" if stop - start == 1 else f"{start} … {stop - 1}"
        said = list(dict.fromkeys(names[start:stop]))
        rows.append(f"  {which:>11}  {'again' if again else 'keep':6} {', '.join(said[:6])}{' …' * (len(said) > 6)}")
    return rows


def plan_checkpoints(layers: Iterable[Callable], x: Tensor, *, segments: str | int | None = None,
                     budget: int | None = None) -> CheckpointPlan:
    """A plan for a chain of layers on inputs like `x`: of `segments` as in `checkpointed`, or with the least FLOPs
    computed again whose peak is within `budget` bytes; BudgetError with the least that would do if there is none.

    Each layer runs once to be measured (needs numba); random streams, buffers and gradients are left as they were."""
    layers = _layers("plan_checkpoints", layers, x)
    if budget is not None:
        whole("plan_checkpoints", "budget, bytes,", budget)
    if (segments is None) == (budget is None):
        raise ValueError("plan_checkpoints: give either segments or budget")
    chain = Chain(chain_costs(layers, x))
    least = chain.least()
    steps = chain.within(budget) if budget is not None else in_segments(len(layers), segments or 0)
    if steps is None:
        raise BudgetError(f"checkpointed: a budget of {budget:,} bytes is too small for {len(layers)} layers on "
                          f"{x.dtype}{list(x.shape)}: the least that would do is {chain.peak(least):,} bytes. "
                          "Take that, or a smaller batch", chain.peak(least))
    plain = tuple(Step(k, k + 1, False) for k in range(len(layers)))
    return CheckpointPlan(tuple(steps), chain.names, budget, chain.peak(steps), chain.peak(plain), chain.peak(least),
                          chain.flops(plain, True), chain.flops(steps, False))


def checkpointed(layers: Iterable[Callable], x: Tensor, segments: str | int = "sqrt", budget: int | None = None
                 ) -> Tensor:
    """x through the layers, one after the other, with less kept for backward; the gradients are the same bit for bit.

    `segments`: their number, of about equal length, or "sqrt": of n layers √n, so that no more than about 2 √n of the
    layers' activations are alive at once.  All but the last are computed again in backward.  `budget`: bytes of
    activations at most, instead; it plans anew at each call, so in a loop make `plan = plan_checkpoints(layers, x,
    budget=...)` once and call `plan(layers, x)`.  Random draws are replayed; what a layer writes outside (running means
    of batch norm) it writes twice, as under `checkpoint`."""
    layers = _layers("checkpointed", layers, x)
    if budget is not None:
        return plan_checkpoints(layers, x, budget=budget)(layers, x)
    return CheckpointPlan(in_segments(len(layers), segments), tuple(map(layer_name, layers)))(layers, x)


def _layers(call: str, layers: Iterable[Callable], x: Tensor) -> list[Callable]:
    of_kind(call, "layers", layers, Iterable)
    of_kind(call, "x", x, Tensor)
    return [function(call, f"layer {k}", layer) for k, layer in enumerate(layers)]


def in_segments(n: int, segments: str | int) -> tuple[Step, ...]:
    """The steps of n layers in segments of equal length, up to one layer; the last keeps what it saves."""
    if segments == "sqrt":
        segments = isqrt(n - 1) + 1 if n else 0
    if isinstance(segments, bool) or not isinstance(segments, int) or not (1 <= segments <= n or n == 0):
        raise ValueError(f'checkpointed: segments = {segments!r} must be "sqrt" or a number from 1 to {n}, the layers')
    cuts = [ceil(k * n / segments) for k in range(segments + 1)] if n else []
    again = [Step(a, b, True) for a, b in list(pairwise(cuts))[:-1]]
    return (*again, *(Step(k, k + 1, False) for k in range(cuts[-2], n))) if n else ()


@dataclass(frozen=True)
class PlanMeasured:
    """A plan beside what happened: bytes at the peak, seconds, and seconds of the plain step."""

    plan: CheckpointPlan
    peak: int
    seconds: float
    plain_seconds: float

    def __str__(self) -> str:
        ratio = self.seconds / self.plain_seconds
        return f"{self.plan}\nmeasured peak {self.peak:,} bytes; {ratio:.2f} times the time of a plain step"

    __repr__ = __str__


def measure_plan(plan: CheckpointPlan, layers: Iterable[Callable], x: Tensor, rounds: int = 5) -> PlanMeasured:
    """Run forward and backward by the plan: once measured in bytes, and `rounds` times in seconds beside plain steps,
    of which the fastest counts.  Gradients and random streams are left as they were; running means move."""
    layers = list(layers)
    step_alone(lambda: plan(layers, x))                      # what is made once is there from here on
    with activations(x) as meter:
        step_alone(lambda: plan(layers, x))
    times: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(rounds):
        for planned, seconds in times.items():
            start = perf_counter()
            step_alone(lambda run=plan if planned else _plainly: run(layers, x))
            seconds.append(perf_counter() - start)
    return PlanMeasured(plan, meter.peak, min(times[True]), min(times[False]))


def _plainly(layers: list, x: Tensor) -> Any:
    return _in_turn(layers)(x)


__all__ = ["CheckpointPlan", "PlanMeasured", "Step", "checkpointed", "measure_plan", "plan_checkpoints"]
