"""What this machine has of what the project needs, and what to do about the rest.

`report` is `python3 run.py doctor`; the `refuse_...` functions stop a command before it starts on
something that cannot work; `explain` turns pip's last words into a cause and a way out.
Standard library only, and it works without an environment.
"""

import errno
import importlib.util
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

import environment

NEED_GB = {"lab": 1.2, "test": 1.8}  # free disk: .venv has 0.8 and 1.2, and pip needs room
NEED_MODULES = {"venv": "venv", "ensurepip": "venv", "sqlite3": "sqlite3", "ssl": "ssl"}
# Driver -> the CUDA whose wheels it can run (NVIDIA's compatibility table).
DRIVERS = [(580, "13x"), (525, "12x")]
NO_SPACE = "free some, or move the project to a larger disk, then start again"
NO_NETWORK = (
    "check the connection (a proxy? set HTTPS_PROXY), then start again. Without a network: run "
    "`python3 run.py wheels DIR` on a like machine that has one, and add --wheels DIR here"
)
LOCKED = "close JupyterLab and all that runs from .venv (deactivate), delete .venv, start again"
CAUSES = [  # (words in pip's or venv's complaint, what they mean, what to do)
    ("No space left|Errno 28|WinError 112|quota exceeded", "the disk is full", NO_SPACE),
    ("Read-only file|Errno 30|Errno 13|Permission|WinError (5|32)", "no right to write", LOCKED),
    (
        "DO NOT MATCH THE HASHES|hashes are required",
        "a downloaded file is not the one in the lock",
        "start again; if it stays so, run `python3 run.py -m pip cache purge`, then ask who "
        "serves your package index",
    ),
    (
        "NewConnection|NameResolution|getaddrinfo|ConnectTimeout|Max retries|ProxyError|SSLError"
        "|Read timed out|unreachable|Could not fetch|ConnectionReset|IncompleteRead",
        "the package index cannot be reached",
        NO_NETWORK,
    ),
]


def stop(what: str, way_out: str) -> NoReturn:
    sys.exit(f"run.py: {what}.\n  What to do: {way_out}.")


def explain(said: str, wheels: str | None) -> tuple[str, str]:
    """(cause, way out) of a failed step, from what it said on stderr."""
    for words, cause, way_out in CAUSES:
        if re.search(words, said, re.IGNORECASE):
            return cause, way_out
    if wheels and "No matching distribution" in said:
        same = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
        return f"{wheels} lacks a package", f"fill it with: python3 run.py wheels DIR ({same})"
    if "No matching distribution" in said:
        return "the package index was not reached, or lacks a pinned package", NO_NETWORK
    return "a step of the set-up failed (its words are above)", "python3 run.py doctor"


def step(command: list[str], wheels: str | None = None) -> None:
    """Runs one step of the set-up in sight of the user; stops with the way out if it fails."""
    env = os.environ | {"PIP_USER": "0"}
    said = b""
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE) as process:
        for line in process.stderr or ():
            said += line
            sys.stderr.write(line.decode(errors="replace").encode("ascii", "replace").decode())
            sys.stderr.flush()
    if process.returncode:
        stop(*explain(said.decode(errors="replace"), wheels))


def refuse_machine(root: Path, kind: str) -> None:
    """Stops where a set-up cannot succeed: parts of Python missing, read-only folder, full disk."""
    for problem in (missing_modules(), read_only(root), too_full(root, kind)):
        if problem:
            stop(*problem)


def missing_modules() -> tuple[str, str] | None:
    lost = [name for name in NEED_MODULES if importlib.util.find_spec(name) is None]
    if not lost:
        return None
    python = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    debian = f"on Debian and Ubuntu: sudo apt install {python}-venv; elsewhere a full Python"
    return f"this Python lacks its module {lost[0]}", f"{debian} (python.org)"


def read_only(root: Path) -> tuple[str, str] | None:
    try:
        with tempfile.TemporaryFile(dir=root):
            return None
    except OSError as error:
        if error.errno == errno.ENOSPC:
            return "the disk is full", NO_SPACE
        what = f"cannot write into {ascii(str(root))} ({error.strerror})"
        return what, "copy the project to a folder of your own and start it there"


def too_full(root: Path, kind: str) -> tuple[str, str] | None:
    free_GB = shutil.disk_usage(root).free / 1e9
    if free_GB >= NEED_GB[kind]:
        return None
    need = f"the {kind} environment needs {NEED_GB[kind]:.1f} GB"
    return f"{need} and the disk has {free_GB:.1f} GB left", NO_SPACE


def refuse_port(arguments: list[str]) -> None:
    """Stops when the port asked for with --port is taken (without it JupyterLab looks for one)."""
    text = " ".join(arguments)
    port = re.search(r"--(?:ServerApp\.)?port[= ](\d+)", text)
    host = re.search(r"--(?:ServerApp\.)?ip[= ](\S+)", text)
    if not port:
        return
    address = (host[1] if host else "127.0.0.1", int(port[1]))
    way_out = f"stop what uses it, or take another: python3 run.py lab --port {address[1] + 1}"
    try:
        with socket.socket() as probe:
            if os.name != "nt":  # there it would take a busy port
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OverflowError:
        stop(f"lab: there is no port {address[1]}", "choose one from 1024 to 65535")
    except socket.gaierror:
        return  # a name that only JupyterLab understands, such as '*'
    except OSError as error:
        stop(f"lab: port {address[1]} cannot be used ({error.strerror})", way_out)


# --- report ----------------------------------------------------------------------------------


