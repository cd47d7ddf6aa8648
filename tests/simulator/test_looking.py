"""Looking at a run: sums are exact, chains have no gaps, and what is said to matter does."""
from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest

import minigrad as mg
from simulator.clocks import replay
from simulator.cluster import cluster, uniform
from simulator.looking.critical_path import critical_path
from simulator.looking.history import History
from simulator.looking.idleness import idleness, short
from simulator.looking.ledger import common, communicating, ledger, merged
from simulator.network import Network
from simulator.shapes import ring, switch
from simulator.spawn import Result, spawn
from simulator.topology import Link
from tests.simulator.test_clocks import machine, one_f_one_b, script, scripted, serve

MACHINES = (machine(switch, 4), machine(ring, 4), cluster("4 x V100"), cluster("2 x 3 x A100"), machine(switch, 1))


def generated(seed: int) -> Result:
    """A random program of messages, and collectives of three groups, whose pieces of work all take another time."""
    where = MACHINES[seed % len(MACHINES)]
    world, dice = where.world_size, random.Random(seed)
    steps = script(seed, world) if world > 1 else [("compute", [0.1]), ("ring", 0, 10), ("wait",)]
    steps = [("compute", [dice.choice([0.0, *[dice.uniform(1e-6, 4e-5)] * 3]) for _ in range(world)])
             if step[0] == "compute" and world > 1 else step for step in steps]
    return spawn(scripted, None, steps, 0.2, cluster=where, timeout=60)


@pytest.fixture(scope="module", params=range(15))
def result(request) -> Result:
    return generated(request.param)


def contiguous(pieces, start_s: float, end_s: float) -> bool:
    """They are not empty, and each begins where the one before ended, from start to end: as floats, exactly."""
    ends = [start_s, *(p.end_s for p in pieces)]
    return all(p.start_s == a and p.end_s > a for p, a in zip(pieces, ends)) and ends[-1] == end_s


# ---- laws over generated programs ----------------------------------------------------------------
def test_the_history_has_the_times_of_the_run(result):
    history = result.history
    assert history.end_s == result.time_s
    for rank in range(result.world_size):
        line = history.main(rank)
        assert line.end_s == result.times_s[rank] and contiguous(line.steps, 0.0, line.end_s)
    sent = sorted((e.rank, e.args["dst"], e.bytes, e.args["asked_s"], e.start_s, e.args["arrives_s"])
                  for e in result.trace.where(kind="send"))
    assert sent == sorted((m.src, m.dst, m.nbytes, m.asked_s, m.begin_s, m.end_s) for m in history.messages)
    for m in history.messages:
        assert (m.behind is None) == (m.begin_s == m.asked_s)
        assert m.behind is None or m.last in m.links and m.last in m.behind.links and m.behind.begin_s <= m.begin_s


def test_the_ledger_sums_exactly_to_the_wall_time(result):
    book = result.ledger()
    assert book.time_s == result.time_s and len(book) == result.world_size
    for rank, row in enumerate(book.rows):
        assert row.compute + row.exposed + row.bubble + row.stall == Fraction(result.time_s) == row.total
        assert min(row.compute, row.exposed, row.bubble, row.stall, row.hidden, row.ended) >= 0
        assert row.ended == Fraction(result.time_s) - Fraction(result.times_s[rank]) <= row.bubble
        assert row.hidden <= row.compute == sum((Fraction(e.end_s) - Fraction(e.start_s) for e in result.trace.where(
            rank=rank, stream="compute", kind="compute")), Fraction())
    assert book.all.total == Fraction(result.time_s) * result.world_size


def test_each_wait_is_told_without_gaps(result):
    for rank in range(result.world_size):
        why = result.why_idle(rank)
        assert all(contiguous(wait.reasons, wait.start_s, wait.end_s) for wait in why.waits)
        waited = [(e.start_s, e.end_s) for e in result.trace.where(rank=rank, stream="compute", kind="wait")]
        assert [(w.start_s, w.end_s) for w in why.waits if w.name != "ended"] == waited
        for reason in why.reasons:                     # whoever is named did that at that time
            if "computes" in reason.what or "makes" in reason.what:
                works = result.trace.where(rank=reason.rank, stream="compute", kind="compute", name=reason.name)
                busy = merged((e.start_s, e.end_s) for e in works)
                assert reason.rank != rank and any(a <= reason.start_s and reason.end_s <= b for a, b in busy)


