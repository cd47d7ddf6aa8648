"""A proof that a plan computes what its kind means, by carrying it out on symbols instead of numbers.

After `plan.py`.  A value is the set of ranks whose contributions it holds, and how they were put together.
"""
from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from simulator.collectives.plan import REDUCING, Move, Plan, PlanError


class Value(NamedTuple):
    """Whose contributions, as bits; and in which order they were combined: a rank, or a set of two such orders."""

    ranks: int
    order: Any


State = list[dict[int, Value]]


def check(plan: Plan) -> Plan:
    """The plan; PlanError, with round and move, unless it computes its meaning: no contribution is missing or counted
    twice, nobody sends what it does not have or gets what it has, and no two moves of a round write to one place."""
    state = carried_out(plan)
    for rank in range(plan.world):
        for chunk in plan.goal(rank):
            want = (1 << plan.world) - 1 if plan.kind in REDUCING else 1 << plan.source(chunk)
            has = state[rank].get(chunk)
            if has is None or has.ranks != want:
                raise PlanError(f"{plan.name}: at the end rank {rank} has {_ranks(has)} in chunk {chunk}, and should "
                                f"have {_ranks(Value(want, None))}")
    return plan


def carried_out(plan: Plan) -> State:
    """What each rank has of each chunk afterwards."""
    return deque(states(plan), maxlen=1).pop()


def states(plan: Plan) -> Iterator[State]:
    """What each rank has of each chunk: before, and after each round; the same object each time."""
    state: State = [{chunk: Value(1 << rank, rank) for chunk in plan.start(rank)} for rank in range(plan.world)]
    yield state
    for number, moves in enumerate(plan.rounds):
        before: dict[tuple[int, int], Value] = {}
        for move in moves:
            _in_range(plan, number, move)
            if move.chunk not in state[move.src]:
                raise _error(plan, number, move, f"rank {move.src} has nothing there")
            before[move.src, move.chunk] = state[move.src][move.chunk]
        written: dict[tuple[int, int], bool] = {}             # whether what is written there so far combines
        for move in moves:
            if not (written.get(move[1:3], True) and (move.reduce or move[1:3] not in written)):
                raise _error(plan, number, move, "another move of the round writes there too")
            written[move[1:3]] = bool(move.reduce)
            state[move.dst][move.chunk] = _arrived(plan, number, move, state, before[move.src, move.chunk])
        yield state


def _arrived(plan: Plan, number: int, move: Move, state: State, new: Value) -> Value:
    old = state[move.dst].get(move.chunk)
    if not move.reduce:
        if old == new:
            raise _error(plan, number, move, f"rank {move.dst} has that already")
        return new
    if plan.kind not in REDUCING or old is None:
        raise _error(plan, number, move, f"there is nothing to combine in {plan.kind}" if old else
                     f"rank {move.dst} has nothing to combine with")
    if old.ranks & new.ranks:
        raise _error(plan, number, move, f"{_ranks(Value(old.ranks & new.ranks, None))} would count twice")
    return Value(old.ranks | new.ranks, frozenset((old.order, new.order)))


def _in_range(plan: Plan, number: int, move: Move) -> None:
    if not (0 <= move.src < plan.world and 0 <= move.dst < plan.world and 0 <= move.chunk < plan.chunks):
        raise _error(plan, number, move, f"ranks are 0 … {plan.world - 1}, chunks 0 … {plan.chunks - 1}")
    if move.src == move.dst:
        raise _error(plan, number, move, "a rank sends to itself")


def _error(plan: Plan, number: int, move: Move, what: str) -> PlanError:
    how = "to combine" if move.reduce else "to keep"
    return PlanError(f"{plan.name}: round {number}, chunk {move.chunk} from rank {move.src} to {move.dst} {how}: "
                     f"{what}")


def _ranks(value: Value | None) -> str:
    if value is None:
        return "nothing"
    return f"the values of ranks {[r for r in range(value.ranks.bit_length()) if value.ranks >> r & 1]}"


def additions(plan: Plan, chunk: int, rank: int | None = None) -> str:
    """In which order a chunk's contributions are combined, with the smallest rank first: "((0+1)+(2+3))"; at `rank`, or
    at the first that gets the result.  Plans that differ here differ in the last bits of a sum."""
    state = carried_out(plan)
    ranks = [r for r in range(plan.world) if chunk in plan.goal(r)] if rank is None else [rank]
    if not ranks or chunk not in state[ranks[0]]:
        raise ValueError(f"{plan.name}: no rank has a result in chunk {chunk}; there are {plan.chunks}")
    return _written(state[ranks[0]][chunk].order)[1]


def same_everywhere(plan: Plan) -> bool:
    """Whether all ranks that get a chunk get it from the same additions, so that their bits are equal."""
    state = carried_out(plan)
    orders: dict[int, set[Any]] = {}
    for rank in range(plan.world):
        for chunk in plan.goal(rank):
            orders.setdefault(chunk, set()).add(state[rank][chunk].order)
    return all(len(found) == 1 for found in orders.values())


def _written(order: Any) -> tuple[int, str]:
    """(smallest rank in it, text), without recursion: a ring of a thousand ranks nests a thousand deep."""
    done: dict[Any, tuple[int, str]] = {}
    waiting = [order]
    while waiting:
        at = waiting[-1]
        if isinstance(at, frozenset):
            parts = list(at)
            missing = [part for part in parts if part not in done]
            waiting += missing
            if missing:
                continue
            (low, first), (_, second) = sorted(done[part] for part in parts)
            done[at] = low, f"({first}+{second})"
        else:
            done[at] = at, str(at)
        waiting.pop()
    return done[order]


__all__ = ["additions", "carried_out", "check", "same_everywhere", "states"]
