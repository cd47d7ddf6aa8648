"""`mg.profile()`: where the time of a block went – by op, by module, by line; forward, backward and update apart.

    with mg.profile() as p:
        for x, y in loader:
            train(x, y)
            p.step()
    print(p); p.by_line()[0]; p.trace.save("trace.json")

Last of the profiler; `viz/profile.py` shows it.
"""
from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib import import_module
from time import perf_counter_ns
from typing import Any

import numpy as np

from minigrad.autograd import check_observed, observe
from minigrad.events import Trace
from minigrad.profiler.recorder import MAIN, OUTSIDE, Recorder, Totals, title
from minigrad.sites import call_site, line_text, site_text
from minigrad.tensor import current

PACKAGE = __name__.split(".")[0]
BETWEEN = ("backward", OUTSIDE)                               # kinds that are no work of their own: Python between ops


@dataclass(frozen=True)
class Row:
    """Equal things added up.  `self_ns` without and `total_ns` with what ran inside.

    `flops` and `moved_bytes` (read and written, if nothing stays in a cache) are sums of what is known, which took
    `known_ns` of its own time; None where nothing is.  `allocations`, of `allocated_bytes`, are the buffers that arrays
    were given meanwhile, without those of what ran inside; None where they are not counted."""

    name: str
    phase: str
    calls: int
    self_ns: int
    total_ns: int
    flops: int | None
    moved_bytes: int | None
    known_ns: int
    allocations: int | None
    allocated_bytes: int | None
    text: str = ""

    @property
    def self_s(self) -> float:
        return self.self_ns / 1e9

    @property
    def total_s(self) -> float:
        return self.total_ns / 1e9

    @property
    def flops_per_s(self) -> float | None:
        """Achieved, while what is known ran."""
        return None if self.flops is None or not self.known_ns else self.flops * 1e9 / self.known_ns

    @property
    def bandwidth_Bps(self) -> float | None:
        return None if self.moved_bytes is None or not self.known_ns else self.moved_bytes * 1e9 / self.known_ns


SORTS = ("self_ns", "total_ns", "calls", "flops", "moved_bytes", "allocations", "allocated_bytes", "flops_per_s",
         "bandwidth_Bps", "name", "phase")


def profile(*, allocations: bool = True) -> Profile:
    """A measurement of the block of `with`, of this thread and of those that run in copies of its context.

    `allocations`: count the buffers that arrays are given, which needs numba; without it they are not counted."""
    return Profile(allocations=allocations)


