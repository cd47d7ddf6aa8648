"""The house rules that a program can check: sizes, imports, owners, README lists, linters.

The story runs from the first of LAYERS to the last: a module imports from before it, never from
after it. A new module or package gets its place in that list, one file gets its line in a README.
`python3 run.py test style -- -s` prints the sizes.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("minigrad", "simulator", "exercises")
OURS = (*PACKAGES, "notebooks", "tests", "benchmarks", "requirements", "run.py")
FILE_LINES, FUNCTION_LINES = 400, 60  # columns (120) are ruff's to count, in notebooks too

# minigrad, in reading order. `events` imports nothing of the project, so anybody may import it.
LAYERS = (
    *("errors", "arguments", "dtype", "aval", "sim_allow", "sim", "device", "buffers", "transcendental"),
    *("indexing", "algebra", "sites"),
    *("probes", "lanes", "kernels", "tensor", "rows", "inplace", "ops", "anomaly", "leaves", "sweep"),
    *("autograd", "saved"),
    *("function", "copying", "values", "streams", "draws", "methods", "create", "checkpoint", "sampling"),
    *("check", "trial", "laws", "jacobians", "nn", "optim", "data", "save", "search", "graph", "amp", "quant"),
    *("prune", "distill", "memory", "profiler", "comparison", "viz", "utils", "tour"),
)
OWNERS = {  # optional dependency -> the only files and folders that import it
    "cupy": ("minigrad/device.py", "simulator/executors/gpu.py"),
    "numba": (
        "minigrad/kernels.py",
        "minigrad/memory/hierarchy/walks.py",
        "minigrad/memory/native.py",
        "minigrad/graph/codegen.py",
        "simulator/executors/virtual_fast.py",
    ),
    "onnx": ("minigrad/graph/onnx.py",),
    "onnxruntime": ("minigrad/graph/onnx.py",),
    "sklearn": ("minigrad/data",),
    "ml_dtypes": ("minigrad/dtype.py",),
    "threadpoolctl": ("minigrad/lanes.py",),
    "psutil": ("exercises/sandbox", "simulator/executors/dask.py"),
    **dict.fromkeys(("dask", "distributed"), (
        *(f"simulator/executors/{file}.py" for file in ("transport", "service", "dask")), "simulator/search.py")),
    "cloudpickle": ("simulator/executors/packing.py",),  # comes with dask
    "llvmlite": ("minigrad/memory/native.py",),
    "safetensors": ("minigrad/save.py",),
    **dict.fromkeys(("IPython", "anywidget", "ipywidgets", "graphviz"), ("/viz/",)),
}
EVERYBODY = {"numpy", "tqdm", *PACKAGES}
STRANGERS = [("simulator/strategies", "simulator.executors")]  # neither imports the other
STRANGERS += [("simulator/executors", "simulator.strategies")]


def python_files(*places: str) -> list[Path]:
    """The .py files below these places of the project, in order."""
    found: list[Path] = []
    for place in map(ROOT.joinpath, places):
        found += sorted(place.rglob("*.py")) if place.is_dir() else [place] * place.exists()
    return [path for path in found if "node_modules" not in path.parts]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """(full dotted name, line) of all that a file imports when it runs, lazily too."""
    package = list(path.relative_to(ROOT).parent.parts)
    for node in runtime_nodes(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            head = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((f"{head}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and called(node) in ("import_module", "__import__"):
            words = [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)]
            yield from ((str(word), node.lineno) for word in words)


def runtime_nodes(top: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those below `if TYPE_CHECKING:`, which never run."""
    for node in ast.iter_child_nodes(top):
        if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            yield node
            yield from runtime_nodes(node)


