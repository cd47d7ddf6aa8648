"""Laws of the graph pictures: every form says the same, and says all of it, or says what it left out.

The forms are made from `data`, so `data` is held against the graph, and text, DOT and SVG against `data`.
"""

import json
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

import minigrad as mg
from minigrad.tensor import Node, Tensor, changed
from minigrad.viz import Picture, draw, engines
from minigrad.viz.describe import data
from minigrad.viz.graph import dot, svg, text
from minigrad.viz.layout import MARGIN, layered
from minigrad.viz.rows import in_rows

ROOT = Path(__file__).resolve().parents[2]
ENGINES = ["layered", pytest.param("dot", marks=pytest.mark.skipif(
    not shutil.which("dot"), reason="Graphviz' dot is not installed"))]
NAMESPACE = "{http://www.w3.org/2000/svg}"
HOSTILE = ["<script>alert(1)</script>", 'a"b\'c&d', "two\nlines\r\x00\x1b", "<b>", "\\N\\l\\", "]]>",
           "x" * 10_000, "über 漢字 \u202e", "\ud800", "%s{0}", ""]


def scalar():
    a, b, c = (mg.tensor(v, requires_grad=True) for v in (2.0, -3.0, 10.0))
    return a * b + c


def diamond():
    x = mg.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    return (x.exp() * x.sin() + x * x).sum()


def mlp():
    x, w, b = mg.ones(5, 3), mg.ones(3, 4, requires_grad=True), mg.zeros(4, requires_grad=True)
    return ((x @ w + b).relu() * 0.5).mean()


def several():
    """A Function with two outputs, a view written to, a concatenation."""

    class Both(mg.Function):
        @staticmethod
        def forward(ctx, a, b):
            return a + b, a - b

        @staticmethod
        def backward(ctx, g, h):
            return g + h, g - h

    w = mg.ones(2, 3, requires_grad=True)
    c = w * 2
    c[0] = 5.0
    y, z = Both.apply(c, w)
    return mg.cat([y, z, w]).softmax(1)[:, 0].sum()


def meta():
    w = mg.ones(2, 3, device="meta", requires_grad=True)
    return (w * w * 2).sum()


GRAPHS = [scalar, diamond, mlp, several, meta]


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
    """The graph as autograd sees it: every node and leaf, and every edge as often as it is there."""
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


def drawn(picture: str) -> list[ElementTree.Element]:
    """The boxes of an SVG, which is well-formed if this returns."""
    groups = ElementTree.fromstring(picture).iter(NAMESPACE + "g")
    return [g for g in groups if g.get("class", "").startswith("node")]


def box_text(box: ElementTree.Element) -> list[str]:
    return [t.text or "" for t in box.iter(NAMESPACE + "text")]


# ---- data is the graph -------------------------------------------------------------------------
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
        return (list(item.shape) if isinstance(item.shape, tuple) else None,
                item.op.label if isinstance(item, Node) else None)

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


# ---- every form says the same --------------------------------------------------------------------
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


@pytest.mark.skipif(not shutil.which("dot"), reason="Graphviz' dot is not installed")
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


STORY = """
import minigrad as mg
x = mg.ones(2, 3)
w = mg.ones(3, 2, requires_grad=True)
b = mg.zeros(2, requires_grad=True)
h = (x @ w + b).tanh()
loss = (h * h).mean()
loss.backward(retain_graph=True)
picture = mg.draw(loss, values=True, gradients=True, engine="layered")
print(picture)
print(picture.svg)
"""


