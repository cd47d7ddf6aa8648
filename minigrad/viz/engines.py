"""Two engines that place boxes – `dot`, and `layout.py` where there is none – and the DOT text.

`dot` only says where things go; `paint.py` draws, so both engines show the same boxes.  The
`graphviz` package is imported when it is needed and not before.  Before `graph.py`.
"""

from __future__ import annotations

import shutil
from types import ModuleType

from minigrad.viz.layout import Layout, Place, Point, layered
from minigrad.viz.paint import LINE, LOOKS
from minigrad.viz.rows import in_rows
from minigrad.viz.words import lines, size, tip

PX_PER_INCH = 72.0
WIDE_PX, ROW_PX = 960.0, 840.0  # a wider picture than the first is broken into rows of the second
WAY_OUT = (
    "Install it (pip install graphviz; Debian: apt install graphviz; macOS: brew install "
    'graphviz), or draw with engine="layered"'
)


def graphviz() -> ModuleType:
    """The Python package that writes DOT; ImportError with the way out where it is missing."""
    try:
        import graphviz as package
    except ImportError as e:
        raise ImportError(f"draw: DOT needs the Python package `graphviz`. {WAY_OUT}") from e
    return package


# ---- DOT --------------------------------------------------------------------------------
def dot_source(data: dict, direction: str = "LR", made_at: bool = False) -> str:
    """The graph for Graphviz: one node n1, n2, … for each box, in the colours of the picture."""
    package = graphviz()
    graph = package.Digraph(
        graph_attr={"rankdir": direction, "nodesep": "0.2", "ranksep": "0.4"},
        node_attr={"fontname": "Helvetica", "fontsize": "11", "margin": "0.14,0.06"},
        edge_attr={"color": LINE, "arrowsize": "0.6"},
    )
    for node in data["nodes"]:
        look = LOOKS[node["kind"]]
        style = ",".join(["filled", "rounded"] + ["dashed"] * (look.dashes != "none"))
        graph.node(
            f"n{node['id']}",
            _quoted(lines(node, made_at)),
            shape="box",
            style=style,
            fillcolor=look.fill,
            color=look.border,
            penwidth=str(look.pen),
            tooltip=_quoted(tip(node)),
        )
    graph.edges((f"n{a}", f"n{b}") for a, b in data["edges"])
    return graph.source


def _quoted(rows: list[str]) -> str:
    """Rows as a DOT label: no backslash of theirs is an escape, nothing of theirs is HTML."""
    return graphviz().nohtml("\\n".join(row.replace("\\", "\\\\") for row in rows))


def by_dot(sizes: dict[int, Point], edges: list[tuple[int, int]], direction: str) -> Layout:
    """Places by `dot`."""
    package = graphviz()
    graph = package.Digraph(
        graph_attr={"rankdir": direction, "nodesep": "0.22", "ranksep": "0.45"},
        node_attr={"shape": "box", "fixedsize": "true", "label": ""},
        edge_attr={"dir": "none"},
    )
    for v, (w, h) in sizes.items():
        graph.node(str(v), width=f"{w / PX_PER_INCH:.4f}", height=f"{h / PX_PER_INCH:.4f}")
    graph.edges((str(a), str(b)) for a, b in dict.fromkeys(edges))
    try:
        return _read_plain(graph.pipe(format="plain", encoding="utf-8"), sizes)
    except package.ExecutableNotFound as e:
        raise RuntimeError(
            f"draw: the program `dot` of Graphviz is not installed. {WAY_OUT}"
        ) from e


def _read_plain(text: str, sizes: dict[int, Point]) -> Layout:
    """The layout in Graphviz' `plain` format: inches, with the origin at the lower left."""
    rows = [line.split() for line in text.splitlines()]
    width, height = (float(v) * PX_PER_INCH for v in rows[0][2:4])
    pad = 6.0
    at = lambda x, y: (float(x) * PX_PER_INCH + pad, height - float(y) * PX_PER_INCH + pad)
    places, paths = {}, {}
    for row in rows:
        if row[0] == "node":
            (x, y), (w, h) = at(*row[2:4]), sizes[int(row[1])]
            places[int(row[1])] = Place(x - w / 2, y - h / 2, w, h)
        elif row[0] == "edge":
            points = row[4 : 4 + 2 * int(row[3])]
            paths[int(row[1]), int(row[2])] = [at(*pair) for pair in zip(points[::2], points[1::2])]
    return Layout(width + 2 * pad, height + 2 * pad, places, paths)


# ---- the choice -------------------------------------------------------------------------
def dot_is_there() -> bool:
    """Whether the program `dot` and the package `graphviz` are both installed."""
    try:
        return bool(graphviz() and shutil.which("dot"))
    except ImportError:
        return False


def placed(data: dict, direction: str | None, engine: str | None, made_at: bool = False) -> Layout:
    """Where everything goes.  No `engine`: `dot` where it is installed.

    No `direction`: left to right while it fits, else in rows, else top to bottom."""
    sizes = {n["id"]: size(lines(n, made_at)) for n in data["nodes"]}
    edges = [(a, b) for a, b in data["edges"]]
    place = by_dot if engine == "dot" or (engine is None and dot_is_there()) else layered
    if direction is not None:
        return place(sizes, edges, direction)
    across = place(sizes, edges, "LR")
    if across.width <= WIDE_PX:
        return across
    down = in_rows(across, ROW_PX) or place(sizes, edges, "TB")
    return down if down.width < across.width else across