def test_the_critical_path_has_no_gaps(result):
    path = result.critical_path()
    assert contiguous(path.pieces, 0.0, result.time_s)
    assert path.total("compute") + path.total("message") == Fraction(result.time_s)
    assert sum((row[0] for row in path.by_line()), Fraction()) == Fraction(result.time_s)
    for rank, dst in {(p.rank, p.dst) for p in path.pieces if p.kind == "message"}:
        assert result.nbytes[rank, dst] or any((m.src, m.dst) == (rank, dst) for m in result.history.messages)


def test_only_what_is_on_the_path_matters(result):
    """Each piece of work becomes a picosecond shorter: the end moves by that if it is on the path, else not at all."""
    history, program, eps = result.history, result.clocks.program(), 1e-12
    on_path = {(p.rank, p.start_s) for p in result.critical_path().pieces if p.kind == "compute"}
    seen = set()
    for k, (rank, number, stream, actions) in enumerate(program):
        for step in history.main(rank).steps if number == 0 else ():
            if step.kind == "compute":
                changed = list(actions)
                changed[step.place] = ("compute", actions[step.place][1] - eps, *actions[step.place][2:])
                again = replay([*program[:k], (rank, 0, stream, changed), *program[k + 1:]], Network(result.cluster),
                               result.world_size)
                on = (rank, step.start_s) in on_path
                seen |= {(rank, step.start_s)} if on else set()
                assert again.end_s() == pytest.approx(result.time_s - eps * on, rel=0, abs=1e-3 * eps), (rank, step)
    assert seen == on_path


def test_the_matrix_has_all_bytes(result):
    told = result.matrix()
    assert np.array_equal(told.nbytes, result.nbytes) and told.messages.sum() == len(result.history.messages)
    by_link = dict.fromkeys(range(len(result.link_nbytes)), 0) | {use.number: use.nbytes for use in told.links}
    assert list(by_link.values()) == result.link_nbytes and sum(told.calls.values()) == result.nbytes.sum()
    busy = told.over_time(17)
    assert busy.shape == (len(told.links), 17) and busy.min(initial=0) >= 0
    for use, row in zip(told.links, busy):
        assert row.sum() * result.time_s / 17 == pytest.approx(use.busy_s, rel=1e-9)
        assert use.busy_s == pytest.approx(result.clocks.network.link_busy_s[use.number], rel=1e-9)
    waited = sum(m.begin_s - m.asked_s for m in result.history.messages)
    assert sum(use.waited_s for use in told.links) == pytest.approx(waited, abs=1e-15)


def test_looking_twice_gives_the_same_and_so_do_the_clocks_of_a_replay(result):
    again = History(result.on(result.cluster))
    assert str(ledger(again)) == str(result.ledger()) == str(ledger(result.clocks))
    assert critical_path(again) == result.critical_path()
    assert [idleness(again, rank) for rank in range(result.world_size)] == \
        [result.why_idle(rank) for rank in range(result.world_size)]


def test_intervals_against_counting():
    dice = random.Random(0)
    for _ in range(300):
        a, b = ([(float(s), float(s + dice.randrange(1, 5))) for s in dice.choices(range(30), k=dice.randrange(6))]
                for _ in range(2))
        cells = [{t for s, e in pairs for t in range(int(s), int(e))} for pairs in (a, b)]
        both = common(merged(a), merged(b))
        assert {t for s, e in both for t in range(int(s), int(e))} == cells[0] & cells[1]
        assert sum(e - s for s, e in both) == len(cells[0] & cells[1])


