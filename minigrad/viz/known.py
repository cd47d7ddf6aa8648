"""What is known of the items of a graph: names, values, gradients, source lines.

The graph keeps no tensors, so names come from a module, a dict or the caller's variables, and
values from what nodes saved: a node that saved `y` knows its own, one that saved its input knows
that of the producer.  After `fold.py`, before `describe.py`.
"""

from __future__ import annotations

import os
import re
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from minigrad.aval import Aval
from minigrad.ops.op import Op
from minigrad.ops.plan import chosen
from minigrad.sweep import Hooked
from minigrad.tensor import Node, Tensor, View, Writes, site_text
from minigrad.viz.record import Constant, Graph, Item, saved_input

NAME_LIMIT = 100


# ---- names -----------------------------------------------------------------------------
@dataclass(frozen=True)
class Named:
    """A tensor that somebody has a name for."""

    name: str
    tensor: Tensor


def clean(text: object, limit: int = NAME_LIMIT) -> str:
    """One printable line of at most `limit` characters, cut in the middle."""
    head = str(text)[: 20 * limit] if isinstance(text, str) else str(text)
    line = "".join(
        c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" if c > "~" else " " for c in head
    )
    keep = limit // 2
    return line if len(line) <= limit else f"{line[: limit - keep - 1]}…{line[-keep:]}"


def named(params) -> dict[int, Named]:
    """Tensors by the id of the tensor, its array and its node; `params` is a Module or a dict."""
    table: dict[int, Named] = {}
    for name, t in _pairs(params):
        found = Named(clean(name), t)
        for key in (id(t), id(t.array), id(_node(t))):
            table.setdefault(key, found)
    table.pop(id(None), None)
    return table


def _pairs(params) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor): a mapping's tensors first, then what its modules and lists hold."""
    if params is None:
        return
    if not isinstance(params, Mapping):
        if not _is_module(params):
            raise TypeError(
                f"draw: params must be a Module or a dict of names, got {type(params).__name__}. "
                'Write params={"w": w}'
            )
        yield from params.named_parameters()
        return
    entries = [(name, value, type(value)) for name, value in list(params.items())]
    yield from ((name, value) for name, value, kind in entries if issubclass(kind, Tensor))
    for _, value, _kind in entries:
        if _is_module(value):
            yield from value.named_parameters()
    for name, value, kind in entries:
        if kind in (list, tuple) and len(value) <= 100:
            yield from (
                (f"{name}[{i}]", t) for i, t in enumerate(value) if issubclass(type(t), Tensor)
            )


def _is_module(value) -> bool:
    """Whether it is a minigrad Module, asked of its type alone: a stranger's code does not run."""
    return any(
        c.__name__ == "Module" and c.__module__.startswith("minigrad") for c in type(value).__mro__
    )


def _node(t: Tensor) -> Node | None:
    """Its node as it stands: asking a view for it could run operations."""
    node = t._node if isinstance(t, View) else t.node
    return node if isinstance(node, Node) else None


def variables(frame) -> dict[str, object]:
    """The caller's variables, local ones first, without those that begin with an underscore."""
    found = {**frame.f_locals}
    for name, value in frame.f_globals.items():
        found.setdefault(name, value)
    return {name: value for name, value in found.items() if not name.startswith("_")}


def label_of(op) -> str:
    """The op's own label; 'cross_entropy' of one that is called CrossEntropy and nothing else."""
    if isinstance(op, Op) and not (op.functional or op.method):
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(op).__name__).lower()
    return clean(op.label)


def with_variables(params, variables: Mapping[str, object]) -> dict[str, object]:
    """The names in `params` first, then those of variables."""
    own = dict(params if isinstance(params, Mapping) else _pairs(params))
    return own | {name: value for name, value in variables.items() if name not in own}


def name_of(item: Item, names: dict[int, Named]) -> str | None:
    found = names.get(id(item.array if isinstance(item, Constant) else item))
    return found.name if found else None


