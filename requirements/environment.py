"""The environment that run.py starts things in: `.venv`, filled from a lock with hashes.

A stamp, written last, says which locks it holds; without the stamp it is made anew. An activated
conda environment made from environment.yml is used in its place. Standard library only.
"""

import contextlib
import hashlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import doctor

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "finished.txt"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
PYTHON = BIN / ("python.exe" if os.name == "nt" else "python")
SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}
}
# What an environment of each kind can import; a conda environment without it is not used.
LAB = "numpy safetensors tqdm jupyterlab ipywidgets anywidget graphviz dask sklearn".split()
TEST = "pytest xdist hypothesis nbval playwright ruff mypy yaml pre_commit onnx".split()
MODULES = {"lab": LAB, "test": LAB + TEST}


def lock(kind: str) -> Path:
    return ROOT / "requirements" / f"{kind}.txt"


def stamp(kind: str) -> str:
    """The line in the stamp of a finished environment: kind, hash of its lock, Python."""
    text = lock(kind).read_text(encoding="utf-8")  # line ends do not count
    major, minor = sys.version_info[:2]
    return f"{kind} {hashlib.sha256(text.encode()).hexdigest()} python {major}.{minor}"


def finished(kind: str) -> bool:
    """Whether .venv holds the lock of this kind as it is now, for this Python."""
    lines = STAMP.read_text(encoding="utf-8").splitlines() if STAMP.exists() else []
    return PYTHON.exists() and stamp(kind) in lines


def conda_lacks(kind: str) -> list[str] | None:
    """Modules missing from the activated conda environment; None when none is running this."""
    prefix = os.environ.get("CONDA_PREFIX")
    if not prefix or Path(prefix).resolve() != Path(sys.prefix).resolve():
        return None
    return [name for name in MODULES[kind] if importlib.util.find_spec(name) is None]


def set_up(kind: str, wheels: str | None = None) -> str:
    """The Python to run things with; makes .venv first when it is not there."""
    if conda_lacks(kind) == []:
        return sys.executable
    if not finished(kind):
        doctor.refuse_machine(ROOT, kind)
        with one_at_a_time():
            if not finished(kind):
                install(kind, wheels)
    return str(PYTHON)


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Waits while another run.py sets up. SQLite's lock is portable and ends with its process."""
    import sqlite3  # some Pythons are built without it: refuse_machine has said so by now

    guard = sqlite3.connect(ROOT / ".venv.lock", timeout=1, isolation_level=None)

    def taken_by_another() -> bool:
        try:
            guard.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:  # or a file system without locks: go on
            return "locked" in str(error)
        return False

    with contextlib.closing(guard):
        if taken_by_another():
            print("run.py: waiting for another run.py that is setting up", flush=True)
            while taken_by_another():
                pass
        yield


def install(kind: str, wheels: str | None) -> None:
    """Fills .venv from the lock: anew, or, for the tests, onto a finished lab environment."""
    kinds = ["lab", "test"] if kind == "test" else ["lab"]  # lab.txt is a part of test.txt
    keep = finished("lab")
    print(f"run.py: setting up .venv from requirements/{kind}.txt (minutes, once)", flush=True)
    STAMP.unlink(missing_ok=True)
    if not keep:
        make_venv()
    source = ["--no-index", "--find-links", wheels] if wheels else []
    doctor.step([*pip("install", kind), *source], wheels)
    reach_project()
    new = STAMP.with_suffix(".new")
    new.write_text("".join(f"{stamp(each)}\n" for each in kinds), encoding="utf-8")
    new.replace(STAMP)


def make_venv() -> None:
    """An empty .venv with pip, from the Python below, should this one be a .venv's own."""
    base = getattr(sys, "_base_executable", sys.executable)
    doctor.step([base, "-I", "-m", "venv", "--clear", str(VENV)])


def pip(action: str, kind: str) -> list[str]:
    command = [str(PYTHON), "-I", "-m", "pip", action, "--require-hashes", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "-r", str(lock(kind))]
    return command if sys.stdout.isatty() else [*command, "--quiet"]