class Profile:
    """What `profile()` gives: to be read when the block has ended, also by an error."""

    def __init__(self, *, allocations: bool = True) -> None:
        self._asked = allocations
        self._recorder: Recorder | None = None
        self.marks_ns: list[int] = []
        self.not_counted = "" if allocations else "not asked for"

    # -- measuring
    def __enter__(self) -> Profile:
        if self._recorder is not None:
            raise RuntimeError("profile: this measurement was begun already. Make another one: mg.profile()")
        if any(isinstance(each, Recorder) and each.running for each in current().observers):
            raise RuntimeError("profile: within another profile, whose own cost would be measured. End that one first")
        with ExitStack() as opened:
            watch = self._watched(opened) if self._asked else None
            self._recorder = Recorder(None if watch is None else lambda: watch.taken)
            opened.enter_context(observe(self._recorder))
            self._opened = opened.pop_all()
        self._recorder.start(call_site(2))
        return self

    def __exit__(self, *_: Any) -> None:
        check_observed("profile", self._recorder)
        try:
            self._recorder.stop()
        finally:
            self._opened.close()
        begin = 0.0
        for k, mark in enumerate(self.marks_ns):
            end = (mark - self._recorder.start_ns) / 1e9
            self._recorder.trace.add(0, "steps", f"step {k}", "step", begin, end)
            begin = end

    def _watched(self, opened: ExitStack) -> Any:
        """The watch over NumPy's memory, or None, and why."""
        from minigrad.memory.handler import watched  # numba takes a second

        try:
            return opened.enter_context(watched(1))
        except (ImportError, RuntimeError) as e:
            self.not_counted = f"not counted: {e}"
            return None

    def step(self) -> None:
        """A step of training ends here, and the next begins."""
        if self._recorder is None or not self._recorder.running:
            raise RuntimeError("profile: step() belongs into the block that is measured")
        self.marks_ns.append(perf_counter_ns())

    # -- reading
    def _measured(self) -> Recorder:
        if self._recorder is None or self._recorder.running:
            when = "has not begun" if self._recorder is None else "is still running"
            raise RuntimeError(f"profile: the measurement {when}. Read it after the block of `with`")
        return self._recorder

    @property
    def wall_ns(self) -> int:
        """From the beginning of the block to its end."""
        measured = self._measured()
        return measured.stop_ns - measured.start_ns

    @property
    def wall_s(self) -> float:
        return self.wall_ns / 1e9

    @property
    def trace(self) -> Trace:
        """Every event, in seconds since the beginning, on a stream for each thread; and the steps, on their own."""
        return self._measured().trace

    @property
    def streams(self) -> list[str]:
        """The threads in which something ran: "main" is the one that measured."""
        return [lane.stream for lane in self._measured().lanes]

    @property
    def outside_ns(self) -> int:
        """Time in no op, gradient, update or wait for data: Python between them, and the profiler itself."""
        return sum(total.self_ns for place, total in self._totals(MAIN) if place[0] in BETWEEN)

    @property
    def share_in_ops(self) -> float:
        """The part of the wall time that is not `outside_ns`."""
        return 1 - self.outside_ns / self.wall_ns

    @property
    def flops(self) -> int:
        """Of all ops and gradients of the main thread, as far as they are known."""
        return sum(row.flops or 0 for row in self.by_op())

    @property
    def steps_s(self) -> np.ndarray:
        """Seconds of each step, as marked by `step()`."""
        return np.diff([self._measured().start_ns, *self.marks_ns]) / 1e9

    def step_percentile_s(self, q: float) -> float:
        """The time that `q` percent of the steps stay below (between two steps: on the straight line, as NumPy)."""
        if not self.marks_ns:
            raise RuntimeError("profile: no steps were marked. Call p.step() at the end of each")
        return float(np.percentile(self.steps_s, q))

    def by_phase(self, stream: str = MAIN) -> dict[str, int]:
        """Nanoseconds of each phase: forward (and whatever is in no other), backward, update, load."""
        found: dict[str, int] = {}
        for place, total in self._totals(stream):
            found[place[2]] = found.get(place[2], 0) + total.self_ns
        return found

    def by_op(self, sort: str = "self_ns", stream: str = MAIN) -> list[Row]:
        """A row for each op, "Op (backward)" for its gradient, and the time between; largest first.

        `sort`: a field of Row, or one of its rates.  An op in phase "backward" is checkpointing's second run, a hook,
        or part of a gradient that is recorded (`create_graph`)."""
        return self._rows(lambda kind, name, *_: [title(kind, name)], sort, stream, nested=True)

    def by_module(self, sort: str = "self_ns", stream: str = MAIN) -> list[Row]:
        """A row for each module, by the names that lead to it; its total has the modules inside, but not the Python
        between their ops."""
        return self._rows(_modules, sort, stream)

    def by_line(self, sort: str = "self_ns", stream: str = MAIN) -> list[Row]:
        """A row for each line of the program: that of a gradient is the line of its op.  `text` is the line itself.
        Here `total_ns` is `self_ns`."""
        return self._rows(_lines, sort, stream)

    def _totals(self, stream: str) -> list[tuple[tuple, Totals]]:
        lanes = {lane.stream: lane for lane in self._measured().lanes}
        if stream not in lanes:
            raise ValueError(f"profile: no stream {stream!r}; there are {', '.join(lanes)}")
        return list(dict(lanes[stream].totals).items())

    def _rows(self, names: Callable[..., list[str]], sort: str, stream: str, nested: bool = False) -> list[Row]:
        """`names(*place)`: of the row that a place belongs to, then of those whose total it is part of.  `nested`: what
        ran inside is part of the total."""
        if sort not in SORTS:
            raise ValueError(f"profile: cannot sort by {sort!r}; by one of {', '.join(SORTS)}")
        sums: dict[tuple[str, str], Sum] = {}
        for place, total in self._totals(stream):
            (own, *around), phase = names(*place), place[2]
            for name in (own, *around):
                entry = sums.setdefault((name, phase), Sum())
                entry.total_ns += total.total_ns if nested else total.self_ns
            sums[own, phase].add(total, self._recorder.costs[place[-1]])
        counted = self._recorder.taken is not None
        rows = [entry.row(name, phase, counted) for (name, phase), entry in sums.items()]
        if sort in ("name", "phase"):
            return sorted(rows, key=lambda row: getattr(row, sort))
        return sorted(rows, key=lambda row: -(getattr(row, sort) or 0))

    # -- shown
    def to_data(self) -> dict[str, Any]:
        """Everything but the trace, for JSON."""
        steps = self.steps_s.tolist()
        return {"wall_s": self.wall_s, "share_in_ops": self.share_in_ops, "steps_s": steps,
                "allocations": self.not_counted or "counted", "phases_ns": self.by_phase(), "streams": self.streams,
                **{by: [asdict(row) for row in getattr(self, by)()] for by in ("by_op", "by_module", "by_line")}}

    def __str__(self) -> str:
        return import_module(f"{PACKAGE}.viz.profile").text(self)

    def _repr_html_(self) -> str | None:
        """None before the end, where a notebook then shows `repr`."""
        if self._recorder is None or self._recorder.running:
            return None
        return import_module(f"{PACKAGE}.viz.profile").html(self)

    def __repr__(self) -> str:
        if self._recorder is None or self._recorder.running:
            return "<Profile: not measured yet>"
        return f"<Profile: {self.wall_s:.4g} s, {self.share_in_ops:.1%} of it in ops>"


