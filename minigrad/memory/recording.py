"""What arrays a program asked memory for, in order, and which op and line asked: `with record() as r`.

After `handler.py`, which sees the buffers; `replays.py` sends a recording through an allocation policy.
"""
from __future__ import annotations

import json
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from minigrad.arguments import whole
from minigrad.autograd import observe
from minigrad.memory.handler import Watch, watched
from minigrad.memory.live import size_text
from minigrad.probes import Probe
from minigrad.save import write_whole
from minigrad.sites import call_site, site_text

LARGE = 1 << 16                # bytes: smaller arrays are many, and hold little
NOBODY = ("outside of the engine", "")


@dataclass
class Recording:
    """Buffers are numbered in the order in which they were asked for.

    `sizes`: bytes of each; `events`: k + 1 where buffer k is asked for, -(k + 1) where it is given back; `owner`: for
    each buffer the place in `owners` of the (op, line) that ran when it was asked for."""

    sizes: list[int] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    owner: list[int] = field(default_factory=list)
    owners: list[tuple[str, str]] = field(default_factory=lambda: [NOBODY])

    @classmethod
    def of(cls, *steps: int | str) -> Recording:
        """Made by hand: a number asks for so many bytes, "-k" gives buffer k back, the first being 0.
        `Recording.of(100, 200, "-0")`."""
        r = cls()
        for step in steps:
            if not isinstance(step, str):
                whole("Recording.of", "a size", step)
            k = -int(step) if isinstance(step, str) else None
            if k is None:
                r.ask(int(step))
            elif isinstance(step, str) and step.startswith("-") and 0 <= k < len(r.sizes) and -k - 1 not in r.events:
                r.events.append(-k - 1)
            else:
                raise ValueError(f"Recording.of: {step!r} gives nothing back that is there: {len(r.sizes)} buffers "
                                 "were asked for; write '-0' for the first, once")
        return r

    def ask(self, nbytes: int, owner: int = 0) -> int:
        """Enter a buffer; its number."""
        self.sizes.append(nbytes)
        self.owner.append(owner)
        self.events.append(len(self.sizes))
        return len(self.sizes) - 1

    @property
    def live(self) -> np.ndarray:
        """Bytes that are live after each event."""
        signed = [self.sizes[abs(e) - 1] * (1 if e > 0 else -1) for e in self.events]
        return np.cumsum(np.array(signed, np.int64))

    @property
    def peak(self) -> int:
        """Most bytes that were live at once."""
        return int(self.live.max(initial=0))

    def name(self, k: int) -> str:
        """Of buffer k: its op and line."""
        what, line = self.owners[self.owner[k]]
        return f"{what} at {line}" if line else what

    def by_owner(self) -> list[tuple[str, str, int, int]]:
        """(op, line, buffers, bytes) of all that was asked for, the most bytes first."""
        count, size = np.bincount(self.owner), np.bincount(self.owner, self.sizes) if self.sizes else ()
        rows = [(*self.owners[i], int(n), int(size[i])) for i, n in enumerate(count) if n]
        return sorted(rows, key=lambda row: -row[3])

    def save(self, path: str | os.PathLike) -> None:
        """As JSON: whole, or not at all."""
        write_whole(os.path.realpath(path), json.dumps({"recording": 1, **asdict(self)}).encode())

    @classmethod
    def load(cls, path: str | os.PathLike) -> Recording:
        """ValueError if the file is none or its events do not fit together."""
        with open(path, encoding="utf-8") as file:
            try:
                told = json.load(file)
                owners = [(str(what), str(line)) for what, line in told["owners"]]
                sizes, events, owner = ([int(n) for n in told[name]] for name in ("sizes", "events", "owner"))
                r = cls(sizes, events, owner, owners)
            except (ValueError, KeyError, TypeError) as e:
                raise ValueError(f"Recording.load: {os.fspath(path)} is no recording: {e!r}") from e
        if complaint := r.mistake():
            raise ValueError(f"Recording.load: {os.fspath(path)}: {complaint}")
        return r

    def mistake(self) -> str:
        """What does not fit together, in words; empty if all does."""
        live, asked = set[int](), 0
        for n, e in enumerate(self.events):
            asked += e > 0
            if e == 0 or (e > 0 and e != asked) or (e < 0 and -e not in live):
                return f"event {n} is {e}, which is neither the next buffer nor one that is there"
            live.symmetric_difference_update({abs(e)})
        if asked != len(self.sizes) or len(self.owner) != asked or min(self.sizes, default=0) < 0:
            return f"{asked} buffers are asked for, but {len(self.sizes)} sizes and {len(self.owner)} owners given"
        return "" if all(0 <= k < len(self.owners) for k in self.owner) else "an owner is not in the list of owners"

    def __str__(self) -> str:
        given_back = sum(e < 0 for e in self.events)
        rows = [f"{len(self.sizes):,} buffers, {given_back:,} given back; {size_text(sum(self.sizes))} in all, "
                f"at most {size_text(self.peak)} at once"]
        rows += [f"  {size_text(size):>10} in {n:5,}: {what}{f' at {line}' if line else ''}"
                 for what, line, n, size in self.by_owner()[:10]]
        return "\n".join(rows)

    __repr__ = __str__


