"""Where bytes wait that leave the memory of a device: on the host, or on disk.  Before `offload.py`, which says when.

A file holds raw bytes and nothing else: what they mean, and their checksum, is in memory, so nothing that a file says
is ever trusted or run.  It is written under another name and renamed when it is whole.
"""
from __future__ import annotations

import errno
import os
import shutil
import threading
import weakref
import zlib
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from minigrad.device import CPU, Device, backend_of, device_of
from minigrad.errors import OffloadError


class HostStore:
    """Copies of device buffers in the host's memory."""

    lasts = True                                             # beyond `close`

    def put(self, flat: Any) -> np.ndarray:
        return backend_of(device_of(flat)).get(flat)

    def get(self, key: np.ndarray, where: Device) -> Any:
        return backend_of(where).put(where.index, key)

    def drop(self, key: np.ndarray) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class File:
    """One buffer on disk."""

    path: Path
    nbytes: int
    checksum: int


class DiskStore:
    """Files in a folder of its own within `folder` (default: where the system keeps temporary files), gone with
    `close`, or when the process ends.  `limit`: bytes at most, beyond which the disk counts as full."""

    lasts = False

    def __init__(self, folder: str | os.PathLike | None, limit: int | None) -> None:
        self.folder = Path(mkdtemp(prefix="minigrad-offload-", dir=folder))
        self.limit, self.used, self.count = limit, 0, 0
        self._lock = threading.RLock()                       # a file may be dropped by the collector, anywhere
        self._remove = weakref.finalize(self, shutil.rmtree, self.folder, True)

    def put(self, flat: Any) -> File:
        """Write a buffer; OSError if it cannot be, and then there is no file."""
        where = device_of(flat)
        host = np.asarray(flat) if where is CPU else backend_of(where).get(flat)
        with self._lock:
            if self.limit is not None and self.used + host.nbytes > self.limit:
                raise OSError(errno.ENOSPC, f"{host.nbytes:,} bytes wanted, {self.used:,} of the limit of "
                                            f"{self.limit:,} in use", str(self.folder))
            self.used, self.count = self.used + host.nbytes, self.count + 1
            path = self.folder / f"{self.count}.bytes"
        part = path.with_suffix(".part")
        try:
            _write(part, memoryview(host).cast("B"))
            os.replace(part, path)
        except BaseException:
            with self._lock:
                self.used -= host.nbytes
            part.unlink(missing_ok=True)
            raise
        return File(path, host.nbytes, zlib.crc32(host))

    def get(self, key: File, where: Device) -> Any:
        host = np.empty(key.nbytes, np.uint8)
        try:
            with open(key.path, "rb", buffering=0) as f:
                found = _read(f, memoryview(host))
        except OSError as e:
            raise OffloadError(f"offload: a saved array of {key.nbytes:,} bytes cannot be read back from {key.path}: "
                               f"{e}. Without it there is no gradient: run the forward again") from e
        if found != key.nbytes or zlib.crc32(host) != key.checksum:
            raise OffloadError(f"offload: {key.path} was changed by somebody: it is not the {key.nbytes:,} bytes with "
                               "the checksum that was written. Run the forward again")
        return host if where is CPU else backend_of(where).put(where.index, host)

    def drop(self, key: File) -> None:
        with self._lock:
            self.used -= key.nbytes
        try:
            key.path.unlink(missing_ok=True)
        except OSError:                                      # of a system that holds it open: it goes with the folder
            pass

    def close(self) -> None:
        self._remove()


def _write(path: Path, data: memoryview) -> None:
    with open(path, "wb", buffering=0) as f:
        while data:
            data = data[f.write(data):]


def _read(f: Any, into: memoryview) -> int:
    """Bytes that were read: fewer than asked for where the file ends, one more where it does not end there."""
    total = 0
    while total < len(into):
        n = f.readinto(into[total:])
        if not n:
            return total
        total += n
    return total + len(f.read(1))


__all__ = ["DiskStore", "File", "HostStore"]
