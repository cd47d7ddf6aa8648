"""Pictures of a run as data, text and SVG, and its file for Perfetto."""
from __future__ import annotations

import json
import os
import random
from fractions import Fraction
from xml.etree import ElementTree

import numpy as np
import pytest

from minigrad.events import Trace
from simulator.cluster import cluster
from simulator.looking.timeline import Bar, Curve, thinned, timeline
from simulator.network import Network
from simulator.shapes import switch
from simulator.spawn import Result, spawn
from simulator.viz import ledger as ledger_view, messages, timeline as timeline_view
from tests.simulator.test_clocks import machine
from tests.simulator.test_looking import generated


@pytest.fixture(scope="module", params=range(5))
def result(request) -> Result:
    return generated(request.param)


def busy(comm, steps: int) -> None:
    """Many short pieces of work, and a bucket sent beside each."""
    dice = random.Random(comm.rank)
    handles = []
    for _ in range(steps):
        for name in ("forward", "backward"):
            comm.compute(dice.uniform(1e-6, 5e-6), name=name)
        handles.append(comm.all_reduce(np.ones(50), async_op=True))
    for handle in handles:
        handle.wait()
    if comm.rank < 2:
        comm.isend(np.ones(10**6), 1) if comm.rank == 0 else comm.recv(0)


@pytest.fixture(scope="module")
def large() -> Result:
    return spawn(busy, 4, 700)


# ---- the timeline --------------------------------------------------------------------------------
def test_the_rows_of_a_timeline_are_the_ledger(result):
    told, book = result.timeline(), result.ledger()
    for rank in range(result.world_size):
        bars = next(row.bars for row in told.rows if (row.rank, row.stream) == (rank, "program"))
        ends = [0.0, *(bar.end_s for bar in bars)]
        assert [bar.start_s for bar in bars] == ends[:-1] and ends[-1] == result.times_s[rank]
        for kind in ("compute", "exposed", "stall", "bubble"):
            total = sum((Fraction(b.end_s) - Fraction(b.start_s) for b in bars if b.kind == kind), Fraction())
            assert total == getattr(book[rank], kind) - (book[rank].ended if kind == "bubble" else 0)


def test_a_part_of_the_timeline(result):
    whole, last = result.timeline(), result.world_size - 1
    a, b = 0.3 * result.time_s, 0.6 * result.time_s
    part = result.timeline(ranks=[last], start_s=a, end_s=b)
    assert {row.rank for row in part.rows} == {last}
    for row in part.rows:
        assert all(a <= bar.start_s <= bar.end_s <= b for bar in row.bars)
        same = next(r for r in whole.rows if (r.rank, r.stream) == (last, row.stream))
        assert len(row.bars) == sum(bar.end_s >= a and bar.start_s <= b for bar in same.bars)
    assert "<svg" in part._repr_html_() and str(part)
    assert timeline(result.clocks).rows == whole.rows


def test_thinning_keeps_what_is_long_and_the_whole_extent():
    dice = random.Random(1)
    for _ in range(200):
        at, bars = 0.0, []
        for _ in range(dice.randrange(40)):
            at += dice.choice([0.0, 0.0, 0.3, 2.5])
            bars.append(Bar(dice.choice("ab"), at, at + dice.choice([0.05, 0.2, 0.9, 1.0, 3.0]), "x"))
            at = bars[-1].end_s
        found = thinned(bars, 1.0)
        assert [b for b in bars if b.end_s - b.start_s >= 1.0] == [b for b in found if b in bars and
                                                                    b.end_s - b.start_s >= 1.0]
        assert all(p.end_s <= q.start_s for p, q in zip(found, found[1:]))
        assert not bars or (found[0].start_s, found[-1].end_s) == (bars[0].start_s, bars[-1].end_s)
        covered = sum(b.end_s - b.start_s for b in bars)
        assert covered - 1e-9 <= sum(b.end_s - b.start_s for b in found)
        assert len(found) <= 2 * at + 3
    three = [Bar("a", 0.0, 0.1, "x"), Bar("b", 0.1, 0.4, "y"), Bar("a", 0.4, 0.5, "x")]
    (one,) = thinned(three, 1.0)
    assert one[:4] == ("b", 0.0, 0.5, "y") and one.tip == "3 events, most of the time b: y"


