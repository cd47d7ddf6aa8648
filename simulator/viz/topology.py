"""A machine as a picture: devices, switches, links; and the same as text.

`data(x)` is plain data, from which `text` and `html` are made; x is a Cluster or a Topology.  Many equal devices at the
same switches are one box.
"""
from __future__ import annotations

from collections import defaultdict
from html import escape
from itertools import pairwise
from math import cos, hypot, pi, sin
from typing import Any

from simulator.cluster import Cluster
from simulator.topology import Link, Topology, runs
from simulator.units import show

FOLD, MOST = 32, 128                                          # devices drawn one by one; boxes at all
GROUPS = 12                                                   # of folded devices
COLOURS = ("#3d7ab8", "#c77a1e", "#4f9a58", "#8b5fb5", "#b8483d", "#5f6f7a")
INK, QUIET = "#1f2d3a", "#4f6272"
FONT = "Helvetica, Arial, 'DejaVu Sans', sans-serif"
UNIT, BOX_W, BOX_H = 92.0, 54.0, 30.0                         # pixels

Place = tuple[float, float]


# ---- data ----------------------------------------------------------------------------------------
def data(x: Cluster | Topology) -> dict[str, Any]:
    """{"name", "devices", "links", "boxes", "wires", "hidden"}: kinds of devices with their ranks; kinds of links with
    rates; boxes with their place; wires between boxes by kind, how many, and whether in both directions."""
    topology = x.topology if isinstance(x, Cluster) else x
    groups, hidden = _groups(topology)
    at = {vertex: k for k, group in enumerate(groups) for vertex in group}
    kinds = _kinds(topology)
    found: dict[tuple[int, int, int], int] = defaultdict(int)
    for edge in topology.edges:
        if edge.src in at and edge.dst in at and at[edge.src] != at[edge.dst]:
            found[at[edge.src], at[edge.dst], kinds[edge.link]] += 1
    wires = [{"from": a, "to": b, "link": k, "count": count // len(groups[a]) // len(groups[b]),
              "both": found.get((b, a, k)) == count}
             for (a, b, k), count in found.items() if a < b or found.get((b, a, k)) != count]
    return {"name": topology.name, "devices": _device_kinds(x), "hidden": hidden, "wires": wires,
            "links": [{"name": k.name, "bytes_per_s": k.bytes_per_s, "alpha_s": k.alpha_s} for k in kinds],
            "boxes": _boxes(topology, groups, wires)}


def _kinds(topology: Topology) -> dict[Link, int]:
    """The different links, numbered."""
    return {kind: k for k, kind in enumerate(dict.fromkeys(edge.link for edge in topology.edges))}


def _device_kinds(x: Cluster | Topology) -> list[dict[str, Any]]:
    """What devices there are: a name and their ranks."""
    if isinstance(x, Topology):
        return [{"name": "device", "ranks": list(range(x.world_size))}]
    ranks = defaultdict(list)
    for rank, spec in enumerate(x.devices):
        ranks[str(spec)].append(rank)
    return [{"name": name, "ranks": found} for name, found in ranks.items()]


def _groups(topology: Topology) -> tuple[list[tuple[int, ...]], int]:
    """(what is one box: a device, devices at the same switches, a switch; how many devices are left out)."""
    n, near = topology.world_size, defaultdict(set)
    for edge in topology.edges:
        near[edge.src].add(edge.dst)
    if n <= FOLD or any(other < n for rank in range(n) for other in near[rank]):
        shown: list[tuple[int, ...]] = [(rank,) for rank in range(min(n, MOST))]
    else:
        folded = defaultdict(list)
        for rank in range(n):
            folded[frozenset(near[rank])].append(rank)
        shown = [tuple(ranks) for ranks in list(folded.values())[:GROUPS]]
    drawn = {rank for group in shown for rank in group}
    switches = [(s,) for s in range(n, topology.vertices) if near[s] & drawn or min(near[s], default=n) >= n]
    return [*shown, *switches], n - len(drawn)


