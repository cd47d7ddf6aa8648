"""ALGORITHMS: every collective by every algorithm as a function from a world size to its Plan.

After `gathers.py` and `trees.py`, which know one rank 0 and one direction: here roots are turned to where they belong,
and reduce, reduce_scatter and gather are broadcast, all_gather and scatter backwards.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from inspect import signature
from operator import index
from typing import Any

from simulator.collectives import gathers as g, trees as t
from simulator.collectives.plan import KINDS, ROOTED, Move, Plan, Rounds, backwards, finished, relabel, together

Made = tuple[Rounds, int] | tuple[Rounds, int, int]            # rounds, chunks and, if not one, channels
ALGORITHMS: dict[tuple[str, str], Callable[..., Plan]] = {}
DEFAULT = {"broadcast": "tree", "reduce": "tree", "all_reduce": "ring", "reduce_scatter": "ring", "all_gather": "ring",
           "all_to_all": "pairwise", "gather": "tree", "scatter": "tree"}


def make_plan(kind: str, algorithm: str | None, world: int, **how: Any) -> Plan:
    """The plan of a collective; equal arguments give the same object.

    `algorithm`: None for the kind's usual one.  `how`, where the algorithm knows it: `root` (broadcast, reduce, gather,
    scatter), `chunks` (in how many pieces a pipeline sends), `per_node` (hierarchical), `servers`, `rings` (orders
    of the ranks).  ValueError for a kind, algorithm, size or root that is not there."""
    if kind not in KINDS:
        raise ValueError(f"collective {kind!r} is none of {', '.join(KINDS)}")
    algorithm = DEFAULT[kind] if algorithm is None else algorithm
    if (kind, algorithm) not in ALGORITHMS:
        raise ValueError(f"{kind}: no algorithm {algorithm!r}; there are {', '.join(algorithms(kind))}")
    return _made(kind, algorithm, world, tuple(sorted((k, _frozen(v)) for k, v in how.items() if v is not None)))


@lru_cache(maxsize=64)
def _made(kind: str, algorithm: str, world: int, how: tuple[tuple[str, Any], ...]) -> Plan:
    return ALGORITHMS[kind, algorithm](world, **dict(how))


def algorithms(kind: str) -> list[str]:
    """The algorithms of a collective."""
    return [algorithm for k, algorithm in ALGORITHMS if k == kind]


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple | range) else value


def _entry(kind: str, algorithm: str, **defaults: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Puts a function (world, **how) -> (rounds, chunks) or (rounds, chunks, channels), made for root 0, into the
    table."""

    def put(rounds_of: Callable[..., Made]) -> Callable[..., Made]:
        known = [word for word in list(signature(rounds_of).parameters)[1:] if word not in defaults]
        known += ["root"] * (kind in ROOTED)

        def plan(world: int, **how: Any) -> Plan:
            name = f"{kind} by {algorithm}"
            size, root = _size(name, world), 0
            for word in how:
                if word not in known:
                    raise ValueError(f"{name}: no such choice as {word!r}; it has {', '.join(known) or 'none'}")
            if kind in ROOTED:
                root = _root(name, how.pop("root", 0), size)
            rounds, chunks, *channels = rounds_of(size, **defaults, **how)
            if root:
                rounds = _turned(kind, rounds, chunks, size, root)
            return Plan(name, size, chunks, finished(rounds), kind, root, *channels)

        plan.__name__ = plan.__qualname__ = f"{kind}_{algorithm}".replace(" ", "_").replace("-", "_")
        plan.__doc__ = rounds_of.__doc__
        ALGORITHMS[kind, algorithm] = plan
        return rounds_of

    return put


def _turned(kind: str, rounds: Rounds, chunks: int, world: int, root: int) -> Rounds:
    """Rank v becomes (v + root) mod world; chunks that belong to a rank go with it."""
    ranks = [(v + root) % world for v in range(world)]
    return relabel(rounds, ranks, [(c if kind in ("broadcast", "reduce") else ranks[c],) for c in range(chunks)])


# ---- what may be asked ---------------------------------------------------------------------------
def _size(name: str, world: int) -> int:
    world = index(world)
    if world < 1:
        raise ValueError(f"{name}: at least one rank, got {world}")
    return world


def _root(name: str, root: int, world: int) -> int:
    if not 0 <= index(root) < world:
        raise ValueError(f"{name}: root {root} is not a rank; there are 0 … {world - 1}")
    return index(root)


