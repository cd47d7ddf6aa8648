"""Trace: what ran, where and when – the one schema of events of the whole project, measured and simulated alike.

An `Event` is one row; a `Trace` holds the rows as NumPy columns, past a million of them on disk.  It is written as
Chrome's trace format (chrome://tracing, Perfetto), as plain data and as columns in a file.  Depends on nothing of the
project; `viz/timeline.py` draws it.
"""
from __future__ import annotations

import json
import math
import os
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Context, Decimal
from itertools import chain
from operator import index
from typing import Any

import numpy as np

SPOOL_ROWS = 1_000_000
CHUNK = 8192                                                  # rows that wait as tuples
COLUMNS = ("rank", "stream", "name", "kind", "start_s", "end_s", "flops", "bytes", "args")
ROW = np.dtype(list(zip(COLUMNS, ("i4", "i4", "i4", "i4", "f8", "f8", "i8", "i8", "i8"))))
NAMED = ("stream", "name", "kind")                            # columns of numbers of texts
COUNTED = ("flops", "bytes")                                  # columns where -1 says: not known
More = Callable[[Mapping[tuple[int, str], int]], Iterable[str]]
EXACT = Context(prec=2000)                                    # every difference of two floats, to the last digit


@dataclass(frozen=True, slots=True)
class Event:
    """`name` of some `kind` ran from `start_s` to `end_s` on a stream of a rank: a thread, a CUDA stream, a link.

    `flops` and `bytes` are None where they are not known.  `args`: whatever else JSON can say."""

    rank: int
    stream: str
    name: str
    kind: str
    start_s: float
    end_s: float
    flops: int | None = None
    bytes: int | None = None
    args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


