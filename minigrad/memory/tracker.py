"""The tracker: live bytes over time by category, the high-water mark, who holds what and which line made it.

Every buffer is seen by `handler.py`; a probe says what the engine was doing meanwhile; `owners.py` finds what was
there before.  Nothing is installed outside of the block.  After `account.py`, which does the sums.
"""
from __future__ import annotations

import threading
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Self

import numpy as np

from minigrad.autograd import check_observed, observe
from minigrad.memory.account import (
    ACTIVATION,
    CATEGORIES,
    GRADIENT,
    INPUT,
    OPTIMIZER_STATE,
    PARAMETER,
    WORKSPACE,
    Account,
    Frame,
    Place,
    Snapshot,
)
from minigrad.memory.handler import address_of, watched
from minigrad.memory.live import size_text
from minigrad.memory.owners import address, arrays_in, owned
from minigrad.nn.module import Module
from minigrad.nn.parameter import Parameter
from minigrad.optim.optimizer import Optimizer
from minigrad.probes import PHASES, Probe
from minigrad.sim import _devices as sim_devices
from minigrad.sites import call_site
from minigrad.tensor import LEAF, Node, Tensor, current

PROVISIONAL = {"op": WORKSPACE, "pull": WORKSPACE, "leaf": WORKSPACE, "backward": WORKSPACE, "update": WORKSPACE,
               "load": INPUT}                # of what is made then, until somebody is found to hold it
COMPUTED = (PARAMETER, ACTIVATION, GRADIENT)
LANE = "minigrad lane"                       # threads that do part of another thread's op
LIMIT_S = 1.0                                # of the wait for another thread; then what it does is not told apart


@dataclass(frozen=True)
class Holding:
    """A buffer that is alive: who holds it, as far as that has a name, and the line that made it."""

    nbytes: int
    category: str
    held_by: str
    made_at: str
    op: str

    def __str__(self) -> str:
        made = f"{self.op} at {self.made_at}" if self.op else self.made_at
        return f"{size_text(self.nbytes):>10}  {self.category:<15}  {self.held_by or 'nobody known'}; made {made}"

    __repr__ = __str__


