"""Clocks: they agree with an event engine of the test's own, with closed forms, and with themselves."""
from __future__ import annotations

import random
from collections import deque
from heapq import heappop, heappush

import numpy as np
import pytest

from simulator.cluster import Cluster, cluster
from simulator.device import device
from simulator.errors import Deadlock
from simulator.network import Network
from simulator.shapes import ring, switch
from simulator.spawn import spawn
from simulator.topology import Link

SLOW = Link("slow", 1e9, 5e-6)


def machine(shape, n: int) -> Cluster:
    return Cluster((device("A100"),) * n, shape(n, SLOW))


FORWARD_S, BACKWARD_S = 1.013e-3, 2.027e-3


def one_f_one_b(comm, micro: int, elements: int, ask: bool) -> float:
    """Forward adds the rank, backward passes the gradient back; asks the time at every step, or never."""
    p, r = comm.world_size, comm.rank
    kept, total, sent = deque(), 0.0, []

    def forward(m: int) -> None:
        x = np.full(elements, float(m)) if r == 0 else comm.recv(r - 1, 0)
        comm.compute(FORWARD_S * (1 + 0.1 * r))
        y = x + r
        if r < p - 1:
            sent.append(comm.isend(y, r + 1, 0))
        kept.append(y)
        assert not ask or comm.time > 0

    def backward() -> float:
        y = kept.popleft()
        g = y if r == p - 1 else comm.recv(r + 1, 1)
        comm.compute(BACKWARD_S * (1 + 0.1 * r))
        if r > 0:
            sent.append(comm.isend(g, r - 1, 1))
        assert not ask or comm.time > 0
        return float(g[0])
    warm = min(p - r - 1, micro)
    for m in range(warm):
        forward(m)
    for m in range(warm, micro):
        forward(m)
        total += backward()
    while kept:
        total += backward()
    return total


def engine(cluster: Cluster, micro: int, nbytes: int) -> float:
    """The same by an event heap of its own, from lists of actions: ('c', seconds), ('s', peer, channel), ('r', …)."""
    p = cluster.world_size
    network, lists = Network(cluster), []
    for r in range(p):
        warm = min(p - r - 1, micro)
        f = [("r", r - 1, 0)] * (r > 0) + [("c", FORWARD_S * (1 + 0.1 * r), 0)] + [("s", r + 1, 0)] * (r < p - 1)
        b = [("r", r + 1, 1)] * (r < p - 1) + [("c", BACKWARD_S * (1 + 0.1 * r), 0)] + [("s", r - 1, 1)] * (r > 0)
        lists.append(f * warm + (f + b) * (micro - warm) + b * warm)
    at, ends, boxes, waiting = [0] * p, [0.0] * p, {}, {}
    heap = [(0.0, r) for r in range(p)]
    while heap:
        t, r = heappop(heap)
        while at[r] < len(lists[r]):
            kind, arg, channel = lists[r][at[r]]
            if kind == "c":
                at[r] += 1
                heappush(heap, (t + arg, r))
                break
            key = (r, arg, channel) if kind == "s" else (arg, r, channel)
            box = boxes.setdefault(key, deque())
            if kind == "s":
                box.append(network.transfer(r, arg, nbytes, t).end_s)
                if key in waiting:
                    other, since = waiting.pop(key)
                    heappush(heap, (max(since, box[-1]), other))
            elif not box:
                waiting[key] = r, t
                break
            elif box[0] > t:
                heappush(heap, (box[0], r))
                break
            else:
                box.popleft()
            at[r] += 1
        ends[r] = max(ends[r], t)
    assert [len(x) for x in lists] == at
    return max(ends)


