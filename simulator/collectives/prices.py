"""What a plan costs by arithmetic: bytes from whom to whom, and seconds if nothing else is on the links.

After `plan.py`.  What `closed_forms.py` says in formulas is counted here from the moves; `replays.py` knows real links.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex

import numpy as np

from simulator.collectives.plan import Message, Plan

MACHINES = ("switch", "fully connected")
Bytes = SupportsIndex | Iterable[int]


def bytes_matrix(plan: Plan, nbytes: Bytes) -> np.ndarray:
    """Bytes that `[src, dst]` sends in all; `nbytes` as for `Plan.sizes`."""
    sizes = plan.sizes(nbytes)
    found = np.zeros((plan.world, plan.world), np.int64)
    for moves in plan.rounds:
        for move in moves:
            found[move.src, move.dst] += sizes[move.chunk]
    return found


def price(plan: Plan, alpha_s: float, bytes_per_s: float, nbytes: Bytes, machine: str = "switch") -> float:
    """Seconds if all ranks go from round to round together: a round is `alpha_s` and the time of its busiest place.

    "switch": each rank has one way out and one way in, which its messages share.  "fully connected": each pair of ranks
    has its own link in each direction."""
    if machine not in MACHINES:
        raise ValueError(f"price: machine {machine!r} is none of {', '.join(MACHINES)}")
    sizes = plan.sizes(nbytes)
    return sum(alpha_s + _busiest(messages, sizes, machine) / bytes_per_s for messages in plan.messages)


def _busiest(messages: Sequence[Message], sizes: Sequence[int], machine: str) -> int:
    loads: dict[Any, int] = defaultdict(int)
    for src, dst, chunks, _ in messages:
        nbytes = sum(sizes[chunk] for chunk in chunks)
        for place in (("out", src), ("in", dst)) if machine == "switch" else ((src, dst),):
            loads[place] += nbytes
    return max(loads.values(), default=0)


__all__ = ["MACHINES", "bytes_matrix", "price"]
