"""The search for a plan: a chain's measured layers, what any row of steps takes, and the best row by dynamic
programming over the boundaries between layers.  After `meter.py`, before `lifetimes.py`.

A state at boundary i is (f, H): H bytes are held by what came before, the value at the boundary among them if f.  From
it lead the steps "keep layer i" and "segment i … j again".  Each adds ΔH, needs room for P beyond H – at once in
forward, and when backward comes by – and costs C, the FLOPs computed again:

    best(j, f', H + ΔH) = min over steps of best(i, f, H) + C        where H + P ≤ budget

Less H is never worse, so of each boundary's states only those stay that no other beats in both H and cost.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from minigrad.memory.meter import LayerCost

STATE = 64                               # bytes that a checkpoint keeps of random streams
NUMBERS = 64                             # of a loss, and of random streams while one is replayed


@dataclass(frozen=True)
class Step:
    """Layers `start` … `stop - 1`: one that keeps what it saves, or a segment that is computed again."""

    start: int
    stop: int
    again: bool


@dataclass(frozen=True)
class Move:
    """A step from one state: bytes more that are held, bytes beyond H that it needs, FLOPs again; where it leads."""

    step: Step
    held: int
    needs: int
    flops: int
    holds_boundary: bool


class Chain:
    """The layers of a chain as measured.  `width`: states that a search keeps at a boundary."""

    def __init__(self, costs: Sequence[LayerCost], width: int = 256) -> None:
        self.costs, self.width = costs, width
        self.names = tuple(c.name for c in costs)
        self.value = [0]                                     # bytes of the value at each boundary; x itself is not ours
        for c in costs:
            self.value.append(self.value[-1] if c.passes else c.output)

    def peak(self, steps: Sequence[Step]) -> int:
        """Bytes of activations at most, and some for the numbers around them."""
        held, boundary, most = 0, False, 0
        for step in steps:
            move = next(m for m in self.moves[step.start][boundary] if m.step == step)
            most = max(most, held + move.needs)
            held, boundary = held + move.held, move.holds_boundary
        return most + NUMBERS

    def flops(self, steps: Sequence[Step], kept: bool) -> int:
        return sum(sum(c.flops for c in self.costs[s.start:s.stop]) for s in steps if kept or s.again)

    # -- one step
    @cached_property
    def moves(self) -> list[tuple[list[Move], list[Move]]]:
        """All steps from each boundary: (where its value is not held, where it is)."""
        both = (False, True)
        return [tuple([self._keep(i, f), *self._segments(i, f)] for f in both)
                for i in range(len(self.costs))]

    def _run(self, k: int, held: int, boundary: bool) -> tuple[int, bool, int, int]:
        """Layer k run on `held` bytes: (bytes held after it, whether its result is among them, bytes alive meanwhile,
        bytes alive in its backward)."""
        c, value = self.costs[k], self.value[k]
        forward = held + (0 if boundary else value) + c.forward
        keeps = boundary or c.keeps_input or c.passes and c.keeps_output
        held += c.own + (value if keeps and not boundary else 0)
        if not c.passes:
            held, keeps = held + (c.output if c.keeps_output else 0), c.keeps_output
        return held, keeps, forward, held + c.backward

    def _keep(self, i: int, boundary: bool) -> Move:
        held, holds, forward, backward = self._run(i, 0, boundary)
        last = i == len(self.costs) - 1
        backward += 0 if last and holds else self.value[-1]  # the result of all is alive throughout backward
        return Move(Step(i, i + 1, False), held, max(forward, backward), 0, holds)

    def _segments(self, i: int, boundary: bool) -> Iterator[Move]:
        """Every segment that begins at i: run once, run again with the gradient waiting, then pulled."""
        argument = (0 if boundary else self.value[i]) + STATE
        held, holds, forward, backward, flops = argument, True, 0, 0, 0
        for j in range(i, len(self.costs)):
            held, holds, now, later = self._run(j, held, holds)
            forward, backward, flops = max(forward, now), max(backward, later), flops + self.costs[j].flops
            again = forward + self.costs[j].gradient
            passes = all(c.passes for c in self.costs[i:j + 1])
            yield Move(Step(i, j + 1, True), argument, max(again, backward) + self.value[-1], flops, passes)

    # -- the best row of steps
    def least(self) -> tuple[Step, ...]:
        """The steps with the least peak."""
        return self._search(lambda held, second, move: max(second, held + move.needs)) or ()

    def within(self, budget: int) -> tuple[Step, ...] | None:
        """The steps with the least FLOPs computed again whose peak is within the budget; None if there are none."""
        room = budget - NUMBERS
        found = self._search(lambda held, second, move: second + move.flops if held + move.needs <= room else None)
        if found is None:
            least = self.least()                             # a front may have been thinned
            return least if self.peak(least) <= budget else None
        return found

    def _search(self, value) -> tuple[Step, ...] | None:
        """The row whose last `value(held, value before, move)` is least; None forbids a move."""
        fronts: list[dict[bool, list]] = [{False: [], True: []} for _ in range(len(self.costs) + 1)]
        fronts[0][False] = [(0, 0, None)]
        for i, front in enumerate(fronts[:-1]):
            for boundary, states in front.items():
                for held, second, path in self._best(states):
                    for move in self.moves[i][boundary]:
                        new = value(held, second, move)
                        if new is not None:
                            fronts[move.step.stop][move.holds_boundary].append(
                                (held + move.held, new, (path, move.step)))
        ends = [s for states in fronts[-1].values() for s in states]
        if not ends:
            return None
        path, steps = min(ends, key=lambda s: s[1])[2], []
        while path is not None:
            path, step = path
            steps.append(step)
        return tuple(reversed(steps))

    def _best(self, states: list) -> list:
        """Those that no other beats in both numbers; of very many some, evenly, with both ends."""
        kept: list = []
        for s in sorted(states, key=lambda s: s[:2]):
            if not kept or s[1] < kept[-1][1]:
                kept.append(s)
        if len(kept) <= self.width:
            return kept
        return [kept[k * (len(kept) - 1) // (self.width - 1)] for k in range(self.width)]


__all__ = ["Chain", "Move", "Step"]
