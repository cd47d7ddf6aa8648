"""What the system tells of its caches and memory, and how long something takes.  First of this folder."""
from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from minigrad.lanes import _blas

CPU0 = Path("/sys/devices/system/cpu/cpu0")
T = TypeVar("T")


@dataclass(frozen=True)
class Cache:
    """`line_nbytes` and `shared_by` (processors) are None where the system does not tell them."""

    level: int
    nbytes: int
    line_nbytes: int | None = None
    shared_by: int | None = None

    @property
    def name(self) -> str:
        return f"L{self.level}"


def caches(cpu: Path = CPU0) -> tuple[Cache, ...]:
    """The data caches of the first processor, nearest first; empty where the system does not tell."""
    found = []
    for folder in sorted(cpu.glob("cache/index*")):
        told = {each.name: _text(each) for each in folder.iterdir() if each.is_file()}
        if told.get("type") in ("Data", "Unified") and (nbytes := _nbytes(told.get("size", ""))):
            found.append(Cache(int(told.get("level") or 0), nbytes, _nbytes(told.get("coherency_line_size", "")),
                               _processors(told.get("shared_cpu_list", ""))))
    return tuple(sorted(found, key=lambda c: c.level)) or _of_macos()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _nbytes(text: str) -> int | None:
    """Bytes of '32K', '512K', '16M' or '64'."""
    unit = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:].upper(), 1)
    digits = text.rstrip("KMGkmg")
    return int(digits) * unit if digits.isdecimal() and int(digits) else None


def _processors(text: str) -> int | None:
    """How many '0-1,4' names."""
    try:
        ends = [[int(n) for n in part.split("-")] for part in text.split(",")]
    except ValueError:
        return None
    return sum(e[-1] - e[0] + 1 for e in ends)


def _of_macos() -> tuple[Cache, ...]:
    if sys.platform != "darwin":
        return ()
    sizes = [(1, "hw.perflevel0.l1dcachesize"), (2, "hw.perflevel0.l2cachesize"), (1, "hw.l1dcachesize"),
             (2, "hw.l2cachesize"), (3, "hw.l3cachesize")]
    line, found = _sysctl("hw.cachelinesize"), dict[int, Cache]()
    for level, name in sizes:
        if level not in found and (nbytes := _sysctl(name)):
            found[level] = Cache(level, nbytes, line)
    return tuple(found.values())


def _sysctl(name: str) -> int | None:
    try:
        done = subprocess.run(["sysctl", "-n", name], capture_output=True, encoding="utf-8", timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return _nbytes(done.stdout.strip())


def processor() -> str:
    """Its name, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


# ---- shown ------------------------------------------------------------------------------------
def bundle(measured: Any, include=None, exclude=None) -> dict[str, str]:
    """For a cell of a notebook: the table and the picture.  The view is reached by name, when it is shown."""
    picture = import_module(f"{__name__.partition('.')[0]}.viz.hierarchy")
    return {"text/plain": str(measured), "image/svg+xml": picture.svg(measured)}


# ---- time ---------------------------------------------------------------------------------------
def best_s(run: Callable[[], object], rounds: int = 3, least_s: float = 0.01) -> float:
    """Seconds of one `run()`: the best of some rounds, each long enough for the clock.

    The best, not the mean: whatever else runs on the machine only adds."""
    run()
    times, best = 1, float("inf")
    for _ in range(rounds):
        while True:
            start = time.perf_counter()
            for _ in range(times):
                run()
            took = time.perf_counter() - start
            if took >= least_s:
                break
            times = max(times + 1, int(times * min(10.0, 1.3 * least_s / max(took, 1e-9))))
        best = min(best, took / times)
    return best


def shown(steps: Iterable[T], what: str, progress: bool) -> Iterator[T]:
    """The steps, with a bar while they run."""
    from tqdm import tqdm  # only for whoever measures

    yield from tqdm(list(steps), desc=what, disable=not progress, leave=False)


# ---- threads of the matrix product ------------------------------------------------------------------
def blas_threads() -> int | None:
    """How many threads NumPy's matrix products use; None where threadpoolctl is missing."""
    blas: Any = _blas()
    return blas.get_num_threads() if blas else None


@contextmanager
def blas_limited(threads: int) -> Iterator[None]:
    """NumPy's matrix products with so many threads; then, also after an error, as before."""
    blas: Any = _blas()
    before = blas.get_num_threads() if blas else None
    if blas:
        blas.set_num_threads(threads)
    try:
        yield
    finally:
        if blas:
            blas.set_num_threads(before)


def processors() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def binary_size(nbytes: float) -> str:
    """'32 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1024
    raise AssertionError("no unit")


__all__ = ["Cache", "best_s", "bundle", "blas_limited", "blas_threads", "caches", "processor", "processors", "shown",
           "binary_size"]
