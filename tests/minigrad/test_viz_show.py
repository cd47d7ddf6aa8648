"""Pictures where they are shown and kept: in a cell, in a file, elsewhere; hostile names."""

import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest

import minigrad as mg
from minigrad.tensor import changed
from minigrad.viz import Picture, draw
from minigrad.viz.graph import dot, svg
from tests.minigrad.viz_graphs import ENGINES, NAMESPACE, ROOT, drawn, needs_dot, run, scalar

HOSTILE = [
    "<script>alert(1)</script>",
    "a\"b'c&d",
    "two\nlines\r\x00\x1b",
    "<b>",
    "\\N\\l\\",
    "]]>",
    "x" * 10_000,
    "über 漢字 \u202e",
    "\ud800",
    "%s{0}",
    "",
]


# ---- hostile names ----------------------------------------------------------------------
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
        assert (
            "<script" not in picture.html
            and len(picture.svg) < 20_000
            and len(picture.text) < 2_000
        )
        json.dumps(picture.data)
        for suffix in (".svg", ".html", ".txt"):
            picture.save(tmp_path / f"graph{suffix}")
        if engine == "dot":
            rows = plain(picture.dot)
            assert [row[1] for row in rows if row[0] == "node"] == [
                f"n{n['id']}" for n in picture.data["nodes"]
            ]


def plain(source: str) -> list[list[str]]:
    """What `dot` understands of a source: the words of its plain format."""
    done = subprocess.run(
        ["dot", "-Tplain"], input=source.encode("utf-8", "replace"), capture_output=True
    )
    assert done.returncode == 0 and b"Error" not in done.stderr, done.stderr
    return [line.split() for line in done.stdout.decode("utf-8").splitlines() if line]


@needs_dot
def test_a_backslash_in_a_name_reaches_the_label_as_it_is():
    w = mg.ones(2, requires_grad=True)
    done = subprocess.run(
        ["dot", "-Tsvg"],
        input=dot(w, params={"a\\Nb\\": w}),
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert ">a\\Nb\\</text>" in done.stdout


# ---- in another process -----------------------------------------------------------------
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


def test_text_and_picture_are_the_same_in_every_process(tmp_path):
    first = run(STORY, "1", tmp_path)
    assert first == run(STORY, "2", tmp_path)
    assert first.splitlines()[:7] == [
        "1  x            (2, 3)  constant  all 1",
        "2  w            (3, 2)  leaf  all 1  grad all 0.00982",
        "3  matmul       (2, 2)  ← 1 x, 2 w",
        "4  b            (2,)    leaf  = [0, 0]  grad [0.00982, 0.00982]",
        "5  add          (2, 2)  ← 3 matmul, 4 b",
        "6  h = tanh     (2, 2)  ← 5 add  = [[0.995, 0.995], [0.995, 0.995]]",
        "7  mul          (2, 2)  ← 6 h, 6 h",
    ]
    assert "0x" not in first and str(ROOT) not in first


# ---- files and missing programs ---------------------------------------------------------
@pytest.mark.parametrize(
    "suffix, start",
    [(".svg", "<svg"), (".html", "<!doctype html>"), (".txt", "1  "), (".dot", "digraph")],
)
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


# ---- in a notebook ----------------------------------------------------------------------
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
picture = shown["image/svg+xml"]
assert picture.startswith("<svg") and ">w<" in picture and ">y = sum<" in picture
assert ">tensor(12.," in picture                                   # the picture hides the text
assert show("mg.ones(99, 3) * w[0]")["image/svg+xml"].count(">…<") == 1
assert set(show("w")) == set(show("mg.ones(2)")) == {"text/plain"}
assert "image/svg+xml" in show("(w * 2)[0]")                       # a View
assert set(show("mg.nn.Parameter(mg.ones(2))")) == {"text/plain"}
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
from types import SimpleNamespace
from IPython.core.formatters import DisplayFormatter
other = SimpleNamespace(display_formatter=DisplayFormatter())
minigrad.viz.show.register(other)
found = other.display_formatter.mimebundle_formatter.lookup(shell.user_ns["z"])
assert found is minigrad.viz.show.bundle
print("all shown")
"""


def test_a_tensor_with_a_history_draws_itself_in_ipython(tmp_path):
    pytest.importorskip("IPython")
    assert run(NOTEBOOK, "0", tmp_path).splitlines()[-1] == "all shown"


def test_importing_minigrad_loads_neither_viz_nor_ipython(tmp_path):
    later = ("minigrad.viz", "IPython", "graphviz")
    code = f"import sys, minigrad; print([m for m in sys.modules if m.startswith({later})])"
    assert run(code, "0", tmp_path).strip() == "[]"