# ---- closed forms --------------------------------------------------------------------------------
@pytest.mark.parametrize("algorithm", ["ring", "tree", "doubling", "direct"])
@pytest.mark.parametrize("shape", [switch, ring])
def test_a_collective_alone_is_all_exposed(shape, algorithm):
    """Also where its own messages stand behind each other."""
    result = spawn(lambda comm: comm.all_reduce(np.ones(5000), algorithm=algorithm), cluster=machine(shape, 4))
    for rank, row in enumerate(result.ledger().rows):
        assert row.exposed == Fraction(result.times_s[rank]) > 0 == row.stall == row.compute == row.hidden
        assert row.bubble == row.ended


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99, 1.01, 4.0])
def test_beside_computing_a_ring_hides_the_shorter_of_both(share):
    def program(comm, busy_s):
        handle = comm.all_reduce(np.ones(9000), algorithm="ring", async_op=True)
        comm.compute(busy_s)
        handle.wait()
    alone_s = spawn(program, 3, 0.0).time_s
    busy_s = share * alone_s
    result = spawn(program, 3, busy_s)
    assert result.time_s == pytest.approx(max(alone_s, busy_s))
    for row in result.ledger().rows:
        assert float(row.hidden) == pytest.approx(min(alone_s, busy_s), abs=1e-15)
        assert float(row.exposed) == pytest.approx(max(alone_s - busy_s, 0.0), abs=1e-15)
        assert row.stall == row.bubble == 0


def test_a_straggler_is_the_stall_of_the_others_and_is_named():
    def program(comm, works):
        comm.compute(works[comm.rank], name="slow step" if comm.rank == 2 else "step")
        comm.all_reduce(np.ones(100))
    works = [1e-3, 3e-3, 7e-3, 1e-3]
    result = spawn(program, 4, works)
    for rank, row in enumerate(result.ledger().rows):
        assert row.stall == Fraction(7e-3) - Fraction(works[rank]) and row.compute == Fraction(works[rank])
        assert row.bubble == row.ended                 # a tree or ring may let some go earlier
    told = str(result.why_idle(0))
    line = program.__code__.co_firstlineno
    assert "stall" in told and "rank 2 still computes: slow step" in told and f"test_looking.py:{line + 1}" in told
    assert f"test_looking.py:{line + 2}, in program" in told.splitlines()[1] and "all_reduce (100,)" in told
    path = result.critical_path()
    assert path.pieces[0][:4] == ("compute", 0.0, 7e-3, 2) and path.pieces[0].name == "slow step"
    assert f"test_looking.py:{line + 1}" in path.pieces[0].line and f"test_looking.py:{line + 2}" in path.pieces[1].line


@pytest.mark.parametrize("stages, micro", [(2, 1), (3, 4), (4, 8)])
def test_the_bubble_of_a_pipeline_is_that_of_the_literature(stages, micro):
    """GPipe and 1F1B over links that take no time: (p - 1)(forward + backward) on each rank (Narayanan 2021)."""
    def program(comm):
        p, r = comm.world_size, comm.rank
        for _ in range(micro):
            comm.recv(r - 1) if r else None
            comm.compute(1.0, name="forward")
            comm.isend(0.0, r + 1) if r < p - 1 else None
        for _ in range(micro):
            comm.recv(r + 1) if r < p - 1 else None
            comm.compute(2.0, name="backward")
            comm.isend(0.0, r - 1) if r else None
    free = Link("free", 1e30, 0.0)
    result = spawn(program, cluster=uniform(stages, topology=switch(stages, free)))
    for row in result.ledger().rows:
        assert float(row.bubble) == pytest.approx(3.0 * (stages - 1)) and float(row.compute) == 3.0 * micro
        assert row.stall == 0 and row.exposed < 1e-20


def test_what_others_put_on_a_link_is_stall_and_what_the_sender_did_is_not():
    def program(comm, other: bool):
        if comm.rank == 0:
            comm.isend(np.ones(100_000), 2) if other else comm.isend(np.ones(100_000), 3)
        elif comm.rank == 1:
            comm.compute(1e-6)
            comm.isend(np.ones(1000), 3)
            comm.isend(np.ones(1000), 2)
        elif comm.rank == 2:
            comm.recv(1)
            comm.recv(0) if other else None
        else:
            comm.recv(1)
            comm.recv(0) if not other else None
    where = machine(switch, 4)
    result = spawn(program, 4, True, cluster=where)
    row, why = result.ledger()[2], result.why_idle(2)
    first = why.waits[0].reasons
    assert [r.kind for r in first] == ["bubble", "stall", "communication"]
    assert "1 → 2 waits for a link that 0 → 2 has, of isend" in first[1].what and first[1].rank == 0
    hold_s = 800_000 / 1e9
    assert float(row.stall) == pytest.approx(hold_s - 1e-6, rel=1e-9)
    assert [p.rank for p in result.critical_path().pieces] == [0, 1]          # who held the link, not who waited for it
    behind = spawn(program, 4, False, cluster=where).ledger()                 # 1 → 2 behind 1 → 3, behind 0 → 3
    assert behind[2].stall == behind[3].stall > 0

    def twice(comm):
        handles = [comm.isend(np.ones(1000), 1) if comm.rank == 0 else comm.irecv(0) for _ in range(2)]
        for handle in handles:
            handle.wait()
    assert [row.stall for row in spawn(twice, 2, cluster=machine(switch, 2)).ledger().rows] == [0, 0]


