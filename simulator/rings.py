"""Rings and trees found on a topology, as NCCL looks for them.

A ring passes every device once and each link carries one ring, so k rings that share no link move k parts of the data
at the same time.  Where there is no ring the data goes up and down trees.  After `shapes.py`, before `plateaus.py`,
which says what they are worth.
"""
from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd

from simulator.topology import Topology

Ring = tuple[int, ...]
Arc = tuple[int, int]
WAYS = 16                                                     # of a pair that are looked at
PACKED = 3_000                                                # trials to fit rings of nodes together
FOUND = 2_000                                                 # steps towards one ring
STEPS = 100_000                                               # of the search; then the best so far is taken


@dataclass(frozen=True)
class Rings:
    """`rings`: the ranks of each in order; `most`: no more can exist; `proven`: there are no more than these."""

    rings: tuple[Ring, ...]
    most: int
    proven: bool

    def __len__(self) -> int:
        return len(self.rings)


def rings(topology: Topology, ranks: Sequence[int] | None = None, rate: float | None = None,
          steps: int = STEPS) -> Rings:
    """Directed Hamiltonian rings over `ranks` (default: all) that share no link, as many as are found.

    Ranks are neighbours if a link joins them, or switches alone lie between.  With a `rate` in bytes/s a link carries
    as many rings of this rate as fit, else one.  Up to about 8 ranks all ways are tried; beyond, the search ends after
    `steps`, and `proven` says whether more could exist."""
    members = _members(topology, ranks)
    if len(members) == 1:
        return Rings((), 0, True)
    room = capacity(topology, members, rate)
    search = _Search(members, room, _groups(topology, members), steps)
    search.run()
    whole = search.whole and not room.choice
    return Rings(tuple(search.best), search.most, whole or len(search.best) == search.most)


def _members(topology: Topology, ranks: Sequence[int] | None) -> list[int]:
    members = list(range(topology.world_size)) if ranks is None else list(ranks)
    for rank in members:
        topology.check_rank(rank)
    if not members or len(set(members)) != len(members):
        raise ValueError(f"rings: ranks must be different ones, at least one, got {members}")
    return members


Way = tuple[int, ...]                                         # from a device over switches, or none, to another


class Room:
    """How many rings still fit on the wires of some ranks."""

    def __init__(self, ways: dict[Arc, list[Way]], left: Counter[Arc], rates: dict[Arc, float]) -> None:
        self.ways, self.left, self.rates = ways, left, rates
        self.choice = any(len(found) > 1 for found in ways.values())   # the first that has room may be wrong
        self.next = defaultdict(list)
        for a, b in sorted(ways):
            self.next[a].append(b)

    def among(self, ranks: Sequence[int]) -> Room:
        """The same between these ranks alone."""
        ways = {(a, b): found for (a, b), found in self.ways.items() if a in ranks and b in ranks}
        return Room(ways, Counter(self.left), self.rates)

    def way(self, arc: Arc) -> Way | None:
        """The first way with room, or None."""
        for way in self.ways.get(arc, ()):
            if all(self.left[wire] > 0 for wire in wires_of(way)):
                return way
        return None

    def take(self, arc: Arc) -> Way | None:
        """A way for one ring more, which is then used; or None."""
        way = self.way(arc)
        for wire in wires_of(way) if way else ():
            self.left[wire] -= 1
        return way

    def give(self, way: Way) -> None:
        for wire in wires_of(way):
            self.left[wire] += 1

    def rate(self, way: Way) -> float:
        return min(self.rates[wire] for wire in wires_of(way))

    def out(self, members: Iterable[int]) -> int:
        """How many rings can leave this set of ranks: each needs a wire of every place of its way."""
        inside = set(members)
        return self._cut([way for a in inside for b in self.next[a] if b not in inside for way in self.ways[a, b]])

    def into(self, members: Iterable[int]) -> int:
        inside = set(members)
        return self._cut([way[::-1] for (a, b), ways in self.ways.items() if b in inside and a not in inside
                          for way in ways], -1)

    def _cut(self, ways: list[Way], step: int = 1) -> int:
        """The fewest wires at one place, of those that all these ways have."""
        places = range(min(map(len, ways), default=1) - 1)
        wires = [{(way[k], way[k + 1])[::step] for way in ways} for k in places]
        return min((sum(self.left[a, b] for a, b in place) for place in wires), default=0)


def wires_of(way: Way) -> Iterator[Arc]:
    return pairwise(way)