class Tracker(Probe):
    """What `track` gives; it may be read within the block and after it."""

    def __init__(self, model: Module | None = None, optimizer: Optimizer | None = None, history: int = 200_000) -> None:
        for name, given, kind in (("model", model, Module), ("optimizer", optimizer, Optimizer)):
            if given is not None and not isinstance(given, kind):
                raise TypeError(f"track: {name} must be a {kind.__name__} or None, got {type(given).__name__}")
        if not isinstance(history, int) or history < 1:
            raise ValueError(f"track: history is a number of events, at least 1, got {history!r}")
        self.model, self.optimizer = model, optimizer
        self.steps: list[int] = []           # the event after which each update ended
        self.marks: list[tuple[int, str, bool]] = []         # (event, phase, whether it begins)
        self._account = Account(history)
        self._watch: Any = None
        self._stacks: dict[int, list[Frame]] = defaultdict(list)
        self._lanes: set[int] = set()
        self._lock = threading.RLock()
        self._open = False
        self._devices: dict[str, tuple[int, int]] = {}

    # -- the block
    def __enter__(self) -> Self:
        if self._open or self._account.event:
            raise RuntimeError("track: a tracker serves one block; make another")
        with ExitStack() as stack:
            self._watch, self._owner = stack.enter_context(watched()), threading.get_ident()
            self._open = True
            self._adopt(owned(self.model, self.optimizer))
            self._device_peaks = {d: (d.used, d.peak) for d in sim_devices.values()}
            for d in self._device_peaks:
                d.reset_peak()
            stack.callback(self._close)
            stack.enter_context(observe(self))
            self._exit = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        check_observed("track", self)
        self._exit.close()

    def _adopt(self, there: list) -> None:
        self._advance()                                      # other threads may have made arrays meanwhile
        for each in there:
            if address_of(each.array) not in self._account.buffers:
                self._watch.adopt(each.array)
        self._stacks[self._owner].append(Frame(0, Place("before", "before the block", None, 0, (), "forward"), INPUT))
        self._advance()
        self._stacks[self._owner].clear()
        self._account.first = self._account.event            # the block begins with all of these
        for each in there:
            self._account.settle(address_of(each.array), each.category)

    def _close(self) -> None:
        """The last events; the peaks of the simulated devices are again those of their whole life."""
        with self._lock:
            self._settle_account()
            self._devices, self._open = self.devices, False
            self._stacks.clear()
        for d, (_, peak) in self._device_peaks.items():
            d.peak = max(d.peak, peak)

    # -- what is happening: as a probe
    def begin(self, kind: str, thing: Any, inputs: tuple = ()) -> None:
        if not self._open or not self._lock.acquire(timeout=LIMIT_S):
            return
        try:
            self._advance()
            stack = self._stacks[threading.get_ident()]
            if kind in PHASES:
                self._drop_failed(stack)
                self._mark(kind, True)
            stack.append(frame := Frame(id(thing), self._place(kind, thing, stack), PROVISIONAL[kind]))
            for x in inputs:
                if kind == "pull":
                    self._settle(x, GRADIENT, WORKSPACE)
                elif x.__class__ is Parameter or x.__class__ is Tensor and x.node is LEAF:
                    self._settle(x, PARAMETER)
                    frame.from_parameters = True
                elif not frame.from_parameters:
                    frame.from_parameters = self._account.category_at(address(x)) in COMPUTED
        finally:
            self._lock.release()

    def end(self, kind: str, thing: Any, outputs: tuple = ()) -> None:
        if not self._open or not self._lock.acquire(timeout=LIMIT_S):
            return
        try:
            self._advance()
            stack = self._stacks[threading.get_ident()]
            k = next((k for k in reversed(range(len(stack))) if stack[k].key == id(thing)), None)
            if k is not None:
                frame = stack[k]
                del stack[k:]
                self._ended(kind, thing, outputs, frame, stack)
        finally:
            self._lock.release()

    def _mark(self, phase: str, begins: bool) -> None:
        if threading.get_ident() == self._owner:
            self.marks.append((self._account.event, phase, begins))

    def _drop_failed(self, stack: list[Frame]) -> None:
        """No phase begins within an op: one that is still there has failed, and was not ended."""
        while stack and stack[-1].place.kind == "op":
            stack.pop()

    def _place(self, kind: str, thing: Any, stack: list[Frame]) -> Place:
        phase = kind if kind in PHASES else stack[-1].place.phase if stack else "forward"
        if kind == "pull":
            return Place(kind, thing.name(), thing.code, thing.lasti, thing.scope, phase)
        if kind == "leaf" and stack:
            return stack[-1].place._replace(kind=kind, name="the gradient of a leaf")
        name = type(thing).__name__ if kind in ("op", "update", "load") else kind
        code, lasti = call_site(1)
        return Place(kind, name, code, lasti, current().scope, phase)

    def _ended(self, kind: str, thing: Any, outputs: tuple, frame: Frame, stack: list[Frame]) -> None:
        if kind == "op":
            self._op_ended(outputs, frame, stack)
        elif kind == "pull" or kind == "leaf":
            for x in outputs:
                self._settle(x, GRADIENT, *([WORKSPACE] if kind == "pull" else [WORKSPACE, INPUT, ACTIVATION]))
        elif kind in PHASES:
            if kind == "update" and frame.unsettled():
                self._settle(getattr(thing, "state", ()), OPTIMIZER_STATE, WORKSPACE)
            self._mark(kind, False)
            if kind == "update":
                self.steps.append(self._account.event)

    def _op_ended(self, outputs: tuple, frame: Frame, stack: list[Frame]) -> None:
        """Of which category its results are: what the graph saves is one of them, or there before."""
        node = outputs[0].node if outputs[0].__class__ is Tensor else None
        recorded, phase = node.__class__ is Node, frame.place.phase
        in_pull = any(f.place.kind == "pull" for f in stack)
        category = (INPUT if phase == "load" else ACTIVATION if recorded else WORKSPACE if phase == "update"
                    else GRADIENT if in_pull else ACTIVATION if frame.from_parameters else INPUT)
        for y in outputs:
            self._settle(y, category, WORKSPACE)
        if stack:
            stack[-1].made += frame.unsettled()

    def _settle(self, x: Any, category: str, *only: str) -> None:
        for array in (x,) if x.__class__ is Tensor or x.__class__ is np.ndarray else arrays_in(x):
            self._account.settle(address(array), category, *only)

    # -- events
    def _advance(self) -> None:
        """Enter what was logged since; each thread did it in the place where it still is."""
        if self._watch.head:
            outside: list[Frame] = []                        # one frame for all, made if there is need
            self._account.read(self._watch.drain_with_threads(), lambda t: self._frame_of(t, outside),
                               self._watch.correct)

    def _frame_of(self, thread: int, outside: list[Frame]) -> Frame:
        stack = self._stacks.get(thread)
        if not stack and self._is_lane(thread):
            stack = self._stacks.get(self._owner)
        if stack:
            return stack[-1]
        if not outside:
            code, lasti = call_site(1)
            outside.append(Frame(0, Place("", "outside of the engine", code, lasti, (), "forward"), INPUT))
        return outside[0]

    def _is_lane(self, thread: int) -> bool:
        if thread == self._owner or thread in self._lanes:
            return thread in self._lanes
        if any(t.ident == thread and t.name.startswith(LANE) for t in threading.enumerate()):
            self._lanes.add(thread)                          # they live as long as the process
        return thread in self._lanes

    def _settle_account(self) -> None:
        """Up to date, and in agreement with the bytes that the machine code counted, if events were lost."""
        if self._open:
            self._advance()
            if self._watch.lost:
                self._account.agree(self._watch.live)

    def _read(self) -> Account:
        with self._lock:
            self._settle_account()
        return self._account

    # -- reading
    @property
    def live(self) -> int:
        """Bytes of all arrays that own their memory now, of the whole process."""
        return self._read().live

    @property
    def peak(self) -> int:
        return self._read().peak

    @property
    def peak_event(self) -> int:
        """The event after which the most was alive."""
        return self._read().peak_event

    @property
    def lost(self) -> int:
        """Events that found the log full: their bytes are counted, but not who made them."""
        return 0 if self._watch is None else self._watch.lost

    def by_category(self) -> dict[str, int]:
        return dict(self._read().totals)

    def now(self) -> Snapshot:
        """What is alive, by category, line and module."""
        return self._read().now()

    def at_peak(self) -> Snapshot:
        """What was alive at the high-water mark."""
        return self._read().at_peak()

    def timeline(self) -> tuple[list[int], dict[str, list[int]]]:
        """(event numbers, {category: bytes after each}).  An event is a buffer taken or given back; a buffer has the
        category that it came to, all its life.  Of a long past only the younger half is remembered."""
        return self._read().timeline()

    def holders(self, k: int = 10) -> list[Holding]:
        """The k largest buffers that are alive, with who holds them and which line made them.  The names are those of
        now; `why_alive` gives whole chains."""
        known = sorted(self._read().buffers.values(), key=lambda b: -b.nbytes)[:k]
        names = {address_of(each.array): each.holder for each in owned(self.model, self.optimizer, variables=True)}
        return [Holding(b.nbytes, b.category, names.get(b.address, ""), b.place.line,
                        b.place.name if b.place.kind in ("op", "pull", "leaf", "update", "load") else "")
                for b in known]

    @property
    def devices(self) -> dict[str, tuple[int, int]]:
        """{simulated device: (bytes used, most within the block)}."""
        if not self._open:
            return self._devices
        return {d.name: (d.used, d.peak) for d in sim_devices.values() if d.used or d.peak}

    def __str__(self) -> str:
        now, most = self.now(), self.at_peak()
        rows = [f"memory: {size_text(now.nbytes)} alive, at most {size_text(most.nbytes)} (in {most.phase})",
                f"  {'':15}  {'now':>10}  {'at the peak':>11}"]
        for c in CATEGORIES:
            rows.append(f"  {c:15}  {size_text(now.by_category[c]):>10}  {size_text(most.by_category[c]):>11}"
                        f"  {most.by_category[c] / max(most.nbytes, 1):5.0%}")
        rows += ["the largest at the peak, by line:"]
        rows += [f"  {size_text(nbytes):>10}  {line}" for line, nbytes in list(most.by_line.items())[:8]]
        if set(most.by_module) - {""}:
            rows += ["and by module:"]
            largest = list(most.by_module.items())[:8]
            rows += [f"  {size_text(n):>10}  {name or '(outside of modules)'}" for name, n in largest]
        rows += [f"{name}: {size_text(used)} used, at most {size_text(peak)}" for name, (used, peak) in
                 self.devices.items()]
        rows += [f"{self.lost} events found the log full: their bytes are in workspace"] * bool(self.lost)
        return "\n".join(rows)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return import_module(f"{__name__.partition('.')[0]}.viz.memory").html(self)      # reached by name when shown


def track(model: Module | None = None, optimizer: Optimizer | None = None, *, history: int = 200_000) -> Tracker:
    """Follow every array in this block: `with track() as t: …`, then `print(t)`, `t.at_peak()`, `t.holders()`.

    A buffer is of one category, for all its life, by who comes to hold it:

    - parameter: a Parameter, another leaf that wants a gradient, a buffer of a module
    - gradient: `.grad`, and gradients on their way there
    - optimizer state: the arrays in `optimizer.state`
    - activation: what the graph saved, or a result that was computed from parameters, recorded or not
    - workspace: what an operation, a gradient rule or an update made for itself
    - input: all else – data, targets, what was computed from them alone, whatever the program holds

    What is found before the block is taken in, with every other array of the process.  `model` and `optimizer` say
    whose names count; without them all that are alive do.  Arrays of `sim:k` are arrays of the host, so they are in
    these sums; what their device counts, `t.devices` says, with the peak within the block (the device's own `peak` is
    that of the block too, until it ends).  Threads count if they run in a copy of this context, as lanes and workers
    do.  Needs numba.  RuntimeError where Python or NumPy has no memory handlers."""
    return Tracker(model, optimizer, history)
