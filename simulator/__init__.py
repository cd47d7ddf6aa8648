"""Simulated devices: machines as data, communication between them, and clocks.  The files, in reading order: README.md
in this folder."""
from simulator.cluster import Cluster, cluster, uniform
from simulator.communicator import Communicator, Handle
from simulator.cost import step_cost
from simulator.device import DeviceSpec, device
from simulator.errors import (
    CollectiveMismatch,
    CommunicationError,
    Deadlock,
    RankFailed,
    RankTimeout,
    UnreceivedMessage,
)
from simulator.network import Network, Transfer
from simulator.plateaus import all_reduce_plateau
from simulator.spawn import Result, spawn
from simulator.topology import Link, Topology, link
