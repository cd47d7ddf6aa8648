"""Laws of what collectives cost, over the whole table of kinds and algorithms: bytes and seconds counted from moves, on
the clocks of a machine, and by the formula are the same."""

from collections import defaultdict
from random import Random

import numpy as np
import pytest

from simulator import Link, Network, all_reduce_plateau, uniform
from simulator.collectives import (
    ALGORITHMS,
    KINDS,
    Plan,
    PlanError,
    algorithms,
    bytes_matrix,
    cheapest,
    check,
    closed_form,
    compare,
    make_plan,
    price,
    replay,
)
from simulator.rings import rings
from simulator.shapes import cube_mesh, fully_connected, ring, switch
from simulator.spawn import spawn

ALPHA, RATE = 3.0, 7.0
WIRE = Link("wire", RATE, ALPHA)
EVEN = 720720 * 48  # bytes that every number of chunks here divides
WORLDS = (1, 2, 3, 4, 5, 6, 8, 9, 12)
MACHINES = {"switch": switch, "fully connected": fully_connected}


def table():
    return pytest.mark.parametrize("kind, algorithm", ALGORITHMS, ids=lambda text: text.replace(" ", "-"))


def forms(kind, algorithm, world):
    """(plan, choices) for which there is a formula."""
    choices = {
        "hierarchical": [{"per_node": k} for k in range(1, world + 1) if world % k == 0],
        "double tree": [{"chunks": count} for count in (2, 6, 12)],
        "server": [{"servers": count} for count in {1, 2, world // 2, world} if 1 <= count <= world],
    }
    if (kind, algorithm) in (("broadcast", "ring"), ("reduce", "ring")):
        choices["ring"] = [{}, {"chunks": 1}, {"chunks": 6}]
    return [(make_plan(kind, algorithm, world, **how), how) for how in choices.get(algorithm, [{}])]


@table()
@pytest.mark.parametrize("machine", MACHINES)
def test_price_and_replay_are_the_closed_form(kind, algorithm, machine):
    """On idle links, for every world size; where the formula is a bound, the price is under it and the replay equal to
    the price.  Several servers on a switch: who finds one busy waits in line, so that it may take longer."""
    for world in WORLDS:
        for plan, how in forms(kind, algorithm, world):
            form = closed_form(kind, algorithm, world, EVEN, ALPHA, RATE, machine, **how)
            priced = price(plan, ALPHA, RATE, EVEN, machine)
            ran = replay(plan, Network(uniform(world, "A100", MACHINES[machine](world, WIRE))), EVEN)
            if algorithm == "server" and machine == "switch":
                assert priced * (1 - 1e-9) <= ran.time_s <= 2 * priced + 1e-9, plan
            else:
                assert ran.time_s == pytest.approx(priced, rel=1e-9), plan
            if form.exact:
                assert priced == pytest.approx(form.time_s, rel=1e-9), plan
            else:
                assert 0.45 * form.time_s <= priced <= form.time_s * (1 + 1e-9), plan


@table()
def test_bytes_are_the_closed_form(kind, algorithm):
    for world in WORLDS:
        for plan, how in forms(kind, algorithm, world):
            moved = bytes_matrix(plan, EVEN)
            form = closed_form(kind, algorithm, world, EVEN, ALPHA, RATE, **how)
            assert moved.sum() == pytest.approx(form.total_bytes, rel=1e-12), plan
            assert moved.max() <= form.link_bytes * (1 + 1e-12), plan
            if form.exact:
                assert moved.max() == pytest.approx(form.link_bytes, rel=1e-12), plan


@pytest.mark.parametrize("world", [2, 3, 5, 8])
def test_a_ring_loads_each_link_to_the_next_rank_with_its_share(world):
    """2 (n - 1) / n of the bytes from each rank to the next, nothing anywhere else; so on the links of a real ring."""
    want = np.zeros((world, world))
    want[np.arange(world), (np.arange(world) + 1) % world] = 2 * (world - 1) / world * EVEN
    plan = make_plan("all_reduce", "ring", world)
    np.testing.assert_array_equal(bytes_matrix(plan, EVEN), want)
    network = Network(uniform(world, "A100", ring(world, WIRE)))
    replay(plan, network, EVEN)
    used = sorted(nbytes for nbytes in network.link_bytes if nbytes)
    assert used == [2 * (world - 1) * EVEN // world] * world


def test_several_rings_share_the_bytes():
    """Both directions of a ring at once: half the bytes each, and on idle links half of the time that bytes take."""
    n = 5
    both = make_plan("all_reduce", "ring", n, rings=[range(n), range(n - 1, -1, -1)])
    network = Network(uniform(n, "A100", ring(n, WIRE)))
    ran = replay(both, network, EVEN)
    assert set(network.link_bytes) == {2 * (n - 1) * EVEN // (2 * n)}
    assert ran.time_s == pytest.approx(2 * (n - 1) * (ALPHA + EVEN / (2 * n) / RATE))


@pytest.mark.parametrize("world", [2, 3, 4, 6, 7, 8])
def test_rings_on_the_cube_mesh_reach_its_plateau(world):
    """The rings found on a DGX-1 as one plan, on the clocks: the bandwidth that `all_reduce_plateau` works out from
    their number, though two of them share neighbours that two wires join."""
    machine = cube_mesh(Link("wire", RATE), world)
    found = rings(machine).rings
    plan = check(make_plan("all_reduce", "ring", world, rings=found))
    ran = replay(plan, Network(uniform(world, "A100", machine)), EVEN)
    assert 2 * (world - 1) / world * EVEN / ran.time_s == pytest.approx(len(found) * RATE, rel=1e-6)
    assert all_reduce_plateau(machine).busbw_Bps == pytest.approx(len(found) * RATE)


@table()
def test_bytes_of_ragged_chunks(kind, algorithm):
    """The matrix counts each chunk with its own size; replay sends the same."""
    world, dice = 6, Random(1)
    plan = make_plan(kind, algorithm, world)
    sizes = [dice.randrange(0, 50) for _ in range(plan.chunks)]
    want = np.zeros((world, world), int)
    for moves in plan.rounds:
        for move in moves:
            want[move.src, move.dst] += sizes[move.chunk]
    np.testing.assert_array_equal(bytes_matrix(plan, sizes), want)
    ran = replay(plan, Network(uniform(world, "A100", fully_connected(world, WIRE))), sizes)
    sent = np.zeros((world, world), int)
    for event in ran.trace:
        sent[event.rank, event.args["dst"]] += event.bytes
    np.testing.assert_array_equal(sent, want)


def reference_times(plan, sizes, starts):
    """When each rank is done on idle private links, round by round: an engine of ten lines to hold the other against.
    A message begins when both are in the round, and who has left the round before begins the next by himself."""
    clock = list(starts)
    for messages in plan.messages:
        ends = defaultdict(float)
        for message in messages:
            begin = max(clock[message.src], clock[message.dst])
            end = begin + ALPHA + sum(sizes[chunk] for chunk in message.chunks) / RATE
            for rank in message[:2]:
                ends[rank] = max(ends[rank], end)
        for rank, end in ends.items():
            clock[rank] = max(clock[rank], end)
    return clock


@table()
@pytest.mark.parametrize("world", [2, 5, 8, 9])
def test_replay_is_the_round_by_round_reference(kind, algorithm, world):
    """Ranks that begin at different times, ragged chunks: every rank's own end.  Single messages a round, so that
    waiting for one receiver does not hold up the message to another."""
    dice = Random(world)
    plan = make_plan(kind, algorithm, world)
    if any(len(sends) > 1 for rounds in plan.parts for sends, _ in rounds):
        pytest.skip("several messages a rank and round")
    sizes = [dice.randrange(0, 1000) for _ in range(plan.chunks)]
    starts = [dice.random() * 100 for _ in range(world)]
    ran = replay(plan, Network(uniform(world, "A100", fully_connected(world, WIRE))), sizes, starts)
    assert ran.end_s == pytest.approx(reference_times(plan, sizes, starts), rel=1e-12)
    assert ran.time_s == max(ran.end_s) - min(starts)


@pytest.mark.parametrize("algorithm", algorithms("all_reduce"))
@pytest.mark.parametrize("world", [2, 5, 8])
def test_a_call_takes_the_time_of_the_replay(algorithm, world):
    """A program's all_reduce, with real values, on a machine with and one without shared links."""
    for shape in MACHINES.values():
        machine = uniform(world, "A100", shape(world, WIRE))
        ran = spawn(lambda comm: comm.all_reduce(np.ones(33), algorithm=algorithm)[0], world, cluster=machine)
        plan = make_plan("all_reduce", algorithm, world)
        sizes = [8 * size for size in plan.sizes(33)]
        assert ran.values == [world] * world
        assert ran.time_s == pytest.approx(replay(plan, Network(machine), sizes).time_s, rel=1e-12)
        np.testing.assert_array_equal(ran.nbytes, bytes_matrix(plan, sizes))


def test_cheapest_changes_with_the_size():
    """Few rounds for short messages, few bytes for long ones (Thakur et al. 2005)."""
    assert cheapest("all_reduce", 16, 8, 1e-5, 1e10)[0] in ("direct", "server", "doubling")
    assert cheapest("all_reduce", 16, 10**9, 1e-5, 1e10)[0] in ("ring", "halving-doubling", "direct")
    name, seconds = cheapest("broadcast", 8, 10**9, 1e-5, 1e10)
    assert name == "ring" or seconds < closed_form("broadcast", "ring", 8, 10**9, 1e-5, 1e10).time_s
    with_nodes = cheapest("all_gather", 8, 1000, 1e-5, 1e10, hierarchical={"per_node": 4})
    assert with_nodes[1] <= closed_form("all_gather", "ring", 8, 1000, 1e-5, 1e10).time_s


# ---- side by side --------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", KINDS)
def test_compare_sets_the_formula_beside_the_event(kind):
    """On a machine where every pair has a wire of its own they agree; the rows are all algorithms, fastest first."""
    machine = uniform(6, "A100", fully_connected(6, WIRE))
    told = compare(kind, machine, EVEN, {"hierarchical": {"per_node": 3}, "server": {"servers": 2}})
    assert sorted(row.algorithm for row in told.rows) == sorted(algorithms(kind))
    assert [row.time_s for row in told.rows] == sorted(row.time_s for row in told.rows)
    for row in told.rows:
        assert row.formula_s is None or row.formula_s == pytest.approx(row.time_s, rel=1e-6)
        assert row.total_bytes == bytes_matrix(row.plan, EVEN).sum()
    assert sum(row.formula_s is not None for row in told.rows) >= len(told.rows) - 2
    assert all(algorithm in str(told) for algorithm in algorithms(kind))


def test_compare_on_a_ring_shows_who_suits_it():
    """Where only neighbours have wires, what goes to neighbours is fastest for long messages."""
    told = compare("all_reduce", uniform(8, "A100", ring(8, WIRE)), 10**9)
    assert told.rows[0].algorithm == "ring"
    halving = next(row for row in told.rows if row.algorithm == "halving-doubling")
    assert halving.time_s > 1.5 * halving.formula_s
    assert compare("all_reduce", uniform(1), 100).rows[0].time_s == 0


def test_bad_sizes_and_starts_are_refused():
    plan = make_plan("all_reduce", "ring", 3)
    network = Network(uniform(3, "A100", switch(3, WIRE)))
    with pytest.raises(ValueError, match="3 sizes of at least 0, got 2"):
        bytes_matrix(plan, [1, 2])
    with pytest.raises(ValueError, match="at least 0, got -1"):
        price(plan, ALPHA, RATE, -1)
    with pytest.raises(ValueError, match="machine 'torus' is none of switch"):
        price(plan, ALPHA, RATE, 1, "torus")
    with pytest.raises(ValueError, match="3 times to start"):
        replay(plan, network, 1, [0.0])
    with pytest.raises(ValueError, match="has 4 ranks, the machine 3 devices"):
        replay(make_plan("all_reduce", "ring", 4), network, 1)
    with pytest.raises(PlanError, match="all_gather of 3 ranks has a multiple of 3 chunks, got 4"):
        Plan("mine", 3, 4, (), "all_gather")
