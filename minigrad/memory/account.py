"""The account behind the tracker: every buffer with its place of birth and its category, and the sums of them.

Pure bookkeeping, without NumPy (whose arrays would be counted too) and without clocks: it is told of events and of
settled categories, and answers what was alive at any of the events that it remembers.  After `handler.py`.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from minigrad.sites import site_text

CATEGORIES = ("parameter", "gradient", "optimizer state", "activation", "workspace", "input")
PARAMETER, GRADIENT, OPTIMIZER_STATE, ACTIVATION, WORKSPACE, INPUT = CATEGORIES
BEFORE = "before the block"


class Place(NamedTuple):
    """Where a buffer was made: "op", "pull", "leaf", a phase, or "" for outside of the engine, whose line is the one
    that called the engine next."""

    kind: str
    name: str
    code: object
    lasti: int
    scope: tuple[str, ...]
    phase: str

    @property
    def line(self) -> str:
        if self.code is None:
            return self.name
        text = site_text(self.code, self.lasti)
        return text if self.kind else f"before {text}"


class Buffer:
    """The memory of one array: alive from event `born` until event `died`, None while it is."""

    __slots__ = ("address", "nbytes", "born", "died", "category", "place")

    def __init__(self, address: int, nbytes: int, born: int, category: str, place: Place) -> None:
        self.address, self.nbytes, self.born, self.category, self.place = address, nbytes, born, category, place
        self.died: int | None = None

    def alive_at(self, event: int) -> bool:
        return self.born <= event and (self.died is None or self.died > event)


class Frame:
    """What a thread is doing: its place, the category that buffers have until they are settled, those it made, and
    whether it computes from parameters."""

    __slots__ = ("key", "place", "category", "made", "from_parameters")

    def __init__(self, key: int, place: Place, category: str) -> None:
        self.key, self.place, self.category, self.from_parameters = key, place, category, False
        self.made: list[Buffer] = []

    def unsettled(self) -> list[Buffer]:
        return [b for b in self.made if b.died is None and b.category == WORKSPACE]


@dataclass(frozen=True)
class Snapshot:
    """What was alive after one event: bytes in all, and by category, by line and by module; the largest first."""

    nbytes: int
    phase: str
    by_category: dict[str, int]
    by_line: dict[str, int]
    by_module: dict[str, int]


class Account:
    """Buffers by address, totals, and the buffers of the past, of which at most about `most` are remembered."""

    def __init__(self, most: int) -> None:
        self.most, self.event, self.first = most, 0, 0
        self.live, self.peak, self.peak_event, self.peak_phase = 0, 0, 0, "forward"
        self.totals = dict.fromkeys(CATEGORIES, 0)
        self.buffers: dict[int, Buffer] = {}
        self.past: list[Buffer] = []
        self._peak_buffers: list[Buffer] | None = None       # once the past no longer tells
        self._moved: Buffer | None = None
        self._unknown: Buffer | None = None

    # -- events
    def read(self, events: Iterable[tuple[int, int, int]], frame_of: Callable[[int], Frame],
             resized: Callable[[int], None]) -> None:
        """Enter (address, bytes, thread) as `Watch` tells them.  `frame_of(thread)`: what it was doing."""
        last, frame = None, None
        for address, nbytes, thread in events:
            if frame is None or thread != last:
                last, frame = thread, frame_of(thread)
            self.event += 1
            if nbytes > 0:
                self._born(address, nbytes, frame)
            else:
                self._dies(address, -nbytes, resized)
        if len(self.past) > self.most:
            self._forget()

    def _born(self, address: int, nbytes: int, frame: Frame) -> None:
        old, self._moved = self._moved, None
        if address in self.buffers:                          # its end was among events that were lost
            self._lose(self._removed(address).nbytes, frame.place.phase)
        category, place = (old.category, old.place) if old else (frame.category, frame.place)
        b = Buffer(address, nbytes, self.event, category, place)
        self._enter(b, frame.place.phase)
        self.buffers[address] = b
        frame.made.append(b)

    def _enter(self, b: Buffer, phase: str) -> None:
        self.past.append(b)
        self.totals[b.category] += b.nbytes
        self.live += b.nbytes
        if self.live > self.peak:
            self.peak, self.peak_event, self.peak_phase, self._peak_buffers = self.live, self.event, phase, None

    def _removed(self, address: int) -> Buffer:
        b = self.buffers.pop(address)
        b.died = self.event
        self.totals[b.category] -= b.nbytes
        self.live -= b.nbytes
        return b

    def _dies(self, address: int, nbytes: int, resized: Callable[[int], None]) -> None:
        if address not in self.buffers:
            self._lose(-nbytes, "forward")
            return
        b = self._removed(address)
        if not nbytes:                                       # of 0 bytes: it moves, and its new self comes next
            self._moved = b
            resized(b.nbytes)

    def _lose(self, nbytes: int, phase: str) -> None:
        """So many more bytes are alive, and nothing is known of them."""
        old, self._unknown = self._unknown, None
        if old is not None:
            old.died = self.event
            self.totals[WORKSPACE] -= old.nbytes
            self.live -= old.nbytes
            nbytes += old.nbytes
        if nbytes:
            place = Place("", "events that found the log full", None, 0, (), phase)
            self._unknown = Buffer(0, nbytes, self.event, WORKSPACE, place)
            self._enter(self._unknown, phase)

    def agree(self, live: int) -> None:
        """After events were lost: `live` bytes are alive in truth."""
        if live != self.live:
            self.event += 1
            self._lose(live - self.live, "forward")

    def settle(self, address: int | None, category: str, *only: str) -> None:
        """The buffer there is of this category, for all its life: if it was one of `only`, where these are given."""
        b = self.buffers.get(address or 0)
        if b is not None and b.category != category and (not only or b.category in only):
            self.totals[b.category] -= b.nbytes
            self.totals[category] += b.nbytes
            b.category = category

    def category_at(self, address: int | None) -> str | None:
        b = self.buffers.get(address or 0)
        return None if b is None else b.category

    # -- the past
    def _forget(self) -> None:
        """Of what died in the older half of the past nothing is kept, but for what the peak needs."""
        if self._peak_buffers is None:
            self._peak_buffers = list(self._alive_at(self.peak_event))
        cut = max(self.past[len(self.past) // 2].born, self.first)
        self.past = [b for b in self.past if b.died is None or b.died > cut]
        self.first, self.most = cut, max(self.most, 2 * len(self.past))

    def _alive_at(self, event: int) -> Iterator[Buffer]:
        return (b for b in self.past if b.alive_at(event))

    def now(self) -> Snapshot:
        return snapshot(self._alive_at(self.event), "")

    def at_peak(self) -> Snapshot:
        known = self._alive_at(self.peak_event) if self._peak_buffers is None else iter(self._peak_buffers)
        return snapshot(known, self.peak_phase)

    def timeline(self) -> tuple[list[int], dict[str, list[int]]]:
        """(event numbers, {category: bytes after each}): every event that is remembered; each buffer has its present
        category all its life."""
        n = self.event - self.first + 1
        steps = {c: [0] * n for c in CATEGORIES}
        for b in self.past:
            steps[b.category][max(b.born - self.first, 0)] += b.nbytes
            if b.died is not None:
                steps[b.category][b.died - self.first] -= b.nbytes
        for change in steps.values():
            for k in range(1, n):
                change[k] += change[k - 1]
        return list(range(self.first, self.event + 1)), steps


def snapshot(buffers: Iterator[Buffer], phase: str) -> Snapshot:
    by_category = dict.fromkeys(CATEGORIES, 0)
    by_line: dict[str, int] = defaultdict(int)
    by_module: dict[str, int] = defaultdict(int)
    lines: dict[int, str] = {}                               # many buffers share a place
    for b in buffers:
        place = b.place
        by_category[b.category] += b.nbytes
        by_line[lines.get(id(place)) or lines.setdefault(id(place), place.line)] += b.nbytes
        by_module[".".join(place.scope)] += b.nbytes
    return Snapshot(sum(by_category.values()), phase, by_category, _largest_first(by_line), _largest_first(by_module))


def _largest_first(found: dict[str, int]) -> dict[str, int]:
    return dict(sorted(found.items(), key=lambda item: -item[1]))


__all__ = ["CATEGORIES", "Account", "Buffer", "Frame", "Place", "Snapshot", "snapshot"]
