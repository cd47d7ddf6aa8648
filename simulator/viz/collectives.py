"""A collective as a picture: time goes down, a row a round; in each rank's box the chunks that it has by then.

`data(plan)` is plain data, from which `text` and `html` are made.  Long and wide plans are shown in part, and say so.
"""
from __future__ import annotations

from html import escape
from itertools import groupby
from typing import Any

from simulator.collectives.plan import REDUCING, Plan
from simulator.collectives.prices import Bytes
from simulator.collectives.proof import states
from simulator.topology import runs
from simulator.units import show

RANKS, ROUNDS, CELLS = 16, 16, 32                             # drawn at most; cells of a box
INK, QUIET, KEEP, ADD, EMPTY = "#1f2d3a", "#4f6272", "#3d7ab8", "#c77a1e", "#f3f5f7"
FONT = "Helvetica, Arial, 'DejaVu Sans', sans-serif"
BOX_W, BOX_H, STEP_X, STEP_Y, LEFT, TOP = 64.0, 20.0, 92.0, 74.0, 74.0, 58.0


# ---- data ----------------------------------------------------------------------------------------
def data(plan: Plan, nbytes: Bytes | None = None) -> dict[str, Any]:
    """{"name", "kind", "world", "chunks", "rounds", "has"}.

    rounds: of each its messages, {"src", "dst", "chunks", "combine", "nbytes"}: the chunks that `dst` keeps and those
    that it combines; bytes with `nbytes` only, else None.  has: before and after each round, of each rank and chunk the
    part of what counts that it holds: of so many ranks' values if they are combined, else 0 or 1.  A plan that
    `check` refuses raises here too."""
    sizes = None if nbytes is None else plan.sizes(nbytes)
    rounds = [[{"src": m.src, "dst": m.dst, "chunks": [c for c, add in zip(m.chunks, m.reduce) if not add],
                "combine": [c for c, add in zip(m.chunks, m.reduce) if add],
                "nbytes": None if sizes is None else sum(sizes[c] for c in m.chunks)} for m in messages]
              for messages in plan.messages]
    of = plan.world if plan.kind in REDUCING else 1
    has = [[[values[c].ranks.bit_count() / of if c in values else 0.0 for c in range(plan.chunks)] for values in state]
           for state in states(plan)]
    return {"name": plan.name, "kind": plan.kind, "world": plan.world, "chunks": plan.chunks, "rounds": rounds,
            "has": has}


