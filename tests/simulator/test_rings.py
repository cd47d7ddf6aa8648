"""Rings and trees found on a topology; what an all-reduce then reaches, against published numbers."""
from collections import Counter
from itertools import permutations

import numpy as np
import pytest

import simulator as sim
from simulator import plateaus
from simulator.published import table
from simulator.rings import _Search, arcs_of, capacity, rings, trees
from simulator.shapes import cube_mesh, fat_tree, fully_connected, nodes, ring, switch, torus
from simulator.topology import Edge, Topology
from tests.simulator.machines import CARD, SHAPES, WIRE, ids


# ---- rings ---------------------------------------------------------------------------------------
def used(topology, found):
    """Each ring once through every device, and no wire twice."""
    members = {*found[0]} if found else set()
    for each in found:
        assert len(each) == len(members) and {*each} == members
    room = capacity(topology, sorted(members))
    assert all(room.take(arc) for each in found for arc in arcs_of(each))


@pytest.mark.parametrize("topology, count", [
    (ring(5, WIRE), 2), (ring(2, WIRE), 1), (switch(8, WIRE), 1), (fully_connected(5, WIRE), 4),
    (fully_connected(7, WIRE), 6), (torus((4, 4), WIRE), 4), (torus((2, 2, 2), WIRE), 2), (fat_tree(8, 4, WIRE, 2), 1),
    (fully_connected(4, WIRE), 2), (fully_connected(8, WIRE), 7),
    (nodes(4, switch(4, WIRE), CARD), 2)], ids=lambda x: getattr(x, "name", x))
def test_rings_of_known_graphs(topology, count):
    """K4 has no three (Bermond and Faber 1976), nor has the 3-cube; K5, K7 and K8 have n-1 (Tillson 1980)."""
    found = rings(topology)
    assert len(found) == count and found.proven
    used(topology, found.rings)


def exhaustive(topology, n):
    """The most rings that share no wire, by trying all sets of them."""
    wires = Counter((e.src, e.dst) for e in topology.edges)
    every = [arcs_of((0, *rest)) for rest in permutations(range(1, n))]
    every = [Counter(arcs) for arcs in every if all(arc in wires for arc in arcs)]
    every = [(arcs, min(wires[arc] for arc in arcs)) for arcs in every]
    best, sets = 0, [(0, Counter(), 0)]
    while sets:
        count, taken, first = sets.pop()
        best = max(best, count)
        for k in range(first, len(every)):
            more = taken + every[k][0]
            if all(more[arc] <= wires[arc] for arc in every[k][0]):
                sets.append((count + 1, more, k))
    return best


def test_rings_are_as_many_as_trying_all_finds():
    rng = np.random.default_rng(3)
    counts = []
    for case in range(40):
        n = int(rng.integers(2, 6))
        pairs = [(a, b) for a, b in permutations(range(n), 2) for _ in range(int(rng.integers(0, 3)))]
        graph = Topology(f"random {case}", n, tuple(Edge(a, b, WIRE) for a, b in pairs))
        found = rings(graph)
        assert found.proven and len(found) == exhaustive(graph, n) <= found.most
        used(graph, found.rings)
        alone = _Search(list(range(n)), capacity(graph, range(n)), [list(range(n))], 10**6)
        alone._more([], ())                                   # without what finds many at once
        assert len(alone.best) == len(found)
        counts.append(len(found))
    assert len({*counts}) > 2


def test_a_search_that_ends_early_says_so():
    found = rings(cube_mesh(WIRE, 6), steps=5)
    assert not found.proven and len(found) <= 2 <= found.most
    found = rings(nodes(2, cube_mesh(WIRE), WIRE), steps=100)
    assert not found.proven and 4 <= len(found) <= found.most == 7
    used(nodes(2, cube_mesh(WIRE), WIRE), found.rings)
    assert "Up to 7 might exist" in plateaus._of_rings(16, 1e9, found)


@pytest.mark.parametrize("topology", [t for t in SHAPES if t.world_size > 1], ids=ids)
def test_trees_span_and_share_no_wire(topology):
    found = trees(topology)
    down, up = (capacity(topology, range(topology.world_size)) for _ in range(2))
    assert found
    for tree in found:
        children = [b for _, b in tree]
        assert sorted([0, *children]) == list(range(topology.world_size))
        assert all(a == 0 or a in children[:k] for k, (a, _) in enumerate(tree))
        assert all(down.take((a, b)) and up.take((b, a)) for a, b in tree)


