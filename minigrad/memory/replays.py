"""A recorded program through an allocation policy: where each buffer would lie, and what it would cost.

After `recording.py` and `policies.py`; drawn by `viz/pool.py`.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

import numpy as np

from minigrad.arguments import of_kind
from minigrad.memory.blocks import Stats
from minigrad.memory.live import size_text
from minigrad.memory.policies import POLICIES, Policy, SizeClasses
from minigrad.memory.recording import Recording


@dataclass(frozen=True)
class Span:
    """Addresses from `start` on, from event `begin` to before event `end`: of a buffer, or of a segment as long as it
    had this size."""

    start: int
    size: int
    begin: int
    end: int


@dataclass(frozen=True)
class Replay:
    """`requested`, `allocated`, `reserved`: bytes after each event; `blocks[k]`: where and when buffer k lay;
    `segments`: the memory from the system; `at_peak`: the account when most was requested, after event `peak_event`."""

    policy: str
    recording: Recording
    requested: np.ndarray
    allocated: np.ndarray
    reserved: np.ndarray
    blocks: list[Span]
    segments: list[Span]
    peak_event: int
    at_peak: Stats
    stats: Stats

    def __str__(self) -> str:
        head = f"{self.policy}: {len(self.blocks):,} buffers, {len(self.requested):,} events"
        p = self.at_peak
        return (f"{head}\n{self.stats}\nwhen most was live, after event {self.peak_event:,}: internal "
                f"{p.internal_fragmentation:.1%}, external {p.external_fragmentation:.1%} of {size_text(p.free)} free")

    __repr__ = __str__

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        picture = import_module(f"{__name__.partition('.')[0]}.viz.pool")                # reached by name when shown
        return {"text/plain": picture.text(self), "image/svg+xml": picture.svg(self)}


def replay(
    recording: Recording, policy: type[Policy] | Policy = SizeClasses, limit: int | None = None
) -> Replay:
    """Send each request through the policy, a class or a new instance; MemoryError if `limit` does not suffice, naming
    the three largest holders."""
    of_kind("replay", "recording", recording, Recording)
    if not (isinstance(policy, Policy) or (isinstance(policy, type) and issubclass(policy, Policy))):
        raise TypeError(f"replay: policy must be a Policy, as FirstFit, BestFit, Buddy or SizeClasses, got {policy!r}")
    if isinstance(policy, type):
        policy = policy(limit=limit)
    elif limit is not None or policy.stats().allocs:
        raise ValueError(f"replay: {type(policy).__name__} is an instance: give the limit to it, and take a new one "
                         f"for each replay (it has served {policy.stats().allocs} requests)")
    if complaint := recording.mistake():
        raise ValueError(f"replay: {complaint}")
    policy.named = lambda serial: recording.name(serial - 1)
    live = recording.live
    peak_event = int(live.argmax()) if len(live) else 0
    return _Run(policy, recording).through(peak_event)


class _Run:
    def __init__(self, policy: Policy, recording: Recording) -> None:
        self.policy, self.recording = policy, recording
        self.given: dict[int, tuple] = {}                           # {buffer: (block, start, size, event)}
        self.there: dict[tuple[int, int], int] = {}                 # {(start, size) of a segment: since event}
        self.blocks: dict[int, Span] = {}
        self.segments: list[Span] = []

    def through(self, peak_event: int) -> Replay:
        rows, at_peak = [], self.policy.stats()
        for n, event in enumerate(self.recording.events):
            self.step(n, event)
            rows.append(self.policy.now())
            if n == 0 or rows[-1][2] != rows[-2][2]:
                self.note_segments(n)
            if n == peak_event:
                at_peak = self.policy.stats()
        stats, end = self.policy.stats(), len(rows)
        self.blocks |= {k: Span(start, size, since, end) for k, (_, start, size, since) in self.given.items()}
        self.segments += [Span(*where, since, end) for where, since in self.there.items()]
        requested, allocated, reserved = np.array(rows, np.int64).reshape(-1, 3).T
        blocks = [self.blocks[k] for k in sorted(self.blocks)]
        segments = sorted(self.segments, key=lambda s: (s.begin, s.start))
        return Replay(type(self.policy).__name__, self.recording, requested, allocated, reserved, blocks, segments,
                      peak_event, at_peak, stats)

    def step(self, n: int, event: int) -> None:
        k = abs(event) - 1
        if event > 0:
            block = self.policy.alloc(self.recording.sizes[k])
            self.given[k] = block, block.start, block.size, n
        else:
            block, start, size, since = self.given.pop(k)
            self.policy.free(block)
            self.blocks[k] = Span(start, size, since, n)

    def note_segments(self, n: int) -> None:
        now = {(s.start, s.size) for s in self.policy.segments}
        for where in set(self.there) - now:
            self.segments.append(Span(*where, self.there.pop(where), n))
        for where in now - set(self.there):
            self.there[where] = n


# ---- side by side --------------------------------------------------------------------------------
@dataclass(frozen=True)
class Comparison:
    """The same recording through several policies; `str` is a table."""

    replays: list[Replay]

    def __str__(self) -> str:
        head = ("policy", "reserved", "overhead", "internal", "external", "segments", "misses", "splits", "merges")
        lines = [head, *map(self._row, self.replays)]
        wide = [max(map(len, column)) for column in zip(*lines)]
        rows = ["  ".join(word.ljust(w) if i == 0 else word.rjust(w) for i, (word, w) in enumerate(zip(line, wide)))
                for line in lines]
        r = self.replays[0].recording
        rows.insert(0, f"{len(r.sizes):,} buffers, at most {size_text(r.peak)} live at once")
        return "\n".join([*rows, "reserved: at most; internal and external fragmentation: when most was live"])

    __repr__ = __str__

    def _row(self, r: Replay) -> tuple[str, ...]:
        s, p = r.stats, r.at_peak
        return (r.policy, size_text(s.peak_reserved), f"{s.overhead:.1%}", f"{p.internal_fragmentation:.1%}",
                f"{p.external_fragmentation:.1%}", f"{p.segments:,}", f"{s.misses:,}", f"{s.splits:,}", f"{s.merges:,}")


def compare_policies(
    recording: Recording, policies: Sequence[type[Policy] | Policy] = POLICIES, limit: int | None = None
) -> Comparison:
    """Replay through each."""
    return Comparison([replay(recording, policy, limit) for policy in policies])


__all__ = ["Comparison", "Replay", "Span", "compare_policies", "replay"]
