"""A device as numbers: how fast it computes, how fast it reads its memory, how much it holds.

The time of work is max(FLOPs / (peak · efficiency), bytes / bandwidth) + launch: the roofline (Williams et al. 2009)
with one efficiency a device, which is printed beside it.  After `units.py`, before `topology.py`.
"""
from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from math import isfinite
from statistics import median
from typing import Any

from minigrad.errors import SimOutOfMemory
from simulator.published import table
from simulator.units import GB, TFLOPs, show

LAUNCH_S = 5e-6                                               # a kernel's start; an assumption, in no table


class Rates(dict[str, float]):
    """FLOP/s by dtype, not to be changed."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a DeviceSpec is not changed: make another one with .with_(peak_flops={...})")

    __setitem__ = __delitem__ = __ior__ = update = pop = popitem = clear = setdefault = _refuse

    def __reduce__(self) -> tuple:
        return Rates, (dict(self),)


@dataclass(frozen=True)
class DeviceSpec:
    """A device.  `peak_flops`: FLOP/s by name of dtype; `efficiency`: the part of it that a good program reaches."""

    name: str
    peak_flops: dict[str, float] = field(hash=False)
    memory_bytes: float
    memory_bytes_per_s: float
    efficiency: float = 1.0
    launch_s: float = 0.0
    source: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "peak_flops", Rates({str(k): float(v) for k, v in self.peak_flops.items()}))
        if not self.peak_flops:
            raise ValueError(f"DeviceSpec {self.name!r}: peak_flops is empty; give FLOP/s by dtype, as "
                             "{'float32': 1e12}")
        more = {f"peak_flops[{k!r}]": v for k, v in self.peak_flops.items()}
        for what, value in {**more, "memory_bytes": self.memory_bytes, "efficiency": self.efficiency,
                            "memory_bytes_per_s": self.memory_bytes_per_s}.items():
            if not (isfinite(value) and value > 0):
                raise ValueError(f"DeviceSpec {self.name!r}: {what} must be finite and more than 0, got {value}")
        if self.efficiency > 1:
            raise ValueError(f"DeviceSpec {self.name!r}: efficiency is a part of the peak, at most 1, got "
                             f"{self.efficiency}")
        if not (isfinite(self.launch_s) and self.launch_s >= 0):
            raise ValueError(f"DeviceSpec {self.name!r}: launch_s must be finite and at least 0, got {self.launch_s}")

    def flops_per_s(self, dtype: object = "float32") -> float:
        """What a good program reaches in this dtype (a name, a NumPy or a minigrad dtype)."""
        name = getattr(dtype, "name", None) or str(dtype)
        if name not in self.peak_flops:
            raise ValueError(f"device {self.name}: no peak rate is known for {name}; known are "
                             f"{', '.join(self.peak_flops)}. Say it with .with_(peak_flops={{{name!r}: FLOP/s}})")
        return self.peak_flops[name] * self.efficiency

    def compute_s(self, flops: float, nbytes: float, dtype: object = "float32") -> float:
        """Seconds for work of so many FLOPs that reads and writes so many bytes."""
        if not (flops >= 0 and nbytes >= 0):
            raise ValueError(f"device {self.name}: flops and nbytes must be at least 0, got {flops} and {nbytes}")
        computing = flops / self.flops_per_s(dtype) if flops else 0.0
        return max(computing, nbytes / self.memory_bytes_per_s) + self.launch_s

    def check_fits(self, nbytes: float, in_use: float = 0, what: str = "a tensor") -> None:
        """Raise SimOutOfMemory unless `nbytes` more than `in_use` fit into the memory."""
        if in_use + nbytes > self.memory_bytes:
            raise SimOutOfMemory(
                f"{what} of {show(nbytes, 'B')} does not fit device {self.name}: {show(in_use, 'B')} of "
                f"{show(self.memory_bytes, 'B')} are in use, {show(max(self.memory_bytes - in_use, 0), 'B')} are free")

    def with_(self, **changes: Any) -> DeviceSpec:
        """The same with other fields; rates given here are added to those known."""
        if "peak_flops" in changes:
            changes["peak_flops"] = {**self.peak_flops, **changes["peak_flops"]}
        return replace(self, **changes)

    def __str__(self) -> str:
        rates = ", ".join(f"{name} {show(rate, 'FLOP/s')}" for name, rate in self.peak_flops.items())
        return (f"{self.name}: peak {rates}; efficiency {self.efficiency:.3g}; memory {show(self.memory_bytes, 'B')} "
                f"at {show(self.memory_bytes_per_s, 'B/s')}; launch {show(self.launch_s, 's')}")


# ---- presets -------------------------------------------------------------------------------------
_COLUMNS = {"float32": "fp32_TFLOPs", "tf32": "tf32_TFLOPs", "float16": "fp16_TFLOPs_dense",
            "bfloat16": "bf16_TFLOPs_dense", "float8": "fp8_TFLOPs_dense"}


def names() -> list[str]:
    """The devices of the published table."""
    return [row["device"] for row in table("device_specs")]


@cache
def device(name: str) -> DeviceSpec:
    """A device of the published table, by its name or a beginning that only one has: the first one if they differ in
    what follows ("A100" is the A100-80 SXM).

    Its efficiency is the best measured matrix product over the dense bfloat16 peak; where none was measured, the median
    of those that were."""
    row = _row(name)
    measured = row["measured_matmul_fraction"]
    rest = median(r["measured_matmul_fraction"] for r in table("device_specs") if r["measured_matmul_fraction"])
    said = "measured" if measured else "the median of the devices that were measured"
    return DeviceSpec(
        row["device"], {dtype: row[column] * TFLOPs for dtype, column in _COLUMNS.items() if row[column]},
        row["mem_GB"] * GB, row["mem_bw_GBps"] * GB, measured or rest, LAUNCH_S,
        f"{row['source']}; efficiency: {said}; launch: assumed")


PREFERRED = {"A100": "A100-80 SXM", "V100": "V100 SXM2", "TPU v3": "TPU v3 (chip)", "TPU v4": "TPU v4 (chip)"}


def _row(name: str) -> dict[str, Any]:
    wanted = PREFERRED.get(name, name)
    found = [row for row in table("device_specs") if row["device"] == wanted]
    found = found or [row for row in table("device_specs") if row["device"].startswith(wanted)]
    if not wanted or len({row["device"] for row in found}) != 1:
        many = " several:" if found else ""
        raise ValueError(f"device {name!r}:{many} {', '.join(r['device'] for r in found) or 'unknown'}; there are "
                         f"{', '.join(names())}")
    return found[0]


__all__ = ["LAUNCH_S", "DeviceSpec", "device", "names"]
