"""A small layered layout: where boxes and edges go when `dot` is not there.

Longest-path layers (what can stands just before its first reader), a dummy in each layer that an
edge crosses, orders improved by barycentre sweeps, coordinates by least squares under the
separations (Sugiyama, Tagawa, Toda 1981; the least squares is isotonic regression).  Worked out
for left to right; top to bottom is that with the axes exchanged.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import fsum

Point = tuple[float, float]
GAP, BETWEEN, LANE, MARGIN = 34.0, 16.0, 12.0, 8.0  # between layers, boxes, lines; around all
SWEEPS = 10


@dataclass(frozen=True)
class Place:
    """A box: its upper left corner and its size, in pixels."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Layout:
    """`paths`: for each (source, target) a start, then cubic Bézier segments of three points."""

    width: float
    height: float
    places: dict[int, Place]
    paths: dict[tuple[int, int], list[Point]]


def layered(
    sizes: Mapping[int, Point], edges: Iterable[tuple[int, int]], direction: str = "LR"
) -> Layout:
    """Places for boxes of these (width, height); ValueError if the edges run in a circle."""
    pairs = list(dict.fromkeys((a, b) for a, b in edges))
    turn = direction == "TB"
    boxes = {v: (h, w) if turn else (w, h) for v, (w, h) in sizes.items()}
    net = _net(boxes, pairs)
    _order(net)
    centres = _coordinates(net)
    return _turned(_drawn(net, centres, pairs), turn)


# ---- layers -----------------------------------------------------------------------------
@dataclass
class _Net:
    """The graph with dummies where lines cross layers: all edges go from one layer to the next.

    A dummy is (source, layer); all edges of a source share its line as far as they go together."""

    sizes: dict
    layers: list[list]
    before: dict
    after: dict


def layer_numbers(vertices: Iterable[int], edges: list[tuple[int, int]]) -> dict[int, int]:
    """Longest path from the sources; then up to the readers where that makes no line longer."""
    before, after = defaultdict(list), defaultdict(list)
    for a, b in edges:
        before[b].append(a)
        after[a].append(b)
    missing = {v: len(before[v]) for v in vertices}
    level, ready = dict.fromkeys(missing, 0), [v for v, k in missing.items() if not k]
    for v in ready:
        for w in after[v]:
            level[w] = max(level[w], level[v] + 1)
            missing[w] -= 1
            if not missing[w]:
                ready.append(w)
    if len(ready) < len(level):
        raise ValueError(
            f"layout: the edges run in a circle through {sorted(set(level) - set(ready))[:5]}"
        )
    for v in reversed(ready):
        if after[v] and len(before[v]) <= len(after[v]):
            level[v] = min(level[w] for w in after[v]) - 1
    return level


def _net(sizes: dict, edges: list[tuple[int, int]]) -> _Net:
    level = layer_numbers(sizes, edges)
    layers: list[list] = [[] for _ in range(max(level.values(), default=-1) + 1)]
    for v, k in level.items():
        layers[k].append(v)
    net = _Net(dict(sizes), layers, defaultdict(list), defaultdict(list))
    for a, b in edges:
        _link(net, _lane(net, a, level[a], level[b]), b)
    return net


def _lane(net: _Net, source: int, start: int, end: int):
    """The last vertex on the line of `source` before layer `end`, with the dummies it takes."""
    at: object = source
    for k in range(start + 1, end):
        dummy = (source, k)
        if dummy not in net.sizes:
            net.sizes[dummy] = (0.0, 0.0)
            net.layers[k].append(dummy)
            _link(net, at, dummy)
        at = dummy
    return at


def _link(net: _Net, a, b) -> None:
    net.after[a].append(b)
    net.before[b].append(a)


# ---- order within the layers ------------------------------------------------------------
def _order(net: _Net) -> None:
    """Barycentre sweeps forth and back; the order with the fewest crossings stays."""
    best, fewest = [list(layer) for layer in net.layers], _crossings(net)
    for sweep in range(SWEEPS):
        if not fewest:
            break
        forth = sweep % 2 == 0
        _sweep(net, forth)
        found = _crossings(net)
        if found < fewest:
            best, fewest = [list(layer) for layer in net.layers], found
    net.layers[:] = best


def _sweep(net: _Net, forth: bool) -> None:
    """Sort each layer by the mean place of its neighbours in the last one; ties stay."""
    layers, near = (net.layers, net.before) if forth else (net.layers[::-1], net.after)
    for fixed, layer in zip(layers, layers[1:]):
        place = {v: i for i, v in enumerate(fixed)}
        own = {v: i for i, v in enumerate(layer)}
        key = {
            v: fsum(place[u] for u in near[v]) / len(near[v]) if near[v] else own[v] for v in layer
        }
        layer.sort(key=key.__getitem__)


