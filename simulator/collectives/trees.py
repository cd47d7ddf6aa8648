"""Rounds that bring the chunks of one rank to all others: broadcast, which backwards is reduce; and two trees at once.

After `plan.py` and `gathers.py`.  Rank 0 is the root.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from simulator.collectives.gathers import doubling_gather, powers, tree_scatter
from simulator.collectives.plan import Move, Rounds, relabel, together, without_repeats


def tree_broadcast(n: int, chunks: int = 1) -> Rounds:
    """Who has it gives it to another: after k rounds 2**k have it (binomial tree)."""
    return [[Move(v, v + d, chunk) for v in range(0, n - d, 2 * d) for chunk in range(chunks)]
            for d in reversed(powers(n))]


def chain_broadcast(n: int, chunks: int) -> Rounds:
    """From rank to rank, a chunk a round, so that all links are busy at once: a pipeline."""
    return [[Move(v, v + 1, t - v) for v in range(n - 1) if 0 <= t - v < chunks] for t in range(n - 2 + chunks)]


def direct_broadcast(n: int, chunks: int = 1) -> Rounds:
    """Rank 0 to each, all at once."""
    return [[Move(0, r, chunk) for r in range(1, n) for chunk in range(chunks)]]


def scatter_gather_broadcast(n: int) -> Rounds:
    """Scatter by halving, then all_gather by doubling: each chunk reaches each rank once (van de Geijn 1994)."""
    return without_repeats([*tree_scatter(n), *doubling_gather(n)], {chunk: [0] for chunk in range(n)})


def hierarchical_broadcast(n: int, per_node: int, chunks: int = 1) -> Rounds:
    """A tree of one rank of each node, then a tree in each node."""
    every = [(chunk,) for chunk in range(chunks)]
    firsts = range(0, n, per_node)
    between = relabel(tree_broadcast(len(firsts), chunks), firsts, every)
    inside = tree_broadcast(per_node, chunks)
    return [*between, *together(*(relabel(inside, range(at, at + per_node), every) for at in firsts))]


def fold_exchange(n: int) -> Rounds:
    """all_reduce of one chunk by recursive doubling: ranks r and r ^ d exchange their sums.  The ranks above a power of
    two p first add theirs to that of rank r - p, and get the result from it."""
    p = 1 << (n.bit_length() - 1)
    extra = range(n - p)
    rounds = [[Move(r, r ^ d, 0, True) for r in range(p)] for d in powers(p)]
    return [[Move(r + p, r, 0, True) for r in extra], *rounds, [Move(r, r + p, 0) for r in extra]]


# ---- two trees at once ---------------------------------------------------------------------------
def tree_parents(m: int) -> list[int]:
    """The parent of each of the nodes 1 … m of a binary tree in which odd ones are leaves; 0 for the root (and for node
    0, which is none)."""
    parents = [0] * (m + 1)
    for v in range(1, m + 1):
        low = v & -v
        up = (v ^ low) | (low << 1)
        parents[v] = up if up <= m else v ^ low
    return parents


def two_trees(m: int) -> list[list[int]]:
    """Two trees of the nodes 1 … m such that who has children in one is a leaf of the other, as parents: the mirror
    image for even m, else moved by one (Sanders, Speck, Träff 2009)."""
    first = tree_parents(m)
    other = [0, *range(m, 0, -1)] if m % 2 == 0 else [0, *range(2, m + 1), 1]
    second = [0] * (m + 1)
    for v in range(1, m + 1):
        second[other[v]] = other[first[v]]
    return [first, second]


def double_tree_broadcast(n: int, chunks: int) -> Rounds:
    """Rank 0 sends the even chunks down one tree of the others and the odd chunks down another: each rank sends and
    receives at most one chunk a round, and who only receives in one tree sends in the other."""
    return pipeline(n, [[-1, *parents[1:]] for parents in two_trees(n - 1)], chunks)


def double_tree_down(n: int, chunks: int) -> Rounds:
    """The same with a root in each tree, which has that tree's chunks at first; all ranks are in both trees."""
    return pipeline(n, roots_down(n), chunks)


def roots_down(n: int) -> list[list[int]]:
    """The two trees of all ranks 0 … n-1, as parents, -1 for the root."""
    return [[parent - 1 for parent in parents[1:]] for parents in two_trees(n)]


def pipeline(n: int, trees: Sequence[Sequence[int]], chunks: int) -> Rounds:
    """Chunk q goes down tree q % 2.  Edges have one of two colours and are used in rounds of their colour; at a rank
    the two on which it sends differ, and so do the two on which it receives: one chunk each way a round."""
    edges = [(parent, v, tree) for tree, parents in enumerate(trees)
             for v, parent in enumerate(parents) if parent >= 0]
    colour = two_colours(edges)
    rounds: dict[int, list[Move]] = defaultdict(list)
    for tree, parents in enumerate(trees):
        first = first_rounds(parents, {(u, v): colour[u, v, tree] for u, v, t in edges if t == tree})
        for v, parent in enumerate(parents):
            for turn, chunk in enumerate(range(tree, chunks, 2)):
                if parent >= 0:
                    rounds[first[v] + 2 * turn].append(Move(parent, v, chunk))
    return [sorted(rounds[t]) for t in sorted(rounds)]


def first_rounds(parents: Sequence[int], colour: dict[tuple[int, int], int]) -> list[int]:
    """The round in which the first chunk reaches each node, down a tree: the first after its parent's that is of the
    edge's colour (-1 at the root)."""
    found = [-1] * len(parents)
    children = defaultdict(list)
    for v, parent in enumerate(parents):
        children[parent].append(v)
    waiting = [(root, -1) for root in children[-1]]
    while waiting:
        u, at = waiting.pop()
        found[u] = at
        waiting += [(v, at + 1 + (at + 1 + colour[u, v]) % 2) for v in children[u]]
    return found


def two_colours(edges: Sequence[tuple[int, int, int]]) -> dict[tuple[int, int, int], int]:
    """A colour 0 or 1 for each (sender, receiver, tree), different on the edges of a sender and on those of a receiver.
    There are at most two of each, so that the edges form chains and even circles, which are coloured in turn."""
    meets: dict[tuple[str, int], list[tuple[int, int, int]]] = defaultdict(list)
    for edge in edges:
        meets["from", edge[0]].append(edge)
        meets["to", edge[1]].append(edge)
    colour: dict[tuple[int, int, int], int] = {}
    for first in edges:
        waiting = [(first, 0)] if first not in colour else []
        while waiting:
            edge, own = waiting.pop()
            if edge not in colour:
                colour[edge] = own
                both = meets["from", edge[0]] + meets["to", edge[1]]
                waiting += [(other, 1 - own) for other in both if other != edge]
    return colour


__all__ = ["chain_broadcast", "direct_broadcast", "double_tree_broadcast", "double_tree_down", "first_rounds",
           "fold_exchange", "hierarchical_broadcast", "pipeline", "roots_down", "scatter_gather_broadcast",
           "tree_broadcast", "tree_parents", "two_colours", "two_trees"]