def run(code: str, seed: str, tmp_path: Path) -> str:
    """What a fresh process prints, with strings hashed in another way."""
    env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True,
                          encoding="utf-8", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_text_and_picture_are_the_same_in_every_process(tmp_path):
    first = run(STORY, "1", tmp_path)
    assert first == run(STORY, "2", tmp_path)
    assert first.splitlines()[:7] == [
        "1  x            (2, 3)  constant  mean 1 ± 0".replace("mean 1 ± 0", "all 1"),
        "2  w            (3, 2)  leaf  all 1  grad all 0.00986",
        "3  matmul       (2, 2)  ← 1 x, 2 w",
        "4  b            (2,)    leaf  = [0, 0]  grad [0.00986, 0.00986]",
        "5  add          (2, 2)  ← 3 matmul, 4 b",
        "6  h = tanh     (2, 2)  ← 5 add  = [[0.995, 0.995], [0.995, 0.995]]",
        "7  mul          (2, 2)  ← 6 h, 6 h",
    ]
    assert "0x" not in first and str(ROOT) not in first


def test_drawing_twice_gives_the_same():
    y = several()
    one, two = draw(y, made_at=True), draw(y, made_at=True)
    assert (one.text, one.svg, one.data) == (two.text, two.svg, two.data)
    assert "test_viz.py:" in one.text and str(ROOT) not in one.text + one.svg


# ---- names, values, gradients ------------------------------------------------------------------------
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
    y = (h.exp() * 0).sum() + h.sum()
    y.backward(retain_graph=True)
    found = {n["op"] if "op" in n else n["label"]: n for n in data(y, values=True, gradients=True)["nodes"]}
    assert found["leaf"]["value"] == "[1, 2]" and found["leaf"]["gradient"] == "[3, 3]"
    assert found["mul"].get("gradient", "[1, 1]") == "[1, 1]"
    assert found["exp"]["value"] == "[20.1, 403]" and found["add"]["value"] == "9"
    assert "value" not in data(y)["nodes"][0]


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


@pytest.mark.parametrize("values, said", [
    ([1.23456], "= [1.23]"), ([0.0] * 9, "all 0"), ([1.0, 2.0, 3.0] * 3, "mean 2 ± 0.816"),
    ([float("nan"), float("inf")] + [1.0] * 6, "all 1, 1 nan, 1 inf"), ([], "= []"), ([float("nan")] * 5, "5 nan"),
])
def test_arrays_are_summed_up_in_three_digits(values, said):
    assert said in text(mg.tensor(values), values=True)


# ---- folding and the cap -----------------------------------------------------------------------------
@pytest.mark.parametrize("options", [
    dict(), dict(fold=True), dict(fold=False), dict(max_nodes=10), dict(max_nodes=1), dict(depth=1),
    dict(fold=False, max_nodes=7), dict(fold=True, max_nodes=3), dict(depth=2, max_nodes=5)])
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


@pytest.mark.parametrize("options", [dict(fold="yes"), dict(max_nodes=0), dict(depth=0), dict(direction="RL"), dict(engine="neato"), dict(params=3)])
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


# ---- hostile names ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("engine", ENGINES)
def test_hostile_names_are_only_text(name, engine, tmp_path):
    x, w = mg.ones(2, 2), mg.ones(2, 2, requires_grad=True)
    with changed(scope=(name, name)):
        y = (x @ w).exp()
    for fold in (True, False):
        picture = draw(y, params={name: w, name + "x": x}, fold=fold, engine=engine)
        boxes = drawn(picture.svg)
        assert len(boxes) == len(picture.data["nodes"]) == len(picture.text.splitlines())
        tags = {e.tag.removeprefix(NAMESPACE) for e in ElementTree.fromstring(picture.svg).iter()}
        assert tags <= {"svg", "g", "title", "rect", "text", "path", "polygon"}
        assert "<script" not in picture.html and len(picture.svg) < 20_000 and len(picture.text) < 2_000
        json.dumps(picture.data)
        for suffix in (".svg", ".html", ".txt"):
            picture.save(tmp_path / f"graph{suffix}")
        if engine == "dot":
            rows = plain(picture.dot)
            assert [row[1] for row in rows if row[0] == "node"] == [f"n{n['id']}" for n in picture.data["nodes"]]


