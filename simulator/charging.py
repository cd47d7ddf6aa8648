"""What a rank's own operations take, put on its clock: each op and each gradient as its device would need for it.

After `cost.py`, whose numbers these are, and `communicator.py`.  Not counted is what `cost.NOT_COUNTED` says.
"""
from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

import minigrad as mg
from minigrad.probes import Probe
from minigrad.profiler.costs import UNKNOWN, Costs, op_key
from simulator.communicator import Communicator
from simulator.cost import Row, working_dtype

INNER = -2                                   # in place of a cost: what runs within does not count


@dataclass
class Pull:
    """A gradient that is being computed from `g`: `cost`, its number; `moved`, whether it reads or writes anything,
    which is not known (None) until something tells."""

    cost: int
    g: Any
    moved: bool | None = None


class Charge(Probe):
    """An observer (`mg.observe`) of the ops that run between the calls to `comm`.

    A gradient is one piece of work, whose inner ops do not count again, but for those whose cost is not known.  One
    that is only handed on, or is a view of what came in, takes no time; one that is written out (of a sum) does."""

    def __init__(self, comm: Communicator) -> None:
        self.comm, self.costs = comm, Costs()
        self._open: list[Pull] = []

    def begin(self, kind: str, thing: Any, inputs: tuple) -> None:
        if kind == "pull":
            g = inputs[0]
            cost = self.costs.of_pull(thing, g.shape)        # unknown: of a Function, whose gradient may be several
            larger = cost != UNKNOWN and any(prod(edge.shape) > prod(g.shape) for edge in thing.edges)
            self._open.append(Pull(cost, g, True if larger else None))
        elif kind == "leaf":
            self._open.append(Pull(INNER, None))

    def end(self, kind: str, thing: Any, outputs: tuple) -> None:
        if kind not in ("pull", "leaf"):
            return
        pull = self._open.pop()
        if pull.moved is None:                               # no op within told; on Tensors none was needed
            pull.moved = not isinstance(pull.g, mg.Tensor) and not (
                outputs and all(_same_memory(out, pull.g) for out in outputs))
        if kind == "pull" and pull.cost != UNKNOWN and pull.moved:
            self._charge(pull.cost, type(thing.op).__name__ + " backward", pull.g.dtype.name, (thing.code, thing.lasti))

    def __call__(self, op: Any, xs: tuple, ys: tuple) -> None:
        number = self.costs.of_op(op_key(op, xs), op, xs, ys)
        if all(pull.cost == UNKNOWN for pull in self._open):
            self._charge(number, type(op).__name__, working_dtype(xs, ys), (None, 0))
        else:
            self._open[-1].moved = bool(self._open[-1].moved) or self._cost(number) != (0, 0)

    def _cost(self, number: int) -> tuple[int, int]:
        return (self.costs[number] if number != UNKNOWN else None) or (0, 0)

    def _charge(self, number: int, name: str, dtype: str, site: tuple) -> None:
        flops, nbytes = self._cost(number)
        seconds = Row("", name, dtype, 1, flops, nbytes).seconds(self.comm.spec)
        if seconds:
            self.comm.charge(seconds, flops, nbytes, name, site)


def _same_memory(out: Any, g: Any) -> bool:
    """Whether a gradient is the one that came in, seen otherwise."""
    return out is None or out is g or (isinstance(out, np.ndarray) and isinstance(g, np.ndarray)
                                       and np.may_share_memory(out, g))


__all__ = ["Charge"]
