"""Laws of the graph pictures: every form says the same, and says all of it, or what it left out.

The forms are made from `data`, so `data` is held against the graph, and text, DOT and SVG against
`data`.
"""

import json
import time

import pytest

import minigrad as mg
from minigrad.tensor import Node, Tensor, changed
from minigrad.viz import draw
from minigrad.viz.describe import data
from minigrad.viz.graph import svg, text
from minigrad.viz.known import label_of
from tests.minigrad.viz_graphs import (
    ENGINES,
    GRAPHS,
    NAMESPACE,
    ROOT,
    box_text,
    drawn,
    needs_dot,
    scalar,
    several,
)


def layers(names, calls=1, wide=4):
    """A net made by hand: each layer under the scope Net.<name>, a loss outside of them."""
    weights = {name: mg.ones(wide, wide, requires_grad=True) for name in names}
    h = mg.ones(2, wide)
    for _ in range(calls):
        for name in names:
            with changed(scope=("Net", name)):
                h = (h @ weights[name] + 1.0).tanh()
    return (h * h).sum()


def walk(y: Tensor):
    """The graph as autograd sees it: each node and leaf, every edge as often as it is there."""
    seen, stack, edges = {y.node: None}, [y.node], []
    while stack:
        n = stack.pop()
        for e in n.edges:
            edges.append((e, n))
            if e not in seen:
                seen[e] = None
                if isinstance(e, Node):
                    stack.append(e)
    return list(seen), edges


# ---- data is the graph ------------------------------------------------------------------
@pytest.mark.parametrize("make", GRAPHS)
def test_data_holds_every_node_and_every_edge_once(make):
    y = make()
    found, edges = walk(y)
    told = data(y)
    constants = {n["id"] for n in told["nodes"] if n["kind"] == "constant"}
    assert len(told["nodes"]) - len(constants) == len(found)
    assert told["operations"] == sum(isinstance(i, Node) for i in found)
    assert told["leaves"] == sum(isinstance(i, Tensor) for i in found)

    def form(item):
        return (
            list(item.shape) if isinstance(item.shape, tuple) else None,
            label_of(item.op) if isinstance(item, Node) else None,
        )

    by_id = {n["id"]: (n["shape"], n.get("op")) for n in told["nodes"]}
    got = sorted(repr((by_id[a], by_id[b])) for a, b in told["edges"] if a not in constants)
    assert got == sorted(repr((form(a), form(b))) for a, b in edges)
    assert all(a < b for a, b in told["edges"])


@pytest.mark.parametrize("make", GRAPHS)
def test_data_survives_json(make):
    told = data(make(), values=True, gradients=True)
    assert json.loads(json.dumps(told)) == told


def test_inputs_stand_in_the_order_of_the_operation():
    x, w = mg.ones(2, 3), mg.ones(3, 3, requires_grad=True)
    names = {"x": x, "w": w}
    assert text(x @ w, params=names).splitlines()[-1] == "3  matmul  (2, 3)  ← 1 x, 2 w"
    assert text(1.0 - w).splitlines()[-1].endswith("← constant, 1 leaf")
    assert text(w * 2, params=names).splitlines()[-1] == "2  mul 2  (3, 3)  ← 1 w, 2"
    assert text(w * w, params=names).splitlines()[-1] == "2  mul  (3, 3)  ← 1 w, 1 w"


def test_a_constant_that_two_operations_saved_is_one_box():
    x, w, v = mg.ones(2, 3), mg.ones(3, 3, requires_grad=True), mg.ones(3, 3, requires_grad=True)
    kinds = [n["kind"] for n in data(x @ w + x @ v)["nodes"]]
    assert kinds.count("constant") == 1


def test_leaves_constants_and_several_outputs_can_be_drawn():
    w = mg.ones(2, requires_grad=True)
    assert [n["kind"] for n in data(w)["nodes"]] == ["leaf"]
    assert [n["kind"] for n in data(mg.ones(2))["nodes"]] == ["constant"]
    assert [n["kind"] for n in data([w * 2, w.exp()])["nodes"]] == ["leaf", "output", "output"]
    for wrong in (3, "y", [w, 1]):
        with pytest.raises(TypeError, match="expected a Tensor"):
            draw(wrong)
    with pytest.raises(ValueError, match="empty"):
        draw([])


