"""The clock of links: a message begins when every link of its way is free, first come, first served.

The calls are in the order in which messages get their links; whoever calls keeps the order of time.  After
`cluster.py`.
"""
from __future__ import annotations

from math import isfinite
from typing import NamedTuple

from simulator.cluster import Cluster
from simulator.units import show


class Transfer(NamedTuple):
    """When a message held its links, by id; `end_s` is when its last byte is there.  Links are free again earlier."""

    begin_s: float
    end_s: float
    links: tuple[int, ...]

    def __str__(self) -> str:
        over = f"over links {', '.join(map(str, self.links))}" if self.links else "to itself"
        return f"from {show(self.begin_s, 's')} to {show(self.end_s, 's')}, {over}"


class Network:
    """What the links of a cluster are busy with.  Not for several threads at once."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._topology = cluster.topology
        self._rate = [edge.link.bytes_per_s for edge in cluster.topology.edges]
        self._alpha = [edge.link.alpha_s for edge in cluster.topology.edges]
        self._ways: dict[tuple[int, int], tuple[tuple[tuple[int, ...], ...], float, float]] = {}
        self.reset()

    def reset(self) -> None:
        """All links idle, at time 0, and nothing sent."""
        self.free_s = [0.0] * len(self._rate)                 # of each link: when it can take the next message
        self.link_bytes = [0] * len(self._rate)
        self.link_busy_s = [0.0] * len(self._rate)

    def transfer(self, src: int, dst: int, nbytes: int, start_s: float) -> Transfer:
        """A message that is ready at `start_s`.  It holds its links from when all of them are free, each for
        `nbytes / bytes_per_s`, and ends after the sum of their latencies and the time on the slowest.

        Of parallel links it takes the one that is free first.  A device sends to itself in no time."""
        if nbytes < 0 or not isfinite(start_s):
            raise ValueError(f"transfer {src} -> {dst}: nbytes must be at least 0 and start_s finite, got {nbytes} and "
                             f"{start_s}")
        lanes, alpha, slowest = self._way(src, dst)
        free, rate, begin, chosen = self.free_s, self._rate, start_s, []
        for step in lanes:
            k = step[0] if len(step) == 1 else min(step, key=free.__getitem__)
            chosen.append(k)
            if free[k] > begin:
                begin = free[k]
        for k in chosen:
            busy = nbytes / rate[k]
            free[k] = begin + busy
            self.link_bytes[k] += nbytes
            self.link_busy_s[k] += busy
        return Transfer(begin, begin + (alpha + nbytes / slowest), tuple(chosen))

    def idle_s(self, src: int, dst: int, nbytes: int) -> float:
        """Seconds for a message when nothing else is on its way."""
        _, alpha, slowest = self._way(src, dst)
        return alpha + nbytes / slowest

    def shared(self, src: int, dst: int) -> bool:
        """Whether messages of other senders may be on its way."""
        return self._topology.shared(src, dst)

    def _way(self, src: int, dst: int) -> tuple[tuple[tuple[int, ...], ...], float, float]:
        """(links of each step, sum of latencies, rate of the slowest)."""
        found = self._ways.get((src, dst))
        if found is None:
            lanes = self._topology.lanes(src, dst)
            alpha = sum(self._alpha[step[0]] for step in lanes)
            slowest = min((self._rate[step[0]] for step in lanes), default=float("inf"))
            found = self._ways[src, dst] = lanes, alpha, slowest
        return found


__all__ = ["Network", "Transfer"]
