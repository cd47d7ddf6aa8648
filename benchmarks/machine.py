"""What the operating system tells of this process and its neighbours; None where it tells nothing.

Used by child.py. Linux tells all of it, macOS the memory and the page faults, Windows nothing.
"""

import os
import sys
from pathlib import Path


def busy_cpu_s() -> float | None:
    """CPU seconds that all processes of this machine have used since it started."""
    try:
        fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
        user, nice, system, _idle, _iowait, irq, softirq, stolen = map(int, fields[1:9])
        return (user + nice + system + irq + softirq + stolen) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None


def peak_rss_bytes() -> int | None:
    """Most memory that this process has held at once.

    Linux's VmHWM, not its `ru_maxrss`: a process inherits that from the one that started it.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return _mac_peak_rss_bytes()


def _mac_peak_rss_bytes():
    if sys.platform != "darwin":
        return None
    import resource  # POSIX only

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def page_faults() -> int | None:
    """Pages that this process was given since it started, without reading a disk."""
    try:
        import resource  # POSIX only
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def pin(cores: str) -> None:
    """Hold this process to the cores named by `0` or `0+1`."""
    if not hasattr(os, "sched_setaffinity"):
        raise RuntimeError(f"PIN={cores}: cannot pin a process to a core here; leave PIN out")
    os.sched_setaffinity(0, {int(core) for core in cores.split("+")})
