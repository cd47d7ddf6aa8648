"""A trace keeps what was put in, through every form; what overlaps is refused; many rows go to disk."""
import json
import math
import pickle
import sys

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import minigrad as mg
from minigrad.events import Event, Trace
from minigrad.viz import timeline

module = sys.modules[Trace.__module__]                       # `mg.trace` is the trace of a matrix
TEXT = st.text(max_size=6)
FLOAT = st.floats(allow_nan=False, allow_infinity=False)
COUNT = st.none() | st.integers(0, 2**62)
PLAIN = st.none() | st.booleans() | st.integers(-2**40, 2**40) | FLOAT | TEXT | st.lists(st.integers(0, 9), max_size=2)
ARGS = st.dictionaries(TEXT.filter(lambda k: k not in ("flops", "bytes")), PLAIN, max_size=2)
EVENT = st.builds(lambda a, b, *rest: Event(*rest[:4], min(a, b), max(a, b), *rest[4:]), FLOAT, FLOAT,
                  st.integers(0, 3), TEXT, TEXT, TEXT, COUNT, COUNT, ARGS)
EVENTS = st.lists(EVENT, max_size=8)


def small():
    """Two ranks: rank 0 has an outer event with two inside, and another stream."""
    return Trace([
        Event(0, "main", "backward", "backward", 1.0, 5.0),
        Event(0, "main", "Matmul", "pull", 1.5, 3.0, 24, 96, {"module": "net.0"}),
        Event(0, "main", "Relu", "pull", 3.0, 4.0, 6, 48),
        Event(0, "load", "DataLoader", "load", 0.5, 2.0),
        Event(1, "main", "Matmul", "op", 0.0, 1.0, 12, 48),
    ])


# ---- round trips: every form gives the same events back ------------------------------------------
@settings(max_examples=60, deadline=None)
@given(EVENTS)
def test_chrome_data_and_pickle_round_trips_are_exact(events):
    trace = Trace(events)
    assert list(trace) == events and len(trace) == len(events)
    assert list(Trace.from_chrome(trace.to_chrome())) == events
    assert list(Trace.from_data(json.loads(json.dumps(trace.to_data())))) == events
    assert list(pickle.loads(pickle.dumps(trace))) == events


@pytest.mark.parametrize("suffix", ["json", "npz"])
def test_files_round_trip_and_leave_nothing_beside(tmp_path, suffix):
    path = tmp_path / f"trace.{suffix}"
    small().save(path)
    small().save(path)
    assert Trace.load(path) == small() and [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_file_that_is_none_is_told(tmp_path):
    for name, content in (("a.json", b'{"rows": []}'), ("b.npz", b"PK\x03\x04 cut off"), ("c.json", b"\xff\xfe")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError):
            Trace.load(tmp_path / name)
    with pytest.raises(ValueError, match=r"\.txt"):
        small().save(tmp_path / "trace.txt")
    with pytest.raises(ValueError, match="to_data"):
        Trace.from_data({**small().to_data(), "name": [0, 1, 2, 3, 99]})
    with pytest.raises(ValueError, match="to_data"):
        Trace.from_data({"names": []})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "b.npz", "c.json"]


# ---- Chrome's rules ------------------------------------------------------------------------------
def check_chrome(text):
    """The rules of the format for what we write: JSON object form, phases X and M, numbers where numbers belong, and
    complete events of a thread one in the other or one after the other."""
    told = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert set(told) == {"traceEvents", "displayTimeUnit"} and told["displayTimeUnit"] in ("ms", "ns")
    threads = {}
    for row in told["traceEvents"]:
        assert isinstance(row["name"], str) and type(row["pid"]) is int and type(row["tid"]) is int
        assert isinstance(row["args"], dict)
        if row["ph"] == "M":
            assert row["name"] in ("process_name", "thread_name") and isinstance(row["args"]["name"], str)
        else:
            assert row["ph"] == "X" and isinstance(row["cat"], str) and row["dur"] >= 0
            threads.setdefault((row["pid"], row["tid"]), []).append((row["ts"], -row["dur"]))
    for spans in threads.values():
        ends = []
        for start, minus in sorted(spans):
            while ends and ends[-1] <= start:
                ends.pop()
            assert not ends or start - minus <= ends[-1]
            ends.append(start - minus)
    return told["traceEvents"]


