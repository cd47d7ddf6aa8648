"""What a box says, in few words: the same in the text, in DOT and in the picture; and its size.

After `describe.py`, whose boxes these are; `layout.py` needs the sizes.
"""

from __future__ import annotations

from math import fsum

from minigrad.viz.known import clean

TITLE_PX, SMALL_PX, ROW_PX = 13, 11, 15
LABEL_LIMIT, VALUE_LIMIT, TIP_LIMIT = 30, 44, 200


def shape_text(shape: list[int]) -> str:
    """As Python writes a shape."""
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def title(node: dict, limit: int = LABEL_LIMIT) -> str:
    """'w' for a leaf, 'h = matmul' for an operation that a variable names."""
    if node["kind"] in ("leaf", "constant"):
        return clean(node["name"] or node["label"], limit)
    name = f"{clean(node['name'], limit // 2)} = " if node["name"] else ""
    return clean(name + node["label"], limit)


def form(node: dict) -> str:
    """Shape, and dtype where it is not float32; nothing for a call with several outputs."""
    if node.get("shape") is None:
        return ""
    dtype = "" if node["dtype"] == "float32" else f" {node['dtype']}"
    return shape_text(node["shape"]) + dtype


def contents(node: dict) -> str:
    """'3 ops, 2 parameters' of a module; of the rest, whose title counts, only if it is mixed."""
    counts = (node["operations"], "op"), (node["leaves"], "parameter")
    if "parameters" not in node or (node["kind"] == "more" and not node["leaves"]):
        return ""
    return ", ".join(f"{k} {word}{'s' * (k != 1)}" for k, word in counts if k)


def measured(node: dict) -> list[str]:
    """Value and gradient, as far as they were asked for and are known."""
    rows = []
    if value := node.get("value"):
        summed_up = any(sign in value for sign in ("±", "…", "%", "all "))
        rows.append(value if summed_up else f"= {value}")
    if gradient := node.get("gradient"):
        rows.append(f"grad {gradient}")
    return rows


def lines(node: dict, made_at: bool = False) -> list[str]:
    """The rows of a box, the first one its title.  A number without axes needs no `()`."""
    rows = [title(node), contents(node), form(node).removeprefix("()").strip()]
    rows += [clean(row, VALUE_LIMIT) for row in measured(node)]
    rows.append(node["made_at"] or "" if made_at else "")
    return [row for row in rows if row]


def tip(node: dict) -> list[str]:
    """What the pointer shows over a box."""
    unsaved = "constant" in node["inputs"]
    rows = [title(node, TIP_LIMIT), form(node)]
    rows.append(f"made at {node['made_at']}" if node["made_at"] else "")
    rows.append("one input is a constant that backward does not need" if unsaved else "")
    rows.append(f"in {'.'.join(node['scope'])}" if node["scope"] else "")
    rows += [contents(node), ", ".join(node.get("parameters", [])[:20])]
    return [clean(row, TIP_LIMIT) for row in rows if row]


# ---- sizes ------------------------------------------------------------------------------
NARROW, BROAD = "iljtfrI.,:;'|!()[] ", "mwMW@%…"


def width_px(text: str, px: float = SMALL_PX) -> float:
    """About how wide a line is, on the generous side: fonts differ from machine to machine."""
    return px * fsum(map(_ems, text))  # exact: sum() rounds differently before Python 3.12


def _ems(c: str) -> float:
    if c in NARROW:
        return 0.34
    if c in BROAD or c > "\u2e80":
        return 0.92
    return 0.72 if c.isupper() else 0.59


def size(rows: list[str]) -> tuple[float, float]:
    """(width, height) of a box with these rows."""
    wide = max([22.0, width_px(rows[0], TITLE_PX), *map(width_px, rows[1:])])
    return round(wide + 20, 1), 13.0 + ROW_PX * len(rows)