def test_thousands_of_events_make_a_small_picture(large):
    assert len(large.trace) > 20_000
    told = large.timeline()
    svg = told._repr_html_()
    assert len(svg) < 1_500_000 and svg.count("<rect") < 6 * 4 * 860
    data = json.loads(json.dumps(timeline_view.data(told, 200)))
    assert sum(len(row["bars"]) for row in data["rows"]) <= len(data["rows"]) * 2 * 201
    assert len(str(told).splitlines()) < 16 and max(map(len, str(told).splitlines())) <= 112
    assert len(str(large.why_idle(0)).splitlines()) < 90 and len(str(large.critical_path()).splitlines()) < 24


def test_every_picture_is_one_svg_and_every_text_fits(result):
    for told in (result.timeline(), result.ledger(), result.critical_path(), result.matrix()):
        svg = told._repr_html_()
        assert ElementTree.fromstring(svg).tag.endswith("svg") and "<script" not in svg and svg.count("http") == 1
        assert svg == told._repr_html_() and str(told) == str(told)
        assert "nan" not in svg and "inf" not in svg.replace("InfiniBand", "")
    text = str(result.timeline())
    assert text.splitlines()[-1].strip() and "critical path" in result.timeline()._repr_html_()
    rows = [line for line in text.splitlines() if "|" in line]
    assert len({len(row) for row in rows}) == 1 and len(rows) >= result.world_size


def test_text_shows_what_took_most_of_a_column():
    def program(comm):
        comm.compute([4.0, 1.0][comm.rank], name="work")
        comm.barrier()
        comm.compute([1.0, 2.0][comm.rank], name="tail")
    lines = timeline_view.text(spawn(program, 2, cluster=machine(switch, 2)).timeline(), width=11 + 3 + 60).splitlines()
    assert lines[1].startswith("     rank 0 |" + "W" * 40 + "T" * 10) and lines[1].endswith(" " * 9 + "|")
    assert lines[3].startswith("     rank 1 |" + "W" * 10 + "!" * 30 + "T" * 20)
    assert "! stall" in lines[-1] and "W work" in lines[-1] and "= " not in lines[-1]


def test_memory_of_a_column_is_the_most_there():
    from simulator.looking.history import History
    result = spawn(lambda comm: comm.compute(10.0), 1)
    curve = Curve(0, [1.0, 1.1, 4.0, 8.0], [10, 3, 5, 0], [12, 10, 9, 5])
    told = timeline(History(result.clocks), [curve])
    assert timeline_view.data(told, 10)["memory"] == [
        {"rank": 0, "bytes": [0, 12, 3, 3, 9, 5, 5, 5, 5, 0], "peak_bytes": 12}]
    assert "█▇▂▂" in str(told) and "at most 12 B" in str(told) and "memory, peak 12 B" in told._repr_html_()


# ---- ledger, matrix ------------------------------------------------------------------------------
def test_the_ledger_as_data_and_text(result):
    book = result.ledger()
    told = json.loads(json.dumps(ledger_view.data(book)))
    for row in told["rows"]:
        assert sum(row[f"{part}_s"] for part in ("compute", "exposed", "bubble", "stall")) == pytest.approx(
            told["time_s"], rel=1e-12)
    assert sum(told["shares"][part] for part in ("compute", "exposed", "bubble", "stall")) == pytest.approx(1.0)
    lines = str(book).splitlines()
    assert len(lines) == 1 + result.world_size + (result.world_size > 1) and "hidden" in lines[0]


def test_many_ranks_are_capped():
    many = spawn(lambda comm: comm.barrier(), cluster=cluster("5 x 8 x A100"))
    assert "… 8 more" in str(many.ledger()) and "… and 8 more ranks" in many.ledger()._repr_html_()
    assert "… and 24 more ranks" in str(many.timeline()) and "… and 24 more ranks" in many.timeline()._repr_html_()
    assert str(many.ledger()).splitlines()[-1].startswith("all 40")


def test_the_links_that_messages_waited_for_are_told():
    def program(comm):
        if comm.rank < 2:
            comm.isend(np.ones(1000), 2)
        else:
            comm.recv(0), comm.recv(1)
    matrix = spawn(program, 3, cluster=machine(switch, 3)).matrix()
    first = matrix.links[0]
    assert (first.nbytes, first.messages, first.dst) == (16_000, 2, 2) and first.waited_s == pytest.approx(8e-6)
    assert "in 2 messages" in messages.text(matrix) and "messages waited 8 us for it" in messages.text(matrix)
    data = json.loads(json.dumps(messages.data(matrix, 5)))
    assert len(data["busy"]) == len(data["links"]) == 3 and len(data["busy"][0]) == 5


