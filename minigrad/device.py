"""Devices: where arrays live.  `cpu` (NumPy), `sim:k` (the strict simulated device), `cuda:k` (CuPy) and `meta` (shapes
only).

After `aval.py` and `sim.py`, before `algebra.py`.  A back end says how its arrays are made, read and told apart;
another
one (an FPGA, a TPU) registers itself with `register_backend` and the engine needs no change.  The one owner of cupy.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from minigrad.aval import Aval
from minigrad.sim import SimArray, sim_device


@dataclass(frozen=True, slots=True)
class Device:
    """A place for arrays, as `torch.device`: `type` is "cpu", "sim", "cuda" or "meta"; `index` counts from 0 or is
    None."""

    type: str
    index: int | None = None

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __repr__(self) -> str:
        return f"device('{self}')"


@dataclass(frozen=True, slots=True)
class Backend:
    """What the engine asks of a kind of device.  `xp` is the module whose functions run on its arrays."""

    xp: Callable[[], ModuleType]
    put: Callable[[int | None, np.ndarray], object]           # host array -> new device array
    get: Callable[[Any], np.ndarray]                       # device array -> host array
    empty: Callable[[int | None, tuple, np.dtype], object]
    # the owner of an array's memory, one object for all its views
    storage: Callable[[Any], object]
    name_of: Callable[[Any], str | None]                   # "cuda:0" for an array of this kind, None for any other
    available: Callable[[], bool] = lambda: True
    indexed: bool = True


def _owner(array: np.ndarray) -> np.ndarray:
    while array.base.__class__ is np.ndarray:
        array = array.base
    return array


def _cupy() -> ModuleType:
    try:
        import cupy
    except ImportError as e:
        raise RuntimeError("device 'cuda' needs CuPy: pip install 'minigrad[gpu-cuda12x]' (or gpu-cuda13x)") from e
    return cupy


def _cuda_available() -> bool:
    try:
        import cupy
    except ImportError:
        return False
    return bool(cupy.is_available())


def _cuda_put(index: int | None, host: np.ndarray):
    cupy = _cupy()
    if not cupy.is_available():
        raise RuntimeError(
            "device 'cuda': no usable NVIDIA GPU or driver; run `python run.py doctor`, or use 'cpu' or 'sim:0'"
        )
    with cupy.cuda.Device(index or 0):
        return cupy.asarray(host)


def _cuda_empty(index: int | None, shape: tuple, dtype: np.dtype):
    cupy = _cupy()
    with cupy.cuda.Device(index or 0):
        return cupy.empty(shape, dtype)


def _cuda_storage(array) -> object:
    while array.base is not None:
        array = array.base
    return array


def _meta_get(array) -> np.ndarray:
    raise RuntimeError(f"a meta tensor has no values (shape {array.shape}, {array.dtype}): make it on 'cpu' to compute")


BACKENDS: dict[str, Backend] = {
    "cpu": Backend(
        lambda: np,
        lambda _, host: host.copy(order="K"),
        lambda a: a,
        lambda _, s, d: np.empty(s, d),
        _owner,
        lambda a: "cpu" if isinstance(a, np.ndarray) else None,
        indexed=False,
    ),
    "sim": Backend(
        lambda: np,
        lambda k, host: sim_device(k).asarray(host),
        lambda a: a.get(),
        lambda k, s, d: sim_device(k).empty(s, d),
        lambda a: a.storage,
        lambda a: a.device.name if a.__class__ is SimArray else None,
    ),
    "cuda": Backend(
        _cupy,
        _cuda_put,
        lambda a: a.get(),
        _cuda_empty,
        _cuda_storage,
        lambda a: f"cuda:{a.device.id}" if type(a).__module__.startswith("cupy") else None,
        _cuda_available,
    ),
    "meta": Backend(
        lambda: np,
        lambda _, host: Aval(host.shape, host.dtype),
        _meta_get,
        lambda _, s, d: Aval(s, d),
        id,
        lambda a: "meta" if a.__class__ is Aval else None,
        indexed=False,
    ),
}


def register_backend(kind: str, backend: Backend) -> None:
    """Add a kind of device, for example "tpu"; its arrays must answer NumPy's operators and functions."""
    if kind in BACKENDS:
        raise ValueError(f"device kind {kind!r} exists already: {', '.join(BACKENDS)}")
    BACKENDS[kind] = backend


@lru_cache(None)
def _parse(text: str) -> Device:
    kind, _, index = text.partition(":")
    backend = BACKENDS.get(kind)
    wrong = index and not (index.isascii() and index.isdigit() and backend and (backend.indexed or index == "0"))
    if backend is None or wrong or text.endswith(":"):
        raise RuntimeError(
            f"device {text!r} is not known; use one of {', '.join(BACKENDS)} (with an index: 'sim:0', 'cuda:0')"
        )
    return Device(kind, int(index or 0) if backend.indexed else None)


CPU, META = _parse("cpu"), _parse("meta")


def device(spec: str | Device, index: int | None = None) -> Device:
    """The device of this name: "cpu", "cuda", "cuda:1", "sim:0" or "meta".  Raises RuntimeError for any other."""
    if spec.__class__ is Device:
        return spec
    if not isinstance(spec, str):
        raise TypeError(f"device: expected a name such as 'cpu' or 'sim:0', got {spec!r}")
    return _parse(spec if index is None else f"{spec}:{index}")


def device_of(array) -> Device:
    """The device that an array lives on; TypeError for what is no array of any registered kind."""
    if array.__class__ is np.ndarray:
        return CPU
    for backend in BACKENDS.values():
        name = backend.name_of(array)
        if name is not None:
            return _parse(name)
    raise TypeError(f"{type(array).__name__} is not an array of a known device ({', '.join(BACKENDS)})")


def backend_of(where: Device) -> Backend:
    return BACKENDS[where.type]


def cuda_is_available() -> bool:
    """Whether CuPy is installed and sees a GPU."""
    return _cuda_available()
