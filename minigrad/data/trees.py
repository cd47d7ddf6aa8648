"""Syntax trees of the standard library's functions: real trees without a download.  After `arithmetic.py`.

The sources are only read and parsed, never run.  One version of Python gives the same trees everywhere; another has
other sources, and other kinds of nodes.
"""

from __future__ import annotations

import ast
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from minigrad.data.dataset import Dataset
from minigrad.tensor import Tensor

HIDDEN = "Hidden"  # the kind of the node that stands for the hidden statement
SKIPPED = (ast.expr_context, ast.type_ignore, ast.mod)  # nodes that are in no tree
STATEMENTS = ("Assign", "Expr", "Raise", "Return")  # what may be hidden: the classes
PACKAGES = ("asyncio", "collections", "concurrent", "email", "html", "http", "importlib", "json", "logging",
            "multiprocessing", "tkinter", "unittest", "urllib", "wsgiref", "xml", "xmlrpc")  # fmt: skip


def _kinds() -> tuple[str, ...]:
    """The names of all kinds of nodes that this Python's parser makes, and of the hidden one first."""
    found = set()
    for family in ast.AST.__subclasses__():  # stmt, expr, operator …; or a kind that stands alone, such as arg
        if not issubclass(family, SKIPPED) and family.__name__ != "slice":  # which is no more
            kinds = family.__subclasses__() or (family,)
            found |= {kind.__name__ for kind in kinds if kind.__module__ in ("ast", "_ast")}
    return (HIDDEN, *sorted(found))


KINDS = _kinds()
NUMBER = {name: i for i, name in enumerate(KINDS)}


@dataclass(frozen=True)
class Tree:
    """One function: `kinds[i]` numbers the kind of node i in KINDS, `children[i]` its children in order; node 0 is the
    root, and each node comes before its children."""

    kinds: np.ndarray
    children: list[list[int]]
    label: int
    name: str  # "json.encoder.JSONEncoder.default"


class SyntaxTrees(Dataset):
    """Functions as trees; item k is (kinds, children, label), for `tree_collate`.

    label "statement": one statement of the function is hidden; which of STATEMENTS is it?  Each equally often.
    "package": which of PACKAGES does the function come from?  `classes` are the names of the labels."""

    def __init__(
        self, n: int = 1000, label: str = "statement", most_nodes: int = 80, least_nodes: int = 12, seed: int = 0
    ) -> None:
        if label not in ("statement", "package"):
            raise ValueError(f"SyntaxTrees: label must be 'statement' or 'package', got {label!r}")
        self.classes = STATEMENTS if label == "statement" else PACKAGES
        self.trees = list(_trees(n, label, least_nodes, most_nodes, np.random.default_rng(seed)))
        if len(self.trees) < n:
            raise ValueError(
                f"SyntaxTrees: this Python's library has {len(self.trees)} functions of {least_nodes} to {most_nodes} "
                f"nodes that fit, not {n}"
            )

    def __len__(self) -> int:
        return len(self.trees)

    def __getitem__(self, index: int) -> tuple[Tensor, list[list[int]], int]:
        tree = self.trees[index]
        return Tensor(tree.kinds), tree.children, tree.label


def _trees(n: int, label: str, least: int, most: int, draw: np.random.Generator) -> Iterator[Tree]:
    """Up to n trees, from the files in an order drawn by the seed."""
    files = _files(only_packages=label == "package")
    left = [(n + i) // len(STATEMENTS) for i in range(len(STATEMENTS))]  # how often each class is still to be hidden
    for k in draw.permutation(len(files)).tolist() if n else ():
        for name, function in _functions(files[k]):
            hidden = _chosen(function, left, draw) if label == "statement" else None
            if label == "statement" and hidden is None:
                continue
            kinds, children = _numbered(function, hidden)
            if not least <= len(kinds) <= most:
                continue
            if hidden is None:
                number = PACKAGES.index(name.split(".")[0])
            else:
                number = STATEMENTS.index(type(hidden).__name__)
                left[number] -= 1
            yield Tree(np.array(kinds, np.int64), children, number, name)
            n -= 1
            if not n:
                return


def _files(only_packages: bool) -> list[tuple[str, Path]]:
    """(dotted name, path) of the modules, sorted."""
    library = Path(sysconfig.get_path("stdlib"))
    found = [] if only_packages else list(library.glob("[a-z]*.py"))
    found += [path for package in PACKAGES for path in (library / package).rglob("*.py")]
    inner = {path.relative_to(library) for path in found}
    inner = {path for path in inner if not {"test", "tests", "idlelib"} & set(path.parts)}
    return [(".".join(path.with_suffix("").parts), library / path) for path in sorted(inner)]


def _functions(module: tuple[str, Path]) -> Iterator[tuple[str, ast.AST]]:
    """The functions and methods of a file, with their names; functions inside functions are parts of those."""
    name, path = module
    try:
        with tokenize.open(path) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            todo = [(name.removesuffix(".__init__"), ast.parse(file.read()))]
    except (OSError, SyntaxError, ValueError):
        return  # a distribution without this source
    while todo:
        prefix, top = todo.pop()
        for node in ast.iter_child_nodes(top):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{prefix}.{node.name}", node
            elif isinstance(node, ast.ClassDef):
                todo.append((f"{prefix}.{node.name}", node))


def _chosen(function: ast.AST, left: list[int], draw: np.random.Generator) -> ast.AST | None:
    """The statement to hide: of the class that is missing most, of those that the function has."""
    doc = _docstring(function)
    found: dict[str, list[ast.AST]] = {}
    for node in ast.walk(function):
        if type(node).__name__ in STATEMENTS and node is not doc:
            found.setdefault(type(node).__name__, []).append(node)
    missing = max(found, key=lambda name: left[STATEMENTS.index(name)], default=None)
    if missing is None or not left[STATEMENTS.index(missing)]:
        return None
    return found[missing][int(draw.integers(len(found[missing])))]


def _docstring(function: ast.AST) -> ast.AST | None:
    return function.body[0] if ast.get_docstring(function, clean=False) is not None else None


def _numbered(function: ast.AST, hidden: ast.AST | None) -> tuple[list[int], list[list[int]]]:
    """Kinds and children from the root on, without the docstring; the hidden statement is a leaf of its own kind."""
    doc = _docstring(function)
    kinds: list[int] = []
    children: list[list[int]] = []
    todo: list[tuple[ast.AST, int]] = [(function, -1)]
    while todo:
        node, parent = todo.pop()
        if parent >= 0:
            children[parent].append(len(kinds))
        if node is not hidden:
            below = [c for c in ast.iter_child_nodes(node) if not isinstance(c, SKIPPED) and c is not doc]
            todo += [(child, len(kinds)) for child in reversed(below)]
        kinds.append(0 if node is hidden else NUMBER[type(node).__name__])
        children.append([])
    return kinds, children
