"""All algorithms of a collective on one machine, side by side: the formula beside the event.

After `closed_forms.py` and `replays.py`.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simulator.cluster import Cluster
from simulator.collectives.algorithms import ROOTED, algorithms, make_plan
from simulator.collectives.closed_forms import NEEDS, closed_form
from simulator.collectives.plan import Plan
from simulator.collectives.prices import bytes_matrix
from simulator.collectives.replays import replay
from simulator.network import Network
from simulator.units import show


@dataclass(frozen=True)
class Row:
    """One algorithm: seconds on the machine's links and by the formula, bytes of the busiest pair and of all."""

    plan: Plan
    algorithm: str
    time_s: float
    formula_s: float | None
    pair_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class Comparison:
    """The rows, the fastest first; print it."""

    kind: str
    nbytes: int
    machine: str
    alpha_s: float
    bytes_per_s: float
    rows: tuple[Row, ...]

    def __str__(self) -> str:
        cells = [["algorithm", "rounds", "on the links", "formula", "busiest pair", "in all"]]
        for row in self.rows:
            formula = "–" if row.formula_s is None else show(row.formula_s, "s")
            cells.append([row.algorithm, str(len(row.plan.rounds)), show(row.time_s, "s"), formula,
                          show(row.pair_bytes, "B"), show(row.total_bytes, "B")])
        widths = [max(len(line[k]) for line in cells) for k in range(len(cells[0]))]
        table = ["  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:]))])
                 for line in cells]
        return "\n".join([f"{self.kind} of {show(self.nbytes, 'B')}, {self.machine}", *table,
                          f"formula: every message takes {show(self.alpha_s, 's')} and its bytes at "
                          f"{show(self.bytes_per_s, 'B/s')}, as from rank 0 to 1, and meets no other on its way"])


def compare(kind: str, cluster: Cluster, nbytes: int, how: Mapping[str, Mapping[str, Any]] | None = None, *,
            root: int = 0) -> Comparison:
    """Every algorithm that `kind` has on an idle `cluster`; `nbytes` as for `Plan.sizes`.

    `how`: choices of an algorithm by its name, such as {"hierarchical": {"per_node": 8}}.  Where there is only a bound,
    or the formula needs a choice that was not made, there is no formula."""
    network = Network(cluster)
    alpha, rate = _first_link(network)
    star = "switch" if cluster.topology.switches else "fully connected"
    rows = []
    for algorithm in algorithms(kind):
        choices = dict((how or {}).get(algorithm, {}))
        plan = make_plan(kind, algorithm, cluster.world_size, **choices, **({"root": root} if kind in ROOTED else {}))
        network.reset()
        ran = replay(plan, network, nbytes)
        moved = bytes_matrix(plan, nbytes)
        formula = None
        if set(NEEDS.get(algorithm, ())) <= set(choices):
            form = closed_form(kind, algorithm, cluster.world_size, nbytes, alpha, rate, star, **choices)
            formula = form.time_s if form.exact else None
        rows.append(Row(plan, algorithm, ran.time_s, formula, int(moved.max()), int(moved.sum())))
    rows.sort(key=lambda row: row.time_s)
    return Comparison(kind, nbytes, cluster.topology.name, alpha, rate, tuple(rows))


def _first_link(network: Network) -> tuple[float, float]:
    """Latency and rate from rank 0 to rank 1."""
    if network.cluster.world_size == 1:
        return 0.0, float("inf")
    alpha = network.idle_s(0, 1, 0)
    return alpha, 1e9 / (network.idle_s(0, 1, 10**9) - alpha)


__all__ = ["Comparison", "Row", "compare"]
