"""From a layout to SVG: what stands in a box, how big it is, in which colours.  Both engines draw with these.

Only attributes, no style sheet, script or link: it looks the same in JupyterLab, in nbconvert's
HTML and on GitHub.  After `rows.py`, before `engines.py`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from html import escape
from math import hypot

from minigrad.viz.known import clean
from minigrad.viz.layout import Layout, Place, Point

FONT = "Helvetica, Arial, 'DejaVu Sans', sans-serif"
INK, QUIET, LINE = "#1f2d3a", "#4f6272", "#8496a4"
TITLE_PX, SMALL_PX, ROW_PX = 13, 11, 15
LABEL_LIMIT, TIP_LIMIT = 30, 200


@dataclass(frozen=True)
class Look:
    """How boxes of one kind look, and what the legend calls them."""

    fill: str
    border: str
    corner: float
    meaning: str
    dashes: str = ""
    pen: float = 1.2


LOOKS = {
    "leaf": Look("#e4f3e3", "#4f9a58", 3, "wants a gradient"),
    "constant": Look("#eef1f3", "#93a4b0", 3, "constant"),
    "op": Look("#e5effa", "#5a8cc4", 11, "operation"),
    "module": Look("#efe9f7", "#8b74b5", 5, "module", pen=1.8),
    "more": Look("#ffffff", "#93a4b0", 5, "left out", dashes="4 3"),
    "output": Look("#fdeccf", "#d68a2e", 11, "output", pen=1.8),
}


# ---- what a box says -------------------------------------------------------------------------------------------
def shape_text(shape: list[int] | None) -> str:
    """As Python writes a shape; nothing for a call with several outputs."""
    return (
        "" if shape is None else f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
    )


def title(node: dict, limit: int = LABEL_LIMIT) -> str:
    """'w' for a leaf, 'h = matmul' for an operation that a variable names."""
    if node["kind"] in ("leaf", "constant"):
        return clean(node["name"] or node["label"], limit)
    name = f"{clean(node['name'], limit // 2)} = " if node["name"] else ""
    return clean(name + node["label"], limit)


def form(node: dict) -> str:
    """Shape, and dtype where it is not float32; a plain number says so."""
    shape, dtype = node.get("shape"), node.get("dtype")
    return " ".join(
        [shape_text(shape)] * (shape is not None) + [dtype] * (dtype not in (None, "float32"))
    )


def contents(node: dict) -> str:
    """'3 ops, 2 parameters' of a module or of the rest."""
    counts = (node["operations"], "op"), (node["leaves"], "parameter")
    if node["kind"] == "more" and not node["leaves"]:
        return ""
    return ", ".join(f"{k} {word}{'s' * (k != 1)}" for k, word in counts if k)


def lines(node: dict, made_at: bool = False) -> list[str]:
    """The rows of a box, the first one its title.  A number without axes needs no `()`."""
    rows = [
        title(node),
        contents(node) if "parameters" in node else "",
        form(node).removeprefix("()").strip(),
    ]
    rows += [clean(row, LABEL_LIMIT) for row in measured(node)]
    return list(filter(None, [*rows, made_at and node["made_at"]]))


def measured(node: dict) -> list[str]:
    """Value and gradient, as far as they were asked for and are known."""
    value, gradient = node.get("value"), node.get("gradient")
    whole = value and not any(sign in value for sign in ("±", "…", "%", "all "))
    return [f"= {value}" if whole else value] * bool(value) + [f"grad {gradient}"] * bool(gradient)


def tip(node: dict) -> str:
    """What the pointer shows over a box."""
    rows = [title(node, TIP_LIMIT), form(node), node["made_at"] and f"made at {node['made_at']}"]
    rows += ["with a constant that nothing needed later" if "constant" in node["inputs"] else ""]
    rows += [
        f"in {'.'.join(node['scope'])}" if node["scope"] else "",
        contents(node) if "parameters" in node else "",
    ]
    rows += [", ".join(node.get("parameters", [])[:20])]
    return "\n".join(clean(row, TIP_LIMIT) for row in rows if row)


# ---- sizes ------------------------------------------------------------------------------------------------------
def _width_px(text: str, px: float) -> float:
    """About how wide a line is, on the generous side: fonts differ from machine to machine."""
    return px * sum(
        0.34
        if c in "iljtfrI.,:;'|!()[] "
        else 0.92
        if c in "mwMW@%…" or c > "\u2e80"
        else 0.72
        if c.isupper()
        else 0.59
        for c in text
    )


def size(rows: list[str]) -> Point:
    """(width, height) of a box with these rows."""
    wide = max([_width_px(rows[0], TITLE_PX), *(_width_px(row, SMALL_PX) for row in rows[1:])])
    return round(max(wide, 22) + 20, 1), 13.0 + ROW_PX * len(rows)


# ---- SVG --------------------------------------------------------------------------------------------------------
def svg(data: dict, layout: Layout, made_at: bool = False) -> str:
    """The whole picture; it shrinks to the width of the page, and never grows."""
    legend, legend_width = _legend(data, layout.height)
    width, height = max(layout.width, legend_width), layout.height + 22 + 16 * len(data["notes"])
    shift = (width - layout.width) / 2
    body = [f'<g transform="translate({shift:.4g} 0)">' * bool(shift)]
    many = Counter(map(tuple, data["edges"]))
    body += [_line(path, many[edge]) for edge, path in layout.paths.items()]
    body += [_box(node, layout.places[node["id"]], lines(node, made_at)) for node in data["nodes"]]
    body += ["</g>" * bool(shift), legend]
    body += [
        _text(8, layout.height + 28 + 16 * i, note, SMALL_PX, QUIET, "start")
        for i, note in enumerate(data["notes"])
    ]
    label = f"graph of {data['operations']} operations and {data['leaves']} leaves"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.5g} {height:.5g}" width="{width:.5g}" '
        f'height="{height:.5g}" style="max-width:100%;height:auto" role="img" aria-label="{label}" '
        f'font-family="{FONT}">\n' + "\n".join(filter(None, body)) + "\n</svg>"
    )


def _box(node: dict, at: Place, rows: list[str]) -> str:
    look = LOOKS[node["kind"]]
    border = LOOKS["output"].border if node.get("output") else look.border
    dashes = f' stroke-dasharray="{look.dashes}"' if look.dashes else ""
    middle, first = at.x + at.width / 2, at.y + 6.5 + ROW_PX / 2 + 4.5
    texts = [
        _text(middle, first + ROW_PX * i, row, *((SMALL_PX, QUIET) if i else (TITLE_PX, INK)))
        for i, row in enumerate(rows)
    ]
    return (
        f'<g class="node {node["kind"]}"><title>{escape(tip(node))}</title>'
        f'<rect x="{at.x:.5g}" y="{at.y:.5g}" width="{at.width:.5g}" height="{at.height:.5g}" rx="{look.corner}" '
        f'fill="{look.fill}" stroke="{border}" stroke-width="{look.pen}"{dashes}/>{"".join(texts)}</g>'
    )


def _text(x: float, y: float, text: str, px: int, ink: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.5g}" y="{y:.5g}" font-size="{px}" text-anchor="{anchor}" fill="{ink}">{escape(text)}</text>'


def _line(path: list[Point], times: int) -> str:
    """A line with its arrow; an input that is read twice says so."""
    tip, towards = (
        path[-1],
        next((p for p in reversed(path[:-1]) if p != path[-1]), (path[-1][0] - 1, path[-1][1])),
    )
    long = hypot(tip[0] - towards[0], tip[1] - towards[1])
    dx, dy = (tip[0] - towards[0]) / long, (tip[1] - towards[1]) / long
    back = tip[0] - 7 * dx, tip[1] - 7 * dy
    arrow = [
        tip,
        (back[0] - 3.2 * dy, back[1] + 3.2 * dx),
        (back[0] + 3.2 * dy, back[1] - 3.2 * dx),
    ]
    ends = [*path[:-1], (tip[0] - 4 * dx, tip[1] - 4 * dy)]
    curve = " ".join(
        ("M" if i == 0 else "C" if i % 3 == 1 else "") + f"{x:.5g} {y:.5g}"
        for i, (x, y) in enumerate(ends)
    )
    corners = " ".join(f"{x:.5g},{y:.5g}" for x, y in arrow)
    # the note stands on the side that the line does not come from
    side = 1 if dx * (path[0][1] - tip[1]) < dy * (path[0][0] - tip[0]) else -1
    at = tip[0] - 15 * dx - 12 * side * dy, tip[1] - 15 * dy + 8 * side * dx + 4
    note = _text(*at, f"×{times}", SMALL_PX, QUIET) if times > 1 else ""
    return (
        f'<g class="edge"><path d="{curve}" fill="none" stroke="{LINE}" stroke-width="1.3"/>'
        f'<polygon points="{corners}" fill="{LINE}"/>{note}</g>'
    )


def _legend(data: dict, top: float) -> tuple[str, float]:
    """(the kinds that occur, as small squares with their meaning, the width it takes)."""
    found, x = [], 8.0
    for kind, look in LOOKS.items():
        if any(n["kind"] == kind for n in data["nodes"]):
            found.append(
                f'<rect x="{x:.5g}" y="{top + 5:.5g}" width="10" height="10" rx="{min(look.corner, 5)}" fill="{look.fill}" '
                f'stroke="{look.border}"/>'
                + _text(x + 15, top + 14, look.meaning, SMALL_PX, QUIET, "start")
            )
            x += 31 + _width_px(look.meaning, SMALL_PX)
    return f'<g class="legend">{"".join(found)}</g>', x
