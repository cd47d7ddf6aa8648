"""run.py itself: what it reads from its arguments, and what it says when something is wrong.

Nothing is installed here: steps are recorded instead of run, and a small program stands for pip.
"""

import ast
import errno
import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "requirements"))
import doctor  # noqa: E402
import environment  # noqa: E402

import run  # noqa: E402


@pytest.fixture
def project(tmp_path, monkeypatch):
    """An empty project: no environment, two locks, steps recorded in `steps`."""
    (tmp_path / "requirements").mkdir()
    for kind in ("lab", "test"):
        (tmp_path / "requirements" / f"{kind}.txt").write_text(kind, encoding="utf-8")
    venv = tmp_path / ".venv"
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(environment, "VENV", venv)
    monkeypatch.setattr(environment, "STAMP", venv / "finished.txt")
    monkeypatch.setattr(environment, "PYTHON", venv / "bin" / "python")
    monkeypatch.setattr(environment, "reach_project", lambda: None)
    steps: list[str] = []

    def step(command, wheels=None):
        steps.append(" ".join(command))
        environment.PYTHON.parent.mkdir(parents=True, exist_ok=True)
        environment.PYTHON.touch()

    monkeypatch.setattr(doctor, "step", step)
    return SimpleNamespace(root=tmp_path, steps=steps)


def message(action, *arguments, **more) -> str:
    """What run.py says as it stops; it must say what happened and what to do."""
    with pytest.raises(SystemExit) as stopped:
        action(*arguments, **more)
    assert "What to do: " in str(stopped.value)
    return str(stopped.value)


# --- the set-up ------------------------------------------------------------------------------


def test_set_up_makes_the_environment_once(project):
    assert environment.set_up("lab") == str(environment.PYTHON)
    venv, install = project.steps
    assert "-m venv --clear" in venv
    assert "--require-hashes" in install and "lab.txt" in install and "--no-index" not in install
    environment.set_up("lab")
    assert len(project.steps) == 2


def test_the_test_environment_serves_the_lab_and_is_added_to_it(project):
    environment.set_up("lab")
    environment.set_up("test")
    assert "test.txt" in project.steps[2] and len(project.steps) == 3
    assert environment.finished("lab") and environment.finished("test")


def test_a_changed_lock_makes_the_environment_anew(project):
    environment.set_up("test")
    (project.root / "requirements" / "lab.txt").write_text("new", encoding="utf-8")
    assert environment.finished("test") and not environment.finished("lab")
    environment.set_up("lab")
    assert "--clear" in project.steps[2]


def test_line_ends_do_not_change_the_stamp(project):
    (project.root / "requirements" / "lab.txt").write_bytes(b"a\nb\n")
    unix = environment.stamp("lab")
    (project.root / "requirements" / "lab.txt").write_bytes(b"a\r\nb\r\n")
    assert environment.stamp("lab") == unix


def test_another_python_is_not_served_by_the_old_environment(project, monkeypatch):
    environment.set_up("lab")
    monkeypatch.setattr(sys, "version_info", (3, 99, 0))
    assert not environment.finished("lab")


