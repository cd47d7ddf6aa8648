"""Small graphs to draw, and how to look at a drawing: what the tests of viz share."""

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import minigrad as mg

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = "{http://www.w3.org/2000/svg}"
needs_dot = pytest.mark.skipif(not shutil.which("dot"), reason="Graphviz' dot is not installed")
ENGINES = ["layered", pytest.param("dot", marks=needs_dot)]


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


def drawn(picture: str) -> list[ElementTree.Element]:
    """The boxes of an SVG, which is well-formed if this returns."""
    groups = ElementTree.fromstring(picture).iter(NAMESPACE + "g")
    return [g for g in groups if g.get("class", "").startswith("node")]


def box_text(box: ElementTree.Element) -> list[str]:
    return [t.text or "" for t in box.iter(NAMESPACE + "text")]


def run(code: str, seed: str, tmp_path: Path) -> str:
    """What a fresh process prints, with strings hashed in another way."""
    env = {
        **os.environ,
        "PYTHONHASHSEED": seed,
        "PYTHONPATH": str(ROOT),
        "IPYTHONDIR": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
