"""The usual topologies by name: ring, switch, all to all, torus, fat tree, the cube mesh of a DGX-1, many nodes.

`wire.alpha_s` is the latency between two neighbouring devices: where a switch lies between them, each of the two links
has half of it.  After `topology.py`, before `rings.py`.
"""
from __future__ import annotations

from itertools import combinations, product
from math import ceil, prod

from simulator.topology import Edge, Link, Topology, both_ways


def ring(n: int, wire: Link) -> Topology:
    """Each device joined to the next, in both directions: 2n links, 2 for two devices."""
    pairs = {tuple(sorted((i, (i + 1) % n))): None for i in range(n) if n > 1}
    return Topology(f"ring({n})", n, tuple(both_ways(pairs, wire)))  # type: ignore[arg-type]


def fully_connected(n: int, wire: Link) -> Topology:
    """A wire between any two devices, in both directions: n(n-1) links."""
    return Topology(f"fully_connected({n})", n, tuple(both_ways(combinations(range(n), 2), wire)))


def switch(n: int, wire: Link) -> Topology:
    """Every device has one wire, to a switch that never blocks: 2n links."""
    return Topology(f"switch({n})", n, tuple(both_ways(((i, n) for i in range(n)), _half(wire))), ("switch",))


def torus(sides: tuple[int, ...], wire: Link) -> Topology:
    """A grid whose axes are rings; numbers are row-major.  A message goes along the first axis first.

    2 n links for each axis longer than 2, n for one of 2, none for one of 1."""
    if not sides or min(sides) < 1:
        raise ValueError(f"torus: sides must be at least one number of at least 1, got {sides}")
    n = prod(sides)
    pairs: dict[tuple[int, int], None] = {}
    for axis in reversed(range(len(sides))):                  # the last step of a path is along the last axis
        for place in product(*map(range, sides)):
            a, b = (_number(p, sides) for p in (place, _next(place, axis, sides)))
            if a != b:
                pairs[min(a, b), max(a, b)] = None
    places = tuple(_in_the_plane(place, sum(sides[:-2])) for place in product(*map(range, sides)))
    return Topology(f"torus({' x '.join(map(str, sides))})", n, tuple(both_ways(pairs, wire)), places=places)


def _in_the_plane(place: tuple[int, ...], layers: int) -> tuple[float, float]:
    """Where a picture puts it: the last axis to the right, the one before it down, those before aslant."""
    *deep, down, right = (0, 0, *place)
    return right * max(1.0, 0.65 * layers) + 0.55 * sum(deep), down * max(1.0, 0.6 * layers) - 0.5 * sum(deep)


def _next(place: tuple[int, ...], axis: int, sides: tuple[int, ...]) -> tuple[int, ...]:
    return (*place[:axis], (place[axis] + 1) % sides[axis], *place[axis + 1:])


def _number(place: tuple[int, ...], sides: tuple[int, ...]) -> int:
    number = 0
    for at, side in zip(place, sides):
        number = number * side + at
    return number


def fat_tree(n: int, leaf: int, wire: Link, oversubscription: float = 1.0) -> Topology:
    """Two levels (Clos 1953; Leiserson 1985): `leaf` devices at each leaf switch, every leaf joined to every spine
    once.

    There are ceil(leaf / oversubscription) spines: with 1 any permutation of messages can run at full rate, with 4 what
    leaves a leaf has a quarter of what its devices send.  2n + 2 · leaves · spines links."""
    if leaf < 1 or n % leaf:
        raise ValueError(f"fat_tree: {n} devices do not divide into leaves of {leaf}; legal sizes: {_divisors(n)}")
    if not 1 <= oversubscription <= leaf:
        raise ValueError(f"fat_tree: oversubscription must be from 1 to {leaf}, the devices of a leaf, got "
                         f"{oversubscription}")
    leaves, spines = n // leaf, ceil(leaf / oversubscription) if n > leaf else 0
    down = both_ways(((i, n + i // leaf) for i in range(n)), _half(wire))
    up = both_ways(((n + a, n + leaves + b) for a in range(leaves) for b in range(spines)), _half(wire))
    names = (*(f"leaf {k}" for k in range(leaves)), *(f"spine {k}" for k in range(spines)))
    return Topology(f"fat_tree({n}, {leaf} a leaf, {oversubscription:g}:1)", n, tuple(down + up), names)


# A DGX-1 with V100: the number of NVLinks between each pair, 6 a GPU (NVIDIA DGX-1 with Tesla V100, figure 4).
CUBE_MESH = {(0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 1, (2, 6): 2,
             (3, 7): 2, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 1}

CUBE_PLACES = ((1.0, 0.0), (0.0, 0.0), (0.0, 2.0), (1.0, 2.0), (2.6, 0.0), (3.6, 0.0), (3.6, 2.0), (2.6, 2.0))


def cube_mesh(wire: Link, n: int = 8) -> Topology:
    """The hybrid cube mesh of a DGX-1: two fully joined squares, and each GPU joined to its like in the other.

    `wire` is one NVLink in one direction, of which pairs have one or two side by side.  `n` takes the first n GPUs."""
    if not 1 <= n <= 8:
        raise ValueError(f"cube_mesh: it has 8 GPUs; take from 1 to 8 of them, not {n}")
    pairs = [pair for pair, wires in CUBE_MESH.items() if max(pair) < n for _ in range(wires)]
    name = f"cube_mesh({n})" if n < 8 else "cube_mesh"
    return Topology(name, n, tuple(both_ways(pairs, wire)), places=CUBE_PLACES[:n])


def nodes(k: int, inside: Topology, between: Link, nics: int | None = None) -> Topology:
    """`k` nodes that are built alike, joined by one fabric that never blocks; device `d` of node `j` is `j·g + d`.

    `between` is a network card's rate.  Without `nics` each device has its own card, else a node's devices share so
    many: device `d` uses card `d·nics // g`, and what they send to other nodes waits for it."""
    g = inside.world_size
    cards = g if nics is None else nics
    if k < 1:
        raise ValueError(f"nodes: at least one node, got {k}")
    if cards < 1 or g % cards:
        raise ValueError(f"nodes: {g} devices a node do not share {cards} network cards evenly; legal: {_divisors(g)}")
    if k == 1:
        return inside
    n = k * g
    switches: list[str] = []
    edges: list[Edge] = []
    for j in range(k):
        at = [j * g + v if v < g else n + len(switches) + v - g for v in range(inside.vertices)]
        switches += [f"node {j} {name}" for name in inside.switches]
        edges += [Edge(at[e.src], at[e.dst], e.link) for e in inside.edges]
    if cards < g:
        first, host = n + len(switches), between.with_(name=f"{between.name}, in the node", alpha_s=0.0)
        edges += both_ways(((d, first + d * cards // g) for d in range(n)), host)
        switches += [f"node {j} card {c}" for j in range(k) for c in range(cards)]
    outer = range(first, first + k * cards) if cards < g else range(n)
    edges += both_ways(((v, n + len(switches)) for v in outer), _half(between))
    return Topology(f"{k} nodes of {inside.name}", n, tuple(edges), (*switches, "fabric"))


def _half(wire: Link) -> Link:
    return wire.with_(name=f"{wire.name}, to or from a switch", alpha_s=wire.alpha_s / 2)


def _divisors(n: int) -> str:
    return ", ".join(str(d) for d in range(1, n + 1) if n % d == 0)


__all__ = ["CUBE_MESH", "cube_mesh", "fat_tree", "fully_connected", "nodes", "ring", "switch", "torus"]
