"""Laws of the picture of a collective: its data is the plan, at the end everybody has what the kind means, nothing is
left out without a word, and the SVG is well formed and needs nothing from outside."""

from xml.etree import ElementTree

import numpy as np
import pytest

from simulator.collectives import ALGORITHMS, Move, Plan, PlanError, bytes_matrix, make_plan
from simulator.viz import collectives as view

table = pytest.mark.parametrize("kind, algorithm", ALGORITHMS, ids=lambda text: text.replace(" ", "-"))


@table
def test_data_is_the_plan(kind, algorithm):
    plan = make_plan(kind, algorithm, 6)
    told = view.data(plan, 1000)
    for moves, messages in zip(plan.rounds, told["rounds"], strict=True):
        again = [Move(m["src"], m["dst"], c, add) for m in messages
                 for add, chunks in ((False, m["chunks"]), (True, m["combine"])) for c in chunks]
        assert sorted(again) == sorted(moves)
    sent = np.zeros((6, 6), int)
    for m in (m for messages in told["rounds"] for m in messages):
        sent[m["src"], m["dst"]] += m["nbytes"]
    np.testing.assert_array_equal(sent, bytes_matrix(plan, 1000))


@table
def test_at_the_end_each_rank_has_what_the_kind_means(kind, algorithm):
    plan = make_plan(kind, algorithm, 5)
    has = view.data(plan)["has"]
    assert len(has) == len(plan.rounds) + 1
    for rank in range(5):
        assert [c for c in range(plan.chunks) if has[0][rank][c] > 0] == plan.start(rank)
        assert all(has[-1][rank][chunk] == 1 for chunk in plan.goal(rank))


def test_text_of_a_small_ring():
    assert view.text(make_plan("all_reduce", "ring", 3), 3_000_000) == """\
all_reduce by ring: 3 ranks, 3 chunks, 4 rounds, 12 moves
round  rank 0  rank 1  rank 2  bytes
0      2→+1    0→+2    1→+0    3 MB
1      1→+1    2→+2    0→+0    3 MB
2      0→1     1→2     2→0     3 MB
3      2→1     0→2     1→0     3 MB
3→+1: rank 1 combines it with its own; 3→1: chunk 3 to rank 1, which keeps it"""


@table
@pytest.mark.parametrize("world", [1, 2, 5, 8])
def test_text_and_svg_of_every_plan(kind, algorithm, world):
    plan = make_plan(kind, algorithm, world)
    lines = view.text(plan).split("\n")
    assert len(lines) == len(plan.rounds) + 3
    picture = ElementTree.fromstring(view.html(plan, 2**20))
    assert picture.tag.endswith("svg")
    shown = "".join(picture.itertext())
    assert all(f"rank {rank}" in shown for rank in range(world))
    if len(plan.rounds) <= view.ROUNDS:
        tips = [tip for tip in shown.split("rank ") if " to " in tip]
        assert len(tips) == sum(map(len, plan.messages))
    assert "http" not in view.html(plan).replace("http://www.w3.org/2000/svg", "")


def test_what_is_left_out_is_said():
    plan = make_plan("all_reduce", "ring", 40)
    text, svg = view.text(plan), view.html(plan)
    assert "\n…\n" in text and "and 24 ranks more" in text
    assert "… 63 rounds" in svg and "ranks 16 … 39 and their messages are not drawn" in svg
    assert len(text) < 20_000 and len(svg) < 400_000


def test_a_plan_shows_itself():
    plan = make_plan("scatter", "tree", 4)
    assert plan._repr_html_() == view.html(plan)
    assert str(plan) == "scatter by tree: 4 ranks, 4 chunks, 2 rounds, 4 moves"


def test_a_wrong_plan_is_not_drawn():
    with pytest.raises(PlanError, match="rank 1 has nothing there"):
        view.html(Plan("mine", 2, 1, ((Move(1, 0, 0),),), "broadcast"))