def test_what_one_waits_for_may_wait_itself():
    """Rank 0 waits for 1, who waits where all come for 2, who computes; rank 3 waits where all come for 2, who waits
    for what 4 makes."""
    def program(comm):
        pair, trio = comm.split(0 if comm.rank in (1, 2) else None), comm.split(0 if comm.rank in (2, 3) else None)
        if comm.rank == 0:
            comm.recv(1)
        elif comm.rank == 1:
            pair.all_reduce(1.0)
            comm.send(1.0, 0)
        elif comm.rank == 2:
            comm.compute(1e-3, name="long")
            pair.all_reduce(1.0)
            comm.recv(4)
            trio.all_reduce(1.0)
        elif comm.rank == 3:
            trio.all_reduce(1.0)
        else:
            comm.compute(5e-3, name="longer")
            comm.send(1.0, 2)
    result = spawn(program, 5)
    reasons = [r for w in result.why_idle(0).waits for r in w.reasons]
    assert [(r.kind, r.rank, r.name) for r in reasons if r.name == "long"] == [("stall", 2, "long")]
    kinds = {(r.kind, r.rank, r.name) for r in result.why_idle(3).reasons if r.kind in ("stall", "bubble")}
    assert kinds == {("bubble", 4, "longer"), ("stall", 2, "long")} or kinds == {("bubble", 4, "longer")}


def test_a_pipeline_and_a_server_that_takes_who_comes_first_on_busy_links():
    result = spawn(one_f_one_b, 4, 8, 100_000, False, cluster=machine(switch, 4))
    book, path = result.ledger(), result.critical_path()
    assert book.all.stall == 0 < book.all.bubble and set(path.ranks) == {0, 1, 2, 3}
    assert path.ranks[0] == 0 == path.ranks[-1]        # the first forward and the last backward
    served = spawn(serve, 4, [0.0, 3e-3, 1e-3, 2.03e-3], 4, True, 2.5e-3, cluster=machine(switch, 4))
    assert all(row.total == Fraction(served.time_s) for row in served.ledger().rows)
    assert contiguous(served.critical_path().pieces, 0.0, served.time_s)


# ---- programs with ops, memory, failures -----------------------------------------------------------
def test_timed_ops_are_named_with_the_line_that_made_them():
    def program(comm):
        x = mg.ones(64, 64, requires_grad=True)
        y = x @ x
        loss = y.sum()
        loss.backward()
        if comm.rank:
            comm.compute(1e-2)
        comm.barrier()
    result = spawn(program, 2, timed=True)
    lines = {p.name: short(p.line) for p in result.history.main(0).steps if p.kind == "compute"}
    at = program.__code__.co_firstlineno
    product = next(name for name in lines if name.startswith(("MatMul", "Matmul")) and not name.endswith("backward"))
    assert lines[product] == f"test_looking.py:{at + 2}, in program" == lines[f"{product} backward"]
    assert {p.rank for p in result.critical_path().pieces if p.name == "compute"} == {1}


@pytest.mark.parametrize("device", ["cpu", "sim"])
@pytest.mark.parametrize("async_op", [False, True])
def test_memory_over_time_comes_back_to_what_it_was(device, async_op):
    """1 MB, its copy on the way, the sum, its mean; and at the end nothing is left, on any rank."""
    if device == "cpu":
        pytest.importorskip("numba")

    result = spawn(holding, 3, async_op, memory=device == "cpu", device=device)
    assert len(result.memory) == 3
    for rank, curve in enumerate(result.memory):
        assert max(curve.peak) == result.peak_bytes[rank] >= 2e6 and curve.times_s == sorted(curve.times_s)
        assert abs(curve.used[-1]) < 1000, curve.used
        assert all(-1000 < used <= peak <= 4.1e6 for used, peak in zip(curve.used, curve.peak))
        at_work = {at_s: used for at_s, used in zip(curve.times_s, curve.used)}
        assert sum(used >= 0.99e6 for used in at_work.values()) >= 6
    assert not spawn(holding, 2, async_op).memory


