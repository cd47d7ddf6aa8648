"""How fast a large all-reduce becomes on a topology: from its rings, or without one from trees; and why, in words.

Speeds are bus bandwidths as nccl-tests gives them, bytes · 2(n-1)/n over time, so that a ring's is its links' rate.
After `rings.py`, before `cluster.py`.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from simulator.published import Table, table
from simulator.rings import Arc, Rings, arcs_of, capacity, rings, taken, trees
from simulator.shapes import CUBE_MESH, cube_mesh
from simulator.topology import Link, Topology, counted
from simulator.units import GB, show


@dataclass(frozen=True)
class Plateau:
    """`busbw_Bps` (infinite for one rank); `at_most_Bps`: with trees, if up and down ran at the same time."""

    ranks: tuple[int, ...]
    how: str
    channels: tuple[tuple[Arc, ...], ...]
    busbw_Bps: float
    at_most_Bps: float
    why: str

    def __str__(self) -> str:
        return self.why


def all_reduce_plateau(topology: Topology, ranks: Sequence[int] | None = None) -> Plateau:
    """The speed of an all-reduce so large that latency does not count, with nothing else on the links.

    k rings for which the links have room have k times a ring's rate: a wire of 232 GB/s carries nine rings that pass a
    card of 24 GB/s elsewhere.  Where there is no ring, every part of the data goes up a
    tree, and then down: 2 S / B over all trees.  ValueError where not even a tree joins the ranks."""
    members = tuple(range(topology.world_size) if ranks is None else ranks)
    n = len(members)
    if n == 1:
        return Plateau(members, "nothing", (), float("inf"), float("inf"), "One device has nothing to add to its own.")
    tried = [(rings(topology, members, rate), rate) for rate in sorted({e.link.bytes_per_s for e in topology.edges})]
    found, rate = max(tried, key=lambda pair: len(pair[0]) * pair[1], default=(rings(topology, members), 0.0))
    if found.rings:
        channels, total = tuple(tuple(arcs_of(ring)) for ring in found.rings), len(found) * rate
        return Plateau(members, "rings", channels, total, total, _of_rings(n, rate, found))
    channels = trees(topology, members)
    if not channels:
        raise ValueError(f"all_reduce_plateau: the links of {topology.name} do not join ranks {list(members)} in both "
                         "directions without passing other devices")
    rates, direct = _tree_rates(topology, members, channels)
    busbw = sum(rates) * (n - 1) / n
    at_most = 2 * busbw if direct else busbw
    why = f"{_no_ring(topology, members, found.proven)} {_of_trees(n, rates, busbw, at_most)}"
    return Plateau(members, "trees", channels, busbw, at_most, why)


def _tree_rates(topology: Topology, members: tuple[int, ...], channels: tuple[tuple[Arc, ...], ...]
                ) -> tuple[list[float], bool]:
    """(the slowest wire of each tree, up or down; whether no wire to a switch is needed both up and down)."""
    down, up = capacity(topology, members), capacity(topology, members)
    ways = [[(room, way) for room, arcs in ((down, tree), (up, [(b, a) for a, b in tree]))
             for way in taken(room, arcs) or ()] for tree in channels]
    return ([min(room.rate(way) for room, way in each) for each in ways],
            all(len(way) == 2 for each in ways for _, way in each))


# ---- in words ------------------------------------------------------------------------------------
def _of_rings(n: int, rate: float, found: Rings) -> str:
    more = "" if len(found) == found.most else " No more exist: all ways were tried." if found.proven else \
        f" Up to {found.most} might exist; the search ended before all ways were tried."
    return (f"{counted(len(found), 'ring')} over the {n} devices, for which every link has room, at "
            f"{_rates([rate] * len(found))}: {show(len(found) * rate, 'B/s')}.{more}")


def _no_ring(topology: Topology, members: tuple[int, ...], proven: bool) -> str:
    inside = set(members)
    for rank in members:
        near = {e.dst for e in topology.edges if e.src == rank}
        if near and max(near) < topology.world_size and len(near & inside) == 1 < len(members) - 1:
            only = next(iter(near & inside))
            return (f"There is no ring over the {len(members)} devices: device {rank} has links to device {only} alone "
                    f"of them, and a ring would have to come from one neighbour and leave to another.")
    tried = "all ways were tried" if proven else "none was found before the search ended"
    return f"There is no ring over the {len(members)} devices: {tried}."


def _of_trees(n: int, rates: list[float], busbw: float, at_most: float) -> str:
    total = sum(rates)
    return (f"So the data goes up and down {counted(len(rates), 'tree')}, no two on one link, at {_rates(rates)}: up, "
            f"where it is added, then down, S bytes in 2 S / ({show(total, 'B/s')}); as bus bandwidth, times 2(n-1)/n "
            f"= {2 * (n - 1) / n:.3g}, {show(busbw, 'B/s')}."
            + (f" If both directions of every link were busy all the time it would be {show(at_most, 'B/s')}."
               if at_most > busbw else ""))


def _rates(rates: list[float]) -> str:
    low, high = show(min(rates), "B/s"), show(max(rates), "B/s")
    return low + " each" * (len(rates) > 1) if low == high else f"{low} to {high}"


# ---- against published numbers -------------------------------------------------------------------
@dataclass(frozen=True)
class Compared:
    """A row of a published table beside what is predicted for it."""

    ranks: int
    channels: int
    predicted_Bps: float
    measured_Bps: float
    split: str

    @property
    def error(self) -> float:
        return self.predicted_Bps / self.measured_Bps - 1


def fitted_wire(rows: Table) -> float:
    """Bytes/s of one NVLink2: the median of measured speed over number of rings, in the rows that may be fitted."""
    per_ring = []
    for row in rows.where(split="calib"):
        n = int(row["ranks"])
        found = rings(cube_mesh(Link("wire", 1.0), n))
        per_ring.append(row["measured_plateau_busbw_GBps"] * GB / len(found))
    return median(per_ring)


def compared(rows: Table | None = None) -> list[Compared]:
    """Every row of the cube mesh's table: predicted from the graph and the one constant of the fit."""
    rows = table("v100_cubemesh_allreduce") if rows is None else rows
    wire, found = Link("NVLink2, one of six", fitted_wire(rows)), []
    for row in rows:
        n = int(row["ranks"])
        plateau = all_reduce_plateau(cube_mesh(wire, n))
        found.append(Compared(n, len(plateau.channels), plateau.busbw_Bps, row["measured_plateau_busbw_GBps"] * GB,
                              row["split"]))
    return found


def report(rows: Table | None = None) -> str:
    """The comparison as a table, and the numbers of GPUs that the published one leaves out."""
    rows = table("v100_cubemesh_allreduce") if rows is None else rows
    lines = ["all-reduce on the first n GPUs of a DGX-1 (V100): bus bandwidth of large messages",
             " n  channels  predicted  measured   error  split"]
    there = compared(rows)
    lines += [f"{c.ranks:2}  {c.channels:8}  {_GB(c.predicted_Bps)}  {_GB(c.measured_Bps)}  {c.error:+6.1%}  {c.split}"
              for c in there]
    lines.append(f"source: {rows.source}")
    wire = Link("NVLink2, one of six", fitted_wire(rows))
    lines += [f"n = {n}, not in the table: {all_reduce_plateau(cube_mesh(wire, n))}"
              for n in range(2, 1 + max(map(max, CUBE_MESH)) + 1) if n not in {c.ranks for c in there}]
    return "\n".join(lines)


def _GB(rate: float) -> str:
    return f"{rate / GB:6.1f} GB/s".rjust(9)


__all__ = ["Compared", "Plateau", "all_reduce_plateau", "compared", "fitted_wire", "report"]