def _crossings(net: _Net) -> int:
    """How many pairs of lines cross between neighbouring layers."""
    total = 0
    for left, right in zip(net.layers, net.layers[1:]):
        place = {v: i for i, v in enumerate(right)}
        seen: list[int] = []
        for v in left:
            ends = sorted(place[w] for w in net.after[v])
            total += sum(len(seen) - bisect_right(seen, e) for e in ends)
            for e in ends:
                seen.insert(bisect_left(seen, e), e)
    return total


# ---- coordinates ------------------------------------------------------------------------
def _coordinates(net: _Net) -> dict:
    """The middle of each vertex across the layers: near its neighbours, nothing overlapping."""
    middle: dict = {}
    for layer in net.layers:
        middle.update(zip(layer, _spread(layer, [0.0] * len(layer), [1.0] * len(layer), net)))
    for sweep in range(3 * SWEEPS):
        forth, both = sweep % 2 == 0, sweep >= SWEEPS
        for layer in net.layers if forth else net.layers[::-1]:
            pulls = [_pull(net, v, middle, forth, both) for v in layer]
            middle.update(
                zip(layer, _spread(layer, [p for p, _ in pulls], [w for _, w in pulls], net))
            )
    return middle


def _pull(net: _Net, v, middle: dict, forth: bool, both: bool) -> tuple[float, float]:
    """(where the neighbours want `v`, how strongly); lines want to be straight."""
    near = net.before[v] + net.after[v] if both else net.before[v] if forth else net.after[v]
    stiff = [(1.0, 2.0, 8.0)[isinstance(v, tuple) + isinstance(u, tuple)] for u in near]
    if not near:
        return middle[v], 0.1
    return fsum(w * middle[u] for w, u in zip(stiff, near)) / fsum(stiff), fsum(stiff)


def _spread(layer: list, wanted: list[float], weights: list[float], net: _Net) -> list[float]:
    """The nearest places that keep order and separations: isotonic regression."""
    shift, total = [], 0.0
    for k, v in enumerate(layer):
        total += _separation(net, layer[k - 1], v) if k else 0.0
        shift.append(total)
    blocks: list[tuple[float, float, int]] = []  # (mean, weight, how many), means rising
    for w, weight, s in zip(wanted, weights, shift):
        block = (w - s, weight, 1)
        while blocks and blocks[-1][0] >= block[0]:
            mean, heavy, many = blocks.pop()
            both = heavy + block[1]
            mean = (mean * heavy + block[0] * block[1]) / both
            block = (mean, both, many + block[2])
        blocks.append(block)
    means = [mean for mean, _, many in blocks for _ in range(many)]
    return [m + s for m, s in zip(means, shift)]


def _separation(net: _Net, u, v) -> float:
    gap = LANE if isinstance(u, tuple) or isinstance(v, tuple) else BETWEEN
    return (net.sizes[u][1] + net.sizes[v][1]) / 2 + gap


# ---- boxes and lines --------------------------------------------------------------------
def _drawn(net: _Net, middle: dict, edges: list[tuple[int, int]]) -> Layout:
    """Places and paths, from the upper left corner on."""
    top = min((middle[v] - net.sizes[v][1] / 2 for v in middle), default=0.0) - MARGIN
    columns, x = [], MARGIN
    for layer in net.layers:
        wide = max(net.sizes[v][0] for v in layer)
        columns.append((x, x + wide))
        x += wide + GAP
    level = {v: k for k, layer in enumerate(net.layers) for v in layer}
    places = {}
    for v, (w, h) in net.sizes.items():
        left, right = columns[level[v]]
        places[v] = Place((left + right - w) / 2, middle[v] - h / 2 - top, w, h)
    line = lambda a, b: [a, *((a, k) for k in range(level[a] + 1, level[b])), b]
    paths = {(a, b): _path(line(a, b), places, columns, level) for a, b in edges}
    height = max((p.y + p.height for p in places.values()), default=0.0) + MARGIN
    boxes = {v: p for v, p in places.items() if not isinstance(v, tuple)}
    return Layout(max(x - GAP, 0.0) + MARGIN, height, boxes, paths)


def _path(line: list, places: dict, columns: list[Point], level: dict) -> list[Point]:
    """From border to border: straight through each column, curved between them."""
    first, last = places[line[0]], places[line[-1]]
    path = [(first.x + first.width, first.y + first.height / 2)]
    for u, v in zip(line, line[1:]):
        right, left = columns[level[u]][1], columns[level[v]][0]
        y0, y1 = (places[w].y + places[w].height / 2 for w in (u, v))
        half = (right + left) / 2
        path += _straight(path[-1], (right, y0))
        path += [(half, y0), (half, y1), (left, y1)]
    return path + _straight(path[-1], (last.x, last.y + last.height / 2))


def _straight(a: Point, b: Point) -> list[Point]:
    return [a, b, b] if abs(a[0] - b[0]) > 0.01 else []


def _turned(layout: Layout, turn: bool) -> Layout:
    if not turn:
        return layout
    places = {v: Place(p.y, p.x, p.height, p.width) for v, p in layout.places.items()}
    paths = {edge: [(y, x) for x, y in path] for edge, path in layout.paths.items()}
    return Layout(layout.height, layout.width, places, paths)