def reach_project() -> None:
    """Puts the project on the path of .venv: nothing to build, and every edit counts at once."""
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    command = [str(PYTHON), "-I", "-c", ask]
    folder = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=True)
    packages = Path(folder.stdout.strip())
    line = os.path.relpath(ROOT, packages)  # relative, hence plain ASCII wherever the project is
    (packages / "minigrad.pth").write_text(line, encoding="utf-8")


def take_wheels(arguments: list[str]) -> tuple[str | None, list[str]]:
    """Takes `--wheels DIR` (or `--wheels=DIR`) out of what precedes `--`."""
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    head = [piece for word in arguments[:cut] for piece in split_wheels(word)]
    if "--wheels" not in head:
        return None, arguments
    at = head.index("--wheels")
    folder = head[at + 1] if at + 1 < len(head) else ""
    if not folder or not Path(folder).is_dir():
        doctor.stop(f"--wheels: no folder {folder!r}", "python3 run.py wheels DIR makes one")
    return str(Path(folder).resolve()), [*head[:at], *head[at + 2 :], *arguments[cut:]]


def split_wheels(word: str) -> list[str]:
    return word.split("=", 1) if word.startswith("--wheels=") else [word]


def download(arguments: list[str]) -> int:
    """Fills a folder with the wheels of a lock, for this system and this Python."""
    kind = arguments[1] if len(arguments) == 2 else "test"
    if len(arguments) not in (1, 2) or kind not in MODULES:
        doctor.stop(f"wheels: cannot read {arguments}", "python3 run.py wheels DIR [lab|test]")
    doctor.refuse_machine(ROOT, kind)
    with one_at_a_time():
        if not finished("lab"):
            STAMP.unlink(missing_ok=True)
            make_venv()
        doctor.step([*pip("download", kind), "-d", arguments[0]])
    print(f"run.py: done. Without a network: python3 run.py {kind} --wheels {arguments[0]}")
    return 0


def kind_of(module: str) -> str:
    """The smallest environment that has a module."""
    return "test" if module.partition(".")[0] in TEST else "lab"


def jupyter_settings() -> Path:
    """A folder of JupyterLab defaults: no news, no question about updates."""
    folder = ROOT / ".jupyter" / "settings"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "overrides.json").write_text(json.dumps(SETTINGS), encoding="utf-8")
    return folder


def variables(python: str) -> dict[str, str]:
    """The variables of a child: UTF-8, this project's packages, Jupyter's folders in .jupyter."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONHOME"}
    places = {"JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data", "IPYTHONDIR": "ipython"}
    for place in places.values():  # IPython warns where its folder is missing, and warnings fail tests
        (ROOT / ".jupyter" / place).mkdir(parents=True, exist_ok=True)
    env = {name: str(ROOT / ".jupyter" / place) for name, place in places.items()} | env
    env |= {"PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", "PYTHONNOUSERSITE": "1"}
    if python == str(PYTHON):
        env |= {"VIRTUAL_ENV": str(VENV), "PATH": f"{BIN}{os.pathsep}{env.get('PATH', '')}"}
    return env


def run(command: list[str], cwd: Path | None = None, **more: str) -> int:
    """Runs to the end and gives the exit code, 128 + n after signal n. Ctrl-C and a polite kill are
    the child's first; once it has ended, so do we."""
    with tempfile.TemporaryDirectory(prefix="minigrad-", ignore_cleanup_errors=True) as runtime:
        env = {"JUPYTER_RUNTIME_DIR": runtime} | variables(command[0]) | more
        with subprocess.Popen(command, cwd=cwd, env=env) as process:
            told: list[int] = []

            def pass_on(number: int, _) -> None:
                told.append(number)
                process.terminate()

            signal.signal(signal.SIGTERM, pass_on)
            while True:
                try:
                    code = process.wait()
                    break
                except KeyboardInterrupt:
                    told.append(signal.SIGINT)
    code = code if code >= 0 else 128 - code
    if told:
        raise SystemExit(code)
    return code