def _boxes(topology: Topology, groups: list[tuple[int, ...]], wires: list[dict[str, Any]]) -> list[dict[str, Any]]:
    places = _places(topology, groups, wires)
    boxes = []
    for group, (px, py) in zip(groups, places):
        device = group[0] < topology.world_size
        label = runs(group) if device else topology.vertex_name(group[0])
        boxes.append({"label": label, "ranks": list(group) if device else [], "x": px, "y": py})
    return boxes


def _places(topology: Topology, groups: list[tuple[int, ...]], wires: list[dict[str, Any]]) -> list[Place]:
    """Given places; else a circle; with switches: devices in a row, switches in rows above, over what they join."""
    if not topology.switches:
        given = topology.places[:len(groups)]
        return list(given) if len(given) == len(groups) else _circle(len(groups))
    level = [0 if group[0] < topology.world_size else 99 for group in groups]
    near = defaultdict(set)
    for wire in wires:
        near[wire["from"]].add(wire["to"])
        near[wire["to"]].add(wire["from"])
    for _ in groups:                                          # a switch is above the lowest of what it joins
        level = [0 if not at else min([level[b] for b in near[k]] + [98]) + 1 for k, at in enumerate(level)]
    devices = level.count(0)
    wide = max(devices, 1)
    x = [float(k) for k in range(len(groups))]
    order = sorted(range(len(groups)), key=lambda k: level[k])
    for k in order:
        below = [x[b] for b in near[k] if level[b] < level[k]]
        x[k] = sum(below) / len(below) if below else x[k]
    level = _lifted(level, x, near)
    top = max(level)
    for row in range(1, top + 1):
        _spread([k for k in order if level[k] == row], x, wide)
    return [(x[k], 1.5 * (top - level[k])) for k in range(len(groups))]


def _lifted(level: list[int], x: list[float], near: dict[int, set[int]]) -> list[int]:
    """A switch that joins everything (a fabric) stands above those of the nodes that join a part."""
    devices = {k for k, at in enumerate(level) if at == 0}
    whole = [k for k, at in enumerate(level) if at == 1 and near[k] >= devices]
    parts = [k for k, at in enumerate(level) if at == 1 and k not in whole]
    return [at + 1 if parts and k in whole else at for k, at in enumerate(level)]


def _spread(row: list[int], x: list[float], wide: int) -> None:
    """Boxes of one row side by side, at least a unit apart, about where they were."""
    row.sort(key=lambda k: (x[k], k))
    if any(x[b] - x[a] < 1.0 for a, b in pairwise(row)):
        step = max(1.25, wide / len(row))
        middle = sum(x[k] for k in row) / len(row)
        for place, k in enumerate(row):
            x[k] = middle + step * (place - (len(row) - 1) / 2)


def _circle(n: int) -> list[tuple[float, float]]:
    radius = 0.0 if n == 1 else max(0.9, n / (2 * pi))
    return [(radius * sin(2 * pi * k / n), -radius * cos(2 * pi * k / n)) for k in range(n)]


# ---- text ----------------------------------------------------------------------------------------
MATRIX = 16                                                   # devices that a matrix of text shows


def text(x: Cluster | Topology) -> str:
    """Kinds of devices and links; what each switch joins; wires between pairs, or how many links lie between them."""
    topology, told = (x.topology if isinstance(x, Cluster) else x), data(x)
    lines = [topology.name, *(f"  devices {runs(kind['ranks'])}: {kind['name']}" for kind in told["devices"])]
    lines += [f"  link {_letter(k)}: {_rate(link)}" for k, link in enumerate(told["links"])]
    kinds = _kinds(topology)
    joined: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for edge in topology.edges:
        joined[edge.dst][kinds[edge.link]].append(edge.src)
    shown = range(topology.world_size, topology.vertices)
    for s in (*shown[:MOST], *shown[MOST:][-1:]):
        parts = [f"{_letter(k)} {_named(topology, found)}" for k, found in joined[s].items()]
        lines.append(f"  {topology.vertex_name(s)}: {'; '.join(parts)}")
    lines += [f"  and {len(shown) - MOST - 1} switches more"] if len(shown) > MOST + 1 else []
    if topology.world_size <= MATRIX:
        lines += _matrix(topology, kinds)
    elif not topology.switches:
        lines += [f"  {rank}: {runs(sorted({e.dst for e in topology.edges if e.src == rank}))}"
                  for rank in range(min(topology.world_size, MOST))]
    return "\n".join(lines)


