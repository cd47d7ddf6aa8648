"""The project's commands. They need a Python from 3.11 on, and nothing else.

  python3 run.py lab [arguments of JupyterLab]         set up, then open the guided notebooks
  python3 run.py test [PART ...] [-- arguments of pytest]  set up, then run the tests, or some
  python3 run.py tour                  the tour without a browser
  python3 run.py doctor                what is here, what is missing, what to do
  python3 run.py wheels DIR [lab]      fill a folder; lab, test and tour with `--wheels DIR`
                                       then need no network
  python3 run.py -m MODULE ...         run a module inside the environment
On Windows: py run.py ...
"""

import os
import shutil
import sys
from pathlib import Path

FIRST, LAST = (3, 11), (3, 14)  # the Pythons that the locks in requirements/ are made for


def refuse_python(version):
    """Ends run.py on a Python that the locks do not fit. Python 3.6 must be able to run this."""
    if FIRST <= tuple(version[:2]) <= LAST:
        return
    names = ["python3.%d" % minor for minor in range(LAST[1], FIRST[1] - 1, -1)]
    fitting = [name for name in names if shutil.which(name)]
    way_out = "%s run.py ..." % fitting[0] if fitting else "install a newer one from python.org"
    sys.exit(
        "run.py: this is Python %d.%d; the project needs %d.%d to %d.%d.\n  What to do: %s"
        % (tuple(version[:2]) + FIRST + LAST + (way_out,))
    )


refuse_python(sys.version_info)

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "requirements"))
import doctor  # noqa: E402
import environment  # noqa: E402

TESTS, NOTEBOOKS = ROOT / "tests", ROOT / "notebooks"
TOUR = NOTEBOOKS / "00_tour.ipynb"
ALONE = ("benchmarks", "browser", "dask", "gpu")  # parts that want the whole machine
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)


def lab(arguments: list[str], wheels: str | None) -> int:
    """JupyterLab at the tour. The arguments come last, so that they win."""
    doctor.refuse_port(arguments)
    python = environment.set_up("lab", wheels)
    start = f"/lab/tree/notebooks/{TOUR.name}" if TOUR.exists() else "/lab"
    quiet = "jupyterlab.handlers.announcements.NeverCheckForUpdate"
    options = [
        f"--ServerApp.root_dir={ROOT}",
        f"--LabApp.default_url={start}",
        f"--LabApp.app_settings_dir={environment.jupyter_settings()}",
        f"--LabApp.check_for_updates_class={quiet}",
        "--LabApp.extension_manager=readonly",
        "--LanguageServerManager.autodetect=False",
    ]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        options.append("--allow-root")  # the usual case in a container
    return environment.run([python, "-m", "jupyterlab", *options, *arguments])


def parts() -> dict[str, list[Path]]:
    """What `run.py test PART` can name: tests/test_PART.py, a folder of tests, the notebooks."""
    found: dict[str, list[Path]] = {}
    for path in TESTS.glob("**/test_*.py"):
        first = path.relative_to(TESTS).parts[0]
        paths = found.setdefault(first.removesuffix(".py").removeprefix("test_"), [])
        paths.extend({TESTS / first} - set(paths))
    if any(NOTEBOOKS.glob("*.ipynb")):
        found.setdefault("notebooks", []).append(NOTEBOOKS)
    return dict(sorted(found.items()))


def find_part(name: str) -> list[Path]:
    """The paths of a part, or one file: `minigrad/test_ops.py`, `notebooks/00_tour.ipynb`."""
    files = [base / name for base in (TESTS, ROOT) if (base / name).is_file()]
    found = parts().get(name) or files[:1]
    if not found:
        doctor.stop(f"test: there is no part {name!r}", f"choose from: {' '.join(parts())}")
    return found


def pytest_runs(names: list[str]) -> dict[str, list[str]]:
    """The pytest runs, name -> arguments, for the named parts; for all of them by default."""
    together: list[str] = []
    alone: list[str] = []
    notebooks: list[str] = []
    for name in names or parts():
        for path in find_part(name):
            if NOTEBOOKS in (path, path.parent):
                notebooks.append(str(path))
            else:
                (alone if name in ALONE else together).append(str(path))
    two = ["-n", "2", "--dist", "loadfile"] if len(together) > 1 else []
    strict = ["--nbval", "--nbval-cell-timeout=120"]
    strict += ["--nbval-sanitize-with", str(TESTS / "nbval_sanitize.cfg")]
    runs = {"tests": together and two + together, "tests one by one": alone}
    runs["notebooks"] = notebooks and strict + notebooks
    return {name: arguments for name, arguments in runs.items() if arguments}


def test(arguments: list[str], wheels: str | None) -> int:
    """Every run is started, also after one has failed; the last line says which did."""
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    runs, extra = pytest_runs(arguments[:cut]), arguments[cut + 1 :]
    python = environment.set_up("test", wheels)
    failed = []
    for name, options in runs.items():
        print(f"run.py test: {name}", flush=True)
        command = [python, "-m", "pytest", *options, *extra]
        if environment.run(command, cwd=ROOT, PYTHONHASHSEED="0", **ONE_THREAD):
            failed.append(name)
    print(f"run.py test: FAILED: {', '.join(failed)}" if failed else "run.py test: all passed")
    return 1 if failed else 0


def module(arguments: list[str], wheels: str | None) -> int:
    """Runs a module in the smallest environment that has it."""
    if not arguments:
        doctor.stop("-m: which module?", "for example: python3 run.py -m minigrad.tour")
    python = environment.set_up(environment.kind_of(arguments[0]), wheels)
    return environment.run([python, "-m", *arguments])


COMMANDS = {
    "lab": lab,
    "test": test,
    "tour": lambda arguments, wheels: module(["minigrad.tour", *arguments], wheels),
    "doctor": lambda arguments, wheels: doctor.report(),
    "wheels": lambda arguments, wheels: environment.download(arguments),
    "-m": module,
}


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(__doc__)
        return 0 if arguments else 2
    name, rest = arguments[0], arguments[1:]
    if name not in COMMANDS:
        doctor.stop(f"there is no command {name!r}", f"choose from: {' '.join(COMMANDS)}")
    wheels, rest = environment.take_wheels(rest) if name != "-m" else (None, rest)
    return COMMANDS[name](rest, wheels)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit("\nrun.py: interrupted. Start it again: what was half done is done anew.")