def test_chrome_json_keeps_the_rules():
    rows = check_chrome(small().to_chrome())
    matmul = next(row for row in rows if row["name"] == "Matmul")
    assert matmul["ts"] == 1.5e6 and matmul["dur"] == 1.5e6 and matmul["pid"] == 0 and matmul["cat"] == "pull"
    assert matmul["args"] == {"flops": 24, "bytes": 96, "module": "net.0"}
    names = {(row["pid"], row["tid"]): row["args"]["name"] for row in rows if row["name"] == "thread_name"}
    assert sorted(names.values()) == ["load", "main", "main"] and names[0, matmul["tid"]] == "main"
    assert check_chrome(Trace().to_chrome()) == []


def test_a_foreign_file_is_read():
    told = [{"ph": "X", "pid": 7, "tid": 3, "name": "f", "ts": 10, "dur": 2.5}, {"ph": "C", "name": "counter"}]
    (event,) = Trace.from_chrome(json.dumps(told))
    assert event == Event(7, "3", "f", "", 1e-5, 1.25e-5)
    for bad in ('{"traceEvents": [{"ph": "X"}]}', "[1]", '"text"', "{", '[{"ph": "X", "pid": "a", "tid": 1, "ts": 1}]'):
        with pytest.raises(ValueError, match="Chrome"):
            Trace.from_chrome(bad)


# ---- checks --------------------------------------------------------------------------------------
@pytest.mark.parametrize("start, end", [(2.0, 1.0), (0.0, math.inf), (math.nan, 1.0), (0.0, math.nan)])
def test_times_that_are_none_are_refused(start, end):
    trace = Trace([*small(), Event(0, "x", "bad", "op", start, end)])
    with pytest.raises(ValueError, match="event 5.*bad"):
        trace.check()


def test_what_overlaps_on_a_stream_is_refused():
    assert small().check() == small()
    bad = Event(0, "main", "late", "op", 4.5, 5.5)
    with pytest.raises(ValueError, match="rank 0, stream 'main'.*late"):
        Trace([*small(), bad]).check()
    Trace([*small(), Event(0, "other", "late", "op", 4.5, 5.5)]).check()
    same = [Event(0, "s", "a", "op", 0.0, 1.0), Event(0, "s", "b", "op", 0.0, 1.0), Event(0, "s", "c", "op", 1.0, 1.0)]
    Trace(same[::-1]).check()


def test_wrong_fields_are_refused_when_they_come_and_change_nothing():
    trace = small()
    for args in ((0, None, "n", "k", 0, 1), (0, "s", 3, "k", 0, 1), ("0", "s", "n", "k", 0, 1),
                 (0, "s", "n", "k", "a", 1), (0, "s", "n", "k", 0, 1, 2.5)):
        with pytest.raises((TypeError, ValueError)):
            trace.add(*args)
    with pytest.raises(ValueError, match="flops"):
        trace.add(0, "s", "n", "k", 0, 1, args={"flops": 3})
    with pytest.raises(TypeError):
        trace.add(0, "s", "n", "k", 0, 1, args={"x": object()})
    assert trace == small()


# ---- choosing ------------------------------------------------------------------------------------
def test_choosing_is_that_of_lists():
    trace, events = small(), list(small())
    assert list(trace.where(rank=0, stream="main")) == events[:3]
    assert list(trace.where(name="Matmul")) == [events[1], events[4]] and not len(trace.where(name="nobody"))
    assert list(trace.where(kind="pull", start_s=3.5)) == [events[2]]
    assert list(trace[1:3]) == events[1:3] and trace[-1] == events[-1]
    assert list(trace[trace.column("flops") > 6]) == [events[1], events[4]]
    assert list(trace.sorted()) == sorted(events, key=lambda e: (e.start_s, -e.end_s))
    outer, inner = Event(0, "s", "outer", "op", 0.0, 2.0), Event(0, "s", "inner", "op", 0.0, 1.0)
    assert list(Trace([inner, outer]).sorted()) == [outer, inner]
    assert list(trace.sorted("name")) == sorted(events, key=lambda e: e.name)
    assert list(trace.sorted("duration_s", reverse=True))[0] == events[0]
    assert trace.lines() == [(0, "main"), (0, "load"), (1, "main")]
    assert trace.column("duration_s").tolist() == [e.duration_s for e in events]
    assert trace.column("name").tolist() == [e.name for e in events]
    for wrong, error in ((99, IndexError), (-6, IndexError)):
        with pytest.raises(error):
            trace[wrong]
    with pytest.raises(KeyError, match="no column"):
        trace.column("rows")