# ---- sums ----------------------------------------------------------------------------------------
class Sum:
    """A row while it is added up."""

    def __init__(self) -> None:
        self.calls = self.self_ns = self.total_ns = self.known_ns = self.buffers = self.nbytes = 0
        self.flops = self.moved = 0

    def add(self, total: Totals, cost: tuple[int, int] | None) -> None:
        self.calls += total.calls
        self.self_ns += total.self_ns
        self.buffers += total.buffers
        self.nbytes += total.nbytes
        if cost is not None:
            self.known_ns += total.self_ns
            self.flops += total.calls * cost[0]
            self.moved += total.calls * cost[1]

    def row(self, name: str, phase: str, counted: bool) -> Row:
        flops, moved = (self.flops, self.moved) if self.known_ns else (None, None)
        taken, nbytes = (self.buffers, self.nbytes) if counted else (None, None)
        where, _, text = name.partition("\n")
        return Row(where, phase, self.calls, self.self_ns, self.total_ns, flops, moved, self.known_ns, taken, nbytes,
                   text)


def _modules(kind: str, name: str, phase: str, scope: tuple, *_: Any) -> list[str]:
    """The module itself, then those around it."""
    if kind in BETWEEN:
        return [title(kind, name)]
    if not scope:
        return ["(no module)"]
    return [".".join(scope[:k]) for k in range(len(scope), 0, -1)]


def _lines(kind: str, name: str, phase: str, scope: tuple, code: Any, lasti: int, *_: Any) -> list[str]:
    if kind == OUTSIDE:
        return [title(kind, name)]
    return [f"{site_text(code, lasti)}\n{line_text(code, lasti)}"]


__all__ = ["Profile", "Row", "profile"]