def plain(source: str) -> list[list[str]]:
    """What `dot` understands of a source: the words of its plain format."""
    done = subprocess.run(["dot", "-Tplain"], input=source.encode("utf-8", "replace"), capture_output=True)
    assert done.returncode == 0 and b"Error" not in done.stderr, done.stderr
    return [line.split() for line in done.stdout.decode("utf-8").splitlines() if line]


@pytest.mark.skipif(not shutil.which("dot"), reason="Graphviz' dot is not installed")
def test_a_backslash_in_a_name_reaches_the_label_as_it_is():
    w = mg.ones(2, requires_grad=True)
    done = subprocess.run(["dot", "-Tsvg"], input=dot(w, params={"a\\Nb\\": w}), capture_output=True, text=True, encoding="utf-8")
    assert ">a\\Nb\\</text>" in done.stdout


# ---- layout ------------------------------------------------------------------------------------------------
@st.composite
def graphs(draw_):
    """(sizes, edges) of a random directed graph without circles."""
    n = draw_(st.integers(1, 60))
    size = st.tuples(st.floats(20, 200), st.floats(20, 90))
    edge = st.tuples(st.integers(1, n), st.integers(1, n)).filter(lambda e: e[0] != e[1])
    edges = [tuple(sorted(e)) for e in draw_(st.lists(edge, max_size=90))] if n > 1 else []
    return {v: draw_(size) for v in range(1, n + 1)}, edges


def check_layout(layout, sizes, edges, forward: bool):
    places = list(layout.places.items())
    assert {v: (p.width, p.height) for v, p in places} == sizes
    for i, (v, p) in enumerate(places):
        assert p.x >= MARGIN - 0.01 and p.y >= MARGIN - 0.01
        assert p.x + p.width <= layout.width + 0.01 and p.y + p.height <= layout.height + 0.01
        for w, q in places[i + 1:]:
            apart = p.x + p.width < q.x or q.x + q.width < p.x or p.y + p.height < q.y or q.y + q.height < p.y
            assert apart, f"{v} and {w} overlap"
    assert set(layout.paths) == set(edges)
    for (a, b), path in layout.paths.items():
        assert len(path) % 3 == 1
        assert on_border(path[0], layout.places[a]) and on_border(path[-1], layout.places[b])
        if forward:
            p, q = layout.places[a], layout.places[b]
            assert p.x + p.width < q.x or p.y + p.height < q.y


def on_border(point, p) -> bool:
    x, y = point
    inside = p.x - 0.02 <= x <= p.x + p.width + 0.02 and p.y - 0.02 <= y <= p.y + p.height + 0.02
    edge = min(abs(x - p.x), abs(x - p.x - p.width), abs(y - p.y), abs(y - p.y - p.height))
    return inside and edge < 0.02


@given(graphs(), st.sampled_from(["LR", "TB"]))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_layout_keeps_boxes_apart_and_lines_forward(graph, direction):
    sizes, edges = graph
    layout = layered(sizes, edges, direction)
    check_layout(layout, sizes, edges, forward=True)
    assert layout == layered(sizes, edges, direction)
    level = {v: (p.x if direction == "LR" else p.y) for v, p in layout.places.items()}
    assert all(level[a] < level[b] for a, b in edges)
    broken = in_rows(layout, 500.0) if direction == "LR" else None
    if broken is not None:
        check_layout(broken, sizes, edges, forward=True)
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
        sizes = {v: (p.width, p.height) for v, p in layout.places.items()}
        check_layout(layout, sizes, [tuple(e) for e in told["edges"]], forward=True)


def test_inputs_stand_left_and_the_result_right():
    told = draw(mlp(), engine="layered").data
    places = engines.placed(told, "LR", "layered").places
    last = max(places, key=lambda v: places[v].x)
    assert told["nodes"][last - 1]["kind"] == "output"