# ---- against published numbers -------------------------------------------------------------------
def test_all_reduce_on_a_dgx1_within_four_percent_from_the_graph_and_one_constant():
    told = plateaus.compared()
    assert [c.ranks for c in told] == [2, 3, 4, 7] and [c.split for c in told] == ["calib"] + ["holdout"] * 3
    assert [c.channels for c in told] == [r["max_edge_disjoint_directed_rings"] for r in
                                         table("v100_cubemesh_allreduce")]
    assert told[0].predicted_Bps == 22.6e9 and max(abs(c.error) for c in told) < 0.04


def test_the_fit_does_not_see_what_is_held_out():
    hidden = table("v100_cubemesh_allreduce").hidden()
    assert plateaus.fitted_wire(hidden) == plateaus.fitted_wire(table("v100_cubemesh_allreduce")) == 22.6e9
    assert [c.predicted_Bps for c in plateaus.compared(hidden)] == [c.predicted_Bps for c in plateaus.compared()]


def test_five_gpus_have_no_ring_and_the_reason_is_said():
    wire = sim.cluster("DGX-1").topology.edges[0].link
    five = plateaus.all_reduce_plateau(cube_mesh(wire, 5))
    assert five.how == "trees" and len(five.channels) == 2 and rings(cube_mesh(wire, 5)).proven
    assert five.busbw_Bps == pytest.approx(2 * 22.6e9 * 4 / 5) and five.at_most_Bps == 2 * five.busbw_Bps
    assert "no ring over the 5 devices: device 4 has links to device 0 alone" in str(five)
    assert "n = 5, not in the table: There is no ring" in plateaus.report()
    four, six = (plateaus.all_reduce_plateau(cube_mesh(wire, n)) for n in (4, 6))
    assert five.busbw_Bps < six.busbw_Bps < four.busbw_Bps    # adding the fifth GPU makes it slower


def test_network_cards_of_published_nodes():
    """link_specs: 192 GB/s between nodes of A100 with eight cards, 380 between nodes of H100."""
    for name, row in (("2 x 8 x A100", "DGX A100 node 8xHDR"), ("2 x 8 x H100", "DGX H100 node 8xNDR")):
        measured = table("link_specs").only(link=row)["measured_plateau_busbw_GBps"] * 1e9
        told = plateaus.all_reduce_plateau(sim.cluster(name).topology)
        assert len(told.channels) == 8 and abs(told.busbw_Bps / measured - 1) < 0.02


def test_other_sets_of_ranks_and_topologies():
    assert plateaus.all_reduce_plateau(cube_mesh(WIRE), [3]).busbw_Bps == float("inf")
    assert plateaus.all_reduce_plateau(switch(8, WIRE)).busbw_Bps == WIRE.bytes_per_s
    assert plateaus.all_reduce_plateau(nodes(2, switch(4, WIRE), CARD)).busbw_Bps == 4 * CARD.bytes_per_s
    assert plateaus.all_reduce_plateau(nodes(3, switch(4, WIRE), CARD, nics=2)).busbw_Bps == 2 * CARD.bytes_per_s
    assert plateaus.all_reduce_plateau(nodes(2, cube_mesh(WIRE, 4), CARD, nics=2)).busbw_Bps == 2 * CARD.bytes_per_s
    pairs = ((0, 3), (3, 0), (1, 3), (3, 1), (1, 2), (2, 1))
    star = Topology("by a switch", 3, tuple(Edge(a, b, WIRE) for a, b in pairs), ("s",))
    told = plateaus.all_reduce_plateau(star)
    assert told.how == "trees" and told.at_most_Bps == told.busbw_Bps == pytest.approx(WIRE.bytes_per_s * 2 / 3)
    path = Topology("path", 3, tuple(Edge(a, b, WIRE) for a, b in ((0, 1), (1, 0), (1, 2), (2, 1))))
    assert plateaus.all_reduce_plateau(path).busbw_Bps == pytest.approx(WIRE.bytes_per_s * 2 / 3)
    with pytest.raises(ValueError, match=r"do not join ranks \[0, 2\]"):
        plateaus.all_reduce_plateau(path, [0, 2])