@pytest.mark.parametrize("shape", [switch, ring])
@pytest.mark.parametrize("elements", [1000, 100_000])            # 13 us and 0.8 ms: links hardly and nearly always busy
@pytest.mark.parametrize("world, micro", [(4, 8), (8, 12)])
def test_clocks_equal_an_engine_of_their_own_on_contended_links(shape, elements, world, micro):
    cluster = machine(shape, world)
    want = engine(cluster, micro, 8 * elements)
    silent = spawn(one_f_one_b, world, micro, elements, False, cluster=cluster)
    asking = spawn(one_f_one_b, world, micro, elements, True, cluster=cluster)
    for result in (silent, asking):
        assert f"{max(result.times_s):.9e}" == f"{want:.9e}"
        assert f"{max(result.on(cluster).time_s(r) for r in range(world)):.9e}" == f"{want:.9e}"
    assert silent.trace.to_data() == asking.trace.to_data() or \
        sorted(map(str, silent.trace)) == sorted(map(str, asking.trace))
    assert silent.values == asking.values


def test_running_a_rank_until_it_blocks_would_be_wrong_here():
    """The reason for all this: rank 0 runs first, and yet its late message does not go before an early one."""
    def program(comm):
        if comm.rank == 0:                             # asks for the link into rank 2 late
            comm.compute(1.0)
            comm.isend(np.ones(1000), 2)
        elif comm.rank == 1:
            comm.compute(0.5)
            assert comm.time == 0.5                    # lets others go on
            comm.isend(np.ones(1000), 2)
        else:
            comm.recv(0), comm.recv(1)
        return comm.time
    cluster = machine(switch, 3)
    idle = Network(cluster).idle_s(0, 2, 8000)
    assert spawn(program, 3, cluster=cluster).values[2] == pytest.approx(1.0 + idle, rel=1e-12)


def test_times_of_messages_are_their_closed_form():
    def program(comm):
        if comm.rank == 0:
            comm.compute(1e-3)
            comm.send(np.ones(1000), 1)
            after_send = comm.time
            handle = comm.isend(np.ones(1000), 1)
            return after_send, comm.time, (handle.wait(), comm.time)[1]
        comm.recv(0)
        first = comm.time
        comm.recv(0)
        return first, comm.time
    cluster = machine(ring, 2)
    one = 8000 / 1e9 + 5e-6
    (sent, asked, waited), (first, second) = spawn(program, 2, cluster=cluster).values
    for got, want in ((sent, 1), (asked, 1), (first, 1), (waited, 2), (second, 2)):
        assert got == pytest.approx(1e-3 + want * one, rel=1e-12)


def test_computing_takes_what_the_device_needs_and_a_collective_begins_with_the_last_to_come():
    def program(comm):
        comm.compute(flops=1e12 * (comm.rank + 1), name="matmul")
        before = comm.time
        comm.barrier()
        return before, comm.time
    result = spawn(program, 3)
    spec = result.cluster.devices[0]
    assert [before for before, _ in result.values] == [spec.compute_s(1e12 * k, 0) for k in (1, 2, 3)]
    assert len({after for _, after in result.values}) <= 2 and min(a for _, a in result.values) > result.values[2][0]
    waits = result.trace.where(rank=0, kind="wait")
    assert len(waits) == 1 and "test_clocks.py" in waits[0].args["line"] and waits[0].name == "barrier"


def test_faster_links_without_running_again():
    def program(comm):
        comm.compute(1e-3)
        comm.all_reduce(np.ones(100_000))
    slow = machine(switch, 4)
    fast = Cluster(slow.devices, switch(4, Link("fast", 10e9, 0.0)))
    result = spawn(program, cluster=slow)
    assert result.on(fast).end_s() == pytest.approx(spawn(program, cluster=fast).time_s, rel=1e-12)
    with pytest.raises(ValueError, match="4 ranks ran, the cluster has 3"):
        result.on(machine(switch, 3))


def test_the_trace_is_whole_and_its_streams_are_in_order():
    result = spawn(one_f_one_b, 4, 6, 1000, False, cluster=machine(switch, 4))
    trace = result.trace.check()
    assert trace.where(kind="send").column("bytes").sum() == result.nbytes.sum() == 8000 * 3 * 12
    assert max(trace.column("end_s")) <= result.time_s
    for rank in range(4):
        own = trace.where(rank=rank, stream="compute")
        assert sum(e.duration_s for e in own) == pytest.approx(result.times_s[rank], rel=1e-9)