def test_an_interrupted_set_up_is_done_anew(project, monkeypatch):
    def interrupted(command, wheels=None):
        environment.PYTHON.parent.mkdir(parents=True, exist_ok=True)
        environment.PYTHON.touch()
        raise KeyboardInterrupt

    recorded = doctor.step
    monkeypatch.setattr(doctor, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        environment.set_up("lab")
    monkeypatch.setattr(doctor, "step", recorded)
    environment.set_up("lab")
    assert "--clear" in project.steps[0] and environment.finished("lab")


def test_two_set_ups_at_once_make_one_environment(project):
    def slow(command, wheels=None, step=doctor.step):
        time.sleep(0.1)
        step(command)

    doctor.step = slow  # the fixture's monkeypatch takes it back
    both = [threading.Thread(target=environment.set_up, args=("lab",)) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join(timeout=20)
    assert len(project.steps) == 2


def test_wheels_need_no_network(project):
    folder = project.root / "wheels"
    folder.mkdir()
    wheels, rest = environment.take_wheels(["--wheels", str(folder), "--no-browser"])
    assert rest == ["--no-browser"]
    assert environment.take_wheels([f"--wheels={folder}", "-x"]) == (str(folder), ["-x"])
    environment.set_up("lab", wheels)
    assert f"--no-index --find-links {folder}" in project.steps[-1]


def test_wheels_after_the_dashes_belong_to_pytest():
    assert environment.take_wheels(["tiny", "--", "--wheels"]) == (None, ["tiny", "--", "--wheels"])


@pytest.mark.parametrize("arguments", [["--wheels"], ["--wheels", "nowhere"], ["--wheels="]])
def test_wheels_without_a_folder(arguments):
    assert "run.py wheels DIR" in message(environment.take_wheels, arguments)


def test_wheels_are_downloaded_with_their_hashes(project, capsys):
    folder = str(project.root / "wheels")
    assert environment.download([folder]) == 0
    assert "pip download --require-hashes" in project.steps[-1]
    assert project.steps[-1].endswith(f"-d {folder}") and "test.txt" in project.steps[-1]
    assert not environment.finished("lab")
    assert "run.py wheels DIR" in message(environment.download, [])


# --- conda -----------------------------------------------------------------------------------


def test_an_activated_conda_environment_is_used(project, monkeypatch):
    monkeypatch.setenv("CONDA_PREFIX", sys.prefix)
    monkeypatch.setitem(environment.MODULES, "lab", ["json"])
    assert environment.set_up("lab") == sys.executable and not project.steps


def test_a_conda_environment_without_the_packages_is_not(project, monkeypatch):
    monkeypatch.setenv("CONDA_PREFIX", sys.prefix)
    monkeypatch.setitem(environment.MODULES, "lab", ["json", "no_such_module"])
    assert environment.set_up("lab") == str(environment.PYTHON)
    assert "lacks no_such_module" in doctor.conda()[0][2]


def test_a_conda_environment_of_another_python_is_not(project, monkeypatch, tmp_path):
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path))
    assert environment.conda_lacks("lab") is None and doctor.conda() == []


# --- what can go wrong -----------------------------------------------------------------------


@pytest.mark.parametrize("version", [(2, 7, 18), (3, 6, 15), (3, 10, 0), (3, 15, 0)])
def test_a_python_that_does_not_fit(version, monkeypatch):
    said = message(run.refuse_python, version)
    assert f"Python {version[0]}.{version[1]}" in said and "3.11 to 3.14" in said
    monkeypatch.setenv("PATH", "")  # no fitting one beside it
    assert "python.org" in message(run.refuse_python, version)


def test_an_old_python_can_read_run_py():
    text = (ROOT / "run.py").read_text(encoding="utf-8")
    tree = ast.parse(text, feature_version=(3, 6))
    above = text[: text.index("refuse_python(sys.version_info)")]
    assert "->" not in above and "ROOT" not in above and 'f"' not in above
    imports = [node for node in tree.body if isinstance(node, ast.Import)]
    names = [alias.name for node in imports for alias in node.names]
    assert set(names[:-2]) <= sys.stdlib_module_names and names[-2:] == ["doctor", "environment"]


SAID = [
    ("disk is full", "OSError: [Errno 28] No space left on device"),
    ("disk is full", "OSError: [WinError 112] There is not enough space on the disk"),
    ("cannot be reached", "WARNING: Retrying after connection broken by 'NewConnectionError('"),
    ("no right to write", "PermissionError: [WinError 5] Access is denied: 'python.exe'"),
    ("not the one in the lock", "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE"),
    ("lacks a pinned package", "ERROR: No matching distribution found for numpy==2.4.6"),
    ("a step of the set-up failed", "ERROR: something new"),
]


@pytest.mark.parametrize(("cause", "said"), SAID)
def test_the_cause_of_a_failed_step(cause, said):
    fake = f"import sys; sys.stderr.write({said!r}); sys.exit(1)"
    assert cause in message(doctor.step, [sys.executable, "-c", fake])


def test_a_folder_of_wheels_that_lacks_one():
    said = "ERROR: No matching distribution found for numpy==2.4.6"
    assert "WHEELS lacks a package" in doctor.explain(said, "WHEELS")[0]