def test_a_freed_history_is_said():
    y = scalar()
    y.backward()
    assert "freed by backward()" in draw(y).text and "freed by backward()" in draw(y).svg


# ---- every form says the same -----------------------------------------------------------
@pytest.mark.parametrize("make", GRAPHS)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_box_is_in_every_form_once(make, engine):
    picture = draw(make(), engine=engine)
    nodes = picture.data["nodes"]
    lines = picture.text.splitlines()
    assert [int(line.split()[0]) for line in lines] == [n["id"] for n in nodes]
    boxes = drawn(picture.svg)
    assert [b.get("class") for b in boxes] == [f"node {n['kind']}" for n in nodes]
    for node, box, line in zip(nodes, boxes, lines):
        title = box_text(box)[0]
        assert title in line and node["label"].split()[0] in (title if not node["name"] else line)
    if engine == "dot":
        heads = [line.split()[0] for line in picture.dot.splitlines() if "[label=" in line]
        assert heads == [f"n{n['id']}" for n in nodes]
        assert picture.dot.count(" -> ") == len(picture.data["edges"])


@needs_dot
@pytest.mark.parametrize("make", GRAPHS)
def test_both_engines_draw_the_same_boxes(make):
    y = make()
    ours, dots = (drawn(svg(y, engine=engine)) for engine in ("layered", "dot"))
    look = ("width", "height", "fill", "stroke")
    for a, b in zip(ours, dots, strict=True):
        assert box_text(a) == box_text(b)
        assert a.find(NAMESPACE + "title").text == b.find(NAMESPACE + "title").text
        one, other = a.find(NAMESPACE + "rect"), b.find(NAMESPACE + "rect")
        assert [one.get(k) for k in look] == [other.get(k) for k in look]


def test_drawing_twice_gives_the_same():
    y = several()
    one, two = draw(y, made_at=True), draw(y, made_at=True)
    assert (one.text, one.svg, one.data) == (two.text, two.svg, two.data)
    assert "viz_graphs.py:" in one.text and str(ROOT) not in one.text + one.svg


# ---- names, values, gradients -----------------------------------------------------------
def test_names_come_from_params_and_from_the_callers_variables():
    w, v = mg.ones(2, requires_grad=True), mg.ones(2, requires_grad=True)
    rest = [mg.ones(2, requires_grad=True)]
    out = w * v * rest[0]
    assert [n["name"] for n in draw(out).data["nodes"]] == ["w", "v", None, "rest[0]", "out"]
    assert [n["name"] for n in draw(out, params={"weight": w}).data["nodes"]][:2] == ["weight", "v"]
    assert {n["name"] for n in data(out)["nodes"]} == {None}
    layer = mg.nn.Linear(2, 1)
    assert {"weight", "bias"} <= {n["name"] for n in draw(layer(w), params=layer).data["nodes"]}


def test_values_come_from_what_nodes_saved_and_gradients_from_who_retains():
    x = mg.tensor([1.0, 2.0], requires_grad=True)
    h = x * 3
    h.retain_grad()
    y = h.exp().sum()
    y.backward(retain_graph=True)
    nodes = data(y, values=True, gradients=True)["nodes"]
    assert [n.get("value") for n in nodes] == ["[1, 2]", "[3, 6]", "[20.1, 403]", "424"]
    assert [n.get("gradient") for n in nodes[:2]] == ["[60.3, 1.21e+03]", "[20.1, 403]"]
    assert not any("value" in n or "gradient" in n for n in data(y)["nodes"])
    del h
    nodes = data(y, values=True, gradients=True)["nodes"]
    assert [n.get("value") for n in nodes] == ["[1, 2]", None, "[20.1, 403]", "424"]
    assert [n.get("gradient") for n in nodes[1:]] == [None, None, None]


