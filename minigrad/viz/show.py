"""A tensor with a history, shown as the last line of a cell, draws its graph beside its repr.

Registered with IPython by the type's name, so this file loads when the first tensor is shown.
Last file of the graph view.
"""

from __future__ import annotations

import sys

from minigrad.tensor import Node, Tensor
from minigrad.viz import engines, paint
from minigrad.viz.describe import data
from minigrad.viz.known import clean

SHOWN_NODES, SHOWN_LINES = 30, 8  # a picture nobody asked for stays small


def register(ip) -> None:
    """Let this IPython shell draw tensors; subclasses (View, Parameter) follow by inheritance."""
    ip.display_formatter.mimebundle_formatter.for_type_by_name("minigrad.tensor", "Tensor", bundle)


def bundle(t: Tensor) -> dict[str, str]:
    """The picture for a cell; {} for a leaf, in a terminal, and where anything goes wrong.

    Then the repr alone is shown; beside a picture, which hides it, it stands above the boxes."""
    try:
        shell = _shell()
        wanted = shell is None or "image/svg+xml" in shell.display_formatter.active_types
        return {"image/svg+xml": _svg(t, shell)} if wanted and has_history(t) else {}
    except Exception:
        return {}


def _shell():
    """The running IPython shell, or None."""
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()


def has_history(t: Tensor) -> bool:
    """Whether there is a graph to draw: an operation, and not yet freed by backward()."""
    return isinstance(t.node, Node) and t.node.edges is not None


def _svg(t: Tensor, shell) -> str:
    names = {k: v for k, v in getattr(shell, "user_ns", {}).items() if not k.startswith("_")}
    told = data(t, max_nodes=SHOWN_NODES, params=names)
    return paint.svg(told, engines.placed(told, None, "layered"), heading=_heading(t))


def _heading(t: Tensor) -> str:
    """The first lines of the repr."""
    rows = repr(t).split("\n")
    rows = rows if len(rows) <= SHOWN_LINES else [*rows[: SHOWN_LINES - 1], "…"]
    return "\n".join(clean(row) for row in rows)
