"""The house as others find it: one list of dependencies in three spellings, and any system.

pyproject.toml, environment.yml and the locks agree; the code uses nothing that only one system
has. Neither conda nor macOS nor Windows is needed to check this, and none is claimed to have run.
"""

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ("lab", "test", "gpu-cuda12x", "gpu-cuda13x")
# conda's name -> pip's, where they differ. conda's `graphviz` is the program `dot`, not a package.
CONDA_TO_PIP = {
    "python-graphviz": {"graphviz"},
    "cupy": {"cupy-cuda12x", "cupy-cuda13x"},
    "graphviz": set(),
    "python": set(),
    "pip": set(),
}
IN_CUPY = {"nvidia-nccl-cu12", "nvidia-nccl-cu13"}  # conda's cupy brings NCCL itself
MISSION = {"numpy", "cupy", "jupyterlab", "ipywidgets", "graphviz", "dask", "nbval"}
EXTRAS = {"viz", "compile", "dask", "onnx", "gpu-cuda12x", "gpu-cuda13x", "course", "dev"}


def pyproject() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def conda(file: str) -> dict:
    return yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))


def pip_requirements(extra: str | None = None) -> dict[str, Requirement]:
    """name -> requirement of one extra (None: what is always needed), extras of extras included."""
    project = pyproject()["project"]
    lines = project["optional-dependencies"][extra] if extra else project["dependencies"]
    found: dict[str, Requirement] = {}
    for requirement in map(Requirement, lines):
        if requirement.name == project["name"]:
            for inner in requirement.extras:
                found |= pip_requirements(inner)
        else:
            found[canonicalize_name(requirement.name)] = requirement
    return found


def all_pip_requirements() -> dict[str, Requirement]:
    found = pip_requirements()
    for extra in pyproject()["project"]["optional-dependencies"]:
        found |= pip_requirements(extra)
    return found


def conda_requirements(file: str) -> tuple[dict[str, str], list[str]]:
    """(conda name -> its bounds, the lines for pip) of an environment file."""
    plain = [line for line in conda(file)["dependencies"] if isinstance(line, str)]
    nested = [line for line in conda(file)["dependencies"] if isinstance(line, dict)]
    pairs = [line.partition(" ")[::2] for line in plain]
    return dict(pairs), [line for each in nested for line in each["pip"]]


def pins(lock: str) -> dict[str, tuple[str, int]]:
    """name -> (version, number of hashes) of a lock."""
    text = (ROOT / "requirements" / f"{lock}.txt").read_text(encoding="utf-8")
    pin = r"^([\w.-]+)(?:\[[\w,]+\])?==([^\s;\\]+)(.*(?:\n    --hash=.*)+)"
    blocks = re.findall(pin, text, re.M)
    assert len(blocks) == len(re.findall(r"^[\w.-]+.*==", text, re.M)), "a pin has no hash"
    return {name: (version, rest.count("--hash=sha256:")) for name, version, rest in blocks}


# --- one list of dependencies ----------------------------------------------------------------


def test_the_extras_and_packages_are_the_promised_ones():
    project = pyproject()
    assert set(project["project"]["optional-dependencies"]) == EXTRAS
    assert set(pip_requirements()) == {"numpy", "safetensors", "tqdm"}
    found = project["tool"]["setuptools"]["packages"]["find"]["include"]
    assert found == ["minigrad*", "simulator*", "exercises*"]


def test_environment_names_the_packages_of_the_mission():
    assert conda_requirements("environment.yml")[0].keys() >= MISSION


def test_environment_agrees_with_pyproject():
    names, by_pip = conda_requirements("environment.yml")
    wanted = all_pip_requirements()
    spelled = {pip for name in names for pip in CONDA_TO_PIP.get(name, {canonicalize_name(name)})}
    spelled |= {Requirement(line).name for line in by_pip if line != "-e ."}
    assert spelled == wanted.keys() - IN_CUPY
    assert "-e ." in by_pip
    for name, bounds in names.items():
        for pip in CONDA_TO_PIP.get(name, {canonicalize_name(name)}):
            assert bounds == str(wanted[pip].specifier), f"{name}: not pyproject.toml's bounds"
    pythons = pyproject()["project"]["requires-python"]
    assert names["python"] == pythons


def test_macos_environment_differs_by_cupy_only():
    linux, macos = conda("environment.yml"), conda("environment-macos.yml")
    linux["dependencies"].remove("cupy >=14")
    assert linux == macos


