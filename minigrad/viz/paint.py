"""From a layout to SVG, in the colours of each kind.  Both engines draw with this.

Only attributes, no style sheet, script or link: it looks the same in JupyterLab, in nbconvert's
HTML and on GitHub.  After `rows.py`, before `engines.py`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from html import escape
from math import hypot

from minigrad.viz.layout import Layout, Place, Point
from minigrad.viz.words import ROW_PX, SMALL_PX, TITLE_PX, lines, tip, width_px

FONT = "Helvetica, Arial, 'DejaVu Sans', sans-serif"
INK, QUIET, LINE = "#1f2d3a", "#4f6272", "#8496a4"


@dataclass(frozen=True)
class Look:
    """How boxes of one kind look, and what the legend calls them."""

    fill: str
    border: str
    corner: float
    meaning: str
    dashes: str = "none"
    pen: float = 1.2


LOOKS = {
    "leaf": Look("#e4f3e3", "#4f9a58", 3, "wants a gradient"),
    "constant": Look("#eef1f3", "#93a4b0", 3, "constant"),
    "op": Look("#e5effa", "#5a8cc4", 11, "operation"),
    "module": Look("#efe9f7", "#8b74b5", 5, "module", pen=1.8),
    "more": Look("#ffffff", "#93a4b0", 5, "left out", dashes="4 3"),
    "output": Look("#fdeccf", "#d68a2e", 11, "output", pen=1.8),
}


def svg(data: dict, layout: Layout, made_at: bool = False, heading: str = "") -> str:
    """The whole picture, under the lines of `heading`; it shrinks to the page, and never grows."""
    many = Counter(map(tuple, data["edges"]))
    body = [_line(path, many[edge]) for edge, path in layout.paths.items()]
    body += [_box(n, layout.places[n["id"]], lines(n, made_at)) for n in data["nodes"]]
    legend, wide = _legend(data, layout.height)
    for i, note in enumerate(data["notes"]):
        body.append(_text(8, layout.height + 30 + 16 * i, note, anchor="start"))
        wide = max(wide, 16 + width_px(note))
    above, top = _heading_lines(heading)
    if above:
        wide = max([wide, *(16 + 7.3 * len(line) for line in heading.split("\n"))])
        body = [*above, f'<g transform="translate(0 {top})">', *body, legend, "</g>"]
    else:
        body.append(legend)
    width, height = max(layout.width, wide), top + layout.height + 22 + 16 * len(data["notes"])
    said = f"graph of {data['operations']} operations and {data['leaves']} leaves"
    return whole(body, width, height, said)


def whole(parts: list[str], width: float, height: float, said: str) -> str:
    """The picture of these parts, which shrinks to the page; `said` is what it is to those who do not see it."""
    return _tag("svg", "\n".join(["", *parts, ""]), xmlns="http://www.w3.org/2000/svg",
                viewBox=f"0 0 {width:.5g} {height:.5g}", width=width, height=height,
                style="max-width:100%;height:auto", role="img", aria_label=said, font_family=FONT)


def _tag(tag: str, inside: str = "", **attributes: object) -> str:
    """One element; attribute values are escaped, `inside` is SVG already."""
    pairs = ((k.rstrip("_").replace("_", "-"), v) for k, v in attributes.items())
    texts = ((k, f"{v:.5g}" if isinstance(v, float | int) else escape(str(v))) for k, v in pairs)
    head = "".join(f' {k}="{v}"' for k, v in texts)
    return f"<{tag}{head}>{inside}</{tag}>" if inside else f"<{tag}{head}/>"


def _text(x: float, y: float, text: str, small: bool = True, anchor: str = "middle") -> str:
    px, ink = (SMALL_PX, QUIET) if small else (TITLE_PX, INK)
    return _tag("text", escape(text), x=x, y=y, font_size=px, text_anchor=anchor, fill=ink)


def _heading_lines(heading: str) -> tuple[list[str], int]:
    """(the lines above the picture in a typewriter font, the height they take)."""
    found = []
    for i, line in enumerate(heading.split("\n") if heading else ()):
        look = dict(font_family="'DejaVu Sans Mono', Menlo, Consolas, monospace", font_size=12)
        words = escape(line.replace(" ", "\N{NO-BREAK SPACE}"))
        found.append(_tag("text", words, x=8, y=16 + 16 * i, fill=INK, **look))
    return found, 16 * len(found) + 8 * bool(found)


# ---- boxes ------------------------------------------------------------------------------
def _box(node: dict, at: Place, rows: list[str]) -> str:
    look = LOOKS[node["kind"]]
    border = LOOKS["output"].border if node.get("output") else look.border
    parts = [_tag("title", escape("\n".join(tip(node)))), _rect(at, look, border, look.corner)]
    middle, first = at.x + at.width / 2, at.y + 11 + ROW_PX / 2
    parts += [_text(middle, first + ROW_PX * i, row, small=i > 0) for i, row in enumerate(rows)]
    return _tag("g", "".join(parts), class_=f"node {node['kind']}")


def _rect(at: Place, look: Look, border: str, corner: float) -> str:
    pen = dict(fill=look.fill, stroke=border, stroke_width=look.pen, stroke_dasharray=look.dashes)
    return _tag("rect", x=at.x, y=at.y, width=at.width, height=at.height, rx=corner, **pen)


def _legend(data: dict, top: float) -> tuple[str, float]:
    """(the kinds that occur, as small squares with their meaning; the width it takes)."""
    found, x = [], 8.0
    kinds = {n["kind"] for n in data["nodes"]}
    for look in (look for kind, look in LOOKS.items() if kind in kinds):
        found.append(_rect(Place(x, top + 5, 10, 10), look, look.border, min(look.corner, 5)))
        found.append(_text(x + 15, top + 14, look.meaning, anchor="start"))
        x += 31 + width_px(look.meaning)
    return _tag("g", "".join(found)), x


# ---- lines ------------------------------------------------------------------------------
def _line(path: list[Point], times: int) -> str:
    """A line with its arrow; an input that is read twice says so."""
    (x, y), (dx, dy) = path[-1], _heading(path)
    head = [(x, y), *((x - 7 * dx + s * dy, y - 7 * dy - s * dx) for s in (3.2, -3.2))]
    corners = " ".join(f"{a:.5g},{b:.5g}" for a, b in head)
    parts = [
        _tag("path", d=_curve([*path[:-1], (x - 4 * dx, y - 4 * dy)]), fill="none", stroke=LINE),
        _tag("polygon", points=corners, fill=LINE),
    ]
    if times > 1:  # beside the arrow, on the side that the line does not come from
        side = 1 if dx * (path[0][1] - y) < dy * (path[0][0] - x) else -1
        at = x - 15 * dx - 12 * side * dy, y - 15 * dy + 8 * side * dx + 4
        parts.append(_text(*at, f"×{times}"))
    return _tag("g", "".join(parts), stroke_width=1.3)


def _heading(path: list[Point]) -> Point:
    """The direction in which a line arrives, of length 1."""
    x, y = path[-1]
    a, b = next((p for p in reversed(path) if hypot(x - p[0], y - p[1]) > 0.01), (x - 1, y))
    long = hypot(x - a, y - b)
    return (x - a) / long, (y - b) / long


def _curve(path: list[Point]) -> str:
    """A start and cubic Bézier segments as SVG writes them."""
    marks = ["M", *("C" if i % 3 == 0 else "" for i in range(len(path) - 1))]
    return " ".join(f"{mark}{x:.5g} {y:.5g}" for mark, (x, y) in zip(marks, path))
