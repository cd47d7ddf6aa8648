"""Files fetched once, checked, and kept in a cache folder.  After `transforms.py`.

A file counts only with the right SHA-256: it is written under another name, checked, and only then renamed; a cached
one is checked each time.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

CHUNK = 1 << 16
QUIET_S, WHOLE_S = 15.0, 600.0  # a server may be silent, and a file may take, so long


class DownloadError(OSError, RuntimeError):
    """A file that no address gave whole and unchanged."""


@dataclass(frozen=True)
class Source:
    """A file's name, where to get it, and what it must be."""

    name: str
    urls: tuple[str, ...]
    nbytes: int
    sha256: str


def cache_folder() -> Path:
    """Where this system keeps what programs may fetch again."""
    home = Path.home()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "minigrad" / "cache"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "minigrad"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "minigrad"


def fetch(
    source: Source, root: str | os.PathLike | None = None, quiet_s: float = QUIET_S, whole_s: float = WHOLE_S
) -> Path:
    """The path of the checked file in `root` (None: the cache folder), fetched if it is not there or is broken.

    DownloadError names every address and what went wrong there; then nothing is left behind."""
    from http.client import HTTPException  # half of the time that importing this package would take

    folder = cache_folder() if root is None else Path(root)
    path = folder / source.name
    try:
        was_broken = path.exists() and not is_whole(path, source)
        if path.exists() and not was_broken:
            return path
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise DownloadError(f"{source.name}: the cache folder {folder} cannot be used ({e}). Pass another root=") from e
    until, troubles = time.monotonic() + whole_s, []
    for url in source.urls:
        try:
            _fetch_one(url, path, source, quiet_s, until)
            return path
        except (OSError, HTTPException, ValueError) as e:
            troubles.append(f"{url}: {e or type(e).__name__}")
    broken = f" (the file at {path} is there but is not the right one; delete it)" if was_broken else ""
    raise DownloadError(f"{source.name} could not be fetched{broken}: " + "; ".join(troubles or ["no address"]))


def is_whole(path: Path, source: Source) -> bool:
    """Whether a file has the size and the SHA-256 of its source."""
    if path.stat().st_size != source.nbytes:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == source.sha256


def _fetch_one(url: str, path: Path, source: Source, quiet_s: float, until: float) -> None:
    """One address into the place, by way of another name in the same folder."""
    import tempfile
    import urllib.request

    if not url.startswith(("https://", "http://")):
        raise ValueError("not a web address")
    request = urllib.request.Request(url, headers={"User-Agent": "minigrad"})
    number, draft = tempfile.mkstemp(prefix=source.name + ".", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(number, "wb") as file, urllib.request.urlopen(request, timeout=quiet_s) as response:
            _copy(response, file, source, until)
        if not is_whole(Path(draft), source):
            raise ValueError(f"what came has another SHA-256 than {source.sha256}")
        os.replace(draft, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(draft)


def _copy(response: BinaryIO, file: BinaryIO, source: Source, until: float) -> None:
    from tqdm import tqdm

    got = 0
    with tqdm(total=source.nbytes, desc=source.name, unit="B", unit_scale=True, leave=False, disable=None) as bar:
        while chunk := response.read1(CHUNK):
            got += len(chunk)
            if got > source.nbytes:
                raise ValueError(f"more than the {source.nbytes} bytes expected came")
            if time.monotonic() > until:
                raise TimeoutError(f"too slow: {got} of {source.nbytes} bytes came in time")
            file.write(chunk)
            bar.update(len(chunk))
    if got < source.nbytes:
        raise ValueError(f"it broke off after {got} of {source.nbytes} bytes")


def say_once(line: str) -> None:
    """One line to whoever looks on: what is used in a file's place."""
    print(line, file=sys.stderr)
