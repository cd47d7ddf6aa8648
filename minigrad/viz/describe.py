"""`data(obj)`: the picture before it is drawn – boxes and edges as plain data for JSON.

Text, DOT and SVG are made from this alone, so they say the same, and a test reads it instead
of a picture.  After `known.py`; `layout.py` is next.
"""

from __future__ import annotations

from collections.abc import Iterable

from minigrad.rows import values_of
from minigrad.tensor import Node, Tensor
from minigrad.viz import known
from minigrad.viz.fold import Box, folded
from minigrad.viz.record import Constant, Graph, Item, Slot, inputs_of, recorded

FREED = "the history was freed by backward(): draw before it, or call backward(retain_graph=True)"


def data(
    obj: Tensor | Iterable[Tensor],
    *,
    fold: bool | str = "auto",
    depth: int | None = None,
    max_nodes: int = 80,
    values: bool = False,
    gradients: bool = False,
    params=None,
) -> dict:
    """{"nodes": […], "edges": [[source id, target id], …], "operations", "leaves", "notes"}.

    In topological order.  `params`, a Module or a dict, names the leaves; with `values` and
    `gradients` what is known of them is summarised."""
    graph, names = recorded(obj), known.named(params)
    boxes = folded(graph, fold, depth, max_nodes)
    owner = {item: k for k, box in enumerate(boxes, 1) for item in box.items}
    nodes = [_node(k, box, graph, names, owner) for k, box in enumerate(boxes, 1)]
    if values or gradients:
        _add_values(nodes, boxes, graph, names, values, gradients)
    _name_modules(nodes)
    edges = [
        [source, node["id"]]
        for node in nodes
        for source in node["inputs"]
        if isinstance(source, int)
    ]
    notes = [FREED] if graph.freed else []
    return {
        "nodes": nodes,
        "edges": edges,
        "operations": len(graph.edges),
        "notes": notes,
        "leaves": sum(isinstance(i, Tensor) for i in graph.items),
    }


def _node(k: int, box: Box, graph: Graph, names: dict, owner: dict[Item, int]) -> dict:
    """One box.  `operations` and `leaves` count what it stands for: all add up to the graph's."""
    leaves = [i for i in box.items if isinstance(i, Tensor)]
    operations = sum(isinstance(i, Node) for i in box.items)
    common = {
        "id": k,
        "operations": operations,
        "leaves": len(leaves),
        "name": None,
        "scope": list(box.scope),
    }
    if box.whole:
        return common | _whole(box, graph, names, owner, k)
    item = box.items[0]
    return (
        common
        | {"name": known.name_of(item, names)}
        | (_operation(item, graph, owner) if isinstance(item, Node) else _leaf(item))
    )


def _whole(box: Box, graph: Graph, names: dict, owner: dict[Item, int], k: int) -> dict:
    """What a module, or the rest, says of itself: the last shape, its parameters, what comes in."""
    last = next((i for i in reversed(box.items) if isinstance(i, Node)), box.items[-1])
    shown = box.items if not box.more else []
    return {
        "kind": "more" if box.more else "module",
        "label": f"… and {len(box.items)} more"
        if box.more
        else ".".join(map(known.clean, box.scope)),
        "output": any(i in graph.roots for i in box.items),
        "inputs": _sources(box, k, graph, owner),
        "made_at": None,
        "parameters": known.parameters(shown, names),
    } | ({} if box.more else _form(last))


def _operation(n: Node, graph: Graph, owner: dict[Item, int]) -> dict:
    slots = inputs_of(n, graph)
    numbers = [f"{s:.3g}" for s in slots if isinstance(s, int | float)]
    label = known.label_of(n.op)
    return {
        "kind": "output" if n in graph.roots else "op",
        "op": label,
        "label": " ".join([label, *numbers]),
        "scope": [known.clean(s) for s in n.scope],
        "inputs": [_input(s, owner) for s in slots],
        "made_at": known.place_of(n),
    } | _form(n)


def _leaf(item: Tensor | Constant) -> dict:
    wants = isinstance(item, Tensor) and item.requires_grad
    return {
        "kind": "leaf" if wants else "constant",
        "label": "leaf" if wants else "constant",
        "inputs": [],
        "made_at": None,
    } | _form(item)


def _form(item: Item) -> dict:
    """Shape and dtype; a call with several outputs has neither."""
    shape = list(map(int, item.shape)) if isinstance(item.shape, tuple) else None
    return {"shape": shape, "dtype": str(item.o.dtype)}


def _input(s: Slot, owner: dict[Item, int]) -> int | str:
    """The id of a box; a number, or "constant", where there is none."""
    return owner[s] if isinstance(s, Item) else "constant" if s is None else f"{s:.3g}"


def _sources(box: Box, k: int, graph: Graph, owner: dict[Item, int]) -> list[int]:
    """Ids of the boxes that a module, or the rest, reads: each once."""
    read = (owner[e] for i in box.items if i in graph.edges for e in graph.edges[i])
    return [source for source in dict.fromkeys(read) if source != k]


def _add_values(
    nodes: list[dict], boxes: list[Box], graph: Graph, names: dict, values: bool, gradients: bool
) -> None:
    """Summaries of what is known; nothing where nothing is."""
    shown = [(node, box.items[0]) for node, box in zip(nodes, boxes) if not box.whole]
    found = known.values_of([item for _, item in shown], graph, names) if values else {}
    for node, item in shown:
        if item in found:
            node["value"] = known.summary(*found[item])
        tensor = known.tensor_of(item, graph, names) if gradients else None
        if tensor is not None and tensor.grad is not None:
            node["gradient"] = known.summary(values_of(tensor.grad).array, tensor.grad.o)


def _name_modules(nodes: list[dict]) -> None:
    """Drop the outermost name that all share: `conv1`, not `CNN.conv1`; but not for a number."""
    modules = [n for n in nodes if n["kind"] == "module"]
    if len({n["scope"][0] for n in modules}) == 1 and all(
        len(n["scope"]) > 1 and not str(n["scope"][1]).isdigit() for n in modules
    ):
        for n in modules:
            n["label"] = ".".join(map(known.clean, n["scope"][1:]))
    for n in modules:
        n["scope"] = [known.clean(s) for s in n["scope"]]