def called(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def layer(dotted: str) -> str:
    """The part of minigrad that a dotted name lies in; empty for `minigrad` itself."""
    words = dotted.split(".")
    known = len(words) > 1 and (words[1] in LAYERS or words[1] == "events")
    return words[1] if known else ""


def report(problems: list[str]) -> None:
    assert not problems, "\n".join(["", *problems])


def test_every_module_of_minigrad_has_its_place_in_the_story():
    modules = {path.stem for path in (ROOT / "minigrad").glob("*.py")} - {"__init__", "__main__"}
    modules |= {path.parent.name for path in (ROOT / "minigrad").glob("*/__init__.py")}
    lost = sorted(modules - {*LAYERS, "events"})
    report([f"minigrad/{each}: give it its place in LAYERS, tests/test_style.py" for each in lost])


@pytest.mark.parametrize("path", python_files("minigrad"), ids=name)
def test_imports_run_towards_the_beginning(path):
    own = layer("minigrad." + path.relative_to(ROOT / "minigrad").with_suffix("").parts[0])
    problems = []
    for dotted, line in imports(path):
        if dotted.split(".")[0] != "minigrad" or not own:  # minigrad/__init__.py imports all
            continue
        other, here = layer(dotted), f"{name(path)}:{line}"
        if own == "events":
            problems.append(f"{here}: trace depends on nothing, and imports {dotted}")
        elif not other and own not in LAYERS[LAYERS.index("viz") :]:
            problems.append(f"{here}: imports `minigrad` itself; import the module that has it")
        elif other in LAYERS and LAYERS.index(other) > LAYERS.index(own):
            problems.append(f"{here}: {own} imports {dotted}, which comes later in the story")
    report(problems)


def story(package: str) -> list[str]:
    """The files and folders of a package in the order of its README."""
    text = (ROOT / package / "README.md").read_text(encoding="utf-8")
    return [row.removesuffix(".py").split("/")[0] for row in re.findall(r"^\| *`([\w./-]+)`", text, re.M)]


@pytest.mark.parametrize("path", python_files("simulator", "exercises"), ids=name)
def test_imports_run_towards_the_beginning_of_the_readme(path):
    package, *inside = path.relative_to(ROOT).with_suffix("").parts
    order, own, problems = story(package), inside[0], []
    for dotted, line in imports(path):
        words = dotted.split(".")
        if words[0] != package or own == "__init__" or len(words) < 2:  # the package itself imports all
            continue
        if words[1] in order and own in order and order.index(words[1]) > order.index(own):
            problems.append(f"{name(path)}:{line}: {own} imports {dotted}, which comes later in {package}/README.md")
        elif words[1] not in order:
            problems.append(f"{name(path)}:{line}: imports {dotted} from the package; import the module that has it")
    report(problems)


@pytest.mark.parametrize("path", python_files(*PACKAGES), ids=name)
def test_packages_and_owners(path):
    """Packages import earlier packages; each optional dependency has its owner; nobody has viz."""
    own, place = PACKAGES.index(path.relative_to(ROOT).parts[0]), f"/{name(path)}"
    problems = []
    for dotted, line in imports(path):
        here, top = f"{name(path)}:{line}", dotted.split(".")[0]
        if top in PACKAGES[own + 1 :]:
            problems.append(f"{here}: {PACKAGES[own]} imports {top}, which comes later")
        if top in PACKAGES and "viz" in dotted.split(".") and not re.search("/viz/|/tour.py", place):
            problems.append(f"{here}: nobody imports viz: it is reached by name when shown")
        if top in PACKAGES[:own] and re.search(r"\._[^_]", dotted):
            problems.append(f"{here}: {dotted} is private to {top}")
        if top not in EVERYBODY and top not in sys.stdlib_module_names and top not in OWNERS:
            problems.append(f"{here}: {top} has no owner; name one in OWNERS, or do without")
        if not any(f"/{owner}".replace("//", "/") in place for owner in OWNERS.get(top, ("",))):
            problems.append(f"{here}: only {', '.join(OWNERS[top])} may import {top}")
        for folder, stranger in STRANGERS:
            if place.startswith(f"/{folder}") and dotted.startswith(stranger):
                problems.append(f"{here}: {folder} must not know {stranger}")
    report(problems)


def functions(path: Path) -> Iterator[tuple[str, int, int]]:
    """(name, line, length in lines) of each function of a file."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1


def test_sizes(capsys):
    problems, lengths, sizes = [], [], {}
    for path in python_files(*OURS):
        lines = path.read_text(encoding="utf-8").splitlines()
        sizes[name(path)] = len(lines)
        found = list(functions(path))
        lengths += [length for _, _, length in found]
        if len(lines) > FILE_LINES:
            problems.append(f"{name(path)}: {len(lines)} lines, over {FILE_LINES}")
        for title, line, length in found:
            if length > FUNCTION_LINES:
                problems.append(f"{name(path)}:{line}: {title} has {length} lines")
    with capsys.disabled():
        print_sizes(sizes, sorted(lengths))
    report(problems)


def print_sizes(sizes: dict[str, int], lengths: list[int]) -> None:
    print()
    for place in OURS:
        own = [lines for path, lines in sizes.items() if path.split("/")[0] == place]
        if own:
            total = f"{len(own):4} files {sum(own):6} lines"
            print(f"{place:13}{total}  median {median(own):5.0f}  longest {max(own):4}")
    most = lengths[int(0.9 * len(lengths))] + 1
    print(f"functions    {len(lengths)}, median {median(lengths):.0f} lines, 90 % under {most}")


@pytest.mark.parametrize("path", python_files(*OURS), ids=name)
def test_a_file_opens_with_its_docstring(path):
    assert ast.get_docstring(tree(path)), f"{name(path)}: say in two to six lines what it is"


def packages() -> list[Path]:
    return [path.parent for path in python_files(*PACKAGES) if path.name == "__init__.py"]


@pytest.mark.parametrize("package", packages(), ids=name)
def test_readme_lists_the_files(package):
    """Each file has its line in the README of its package, or of the package above."""
    above = [up / "README.md" for up in (package, *package.parents)]
    readme = next((each for each in above if each.exists()), ROOT)
    top = package.relative_to(ROOT).parts[0]
    assert (ROOT / top) in (readme.parent, *readme.parent.parents), f"{top}/README.md is missing"
    listed = set(re.findall(r"`([\w./-]+)`", readme.read_text(encoding="utf-8")))
    files = [path for path in package.glob("*.py") if path.name != "__init__.py"]
    names = [path.relative_to(readme.parent).as_posix() for path in sorted(files)]
    report([f"{name(readme)} does not list `{each}`" for each in names if each not in listed])


@pytest.mark.parametrize("readme", [p / "README.md" for p in packages()], ids=name)
def test_readme_is_in_reading_order_and_lists_nothing_else(readme):
    if not readme.exists():
        pytest.skip("listed in the README above")
    text = readme.read_text(encoding="utf-8")
    rows = re.findall(r"^(?:[-*|]|\d+\.) *`([\w./-]+)`", text, re.M)
    rows = [row for row in rows if row.endswith((".py", "/"))]
    gone = [row for row in rows if not (readme.parent / row).exists()]
    report([f"{name(readme)} lists `{each}`, which is not there" for each in gone])
    if readme.parent == ROOT / "minigrad":
        story = [row.removesuffix(".py").split("/")[0] for row in rows]
        order = [LAYERS.index(each) for each in story if each in LAYERS]
        assert order == sorted(order), f"reading order differs from LAYERS: {story}"


def test_ruff_finds_nothing():
    command = [sys.executable, "-m", "ruff", "check", "--output-format=concise", "."]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stdout + done.stderr


def test_mypy_finds_nothing():
    there = [place for place in PACKAGES if (ROOT / place / "__init__.py").exists()]
    command = [sys.executable, "-m", "mypy", "run.py", "requirements", *there]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stdout + done.stderr
