"""Devices, switches and links as a graph, and the way of a message through it.

Vertices 0 … n-1 are devices, the rest switches.  Links have one direction each and may be parallel; nothing is assumed
of their layout.  After `device.py`; `shapes.py` makes the usual ones, `network.py` gives links a clock.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from heapq import heappop, heappush
from importlib import import_module
from itertools import groupby
from math import isfinite
from statistics import median
from typing import Any, NamedTuple

from minigrad.arguments import of_kind
from simulator.published import table
from simulator.units import GB, MiB, show, us

PACKAGE = __name__.split(".")[0]


@dataclass(frozen=True)
class Link:
    """One direction of a wire: `alpha_s + nbytes / bytes_per_s` seconds for a message (Hockney 1994)."""

    name: str
    bytes_per_s: float
    alpha_s: float = 0.0
    source: str = ""

    def __post_init__(self) -> None:
        if not (isfinite(self.bytes_per_s) and self.bytes_per_s > 0 and isfinite(self.alpha_s) and self.alpha_s >= 0):
            raise ValueError(f"Link {self.name!r}: bytes_per_s must be finite and more than 0, alpha_s at least 0; got "
                             f"{self.bytes_per_s} and {self.alpha_s}")

    def with_(self, **changes: Any) -> Link:
        return replace(self, **changes)

    def __str__(self) -> str:
        return f"{self.name}: {show(self.bytes_per_s, 'B/s')}, {show(self.alpha_s, 's')}"


class Edge(NamedTuple):
    """A link between two vertices; its id is its place in `Topology.edges`."""

    src: int
    dst: int
    link: Link


@dataclass(frozen=True)
class Topology:
    """`world_size` devices, `switches` (their names), and links.  Two equal ones have equal paths.

    `places`: where a picture puts the devices, in units of their distance; else it finds places itself."""

    name: str
    world_size: int
    edges: tuple[Edge, ...]
    switches: tuple[str, ...] = ()
    places: tuple[tuple[float, float], ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise ValueError(f"Topology {self.name!r}: at least one device, got {self.world_size}")
        for k, edge in enumerate(self.edges):
            of_kind(f"Topology {self.name!r}", f"link {k} (simulator.link gives one by name)", edge.link, Link)
            if not (0 <= edge.src < self.vertices and 0 <= edge.dst < self.vertices) or edge.src == edge.dst:
                raise ValueError(f"Topology {self.name!r}: link {k} goes from {edge.src} to {edge.dst}; it must join "
                                 f"two different ones of the vertices 0 … {self.vertices - 1}")

    @property
    def vertices(self) -> int:
        return self.world_size + len(self.switches)

    def vertex_name(self, vertex: int) -> str:
        """`0` for a device, the switch's name for a switch."""
        return str(vertex) if vertex < self.world_size else self.switches[vertex - self.world_size]

    def check_rank(self, rank: int, what: str = "rank") -> None:
        if not 0 <= rank < self.world_size:
            raise ValueError(f"{what} {rank} is not in {self.name}, whose devices are 0 … {self.world_size - 1}")

    # -- paths
    def path(self, src: int, dst: int) -> tuple[int, ...]:
        """The links from one device to another, by id; none from a device to itself.

        Of all ways the fewest links; of these the fastest for 1 MiB; of these, through switches, the one that the
        number of the destination chooses, so that traffic spreads over equal switches (D-mod-k routing: Zahavi et al.
        2010).  Of parallel links the first.  ValueError where there is no way."""
        return tuple(lanes[0] for lanes in self.lanes(src, dst))

    def lanes(self, src: int, dst: int) -> tuple[tuple[int, ...], ...]:
        """The same way as `path`, each step with all its parallel links, which are as fast as each other."""
        found = self._ways.get((src, dst))
        if found is None:
            self.check_rank(src)
            self.check_rank(dst)
            wires = self._parallel.get((src, dst))            # one link is the fewest
            found = self._ways[src, dst] = (wires,) if wires else self._walk(src, dst)
        return found

    def _walk(self, src: int, dst: int) -> tuple[tuple[int, ...], ...]:
        before, steps, at = self._tree(src), [], dst
        while at != src:
            if at not in before:
                raise ValueError(f"{self.name}: no way from {src} to {dst}: from {src} one reaches devices "
                                 f"{sorted(v for v in {src, *before} if v < self.world_size)}")
            choices = before[at]
            via = choices[dst % len(choices)] if choices[0] >= self.world_size else choices[0]
            steps.append(self._parallel[via, at])
            at = via
        return tuple(reversed(steps))

    def _tree(self, src: int) -> dict[int, list[int]]:
        """Of each vertex that `src` reaches: those before it on its best ways, in the order of links (Dijkstra
        1959)."""
        found = self._trees.get(src)
        if found is not None:
            return found
        best, before, queue = {src: 0}, defaultdict(list), [(0, src)]
        while queue:
            cost, u = heappop(queue)
            if cost > best[u]:
                continue
            for v, price in self._next[u]:
                new = cost + price
                if new < best.get(v, new + 1):
                    best[v], before[v] = new, [u]
                    heappush(queue, (new, v))
                elif new == best[v]:
                    before[v].append(u)
        found = self._trees[src] = {v: sorted(us, key=lambda u: self._parallel[u, v]) for v, us in before.items()}
        return found

    def _reaches(self, src: int, dst: int) -> bool:
        return (src, dst) in self._parallel or dst in self._tree(src)

    @cached_property
    def _parallel(self) -> dict[tuple[int, int], tuple[int, ...]]:
        """The fastest links of each pair of neighbours."""
        pairs: dict[tuple[int, int], tuple[int, ...]] = {}
        for k, (src, dst, _) in enumerate(self.edges):
            pairs[src, dst] = (*pairs.get((src, dst), ()), k)
        return {pair: found if len(found) == 1 else self._fastest(found) for pair, found in pairs.items()}

    def _fastest(self, found: tuple[int, ...]) -> tuple[int, ...]:
        prices = [_price(self.edges[k].link) for k in found]
        return tuple(k for k, price in zip(found, prices) if price == min(prices))

    @cached_property
    def _next(self) -> list[list[tuple[int, int]]]:
        """(neighbour, price) of each vertex: whole numbers, so that sums in any order are equal."""
        found: list[list[tuple[int, int]]] = [[] for _ in range(self.vertices)]
        for (u, v), ids in self._parallel.items():
            found[u].append((v, _HOP + _price(self.edges[ids[0]].link)))
        return found

    @cached_property
    def _trees(self) -> dict[int, dict[int, list[int]]]:
        return {}

    @cached_property
    def _complete(self) -> bool:
        """Whether each pair of devices has a link of its own."""
        n = self.world_size
        return sum(max(pair) < n for pair in self._parallel) == n * (n - 1)

    @cached_property
    def _shared(self) -> dict[tuple[int, int], bool]:
        return {}

    @cached_property
    def _ways(self) -> dict[tuple[int, int], tuple[tuple[int, ...], ...]]:
        return {}

    # -- who shares a link
    def shared(self, src: int, dst: int) -> bool:
        """Whether a message of another sender may need a link of this path."""
        found = self._shared.get((src, dst))
        if found is None:
            way = self.lanes(src, dst)
            found = self._shared[src, dst] = not self._complete and (
                self._met(src, dst) or any(len(self.senders[k]) > 1 for step in way for k in step))
        return found

    def _met(self, src: int, dst: int) -> bool:
        """Whether a message of another sender to the same device takes one of the links: quickly seen."""
        own = {k for step in self.lanes(src, dst) for k in step}
        for other in range(self.world_size):
            if other not in (src, dst) and self._reaches(other, dst):
                if any(k in own for step in self.lanes(other, dst) for k in step):
                    return True
        return False

    @cached_property
    def senders(self) -> tuple[frozenset[int], ...]:
        """Of each link: the devices whose messages may use it."""
        found: list[set[int]] = [set() for _ in self.edges]
        for src in range(self.world_size):
            for dst in range(self.world_size):
                if dst != src and self._reaches(src, dst):
                    for step in self.lanes(src, dst):
                        for k in step:
                            found[k].add(src)
        return tuple(map(frozenset, found))

    # -- changed, and as text
    def with_links(self, change: Callable[[Link], Link]) -> Topology:
        """The same with `change(link)` for each link: what if cards were twice as fast?"""
        return replace(self, edges=tuple(edge._replace(link=change(edge.link)) for edge in self.edges))

    def __str__(self) -> str:
        counts = ((self.world_size, "device"), (len(self.switches), "switch"), (len(self.edges), "link"))
        rows = [f"{self.name}: {', '.join(counted(n, what) for n, what in counts)}"]
        kinds: dict[Link, int] = defaultdict(int)
        for edge in self.edges:
            kinds[edge.link] += 1
        return "\n".join([*rows, *(f"  {count} x {kind}" for kind, count in kinds.items())])

    def __repr__(self) -> str:
        return f"<Topology {self.name}: {self.world_size} devices, {len(self.edges)} links>"

    def _repr_html_(self) -> str:
        """In a notebook: the picture."""
        return import_module(f"{PACKAGE}.viz.topology").html(self)

    def __getstate__(self) -> dict[str, Any]:
        """Without what was worked out from it."""
        return {name: getattr(self, name) for name in ("name", "world_size", "edges", "switches", "places")}