@pytest.mark.parametrize(
    ("lock", "extra"), [("lab", "course"), ("test", "dev"), *((gpu, gpu) for gpu in LOCKS[2:])]
)
def test_lock_holds_what_pyproject_asks_for(lock, extra):
    locked = pins(lock)
    for name, requirement in {**pip_requirements(), **pip_requirements(extra)}.items():
        assert name in locked, f"{name} is not in {lock}.txt: run python requirements/lock.py"
        assert requirement.specifier.contains(locked[name][0]), f"{requirement}: {locked[name][0]}"


@pytest.mark.parametrize("lock", ["lab", "gpu-cuda12x", "gpu-cuda13x"])
def test_locks_agree_on_versions(lock):
    """lab.txt is a part of test.txt, and adding CuPy changes no version."""
    whole = pins("test")
    own = pins(lock)
    assert {name: whole[name] for name in own if name in whole} == {
        name: pin for name, pin in own.items() if name in whole
    }
    if lock == "lab":
        assert own.keys() <= whole.keys()


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_has_hashes_and_no_addresses(lock):
    assert all(count > 0 for _, count in pins(lock).values())
    text = (ROOT / "requirements" / f"{lock}.txt").read_text(encoding="utf-8")
    assert not re.search(r"://|--(extra-)?index-url|--find-links|/(home|root|work|tmp)/", text)


def test_the_two_gpu_extras_are_kept_apart():
    """Both own the package `cupy`, so nothing may install both, and the others install neither."""
    for lock in LOCKS:
        owned = {name for name in pins(lock) if name.startswith("cupy")}
        assert owned == ({f"cupy-{lock[4:]}"} if lock.startswith("gpu") else set())


# --- any system ------------------------------------------------------------------------------

SKIP = {".git", ".venv", ".jupyter", "node_modules", "__pycache__"}
CODE = ("minigrad", "simulator", "exercises", "notebooks", "tests", "benchmarks", "requirements")
POSIX_MODULES = {"resource", "fcntl", "pwd", "grp", "termios", "tty", "pty", "syslog", "crypt"}
POSIX_NAMES = {
    "os": "fork forkpty geteuid getuid setuid setsid killpg getpgid mkfifo wait3 wait4 "
    "sched_getaffinity sched_setaffinity getloadavg nice uname".split(),
    "signal": "SIGKILL SIGSTOP SIGCONT SIGUSR1 SIGUSR2 SIGHUP SIGALRM alarm setitimer".split(),
}
# Where POSIX names may stand: files that ask for the system first. A folder ends in "/".
POSIX_FILES = ("exercises/sandbox/", "exercises/sandbox.py", "tests/exercises/", "benchmarks/")


def files() -> Iterator[Path]:
    for path in sorted(ROOT.rglob("*")):
        own = path.relative_to(ROOT).parts
        if not SKIP & set(own) and not any(part.endswith("_cache") for part in own):
            yield path


def code() -> list[Path]:
    return [path for path in files() if path.suffix == ".py" and starts(path, (*CODE, "run.py"))]


def starts(path: Path, places: tuple[str, ...]) -> bool:
    text = path.relative_to(ROOT).as_posix()
    return any(text.startswith(place) for place in places)


def calls(path: Path) -> Iterator[tuple[ast.Call, str, str]]:
    """(call, receiver as written, name) of each call in a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node, ast.unparse(node.func.value), node.func.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node, "", node.func.id


def keywords(call: ast.Call) -> dict[str | None, str]:
    return {word.arg: ast.unparse(word.value) for word in call.keywords}


def posix_only(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names = [f"{node.value.id}.{node.attr}"]
        for each in names:
            module, _, attribute = each.partition(".")
            asked = f'hasattr({module}, "{attribute}")' in text
            if module in POSIX_MODULES and not isinstance(node, ast.Attribute):
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {each} is on POSIX systems only"
            elif attribute in POSIX_NAMES.get(module, ()) and not asked:
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {each} is on POSIX systems only"


def test_nothing_needs_posix_outside_named_files():
    elsewhere = [path for path in code() if not starts(path, POSIX_FILES)]
    problems = [line for path in elsewhere for line in posix_only(path)]
    assert not problems, "\n".join(["", *problems])


def opens_text(call: ast.Call, receiver: str, name: str) -> bool:
    """Whether a call opens a file as text: open, io.open, os.fdopen, path.open, TemporaryFile."""
    at = {"open": 1, "fdopen": 1, "TemporaryFile": 0, "NamedTemporaryFile": 0}.get(name)
    if name == "open" and receiver not in ("", "io"):
        at = 0  # a path's method, if its first argument is a mode: zip.open(name) is not
    if at is None or receiver == "os" and name == "open":
        return False
    word = call.args[at] if len(call.args) > at else None
    mode = keywords(call).get("mode") or (ast.unparse(word) if word else "")
    if not mode:
        return at == 1 or name == "open" and not call.args and receiver.endswith(("path", ")"))
    return bool(re.fullmatch(r"'[rwaxt+]+'", mode))


def text_without_encoding(path: Path) -> Iterator[str]:
    """Calls that read or write text in the system's own encoding, which is not UTF-8 everywhere."""
    for call, receiver, name in calls(path):
        given = keywords(call)
        whole = name == "read_text" and not call.args or name == "write_text" and len(call.args) < 2
        pipes = given.get("text") == "True" or given.get("universal_newlines") == "True"
        if (opens_text(call, receiver, name) or whole or pipes) and "encoding" not in given:
            yield f"{path.relative_to(ROOT)}:{call.lineno}: {name} without encoding="


