"""Simulated devices: machines as data, communication between them, and clocks.  The files, in reading order: README.md
in this folder."""
from importlib import import_module

from simulator.cluster import Cluster, cluster, uniform
from simulator.communicator import Communicator, Handle
from simulator.cost import step_cost
from simulator.device import DeviceSpec, device
from simulator.errors import (
    CollectiveMismatch,
    CommunicationError,
    Deadlock,
    RankFailed,
    RanksAbsent,
    RankTimeout,
    UnreceivedMessage,
    WorkerLost,
)
from simulator.mesh import Mesh
from simulator.network import Network, Transfer
from simulator.plateaus import all_reduce_plateau
from simulator.spawn import Result, spawn
from simulator.topology import Link, Topology, link


def __getattr__(name: str):
    """`simulator.strategies`, loaded when first asked for."""
    if name != "strategies":
        raise AttributeError(f"module 'simulator' has no attribute {name!r}")
    return import_module("simulator.strategies")
