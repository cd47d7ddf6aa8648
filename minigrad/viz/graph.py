"""The view of a graph: `data`, `text`, `dot`, `svg`, and `draw`, which holds all in one Picture.

`draw(loss)` in a notebook shows the picture; in a terminal the text, which says the same.  After
`engines.py`; `show.py` lets a tensor draw itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from functools import cached_property
from html import escape
from pathlib import Path

from minigrad.save import write_whole
from minigrad.tensor import Tensor
from minigrad.viz import engines, known, paint, words
from minigrad.viz.describe import data


def draw(
    tensor: Tensor | Iterable[Tensor],
    *,
    fold: bool | str = "auto",
    depth: int | None = None,
    max_nodes: int = 80,
    values: bool = False,
    gradients: bool = False,
    params=None,
    made_at: bool = False,
    direction: str | None = None,
    engine: str | None = None,
) -> Picture:
    """The graph behind a tensor, as it is now.

    `fold`: by module – True, False, or "auto" while there are more than `max_nodes` boxes;
    `depth`: names of a scope told apart.  `values`, `gradients`, `made_at`: say them too.
    `params`: a Module or a dict that names tensors; others go by your variables.
    `direction`: "LR", "TB", or what fits.  `engine`: "dot", "layered", or what is there."""
    names = known.with_variables(params, known.variables(sys._getframe(1)))
    options = dict(fold=fold, depth=depth, max_nodes=max_nodes, values=values, gradients=gradients)
    return Picture(data(tensor, params=names, **options), direction, engine, made_at)


def text(obj: Tensor | Iterable[Tensor], **options) -> str:
    """The listing: options as those of `draw`, but no name is guessed from your variables."""
    return _picture(obj, **options).text


def dot(obj: Tensor | Iterable[Tensor], **options) -> str:
    """The DOT source: options as those of `text`."""
    return _picture(obj, **options).dot


def svg(obj: Tensor | Iterable[Tensor], **options) -> str:
    """The SVG picture: options as those of `text`."""
    return _picture(obj, **options).svg


def _picture(obj, direction=None, engine=None, made_at=False, **options) -> Picture:
    return Picture(data(obj, **options), direction, engine, made_at)


class Picture:
    """A graph at the moment it was drawn: `.data .text .dot .svg .html .save("graph.svg")`."""

    def __init__(
        self,
        data: dict,
        direction: str | None = None,
        engine: str | None = None,
        made_at: bool = False,
    ) -> None:
        if direction not in (None, "LR", "TB"):
            raise ValueError(f'draw: direction must be "LR" or "TB", got {direction!r}')
        if engine not in (None, "dot", "layered"):
            raise ValueError(f'draw: engine must be "dot" or "layered", got {engine!r}')
        self.data, self.direction, self.engine, self.made_at = data, direction, engine, made_at

    @cached_property
    def text(self) -> str:
        return listing(self.data, self.made_at)

    @cached_property
    def dot(self) -> str:
        return engines.dot_source(self.data, self.direction or "LR", self.made_at)

    @cached_property
    def svg(self) -> str:
        layout = engines.placed(self.data, self.direction, self.engine, self.made_at)
        return paint.svg(self.data, layout, self.made_at)

    @property
    def html(self) -> str:
        """A page of its own: the picture, and the listing under it."""
        return (
            '<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>graph</title>\n'
            f"<body>\n{self.svg}\n<pre>{escape(self.text)}</pre>\n</body>\n</html>\n"
        )

    def save(self, path: str | os.PathLike) -> Path:
        """Write it as the suffix says (.svg .html .dot .txt): whole, or not at all."""
        target = Path(path)
        kinds = {".svg": "svg", ".html": "html", ".dot": "dot", ".txt": "text"}
        if target.suffix not in kinds:
            raise ValueError(
                f"save: do not know how to write {target.suffix!r}; use one of {' '.join(kinds)}"
            )
        content = getattr(self, kinds[target.suffix]).encode("utf-8", "replace")
        write_whole(str(target), content)
        return target

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        return {"text/plain": self.text, "image/svg+xml": self.svg}


# ---- text -------------------------------------------------------------------------------
def listing(data: dict, made_at: bool = False) -> str:
    """One numbered line a box, in the order things ran: `3  h = mul  (3, 4)  ← 1 w, 2 x`."""
    by_id = {n["id"]: n for n in data["nodes"]}
    rows = [_row(n, by_id, made_at) for n in data["nodes"]]
    wide = [max(len(row[k]) for row in rows) for k in range(3)]
    body = [f"{a:>{wide[0]}}  {b:<{wide[1]}}  {c:<{wide[2]}}  {d}".rstrip() for a, b, c, d in rows]
    return "\n".join([*body, *(f"({note})" for note in data["notes"])])


def _row(node: dict, by_id: dict[int, dict], made_at: bool) -> tuple[str, str, str, str]:
    """(number, what it is, its form, where it comes from and what is known of it)."""
    reads = ", ".join(_reference(s, by_id) for s in node["inputs"])
    role = {"leaf": "leaf", "constant": "constant"}.get(node["kind"], "") if node["name"] else ""
    inside = words.contents(node)
    rest = [f"← {reads}" if reads else role, f"[{inside}]" if inside else "", *words.measured(node)]
    rest += [f"at {node['made_at']}"] if made_at and node["made_at"] else []
    return str(node["id"]), words.title(node, 40), words.form(node), "  ".join(filter(None, rest))


def _reference(source: int | str, by_id: dict[int, dict]) -> str:
    """'1 w': the number of a box and a word to know it by; anything else as it is."""
    if isinstance(source, str):
        return source
    node = by_id[source]
    return f"{source} {known.clean(node['name'] or node['label'], 20)}"
