"""Writes `minigrad/tensor.pyi`: what editors and type checkers know of Tensor's methods.

Tensor gets its methods from the table in `minigrad/methods.py` when that file is imported, which no static tool sees.
The stub is the outline of `tensor.py` with that table written out.  `python run.py -m tests.stub_writer` writes it
anew;
`tests/test_stub.py` fails when it is not what this would write.
"""

import ast
import inspect
import pathlib
import re

from minigrad import methods
from minigrad.tensor import Tensor

FOLDER = pathlib.Path(methods.__file__).parent
STUB = FOLDER / "tensor.pyi"
HEAD = '''# Written by tests/stub_writer.py from tensor.py and methods.py: do not edit.
from collections.abc import Callable, Iterator
from contextlib import ContextDecorator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np

from minigrad.aval import Aval
from minigrad.device import Device
from minigrad.sites import (
    INTERNAL as INTERNAL,
    call_site as call_site,
    cells as cells,
    frame as frame,
    line_text as line_text,
    site_text as site_text,
)

_bool: TypeAlias = bool  # Tensor has methods of these names
_int: TypeAlias = int
_float: TypeAlias = float
'''
NUMBER = "Tensor | bool | int | float"
FIXED = {"__float__": "float", "__int__": "int", "__index__": "int", "__len__": "int", "__bool__": "bool",
         "__iter__": "Iterator[Tensor]", "__contains__": "bool", "__repr__": "str", "__hash__": "int",
         "__array__": "np.ndarray", "numel": "int", "dim": "int", "is_contiguous": "bool", "element_size": "int",
         "is_floating_point": "bool", "stride": "tuple[int, ...]", "register_hook": "Any",
         "register_post_accumulate_grad_hook": "Any", "size": "Any",
         "tolist": "Any", "backward": "Any", "retain_grad": "None", "max": "Any", "min": "Any"}
PROPERTY_TYPES = {
    "H": "Tensor",
    "T": "Tensor",
    "mH": "Tensor",
    "mT": "Tensor",
    "device": "Device",
    "nbytes": "int",
    "real": "Tensor",
    "itemsize": "int",
    "is_sparse": "bool",
    "is_view": "bool",
}


def outline(node: ast.stmt) -> ast.stmt | None:
    """A statement of tensor.py without its bodies; None for what a stub does not hold."""
    if isinstance(node, ast.FunctionDef):
        node.body = [ast.Expr(ast.Constant(...))]
        return node
    if isinstance(node, ast.ClassDef):
        kept = [outline(n) for n in node.body if isinstance(n, ast.FunctionDef | ast.AnnAssign)]
        node.body = [n for n in kept if n is not None] or [ast.Expr(ast.Constant(...))]
        return node
    if isinstance(node, ast.AnnAssign):
        node.value = None
        return node
    return None


def parameter(p: inspect.Parameter) -> str:
    """One parameter as text: its annotation where it has one, and `= ...` for a default."""
    stars = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
    hint = "Any" if p.annotation is p.empty else str(p.annotation)
    return f"{stars}{p.name}: {hint}" + ("" if p.default is p.empty else " = ...")


def signature(name: str, function) -> str:
    """`(self, other: …) -> Tensor` of an entry of the table."""
    found = inspect.signature(function)
    rest = list(found.parameters.values())[1:]
    if getattr(function, "__globals__", {}).get("me") is function:  # a door, compiled yet or not
        shown = [f"{p.name}: {NUMBER}" for p in rest]
    else:
        only = [
            p
            for i, p in enumerate(rest)
            if p.kind is p.KEYWORD_ONLY and (i == 0 or rest[i - 1].kind is not p.KEYWORD_ONLY)
        ]
        starred = any(p.kind is p.VAR_POSITIONAL for p in rest)
        shown = [text for p in rest for text in (["*"] if p in only[:1] and not starred else []) + [parameter(p)]]
    result = FIXED.get(name) or ("Tensor" if found.return_annotation is found.empty else str(found.return_annotation))
    return f"({', '.join(['self', *shown])}) -> {result}"


def method_lines() -> list[str]:
    """The table of methods as lines of a class body."""
    lines = [
        f"    def {name}{signature(name, f)}: ..."
        for name, f in sorted({**methods.METHODS}.items())
        if name != "__hash__"
    ]
    lines = [line.replace("def __eq__(self, b: Tensor | bool | int | float) -> Tensor: ...",
                          "def __eq__(self, b: object) -> Tensor: ...")
                 .replace("def __ne__(self, b: Tensor | bool | int | float) -> Tensor: ...",
                          "def __ne__(self, b: object) -> Tensor: ...") for line in lines]
    lines += [f"    def {name}(self, *args: Any, **kwargs: Any) -> Self: ..."
              for name in sorted([*methods.IN_PLACE, *methods.AXES_IN_PLACE])]
    for name in sorted(methods.PROPERTIES):
        lines += ["    @property", f"    def {name}(self) -> {PROPERTY_TYPES[name]}: ..."]
    return lines + ["    data: Tensor", "    array: Any", "    o: Any", "    node: Any", "    grad: Tensor | None",
                    "    hooks: dict | None", "    family: Any", "    def __hash__(self) -> int: ..."]


def untangled(line: str) -> str:
    """A line of the class in which bool, int and float mean Python's types and not the methods of those names."""
    return re.sub(r"(?<!def )(?<![.\w'\"])(bool|int|float)\b(?!\()", r"_\1", line)


def stub() -> str:
    """The whole text."""
    tree = ast.parse((FOLDER / "tensor.py").read_text(encoding="utf-8"))
    blocks = [HEAD, "LEAF: Any", "tick: Callable[[], int]", "current: Callable[[], Mode]"]
    for node in tree.body:
        found = outline(node)
        if found is None:
            continue
        text = ast.unparse(found).replace("\n        ...", " ...").replace(":\n    ...", ": ...")
        if getattr(node, "name", "") == "Tensor":
            text = "\n".join(map(untangled, [*text.splitlines(), *method_lines()]))
        blocks.append(text)
    return "\n\n".join(blocks) + "\n"


if __name__ == "__main__":
    assert Tensor
    STUB.write_text(stub(), encoding="utf-8")
    print(f"wrote {STUB.name}, {len(stub().splitlines())} lines")