def _shown(count: int, most: int) -> list[int | None]:
    """Which of so many rows: all, or the first and the last with None for those between."""
    if count <= most:
        return list(range(count))
    return [*range(most - most // 4 - 1), None, *range(count - most // 4, count)]


# ---- text ----------------------------------------------------------------------------------------
def text(plan: Plan, nbytes: Bytes | None = None) -> str:
    """A row a round, a column a rank: what it sends.  "3→1": chunk 3 to rank 1, which keeps it; "3→+1": combines it."""
    told = data(plan, nbytes)
    ranks = range(min(plan.world, RANKS))
    rows = [["round", *(f"rank {r}" for r in ranks)] + (["bytes"] if nbytes is not None else [])]
    for k in _shown(len(told["rounds"]), 4 * ROUNDS):
        if k is None:
            rows.append(["…"])
            continue
        messages = told["rounds"][k]
        cells = [_cell([m for m in messages if m["src"] == rank]) for rank in ranks]
        total = [show(sum(m["nbytes"] for m in messages), "B")] if nbytes is not None else []
        rows.append([str(k), *cells, *total])
    widths = [max(len(row[c]) for row in rows if c < len(row)) for c in range(len(rows[0]))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    hidden = [f"and {plan.world - RANKS} ranks more"] if plan.world > RANKS else []
    meaning = [f"{_plus(plan)}3→1: chunk 3 to rank 1, which keeps it"] if plan.rounds else ["nothing is sent"]
    return "\n".join([str(plan), *table, *hidden, *meaning])


def _plus(plan: Plan) -> str:
    return "3→+1: rank 1 combines it with its own; " if plan.kind in REDUCING else ""


def _cell(messages: list[dict[str, Any]]) -> str:
    """What one rank sends in one round, in short."""
    if len(messages) > 3:
        targets = runs([m["dst"] for m in messages]).replace(", ", ",")
        plus = "+" if any(m["combine"] for m in messages) else ""
        chunks = sorted({c for m in messages for c in m["chunks"] + m["combine"]})
        return f"{_chunks(chunks)}→{plus}{targets}"
    return " ".join(f"{_chunks(m[what])}→{plus}{m['dst']}" for m in messages
                    for what, plus in (("combine", "+"), ("chunks", "")) if m[what])


def _chunks(chunks: list[int]) -> str:
    told = runs(chunks).replace(", ", ",")
    return told if len(told) <= 14 else f"{len(chunks)} chunks"


# ---- SVG -----------------------------------------------------------------------------------------
def html(plan: Plan, nbytes: Bytes | None = None) -> str:
    """One SVG, which needs nothing from outside; tips tell what a message or a box is."""
    told = data(plan, nbytes)
    ranks, rows = range(min(plan.world, RANKS)), _shown(len(told["rounds"]) + 1, ROUNDS + 1)
    body = [f'<text x="14" y="22" font-size="14" fill="{INK}">{escape(str(plan))}</text>']
    body += [f'<text x="{_x(r):.0f}" y="{TOP - 16:.0f}" font-size="12" text-anchor="middle" fill="{QUIET}">rank {r}'
             "</text>" for r in ranks]
    boxes = []
    for row, k in enumerate(rows):
        y = TOP + STEP_Y * row
        if k is None:
            body.append(_label(y, f"… {len(told['rounds']) - ROUNDS + 1} rounds"))
            continue
        body.append(_label(y, "before" if k == 0 else f"round {k - 1}"))
        boxes += [_box(told, k, rank, y) for rank in ranks]
        if k and rows[row - 1] is not None:
            body += [_arrow(told, m, y) for m in told["rounds"][k - 1] if max(m["src"], m["dst"]) < RANKS]
    low = TOP + STEP_Y * len(rows) - 26
    for line, (colour, words) in enumerate(_legend(plan)):
        at = low + 18 * line
        sample = f'<path d="M14 {at - 4:.0f}h20" stroke="{colour}" stroke-width="2.5"/>' if colour else ""
        body.append(f'{sample}<text x="{40 if colour else 14}" y="{at:.0f}" font-size="12" fill="{QUIET}">'
                    f"{escape(words)}</text>")
    said = [str(plan), *(row for _, row in _legend(plan))]
    width, height = max(_x(ranks[-1]) + 60, 50 + 6.2 * max(map(len, said))), low + 18 * len(_legend(plan))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
            f'height="{height:.0f}" style="max-width:100%;height:auto" role="img" font-family="{FONT}" '
            f'aria-label="{escape(plan.name)}">\n' + "\n".join([*body, *boxes]) + "\n</svg>")


def _x(rank: int) -> float:
    return LEFT + BOX_W / 2 + STEP_X * rank


def _label(y: float, words: str) -> str:
    return f'<text x="14" y="{y + 14:.0f}" font-size="12" fill="{QUIET}">{escape(words)}</text>'


def _legend(plan: Plan) -> list[tuple[str, str]]:
    parts = "how many ranks' values it holds" if plan.kind in REDUCING else "whether it is there"
    rows = [(KEEP, "a chunk is sent and kept")]
    rows += [(ADD, "a chunk is sent and combined with the receiver's")] if plan.kind in REDUCING else []
    rows.append(("", f"in a box: the chunks of a rank after the round; shade: {parts}"))
    if plan.world > RANKS:
        rows.append(("", f"ranks {RANKS} … {plan.world - 1} and their messages are not drawn"))
    return rows


def _box(told: dict[str, Any], k: int, rank: int, y: float) -> str:
    """The chunks of a rank as cells; more than CELLS are put together, with the mean of their shades."""
    levels = told["has"][k][rank]
    cells = min(len(levels), CELLS)
    wide, left = BOX_W / cells, _x(rank) - BOX_W / 2
    parts, cell = [], 0
    for level, same in groupby(_means(levels, cells)):
        count = len(list(same))
        if level:
            parts.append(f'<rect x="{left + cell * wide:.1f}" y="{y:.0f}" width="{count * wide:.1f}" '
                         f'height="{BOX_H:.0f}" fill="#2e7d4f" fill-opacity="{0.12 + 0.88 * level:.2f}"/>')
        cell += count
    if cells <= 16:
        lines = "".join(f"M{left + at * wide:.1f} {y:.0f}v{BOX_H:.0f}" for at in range(1, cells))
        parts.append(f'<path d="{lines}" stroke="#fff"/>')
    there = [c for c, level in enumerate(levels) if level]
    tip = f"rank {rank}: " + (f"chunks {runs(there)}" if there else "nothing")
    full = [c for c, level in enumerate(levels) if level == 1]
    tip += f", whole: {runs(full) or 'none'}" if told["kind"] in REDUCING else ""
    return (f'<g><title>{escape(tip)}</title><rect x="{left:.1f}" y="{y:.0f}" width="{BOX_W:.0f}" height="{BOX_H:.0f}" '
            f'fill="{EMPTY}"/>{"".join(parts)}<rect x="{left:.1f}" '
            f'y="{y:.0f}" width="{BOX_W:.0f}" height="{BOX_H:.0f}" rx="2" fill="none" stroke="#8a98a5"/></g>')


def _means(levels: list[float], cells: int) -> list[float]:
    parts = [levels[k * len(levels) // cells:(k + 1) * len(levels) // cells] for k in range(cells)]
    return [sum(part) / len(part) for part in parts]


def _arrow(told: dict[str, Any], message: dict[str, Any], y: float) -> str:
    """From the sender's box of the row before to the receiver's at `y`."""
    ax, ay, bx, by = _x(message["src"]), y - STEP_Y + BOX_H + 2, _x(message["dst"]), y - 3
    side = (bx > ax) - (bx < ax)
    ax, bx = ax + 12 * side, bx - 12 * side
    colour = ADD if message["combine"] else KEEP
    chunks = sorted(message["chunks"] + message["combine"])
    amount = "" if message["nbytes"] is None else f", {show(message['nbytes'], 'B')}"
    tip = f"rank {message['src']} to {message['dst']}: chunks {runs(chunks)}{amount}"
    bend = f"C{ax:.1f} {ay + 30:.1f} {bx:.1f} {by - 30:.1f} {bx:.1f} {by - 5:.1f}"
    busy = max(map(len, told["rounds"])) > 3 * told["world"]
    label = "" if busy else _arrow_label(message, ax, ay, chunks, colour)
    return (f'<g fill="none" stroke="{colour}" stroke-width="1.6"><title>{escape(tip)}</title>'
            f'<path d="M{ax:.1f} {ay:.1f} {bend}"/><path d="M{bx - 4:.1f} {by - 6:.1f}L{bx:.1f} {by:.1f}l4 -6z" '
            f'fill="{colour}" stroke="none"/>{label}</g>')


def _arrow_label(message: dict[str, Any], ax: float, ay: float, chunks: list[int], colour: str) -> str:
    words = _chunks(chunks)
    right = message["dst"] > message["src"]                   # the words stand on the side to which it does not go
    return (f'<text x="{ax - 4 if right else ax + 4:.1f}" y="{ay + 11:.1f}" font-size="11" fill="{colour}" '
            f'stroke="#fff" stroke-width="3" paint-order="stroke" text-anchor="{"end" if right else "start"}">'
            f"{escape(words)}</text>")


__all__ = ["data", "html", "text"]
