"""Devices, switches and links as a graph: shortest paths, who shares a link; and the clock of links."""
import pickle
from collections import Counter
from itertools import permutations
from math import prod

import numpy as np
import pytest

import simulator as sim
from simulator.network import Network
from simulator.published import table
from simulator.rings import rings
from simulator.shapes import cube_mesh, fat_tree, fully_connected, nodes, ring, switch, torus
from simulator.topology import Edge, Link, Topology, link, runs
from tests.simulator.machines import CARD, SHAPES, WIRE, ids


def machine(topology):
    return sim.uniform(topology.world_size, "A100", topology)


# ---- topology ------------------------------------------------------------------------------------
def hops(topology):
    """Fewest links between any two vertices (Floyd 1962; Warshall 1962)."""
    far = np.full((topology.vertices,) * 2, 10**6)
    np.fill_diagonal(far, 0)
    for edge in topology.edges:
        far[edge.src, edge.dst] = 1
    for k in range(topology.vertices):
        far = np.minimum(far, far[:, k, None] + far[None, k])
    return far


@pytest.mark.parametrize("topology", SHAPES, ids=ids)
def test_paths_are_shortest_and_joined(topology):
    far = hops(topology)
    for src in range(topology.world_size):
        for dst in range(topology.world_size):
            way = [topology.edges[k] for k in topology.path(src, dst)]
            assert len(way) == far[src, dst]
            at = src
            for edge in way:
                assert edge.src == at
                at = edge.dst
            assert at == dst


@pytest.mark.parametrize("topology", SHAPES, ids=ids)
def test_paths_are_the_same_whenever_they_are_asked_for(topology):
    again = pickle.loads(pickle.dumps(topology))
    assert again == topology and hash(again) == hash(topology)
    pairs = [(a, b) for a in range(topology.world_size) for b in range(topology.world_size)]
    told = {pair: topology.path(*pair) for pair in pairs}
    assert told == {pair: again.path(*pair) for pair in reversed(pairs)}


@pytest.mark.parametrize("topology", SHAPES, ids=ids)
def test_shared_says_who_may_be_on_the_way(topology):
    users = [set() for _ in topology.edges]
    n = topology.world_size
    for src, dst in permutations(range(n), 2):
        for step in topology.lanes(src, dst):
            for k in step:
                users[k].add(src)
    for src, dst in permutations(range(n), 2):
        alone = all(users[k] == {src} for step in topology.lanes(src, dst) for k in step)
        assert topology.shared(src, dst) == (not alone)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8])
def test_numbers_of_links(n):
    assert len(ring(n, WIRE).edges) == {1: 0, 2: 2}.get(n, 2 * n)
    assert len(fully_connected(n, WIRE).edges) == n * (n - 1)
    assert len(switch(n, WIRE).edges) == 2 * n


@pytest.mark.parametrize("sides", [(1,), (5,), (2, 2), (3, 4), (1, 4), (2, 3, 4), (3, 3, 3)])
def test_a_torus_has_a_ring_along_each_axis(sides):
    n, grid = prod(sides), torus(sides, WIRE)
    assert len(grid.edges) == sum(2 * n if side > 2 else n if side == 2 else 0 for side in sides)
    far = [sum(min(abs(x - y), s - abs(x - y)) for x, y, s in zip(a, b, sides))
           for a in np.ndindex(sides) for b in np.ndindex(sides)]
    assert [len(grid.path(a, b)) for a in range(n) for b in range(n)] == far


def test_fewer_links_go_before_faster_ones():
    slow = Topology("short cut", 3, tuple(Edge(a, b, WIRE) for a, b in ((0, 1), (1, 2))) + (Edge(0, 2, CARD),))
    assert slow.path(0, 2) == (2,)
    edges = [Edge(a, b, w) for a, b, w in ((0, 3, WIRE), (3, 2, CARD), (0, 4, WIRE), (4, 2, WIRE), (2, 1, WIRE))]
    assert Topology("two ways", 3, tuple(edges), ("s", "t")).path(0, 1) == (2, 3, 4)
    direct = (Edge(0, 1, CARD), Edge(0, 2, WIRE), Edge(2, 1, WIRE))
    assert Topology("slow wire", 2, direct, ("s",)).path(0, 1) == (0,)
    hops_first = (Edge(0, 2, CARD), Edge(2, 1, CARD), *(Edge(a, b, WIRE) for a, b in ((0, 3), (3, 4), (4, 1))))
    assert Topology("slow switch", 2, hops_first, ("s", "t", "u")).path(0, 1) == (0, 1)


def test_a_torus_goes_along_the_first_axis_first():
    grid = torus((4, 5), WIRE)
    assert [grid.edges[k].dst for k in grid.path(0, 7)] == [5, 6, 7]
    assert [grid.edges[k].dst for k in grid.path(7, 0)] == [2, 1, 0]


