"""Laws of the memory view: every form is made from `data`, which is the tracker's account."""
import json
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

pytest.importorskip("numba")

import minigrad as mg  # noqa: E402
from minigrad.memory.account import CATEGORIES  # noqa: E402
from minigrad.viz.memory import LETTERS, ORDER, data, html, svg, text  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def tracker():
    mg.manual_seed(0)
    model = mg.nn.Sequential(mg.nn.Linear(20, 300), mg.nn.Tanh(), mg.nn.Linear(300, 5))
    optimizer = mg.optim.Adam(model.parameters())
    loader = mg.utils.data.DataLoader(mg.utils.data.TensorDataset(mg.randn(120, 20)), batch_size=40)
    with mg.memory.track(model, optimizer) as t:
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    return t


def test_categories_are_those_of_the_tracker():
    assert set(ORDER) == set(CATEGORIES) and len(set(LETTERS.values())) == len(ORDER)


@pytest.mark.parametrize("points", [3, 4, 17, 100, 10**6])
def test_data_says_what_the_tracker_says_and_keeps_the_peak(tracker, points):
    told = data(tracker, points=points)
    assert json.loads(json.dumps(told)) == told
    events, by_category = tracker.timeline()
    assert len(told["events"]) == min(points, len(events)) and told["events"] == sorted(set(told["events"]))
    assert told["events"][0] == events[0] and told["events"][-1] == events[-1]
    for c in ORDER:
        assert told["bytes"][c] == [by_category[c][e - events[0]] for e in told["events"]]
    assert max(map(sum, zip(*told["bytes"].values()))) == told["peak"]["nbytes"] == tracker.peak
    assert sum(told["peak"]["by_category"].values()) == tracker.peak and told["live"] == tracker.live


def test_fewer_than_three_points_are_refused(tracker):
    with pytest.raises(ValueError, match="at least 3 points, got 2"):
        data(tracker, points=2)


def test_phases_cover_every_event_once(tracker):
    told = data(tracker)
    ends = [(a, b) for _, a, b in told["phases"]]
    assert ends[0][0] == told["events"][0] and ends[-1][1] == told["events"][-1]
    assert all(a < b for a, b in ends) and all(b == a for (_, b), (a, _) in zip(ends, ends[1:]))
    names = [phase for phase, _, _ in told["phases"]]
    assert names.count("backward") == names.count("update") == names.count("load") == len(tracker.steps) == 3
    assert all(a != b for a, b in zip(names, names[1:]))


def test_phases_within_phases():
    marks = [(10, "update", True), (20, "backward", True), (30, "backward", False), (40, "update", False)]
    told = data(SimpleNamespace(
        timeline=lambda: (list(range(51)), {c: [1] * 51 for c in ORDER}), marks=marks, steps=[40], live=6, peak_event=0,
        at_peak=lambda: SimpleNamespace(nbytes=6, phase="forward", by_category={}, by_line={}, by_module={}),
        devices={}, lost=0))
    assert told["phases"] == [["forward", 0, 10], ["update", 10, 20], ["backward", 20, 30], ["update", 30, 40],
                              ["forward", 40, 50]]


def test_the_text_has_the_stack_the_phases_and_the_table(tracker):
    rows = text(tracker, width=50, height=8).split("\n")
    assert rows[0].endswith("v peak") and len([row for row in rows if row[10:11] == "|"]) == 9
    column = rows[0].index("v")
    highest = "".join(row[column] for row in rows[1:9])
    assert len(highest.strip()) == 8                                  # the peak is as high as the picture
    assert [c for c in dict.fromkeys(reversed(highest))] == [
        LETTERS[c] for c in ORDER if LETTERS[c] in highest]           # stacked in the order of the legend
    assert set(rows[9][11:]) == set("fbul")
    assert str(tracker) in "\n".join(rows)


def test_the_svg_is_well_formed_and_says_peak_phases_and_categories(tracker):
    tree = ElementTree.fromstring(svg(data(tracker)))
    words = [e.text or "" for e in tree.iter(f"{SVG}text")]
    assert any(word.startswith("peak ") for word in words) and "forward" in words
    tips = [e.text or "" for e in tree.iter(f"{SVG}title")]
    assert sum(tip.startswith("backward: events") for tip in tips) == 3
    shown = [c for c in ORDER if any(tracker.timeline()[1][c])]
    assert len(list(tree.iter(f"{SVG}polygon"))) == len(shown)
    assert all(any(word.startswith(c) for word in words) for c in shown)
    for e in tree.iter(f"{SVG}polygon"):                              # inside of the picture
        corners = [tuple(map(float, corner.split(","))) for corner in e.get("points").split()]
        assert all(0 <= x <= 760 and 34 <= y <= 274.1 for x, y in corners)
    assert "<script" not in html(tracker) and "<style" not in html(tracker)


def test_a_tracker_shows_itself(tracker):
    assert tracker._repr_html_() == html(tracker) == mg.viz.memory.html(tracker)
    assert "&lt;" in html(tracker) or "<module>" not in str(tracker)


def test_a_block_in_which_nothing_happened():
    with mg.memory.track() as t:
        pass
    assert ElementTree.fromstring(svg(data(t))) is not None and "memory" in text(t)