def test_a_saved_value_that_was_written_since_is_not_shown():
    x = mg.tensor([1.0, 2.0], requires_grad=True)
    h = (x * 3).exp()
    with mg.no_grad():
        held = h.detach()
    y = h.sum()
    del h
    assert "[20.1, 403]" in text(y, values=True)
    held.fill_(7.0)
    assert "exp" in text(y, values=True) and "7" not in text(y, values=True).split("exp")[1]


@pytest.mark.parametrize(
    "values, said",
    [
        ([1.23456], "= [1.23]"),
        ([0.0] * 9, "all 0"),
        ([1.0, 2.0, 3.0] * 3, "mean 2 ± 0.816"),
        ([1.0, -1.0] * 4 + [1e-6], "mean 0 ± 0.943"),
        ([float("nan"), float("inf")] + [1.0] * 6, "all 1, 1 nan, 1 inf"),
        ([], "= []"),
        ([float("nan")] * 5, "5 nan"),
    ],
)
def test_arrays_are_summed_up_in_three_digits(values, said):
    assert said in text(mg.tensor(values), values=True)


# ---- folding and the cap ----------------------------------------------------------------
@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(fold=True),
        dict(fold=False),
        dict(max_nodes=10),
        dict(max_nodes=1),
        dict(depth=1),
        dict(fold=False, max_nodes=7),
        dict(fold=True, max_nodes=3),
        dict(depth=2, max_nodes=5),
    ],
)
@pytest.mark.parametrize("calls", [1, 3])
def test_what_the_boxes_stand_for_adds_up(options, calls):
    y = layers(["a", "b", "c", "d"], calls)
    told = data(y, **options)
    whole = data(y, fold=False, max_nodes=10_000)
    assert len(told["nodes"]) <= options.get("max_nodes", 80)
    for count in ("operations", "leaves"):
        assert sum(n[count] for n in told["nodes"]) == told[count] == whole[count]
    ids = [n["id"] for n in told["nodes"]]
    assert ids == list(range(1, len(ids) + 1)) and all(a < b for a, b in told["edges"])
    assert len(drawn(draw(y, **options).svg)) == len(ids)


def test_a_module_is_one_box_with_its_operations_and_parameters():
    folded = draw(layers(["conv1", "fc"]), fold=True)
    assert folded.text.splitlines() == [
        "1  constant  (2, 4)",
        "2  conv1     (2, 4)  ← 1 constant  [3 ops, 1 parameter]",
        "3  fc        (2, 4)  ← 2 conv1  [3 ops, 1 parameter]",
        "4  mul       (2, 4)  ← 3 fc, 3 fc",
        "5  sum       ()      ← 4 mul",
    ]


def test_a_module_called_twice_is_two_boxes_and_its_weight_stands_outside():
    kinds = [n["kind"] for n in draw(layers(["cell", "other"], calls=2), fold=True).data["nodes"]]
    assert kinds.count("module") == 4 and kinds.count("leaf") == 2


def test_auto_folds_only_what_is_too_large():
    assert all(n["kind"] != "module" for n in data(layers(["a", "b"]))["nodes"])
    kinds = [n["kind"] for n in data(layers([f"l{i}" for i in range(40)]))["nodes"]]
    assert "module" in kinds and "more" not in kinds


@pytest.mark.parametrize(
    "options",
    [
        dict(fold="yes"),
        dict(max_nodes=0),
        dict(depth=0),
        dict(direction="RL"),
        dict(engine="neato"),
        dict(params=3),
    ],
)
def test_wrong_options_are_refused(options):
    with pytest.raises((ValueError, TypeError), match="draw: "):
        draw(scalar(), **options).svg  # noqa: B018


def test_a_chain_of_a_hundred_thousand_is_drawn_in_two_seconds():
    y = mg.ones(2, requires_grad=True)
    for _ in range(100_000):
        y = y * 1.0001
    took = []
    for _ in range(2):
        start = time.process_time()
        picture = draw(y, engine="layered")
        assert "… and 99922 more" in picture.text and len(drawn(picture.svg)) == 80
        took.append(time.process_time() - start)
    assert min(took) < 2
