"""Who sent how much to whom, and over which links: the messages of a run as matrices.

After `history.py`; `viz/messages.py` draws it.
"""
from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import NamedTuple

import numpy as np

from simulator.clocks import Clocks
from simulator.looking.history import History
from simulator.topology import PACKAGE


class LinkUse(NamedTuple):
    """What went over one link, by the number of its edge: it was busy for `busy_s` seconds, `share` of the run's time;
    `waited_s` seconds did messages wait of whose links it was the last to be free."""

    number: int
    name: str
    src: int
    dst: int
    nbytes: int
    messages: int
    busy_s: float
    share: float
    waited_s: float


@dataclass(frozen=True)
class Matrix:
    """`nbytes[src, dst]` and `messages[src, dst]`: what each rank sent to each; `calls`: bytes by the name of the
    algorithm or call; `links`: those that carried something, the busiest first."""

    history: History

    @cached_property
    def nbytes(self) -> np.ndarray:
        return self._counted("nbytes")

    @cached_property
    def messages(self) -> np.ndarray:
        return self._counted(None)

    def _counted(self, name: str | None) -> np.ndarray:
        found = np.zeros((self.history.world_size,) * 2, np.int64)
        for m in self.history.messages:
            found[m.src, m.dst] += getattr(m, name) if name else 1
        return found

    @cached_property
    def calls(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for m in self.history.messages:
            found[m.name] = found.get(m.name, 0) + m.nbytes
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @cached_property
    def links(self) -> list[LinkUse]:
        edges, time_s = self.history.network.cluster.topology.edges, self.history.end_s
        nbytes, counts, waited = [0] * len(edges), [0] * len(edges), [0.0] * len(edges)
        for m in self.history.messages:
            for link in m.links:
                nbytes[link] += m.nbytes
                counts[link] += 1
            if m.last is not None:
                waited[m.last] += m.begin_s - m.asked_s
        found = []
        for k, edge in enumerate(edges):
            if counts[k]:
                busy_s = nbytes[k] / edge.link.bytes_per_s
                found.append(LinkUse(k, edge.link.name, edge.src, edge.dst, nbytes[k], counts[k], busy_s,
                                     busy_s / time_s if time_s else 0.0, waited[k]))
        return sorted(found, key=lambda use: (-use.share, use.number))

    def over_time(self, bins: int = 60) -> np.ndarray:
        """How busy each of `links` was in each of `bins` equal parts of the run: links × bins, from 0 to 1."""
        if bins < 1:
            raise ValueError(f"over_time: at least one bin, got {bins}")
        edges, end_s = self.history.network.cluster.topology.edges, self.history.end_s
        row = {use.number: k for k, use in enumerate(self.links)}
        busy, step = np.zeros((len(row), bins)), end_s / bins
        for m in self.history.messages if step else ():
            for link in m.links:
                until_s = m.begin_s + m.nbytes / edges[link].link.bytes_per_s
                first, last = int(m.begin_s / step), min(int(until_s / step), bins - 1)
                for k in range(first, last + 1):
                    busy[row[link], k] += max(0.0, min(until_s, (k + 1) * step) - max(m.begin_s, k * step)) / step
        return np.minimum(busy, 1.0)

    def __str__(self) -> str:
        return import_module(f"{PACKAGE}.viz.messages").text(self)

    def _repr_html_(self) -> str:
        return import_module(f"{PACKAGE}.viz.messages").html(self)


def matrix(clocks: Clocks | History) -> Matrix:
    """The messages of a run, from its clocks."""
    return Matrix(clocks if isinstance(clocks, History) else History(clocks))


__all__ = ["LinkUse", "Matrix", "matrix"]
