"""What a step costs: FLOPs and bytes of every op, forward and backward, from shapes alone, and so its time on a device.

    model = mg.nn.Linear(1024, 1024).to("meta")
    cost = step_cost(lambda x: model(x).sum(), (8, 1024))
    cost.seconds(device("A100"))

Numbers are the ops' own, as `mg.profile` has them: a gradient's FLOPs are those of the ops its rule is made of, its
bytes what goes in and out; but a gradient that is only handed on, or seen in another shape of no more elements, costs
nothing.  Last of the machine; what runs on it begins with `clocks.py`.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

import minigrad as mg
from minigrad.probes import Probe
from minigrad.profiler.costs import UNKNOWN, Costs, op_key
from simulator.device import DeviceSpec
from simulator.units import show

NOT_COUNTED = ("the optimiser's update", "copies between host and device", "gradients' sums at leaves",
               "time between ops beyond one launch each")
PHASES = ("forward", "backward")
FREE, NOTHING = -2, (0, 0)                                    # a gradient that is only handed on or seen otherwise


@dataclass(frozen=True)
class Row:
    """Equal calls of one op: `flops` and `nbytes` of one of them, -1 where they are not known."""

    phase: str
    name: str
    dtype: str
    calls: int
    flops: int
    nbytes: int

    @property
    def known(self) -> bool:
        return self.flops >= 0

    def seconds(self, device: DeviceSpec) -> float:
        """All calls.  What moves and computes nothing (a view) takes no time; integers count by their bytes alone."""
        if self.flops <= 0 and self.nbytes <= 0:
            return 0.0
        floating = self.dtype.startswith(("float", "bfloat"))
        return self.calls * device.compute_s(self.flops if floating else 0, self.nbytes, self.dtype)


@dataclass(frozen=True)
class StepCost:
    """The rows, each phase in the order in which its ops first ran."""

    rows: tuple[Row, ...]

    @property
    def not_counted(self) -> tuple[str, ...]:
        """What the sums leave out."""
        unknown = dict.fromkeys(row.name for row in self.rows if not row.known)
        return (*(f"{name}, whose cost is not known" for name in unknown), *NOT_COUNTED)

    def flops(self, phase: str | None = None) -> int:
        return sum(row.calls * row.flops for row in self._known(phase))

    def nbytes(self, phase: str | None = None) -> int:
        """Read and written, if nothing stays in a cache between ops."""
        return sum(row.calls * row.nbytes for row in self._known(phase))

    def seconds(self, device: DeviceSpec, phase: str | None = None) -> float:
        """One op after the other, each max(FLOPs / reached rate, bytes / bandwidth) + launch."""
        return sum(row.seconds(device) for row in self._known(phase))

    def _known(self, phase: str | None) -> Iterable[Row]:
        if phase not in (None, *PHASES):
            raise ValueError(f"StepCost: phase {phase!r} is none of {', '.join(PHASES)}")
        return (row for row in self.rows if row.known and phase in (None, row.phase))

    def text(self, device: DeviceSpec | None = None) -> str:
        """A table by phase and op, with times if a device is given."""
        return _text(self, device)

    def __str__(self) -> str:
        return self.text()


def step_cost(function: Callable[..., Any], *inputs: Any, backward: bool = True) -> StepCost:
    """Run `function` on `meta` and, if what it returns has a history, backward from it; nothing is computed.

    An input is a shape (float32 by default), a `mg.Aval`, or a Tensor on `meta`, which alone may need a gradient.  The
    Tensors that `function` reads, as a model's parameters, must be on `meta` too: `model.to("meta")`.  Gradients that
    it leaves in leaves are taken away again, and random streams are where they were."""
    told, state = _Told(), mg.get_rng_state()
    tensors = [_on_meta(k, value) for k, value in enumerate(inputs)]
    try:
        with mg.observe(told):
            result = function(*tensors)
            ends = [y for y in (result if isinstance(result, tuple | list) else (result,)) if _has_history(y)]
            if backward and ends:
                mg.autograd.backward(ends, [mg.empty(y.shape, dtype=y.dtype, device="meta") for y in ends])
    finally:
        mg.set_rng_state(state)
        for leaf, before in reversed(told.leaves):
            leaf.grad = before
    return StepCost(told.rows())


def _on_meta(k: int, value: Any) -> Any:
    if isinstance(value, mg.Tensor):
        if str(value.device) != "meta":
            raise ValueError(f"step_cost: input {k} {tuple(value.shape)} is on {value.device}, and costs are counted "
                             "on meta. Give its shape, or x.to('meta')")
        return value
    if isinstance(value, mg.Aval):
        return mg.empty(value.shape, dtype=value.dtype, device="meta")
    if isinstance(value, tuple) and all(isinstance(n, int) for n in value):
        return mg.empty(value, device="meta")
    raise TypeError(f"step_cost: input {k} is a {type(value).__name__}; give a shape, an Aval or a Tensor on meta")


def _has_history(y: Any) -> bool:
    return isinstance(y, mg.Tensor) and y.requires_grad


class _Told(Probe):
    """Every op, in its phase.  A gradient counts as one op, but where its cost is not known the ops inside count."""

    def __init__(self) -> None:
        self.costs = Costs()
        self.found: list[tuple[str, str, str, int]] = []
        self.open: list[tuple[int, str, int, bool]] = []
        self.leaves: list[tuple[Any, Any]] = []
        self.backward = 0

    def begin(self, kind: str, thing: Any, inputs: tuple) -> None:
        if kind == "pull":
            g, number = inputs[0], self.costs.of_pull(thing, inputs[0].shape)
            larger = any(prod(edge.shape) > prod(g.shape) for edge in thing.edges)
            self.open.append((number, g.dtype.name, len(self.found), larger))
        elif kind == "leaf":
            self.leaves.append((thing, thing.grad))
            self.open.append((UNKNOWN, "", len(self.found), False))
        self.backward += kind == "backward"

    def end(self, kind: str, thing: Any, outputs: tuple) -> None:
        self.backward -= kind == "backward"
        if kind == "leaf":
            del self.found[self.open.pop()[2]:]
        if kind == "pull":
            number, dtype, mark, larger = self.open.pop()
            if number != UNKNOWN:
                moved = any(self._cost(each[3]) != NOTHING for each in self.found[mark:]) or larger
                self.found[mark:] = [("backward", type(thing.op).__name__, dtype, number if moved else FREE)]

    def _cost(self, number: int) -> tuple[int, int] | None:
        return NOTHING if number == FREE else self.costs[number]

    def __call__(self, op: Any, xs: tuple, ys: tuple) -> None:
        number = self.costs.of_op(op_key(op, xs), op, xs, ys)
        self.found.append((PHASES[self.backward > 0], type(op).__name__, working_dtype(xs, ys), number))

    def rows(self) -> tuple[Row, ...]:
        calls: dict[tuple, int] = {}
        for each in self.found:
            calls[each] = calls.get(each, 0) + 1
        costs = [(each, count, self._cost(each[3]) or (-1, -1)) for each, count in calls.items()]
        return tuple(Row(phase, name, dtype, count, *cost) for (phase, name, dtype, _), count, cost in costs)


def working_dtype(xs: tuple, ys: tuple) -> str:
    """The dtype in which an op computes: that of its result, or of its floating inputs where that is a truth value or
    an index."""
    floating = [t.dtype for t in (*ys[:1], *xs) if t.is_floating_point()]
    return str((floating or [ys[0].dtype])[0].name)


# ---- as text -------------------------------------------------------------------------------------
def _text(cost: StepCost, device: DeviceSpec | None) -> str:
    merged: dict[tuple[str, str], list[Row]] = {}
    for row in cost.rows:
        merged.setdefault((row.phase, row.name), []).append(row)
    head = ["phase", "op", "calls", "FLOP", "bytes", *(["time"] if device else [])]
    cells = [head]
    for (phase, name), rows in merged.items():
        cells.append([phase, name, str(sum(row.calls for row in rows)), *_sums(rows, device)])
    for phase in PHASES:
        rows = [row for row in cost.rows if row.phase == phase]
        if rows:
            cells.append([phase, "all", str(sum(row.calls for row in rows)), *_sums(rows, device)])
    widths = [max(map(len, column)) for column in zip(*cells)]
    lines = ["  ".join(c.ljust(w) if k < 2 else c.rjust(w) for k, (c, w) in enumerate(zip(row, widths)))
             for row in cells]
    if device:
        lines.append(f"on {device}")
    return "\n".join([*lines, f"not counted: {'; '.join(cost.not_counted)}"])


def _sums(rows: list[Row], device: DeviceSpec | None) -> list[str]:
    known = [row for row in rows if row.known]
    if not known:
        return ["?"] * (3 if device else 2)
    sums = [show(sum(r.calls * r.flops for r in known), "FLOP"), show(sum(r.calls * r.nbytes for r in known), "B")]
    return [*sums, *([show(sum(r.seconds(device) for r in known), "s")] if device else [])]


__all__ = ["NOT_COUNTED", "Row", "StepCost", "step_cost", "working_dtype"]