@contextmanager
def record(smallest: int = LARGE, capacity: int = 1 << 16) -> Iterator[Recording]:
    """Record the buffers of at least `smallest` bytes that arrays ask for in this block, and give back within it.

    Each with the op and line that ran.  `capacity`: events between two ops that there is room for; a warning tells if
    it was too little.  What is alive at the end stays alive."""
    whole("record", "smallest", smallest)
    whole("record", "capacity", capacity, 1)
    r = Recording()
    with watched(capacity) as watch:
        recorder = _Recorder(r, watch, smallest)
        try:
            with observe(recorder):
                yield r
        finally:
            recorder.drain()
    if watch.lost:
        warnings.warn(f"record: {watch.lost:,} events found no room and are missing; "
                      f"take capacity={4 * capacity}", RuntimeWarning, stacklevel=3)


class _Recorder(Probe):
    """Empties the log of `watch` whenever something begins or ends: what is in it belongs to what ran until then."""

    def __init__(self, recording: Recording, watch: Watch, smallest: int) -> None:
        self.r, self.watch, self.smallest = recording, watch, smallest
        self.at: dict[int, int] = {}                                # {address: the buffer that is there}
        self.known: dict[tuple, int] = {}
        self.stacks: dict[int, list[tuple[str, Any, int]]] = {}     # of each thread: what has begun and not ended
        self.lock = threading.Lock()

    def begin(self, kind: str, thing: Any, inputs: tuple) -> None:
        with self.lock:
            self.drain()
            stack = self.stacks.setdefault(threading.get_ident(), [])
            stack.append((kind, thing, self.owner(kind, thing)))

    def end(self, kind: str, thing: Any, outputs: tuple) -> None:
        with self.lock:
            self.drain()
            stack = self.stacks.setdefault(threading.get_ident(), [])
            begun = [k for k, (a, b, _) in enumerate(stack) if a == kind and b is thing]
            del stack[begun[-1] if begun else len(stack):]           # what raised has not ended by itself

    def owner(self, kind: str, thing: Any) -> int:
        """Its place in the owners."""
        code, lasti = (thing.code, thing.lasti) if kind == "pull" else call_site(3)
        name = type(getattr(thing, "op", thing)).__name__
        key = kind, name, code, lasti
        if key not in self.known:
            what = {"op": name, "pull": f"backward of {name}", "leaf": "gradient of a leaf",
                    "update": f"update by {name}", "load": f"{name}, a batch"}.get(kind, kind)
            self.known[key] = len(self.r.owners)
            self.r.owners.append((what, site_text(code, lasti)))
        return self.known[key]

    def drain(self) -> None:
        """Each event belongs to what its thread is in the midst of; a lane, which is in nothing, works for who asks."""
        mine = self.stacks.get(threading.get_ident())
        for address, nbytes, thread in self.watch.drain_with_threads():
            if nbytes >= max(self.smallest, 1):
                stack = self.stacks.get(thread) or mine
                self.at[address] = self.r.ask(nbytes, stack[-1][2] if stack else 0)
            elif nbytes <= 0 and address in self.at:
                self.r.events.append(-self.at.pop(address) - 1)


__all__ = ["LARGE", "Recording", "record"]
