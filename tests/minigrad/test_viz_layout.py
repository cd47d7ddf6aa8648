"""Laws of the layout: boxes stand apart, lines run forward from border to border."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

import minigrad as mg
from minigrad.viz import draw, engines
from minigrad.viz.layout import MARGIN, layered
from minigrad.viz.rows import in_rows
from tests.minigrad.viz_graphs import mlp


@st.composite
def graphs(draw_):
    """(sizes, edges) of a random directed graph without circles."""
    n = draw_(st.integers(1, 60))
    size = st.tuples(st.floats(20, 200), st.floats(20, 90))
    edge = st.tuples(st.integers(1, n), st.integers(1, n)).filter(lambda e: e[0] != e[1])
    edges = [tuple(sorted(e)) for e in draw_(st.lists(edge, max_size=90))] if n > 1 else []
    return {v: draw_(size) for v in range(1, n + 1)}, edges


def check_layout(layout, sizes, edges, near=0.02):
    places = list(layout.places.items())
    assert {v: (p.width, p.height) for v, p in places} == sizes
    for i, (v, p) in enumerate(places):
        assert p.x >= MARGIN - 0.01 and p.y >= MARGIN - 0.01
        assert p.x + p.width <= layout.width + 0.01 and p.y + p.height <= layout.height + 0.01
        for w, q in places[i + 1 :]:
            apart = (
                p.x + p.width < q.x
                or q.x + q.width < p.x
                or p.y + p.height < q.y
                or q.y + q.height < p.y
            )
            assert apart, f"{v} and {w} overlap"
    assert set(layout.paths) == set(edges)
    for (a, b), path in layout.paths.items():
        assert len(path) % 3 == 1
        p, q = layout.places[a], layout.places[b]
        assert on_border(path[0], p, near) and on_border(path[-1], q, near)
        assert p.x + p.width < q.x or p.y + p.height < q.y


def on_border(point, p, near) -> bool:
    x, y = point
    inside = p.x - near <= x <= p.x + p.width + near and p.y - near <= y <= p.y + p.height + near
    edge = min(abs(x - p.x), abs(x - p.x - p.width), abs(y - p.y), abs(y - p.y - p.height))
    return inside and edge < near


@given(graphs(), st.sampled_from(["LR", "TB"]))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_layout_keeps_boxes_apart_and_lines_forward(graph, direction):
    sizes, edges = graph
    layout = layered(sizes, edges, direction)
    check_layout(layout, sizes, edges)
    assert layout == layered(sizes, edges, direction)
    level = {v: (p.x if direction == "LR" else p.y) for v, p in layout.places.items()}
    assert all(level[a] < level[b] for a, b in edges)
    broken = in_rows(layout, 500.0) if direction == "LR" else None
    if broken is not None:
        check_layout(broken, sizes, edges)
        assert broken.width <= max(layout.width, 500.0)


def test_layout_refuses_a_circle():
    with pytest.raises(ValueError, match="in a circle"):
        layered({1: (9, 9), 2: (9, 9)}, [(1, 2), (2, 1)])


def test_a_long_chain_is_broken_into_rows_that_fit_the_page():
    y = mg.ones(2, requires_grad=True)
    for _ in range(30):
        y = y.tanh()
    for engine in ("layered", None):
        told = draw(y).data
        layout = engines.placed(told, None, engine)
        assert layout.width < 950 and layout.height < 500
        assert len({p.y for p in layout.places.values()}) in (3, 4)
        sizes = {v: (p.width, p.height) for v, p in layout.places.items()}
        edges = [tuple(e) for e in told["edges"]]
        check_layout(layout, sizes, edges, near=0.5)  # dot stops half a pen short


def test_inputs_stand_left_and_the_result_right():
    told = draw(mlp(), engine="layered").data
    places = engines.placed(told, "LR", "layered").places
    last = max(places, key=lambda v: places[v].x)
    assert told["nodes"][last - 1]["kind"] == "output"
