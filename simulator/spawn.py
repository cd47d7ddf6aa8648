"""`spawn`: run one program on many ranks, and what came of it.

    def program(comm, n):
        return comm.all_reduce(mg.ones(n) * comm.rank)

    result = spawn(program, 4, 1000, cluster=cluster("4 x A100"))
    result.values, result.time_s, result.nbytes

After `executors/`.
"""
from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from inspect import iscoroutinefunction, isgeneratorfunction
from operator import index
from typing import Any

import numpy as np

from minigrad import observe
from minigrad.arguments import function, of_kind
from minigrad.events import Trace
from minigrad.memory.handler import watched
from minigrad.sim import sim_device
from simulator.charging import Charge
from simulator.clocks import Clocks, replay
from simulator.cluster import Cluster, uniform
from simulator.communicator import Communicator
from simulator.errors import CommunicationError, RankFailed
from simulator.executors.local import World
from simulator.holdings import Holdings, SimAccounts
from simulator.lines import raised_at
from simulator.looking.chrome import save_trace
from simulator.looking.critical_path import CriticalPath, critical_path
from simulator.looking.history import History
from simulator.looking.idleness import Idleness, idleness
from simulator.looking.ledger import Ledger, ledger
from simulator.looking.matrices import Matrix, matrix
from simulator.looking.timeline import Curve, Timeline, curves, timeline
from simulator.network import Network
from simulator.units import show

EXECUTORS = ("local", "dask")
DEVICES = ("cpu", "sim")


@dataclass(frozen=True)
class Result:
    """What a run of `spawn` gave: `values` by rank (None where it failed), `failures` by rank, and the messages.

    `nbytes[src, dst]` are the bytes that were sent; `peak_bytes` those that each rank held at most, on its simulated
    device or in arrays of the host, where that was asked for (else empty); `memory` is made of `samples`.  Times are
    modelled: the same on any computer.  `transport[src, dst]`, on Dask: bytes of each message as it was handed over."""

    values: list[Any]
    failures: dict[int, BaseException]
    nbytes: np.ndarray
    peak_bytes: list[int]
    cluster: Cluster
    clocks: Clocks = field(repr=False)
    samples: list[list[tuple[int, int, int]]] = field(default_factory=list, repr=False)
    transport: dict[tuple[int, int], np.ndarray] = field(default_factory=dict, repr=False)

    @property
    def world_size(self) -> int:
        return len(self.values)

    @property
    def time_s(self) -> float:
        """When the last rank, or the last message, was done."""
        return self.clocks.end_s()

    @property
    def times_s(self) -> list[float]:
        """The end of each rank's own program."""
        return [self.clocks.time_s(rank) for rank in range(self.world_size)]

    @property
    def trace(self) -> Trace:
        """What each rank computed, waited for and sent, and when."""
        return self.clocks.trace

    @cached_property
    def link_nbytes(self) -> list[int]:
        """Bytes over each link of the topology, in the order of its edges."""
        return list(self.clocks.network.link_bytes)

    @cached_property
    def history(self) -> History:
        """What each rank did, and what made each event happen; all that follows is read off it."""
        return History(self.clocks)

    @cached_property
    def memory(self) -> list[Curve]:
        """The bytes of each rank over time, where they were counted (else empty)."""
        return curves(self.history, self.samples)

    def timeline(self, ranks: Sequence[int] | None = None, start_s: float = 0.0,
                 end_s: float | None = None) -> Timeline:
        """What each rank did when, of these ranks and in this time (all): a picture in a notebook, text in print."""
        return timeline(self.history, self.memory, ranks, start_s, end_s)

    def ledger(self) -> Ledger:
        """Where the time of each rank went: compute, exposed communication, bubble, stall; their sum is exact."""
        return ledger(self.history)

    def critical_path(self) -> CriticalPath:
        """The chain of work and messages that ended last: what has to become faster for the run to do so."""
        return critical_path(self.history)

    def why_idle(self, rank: int) -> Idleness:
        """What this rank waited for, and what who did meanwhile."""
        return idleness(self.history, rank)

    def matrix(self) -> Matrix:
        """Bytes from rank to rank, and over each link."""
        return matrix(self.history)

    def save_trace(self, path: str | os.PathLike) -> None:
        """The trace as a file, whole or not at all: .json for Perfetto and chrome://tracing, .npz for `Trace.load`."""
        save_trace(self.trace, path, self.memory)

    def on(self, cluster: Cluster) -> Clocks:
        """The clocks of what was done, had the messages gone over this cluster.  Computing takes as long as it did, and
        the program is not run again: it may have asked the time."""
        of_kind("on", "cluster (simulator.cluster gives one by name)", cluster, Cluster)
        if cluster.world_size != self.world_size:
            raise ValueError(f"on: {self.world_size} ranks ran, the cluster has {cluster.world_size} devices")
        return replay(self.clocks.program(), Network(cluster), self.world_size)

    def __str__(self) -> str:
        rows = [f"{self.world_size} ranks, {show(self.time_s, 's')}, {show(float(self.nbytes.sum()), 'B')} sent"]
        for rank, time_s in enumerate(self.times_s):
            failed = self.failures.get(rank)
            note = f"  {type(failed).__name__}: {str(failed).splitlines()[0]}" if failed else ""
            out, into = (show(float(n.sum()), "B") for n in (self.nbytes[rank], self.nbytes[:, rank]))
            rows.append(f"  rank {rank:<4} {show(time_s, 's'):>10}  sent {out:>10}  received {into:>10}{note}")
        return "\n".join(rows)