class Names(dict):
    """Texts by number and numbers by text; a new text gets the next number."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self.texts: list[str] = []
        for each in texts:
            self[each]

    def __missing__(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"Trace: a stream, name or kind is a text, got {text!r}")
        self.texts.append(text)
        self[text] = number = len(self.texts) - 1
        return number


class Args:
    """Arguments as lines of JSON in one long file, which goes to disk when it is large: a row has the place of its
    line."""

    def __init__(self, in_memory: int) -> None:
        from tempfile import SpooledTemporaryFile  # slow to import, and `import minigrad` has this file

        self.file = SpooledTemporaryFile(max_size=in_memory)
        weakref.finalize(self, self.file.close)
        self.end = 0
        self.recent: dict[str, int] = {}

    def put(self, args: Mapping[str, Any] | None) -> int:
        if not args:
            return -1
        for name in COUNTED:
            if name in args:
                raise ValueError(f"Trace: args has {name!r}, which is a field of its own")
        line = json.dumps(dict(args), allow_nan=False)
        at = self.recent.get(line)
        if at is None:
            if len(self.recent) > CHUNK:
                self.recent.clear()
            at = self.recent[line] = self.end
            self.file.seek(at)
            self.end += self.file.write(line.encode() + b"\n")
        return at

    def get(self, at: int) -> dict[str, Any]:
        if at < 0:
            return {}
        self.file.seek(at)
        return json.loads(self.file.readline())


class Trace:
    """Events in the order in which they were added.  Not for several threads at once.

    `trace[k]` is an Event; `trace[a:b]`, `trace[mask]` and `where` are Traces.  More than `spool_rows` rows are kept in
    a temporary file, which goes with the Trace; if the disk is full they stay in memory, with a warning."""

    def __init__(self, events: Iterable[Event] = (), *, spool_rows: int = SPOOL_ROWS) -> None:
        if spool_rows < 1:
            raise ValueError(f"Trace: spool_rows must be at least 1, got {spool_rows}")
        self.spool_rows = spool_rows
        self._names, self._args = Names(), Args(spool_rows * ROW.itemsize)
        self._tail: list[tuple] = []
        self._chunks: list[np.ndarray] = []
        self._file: Any = None
        self._on_disk = 0
        self.extend(events)

    # -- adding
    def add(self, rank: int, stream: str, name: str, kind: str, start_s: float, end_s: float,
            flops: int | None = None, bytes: int | None = None, args: Mapping[str, Any] | None = None) -> None:
        """Add one event, whose fields these are."""
        names = self._names
        counts = -1 if flops is None else index(flops), -1 if bytes is None else index(bytes)
        if not (-1 << 31 <= index(rank) < 1 << 31 and -1 <= min(counts) <= max(counts) < 1 << 63):
            raise ValueError(f"Trace: {name!r} has rank={rank}, flops={flops}, bytes={bytes}; a rank has 31 bits, the "
                             "others are at least 0 and have 63")
        self._tail.append((index(rank), names[stream], names[name], names[kind], float(start_s), float(end_s),
                           *counts, -1 if args is None else self._args.put(args)))
        if len(self._tail) >= CHUNK:
            self._settle()

    def extend(self, events: Iterable[Event]) -> None:
        for event in events:
            self.add(*(getattr(event, name) for name in COLUMNS))

    def _settle(self) -> None:
        """The rows that wait become an array, and go to disk if there are many."""
        if self._tail:
            self._chunks.append(np.array(self._tail, ROW))
            self._tail = []
        if self._on_disk + sum(map(len, self._chunks)) > self.spool_rows:
            try:
                self._spool()
            except OSError as e:
                self.spool_rows = 1 << 62
                warnings.warn(f"Trace: {e.strerror or e}, so its rows stay in memory", RuntimeWarning, stacklevel=3)

    def _spool(self) -> None:
        if self._file is None:
            from tempfile import TemporaryFile

            self._file = TemporaryFile()
            weakref.finalize(self, self._file.close)
        while self._chunks:
            self._file.seek(self._on_disk * ROW.itemsize)
            self._file.write(self._chunks[0].tobytes())
            self._file.flush()
            self._on_disk += len(self._chunks.pop(0))

    # -- reading
    @property
    def table(self) -> np.ndarray:
        """All rows as one array of dtype `ROW`: numbers for texts, -1 for what is not known.  Not to be written."""
        self._settle()
        parts = [np.memmap(self._file, ROW, "r", shape=(self._on_disk,))] if self._on_disk else []
        if len(self._chunks) > 1:
            self._chunks = [np.concatenate(self._chunks)]
        parts += self._chunks
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, ROW), *parts])

    def column(self, name: str) -> np.ndarray:
        """One of the fields of all events, but args; texts as an array of objects."""
        if name == "duration_s":
            return self.column("end_s") - self.column("start_s")
        if name not in COLUMNS[:-1]:
            raise KeyError(f"Trace: no column {name!r}: there are {', '.join(COLUMNS[:-1])}, duration_s")
        values = np.asarray(self.table[name])
        return np.array(self._names.texts, object)[values] if name in NAMED else values

    def __len__(self) -> int:
        return self._on_disk + sum(map(len, self._chunks)) + len(self._tail)

    def __iter__(self) -> Iterator[Event]:
        table = self.table
        for start in range(0, len(table), CHUNK):
            for row in table[start:start + CHUNK].tolist():
                yield self._event(row)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice | np.ndarray | list):
            return self._of_rows(self.table[key])
        n = len(self)
        if not -n <= key < n:
            raise IndexError(f"Trace: no event {key} of {n}")
        return self._event(self.table[key].tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trace) and len(self) == len(other) and all(a == b for a, b in zip(self, other))

    __hash__ = None  # type: ignore[assignment]  # it grows

    def __repr__(self) -> str:
        return f"<Trace: {len(self)} events on {len(self.lines())} streams>"

    def _event(self, row: tuple) -> Event:
        rank, stream, name, kind, start, end, flops, nbytes, args = row
        texts = self._names.texts
        return Event(rank, texts[stream], texts[name], texts[kind], start, end, None if flops < 0 else flops,
                     None if nbytes < 0 else nbytes, self._args.get(args))

    def _of_rows(self, rows: np.ndarray) -> Trace:
        """Some rows of this trace; texts and args are shared, which only grow."""
        part = Trace(spool_rows=self.spool_rows)
        part._names, part._args, part._chunks = self._names, self._args, [np.array(rows)]
        return part

    # -- choosing
    def where(self, *, rank: int | None = None, stream: str | None = None, name: str | None = None,
              kind: str | None = None, start_s: float = -math.inf, end_s: float = math.inf) -> Trace:
        """The events of this rank, stream, name and kind that touch the time from `start_s` to `end_s`."""
        table = self.table
        keep = (table["end_s"] >= start_s) & (table["start_s"] <= end_s)
        keep &= True if rank is None else table["rank"] == rank
        for column, text in (("stream", stream), ("name", name), ("kind", kind)):
            keep &= True if text is None else table[column] == self._names.get(text, -1)
        return self[np.asarray(keep)]

    def sorted(self, by: str = "start_s", reverse: bool = False) -> Trace:
        """By a column, equal ones as they were; "start_s": what encloses comes before what it encloses."""
        key = self.column(by)
        if by in NAMED:
            key = np.unique(key.astype(str), return_inverse=True)[1]
        order = np.lexsort((-self.table["end_s"], key) if by == "start_s" else (key,))
        return self[order[::-1] if reverse else order]

    def lines(self) -> list[tuple[int, str]]:
        """Each (rank, stream) that has events: by rank, then in the order of their first event."""
        table = self.table
        pairs, first = np.unique(table[["rank", "stream"]], return_index=True)
        found = sorted(zip(pairs["rank"].tolist(), first.tolist(), pairs["stream"].tolist()))
        return [(rank, self._names.texts[stream]) for rank, _, stream in found]

    def check(self) -> Trace:
        """This trace; ValueError unless times are finite, none ends before it starts, and the events of a stream lie
        one in the other or one after the other."""
        for at in np.flatnonzero(~(np.isfinite(self.table["end_s"]) & (self.table["end_s"] >= self.table["start_s"])
                                   & np.isfinite(self.table["start_s"])))[:1].tolist():
            raise ValueError(f"Trace: event {at} ends before it starts, or at no time: {self[at]}")
        for rank, stream in self.lines():
            part = self.where(rank=rank, stream=stream).sorted()
            open_until = [math.inf]
            for k, (start, end) in enumerate(zip(part.table["start_s"].tolist(), part.table["end_s"].tolist())):
                while open_until[-1] <= start and len(open_until) > 1:
                    open_until.pop()
                if end > open_until[-1]:
                    raise ValueError(f"Trace: rank {rank}, stream {stream!r}: {part[k]} ends at {end} s, after what it "
                                     f"began in, {open_until[-1]} s. Put what overlaps on a stream of its own")
                open_until.append(end)
        return self

    # -- as data
    def to_data(self) -> dict[str, Any]:
        """Plain data for JSON, of which `from_data` makes the trace again."""
        table = self.table
        lines: dict[int, int] = {}
        numbers = [lines.setdefault(at, len(lines)) if at >= 0 else -1 for at in table["args"].tolist()]
        return {"names": list(self._names.texts), "args_seen": [self._args.get(at) for at in lines],
                **{name: table[name].tolist() for name in COLUMNS[:-1]}, "args": numbers}

    @classmethod
    def from_data(cls, data: Mapping[str, Any], *, spool_rows: int = SPOOL_ROWS) -> Trace:
        try:
            trace = cls(spool_rows=spool_rows)
            trace._names = Names(data["names"])
            places = np.array([*map(trace._args.put, data["args_seen"]), -1])
            rows = np.empty(len(data["rank"]), ROW)
            for name in COLUMNS[:-1]:
                rows[name] = data[name]
            rows["args"] = places[np.array(data["args"], int)]
            if any(len(rows) and not 0 <= rows[n].min() <= rows[n].max() < len(trace._names.texts) for n in NAMED):
                raise ValueError("a number that is no text's")
        except (KeyError, ValueError, TypeError, IndexError) as e:
            raise ValueError(f"Trace: this is not what `to_data` made: {type(e).__name__}: {e}") from e
        trace._chunks = [rows]
        return trace

    def __reduce__(self) -> tuple:
        return Trace.from_data, (self.to_data(),)

    # -- as Chrome's trace format
    def chrome_lines(self, more: More | None = None) -> Iterator[str]:
        """The file line by line: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.

        Complete events ("X"); pid is the rank, tid numbers the streams, whose names stand in metadata events ("M").
        Times are microseconds, written to the last digit, so that `from_chrome` gives the same floats.  `more` gives
        further lines, such as arrows, of {(rank, stream): tid}."""
        tids = {line: k + 1 for k, line in enumerate(self.lines())}
        yield '{"displayTimeUnit": "ms", "traceEvents": ['
        names = [_named("process_name", rank, 0, f"rank {rank}") for rank in dict.fromkeys(r for r, _ in tids)]
        names += [_named("thread_name", rank, tid, text) for (rank, text), tid in tids.items()]
        comma = ""
        own = (_complete(event, tids[event.rank, event.stream]) for event in self)
        for line in chain(names, own, more(tids) if more else ()):
            yield comma + line
            comma = ","
        yield "]}"

    def to_chrome(self) -> str:
        """The file as one text."""
        return "\n".join(self.chrome_lines())

    @classmethod
    def from_chrome(cls, text: str, *, spool_rows: int = SPOOL_ROWS) -> Trace:
        """The complete events of a file in Chrome's format, from whomever; other phases are passed over."""
        try:
            told = json.loads(text, parse_float=Decimal)
            rows = told["traceEvents"] if isinstance(told, dict) else told
            streams = {(r["pid"], r["tid"]): r["args"]["name"] for r in rows
                       if r.get("ph") == "M" and r["name"] == "thread_name"}
            trace = cls(spool_rows=spool_rows)
            for row in (r for r in rows if r.get("ph") == "X"):
                args = {k: _plain(v) for k, v in (row.get("args") or {}).items()}
                start = Decimal(row["ts"])
                end = EXACT.add(start, Decimal(row.get("dur", 0)))
                flops, nbytes = (args.pop(name, None) for name in COUNTED)
                stream = streams.get((row["pid"], row["tid"]), str(row["tid"]))
                trace.add(int(row["pid"]), stream, row["name"], row.get("cat", ""), float(start.scaleb(-6, EXACT)),
                          float(end.scaleb(-6, EXACT)), flops, nbytes, args)
            return trace
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as e:
            raise ValueError(f"Trace: not Chrome's trace format: {type(e).__name__}: {e}") from e

    # -- as a file
    def save(self, path: str | os.PathLike, more: More | None = None) -> None:
        """Write it whole or not at all: Chrome's format where the name ends in .json (`more` as for `chrome_lines`),
        columns where it ends in .npz."""
        kind, place = os.path.splitext(path)[1], os.path.realpath(path)
        if kind not in (".json", ".npz"):
            raise ValueError(f"Trace: do not know how to write {kind!r}; use .json (Chrome's format) or .npz")
        beside = f"{place}.{os.getpid()}-{time.monotonic_ns()}.tmp"
        try:
            with open(beside, "xb") as file:
                if kind == ".json":
                    file.writelines(f"{line}\n".encode() for line in self.chrome_lines(more))
                else:
                    data = self.to_data()
                    texts = {name: np.array(json.dumps(data.pop(name))) for name in ("names", "args_seen")}
                    np.savez(file, **texts, **{k: np.array(v, ROW[k]) for k, v in data.items()})
            os.replace(beside, place)
        except BaseException:
            with suppress(OSError):
                os.unlink(beside)
            raise

    @classmethod
    def load(cls, path: str | os.PathLike, *, spool_rows: int = SPOOL_ROWS) -> Trace:
        """What `save` wrote, or a file in Chrome's format from elsewhere.  ValueError if it is neither."""
        with open(path, "rb") as file:
            zipped = file.read(2) == b"PK"
            file.seek(0)
            if not zipped:
                return cls.from_chrome(file.read().decode(), spool_rows=spool_rows)
            try:
                with np.load(file, allow_pickle=False) as told:
                    data = {k: json.loads(str(told[k])) if k in ("names", "args_seen") else told[k] for k in told.files}
            except Exception as e:                            # zipfile, zlib and NumPy each have their own
                raise ValueError(f"Trace: {path} is cut off or changed: {e}") from e
        return cls.from_data(data, spool_rows=spool_rows)


def _named(what: str, rank: int, tid: int, name: str) -> str:
    return json.dumps({"name": what, "ph": "M", "pid": rank, "tid": tid, "args": {"name": name}})


def _complete(e: Event, tid: int) -> str:
    """An event as Chrome writes it; json has no numbers longer than a float, so times are put in as text."""
    start, end = Decimal(repr(e.start_s)), Decimal(repr(e.end_s))
    ts, dur = (format(t.scaleb(6, EXACT), "f") for t in (start, EXACT.subtract(end, start)))
    args = {name: getattr(e, name) for name in COUNTED if getattr(e, name) is not None} | dict(e.args)
    head = json.dumps({"name": e.name, "cat": e.kind, "ph": "X", "pid": e.rank, "tid": tid})
    return f'{head[:-1]}, "ts": {ts}, "dur": {dur}, "args": {json.dumps(args)}}}'


def _plain(value: Any) -> Any:
    """Numbers that were read as Decimal as floats again."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return list(map(_plain, value))
    return float(value) if isinstance(value, Decimal) else value


__all__ = ["Event", "Trace"]