def test_text_is_read_and_written_with_its_encoding_named():
    problems = [line for path in code() for line in text_without_encoding(path)]
    assert not problems, "\n".join(["", *problems])


def other_start_methods(path: Path) -> Iterator[str]:
    """Processes that start in a way that is not the same on every system."""
    for call, receiver, name in calls(path):
        first = ast.unparse(call.args[0]) if call.args else ""
        fixed = name not in ("get_context", "set_start_method") or first == "'spawn'"
        default = name in ("Process", "Pool") and receiver in ("multiprocessing", "mp")
        pool = name == "ProcessPoolExecutor" and "mp_context" not in keywords(call)
        if not fixed or default or pool:
            yield f"{path.relative_to(ROOT)}:{call.lineno}: {name}: use get_context('spawn')"


def test_processes_start_by_spawn():
    problems = [line for path in code() for line in other_start_methods(path)]
    assert not problems, "\n".join(["", *problems])


def test_file_names_fit_every_system():
    """No two names differ by case alone; none is reserved, odd or too long on Windows."""
    names = [path.relative_to(ROOT).as_posix() for path in files()]
    twice = [name for name, count in Counter(map(str.casefold, names)).items() if count > 1]
    assert not twice, f"names that differ by case alone: {twice}"
    odd = re.compile(r'[<>:"\\|?*\x00-\x1f]|(^|/)(con|prn|aux|nul|com\d|lpt\d)([./]|$)|[. ](/|$)')
    bad = [name for name in names if odd.search(name.casefold()) or len(name) > 150]
    assert not bad, f"names that Windows cannot have: {bad}"


@pytest.mark.parametrize(
    ("law", "line"),
    [
        (posix_only, "import resource"),
        (posix_only, "import os\nos.fork()"),
        (posix_only, "from signal import SIGKILL"),
        (text_without_encoding, "open('a')"),
        (text_without_encoding, "open('a', 'w')"),
        (text_without_encoding, "path.open('r')"),
        (text_without_encoding, "Path(a).open()"),
        (text_without_encoding, "open(a, mode='w')"),
        (text_without_encoding, "path.read_text()"),
        (text_without_encoding, "path.write_text(x)"),
        (text_without_encoding, "subprocess.run(x, text=True)"),
        (other_start_methods, "multiprocessing.get_context('fork')"),
        (other_start_methods, "mp.Process(target=f)"),
        (other_start_methods, "ProcessPoolExecutor(2)"),
    ],
)
def test_the_laws_see_what_they_forbid(law, line, tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "a.py").write_text(line, encoding="utf-8")
    assert len(list(law(tmp_path / "a.py"))) == 1


@pytest.mark.parametrize(
    ("law", "line"),
    [
        (posix_only, 'hasattr(os, "geteuid") and os.geteuid() == 0'),
        (text_without_encoding, "open('a', 'rb')"),
        (text_without_encoding, "os.open(path, os.O_RDONLY)"),
        (text_without_encoding, "path.open('wb')"),
        (text_without_encoding, "archive.open('name.txt')"),
        (text_without_encoding, "webbrowser.open(url)"),
        (text_without_encoding, "tempfile.TemporaryFile(dir=root)"),
        (text_without_encoding, "path.read_text(encoding='utf-8')"),
        (other_start_methods, "multiprocessing.get_context('spawn').Process(target=f)"),
    ],
)
def test_the_laws_let_portable_code_pass(law, line, tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "a.py").write_text(line, encoding="utf-8")
    assert not list(law(tmp_path / "a.py"))