# ---- a file for Perfetto ---------------------------------------------------------------------------
def test_the_file_is_a_chrome_trace_whose_arrows_end_in_events(result, tmp_path):
    """Trace Event Format: X has ts and dur, M names, s and f come in pairs within slices of their threads."""
    result.save_trace(tmp_path / "run.json")
    told = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert set(told) == {"displayTimeUnit", "traceEvents"}
    events = told["traceEvents"]
    slices, named = {}, set()
    for e in events:
        assert e["ph"] in "XMsfC" and isinstance(e["pid"], int) and isinstance(e["name"], str)
        if e["ph"] == "X":
            assert e["ts"] >= 0 and e["dur"] >= 0 and isinstance(e["args"], dict) and isinstance(e["cat"], str)
            start, dur = e["ts"] * 1000, e["dur"] * 1000       # whole nanoseconds
            assert start == pytest.approx(round(start), rel=1e-12) and dur == pytest.approx(round(dur), rel=1e-9)
            slices.setdefault((e["pid"], e["tid"]), []).append((round(start), round(start) + round(dur), e["cat"]))
        elif e["ph"] == "M":
            assert e["args"].get("name") or e["name"] == "process_sort_index" and e["args"] == {"sort_index": e["pid"]}
            named.add((e["pid"], e["tid"]))
    assert set(slices) <= named and {pid for pid, _ in slices} == set(range(result.world_size))
    for each in slices.values():                     # what overlaps without lying within is dropped by Perfetto
        each.sort()
        assert all(b[0] >= a[1] for a, b in zip(each, each[1:]))
    arrows = [e for e in events if e["ph"] in "sf"]
    starts, ends = ({e["id"]: e for e in arrows if e["ph"] == phase} for phase in "sf")
    assert set(starts) == set(ends) and len(arrows) == 2 * len(result.trace.where(kind="send"))
    for number, start in starts.items():
        end = ends[number]
        assert start["ts"] <= end["ts"] and start["pid"] != end["pid"] and end["bp"] == "e"
        assert start["cat"] == end["cat"] and start["name"] == end["name"]
        for e, kind in ((start, "send"), (end, "recv")):
            at = round(e["ts"] * 1000)
            assert any(a <= at <= b and cat == kind for a, b, cat in slices[e["pid"], e["tid"]])


def test_the_file_read_again_has_the_events_of_the_run_and_the_arrivals(result, tmp_path):
    result.save_trace(tmp_path / "run.json")
    again, trace = Trace.load(tmp_path / "run.json").check(), result.trace.check()
    own = again[again.column("kind") != "recv"]
    assert len(own) == len(trace)
    for name in ("rank", "stream", "name", "kind", "flops", "bytes"):
        assert list(own.column(name)) == list(trace.column(name))
    for name in ("start_s", "end_s"):
        behind = trace.column(name) - own.column(name)
        assert behind.min(initial=0) > -1e-15 and behind.max(initial=0) < 1.001e-9
    arrived = sorted(again.where(kind="recv").column("end_s"))
    assert arrived == pytest.approx(sorted(e.args["arrives_s"] for e in trace.where(kind="send")), rel=0, abs=1.001e-9)
    result.save_trace(tmp_path / "run.npz")
    assert Trace.load(tmp_path / "run.npz") == result.trace


def test_memory_is_a_counter_and_a_file_is_whole_or_not_there(tmp_path, monkeypatch):
    pytest.importorskip("numba")

    def program(comm):
        x = np.ones(10_000)
        comm.compute(1.0)
        return comm.all_reduce(x.sum())
    result = spawn(program, 2, memory=True)
    place = tmp_path / "run.json"
    result.save_trace(place)
    counters = [e for e in json.loads(place.read_text(encoding="utf-8"))["traceEvents"] if e["ph"] == "C"]
    assert {e["pid"] for e in counters} == {0, 1} and max(e["args"]["bytes"] for e in counters) >= 80_000
    before = place.read_text(encoding="utf-8")

    def fails(*_):
        raise OSError("disk full")
    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="disk full"):
        result.save_trace(place)
    assert place.read_text(encoding="utf-8") == before and [p.name for p in tmp_path.iterdir()] == ["run.json"]
    with pytest.raises(ValueError, match="do not know how to write"):
        result.save_trace(tmp_path / "run.txt")


def test_the_path_and_the_ledger_of_what_if(result):
    """All of it works on clocks: the same program on links of no latency is not later."""
    from simulator.looking.ledger import ledger

    clocks = result.on(result.cluster)
    assert ledger(clocks).time_s == result.time_s == clocks.end_s()
    assert Network(result.cluster).cluster is result.cluster