def spawn(program: Callable[..., Any], world_size: int | None = None, *args: Any, cluster: Cluster | None = None,
          executor: str = "local", timeout: float | None = None, check: bool = True, device: str = "cpu",
          timed: bool = False, memory: bool = False, client: Any = None, **kwargs: Any) -> Result:
    """Run `program(comm, *args, **kwargs)` on each of `world_size` ranks.

    `cluster`: the machine that prices messages and computing, by default A100s of which each pair has a link of its
    own.  `timeout`: seconds of the real clock.  `check`: raise where a rank failed; else the others go on without it,
    and `failures` says what happened.  `device`: "sim" gives each rank a simulated device of its own (`comm.device`)
    with as much memory as that of the cluster; one run at a time can have these.  `timed`: minigrad's ops let the clock
    of their rank go on by what its device needs for them (`cost.py`); else only `comm.compute` does.  `memory`: count
    the bytes of host arrays that each rank makes and holds, for `peak_bytes`, and raise in one that holds more than its
    device has, at its next call; needs numba.  `executor`: "local", a rank is a thread of this process; "dask", a task
    on a worker of `client` (a distributed.Client, a cluster, the address of a scheduler; None: the current client, or
    worker processes that are started and ended here), with the same values, messages and modelled times.

    Random numbers of each rank begin where the caller's stream is, and nobody outside sees their draws.  Raises
    RankFailed from the exception of the first rank that raised; CollectiveMismatch, Deadlock, UnreceivedMessage;
    RankTimeout; on Dask also WorkerLost, RanksAbsent, and TypeError for what cannot be sent.  Whatever happens, no rank
    is left running."""
    if executor not in EXECUTORS:
        raise ValueError(f"spawn: executor {executor!r} is none of {', '.join(EXECUTORS)}")
    if device not in DEVICES:
        raise ValueError(f"spawn: device {device!r} is none of {', '.join(DEVICES)}")
    if cluster is not None:
        of_kind("spawn", "cluster (simulator.cluster gives one by name)", cluster, Cluster)
    if timeout is not None and not timeout > 0:
        raise ValueError(f"spawn: timeout is more than 0 seconds, or None, got {timeout!r}")
    function("spawn", "program", program)
    if isgeneratorfunction(program) or iscoroutinefunction(program):
        raise TypeError(f"spawn: {program.__name__} yields or awaits, and a rank's program is plain blocking Python: "
                        "nobody would go on with it")
    machine = _machine(world_size, cluster)
    if executor == "dask":
        if memory:
            raise ValueError('spawn: memory=True tells apart the arrays of ranks in one process, so it needs '
                             'executor="local"; device="sim" counts on both')
        from simulator.executors import dask
        ended = dask.run(program, machine, args, kwargs, timeout=timeout, check=check, device=device, timed=timed,
                         client=client)
        return _result(ended, check, machine, ended.peaks, [])
    if client is not None:
        raise ValueError(f'spawn: client is for executor="dask", got it with {executor!r}')
    size = machine.world_size
    world = World(size, machine)
    if memory and device == "sim":
        raise ValueError('spawn: memory=True counts arrays of the host; device="sim" has an account of its own')
    with _devices(machine if device == "sim" else None) as sims, _holdings(world, machine, sims, memory):
        programs = [partial(_program, program, world, rank, device, timed, args, kwargs) for rank in range(size)]
        world.run(programs, timeout, check)
    account = world.holdings
    return _result(world, check, machine, *((account.peak, account.samples) if account else ([], [])))