def scripted(comm, steps, asks: float) -> None:
    """`steps` of all ranks, each of which does its part; asks the time before some of them."""
    dice = random.Random(comm.rank)
    groups, open_ = [comm, comm.split(comm.rank % 2), comm.split(comm.rank // 2)], []
    for kind, *how in steps:
        if dice.random() < asks:
            assert comm.time >= 0
        if kind == "compute":
            comm.compute(how[0][comm.rank])
        elif kind == "message":
            src, dst, n = how
            if comm.rank == src:
                open_.append(comm.isend(np.ones(n), dst))
            elif comm.rank == dst:
                open_.append(comm.irecv(src))
        elif kind == "wait":
            while open_:
                open_.pop(dice.randrange(len(open_))).wait()
        else:
            open_.append(groups[how[0]].all_reduce(np.ones(how[1]), algorithm=kind, async_op=True))
    for each in open_:
        each.wait()


def script(seed: int, world: int) -> list[tuple]:
    dice, steps = random.Random(seed), []
    for _ in range(30):
        kind = dice.choice(["compute", "message", "message", "wait", "ring", "tree", "direct"])
        if kind == "compute":
            steps.append((kind, [dice.choice([0.0, 1e-5, 3e-5]) for _ in range(world)]))
        elif kind == "message":
            steps.append((kind, *dice.sample(range(world), 2), dice.choice([0, 1, 5000, 20_000])))
        else:
            steps.append((kind,) if kind == "wait" else (kind, dice.randrange(3), dice.choice([0, 7, 9000])))
    return steps


@pytest.mark.parametrize("seed", range(12))
def test_times_do_not_depend_on_who_asks_and_a_replay_gives_the_same(seed):
    """Random programs with messages, and collectives of three groups, that wait for links and meet at equal times."""
    where = (machine(switch, 4), machine(ring, 4), cluster("4 x V100"), cluster("2 x 3 x A100"))[seed % 4]
    steps = script(seed, where.world_size)
    runs = [spawn(scripted, None, steps, asks, cluster=where, timeout=60) for asks in (0.0, 0.3, 1.0)]
    for other in runs[1:]:
        assert other.times_s == runs[0].times_s
        assert sorted(map(str, other.trace)) == sorted(map(str, runs[0].trace))
    again = runs[2].on(where)
    assert [again.time_s(rank) for rank in range(where.world_size)] == runs[0].times_s
    assert again.end_s() == runs[0].time_s > 0


def test_messages_on_parallel_links_are_on_streams_of_their_own():
    def program(comm):
        if comm.rank == 0:
            for handle in [comm.isend(np.ones(10_000), 3) for _ in range(4)]:
                handle.wait()
        elif comm.rank == 3:
            for _ in range(4):
                comm.recv(0)
    result = spawn(program, cluster=cluster("DGX-1"))
    streams = {stream for rank, stream in result.trace.check().lines() if rank == 0 and stream.startswith("to")}
    assert streams == {"to 3", "to 3 (2)"}
    one = result.clocks.network.idle_s(0, 3, 80_000)
    assert one < result.time_s < 2 * one < spawn(program, cluster=machine(switch, 8)).time_s


def test_the_same_each_time():
    def program(comm):
        rng = random.Random(comm.rank)
        for _ in range(20):
            comm.compute(rng.random() * 1e-5)
            comm.isend(np.ones(rng.randrange(1, 2000)), (comm.rank + 1) % comm.world_size)
            comm.recv((comm.rank - 1) % comm.world_size)
            if rng.random() < 0.3:
                comm.time  # noqa: B018 - asking is the point
        return comm.all_reduce(comm.time, "max", algorithm="doubling")
    runs = [spawn(program, 5, cluster=machine(ring, 5)) for _ in range(5)]
    assert len({(str(r.values), str(r.times_s), str(r.trace.to_data())) for r in runs}) == 1


def test_a_collective_begins_when_the_last_has_come_whoever_is_last_by_number():
    def program(comm, late):
        comm.compute(1e-3 if comm.rank == late else 0.0)
        comm.all_reduce(np.ones(8))
        return comm.time
    ends = [max(spawn(program, 3, late).values) for late in range(3)]
    assert ends[0] == pytest.approx(ends[2], rel=1e-12) == pytest.approx(ends[1], rel=1e-12) and ends[0] > 1e-3


def test_equal_times_are_settled_the_same_way_whether_somebody_asks_or_not():
    """All want the links into one rank at once, from their programs and from collectives of groups."""
    def program(comm, ask):
        half = comm.split(comm.rank % 2)
        if ask:
            comm.time  # noqa: B018 - asking is the point
        handle = half.all_reduce(np.ones(3000), async_op=True)
        if ask and comm.rank % 3:
            comm.time  # noqa: B018
        others = [rank for rank in range(comm.world_size) if rank != comm.rank]
        sent = [comm.isend(np.ones(1000), other) for other in others]
        for other in others:
            comm.recv(other)
        for each in (handle, *sent):
            each.wait()
    cluster = machine(switch, 6)
    silent, asking = (spawn(program, None, ask, cluster=cluster) for ask in (False, True))
    replayed = silent.on(cluster)
    assert silent.times_s == asking.times_s == [replayed.time_s(rank) for rank in range(6)]
    assert sorted(map(str, silent.trace)) == sorted(map(str, asking.trace)) == sorted(map(str, replayed.trace))


# ---- whoever comes first ---------------------------------------------------------------------------
def serve(comm, delays, rounds: int, ask: bool, busy_s: float) -> list[int]:
    """Rank 0 serves requests in the order in which they arrive; rank k asks again `delays[k]` after its answer."""
    if comm.rank == 0:
        order = []
        comm.compute(busy_s)
        for _ in range(rounds * (comm.world_size - 1)):
            who, x = comm.recv_any()
            comm.compute(1e-4)
            comm.isend(x + 1, who)
            order.append(who)
        return order
    for k in range(rounds):
        comm.compute(delays[comm.rank])
        comm.isend(float(k), 0)
        assert comm.recv(0) == k + 1
        assert not ask or comm.time > 0
    return []


@pytest.mark.parametrize("ask", [False, True])
@pytest.mark.parametrize("busy_s", [0.0, 2.5e-3, 1e-2])
def test_the_first_to_arrive_is_served_first(ask, busy_s):
    delays = [0.0, 3e-3, 1e-3, 2.03e-3]
    result = spawn(serve, 4, delays, 4, ask, busy_s, cluster=machine(switch, 4))
    order, again = result.values[0], result.on(result.cluster)
    assert [again.time_s(rank) for rank in range(4)] == result.times_s
    wire, now = Network(machine(switch, 4)).idle_s(1, 0, 8), busy_s
    due = [(delays[k] + wire, k, 1) for k in (1, 2, 3)]
    want = []
    while due:
        at, who, count = min(due)
        due.remove((at, who, count))
        want.append(who)
        now = max(now, at) + 1e-4
        if count < 4:
            due.append((now + wire + delays[who] + wire, who, count + 1))
    assert order == want and order[:2] == [2, 3] and order != sorted(order)


def test_a_short_message_overtakes_a_long_one_on_another_link():
    def program(comm):
        if comm.rank == 0:
            return [comm.recv_any()[0] for _ in range(3)]
        comm.compute(comm.rank * 1e-6)
        comm.isend(np.ones({1: 1_000_000, 2: 1, 3: 500_000}[comm.rank]), 0)
    assert spawn(program, 4).values[0] == [2, 3, 1]


def test_a_server_that_nobody_asks_and_two_that_wait_for_each_other():
    with pytest.raises(Deadlock, match="rank 0 waits for a message from any rank"):
        spawn(lambda comm: comm.recv_any() if comm.rank == 0 else None, 3)

    def both(comm):
        who, x = comm.recv_any() if comm.rank else (0, 0)
        if x < 4:
            comm.isend(x + 1, 2 if comm.rank == 1 else 1)
        if comm.rank:
            comm.recv_any()
    with pytest.raises(Deadlock):
        spawn(both, 3)
