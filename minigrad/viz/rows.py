"""A picture wider than the page broken into rows, as text is, where a single line leads on.

Works on the layout of either engine.  After `layout.py`, before `paint.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from minigrad.viz.layout import GAP, MARGIN, Layout, Place, Point

LEAD, CORNER = 14.0, 7.0  # how far a line runs beside a row, and how round it turns


@dataclass(frozen=True)
class Cut:
    """Between two columns: the end of the left, the start of the right, the line that crosses."""

    left: float
    right: float
    edge: tuple[int, int]


def in_rows(layout: Layout, width: float) -> Layout | None:
    """The layout in rows of at most `width`; None where it has no place to be broken."""
    possible, most = _possible(layout), width - 2 * (MARGIN + LEAD)
    cuts = _chosen(layout, possible, most)
    if cuts is None:
        return None
    even = _chosen(layout, possible, min(most, layout.width / (len(cuts) + 1) + GAP))
    cuts = even if even and len(even) == len(cuts) else cuts  # as few rows, less ragged
    row_of = {v: sum(p.x > cut.left for cut in cuts) for v, p in layout.places.items()}
    broken = {cut.edge for cut in cuts}
    if any(row_of[a] != row_of[b] for a, b in layout.paths if (a, b) not in broken):
        return None
    return _stacked(layout, row_of, broken)


def _possible(layout: Layout) -> list[Cut]:
    """Where no box stands and one line passes, from a box at the left edge to one at the right."""
    columns: list[list[float]] = []
    for p in sorted(layout.places.values(), key=lambda p: p.x):
        if columns and p.x <= columns[-1][1]:
            columns[-1][1] = max(columns[-1][1], p.x + p.width)
        else:
            columns.append([p.x, p.x + p.width])
    found = []
    for (start, left), (right, end) in zip(columns, columns[1:]):
        ends = {e: (path[0][0], path[-1][0]) for e, path in layout.paths.items()}
        lines = [e for e, (a, b) in ends.items() if a <= left + 1 and b >= right - 1]
        if len(lines) == 1:
            a, b = (layout.places[v] for v in lines[0])
            if a.x >= start and b.x <= end:
                found.append(Cut(left, right, lines[0]))
    return found


def _chosen(layout: Layout, possible: list[Cut], width: float) -> list[Cut] | None:
    """The fewest cuts that make every row fit; None where a row cannot."""
    chosen: list[Cut] = []
    start, end = MARGIN, layout.width - MARGIN
    while end - start > width:
        fitting = [cut for cut in possible if cut.left > start and cut.left - start <= width]
        if not fitting:
            return None
        chosen.append(fitting[-1])
        start = fitting[-1].right
    return chosen


def _stacked(layout: Layout, row_of: dict[int, int], broken: set) -> Layout:
    """Each row moved to the left and under the one before."""
    places: dict[int, Place] = {}
    paths: dict[tuple[int, int], list[Point]] = {}
    ends: list[Point] = []  # how far down and how far right each row reaches
    top = MARGIN
    for row in range(max(row_of.values()) + 1):
        members = {v: layout.places[v] for v in layout.places if row_of[v] == row}
        lines = {
            e: path for e, path in layout.paths.items() if e not in broken and row_of[e[0]] == row
        }
        high = min(
            [p.y for p in members.values()] + [y for path in lines.values() for _, y in path]
        )
        dx, dy = MARGIN + LEAD - min(p.x for p in members.values()), top - high
        places.update((v, Place(p.x + dx, p.y + dy, p.width, p.height)) for v, p in members.items())
        paths.update((e, [(x + dx, y + dy) for x, y in path]) for e, path in lines.items())
        bottom = max(
            [places[v].y + places[v].height for v in members]
            + [y for e in lines for _, y in paths[e]]
        )
        ends.append((bottom, max(places[v].x + places[v].width for v in members)))
        top = bottom + GAP
    for a, b in broken:
        paths[a, b] = _carried(places[a], places[b], *ends[row_of[a]])
    order = {e: paths[e] for e in layout.paths}
    return Layout(max(x for _, x in ends) + LEAD + MARGIN, top - GAP + MARGIN, places, order)


def _carried(a: Place, b: Place, bottom: float, right: float) -> list[Point]:
    """From the end of a row, between the rows, to the start of the next."""
    x0, y0, x1, y1 = a.x + a.width, a.y + a.height / 2, b.x, b.y + b.height / 2
    far, near, channel = right + LEAD - 4, MARGIN + 4, bottom + GAP / 2
    corners = [(x0, y0), (far, y0), (far, channel), (near, channel), (near, y1), (x1, y1)]
    path = [corners[0]]
    for before, at, after in zip(corners, corners[1:], corners[2:]):
        start, end = _towards(at, before), _towards(at, after)
        path += [path[-1], start, start, at, at, end]
    return [*path, path[-1], corners[-1], corners[-1]]


def _towards(a: Point, b: Point) -> Point:
    """The point a corner's radius away from `a` on the way to `b`."""
    step = lambda p, q: p + max(-CORNER, min(CORNER, q - p))
    return step(a[0], b[0]), step(a[1], b[1])