# ---- many rows -----------------------------------------------------------------------------------
def many(n, spool_rows):
    trace = Trace(spool_rows=spool_rows)
    for k in range(n):
        trace.add(k % 3, "s", f"n{k % 5}", "op", k, k + 0.5, k, args={"k": k} if k % 2 else None)
    return trace


def test_past_the_limit_rows_are_on_disk_and_read_as_before(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 16)
    here, there = many(500, 10_000), many(500, 100)
    assert there._on_disk > 400 and not here._on_disk
    assert len(there._chunks) == 0 and len(there._tail) < 16
    assert list(there) == list(here) and there[250] == here[250] and there.where(rank=1) == here.where(rank=1)
    assert Trace.from_chrome(there.to_chrome(), spool_rows=50) == here
    there.add(0, "new", "more", "op", 0, 1)
    assert there[-1].name == "more" and len(there) == 501


def test_a_full_disk_loses_nothing(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 16)
    trace = many(200, 100)
    assert trace._on_disk

    def full(_):
        raise OSError(28, "No space left on device")

    class Full:
        seek, fileno, flush = trace._file.seek, trace._file.fileno, trace._file.flush
        write = staticmethod(full)
        read, tell, name = trace._file.read, trace._file.tell, trace._file.name

    real, trace._file = trace._file, Full()
    with pytest.warns(RuntimeWarning, match="No space left"):
        for k in range(200, 300):
            trace.add(k % 3, "s", f"n{k % 5}", "op", k, k + 0.5, k, args={"k": k} if k % 2 else None)
    trace._file = real
    assert trace._chunks and list(trace) == list(many(300, 10_000))


def test_arguments_go_to_disk_too():
    trace = Trace(spool_rows=4)                               # 4 rows of 56 bytes of arguments in memory
    for k in range(40):
        trace.add(0, "s", "n", "op", k, k, args={"text": "x" * 20, "k": k})
    assert trace._args.file._rolled and [e.args["k"] for e in trace] == list(range(40))
    with pytest.raises(ValueError, match="spool_rows"):
        Trace(spool_rows=0)


# ---- the timeline --------------------------------------------------------------------------------
def test_the_timeline_shows_what_is_innermost():
    told = timeline.data(small(), columns=10)
    assert told["letters"] == {"backward": "B", "Matmul": "M", "DataLoader": "D", "Relu": "R"}
    cells = {(line["rank"], line["stream"]): line["cells"] for line in told["lines"]}
    assert cells == {(0, "main"): "  BMMMRRBB", (0, "load"): " DDD      ", (1, "main"): "MM        "}
    text = timeline.text(small(), 30)
    assert "0 main |" in text and "B backward" in text and all(len(row) <= 40 for row in text.split("\n"))
    assert timeline.text(Trace()) == "no events"
    instant = timeline.data(Trace([Event(0, "s", "now", "op", 1.0, 1.0)]), columns=4)
    assert instant["lines"][0]["cells"] == "N   "


def test_names_past_the_letters_are_others():
    trace = Trace(Event(0, "s", f"name {k}", "op", k, k + 1.0) for k in range(80))
    told = timeline.data(trace, 80)
    assert len(told["letters"]) == len(set(told["letters"].values())) == 62
    assert told["lines"][0]["cells"].count("·") == 18 and "· others" in timeline.text(trace)


def test_the_trace_of_a_matrix_keeps_its_name():
    assert mg.trace(mg.eye(3)).item() == 3 and mg.trace.__name__ == "trace"


def test_columns_have_the_dtypes_that_are_written_down():
    assert small().table.dtype == module.ROW and isinstance(small().column("flops"), np.ndarray)


@pytest.mark.parametrize("wrong", [{"rank": 1 << 40}, {"flops": 1 << 63}, {"flops": -5}, {"bytes": 1 << 70}])
def test_a_number_without_room_is_refused_and_nothing_else_is_lost(wrong):
    trace = Trace([Event(0, "main", "a", "op", 0.0, 1.0)])
    row = {"rank": 0, "stream": "main", "name": "b", "kind": "op", "start_s": 1.0, "end_s": 2.0}
    with pytest.raises(ValueError, match="'b' has rank"):
        trace.add(**row | wrong)
    trace.add(**row)
    assert [e.name for e in trace] == ["a", "b"]


@pytest.mark.parametrize("ts", ['"abc"', "1e999999999", "null"])
def test_times_that_are_none_are_told(ts):
    with pytest.raises(ValueError, match="not Chrome's trace format"):
        Trace.from_chrome(f'[{{"ph": "X", "pid": 0, "tid": 0, "name": "a", "ts": {ts}}}]')
