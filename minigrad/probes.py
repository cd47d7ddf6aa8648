"""Probes: told when the engine begins and ends something, for those who measure (memory, time).

A probe is one of the mode's observers that costs the program nothing else: backward still runs on raw arrays.  While
one is there every op goes through `apply`.  Before `tensor.py`, which calls it.
"""
from __future__ import annotations

from typing import Any

PHASES = ("backward", "update", "load")      # whatever is in none of them is forward


class Probe:
    """Kinds and things: "op" an Op (inputs and outputs: Tensors), "pull" the Node whose gradient is computed (raw
    arrays), "leaf" the leaf that gets its gradient, and the phases of `PHASES`, whose thing is the loss, optimiser or
    loader.

    They nest: what begins last ends first, except that what raises does not end: the end of the phase around it, or of
    the measurement, ends it too.  Called in every thread whose context has the probe."""

    def begin(self, kind: str, thing: Any, inputs: tuple) -> None:
        """`kind` is about to run on `inputs`."""

    def end(self, kind: str, thing: Any, outputs: tuple) -> None:
        """It has run."""

    def __call__(self, op, xs: tuple, ys: tuple) -> None:
        """As an observer of `apply`."""
        self.end("op", op, ys)


def probes_of(observers: tuple) -> tuple[Probe, ...]:
    return tuple(p for p in observers if isinstance(p, Probe))


def begin(observers: tuple, kind: str, thing: Any, inputs: tuple = ()) -> None:
    for p in observers:
        if isinstance(p, Probe):
            p.begin(kind, thing, inputs)


def end(observers: tuple, kind: str, thing: Any, outputs: tuple = ()) -> None:
    for p in observers:
        if isinstance(p, Probe):
            p.end(kind, thing, outputs)


class phase:
    """`with phase(observers, kind, thing):` – it ends also when it raises.  A class, so that no frame of another file
    comes between the probe and the user's line."""

    __slots__ = ("observers", "kind", "thing")

    def __init__(self, observers: tuple, kind: str, thing: Any) -> None:
        self.observers, self.kind, self.thing = observers, kind, thing

    def __enter__(self) -> None:
        begin(self.observers, self.kind, self.thing)

    def __exit__(self, *_: object) -> None:
        end(self.observers, self.kind, self.thing)
