"""The trace as a file for Perfetto and chrome://tracing: arrows from where a message was sent to where it arrived, and
memory as counters.

To the events of the trace come, of each message, one on the stream "from src" of its receiver, and a flow ("s", "f")
that binds the two (Trace Event Format, "Flow Events").  Perfetto counts whole nanoseconds and drops what then overlaps,
so times are cut to these; the exact ones are in the .npz.  After `timeline.py`.
"""
from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from math import floor

from minigrad.events import Trace
from simulator.clocks import SEND
from simulator.looking.timeline import Curve

RECV = "recv"


def save_trace(trace: Trace, path: str | os.PathLike, memory: Sequence[Curve] = ()) -> None:
    """Write the trace whole or not at all: Chrome's format where the name ends in .json, columns where in .npz."""
    if os.path.splitext(path)[1] != ".json":
        trace.save(path)
        return
    told, flows = with_arrivals(trace)
    told.save(path, more=lambda tids: (*_order(tids), *_arrows(flows, tids), *_counters(memory)))


def with_arrivals(trace: Trace) -> tuple[Trace, list[tuple]]:
    """(the trace in whole nanoseconds, with an event of kind "recv" where each message arrives; both ends of each
    message, as rank, stream, seconds).

    A message holds the receiving end as long as the sending one, and ends there when it has arrived."""
    told, flows = Trace(), []
    free_s: dict[tuple[int, str], float] = defaultdict(float)        # of each stream, whose sums may round otherwise
    for e in trace:
        start_s = _whole(e.start_s)
        told.add(e.rank, e.stream, e.name, e.kind, start_s, _whole(e.end_s), e.flops, e.bytes, e.args)
        if e.kind != SEND:
            continue
        dst, arrives_s = e.args["dst"], e.args["arrives_s"]
        stream = e.stream.replace(f"to {dst}", f"from {e.rank}", 1)
        there_s = _whole(min(arrives_s, max(e.start_s, arrives_s - e.duration_s, free_s[dst, stream])))
        free_s[dst, stream] = arrives_s
        told.add(dst, stream, e.name, RECV, there_s, _whole(arrives_s), None, e.bytes)
        flows.append(((e.rank, e.stream, start_s), (dst, stream, there_s)))
    return told, flows


def _whole(at_s: float) -> float:
    return floor(at_s * 1e9) / 1e9


def _order(tids: Mapping[tuple[int, str], int]) -> Iterator[str]:
    """Ranks from above in their order."""
    for rank in sorted({rank for rank, _ in tids}):
        yield json.dumps({"name": "process_sort_index", "ph": "M", "pid": rank, "tid": 0,
                          "args": {"sort_index": rank}})


def _arrows(flows: Sequence[tuple], tids: Mapping[tuple[int, str], int]) -> Iterator[str]:
    """An arrow begins and ends in the events that are there at its times."""
    for number, ends in enumerate(flows, 1):
        for phase, (rank, stream, at_s) in zip("sf", ends):
            told = {"name": "message", "cat": "flow", "ph": phase, "id": number, "pid": rank, "tid": tids[rank, stream]}
            yield _at(at_s, told | ({"bp": "e"} if phase == "f" else {}))


def _counters(memory: Sequence[Curve]) -> Iterator[str]:
    for curve in memory:
        for at_s, used in zip(curve.times_s, curve.used):
            yield _at(_whole(at_s), {"name": "memory", "ph": "C", "pid": curve.rank, "args": {"bytes": used}})


def _at(at_s: float, told: dict) -> str:
    """With its time in microseconds, to the last digit as those of the events: so it lies within its own."""
    return f'{json.dumps(told)[:-1]}, "ts": {Decimal(repr(at_s)).scaleb(6):f}}}'


__all__ = ["RECV", "save_trace", "with_arrivals"]