@pytest.mark.parametrize("n, leaf, over, spines", [
    (16, 4, 1, 4), (16, 4, 2, 2), (16, 4, 3, 2), (8, 8, 1, 0), (32, 8, 8, 1)])
def test_a_fat_tree_has_wires_for_its_oversubscription(n, leaf, over, spines):
    tree = fat_tree(n, leaf, WIRE, over)
    assert len(tree.edges) == 2 * n + 2 * (n // leaf) * spines and len(tree.switches) == n // leaf + spines


def test_a_fat_tree_spreads_what_goes_to_different_devices():
    tree = fat_tree(16, 4, WIRE)
    clock = Network(machine(tree))
    ends = [clock.transfer(k, (k + 4) % 16, 10**6, 0.0).end_s for k in range(16)]
    assert {*ends} == {clock.idle_s(0, 4, 10**6)}            # a shift between leaves runs at full rate
    clock = Network(machine(fat_tree(16, 4, WIRE, 2)))
    ends = sorted(clock.transfer(k, (k + 4) % 16, 10**6, 0.0).end_s for k in range(16))
    assert ends[:8] == [ends[0]] * 8 and ends[8:] == [ends[0] + 10**6 / 10e9] * 8


def test_links_are_changed_in_a_copy():
    two = nodes(2, switch(4, WIRE), CARD)
    quick = two.with_links(lambda w: w.with_(bytes_per_s=2 * w.bytes_per_s) if w.name.startswith("card") else w)
    before, after = Network(machine(two)), Network(machine(quick))
    assert after.idle_s(0, 4, 10**9) - CARD.alpha_s == pytest.approx((before.idle_s(0, 4, 10**9) - CARD.alpha_s) / 2)
    assert after.idle_s(0, 1, 10**9) == before.idle_s(0, 1, 10**9) and two == nodes(2, switch(4, WIRE), CARD)


def test_every_gpu_of_the_cube_mesh_has_six_wires():
    assert Counter(e.src for e in cube_mesh(WIRE).edges) == Counter(e.dst for e in cube_mesh(WIRE).edges)
    assert {*Counter(e.src for e in cube_mesh(WIRE).edges).values()} == {6}
    assert all(len(cube_mesh(WIRE).path(a, a + 4)) == 1 for a in range(4))


def test_messages_stay_in_their_node_and_others_take_the_card():
    two = nodes(2, switch(4, WIRE), CARD)
    assert {two.edges[k].link.name for k in two.path(0, 3)} == {"wire, to or from a switch"}
    assert {two.edges[k].link.name for k in two.path(0, 4)} == {"card, to or from a switch"}
    clock = Network(machine(two))
    assert clock.idle_s(0, 3, 0) == WIRE.alpha_s and clock.idle_s(0, 4, 0) == CARD.alpha_s
    shared = nodes(2, switch(4, WIRE), CARD, nics=2)
    clock = Network(machine(shared))
    ends = [clock.transfer(src, src + 4, 10**6, 0.0).end_s for src in range(4)]
    assert ends == [1e-3 + CARD.alpha_s, 2e-3 + CARD.alpha_s] * 2
    assert nodes(1, switch(4, WIRE), CARD) == switch(4, WIRE)


def test_what_cannot_be_is_refused():
    for wrong, words in [
            (lambda: fat_tree(10, 4, WIRE), "10 devices do not divide into leaves of 4; legal sizes: 1, 2, 5, 10"),
            (lambda: fat_tree(8, 4, WIRE, 5), "oversubscription must be from 1 to 4"),
            (lambda: nodes(2, switch(8, WIRE), CARD, nics=3), "do not share 3 network cards evenly; legal: 1, 2, 4, 8"),
            (lambda: nodes(0, switch(8, WIRE), CARD), "at least one node"),
            (lambda: torus((3, 0), WIRE), "sides must be"), (lambda: cube_mesh(WIRE, 9), "take from 1 to 8"),
            (lambda: Link("x", 0), "bytes_per_s must be finite and more than 0"), (lambda: Link("x", 1, -1), "alpha_s"),
            (lambda: Topology("t", 2, (Edge(0, 2, WIRE),)), "link 0 goes from 0 to 2"),
            (lambda: Topology("t", 2, (Edge(1, 1, WIRE),)), "two different ones"),
            (lambda: ring(3, WIRE).path(0, 3), r"rank 3 is not in ring\(3\), whose devices are 0 … 2"),
            (lambda: ring(3, WIRE).path(-1, 0), "rank -1 is not in"),
            (lambda: fully_connected(3, WIRE).shared(0, 3), "rank 3 is not in"),
            (lambda: Topology("t", 3, (Edge(0, 1, WIRE),)).path(0, 2), r"no way from 0 to 2: .* \[0, 1\]"),
            (lambda: link("NVLink"), "4 of this name"),
            (lambda: link("PCIe4", "LL129"), "protocol 'LL129'"),
            (lambda: rings(ring(3, WIRE), [0, 0]), "different ones")]:
        with pytest.raises(ValueError, match=words):
            wrong()


def test_every_published_link_is_a_preset():
    for row in table("link_specs"):
        simple, quick = link(row["link"]), link(row["link"], "LL")
        assert 0 < simple.bytes_per_s <= row["nominal_unidir_GBps"] * 1e9 and quick.alpha_s < simple.alpha_s
    assert link("NVLink3").bytes_per_s == 232e9 and link("InfiniBand XDR").bytes_per_s == 96e9
    assert "the median reached on PCIe links" in link("PCIe3").source and runs([3, 0, 1, 7, 2]) == "0-3, 7"


# ---- the clock of links --------------------------------------------------------------------------
@pytest.mark.parametrize("topology", SHAPES, ids=ids)
def test_a_message_on_idle_links_takes_latencies_and_its_bytes_on_the_slowest(topology):
    for src, dst in permutations(range(topology.world_size), 2):
        clock = Network(machine(topology))
        way = [topology.edges[k].link for k in topology.path(src, dst)]
        closed = sum(w.alpha_s for w in way) + 10**6 / min(w.bytes_per_s for w in way)
        sent = clock.transfer(src, dst, 10**6, 0.25)
        assert clock.idle_s(src, dst, 10**6) == pytest.approx(closed, rel=1e-12)
        assert sent.begin_s == 0.25 and sent.end_s == 0.25 + clock.idle_s(src, dst, 10**6)
        assert len(sent.links) == len(way) and sum(clock.link_bytes) == len(way) * 10**6


def test_two_messages_on_one_link_take_the_sum():
    clock = Network(machine(ring(3, WIRE)))
    first, second = (clock.transfer(0, 1, 10**7, 0.0) for _ in range(2))
    assert first.end_s == WIRE.alpha_s + 1e-3 and second.begin_s == 1e-3
    assert second.end_s == pytest.approx(2e-3 + WIRE.alpha_s, rel=1e-12)
    assert clock.transfer(1, 0, 10**7, 0.0).begin_s == 0.0 and clock.transfer(1, 2, 10**7, 0.0).begin_s == 0.0
    assert clock.transfer(0, 1, 10**7, 5.0).begin_s == 5.0
    clock.reset()
    assert clock.transfer(0, 1, 10**7, 0.0) == first and str(first) == "from 0 s to 1.002 ms, over links 0"


def test_devices_behind_a_switch_wait_at_what_they_share():
    clock = Network(machine(switch(4, WIRE)))
    ends = [clock.transfer(src, 3, 10**7, 0.0).end_s for src in range(3)]
    assert ends == pytest.approx([WIRE.alpha_s + (k + 1) * 1e-3 for k in range(3)], rel=1e-12)
    clock.reset()
    pairs = [clock.transfer(src, (src + 1) % 4, 10**7, 0.0) for src in range(4)]
    assert {p.begin_s for p in pairs} == {0.0}               # everyone to the next: nothing is shared


def test_a_slow_link_holds_a_fast_one_no_longer_than_its_own_time():
    edges = (Edge(0, 3, WIRE), Edge(3, 1, CARD), Edge(3, 2, WIRE))
    clock = Network(machine(Topology("bottleneck", 3, edges, ("s",))))
    slow = clock.transfer(0, 1, 10**7, 0.0)
    assert slow.end_s == pytest.approx(WIRE.alpha_s + CARD.alpha_s + 10e-3)
    assert clock.transfer(0, 2, 10**7, 0.0).begin_s == 1e-3
    assert clock.link_busy_s == [2e-3, 10e-3, 1e-3]


def test_parallel_wires_carry_one_message_each():
    clock = Network(machine(cube_mesh(WIRE)))                # two wires between 0 and 3, one between 0 and 1
    begins = [clock.transfer(0, 3, 10**7, 0.0).begin_s for _ in range(4)]
    assert begins == [0.0, 0.0, 1e-3, 1e-3] and clock.shared(0, 3)
    assert [clock.transfer(0, 1, 10**7, 0.0).begin_s for _ in range(2)] == [0.0, 1e-3]


def test_nothing_and_nowhere():
    clock = Network(machine(ring(3, WIRE)))
    assert clock.transfer(0, 1, 0, 1.0).end_s == 1.0 + WIRE.alpha_s and clock.transfer(0, 1, 0, 1.0).begin_s == 1.0
    assert clock.transfer(2, 2, 10**9, 1.0).end_s == 1.0 and clock.transfer(2, 2, 10**9, 1.0).links == ()
    for wrong in ((0, 3, 1, 0.0), (0, 1, -1, 0.0), (0, 1, 1, float("nan"))):
        with pytest.raises(ValueError):
            clock.transfer(*wrong)
    assert clock.link_bytes == [0] * 6 and clock.free_s[0] == 1.0
