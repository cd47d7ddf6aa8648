"""A program's requests for memory, recorded and sent through the policies: nothing overlaps, and the sums are right."""
import json
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import minigrad as mg
from minigrad.memory import BestFit, Buddy, FirstFit, Recording, SizeClasses, compare_policies, record, replay
from minigrad.memory.policies import POLICIES
from minigrad.memory.replays import Span

MB = 1 << 20


@st.composite
def streams(draw, stack=False):
    steps, live, asked = [], [], 0
    for _ in range(draw(st.integers(1, 40))):
        if live and draw(st.booleans()):
            steps.append(f"-{live.pop(-1 if stack else draw(st.integers(0, len(live) - 1)))}")
        else:
            steps.append(draw(st.integers(1, 500)) * (64 if stack else draw(st.sampled_from([1, 5000]))))
            live.append(asked)
            asked += 1
    return Recording.of(*steps)


# ---- closed forms ----------------------------------------------------------------------------------------------------
def test_live_bytes_of_a_stream():
    r = Recording.of(100, 200, "-0", 50, "-1")
    assert r.live.tolist() == [100, 300, 200, 250, 50] and r.peak == 300
    assert Recording.of().peak == 0 and replay(Recording.of(), FirstFit).stats.reserved == 0


def test_where_the_buffers_lie():
    """A hole of 128 and one of 64, then 64: first fit takes the lower, best fit the smaller."""
    r = Recording.of(128, 64, 64, 64, "-0", "-2", 64)
    assert replay(r, FirstFit).blocks[-1] == Span(0, 64, 6, 7)
    assert replay(r, BestFit).blocks[-1] == Span(192, 64, 6, 7)
    assert replay(r, FirstFit).blocks[0] == Span(0, 128, 0, 4)
    assert [b.start for b in replay(r, Buddy).blocks] == [0, 128, 192, 256, 192]
    assert replay(r, SizeClasses).reserved.tolist() == [2 * MB] * 7
    arena = replay(Recording.of(64, 64, "-0", "-1", 256), FirstFit)
    assert arena.segments == [Span(0, 64, 0, 1), Span(0, 128, 1, 4), Span(0, 256, 4, 5)]


def test_a_hole_that_is_too_small_costs_first_fit_what_it_holds():
    """Blocks of n, 1 and n + 1 units, the first gone: Robson's simplest case."""
    r = Recording.of(640, 64, "-0", 704)
    assert replay(r, FirstFit).stats.peak_reserved == 640 + 64 + 704
    assert replay(r, FirstFit).stats.overhead == pytest.approx(1408 / 768 - 1)


# ---- laws ------------------------------------------------------------------------------------------------------------
@settings(deadline=None, max_examples=30, derandomize=True)
@given(streams(stack=True))
def test_a_stack_costs_first_fit_nothing(r):
    assert replay(r, FirstFit).stats.peak_reserved == r.peak == replay(r, FirstFit).stats.peak_requested


@settings(deadline=None, max_examples=30, derandomize=True)
@given(streams())
def test_through_every_policy(r):
    for cls in POLICIES:
        told = replay(r, cls)
        assert told.requested.tolist() == r.live.tolist()
        assert (told.requested <= told.allocated).all() and (told.allocated <= told.reserved).all()
        assert told.stats.peak_reserved == told.reserved.max() >= r.peak
        assert told.at_peak.requested == told.requested[told.peak_event] == r.peak
        nothing_overlaps(told.blocks)
        nothing_overlaps(told.segments)
        for n in range(len(r.events)):
            assert told.reserved[n] == sum(s.size for s in told.segments if s.begin <= n < s.end)
            assert told.allocated[n] == sum(b.size for b in told.blocks if b.begin <= n < b.end)
        for b in told.blocks:
            assert any(s.start <= b.start and b.start + b.size <= s.start + s.size and s.begin <= b.begin < s.end
                       for s in told.segments)
        assert replay(r, cls).blocks == told.blocks