def _result(world: Any, check: bool, machine: Cluster, peaks: list[int], samples: list) -> Result:
    """Of a run that has ended; raises its error, where it has one that is to be raised."""
    error = world.error
    if isinstance(error, CommunicationError) and not check:
        for rank in range(world.size):
            if world.returned.get(rank) == "was stopped":
                world.failures.setdefault(rank, error)
    if error is not None and (check or error not in world.failures.values()):
        raise _told(world)
    return Result(world.values, dict(sorted(world.failures.items())), world.nbytes, peaks, machine, world.clocks,
                  samples, getattr(world, "posted", {}))


def _program(program: Callable[..., Any], world: World, rank: int, device: str, timed: bool, args: tuple,
             kwargs: dict[str, Any]) -> Any:
    comm = Communicator(rank, world, world.groups[0], f"sim:{rank}" if device == "sim" else "cpu")
    with observe(Charge(comm)) if timed else nullcontext():
        value = program(comm, *args, **kwargs)
    if world.holdings is not None:
        world.holdings.check(rank)                           # also what it holds after its last call
    return value


def _machine(world_size: int | None, cluster: Cluster | None) -> Cluster:
    if world_size is None:
        if cluster is None:
            raise TypeError("spawn: give world_size, or a cluster, which has as many ranks as devices")
        return cluster
    if isinstance(world_size, bool) or index(world_size) < 1:
        raise ValueError(f"spawn: world_size is a number of ranks from 1, got {world_size!r}")
    if cluster is not None and cluster.world_size != world_size:
        raise ValueError(f"spawn: world_size={world_size}, and the cluster has {cluster.world_size} devices. One rank "
                         f"runs on each: leave world_size out, or make the cluster smaller")
    return cluster or uniform(world_size)


@contextmanager
def _devices(cluster: Cluster | None):
    """The simulated devices of the ranks, with the limits of the cluster meanwhile."""
    sims = [sim_device(rank) for rank in range(cluster.world_size)] if cluster else []
    before = [(sim.limit, sim.peak) for sim in sims]
    try:
        for sim, spec in zip(sims, cluster.devices if cluster else ()):
            sim.limit = int(spec.memory_bytes)
            sim.reset_peak()
        yield sims
    finally:
        for sim, (limit, peak) in zip(sims, before):
            sim.limit, sim.peak = limit, max(sim.peak, peak)


@contextmanager
def _holdings(world: World, cluster: Cluster, sims: list[Any], wanted: bool) -> Iterator[None]:
    """Count what each rank holds meanwhile, on its simulated device or in arrays of the host."""
    lanes = [world.clocks.lane(rank) for rank in range(cluster.world_size)]

    def place(rank: int) -> int:
        return len(lanes[rank].actions)
    with watched(capacity=16) if wanted else nullcontext() as watch:
        if watch is not None:
            world.holdings = Holdings(watch, [spec.memory_bytes for spec in cluster.devices], place)
        accounts = world.holdings = SimAccounts(sims, place) if sims else world.holdings
        try:
            yield
        finally:
            if isinstance(accounts, SimAccounts):
                accounts.close()


def _told(world: Any) -> BaseException:
    """The error of the whole run; one of a rank's own program as RankFailed."""
    error = world.error
    rank = next((r for r, e in world.failures.items() if e is error), None)
    if isinstance(error, CommunicationError) or rank is None or error is None:
        return error or RuntimeError("spawn: ended without a reason")
    others = world.size - 1
    told = RankFailed(f"rank {rank} of {world.size} raised {type(error).__name__}: {error}{raised_at(error)}"
                      + f"; the other {others} were stopped" * (others > 0), rank, dict(world.failures))
    told.__cause__ = error
    return told


__all__ = ["Result", "spawn"]