def _letter(k: int) -> str:
    return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[k] if k < 26 else str(k)


def _rate(link: dict[str, Any]) -> str:
    return f"{link['name']}: {show(link['bytes_per_s'], 'B/s')}, {show(link['alpha_s'], 's')}"


def _named(topology: Topology, vertices: list[int]) -> str:
    devices = sorted({v for v in vertices if v < topology.world_size})
    others = [topology.vertex_name(v) for v in vertices if v >= topology.world_size]
    return ", ".join([*([runs(devices)] if devices else []), *others])


def _matrix(topology: Topology, kinds: dict[Link, int]) -> list[str]:
    """Rows send to columns: "=2" two wires of their own; "4B" four links on the way, the slowest B; "-" no way."""
    n = topology.world_size
    rows = [["from", *map(str, range(n))]]
    rows += [[str(a), *(_cell(topology, a, b, kinds) for b in range(n))] for a in range(n)]
    width = max(len(cell) for row in rows[1:] for cell in row) + 2
    lines = ["  " + row[0].rjust(4) + "".join(cell.rjust(width) for cell in row[1:]) for row in rows]
    return [*lines, "  =2: two wires of their own; 4B: four links on the way, the slowest of kind B"]


def _cell(topology: Topology, a: int, b: int, kinds: dict[Link, int]) -> str:
    if a == b:
        return "."
    wires = sum(edge.src == a and edge.dst == b for edge in topology.edges)
    if wires:
        return f"={wires}"
    try:
        way = [topology.edges[k].link for k in topology.path(a, b)]
    except ValueError:
        return "-"
    return f"{len(way)}{_letter(kinds[min(way, key=lambda wire: wire.bytes_per_s)])}"


# ---- SVG -----------------------------------------------------------------------------------------
def html(x: Cluster | Topology) -> str:
    """One SVG, which needs nothing from outside; tips tell what a box or wire is."""
    told = data(x)
    boxes = told["boxes"]
    left, top = min(b["x"] for b in boxes), min(b["y"] for b in boxes)
    bends = [_bends(wire, boxes) for wire in told["wires"]]
    margin, unit = 60 + max(map(abs, bends), default=0.0) / 2, _unit(boxes)
    spots = [(margin + 10 + unit * (b["x"] - left), margin + UNIT * (b["y"] - top)) for b in boxes]
    body = [_wire(wire, spots, told["links"], bend) for wire, bend in zip(told["wires"], bends)]
    body += [_box(box, spot) for box, spot in zip(boxes, spots)]
    low = max(y for _, y in spots) + margin - 8
    rows = _legend(told)
    body += [f'<text x="14" y="22" font-size="14" fill="{INK}">{escape(told["name"])}</text>']
    body += [f'<text x="{14 if colour is None else 40}" y="{low + 18 * k:.0f}" font-size="12" fill="{QUIET}">'
             f"{escape(words)}</text>" + _sample(colour, low + 18 * k) for k, (words, colour) in enumerate(rows)]
    width = max([max(px for px, _ in spots) + margin + 10, *(60 + 6.1 * len(words) for words, _ in rows)])
    height = low + 18 * len(rows)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
            f'height="{height:.0f}" style="max-width:100%;height:auto" role="img" font-family="{FONT}" '
            f'aria-label="{escape(told["name"])}">\n' + "\n".join(body) + "\n</svg>")


def _legend(told: dict[str, Any]) -> list[tuple[str, str | None]]:
    rows: list[tuple[str, str | None]] = [(_rate(link), _colour(k)) for k, link in enumerate(told["links"])]
    rows += [(f"{runs(kind['ranks'])}: {kind['name']}", None) for kind in told["devices"] if kind["name"] != "device"]
    if told["hidden"]:
        rows.append((f"and {told['hidden']} devices more, joined in the same way", None))
    return rows


def _colour(k: int) -> str:
    return COLOURS[k % len(COLOURS)]