def capacity(topology: Topology, members: Sequence[int], rate: float | None = None) -> Room:
    """The ways between these ranks, the fastest first, and how many rings fit on each wire."""
    inside, n = set(members), topology.world_size
    left, rates, near = Counter[Arc](), dict[Arc, float](), defaultdict[int, set[int]](set)
    for edge in topology.edges:
        arc, speed = (edge.src, edge.dst), edge.link.bytes_per_s
        left[arc] += 1 if rate is None else int(speed / rate * (1 + 1e-9))
        rates[arc] = min(speed, rates.get(arc, speed))
        near[edge.src].add(edge.dst)
    ways = defaultdict[Arc, list[Way]](list)
    for a in sorted(inside):
        for first in sorted(near[a]):
            for way in _beyond(a, first, near, n):
                if way[-1] in inside and way[-1] != a and len(ways[a, way[-1]]) < WAYS:
                    ways[a, way[-1]].append(way)
    for found in ways.values():
        found.sort(key=lambda way: (-min(rates[wire] for wire in wires_of(way)), len(way)))
    return Room(dict(ways), left, rates)


def _beyond(a: int, first: int, near: dict[int, set[int]], n: int) -> list[Way]:
    """The ways from device `a` over its neighbour `first` to devices: the shortest ones, through switches alone."""
    if first < n:
        return [(a, first)]
    found, front, seen = list[Way](), list[Way]([(a, first)]), {a, first}
    while front:
        longer = [(*way, v) for way in front for v in sorted(near[way[-1]]) if v not in seen]
        found += [way for way in longer if way[-1] < n]
        front = [way for way in longer if way[-1] >= n]
        seen |= {way[-1] for way in longer}
    return found


def _groups(topology: Topology, members: Sequence[int]) -> list[list[int]]:
    """Ranks that wires join, or switches that do not join all: the devices of each node, where there are nodes."""
    near = defaultdict[int, set[int]](set)
    for edge in topology.edges:
        near[edge.src].add(edge.dst)
        near[edge.dst].add(edge.src)
    for s in range(topology.world_size, topology.vertices):
        if near[s] >= {*members} or not min(near[s], default=0) < topology.world_size:
            near.pop(s)                                       # a fabric, a spine
    groups: list[list[int]] = []
    for rank in members:
        if not any(rank in group for group in groups):
            seen, todo = {rank}, [rank]
            while todo:
                fresh = {v for v in near[todo.pop()] if v in near and v not in seen}
                seen |= fresh
                todo += fresh
            groups.append([m for m in members if m in seen])
    return groups