# ---- values and gradients --------------------------------------------------------------
def values_of(wanted: list[Item], graph: Graph, names: dict[int, Named]) -> dict[Item, object]:
    """{item: (array, algebra)} for what is still to be had and was not written since."""
    found: dict[Item, object] = {}
    for item in wanted:
        tensor = tensor_of(item, graph, names)
        if tensor is not None or isinstance(item, Constant):
            found[item] = (item if tensor is None else tensor).array, item.o
    asked = {i for i in wanted if isinstance(i, Node) and i not in found}
    for n in graph.edges if asked else ():
        if n in asked or not asked.isdisjoint(graph.edges[n]):
            for item, array in _told_by(n):
                if item in asked and _unwritten(array, n):
                    found.setdefault(item, (array, item.o))
    return found


def _told_by(n: Node) -> Iterator[tuple[Item, object]]:
    """(node, array): what `n` saved of itself and of the nodes before it."""
    if n.saved is None or not isinstance(n.op, Op):
        return
    saved = dict(zip(n.plan.names, n.saved))
    if "y" in saved:
        yield n, saved["y"]
    for i, e in zip(chosen(n.op, n.plan.mask), n.edges):
        array = saved_input(n, i, saved)
        if isinstance(e, Node) and array is not None:
            yield e, array


def _unwritten(array, n: Node) -> bool:
    """Whether a saved array still holds what it held when `n` ran."""
    return array.__class__ is Aval or isinstance(array, np.generic) or Writes.of(array)[0] <= n.seq


def tensor_of(item: Item, graph: Graph, names: dict[int, Named]) -> Tensor | None:
    """The tensor of this item, if somebody holds it: leaf, root, variable, or one that retains."""
    if not isinstance(item, Node):
        return item if isinstance(item, Tensor) else None
    root, variable = graph.roots.get(item), names.get(id(item))
    return root if root is not None else variable.tensor if variable else _retaining(item)


def _retaining(n: Node) -> Tensor | None:
    """The tensor of `n` that was told to retain its gradient, while it lives."""
    hook = n.plan.last.get("retain") if isinstance(n.plan, Hooked) else None
    cells = [cell.cell_contents for cell in getattr(hook, "__closure__", None) or ()]
    return next((ref() for ref in cells if isinstance(ref, weakref.ref)), None)


def summary(array, o) -> str | None:
    """An array in a few words, three significant digits; small ones whole.  None on meta."""
    if not o.eager:
        return None
    x = np.asarray(o.host(array))
    if x.size <= 4:
        return _text(x.tolist())
    if x.dtype.kind == "b":
        return f"{100 * x.mean():.3g} % true"
    if x.dtype.kind != "f":
        return f"{x.min()} … {x.max()}"
    finite = x[np.isfinite(x)].astype(np.float64)
    odd = [
        f"{k} {what}" for k, what in ((np.isnan(x).sum(), "nan"), (np.isinf(x).sum(), "inf")) if k
    ]
    return ", ".join([*([_spread(finite)] if finite.size else []), *odd])


def _spread(x: np.ndarray) -> str:
    """Mean and deviation; a mean that is only rounding beside the deviation is 0."""
    if np.ptp(x) == 0:
        return f"all {x[0]:.3g}"
    mean, deviation = x.mean(), x.std()
    return f"mean {mean if abs(mean) > 1e-4 * deviation else 0:.3g} ± {deviation:.3g}"


def _text(value) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


# ---- source lines ----------------------------------------------------------------------
def place_of(n: Node) -> str | None:
    """'model.py:12, in forward', or 'cell [3]:2' in a notebook; None if sites are off."""
    if n.code is None:
        return None
    file, _, rest = site_text(n.code, n.lasti).rpartition(":")
    cell = _cells().get(n.code.co_filename)
    line = f"cell [{cell}]:{rest}" if cell else f"{os.path.basename(file)}:{rest}"
    return clean(line.removesuffix(", in <module>"))


def _cells() -> Mapping[str, int]:
    """{file name: number of the notebook cell}, where IPython runs."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(getattr(shell, "compile", None), "_filename_map", {})


def parameters(items: Iterable[Item], names: dict[int, Named]) -> list[str]:
    """What the leaves among these are called."""
    return [name_of(i, names) or f"unnamed {list(i.shape)}" for i in items if isinstance(i, Tensor)]
