"""Rounds that bring every rank's chunk to others: all_gather, scatter, all_to_all.

After `plan.py`.  Chunk i belongs to rank i (in all_to_all, chunk s * n + d goes from s to d).  Backwards they are
reduce_scatter and gather.  Sources: Thakur, Rabenseifner, Gropp 2005 (MPICH); Bruck et al. 1997.
"""
from __future__ import annotations

from simulator.collectives.plan import Move, Rounds, relabel, together


# ---- all_gather: chunk i is at rank i, and goes everywhere ---------------------------------------
def ring_gather(n: int, step: int = 1) -> Rounds:
    """Each passes on to the next (`step` = 1) or to the one before (-1) what it got last."""
    return [[Move(r, (r + step) % n, (r - step * t) % n) for r in range(n)] for t in range(n - 1)]


def doubling_gather(n: int) -> Rounds:
    """Ranks r and r ^ d exchange all that they have, d = 1, 2, 4 …: recursive doubling.

    Between the largest power of two p of the ranks; each of the others first gives its chunk to rank r - p, and gets
    all from it at the end."""
    p = power_below(n)
    extra = n - p
    held = [[r] + [r + p] * (r < extra) for r in range(p)]
    rounds = [[Move(r + p, r, r + p) for r in range(extra)]]
    for d in powers(p):
        rounds.append([Move(r, r ^ d, chunk) for r in range(p) for chunk in held[r]])
        held = [sorted(held[r] + held[r ^ d]) for r in range(p)]
    return [*rounds, [Move(r, r + p, chunk) for r in range(extra) for chunk in range(n) if chunk != r + p]]


def bruck_gather(n: int) -> Rounds:
    """Rank r gives all that it has, or what is still missing, to rank r - d, d = 1, 2, 4 …: ceil(log2 n) rounds for any
    n (Bruck et al. 1997)."""
    return [[Move(r, (r - d) % n, (r + k) % n) for r in range(n) for k in range(min(d, n - d))] for d in powers(n)]


def direct_gather(n: int) -> Rounds:
    """Each to each, all at once."""
    return [[Move(r, (r + k) % n, r) for k in range(1, n) for r in range(n)]]


def hierarchical_gather(n: int, per_node: int, step: int = 1) -> Rounds:
    """A ring of the first ranks of all nodes, one of the second ranks …; then a ring in each node, where rank (node, i)
    passes on the chunks of all ranks i."""
    g, nodes = per_node, n // per_node
    columns = [range(i, n, g) for i in range(g)]
    between = together(*(relabel(ring_gather(nodes, step), column, [(c,) for c in column]) for column in columns))
    within = together(*(relabel(ring_gather(g, step), range(b * g, b * g + g), columns) for b in range(nodes)))
    return [*between, *within]


# ---- scatter: rank 0 has all chunks, chunk i goes to rank i --------------------------------------
def tree_scatter(n: int) -> Rounds:
    """Who has several chunks gives the upper half away: recursive halving along a binomial tree."""
    return [[Move(v, v + d, chunk) for v in range(0, n - d, 2 * d) for chunk in range(v + d, min(v + 2 * d, n))]
            for d in reversed(powers(n))]


def ring_scatter(n: int) -> Rounds:
    """Along a chain, what goes farthest first: a chunk a round."""
    return [[Move(v, v + 1, n - 1 - t + v) for v in range(t + 1)] for t in range(n - 1)]


def direct_scatter(n: int) -> Rounds:
    """Rank 0 to each, all at once."""
    return [[Move(0, r, r) for r in range(1, n)]]


# ---- all_to_all ----------------------------------------------------------------------------------
def pairwise_exchange(n: int) -> Rounds:
    """In round k rank r sends to r + k what is for it: one message a rank and round."""
    return [[Move(r, (r + k) % n, r * n + (r + k) % n) for r in range(n)] for k in range(1, n)]


def direct_exchange(n: int) -> Rounds:
    """Each to each, all at once."""
    return [[move for moves in pairwise_exchange(n) for move in moves]]


def ring_exchange(n: int) -> Rounds:
    """Each passes on to the next rank what is for those after it: neighbours only, n / 2 times the bytes."""
    return [[Move((s + t) % n, (s + t + 1) % n, s * n + (s + k) % n) for s in range(n) for k in range(t + 1, n)]
            for t in range(n - 1)]


def bruck_exchange(n: int) -> Rounds:
    """A chunk that has k ranks to go moves by the powers of two in k: ceil(log2 n) rounds (Bruck et al. 1997)."""
    return [[Move((s + k % d) % n, (s + k % d + d) % n, s * n + (s + k) % n)
             for s in range(n) for k in range(n) if k & d] for d in powers(n)]


def hierarchical_exchange(n: int, per_node: int) -> Rounds:
    """In its node each rank first gives rank i what is for the ranks i of all nodes; those then exchange between nodes,
    so that a message between nodes carries what all ranks of the node have for one rank."""
    g, nodes = per_node, n // per_node
    within = [[Move(b * g + i, b * g + (i + k) % g, (b * g + i) * n + d)
               for b in range(nodes) for i in range(g) for d in range((i + k) % g, n, g)] for k in range(1, g)]
    between = [[Move(b * g + i, (b + k) % nodes * g + i, (b * g + j) * n + (b + k) % nodes * g + i)
                for b in range(nodes) for i in range(g) for j in range(g)] for k in range(1, nodes)]
    return [*within, *between]


# ---- powers of two -------------------------------------------------------------------------------
def power_below(n: int) -> int:
    """The largest power of two that is at most n."""
    return 1 << (n.bit_length() - 1)


def powers(n: int) -> list[int]:
    """1, 2, 4 … below n: ceil(log2 n) of them."""
    return [1 << k for k in range((n - 1).bit_length())]


__all__ = ["bruck_exchange", "bruck_gather", "direct_exchange", "direct_gather", "direct_scatter", "doubling_gather",
           "hierarchical_exchange", "hierarchical_gather", "pairwise_exchange", "power_below", "powers",
           "ring_exchange", "ring_gather", "ring_scatter", "tree_scatter"]
