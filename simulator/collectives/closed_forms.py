"""Time and bytes of every collective by every algorithm, as formulas: n ranks, S bytes, alpha and beta (Hockney 1994).

After `plan.py`; knows nothing of moves, so that tests can hold plans and replays against it.  Sources: Thakur,
Rabenseifner, Gropp 2005; Patarasuk, Yuan 2009; Sanders, Speck, Träff 2009; Bruck et al. 1997.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from simulator.collectives.gathers import power_below, powers


@dataclass(frozen=True)
class Form:
    """What a collective costs on idle links.  Bytes are fractions of S until `closed_form` multiplies them.

    `rounds` times alpha and `serial_bytes` / B add up to `time_s`; `link_bytes` go over the busiest pair of ranks
    in one direction, `total_bytes` over all.  Not `exact`: rounds, and with them time, are an upper bound, and so are
    `link_bytes`."""

    rounds: float
    serial_bytes: float
    link_bytes: float
    total_bytes: float
    exact: bool = True
    time_s: float = 0.0

    def __add__(self, other: Form) -> Form:
        """One after the other, over the same links."""
        return Form(self.rounds + other.rounds, self.serial_bytes + other.serial_bytes,
                    self.link_bytes + other.link_bytes, self.total_bytes + other.total_bytes,
                    self.exact and other.exact)


def closed_form(kind: str, algorithm: str, n: int, nbytes: float, alpha_s: float, bytes_per_s: float,
                machine: str = "switch", **how: Any) -> Form:
    """The formula's values.  `nbytes`: of the largest buffer that a rank holds (all_to_all: of what it sends).

    `machine` matters where a rank has several messages at once (direct, server): on a "switch" they share its one way
    out and in, "fully connected" they do not.  `how`: chunks, per_node, servers, as for the plan; what `NEEDS` names
    has no default here."""
    if (kind, algorithm) not in FORMS:
        raise ValueError(f"{kind}: no closed form for {algorithm!r}; there are {[a for k, a in FORMS if k == kind]}")
    if n == 1:
        return Form(0, 0, 0, 0)
    form = FORMS[kind, algorithm](n, machine == "switch", **how)
    sizes = {name: getattr(form, name) * nbytes for name in ("serial_bytes", "link_bytes", "total_bytes")}
    return replace(form, **sizes, time_s=form.rounds * alpha_s + sizes["serial_bytes"] / bytes_per_s)


def cheapest(kind: str, n: int, nbytes: float, alpha_s: float, bytes_per_s: float, machine: str = "switch",
             **how: dict[str, Any]) -> tuple[str, float]:
    """The algorithm of the smallest time, and that time; `how`: for algorithms that need it, such as
    `hierarchical={"per_node": 8}`.  Those with an upper bound only, or whose choices are not given, take no part."""
    found = {}
    for k, algorithm in FORMS:
        needs = NEEDS.get(algorithm, ())
        choices = how.get(algorithm.replace(" ", "_"), {})
        if k == kind and set(needs) <= set(choices):
            form = closed_form(kind, algorithm, n, nbytes, alpha_s, bytes_per_s, machine, **choices)
            found[algorithm] = form.time_s if form.exact else float("inf")
    return min(found.items(), key=lambda item: item[1])


NEEDS = {"hierarchical": ("per_node",), "double tree": ("chunks",)}


# ---- one to all, all to one: every rank gets every byte once -------------------------------------
def _tree(n: int, switch: bool) -> Form:
    rounds = len(powers(n))
    return Form(rounds, rounds, 1, n - 1)


def _chain(n: int, switch: bool, chunks: int | None = None) -> Form:
    chunks = n if chunks is None else chunks
    rounds = n - 2 + chunks
    return Form(rounds, rounds / chunks, 1, n - 1)


def _double_tree(n: int, switch: bool, chunks: int) -> Form:
    """At most 2 log2 n rounds until the first chunk is everywhere, then two rounds for each of the other pairs."""
    rounds = 2 * len(powers(n)) + 2 * ((chunks + 1) // 2 - 1)
    return Form(rounds, rounds / chunks, 1, n - 1, exact=False)


def _scatter_gather(n: int, switch: bool) -> Form:
    both = _halves(n, switch) + _doubling(n, switch)
    return replace(both, link_bytes=1, total_bytes=n - 1, exact=n == power_below(n))


def _node_tree(n: int, switch: bool, per_node: int) -> Form:
    rounds = len(powers(n // per_node)) + len(powers(per_node))
    return Form(rounds, rounds, 1, n - 1)


def _star(n: int, switch: bool) -> Form:
    return Form(1, n - 1 if switch else 1, 1, n - 1)


# ---- a chunk for each: S / n ---------------------------------------------------------------------
def _halves(n: int, switch: bool) -> Form:
    half = powers(n)[-1]
    return Form(len(powers(n)), (n - 1) / n, max(n - half, half // 2) / n, sum(v.bit_count() for v in range(n)) / n)


def _farthest_first(n: int, switch: bool) -> Form:
    return Form(n - 1, (n - 1) / n, (n - 1) / n, (n - 1) / 2)


def _star_chunks(n: int, switch: bool) -> Form:
    return Form(1, (n - 1) / n if switch else 1 / n, 1 / n, (n - 1) / n)


def _ring(n: int, switch: bool) -> Form:
    return Form(n - 1, (n - 1) / n, (n - 1) / n, n - 1)


def _doubling(n: int, switch: bool) -> Form:
    p = power_below(n)
    extra = n - p
    if not extra:
        return Form(len(powers(n)), (n - 1) / n, 1 / 2, n - 1)
    chunks = 1 + sum(d + min(d, extra) for d in powers(p)) + n - 1
    return Form(len(powers(p)) + 2, chunks / n, (n - 1) / n, n - 1)


def _bruck(n: int, switch: bool) -> Form:
    return Form(len(powers(n)), (n - 1) / n, max(min(d, n - d) for d in powers(n)) / n, n - 1)


def _all_at_once(n: int, switch: bool) -> Form:
    return Form(1, (n - 1) / n if switch else 1 / n, 1 / n, n - 1)


def _node_rings(n: int, switch: bool, per_node: int) -> Form:
    nodes = n // per_node
    return Form(nodes + per_node - 2, (n - 1) / n, max(nodes - 1, (per_node - 1) * nodes) / n, n - 1)


# ---- all_to_all ----------------------------------------------------------------------------------
def _pairwise(n: int, switch: bool) -> Form:
    return Form(n - 1, (n - 1) / n, 1 / n, n - 1)


def _around(n: int, switch: bool) -> Form:
    return Form(n - 1, (n - 1) / 2, (n - 1) / 2, n * (n - 1) / 2)


def _bruck_exchange(n: int, switch: bool) -> Form:
    counts = [sum(1 for k in range(n) if k & d) for d in powers(n)]
    return Form(len(counts), sum(counts) / n, max(counts) / n, sum(counts))


def _node_exchange(n: int, switch: bool, per_node: int) -> Form:
    nodes = n // per_node
    serial = ((per_node - 1) * nodes + (nodes - 1) * per_node) / n
    link = max(nodes * (per_node > 1), per_node * (nodes > 1)) / n
    return Form(per_node + nodes - 2, serial, link, n * serial)


# ---- all_reduce ----------------------------------------------------------------------------------
def _twice(half: Callable[..., Form]) -> Callable[..., Form]:
    def form(n: int, switch: bool, **how: Any) -> Form:
        return half(n, switch, **how) + half(n, switch, **how)

    return form


def _up_and_down(n: int, switch: bool) -> Form:
    return replace(_tree(n, switch) + _tree(n, switch), link_bytes=1)


def _two_trees_twice(n: int, switch: bool, chunks: int) -> Form:
    both = _double_tree(n, switch, chunks)
    return replace(both + both, link_bytes=1, total_bytes=2 * (n - 1))


def _rabenseifner(n: int, switch: bool) -> Form:
    p = power_below(n)
    fold = 2 * (n > p)
    return Form(2 * len(powers(p)) + fold, 2 * (p - 1) / p + fold, 1, 2 * (n - 1))


def _exchange_sums(n: int, switch: bool) -> Form:
    p = power_below(n)
    rounds = len(powers(p)) + 2 * (n > p)
    return Form(rounds, rounds, 1, 2 * (n - p) + p * len(powers(p)))


def _server(n: int, switch: bool, servers: int = 1) -> Form:
    one_way = (n - 1) / servers if switch else 1 / servers
    return Form(2, 2 * one_way, min(servers, 2) / servers, 2 * (n - 1))


FORMS: dict[tuple[str, str], Callable[..., Form]] = {}
for _kind in ("broadcast", "reduce"):
    FORMS |= {(_kind, "tree"): _tree, (_kind, "ring"): _chain, (_kind, "double tree"): _double_tree,
              (_kind, "halving-doubling"): _scatter_gather, (_kind, "hierarchical"): _node_tree,
              (_kind, "direct"): _star}
for _kind in ("scatter", "gather"):
    FORMS |= {(_kind, "tree"): _halves, (_kind, "ring"): _farthest_first, (_kind, "direct"): _star_chunks}
for _kind in ("all_gather", "reduce_scatter"):
    FORMS |= {(_kind, "ring"): _ring, (_kind, "halving-doubling"): _doubling, (_kind, "bruck"): _bruck,
              (_kind, "direct"): _all_at_once, (_kind, "hierarchical"): _node_rings}
FORMS |= {("all_to_all", "pairwise"): _pairwise, ("all_to_all", "direct"): _all_at_once,
          ("all_to_all", "ring"): _around, ("all_to_all", "bruck"): _bruck_exchange,
          ("all_to_all", "hierarchical"): _node_exchange}
FORMS |= {("all_reduce", "ring"): _twice(_ring), ("all_reduce", "tree"): _up_and_down,
          ("all_reduce", "double tree"): _two_trees_twice, ("all_reduce", "halving-doubling"): _rabenseifner,
          ("all_reduce", "doubling"): _exchange_sums, ("all_reduce", "hierarchical"): _twice(_node_rings),
          ("all_reduce", "direct"): _twice(_all_at_once), ("all_reduce", "server"): _server}

__all__ = ["FORMS", "Form", "cheapest", "closed_form"]