def report() -> int:
    """Prints one line per finding; 1 when something required is missing."""
    findings = [*required(), *environments(), *optional(), *gpu()]
    for state, name, found, way_out in findings:
        print(f"{state:8}{name:13}{found}")
        if way_out:
            print(f"{'':21}-> {way_out}")
    missing = [name for state, name, _, _ in findings if state == "MISSING"]
    print(f"\ndoctor: missing and required: {', '.join(missing)}" if missing else "\ndoctor: ok")
    return 1 if missing else 0


Finding = tuple[str, str, str, str]  # state (ok, note, MISSING), name, what was found, what to do


def finding(name: str, found: str, problem: tuple[str, str] | None) -> Finding:
    return ("MISSING", name, *problem) if problem else ("ok", name, found, "")


def required() -> list[Finding]:
    root, done = environment.ROOT, environment.finished("lab")
    bits = platform.architecture()[0]
    python = f"{platform.python_version()} {platform.python_implementation()} {bits}"
    wrong = ("wheels exist for 64-bit CPython only: " + python, "install it from python.org")
    fits = bits == "64bit" and platform.python_implementation() == "CPython"
    free = f"{shutil.disk_usage(root).free / 1e9:.1f} GB free"
    return [
        finding("python", f"{python} at {sys.executable}", None if fits else wrong),
        finding("venv, pip", "venv ensurepip sqlite3 ssl", missing_modules()),
        finding("folder", f"{root} can be written", read_only(root)),
        finding("disk", free, None if done else too_full(root, "lab")),
        ("ok", "system", f"{platform.platform()}, {os.cpu_count()} CPUs", ""),
    ]


def environments() -> list[Finding]:
    lines = conda()
    for kind in ("lab", "test"):
        if environment.finished(kind):
            lines.append(("ok", f".venv {kind}", f"agrees with requirements/{kind}.txt", ""))
        else:
            lines.append(("note", f".venv {kind}", "not there", f"python3 run.py {kind} makes it"))
    return [*lines, blas()] if environment.finished("lab") else lines


def conda() -> list[Finding]:
    lacks = environment.conda_lacks("lab")
    if lacks is None:
        return []
    name = os.environ.get("CONDA_DEFAULT_ENV", "?")
    if not lacks:
        return [("ok", "conda", f"environment {name} is used in place of .venv", "")]
    way_out = "conda env create -f environment.yml, then activate it (or leave it: .venv serves)"
    return [("note", "conda", f"{name} is not used: it lacks {' '.join(lacks)}", way_out)]


def blas() -> Finding:
    """Which BLAS NumPy calls, and with how many threads."""
    ask = (
        "import json, numpy, threadpoolctl as t;"
        "print(json.dumps([(x.get('internal_api'), x.get('architecture'), x.get('num_threads'))"
        " for x in t.threadpool_info()] + [numpy.__version__]))"
    )
    done = run_quietly([str(environment.PYTHON), "-c", ask])
    if not done:
        return "note", "numpy", "cannot be imported", "delete .venv and start again"
    *pools, version = json.loads(done)
    text = ", ".join(f"{api} ({kernel}, {threads} threads)" for api, kernel, threads in pools)
    return "ok", "numpy", f"{version}, {text or 'no BLAS that threadpoolctl knows'}", ""


def optional() -> list[Finding]:
    tools = [
        (["dot"], "draws graphs; without it a small layout in Python does", "graphviz"),
        (BROWSERS, "drives the browser tests; JupyterLab opens in any", "chromium"),
    ]
    if sys.platform.startswith("linux"):
        tools.append((["bwrap"], "boxes students' code in while grading", "bubblewrap"))
    lines: list[Finding] = []
    for names, use, package in tools:
        found = next(filter(None, map(shutil.which, names)), None)
        if found:
            lines.append(("ok", names[0], found, ""))
        else:
            way_out = f"optional: install your system's package {package}"
            lines.append(("note", names[0], f"not found: it {use}", way_out))
    return lines


BROWSERS = ["chromium", "chromium-browser", "google-chrome", "chrome", "msedge", "microsoft-edge"]


def gpu() -> list[Finding]:
    """The NVIDIA driver, and whether the cupy that is installed fits it."""
    ask = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    cards = [line.split(", ") for line in run_quietly(ask).splitlines() if ", " in line]
    if not cards:
        return [("ok", "gpu", "no NVIDIA driver: everything runs on the CPU", "")]
    name, driver = cards[0][0], cards[0][1]
    fits = next((cuda for least, cuda in DRIVERS if int(driver.split(".")[0]) >= least), None)
    seen = f"{len(cards)} x {name}, driver {driver}"
    if not fits:
        return [("note", "gpu", f"{seen} is too old for CuPy 14", "update the NVIDIA driver")]
    lock = f"requirements/gpu-cuda{fits}.txt"
    way_out = f"python3 run.py -m pip install --require-hashes -r {lock}"
    ask = ["-m", "pip", "list", "--format=freeze", "--disable-pip-version-check"]
    there = re.findall(r"^cupy-cuda(\d+x)==", run_quietly([str(environment.PYTHON), *ask]), re.M)
    if not there:
        return [("note", "gpu", f"{seen}; cupy is not installed", way_out)]
    if len(there) > 1 or there[0] == "13x" != fits:
        way_out = f"uninstall {' and '.join('cupy-cuda' + cuda for cuda in there)}, then {way_out}"
        return [("note", "gpu", f"{seen} does not fit cupy-cuda{'/'.join(there)}", way_out)]
    return [("ok", "gpu", f"{seen}, cupy-cuda{there[0]}", "")]


def run_quietly(command: list[str]) -> str:
    """The output of a command; empty when it is not there, fails or hangs."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, encoding="utf-8", errors="replace", timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