class _Search:
    """Rings one after the other, each not below the last in order, so that no set is tried twice."""

    def __init__(self, members: list[int], room: Room, groups: list[list[int]], steps: int) -> None:
        self.members, self.room, self.groups, self.steps = members, room, groups, steps
        cuts = [*([m] for m in members), *(groups if len(groups) > 1 else ())]
        self.most = min(min(room.out(cut), room.into(cut)) for cut in cuts)
        self.best: list[Ring] = []
        self.whole = True                                     # nothing was left out

    def run(self) -> None:
        self._at_once(self._strides(self.members))
        if len(self.groups) > 1 and len(self.best) < self.most:
            self._pack(list(self._through_groups()), [], [PACKED])
        if len(self.best) < self.most:
            self._at_once(self._found())
        if len(self.best) < self.most:
            self._more([], ())

    def _at_once(self, candidates: Iterable[Ring]) -> None:
        """As many of these as fit, each as often as it fits."""
        chosen, ways = list[Ring](), list[Way]()
        for ring in candidates:
            while (new := self._taken(ring)) is not None:
                chosen.append(ring)
                ways += new
        if len(chosen) > len(self.best):
            self.best = chosen
        self._given(ways)

    def _pack(self, candidates: list[Ring], chosen: list[Ring], trials: list[int]) -> None:
        """The most of these that fit together, by trying so many sets of them."""
        if len(chosen) > len(self.best):
            self.best = list(chosen)
        for k, ring in enumerate(candidates):
            if len(self.best) == self.most or trials[0] <= 0:
                return
            trials[0] -= 1
            ways = self._taken(ring)
            if ways is not None:
                self._pack(candidates[k:], [*chosen, ring], trials)
                self._given(ways)

    def _strides(self, members: Sequence[int]) -> list[Ring]:
        """Steps of an equal length, which often do it without a search."""
        n = len(members)
        strides = [s for s in range(1, n) if gcd(s, n) == 1]
        return [tuple(members[k * s % n] for k in range(n)) for s in strides]

    def _through_groups(self) -> Iterator[Ring]:
        """Rings that pass one group after the other, entering it at one device and leaving at the one before."""
        size = len(self.groups[0])
        if any(len(group) != size for group in self.groups):
            return
        inside = self._inner()
        for turn in range(size):
            for inner in inside:
                turned = (*inner[turn:], *inner[:turn])
                yield tuple(group[k] for group in self.groups for k in turned)

    def _inner(self) -> list[Ring]:
        """Rings of the first group alone, as places in it."""
        group = self.groups[0]
        if len(group) == 1:
            return [(0,)]
        alone = _Search(group, self.room.among(group), [group], self.steps)
        alone.run()
        return [tuple(group.index(m) for m in ring) for ring in dict.fromkeys(alone.best)]

    def _found(self) -> Iterator[Ring]:
        """Rings for which there is room now: on from the rank that has fewest ways on (Warnsdorff 1823)."""
        while True:
            path, stack, steps = [self.members[0]], [self._fewest(self.members[0], {self.members[0]})], FOUND
            while stack and steps and not (len(path) == len(self.members) and self.room.way((path[-1], path[0]))):
                steps -= 1
                if stack[-1]:
                    path.append(stack[-1].pop(0))
                    stack.append(self._fewest(path[-1], set(path)))
                else:
                    stack.pop()
                    path.pop()
            if not stack or not steps:
                return
            yield tuple(path)

    def _fewest(self, at: int, seen: set[int]) -> list[int]:
        return sorted(self._choices(at, seen), key=lambda b: len(self._choices(b, seen)))

    def _more(self, chosen: list[Ring], least: Ring) -> None:
        """All sets of rings that begin with `chosen`."""
        if len(chosen) > len(self.best):
            self.best = list(chosen)
        left = min(self.room.out([a]) for a in self.members)
        if len(chosen) + left <= len(self.best):
            return
        for ring in self._rings(least):
            ways = self._taken(ring)
            if ways is None:
                continue
            self._more([*chosen, ring], ring)
            self._given(ways)
            if len(self.best) == self.most or self.steps <= 0:
                return

    def _rings(self, least: Ring) -> Iterator[Ring]:
        """The rings that fit, from `least` on, by a walk with return."""
        n, path, stack = len(self.members), [self.members[0]], [self._choices(self.members[0], {self.members[0]})]
        while stack:
            if self.steps <= 0:
                self.whole = False
                return
            self.steps -= 1
            if not stack[-1]:
                stack.pop()
                path.pop()
                continue
            path.append(stack[-1].pop(0))
            if tuple(path) < least[:len(path)]:
                path.pop()
            elif len(path) < n:
                stack.append(self._choices(path[-1], set(path)))
            else:
                if self.room.way((path[-1], path[0])):
                    yield tuple(path)
                path.pop()

    def _choices(self, at: int, seen: set[int]) -> list[int]:
        return [b for b in self.room.next[at] if b not in seen and self.room.way((at, b))]

    def _taken(self, ring: Ring) -> list[Way] | None:
        """Room for one ring is used up; None, and nothing is, where it does not fit."""
        return taken(self.room, arcs_of(ring))

    def _given(self, ways: list[Way]) -> None:
        for way in ways:
            self.room.give(way)


def taken(room: Room, arcs: Iterable[Arc]) -> list[Way] | None:
    """The ways of these arcs, whose room is used up; None, and nothing is, where they do not fit."""
    ways: list[Way] = []
    for arc in arcs:
        way = room.take(arc)
        if way is None:
            for each in ways:
                room.give(each)
            return None
        ways.append(way)
    return ways


def arcs_of(ring: Ring) -> list[Arc]:
    return list(pairwise((*ring, ring[0])))


# ---- trees ---------------------------------------------------------------------------------------
def trees(topology: Topology, ranks: Sequence[int] | None = None) -> tuple[tuple[Arc, ...], ...]:
    """Spanning trees over the ranks, no two on one link in the same direction, found one after the other.

    Each arc is (parent, child); it needs a wire up, for adding, and one down, for handing out, which run after each
    other.  Each tree takes the wires of which most are left (Prim 1957)."""
    members = _members(topology, ranks)
    down = capacity(topology, members)
    up = down.among(members)
    found = []
    while len(members) > 1 and (tree := _tree(members, down, up)):
        found.append(tree)
    return tuple(found)


def _tree(members: list[int], down: Room, up: Room) -> tuple[Arc, ...]:
    """A spanning tree, whose wires are then used; () where none is left."""
    inside, arcs, ways = [members[0]], list[Arc](), list[tuple[Room, Way | None]]()
    while len(inside) < len(members):
        open_arcs = [(a, b) for a in inside for b in down.next[a]
                     if b not in inside and down.way((a, b)) and up.way((b, a))]
        if not open_arcs:
            for room, way in ways:
                room.give(way or ())
            return ()
        best = max(open_arcs, key=lambda arc: (down.left[arc], -down.out([arc[1]]), -arc[0], -arc[1]))
        ways += [(down, down.take(best)), (up, up.take((best[1], best[0])))]
        arcs.append(best)
        inside.append(best[1])
    return tuple(arcs)


__all__ = ["Arc", "Ring", "Rings", "Room", "arcs_of", "capacity", "rings", "taken", "trees"]