# ---- files and missing programs -------------------------------------------------------------------------
@pytest.mark.parametrize("suffix, start", [(".svg", "<svg"), (".html", "<!doctype html>"), (".txt", "1  "), (".dot", "digraph")])
def test_save_writes_by_suffix_and_leaves_nothing_else(tmp_path, suffix, start):
    path = draw(scalar()).save(tmp_path / f"graph{suffix}")
    assert path.read_text(encoding="utf-8").lstrip().startswith(start)
    assert os.listdir(tmp_path) == [f"graph{suffix}"]
    with pytest.raises(ValueError, match="do not know how to write"):
        draw(scalar()).save(tmp_path / "graph.png")


def test_without_graphviz_the_layered_picture_is_drawn_and_dot_says_the_way_out(monkeypatch):
    y = scalar()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert svg(y) == svg(y, engine="layered")
    monkeypatch.setitem(sys.modules, "graphviz", None)
    assert svg(y) == svg(y, engine="layered")
    with pytest.raises(ImportError, match="pip install graphviz"):
        draw(y).dot  # noqa: B018
    with pytest.raises(ImportError, match='engine="layered"'):
        svg(y, engine="dot")


def test_a_missing_dot_program_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="the program `dot`"):
        svg(scalar(), engine="dot")


# ---- in a notebook -----------------------------------------------------------------------------------------
def test_the_mime_bundle_is_text_and_a_picture():
    picture = draw(scalar())
    bundle = picture._repr_mimebundle_()
    assert bundle["text/plain"] == picture.text == repr(picture)
    assert bundle["image/svg+xml"] == picture.svg
    assert isinstance(picture, Picture)


NOTEBOOK = """
import sys
from traitlets.config import Config
from IPython.core.interactiveshell import InteractiveShell
c = Config()
c.HistoryManager.enabled = False
shell = InteractiveShell.instance(config=c)
shell.run_cell("import minigrad as mg; w = mg.ones(2, 3, requires_grad=True); y = (w * 2).sum()")
assert "minigrad.viz" not in sys.modules
def show(code):
    return shell.display_formatter.format(shell.user_ns["mg"] and eval(code, shell.user_ns))[0]
shown = show("y")
assert set(shown) == {"text/plain", "image/svg+xml"}, shown.keys()
assert shown["text/plain"] == "tensor(12., grad_fn=<SumBackward>)"
assert shown["image/svg+xml"].startswith("<svg") and ">w<" in shown["image/svg+xml"] and ">y = sum<" in shown["image/svg+xml"]
assert set(show("w")) == set(show("mg.ones(2)")) == {"text/plain"}
assert "image/svg+xml" in show("(w * 2)[0]")                       # a View
class Parameter(shell.user_ns["mg"].Tensor):
    pass
assert set(show("w.__class__")) == {"text/plain"}
shell.run_cell("y.backward()")
assert set(show("y")) == {"text/plain"}
assert set(show("mg.draw(w.exp())")) == {"text/plain", "image/svg+xml"}
shell.run_cell("z = w\\nfor _ in range(5000): z = z * 1.01")
assert show("z")["image/svg+xml"].count('class="node') == 30
import minigrad.viz.show
def fail(*_, **__):
    raise RuntimeError("must not reach the cell")
minigrad.viz.show.data = fail
assert set(show("z")) == {"text/plain"}
shell.display_formatter.active_types = ["text/plain"]              # as in a terminal
minigrad.viz.show.data = None
assert set(show("z")) == {"text/plain"}
from minigrad.viz.show import bundle, register
register(shell)
assert shell.display_formatter.mimebundle_formatter.lookup(shell.user_ns["z"]) is bundle
print("all shown")
"""


def test_a_tensor_with_a_history_draws_itself_in_ipython(tmp_path):
    pytest.importorskip("IPython")
    assert run(NOTEBOOK, "0", tmp_path).splitlines()[-1] == "all shown"


def test_importing_minigrad_loads_neither_viz_nor_ipython(tmp_path):
    code = "import sys, minigrad; print([m for m in sys.modules if m.startswith(('minigrad.viz', 'IPython', 'graphviz'))])"
    assert run(code, "0", tmp_path).strip() == "[]"
