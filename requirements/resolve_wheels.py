"""Asks, for each system and Python, whether the whole lock installs from wheels alone.

`python requirements/resolve_wheels.py [LOCK ...]` resolves (and installs nothing) and prints one
line for each pair; it exits with 1 if one lacks a wheel. A dry run: no code runs on those systems.
Needs uv and the package index, so it is run by hand when a lock changes, and not in CI.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLATFORMS = [
    "x86_64-unknown-linux-gnu",
    "aarch64-unknown-linux-gnu",
    "x86_64-apple-darwin",
    "aarch64-apple-darwin",
    "x86_64-pc-windows-msvc",
]
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
LOCKS = ["requirements/lab.txt", "requirements/test.txt"]
# onnxruntime (in test.txt) has wheels for Apple silicon from macOS 14 on, the rest from 13 on.
MACOS = {"requirements/test.txt": "14.0"}


def missing(lock: str, platform: str, python: str) -> str:
    """Why `lock` does not install from wheels there; empty when it does."""
    command = ["uv", "pip", "install", "--dry-run", "--only-binary", ":all:", "-r", lock]
    command += ["--python-platform", platform, "--python-version", python]
    environment = {**os.environ, "MACOSX_DEPLOYMENT_TARGET": MACOS.get(lock, "13.0")}
    with tempfile.TemporaryDirectory() as target:
        done = subprocess.run(
            [*command, "--target", target],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            encoding="utf-8",
        )
    return done.stderr.strip() if done.returncode else ""


def main(locks: list[str]) -> int:
    if not shutil.which("uv"):
        sys.exit("resolve_wheels: uv is not on the PATH. Install it with: pip install uv")
    failures = 0
    for lock in locks or LOCKS:
        for platform in PLATFORMS:
            for python in PYTHONS:
                reason = missing(lock, platform, python)
                failures += bool(reason)
                print(f"{lock:32} {platform:27} {python}  {'NO: ' + reason if reason else 'ok'}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
