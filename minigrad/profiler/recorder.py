"""The probe behind `mg.profile()`: what is open in each thread, and what was measured of what has ended.

Times are nanoseconds of one clock, as whole numbers, so sums are exact.  What something spends itself is its time
without that of what ran inside it.  After `costs.py`, before `measurement.py`.
"""
from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter_ns
from types import FrameType
from typing import Any

from minigrad.events import Trace
from minigrad.probes import PHASES, Probe
from minigrad.profiler.costs import UNKNOWN, Costs, op_key
from minigrad.sites import call_site, frame, site_text
from minigrad.tensor import current

MAIN = "main"                                                 # the stream of the thread that measures
OUTSIDE = "outside"                                           # the kind of what surrounds everything
PHASE_OF = {**{phase: phase for phase in PHASES}, "pull": "backward", "leaf": "backward", OUTSIDE: "forward"}
NONE_TAKEN = (0, 0)
EVENTS = 1 << 16                                              # that wait to enter the trace


class Open:
    """Something that has begun.  `inner_…`: what ran inside it; `taken`: what arrays were given before it began."""

    __slots__ = ("kind", "thing", "name", "phase", "scope", "site", "frame", "key", "taken", "inner_taken", "inner_ns",
                 "start_ns")


class Totals:
    """Sums over equal events: `calls`, their own time, their time with what ran inside, and memory taken."""

    __slots__ = ("calls", "self_ns", "total_ns", "buffers", "nbytes")

    def __init__(self) -> None:
        self.calls = self.self_ns = self.total_ns = self.buffers = self.nbytes = 0


class Lane:
    """A thread: what is open, sums by (kind, name, phase, scope, code, lasti, cost), events for the trace."""

    def __init__(self, stream: str) -> None:
        self.stream, self.lock = stream, threading.RLock()
        self.open: list[Open] = []
        self.totals: dict[tuple, Totals] = {}
        self.events: list[tuple] = []