def test_what_a_step_says_is_seen(capfd):
    doctor.step([sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr)"])
    assert capfd.readouterr() == (f"out{os.linesep}", f"err{os.linesep}")


def test_a_python_without_venv(monkeypatch):
    monkeypatch.setitem(doctor.NEED_MODULES, "no_such_module", "venv")
    said = message(doctor.refuse_machine, ROOT, "lab")
    assert "no_such_module" in said and "apt install python3." in said


@pytest.mark.parametrize(
    ("code", "says"),
    [(errno.EROFS, "cannot write into"), (errno.EACCES, "cannot write"), (errno.ENOSPC, "full")],
)
def test_a_folder_that_cannot_be_written(code, says, monkeypatch):
    def refused(dir):
        raise OSError(code, os.strerror(code), dir)

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refused)
    assert says in message(doctor.refuse_machine, ROOT, "lab")


def test_too_little_disk(monkeypatch):
    monkeypatch.setitem(doctor.NEED_GB, "lab", 1e9)
    assert "GB left" in message(doctor.refuse_machine, ROOT, "lab")


@pytest.mark.parametrize("words", ["--port {}", "--port={}", "--ServerApp.port={}"])
def test_a_busy_port(words):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = message(doctor.refuse_port, words.format(port).split())
    assert f"port {port} cannot be used" in said and f"--port {port + 1}" in said
    doctor.refuse_port(words.format(port).split())  # free again


def test_a_port_that_does_not_exist():
    assert "no port 99999" in message(doctor.refuse_port, ["--port", "99999"])


def test_ports_that_are_left_to_jupyterlab():
    doctor.refuse_port(["--no-browser"])
    doctor.refuse_port(["--ip=*", "--port=8888"])


# --- commands --------------------------------------------------------------------------------


def test_help_names_every_command(capsys):
    assert run.main(["--help"]) == 0 and run.main([]) == 2
    assert all(f"run.py {name}" in run.__doc__ for name in run.COMMANDS)
    assert capsys.readouterr().out.count(run.__doc__) == 2


def test_a_misspelt_command():
    assert "'tset'" in message(run.main, ["tset"]) and "lab test tour" in message(run.main, ["x"])


def test_every_test_file_and_folder_is_a_part():
    expected = {re.sub(r"^test_|\.py$", "", path.name) for path in (ROOT / "tests").glob("test_*")}
    assert expected <= run.parts().keys()
    assert run.find_part("house") == [ROOT / "tests" / "test_house.py"]
    assert "house" in message(run.find_part, "hosue")