def nothing_overlaps(spans):
    for k, a in enumerate(spans):
        for b in spans[:k]:
            assert (a.end <= b.begin or b.end <= a.begin or a.start + a.size <= b.start or b.start + b.size <= a.start)


def test_a_recording_survives_its_file(tmp_path):
    with record(0) as r:
        (mg.ones(8, 8, requires_grad=True) * 3).sum().backward()
    r.save(tmp_path / "r.json")
    assert Recording.load(tmp_path / "r.json") == r and r.sizes


@pytest.mark.parametrize(("change", "said"), [
    (dict(events=[1, -1, -1]), "event 2 is -1"), (dict(events=[2]), "event 0 is 2"), (dict(owner=[5, 0]), "owner is"),
    (dict(sizes=[4]), "2 buffers are asked for, but 1 sizes"), (dict(sizes=None), "is no recording"),
    (dict(sizes=["a", "b"]), "is no recording"), (dict(sizes=[-4, 4]), "buffers"),
])
def test_a_file_that_is_no_recording_is_refused(tmp_path, change, said):
    told = {"sizes": [4, 4], "events": [1, 2], "owner": [0, 0], "owners": [["a", "b"]]}
    (tmp_path / "r.json").write_text(json.dumps(told | change), encoding="utf-8")
    with pytest.raises(ValueError, match=said):
        Recording.load(tmp_path / "r.json")
    (tmp_path / "r.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="is no recording"):
        Recording.load(tmp_path / "r.json")


# ---- recorded programs -----------------------------------------------------------------------------------------------
def test_each_buffer_has_its_op_and_its_line():
    x = mg.ones(100, 100, requires_grad=True)
    optimizer = mg.optim.SGD([x], lr=1.0, momentum=0.5)
    with record(1000) as r:
        a = np.ones(1000)
        y = (x * 3).exp()                                            # the line of both
        y.sum().backward()
        optimizer.step()
    rows = {what: (n, size, line) for what, line, n, size in r.by_owner()}
    assert rows["outside of the engine"] == (1, 8000, "") and a.any()
    assert rows["Mul"][:2] == rows["Exp"][:2] == (1, 40_000)
    assert "test_memory_replay.py:" in rows["Mul"][2] and rows["Mul"][2] == rows["Exp"][2]
    assert rows["backward of Exp"][2] == rows["Exp"][2]
    assert rows["update by SGD"][0] >= 1
    assert r.peak >= 3 * 40_000 and "the largest" not in str(r) and "Mul at" in str(r)


def test_only_large_buffers_unless_asked():
    with record() as large, record(0) as all_of_them:
        a, b = np.ones(10), np.ones(8192)
        del a
    assert large.sizes == [65536] == [b.nbytes] and 80 in all_of_them.sizes and 65536 in all_of_them.sizes
    assert large.events == [1]


def test_a_resized_array_is_given_back_and_asked_for():
    with record(100) as r:
        a = np.ones(100)
        a.resize(500, refcheck=False)
        del a
    assert r.sizes == [800, 4000] and r.live[-1] == 0 and sorted(r.events) == [-2, -1, 1, 2]


def test_a_log_that_is_too_short_is_said():
    with pytest.warns(RuntimeWarning, match="found no room.*capacity=40"), record(0, capacity=10):
        [np.ones(3) for _ in range(20)]


def test_an_error_inside_ends_the_recording():
    with pytest.raises(ZeroDivisionError), record(0) as r:
        x = mg.ones(100)
        x * (1 / 0)
    assert r.sizes and not mg.tensor(0).requires_grad
    n = len(r.sizes)
    mg.ones(5)
    assert len(r.sizes) == n


def test_recorded_numbers_are_the_programs():
    def program():
        mg.manual_seed(0)
        x = mg.randn(5, 5, requires_grad=True)
        (x @ x).tanh().sum().backward()
        return x.grad.numpy()

    with record(0):
        told = program()
    assert np.array_equal(told, program())


def test_the_live_pool_reports_what_its_replay_tells():
    pytest.importorskip("numba")
    with mg.memory.pool(smallest=4096) as pool, record(4096) as r:
        x = mg.ones(200, 200, requires_grad=True)
        for _ in range(3):
            (x * 2).exp().sum().backward()
            x.grad = None
    told = replay(r, SizeClasses(header=64)).stats
    for name in ("allocs", "hits", "misses", "peak_requested", "peak_allocated", "peak_reserved"):
        assert getattr(told, name) == getattr(pool.stats(), name), name
    del x


# ---- words -----------------------------------------------------------------------------------------------------------
def test_a_limit_that_does_not_suffice_names_op_and_line():
    x = mg.ones(1000, 100)
    with record() as r:
        y = x.exp()
        z = mg.cat([x, x, x])
    with pytest.raises(MemoryError, match=r"(?s)1.20 MB are in no free.*400.00 kB: Exp at .*test_memory_replay.py:"):
        replay(r, FirstFit, limit=MB)
    assert replay(r, FirstFit, limit=2 * MB).stats.peak_reserved == 1_600_000 == y.array.nbytes + z.array.nbytes


def test_policies_side_by_side():
    r = Recording.of(3 * MB, 5 * MB, "-0", 2 * MB, "-1")
    text = str(compare_policies(r))
    rows = text.splitlines()
    assert rows[0] == "3 buffers, at most 8.39 MB live at once"
    assert [row.split()[0] for row in rows[2:-1]] == ["FirstFit", "BestFit", "Buddy", "SizeClasses"]
    assert "16.78 MB" in rows[4] and "20.97 MB" in rows[5] and "0.0%" in rows[2]


def test_what_is_wrong_is_refused():
    used = FirstFit()
    used.alloc(1)
    r = Recording.of(1)
    for policy, limit in ((used, None), (FirstFit(), 5)):
        with pytest.raises(ValueError, match="new one"):
            replay(r, policy, limit)
    for steps in (("-0",), (1, "-1"), (1, "-0", "-0"), (1, "0")):
        with pytest.raises(ValueError, match="gives nothing back"):
            Recording.of(*steps)


# ---- pictures --------------------------------------------------------------------------------------------------------
def test_picture_text_and_data_say_the_same():
    x = mg.ones(300, 100, requires_grad=True)
    with record() as r:
        (x * 3).exp().sum().backward()
    told = replay(r, SizeClasses)
    data = mg.viz.pool.data(told)
    assert json.loads(json.dumps(data)) == data
    assert len(data["buffers"]) == len(r.sizes) and data["left_out"] == 0
    assert sum(nbytes for _, nbytes in data["owners"]) == sum(r.sizes)
    svg, text = mg.viz.pool.svg(told), mg.viz.pool.text(told)
    rectangles = [e for e in ElementTree.fromstring(svg).iter() if e.tag.endswith("rect")]
    alive = sum(begin <= data["peak_event"] < end for _, _, begin, end, *_ in data["buffers"])
    assert len(rectangles) == len(r.sizes) + alive + 2 * len(data["segments"]) + len(data["owners"]) + 1
    for name, nbytes in data["owners"]:
        assert name in text and name.split()[0] in svg and f"{nbytes / 1000:.2f} kB" in text
    assert str(told) in text and "A" in text.split("a character")[1]
    assert told._repr_mimebundle_() == {"text/plain": text, "image/svg+xml": svg} and svg in mg.viz.pool.html(told)


def test_the_picture_of_many_buffers_is_bounded_and_says_so():
    r = Recording.of(MB, *(step for k in range(1, 60) for step in (64 * k, f"-{k}")))
    data = mg.viz.pool.data(replay(r, BestFit), most=10)
    assert len(data["buffers"]) == 10 and data["left_out"] == 50 and data["buffers"][0][1] == MB
    assert mg.viz.pool.svg(replay(Recording.of(), Buddy)) and mg.viz.pool.text(replay(Recording.of(), Buddy))


def test_the_text_shows_who_lies_where():
    told = replay(Recording.of(64, 64, 64, 64, "-1"), FirstFit)
    bars = [line for line in mg.viz.pool.text(told, width=4).splitlines() if line.endswith("|")]
    assert bars == ["       0 B |AAAA|"]