class Recorder(Probe):
    """Measures from `start` to `stop`.  `taken()`: (buffers, bytes) that arrays were given until now."""

    def __init__(self, taken: Callable[[], tuple[int, int]] | None) -> None:
        self.costs, self.trace, self.taken = Costs(), Trace(), taken
        self.lanes: list[Lane] = []
        self.running = False
        self._here, self._lock = threading.local(), threading.Lock()

    # -- the whole
    def start(self, site: tuple) -> None:
        self.main = self._here.lane = self._new_lane(MAIN)
        self.running = True
        self._push(self.main, OUTSIDE, None, OUTSIDE, (), site, None, None)
        self.start_ns = self.main.open[0].start_ns

    def stop(self) -> None:
        """Ends what is open in this thread; what still runs in others is not counted."""
        self.stop_ns = perf_counter_ns()
        self.running = False
        for lane in self.lanes:
            with lane.lock:                                   # whatever is about to be counted in another thread, is
                pass
        while self.main.open:
            self._close(self.main, self.stop_ns, len(self.main.open) > 1, UNKNOWN)
        for lane in self.lanes:
            self._flush(lane)

    def _lane(self) -> Lane:
        try:
            return self._here.lane
        except AttributeError:
            lane = self._here.lane = self._new_lane(threading.current_thread().name)
            return lane

    def _new_lane(self, name: str) -> Lane:
        with self._lock:
            same = sum(lane.stream == name or lane.stream.startswith(f"{name} (") for lane in self.lanes)
            self.lanes.append(Lane(f"{name} ({same + 1})" if same else name))
            return self.lanes[-1]

    # -- what the engine tells
    def begin(self, kind: str, thing: Any, inputs: tuple) -> None:
        if not self.running:
            return
        lane = self._lane()
        caller = key = None
        if kind == "op":
            name, scope, site = type(thing).__name__, current().scope, call_site(2)
            caller, key = frame(2), op_key(thing, inputs)
        elif kind == "pull":
            name, scope, site = type(thing.op).__name__, thing.scope or (), (thing.code, thing.lasti)
            caller, key = frame(2), inputs[0].shape
        elif kind == "leaf":
            name, scope, site, caller = "AccumulateGrad", (), (None, 0), frame(2)
        else:
            name, scope, site = type(thing).__name__, current().scope, call_site(2)
        if lane.open and lane.open[-1].frame is not None:
            with lane.lock:
                self._end_dead(lane)
        self._push(lane, kind, thing, name, scope, site, caller, key)

    def _push(self, lane: Lane, kind: str, thing: Any, name: str, scope: tuple, site: tuple, caller: Any,
              key: Any) -> None:
        new = Open()
        new.kind, new.thing, new.name, new.scope, new.frame, new.key = kind, thing, name, scope, caller, key
        around = lane.open[-1] if lane.open else None
        new.phase = PHASE_OF.get(kind) or (around.phase if around else "forward")
        new.site = around.site if around and site[0] is None else site
        new.inner_ns, new.inner_taken = 0, NONE_TAKEN
        lane.open.append(new)
        new.taken = self.taken() if self.taken else NONE_TAKEN
        new.start_ns = perf_counter_ns()

    def __call__(self, op: Any, xs: tuple, ys: tuple) -> None:
        self.end("op", op, ys, xs)

    def end(self, kind: str, thing: Any, outputs: tuple, inputs: tuple = ()) -> None:
        now = perf_counter_ns()
        lane = self._lane()
        with lane.lock:
            if self.running:
                self._end(lane, now, kind, thing, outputs, inputs)

    def _end(self, lane: Lane, now: int, kind: str, thing: Any, outputs: tuple, inputs: tuple) -> None:
        opened = lane.open
        if not opened or opened[-1].thing is not thing or opened[-1].kind != kind:
            if not any(each.thing is thing and each.kind == kind for each in opened):
                return                                        # it began before the measurement
            while opened[-1].thing is not thing or opened[-1].kind != kind:
                self._close(lane, now, True, UNKNOWN)
        taken = self.taken() if self.taken else NONE_TAKEN
        key, cost = opened[-1].key, UNKNOWN
        if kind == "op":
            cost = self.costs.of_op(key, thing, inputs, outputs)
        elif kind == "pull":
            cost = self.costs.of_pull(thing, key)
        self._close(lane, now, False, cost, taken)

    def _end_dead(self, lane: Lane) -> None:
        """What raised has not ended: the frame that told of it runs no more."""
        now, running = perf_counter_ns(), frame(2)
        while self.running and lane.open and lane.open[-1].frame is not None:
            f: FrameType | None = running
            while f is not None and f is not lane.open[-1].frame:
                f = f.f_back
            if f is not None:
                return
            self._close(lane, now, True, UNKNOWN)

    def _close(self, lane: Lane, now: int, failed: bool, cost: int, taken: tuple | None = None) -> None:
        """The innermost of what is open has ended."""
        done = lane.open.pop()
        spent = now - done.start_ns
        place = (done.kind, done.name, done.phase, done.scope, *done.site, cost)
        total = lane.totals.get(place)
        if total is None:
            total = lane.totals[place] = Totals()
        total.calls += 1
        total.self_ns += spent - done.inner_ns
        for around in lane.open:
            if around.name == done.name and around.kind == done.kind:
                break                                         # within itself: it is in the total of that one
        else:
            total.total_ns += spent
        if lane.open:
            lane.open[-1].inner_ns += spent
        if self.taken:
            self._count(total, done, taken or self.taken(), lane.open)
        lane.events.append((place, done.start_ns, now, failed))
        if len(lane.events) >= EVENTS:
            self._flush(lane)

    def _count(self, total: Totals, done: Open, taken: tuple, around: list[Open]) -> None:
        """Enter what arrays were given while `done` was open."""
        buffers, nbytes = taken[0] - done.taken[0], taken[1] - done.taken[1]
        total.buffers += buffers - done.inner_taken[0]
        total.nbytes += nbytes - done.inner_taken[1]
        if around:
            inner = around[-1].inner_taken
            around[-1].inner_taken = inner[0] + buffers, inner[1] + nbytes

    # -- the trace
    def _flush(self, lane: Lane) -> None:
        """Events that wait enter the trace, in seconds since the measurement began."""
        told: dict[tuple, dict] = {}
        with self._lock:
            events, lane.events = lane.events, []
            for place, start, end, failed in events:
                kind, name, *where, cost = place
                if place not in told:
                    told[place] = arguments(*where)
                args = told[place] | {"failed": True} if failed else told[place]
                flops, nbytes = self.costs[cost] or (None, None)
                self.trace.add(0, lane.stream, title(kind, name), kind, (start - self.start_ns) / 1e9,
                               (end - self.start_ns) / 1e9, flops, nbytes, args)


def title(kind: str, name: str) -> str:
    """As rows and traces name it."""
    if kind in ("pull", "leaf"):
        return f"{name} (backward)"
    if kind in ("update", "load"):
        return f"{name} ({kind})"
    return {"backward": "walk of backward", OUTSIDE: "outside ops"}.get(kind, name)


def arguments(phase: str, scope: tuple, code: Any, lasti: int) -> dict[str, str]:
    """What a trace says beside names and times."""
    told = {"phase": phase, "module": ".".join(scope), "line": "" if code is None else site_text(code, lasti)}
    return {name: text for name, text in told.items() if text}


__all__ = ["MAIN", "OUTSIDE", "Recorder", "title"]
