"""A plan on the links of a machine: its messages as actions of the clocks, by which all ranks' times are found.

After `clocks.py`, the one engine of events, and `plan.py`; `carrying.py` puts calls of running programs there the same
way.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from minigrad.events import Trace
from simulator.clocks import COMPUTE, RECORD, SEND, WAIT, Clocks, Lane
from simulator.collectives.plan import Plan
from simulator.collectives.prices import Bytes
from simulator.units import show


@dataclass(frozen=True)
class Replay:
    """When each rank began and was done."""

    plan: Plan
    start_s: tuple[float, ...]
    end_s: tuple[float, ...]
    clocks: Clocks = field(repr=False, compare=False)

    @property
    def time_s(self) -> float:
        """From the first rank's beginning to the last rank's end."""
        return max(self.end_s) - min(self.start_s)

    @cached_property
    def trace(self) -> Trace:
        """The messages: events of kind "send" on the stream "to dst" of their sender."""
        return self.clocks.trace.where(kind=SEND)

    def __str__(self) -> str:
        count = sum(map(len, self.plan.messages))
        return f"{self.plan.name}, {self.plan.world} ranks: {show(self.time_s, 's')}, {count} messages"


def replay(plan: Plan, network: Any, nbytes: Bytes, start_s: float | Sequence[float] = 0.0) -> Replay:
    """The plan on a `Network`, whose links it keeps busy; `nbytes` as for `Plan.sizes`.

    Each rank begins at its `start_s` and goes on by itself.  Links serve first come, first served, so that several
    messages of a rank to busy receivers may take longer than `price` says, which packs them perfectly."""
    starts = (float(start_s),) * plan.world if isinstance(start_s, int | float) else tuple(map(float, start_s))
    if len(starts) != plan.world or min(starts) < 0:
        raise ValueError(f"replay: {plan.world} times to start of at least 0, one a rank, got {list(starts)}")
    cluster = getattr(network, "cluster", None)
    if cluster is not None and cluster.world_size < plan.world:
        raise ValueError(f"replay: {plan.name} has {plan.world} ranks, the machine {cluster.world_size} devices")
    clocks = Clocks(network, plan.world)
    lanes = [clocks.lane(rank) for rank in range(plan.world)]
    for lane, start in zip(lanes, starts):
        clocks.do(lane, COMPUTE, start, "not yet", None, None)
    put_messages(clocks, lanes, range(plan.world), plan, plan.sizes(nbytes))
    for rank in range(plan.world):
        clocks.close(rank)
    clocks.advance()
    return Replay(plan, starts, tuple(lane.clock for lane in lanes), clocks)


def put_messages(clocks: Clocks, lanes: Sequence[Lane], ranks: Sequence[int], plan: Plan, sizes: Sequence[int]) -> None:
    """What each rank of a plan does next, on its lane.  `ranks`: their numbers there; `sizes`: bytes of the chunks."""
    nbytes = [sum(sizes[chunk] for chunk in m.chunks) for messages in plan.messages for m in messages]
    arrived = clocks.new_events(2 * len(nbytes))
    ready = arrived + len(nbytes)
    for lane, steps in zip(lanes, plan.steps):
        actions: list[tuple] = []
        for what, number, *dst in steps:
            if what == "ready":
                actions.append((RECORD, ready + number))
            elif what == "send":
                actions.append((WAIT, ready + number, "", ""))
                actions.append((SEND, arrived + number, ranks[dst[0]], nbytes[number], plan.name))
            else:
                actions.append((WAIT, arrived + number, "", ""))
        clocks.do_all(lane, actions)


__all__ = ["Replay", "put_messages", "replay"]