def holding(comm, async_op: bool) -> None:
    for _ in range(6):
        x = mg.ones(250_000, device=comm.device)
        comm.compute(1e-3)
        y = comm.all_reduce(x, "mean", async_op=async_op)
        comm.compute(1e-3)
        y = y.wait() if async_op else y
        comm.compute(1e-3)
        del x, y
    comm.compute(1e-3)


def test_simulated_devices_know_their_peak_after_a_run():
    from minigrad.sim import sim_device

    result = spawn(holding, 2, False, device="sim")
    assert [sim_device(rank).peak >= result.peak_bytes[rank] >= 2_000_000 for rank in range(2)] == [True, True]


def test_a_run_with_a_failed_rank_can_be_looked_at():
    def program(comm):
        comm.compute(1e-3 * (comm.rank + 1))
        if comm.rank == 1:
            raise ValueError("on purpose")
        if comm.rank == 0:
            comm.compute(1e-3)
        return comm.recv(0) if comm.rank == 2 else comm.isend(1.0, 2)
    result = spawn(program, 3, check=False)
    assert list(result.failures) == [1]
    assert all(row.total == Fraction(result.time_s) for row in result.ledger().rows)
    assert contiguous(result.critical_path().pieces, 0.0, result.time_s)


def test_a_run_that_was_stopped_is_looked_at_up_to_there():
    """A server had not taken what had come; the calls of two others do not fit."""
    def program(comm):
        if comm.rank == 0:
            comm.recv_any()
        elif comm.rank == 1:
            comm.isend(1.0, 0)
            comm.compute(5.0)
            comm.compute(6.0)
            comm.all_reduce(np.ones(3))
        else:
            comm.compute(1.0)
            comm.all_reduce(np.ones(4))
    result = spawn(program, 3, check=False)
    assert set(result.failures) == {0, 1, 2} and result.time_s == 11.0 == result.ledger().time_s
    assert all(row.total == 11 for row in result.ledger().rows)


def test_nothing_happened():
    result = spawn(lambda comm: None, 2)
    assert all(row.total == 0 for row in result.ledger().rows) and not result.critical_path().pieces
    for told in (result.ledger(), result.critical_path(), result.timeline(), result.why_idle(1), result.matrix()):
        assert str(told)
    assert not result.matrix().links and result.timeline()._repr_html_().startswith("<svg")


@pytest.mark.parametrize("share", [0.2, 1.5])
def test_a_message_is_communication_of_both_ends_and_of_nobody_else(share):
    def program(comm, busy_s):
        handle = comm.isend(np.ones(9000), 1) if comm.rank == 0 else None
        comm.compute(busy_s)
        comm.recv(0) if comm.rank == 1 else None
        return handle
    wire_s = Network(machine(switch, 3)).idle_s(0, 1, 72_000)
    result = spawn(program, 3, share * wire_s, cluster=machine(switch, 3))
    for rank, row in enumerate(result.ledger().rows):
        assert communicating(result.history, rank) == ([(0.0, wire_s)] if rank < 2 else [])
        assert float(row.hidden) == pytest.approx(min(share, 1.0) * wire_s if rank < 2 else 0.0)
        assert float(row.exposed) == pytest.approx(max(1.0 - share, 0.0) * wire_s if rank == 1 else 0.0)


def test_wrong_questions_are_refused():
    result = spawn(lambda comm: comm.compute(1.0), 2)
    for wrong in (lambda: result.why_idle(2), lambda: result.timeline(ranks=[5]), lambda: result.why_idle(-1)):
        with pytest.raises(ValueError, match="at least 0 and at most 1, got"):
            wrong()
    with pytest.raises(ValueError, match="from start_s=2 to end_s=1"):
        result.timeline(start_s=2.0)
    with pytest.raises(ValueError, match="at least one bin"):
        result.matrix().over_time(0)