def _sample(colour: str | None, y: float) -> str:
    return "" if colour is None else f'<path d="M14 {y - 4:.0f}h20" stroke="{colour}" stroke-width="2.5"/>'


def _box(box: dict[str, Any], spot: tuple[float, float]) -> str:
    px, py = spot
    device = bool(box["ranks"])
    wide = _wide(box)
    fill, border, corner = ("#e5effa", "#5a8cc4", 6) if device else ("#f4efe2", "#b09a5a", 14)
    tip = f"device {box['label']}" if device else f"switch: {box['label']}"
    return (f'<g><title>{escape(tip)}</title><rect x="{px - wide / 2:.1f}" y="{py - BOX_H / 2:.1f}" width="{wide:.1f}" '
            f'height="{BOX_H:.0f}" rx="{corner}" fill="{fill}" stroke="{border}" stroke-width="1.3"/>'
            f'<text x="{px:.1f}" y="{py + 4:.1f}" font-size="12" text-anchor="middle" fill="{INK}">'
            f"{escape(box['label'])}</text></g>")


def _wide(box: dict[str, Any]) -> float:
    return max(BOX_W if box["ranks"] else 0.0, 6.6 * len(box["label"]) + 16)


def _unit(boxes: list[dict[str, Any]]) -> float:
    """Pixels to the right for a distance of 1, so that no box lies on its neighbour in the row."""
    row = sorted(boxes, key=lambda box: (box["y"], box["x"]))
    gaps = [((_wide(a) + _wide(b)) / 2 + 8) / (b["x"] - a["x"]) for a, b in pairwise(row) if b["y"] == a["y"]]
    return max([UNIT, *gaps])


def _bends(wire: dict[str, Any], boxes: list[dict[str, Any]]) -> float:
    """How far a wire bends aside, in pixels, away from the middle: when another box lies on its straight line."""
    middle = [sum(box[axis] for box in boxes) / len(boxes) for axis in "xy"]
    a, b = boxes[wire["from"]], boxes[wire["to"]]
    long = hypot(b["x"] - a["x"], b["y"] - a["y"])
    for c in boxes:
        if c is a or c is b or not long:
            continue
        along = ((c["x"] - a["x"]) * (b["x"] - a["x"]) + (c["y"] - a["y"]) * (b["y"] - a["y"])) / long**2
        aside = abs((c["x"] - a["x"]) * (b["y"] - a["y"]) - (c["y"] - a["y"]) * (b["x"] - a["x"])) / long
        if 0 < along < 1 and aside < 0.2:
            left = (a["y"] - b["y"]) * (a["x"] - middle[0]) + (b["x"] - a["x"]) * (a["y"] - middle[1])
            return min(16 + 11 * long, 80.0) * (1 if left > 0 else -1)
    return 0.0


def _wire(wire: dict[str, Any], spots: list[tuple[float, float]], links: list[dict[str, Any]], bend: float) -> str:
    """Parallel wires side by side, up to four; more are a thick one.  Without an arrow it carries both directions."""
    (ax, ay), (bx, by) = spots[wire["from"]], spots[wire["to"]]
    long = hypot(bx - ax, by - ay) or 1.0
    nx, ny = (ay - by) / long, (bx - ax) / long
    count = wire["count"]
    lines = min(count, 4)
    mx, my = (ax + bx) / 2 + nx * 2 * bend, (ay + by) / 2 + ny * 2 * bend
    paths = []
    for k in range(lines):
        off = 5.0 * (k - (lines - 1) / 2)
        ends = ((px + nx * off, py + ny * off) for px, py in ((ax, ay), (mx, my), (bx, by)))
        paths.append("M{} Q{} {}".format(*(f"{px:.1f} {py:.1f}" for px, py in ends)))
    tip = f"{count} x {_rate(links[wire['link']])}" + ("" if wire["both"] else ", one direction")
    dashes = "" if wire["both"] else ' stroke-dasharray="5 3"'
    return (f'<g fill="none" stroke="{_colour(wire["link"])}" stroke-width="{1.6 if count <= 4 else 4}"{dashes}>'
            f'<title>{escape(tip)}</title><path d="{"".join(paths)}"/></g>')


__all__ = ["data", "html", "text"]
