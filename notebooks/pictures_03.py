"""Pictures of notebook 03: syntax trees, two graphs side by side, a scene with what was found in it.

After `pictures.py`, whose colours these are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from pictures import EDGE, INK, QUIET, SEEN, USED, _text

import minigrad as mg
from minigrad.tour import Drawing
from minigrad.viz import Picture

ROW, GAP, HIGH, LETTER = 52, 12, 26, 7.2
SIZE = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')
SHADES = (USED, SEEN, "#e3f1df", "#f3e3ef")


# ---- trees --------------------------------------------------------------------------------------
def tree(labels: Sequence[str], children: Sequence[Sequence[int]], levels: bool = False) -> Drawing:
    """A tree whose node 0 is the root; with `levels` nodes of one depth have one colour."""
    wide = [round(LETTER * len(label)) + 14 for label in labels]
    depth, order = _walked(children)
    middle, places = {}, dict.fromkeys(depth.values(), 8.0)
    for k in order:  # children before parents
        below = [middle[c] for c in children[k]]
        wanted = (below[0] + below[-1]) / 2 if below else places[depth[k]] + wide[k] / 2
        shift = max(0.0, places[depth[k]] + wide[k] / 2 - wanted)
        _move(k, shift, children, middle, places, wide, depth)
        middle[k] = wanted + shift
        places[depth[k]] = middle[k] + wide[k] / 2 + GAP
        for low in range(depth[k] + 1, max(places) + 1):  # a leaf keeps the place below it free
            places[low] = max(places[low], places[depth[k]] - wide[k]) if not children[k] else places[low]
    top = {k: 8 + ROW * depth[k] for k in middle}
    lines = [
        f'<path d="M{middle[k]:.1f} {top[k] + HIGH}L{middle[c]:.1f} {top[c]}" stroke="{EDGE}"/>'
        for k in sorted(middle)
        for c in children[k]
    ]
    boxes = []
    for k, x in sorted(middle.items()):
        fill = SHADES[depth[k] % len(SHADES)] if levels else SEEN if children[k] else USED
        boxes.append(
            f'<rect x="{x - wide[k] / 2:.1f}" y="{top[k]}" width="{wide[k]}" height="{HIGH}" rx="5" fill="{fill}" '
            f'stroke="{EDGE}"/>' + _text(round(x, 1), top[k] + 17, labels[k], 12, INK, "middle")
        )
    width = round(max(x + wide[k] / 2 for k, x in middle.items())) + 8
    return Drawing(_indented(labels, children), width, max(top.values()) + HIGH + 8, "".join(lines + boxes))


def _walked(children: Sequence[Sequence[int]]) -> tuple[dict[int, int], list[int]]:
    """(depth of each node below node 0, nodes with children before parents and left before right)."""
    depth, order, stack = {0: 0}, [], [0]
    while stack:
        k = stack.pop()
        order.append(k)
        for c in children[k]:
            depth[c] = depth[k] + 1
            stack.append(c)
    return depth, order[::-1]


def _move(k: int, shift: float, children, middle: dict, places: dict, wide: Sequence[int], depth: dict) -> None:
    """Everything below node k to the right, with the places that are free there."""
    stack = list(children[k]) if shift else []
    while stack:
        c = stack.pop()
        middle[c] += shift
        places[depth[c]] = max(places[depth[c]], middle[c] + wide[c] / 2 + GAP)
        stack += children[c]


def _indented(labels: Sequence[str], children: Sequence[Sequence[int]]) -> str:
    rows, stack = [], [(0, 0)]
    while stack:
        k, depth = stack.pop()
        rows.append("  " * depth + labels[k])
        stack += [(c, depth + 1) for c in reversed(children[k])]
    return "\n".join(rows)


# ---- graphs -------------------------------------------------------------------------------------
def beside(**shown: Picture | Drawing) -> Drawing:
    """Pictures side by side, each under its name."""
    x, height, parts, words = 0.0, 0.0, [], []
    for name, picture in shown.items():
        title = name.replace("_", " ")
        wide, high = map(float, SIZE.search(picture.svg).groups())
        inner = picture.svg.replace("<svg ", f'<svg x="{x:g}" y="24" ', 1)
        parts += [_text(x + 8, 16, title, 13, INK), inner.replace('style="max-width:100%;height:auto" ', "", 1)]
        words.append(f"{title}\n{picture!r}")
        x, height = x + max(wide, 8 * len(title)) + 30, max(height, high)
    return Drawing("\n\n".join(words), round(x), round(height) + 30, "\n".join(parts))


# ---- scenes -------------------------------------------------------------------------------------
def scenes(canvases: mg.Tensor, places: Sequence[tuple[int, int]], captions: Sequence[str], side: int = 8) -> Drawing:
    """Images (N, 1, H, W) in [0, 1], each with a frame where something was found."""
    cell, body = 6, []
    for k, (image, (row, column), caption) in enumerate(zip(canvases.numpy()[:, 0], places, captions)):
        high, wide = image.shape
        ink = "".join(
            f'<path d="M{c} {r}h1v1h-1z" fill-opacity="{v:.2f}"/>' for (r, c), v in np.ndenumerate(image) if v
        )
        frame = f'<rect x="{column}" y="{row}" width="{side}" height="{side}" fill="none" stroke="#d0532b" '
        body.append(
            f'<g transform="translate({8 + k * (wide * cell + 16)} 8)"><g transform="scale({cell})" fill="{INK}">{ink}'
            f'{frame}stroke-width="0.5"/></g>'
            f'<rect width="{wide * cell}" height="{high * cell}" fill="none" stroke="{EDGE}"/>'
            + _text(wide * cell / 2, high * cell + 16, caption, 12, QUIET, "middle")
            + "</g>"
        )
    high, wide = canvases.shape[2:]
    words = "; ".join(f"{caption} at {tuple(place)}" for caption, place in zip(captions, places))
    return Drawing(words, 8 + len(body) * (wide * cell + 16), high * cell + 34, "".join(body))