def parted(root: Path, monkeypatch, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    monkeypatch.setattr(run, "ROOT", root)
    monkeypatch.setattr(run, "TESTS", root / "tests")
    monkeypatch.setattr(run, "NOTEBOOKS", root / "notebooks")


def test_the_pytest_runs_cover_every_part_once(tmp_path, monkeypatch):
    names = ["tests/test_a.py", "tests/b/c/test_d.py", "tests/gpu/test_e.py"]
    parted(tmp_path, monkeypatch, *names, "notebooks/00.ipynb", "tests/notebooks/test_f.py")
    runs = run.pytest_runs([])
    paths = [Path(word).name for words in runs.values() for word in words if str(tmp_path) in word]
    paths.remove("nbval_sanitize.cfg")
    assert sorted(paths) == ["b", "gpu", "notebooks", "notebooks", "test_a.py"]
    assert "-n" in runs["tests"] and "--nbval" in runs["notebooks"]
    assert not {"-n", "--nbval"} & set(runs["tests one by one"])


def test_parts_can_be_files(tmp_path, monkeypatch):
    parted(tmp_path, monkeypatch, "tests/b/test_d.py", "notebooks/00.ipynb")
    assert run.pytest_runs(["b/test_d.py"]) == {"tests": [str(tmp_path / "tests/b/test_d.py")]}
    assert run.pytest_runs(["notebooks/00.ipynb"])["notebooks"][-1].endswith("00.ipynb")


def test_all_runs_are_started_and_one_failure_fails(tmp_path, monkeypatch, capsys):
    parted(tmp_path, monkeypatch, "tests/test_a.py", "tests/gpu/test_e.py")
    monkeypatch.setattr(environment, "set_up", lambda kind, wheels: "python")
    seen = []

    def fake(command, cwd, **variables):
        seen.append(command)
        return int(any(word.endswith("test_a.py") for word in command))

    monkeypatch.setattr(environment, "run", fake)
    assert run.main(["test", "--", "-x"]) == 1
    assert len(seen) == 2 and all(command[-1] == "-x" for command in seen)
    assert "FAILED: tests" in capsys.readouterr().out.splitlines()[-1]
    assert run.main(["test", "gpu"]) == 0
    assert "all passed" in capsys.readouterr().out.splitlines()[-1]


def test_arguments_of_lab_go_through_and_come_last(monkeypatch):
    monkeypatch.setattr(environment, "set_up", lambda kind, wheels: "python")
    monkeypatch.setattr(environment, "run", lambda command: command)
    command = run.lab(["--no-browser", "--port", "8888"], None)
    assert command[:3] == ["python", "-m", "jupyterlab"]
    assert command[-3:] == ["--no-browser", "--port", "8888"]


def test_a_module_runs_in_the_smallest_environment_that_has_it(monkeypatch):
    monkeypatch.setattr(environment, "set_up", lambda kind, wheels: kind)
    monkeypatch.setattr(environment, "run", lambda command: command)
    assert run.main(["-m", "minigrad.tour", "--wheels", "x"])[0] == "lab"
    assert run.main(["-m", "ruff", "check"]) == ["test", "-m", "ruff", "check"]
    assert run.main(["tour"]) == ["lab", "-m", "minigrad.tour"]
    assert "which module" in message(run.main, ["-m"])


def test_children_speak_utf8_and_find_the_project(capfd):
    ask = "import sys; print(sys.flags.utf8_mode, sys.path[1])"
    assert environment.run([sys.executable, "-c", ask]) == 0
    assert capfd.readouterr().out.strip() == f"1 {ROOT}"


@pytest.mark.skipif(os.name == "nt", reason="there a polite kill is a hard one")
def test_a_polite_kill_reaches_the_child():
    """`kill` of run.py ends what it started, gives its exit code on, and starts nothing more."""
    child = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7));"
    child += "print('up', flush=True); time.sleep(60)"
    parent = f"from environment import run, sys; run([sys.executable, '-c', {child!r}]); print(1)"
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdout=subprocess.PIPE, cwd=ROOT / "requirements"
    ) as process:
        assert process.stdout.readline() == b"up\n"
        process.terminate()
        assert process.wait(timeout=20) == 7 and process.stdout.read() == b""


def test_the_doctor_runs_without_an_environment(project, capsys):
    """Required things are there (the tests run), so the doctor is content; nothing is installed."""
    assert doctor.report() == 0
    out = capsys.readouterr().out
    assert "python3 run.py lab makes it" in out and "doctor: ok" in out
    assert not project.steps


def test_the_doctor_fails_when_something_required_is_missing(project, monkeypatch, capsys):
    monkeypatch.setitem(doctor.NEED_MODULES, "no_such_module", "venv")
    assert doctor.report() == 1
    assert "missing and required: venv, pip" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("driver", "installed", "says"),
    [
        ("580.65", "", "-r requirements/gpu-cuda13x.txt"),
        ("550.10", "", "-r requirements/gpu-cuda12x.txt"),
        ("470.1", "", "update the NVIDIA driver"),
        ("550.10", "cupy-cuda13x==14.2.0", "uninstall cupy-cuda13x"),
        ("580.65", "cupy-cuda12x==14.2.0\ncupy-cuda13x==14.2.0", "uninstall cupy-cuda12x and"),
        ("580.65", "cupy-cuda12x==14.2.0", ""),
    ],
)
def test_the_driver_is_held_against_the_toolkit(driver, installed, says, monkeypatch):
    def answers(command):
        return f"NVIDIA X, {driver}\n" if command[0] == "nvidia-smi" else installed

    monkeypatch.setattr(doctor, "run_quietly", answers)
    ((state, _, _, way_out),) = doctor.gpu()
    assert says in way_out and (state == "ok") == (says == "")
