"""Pictures of memory: the live bytes of a tracked block, and what a step needs, part by part, in several ways.

The timeline and its colours are those of `minigrad.viz.memory`.
"""

from __future__ import annotations

from collections.abc import Mapping

from pictures import EDGE, INK, QUIET, _text

from minigrad.memory import Tracker
from minigrad.tour import Drawing
from minigrad.viz import memory as view

LEFT, WIDE, HIGH, TOP = 150, 420, 24, 34


class Timeline:
    """A tracked block (`mg.memory.track`) as a picture; in words the same in letters."""

    def __init__(self, tracker: Tracker) -> None:
        self.told, self.words = view.data(tracker), view.text(tracker).split("\n\n")[0]

    def __repr__(self) -> str:
        return self.words

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        return {"text/plain": self.words, "image/svg+xml": view.svg(self.told)}


timeline = Timeline


def bars(rows: Mapping[str, Mapping[str, float]], unit: str = "MB") -> Drawing:
    """A bar for each row, made of its parts; parts named as the categories of a tracker have their colours."""
    most = max(sum(parts.values()) for parts in rows.values())
    names = [name for name in view.ORDER if any(parts.get(name) for parts in rows.values())]
    body, told = [], []
    for k, name in enumerate(names):
        x = LEFT + k * 110
        body.append(f'<path d="M{x} 8h10v10h-10z" fill="{view.COLOURS[name]}"/>{_text(x + 15, 17, name, 11, QUIET)}')
    for k, (row, parts) in enumerate(rows.items()):
        x, y, total = float(LEFT), TOP + k * (HIGH + 8), sum(parts.values())
        body.append(_text(LEFT - 10, y + 16, row, 12, INK, "end"))
        for name in [name for name in names if parts.get(name)]:
            wide = round(parts[name] / most * WIDE, 1)
            body.append(f'<path d="M{x:.1f} {y}h{wide}v{HIGH}h-{wide}z" fill="{view.COLOURS[name]}"/>')
            x += wide
        body.append(_text(x + 6, y + 16, f"{total:.3g} {unit}", 12, INK))
        words = ", ".join(f"{name} {parts[name]:.3g}" for name in names if parts.get(name))
        told.append(f"{row:<16} {total:>6.3g} {unit}: {words}")
    high = TOP + len(rows) * (HIGH + 8) + 4
    body.append(f'<path d="M{LEFT} {TOP - 4}V{high - 8}" stroke="{EDGE}"/>')
    return Drawing("\n".join(told), LEFT + WIDE + 90, high, "\n".join(body))