_HOP = 10**18                                                 # one link more is worse than any rate


def _price(link: Link) -> int:
    """Picoseconds for 1 MiB."""
    return round(1e12 * (link.alpha_s + MiB / link.bytes_per_s))


def both_ways(pairs: Iterable[tuple[int, int]], wire: Link) -> list[Edge]:
    """A link in each direction for each pair."""
    return [Edge(u, v, wire) for a, b in pairs for u, v in ((a, b), (b, a))]


def counted(n: int, what: str) -> str:
    """"1 link", "2 links", "3 switches"."""
    return f"{n} {what}" + ("" if n == 1 else "es" if what.endswith("ch") else "s")


def runs(numbers: Sequence[int]) -> str:
    """Ranks as text: "0-3, 7"."""
    groups = groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    spans = [[n for _, n in group] for _, group in groups]
    return ", ".join(str(s[0]) if len(s) == 1 else f"{s[0]}-{s[-1]}" for s in spans)


# ---- presets -------------------------------------------------------------------------------------
PROTOCOLS = ("Simple", "LL")


@cache
def link(name: str, protocol: str = "Simple") -> Link:
    """A link of the published table by its name or the beginning of it, for one direction of one device.

    Its rate is the plateau that NCCL's all-reduce reaches on it where that was measured, else the nominal one times the
    median part that was reached on links of its family, or on all.  Its latency is NCCL's for this protocol: "LL" is
    for short messages."""
    rows = [row for row in table("link_specs") if row["link"].startswith(name)]
    if protocol not in PROTOCOLS:
        raise ValueError(f"link: protocol {protocol!r} is none of {', '.join(PROTOCOLS)}")
    if len(rows) != 1:
        raise ValueError(f"link {name!r}: {len(rows)} of this name; there are "
                         f"{', '.join(row['link'] for row in table('link_specs'))}")
    row = rows[0]
    measured, nominal = row["measured_plateau_busbw_GBps"], row["nominal_unidir_GBps"]
    part, of = reached(row["link"])
    rate = measured or nominal * part
    said = "measured plateau" if measured else f"nominal {nominal:g} GB/s times {part:.3g}, the median reached on {of}"
    latency = row[f"nccl_hw_latency_ring_{protocol}_us"]
    return Link(row["link"], rate * GB, latency * us, f"link_specs: {said}; latency: NCCL's, {protocol}")


def reached(name: str) -> tuple[float, str]:
    """(the median part of the nominal rate that was measured on links of this family, or else on all; which)."""
    parts = {row["link"]: row["measured_plateau_busbw_GBps"] / row["nominal_unidir_GBps"]
             for row in table("link_specs") if row["measured_plateau_busbw_GBps"]}
    family = name.rstrip("x0123456789 ").split()[0].rstrip("0123456789")
    own = [part for other, part in parts.items() if other.startswith(family)]
    return (median(own), f"{family} links") if own else (median(parts.values()), "all links")


__all__ = ["Edge", "Link", "PROTOCOLS", "Topology", "both_ways", "counted", "link", "reached", "runs"]
