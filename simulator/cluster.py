"""A machine: devices and the topology that joins them, as one value.

    c = cluster("2 x 8 x A100")                # two nodes of eight, as published tables have them
    c.with_(device={3: c.devices[3].with_(efficiency=0.4)})    # one of them is slow

After `plateaus.py`, before `network.py`; `viz/topology.py` draws it.
"""
from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import groupby

from minigrad.arguments import of_kind
from simulator.device import DeviceSpec, device as device_named, names
from simulator.plateaus import fitted_wire
from simulator.published import table
from simulator.shapes import cube_mesh, fully_connected, nodes, switch
from simulator.topology import PACKAGE, Link, Topology, counted, link, reached, runs
from simulator.units import GB


@dataclass(frozen=True)
class Cluster:
    """Device k of the topology is `devices[k]`; they need not be equal."""

    devices: tuple[DeviceSpec, ...]
    topology: Topology

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", tuple(self.devices))
        of_kind("Cluster", "topology", self.topology, Topology)
        for k, spec in enumerate(self.devices):
            of_kind("Cluster", f"device {k} (simulator.device_named gives one by name)", spec, DeviceSpec)
        if len(self.devices) != self.topology.world_size:
            raise ValueError(f"Cluster: {len(self.devices)} devices for {self.topology.name}, which has places for "
                             f"{self.topology.world_size}")

    @property
    def world_size(self) -> int:
        return len(self.devices)

    def with_(self, *, topology: Topology | None = None, devices: tuple[DeviceSpec, ...] | None = None,
              device: DeviceSpec | Mapping[int, DeviceSpec] | None = None) -> Cluster:
        """The same with another topology, with other devices, or with `device` in all places or in some of them."""
        chosen = list(self.devices if devices is None else devices)
        if isinstance(device, DeviceSpec):
            chosen = [device] * (topology or self.topology).world_size
        for rank, spec in device.items() if isinstance(device, Mapping) else ():
            self.topology.check_rank(rank, "with_: device")
            chosen[rank] = spec
        return replace(self, topology=topology or self.topology, devices=tuple(chosen))

    def __str__(self) -> str:
        rows = [counted(self.world_size, "device")]
        ranked = enumerate(self.devices)
        for spec, group in groupby(ranked, key=lambda pair: pair[1]):
            rows.append(f"  {runs([rank for rank, _ in group])}: {spec}")
        return "\n".join([*rows, *str(self.topology).split("\n")])

    def __repr__(self) -> str:
        return f"<Cluster of {self.world_size}: {', '.join(dict.fromkeys(d.name for d in self.devices))}; " \
               f"{self.topology.name}>"

    def _repr_html_(self) -> str:
        """In a notebook: the picture."""
        return import_module(f"{PACKAGE}.viz.topology").html(self)


def uniform(world_size: int, device: DeviceSpec | str = "A100", topology: Topology | None = None) -> Cluster:
    """So many equal devices; without a topology each pair has a wire of its own, with the rate of the device's
    links."""
    spec = device_named(device) if isinstance(device, str) else device
    return Cluster((spec,) * world_size, topology or fully_connected(world_size, link_of(spec.name)))


# ---- presets -------------------------------------------------------------------------------------
NODE = {"GB200": 72}                                          # devices under one switch, where they are not 8
BETWEEN = {"NVLink2": "InfiniBand HDR", "NVLink3": "InfiniBand HDR", "NVLink4": "InfiniBand NDR",
           "NVLink5": "InfiniBand NDR"}                       # the usual network card of each generation
_PATTERN = re.compile(r"(?:(\d+) *x *)?(\d+) *x *(\S.*?)\s*$")


def cluster(name: str) -> Cluster:
    """`"8 x A100"`, `"4 x 8 x H100"` (nodes of 8, a network card a device) or `"DGX-1"` (8 V100 in a cube mesh).

    Devices and links are those of the published tables.  In a node all devices are at one switch, but for V100, of
    which up to 8 are a part of a DGX-1, and MI300X, whose every pair has a wire.  More than 8 devices are nodes of 8,
    but for GB200, of which 72 are at one switch."""
    if of_kind("cluster", "name", name, str).strip() == "DGX-1":
        return _dgx1(8)
    match = _PATTERN.match(name)
    if match is None:
        raise ValueError(f"cluster {name!r}: write it like '8 x A100', '4 x 8 x H100' or 'DGX-1'")
    spec = device_named(match[3])
    most = NODE.get(spec.name, 8)
    count, inside = int(match[1] or 1), int(match[2])
    if not count or not inside:
        raise ValueError(f"cluster {name!r}: at least one node and one device")
    if match[1] is None and inside > most:
        if inside % most:
            raise ValueError(f"cluster {name!r}: more than {most} {spec.name} are nodes of {most}, and {inside} is not "
                             f"a multiple of it. Say how they are built: 'nodes x devices x {spec.name}'")
        count, inside = inside // most, most
    wire = link_of(spec.name)
    between = link(BETWEEN.get(wire.name.split()[0], "InfiniBand NDR"))
    if wire.name.startswith("NVLink2") and inside <= 8:
        node = _dgx1(inside).topology
    elif wire.name == "XGMI":                                 # seven wires a device, one to each of the others
        node = fully_connected(inside, wire.with_(name="XGMI, one of seven", bytes_per_s=wire.bytes_per_s / 7))
    else:
        node = switch(inside, wire)
    return Cluster((spec,) * (count * inside), nodes(count, node, between))


def _dgx1(n: int) -> Cluster:
    return Cluster((device_named("V100"),) * n, cube_mesh(nvlink2(), n))


def nvlink2() -> Link:
    """One NVLink of a V100, in one direction: its rate is fitted to published all-reduces (`plateaus.py`)."""
    return link("NVLink2").with_(name="NVLink2, one of six", bytes_per_s=fitted_wire(table("v100_cubemesh_allreduce")),
                                 source="v100_cubemesh_allreduce: the row of 2 ranks; latency: NCCL's, Simple")


def link_of(device_name: str) -> Link:
    """The links of a published device, all together; ValueError for those without a known rate."""
    rows = [row for row in table("device_specs") if row["device"] == device_name]
    if not rows:
        raise ValueError(f"link_of: no published device {device_name!r}, so give a topology; there are "
                         f"{', '.join(names())}")
    row = rows[0]
    kind, rate = row["link"].split()[0], row["link_unidir_GBps_per_device"]
    published = [r["link"] for r in table("link_specs") if r["link"].startswith(kind)]
    if published:
        return link(published[0])
    if not rate:
        raise ValueError(f"link_of: no rate is published for {row['link']} of {device_name}. Give a topology: "
                         "Cluster(devices, torus((4, 4), Link(name, bytes_per_s, alpha_s)))")
    part, of = reached(kind)
    return Link(kind, rate * GB * part, link("NVLink4").alpha_s,
                f"device_specs: nominal {rate:g} GB/s times {part:.3g}, the median reached on {of}; latency: as NVLink")


__all__ = ["Cluster", "cluster", "link_of", "nvlink2", "uniform"]
