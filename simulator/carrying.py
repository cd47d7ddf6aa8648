"""A collective carried out: the rounds of its plan on the arrays of all ranks, and the same rounds on their clocks.

Both are read off one `Plan`.  After `matching.py`, whose complete meetings come here; `communicator.py` calls.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.clocks import BEGIN, END, RECORD, WAIT
from simulator.collectives import Plan, cut
from simulator.collectives.arrays import pieces, run
from simulator.collectives.replays import put_messages
from simulator.matching import Call, Group, Meeting
from simulator.units import show

if TYPE_CHECKING:
    from simulator.cluster import Cluster
    from simulator.executors.books import Books


def entries_of(kind: str, world: int) -> int:
    """How many arrays the chunks of a plan are cut from: one, one for each rank, or one for each pair."""
    return 1 if kind in ("broadcast", "reduce", "all_reduce") else world * world if kind == "all_to_all" else world


class Cut:
    """The arrays of one call and the chunks of its plan: entry e is the chunks e * each … (e + 1) * each - 1."""

    def __init__(self, plan: Plan, held: Sequence[Mapping[int, np.ndarray]]) -> None:
        self.plan, self.held = plan, held
        self.each = plan.chunks // entries_of(plan.kind, plan.world)
        known = {e: array for arrays in held for e, array in arrays.items()}
        self.shapes = {e: array.shape for e, array in known.items()}
        self.dtype = next((array.dtype for array in known.values()), np.dtype(np.float32))
        self.sizes = [size for e in range(plan.chunks // self.each) for size in cut(prod(self.shapes[e]), self.each)]

    def nbytes(self, chunks: Iterable[int]) -> int:
        sizes, total = self.sizes, 0
        for c in chunks:
            total += sizes[c]
        return total * self.dtype.itemsize

    def start(self) -> list[dict[int, np.ndarray]]:
        """Of each rank, its chunks: views of what it holds."""
        return [self.chunks_of(arrays) for arrays in self.held]

    def chunks_of(self, arrays: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
        """The chunks of these entries: views."""
        each, sizes = self.each, self.sizes
        return {c: part for e, array in arrays.items() for c, part in pieces(
            array.reshape(-1), sizes[e * each:(e + 1) * each], range(e * each, (e + 1) * each)).items()}

    def check_room(self, cluster: Cluster, group: Group) -> None:
        """MemoryError where what a rank would have does not fit its device."""
        for k, rank in enumerate(group.ranks):
            nbytes, room = self.nbytes(self.plan.goal(k)), cluster.devices[rank].memory_bytes
            if nbytes > room:
                raise MemoryError(f"{self.plan.kind}: the {show(nbytes, 'B')} that rank {rank} would get do not fit "
                                  f"its device, which has {show(room, 'B')} in all. Split the tensors, or spawn with a "
                                  f"larger device")

    def result(self, rank: int, chunks: Mapping[int, np.ndarray]) -> list[np.ndarray]:
        """The arrays that a rank has afterwards, in memory of their own."""
        found = []
        for e in sorted({c // self.each for c in self.plan.goal(rank)}):
            parts = [chunks[c] for c in range(e * self.each, (e + 1) * self.each)]
            found.append(np.concatenate(parts).reshape(self.shapes[e]))
        return found


def carry_out(world: Books, meeting: Meeting, add: np.ufunc | None,
              move: Callable[..., Sequence[Any]] | None = None) -> None:
    """All are there: move the values, put the moves on the clocks, and give each call what its rank has afterwards.

    `move` does the first where the values are elsewhere; what it returns is given to the calls."""
    group = meeting.group
    calls = [meeting.calls[rank] for rank in group.ranks]
    events = [call.event for call in calls]
    kind, plan = calls[0].signature["kind"], calls[0].plan
    if plan is None:
        results: Sequence[Any] = [[new] for new in _new_groups(world, group, calls)]
        put_on_clocks(world, group, None, kind, kind, meeting.join, events)
    else:
        parts = Cut(plan, [call.data for call in calls])
        parts.check_room(world.cluster, group)
        _count(world, group, parts)
        results = (move or _moved)(world, group, parts, calls, add)
        put_on_clocks(world, group, parts, plan.name, kind, meeting.join, events)
    for call, value in zip(calls, results):
        world.complete(call, value)


def _count(world: Books, group: Group, parts: Cut) -> None:
    """The messages that will go, among the bytes sent; ValueError if no link leads there."""
    nbytes: dict[tuple[int, int], int] = defaultdict(int)
    for at_once in parts.plan.messages:
        for m in at_once:
            nbytes[group.ranks[m.src], group.ranks[m.dst]] += parts.nbytes(m.chunks)
    for pair in nbytes:
        world.network.idle_s(*pair, 0)                       # refuses where no link leads
    for pair, total in nbytes.items():
        world.sent(*pair, total)


def _moved(world: Books, group: Group, parts: Cut, calls: Sequence[Call],
           add: np.ufunc | None) -> Sequence[list[np.ndarray]]:
    """What each rank has when its values and those of the others have moved."""
    world.hand_over(0, 0, 0)                                 # what was done before is somebody's
    has = run(parts.plan, parts.start(), add or np.add)
    results = [parts.result(rank, chunks) for rank, chunks in enumerate(has)]
    del has
    world.hand_out({rank: sum(a.nbytes for a in arrays) for rank, arrays in zip(group.ranks, results)})
    _give_back(world, parts, calls)
    return results


def _give_back(world: Books, parts: Cut, calls: Sequence[Call]) -> None:
    """What ranks gave has moved, and nobody has it any more; that they gave something stays known."""
    parts.held = ()
    for call in calls:
        call.data = dict.fromkeys(call.data)
        world.gave_back(call.rank)


def _new_groups(world: Books, group: Group, calls: Sequence[Call]) -> list[Group | None]:
    """The group of each call of `split`; equal colors are one."""
    made: dict[Any, Group] = {}
    for color in sorted({call.data[0] for call in calls if call.data[0] is not None}):
        members = sorted((call.data[1], group.place[call.rank], call.rank) for call in calls if call.data[0] == color)
        ranks = tuple(rank for _, _, rank in members)
        made[color] = world.new_group(ranks, f"group ({', '.join(map(str, ranks))})")
    return [made.get(call.data[0]) for call in calls]


# ---- the same on the clocks ----------------------------------------------------------------------
def put_on_clocks(world: Books, group: Group, parts: Cut | None, name: str, kind: str, join: Any,
                  events: Sequence[int]) -> None:
    """The actions of a collective on the lanes of its group: it begins when all have arrived at `join`, and event k
    happens when the k-th rank is done.  Without parts nothing is sent."""
    clocks = world.clocks
    lanes = [clocks.lane(rank, group.number, group.lane_name) for rank in group.ranks]
    total = parts.nbytes(range(len(parts.sizes))) if parts else 0
    for lane in lanes:
        clocks.do_all(lane, ((WAIT, join, "", ""), (BEGIN, name, kind, total)))
    if parts:
        put_messages(clocks, lanes, group.ranks, parts.plan, [size * parts.dtype.itemsize for size in parts.sizes])
    for lane, event in zip(lanes, events):
        clocks.do_all(lane, ((END,), (RECORD, event)))


__all__ = ["Cut", "carry_out", "put_on_clocks"]