def _pieces(world: int, chunks: int | None, least: int = 1) -> int:
    """In how many pieces a pipeline sends: as many as ranks, if not said."""
    count = max(world, least) if chunks is None else index(chunks)
    if count < least:
        raise ValueError(f"a pipeline of {world} ranks needs at least {least} chunks, got {count}")
    return count


def _per_node(world: int, per_node: int | None) -> int:
    """Ranks of a node: what was asked, or the largest proper divisor up to 8."""
    legal = [k for k in range(1, world + 1) if world % k == 0]
    if per_node is None:
        return max((k for k in legal if k <= min(8, world // 2)), default=1)
    if per_node not in legal:
        raise ValueError(f"hierarchical: {world} ranks cannot be nodes of {per_node}; per_node is one of {legal}")
    return per_node


def _rings(world: int, rings: Sequence[Sequence[int]] | None) -> list[list[int]]:
    """Orders of the ranks; each carries its share of the bytes."""
    orders = [list(range(world))] if rings is None else [list(map(index, ring)) for ring in rings]
    for ring in orders:
        if sorted(ring) != list(range(world)):
            raise ValueError(f"ring: each of 0 … {world - 1} once, got {ring}")
    if not orders:
        raise ValueError("ring: no ring was given")
    return orders


# ---- one rank to all, all to one -----------------------------------------------------------------
for _kind in ("broadcast", "reduce"):
    _way = (lambda rounds: backwards(rounds, True)) if _kind == "reduce" else list

    @_entry(_kind, "tree", way=_way)
    def _tree(n: int, way: Any, chunks: int = 1) -> tuple[Rounds, int]:
        """A binomial tree: ceil(log2 n) rounds of the whole buffer."""
        return way(t.tree_broadcast(n, _pieces(n, chunks))), chunks

    @_entry(_kind, "ring", way=_way)
    def _chain(n: int, way: Any, chunks: int | None = None) -> tuple[Rounds, int]:
        """A chain of all ranks as a pipeline of chunks."""
        return way(t.chain_broadcast(n, _pieces(n, chunks)) if n > 1 else []), _pieces(n, chunks)

    @_entry(_kind, "double tree", way=_way)
    def _double(n: int, way: Any, chunks: int | None = None) -> tuple[Rounds, int]:
        """Half of the chunks down each of two trees: all ranks send and receive all the time."""
        return way(t.double_tree_broadcast(n, _pieces(n, chunks, 2))), _pieces(n, chunks, 2)

    @_entry(_kind, "halving-doubling", way=_way)
    def _van_de_geijn(n: int, way: Any) -> tuple[Rounds, int]:
        """Scatter by halving and all_gather by doubling (reduce: backwards)."""
        return way(t.scatter_gather_broadcast(n)), n

    @_entry(_kind, "hierarchical", way=_way)
    def _hierarchical(n: int, way: Any, per_node: int | None = None) -> tuple[Rounds, int]:
        """A tree of nodes, then a tree in each."""
        return way(t.hierarchical_broadcast(n, _per_node(n, per_node))), 1

    @_entry(_kind, "direct", way=_way)
    def _direct(n: int, way: Any) -> tuple[Rounds, int]:
        """The root with each rank at once."""
        return way(t.direct_broadcast(n)), 1


for _kind in ("scatter", "gather"):
    _way = (lambda rounds: backwards(rounds, False)) if _kind == "gather" else list
    for _name, _of in (("tree", g.tree_scatter), ("ring", g.ring_scatter), ("direct", g.direct_scatter)):
        _entry(_kind, _name, way=_way, of=_of)(lambda n, way, of: (way(of(n)), n))


# ---- all to all ----------------------------------------------------------------------------------
def _round_rings(n: int, rings: Sequence[Sequence[int]] | None, reduce: bool) -> list[list[Move]]:
    """all_gather along rings, or reduce_scatter along the same rings in the same direction."""
    orders = _rings(n, rings)
    count = len(orders)
    one = backwards(g.ring_gather(n, -1), True) if reduce else g.ring_gather(n)
    return together(*(relabel(one, ring, [(rank * count + q,) for rank in ring]) for q, ring in enumerate(orders)))


@_entry("all_gather", "ring", reduce=False)
@_entry("reduce_scatter", "ring", reduce=True)
def _ring(n: int, reduce: bool, rings: Sequence[Sequence[int]] | None = None) -> tuple[Rounds, int, int]:
    """Around one ring, or several with a share of the bytes each: bandwidth-optimal (Patarasuk, Yuan 2009)."""
    return _round_rings(n, rings, reduce), n * len(_rings(n, rings)), len(_rings(n, rings))


for _name, _of in (("halving-doubling", g.doubling_gather), ("bruck", g.bruck_gather), ("direct", g.direct_gather)):
    _entry("all_gather", _name, of=_of)(lambda n, of: (of(n), n))
    _entry("reduce_scatter", _name, of=_of)(lambda n, of: (backwards(of(n), True), n))


@_entry("all_gather", "hierarchical", reduce=False)
@_entry("reduce_scatter", "hierarchical", reduce=True)
def _nodes(n: int, reduce: bool, per_node: int | None = None) -> tuple[Rounds, int]:
    """Rings between nodes and rings in nodes."""
    size = _per_node(n, per_node)
    return (backwards(g.hierarchical_gather(n, size, -1), True) if reduce else g.hierarchical_gather(n, size)), n


for _name, _of in (("pairwise", g.pairwise_exchange), ("direct", g.direct_exchange), ("ring", g.ring_exchange),
                   ("bruck", g.bruck_exchange)):
    _entry("all_to_all", _name, of=_of)(lambda n, of: (of(n), n * n))


@_entry("all_to_all", "hierarchical")
def _node_exchange(n: int, per_node: int | None = None) -> tuple[Rounds, int]:
    """Within nodes first, so that few large messages go between them."""
    return g.hierarchical_exchange(n, _per_node(n, per_node)), n * n


# ---- all_reduce ----------------------------------------------------------------------------------
@_entry("all_reduce", "ring")
def _all_reduce_ring(n: int, rings: Sequence[Sequence[int]] | None = None) -> tuple[Rounds, int, int]:
    """reduce_scatter and all_gather along one ring, or several with a share of the bytes each."""
    count = len(_rings(n, rings))
    return [*_round_rings(n, rings, True), *_round_rings(n, rings, False)], n * count, count


@_entry("all_reduce", "tree")
def _all_reduce_tree(n: int) -> tuple[Rounds, int]:
    """Up a binomial tree and down again."""
    down = t.tree_broadcast(n)
    return [*backwards(down, True), *down], 1


@_entry("all_reduce", "double tree")
def _all_reduce_double(n: int, chunks: int | None = None) -> tuple[Rounds, int]:
    """Up and down two trees, half of the chunks on each (NCCL 2.4)."""
    count = _pieces(n, chunks, 2)
    down = t.double_tree_down(n, count)
    return [*backwards(down, True), *down], count


@_entry("all_reduce", "halving-doubling")
def _all_reduce_halving(n: int) -> tuple[Rounds, int]:
    """reduce_scatter by halving and all_gather by doubling among p ranks, the largest power of two; the others give
    theirs to one of these before and get the result after (Rabenseifner 2004)."""
    p = g.power_below(n)
    gather = g.doubling_gather(p)
    before = [Move(r + p, r, chunk, True) for r in range(n - p) for chunk in range(p)]
    after = [Move(r, r + p, chunk) for r in range(n - p) for chunk in range(p)]
    return [before, *backwards(gather, True), *gather, after], p


@_entry("all_reduce", "doubling")
def _all_reduce_doubling(n: int) -> tuple[Rounds, int]:
    """Ranks r and r ^ d exchange whole sums: fewest rounds."""
    return t.fold_exchange(n), 1


@_entry("all_reduce", "hierarchical")
def _all_reduce_nodes(n: int, per_node: int | None = None) -> tuple[Rounds, int]:
    """reduce_scatter in each node, all_reduce between nodes, all_gather in each node: all by rings."""
    size = _per_node(n, per_node)
    return [*backwards(g.hierarchical_gather(n, size, -1), True), *g.hierarchical_gather(n, size)], n


@_entry("all_reduce", "direct")
def _all_reduce_direct(n: int) -> tuple[Rounds, int]:
    """Each rank adds up one chunk of all, and sends it to all: two rounds."""
    return _all_reduce_server(n, n)


@_entry("all_reduce", "server")
def _all_reduce_server(n: int, servers: int = 1) -> tuple[Rounds, int]:
    """Ranks 0 … servers-1 add up a chunk each: everybody sends it there, and gets the sum back."""
    if not 1 <= index(servers) <= n:
        raise ValueError(f"server: {servers} servers among {n} ranks; 1 … {n} are possible")
    push = [Move(w, (w - k) % servers, (w - k) % servers, True) for k in range(1, servers + 1) for w in range(n)
            if w != (w - k) % servers]
    return [push, [Move(m.dst, m.src, m.chunk) for m in push]], servers


__all__ = ["ALGORITHMS", "DEFAULT", "algorithms", "make_plan"]
