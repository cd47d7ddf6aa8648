"""The benchmarks: equal work for every peer, numbers that mean what they say. No timings."""

import hashlib
import math
import os
import subprocess
import sys
from itertools import repeat
from pathlib import Path

import numpy as np
import pytest

from benchmarks import child, run, workloads
from benchmarks.table import (
    LOSS_RTOL,
    Run,
    Sample,
    clean,
    disagreements,
    is_disturbed,
    lo_s,
    numbers,
    paired_ratio,
    table,
    tenth_percentile,
)

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 0.12


def samples(*p10s, foreign=0.0):
    """Samples with these tenth percentiles and medians twice as long."""
    return tuple(Sample(2 * p10, p10, p10, 10, 1.5, foreign, 50_000_000) for p10 in p10s)


# ---- the work ------------------------------------------------------------------------


def digest(nest):
    """A hash of all numbers in nested dicts, lists, tuples and arrays."""
    if isinstance(nest, dict):
        nest = [item for key in sorted(nest) for item in (key, nest[key])]
    if isinstance(nest, np.ndarray):
        nest = f"{nest.dtype.str} {nest.shape} {hashlib.sha256(nest.tobytes()).hexdigest()}"
    if isinstance(nest, (list, tuple)):
        nest = " ".join(map(digest, nest))
    return hashlib.sha256(str(nest).encode()).hexdigest()


@pytest.mark.parametrize("workload", workloads.DESCRIPTIONS)
def test_the_seed_determines_the_data(workload):
    data = [digest(workloads.data(workload, seed)) for seed in (0, 0, 1)]
    assert data[0] == data[1]
    assert (data[0] == data[2]) == (workload == "h")


def test_data_is_fresh_for_every_caller():
    workloads.data("a", 0)[0]["w0"][...] = np.nan
    assert np.isfinite(workloads.data("a", 0)[0]["w0"]).all()


def test_trees_put_children_before_parents_and_reach_every_node_once():
    for children, x, _ in workloads.data("g", 0)[1]:
        assert sorted(k for below in children for k in below) == list(range(len(children) - 1))
        assert all(k < node for node, below in enumerate(children) for k in below)
        assert len(x) == len(children) <= workloads.TREE["most_nodes"]
        assert max(map(len, children)) <= workloads.TREE["most_children"]


# ---- peers against a step written by hand --------------------------------------------


def mlp_losses(steps):
    """`a` in float64: softmax cross-entropy, its gradient layer by layer, Adam."""
    p, x, labels = workloads.data("a", 0)
    p = {name: array.astype(np.float64) for name, array in p.items()}
    m, v = ({name: np.zeros_like(array) for name, array in p.items()} for _ in range(2))
    for t in range(1, steps + 1):
        loss, gradients = mlp_gradients(p, x, labels)
        yield loss
        for name, g in gradients.items():
            m[name] += 0.1 * (g - m[name])
            v[name] += 0.001 * (g * g - v[name])
            first, second = m[name] / (1 - 0.9**t), v[name] / (1 - 0.999**t)
            p[name] -= workloads.ADAM_LR * first / (np.sqrt(second) + 1e-8)


def mlp_gradients(p, x, labels):
    """Loss and gradients of the three dense layers."""
    inputs, rows = [x], np.arange(len(x))
    for n in range(3):
        z = inputs[-1] @ p[f"w{n}"] + p[f"b{n}"]
        inputs.append(np.maximum(z, 0))
    odds = np.exp(z)
    g = odds / odds.sum(1, keepdims=True)
    loss = -np.log(g[rows, labels]).mean()
    g[rows, labels] -= 1
    g, gradients = g / len(x), {}
    for n in reversed(range(3)):
        gradients |= {f"w{n}": inputs[n].T @ g, f"b{n}": g.sum(0)}
        g = (g @ p[f"w{n}"].T) * (inputs[n] > 0)
    return loss, gradients


def tiny_loss():
    """`h`, forward."""
    a, x = workloads.data("h", 0)
    b = x
    for _ in range(workloads.H_ROUNDS):
        c = a * b + x
        b = np.maximum(c, 0)
        a = c - b
    return (a + b).sum()


@pytest.mark.parametrize("peer", ["minigrad_eager", "torch_eager"])
@pytest.mark.parametrize("workload", ["a", "h"])
def test_first_losses_equal_a_step_written_by_hand(peer, workload):
    _, hello = child.start(peer, workload, seed=0)
    if "absent" in hello:
        pytest.skip(hello["absent"])
    expected = list(mlp_losses(4)) if workload == "a" else list(repeat(tiny_loss(), 4))
    assert "failure" not in hello, hello["failure"]
    assert hello["losses"] == pytest.approx(expected, rel=LOSS_RTOL)


@pytest.mark.parametrize("workload", ["c", "d", "f", "f_cell", "g", "c_inf"])  # e takes too long for a test
def test_minigrad_does_the_work_of_the_reference(workload):
    (_, ours), (_, theirs) = (child.start(f"{name}_eager", workload, seed=0) for name in ("minigrad", "torch"))
    if "absent" in theirs:
        pytest.skip(theirs["absent"])
    assert "failure" not in ours, ours["failure"]
    assert ours["losses"] == pytest.approx(theirs["losses"], rel=LOSS_RTOL)


def test_minigrad_offers_every_workload():
    from benchmarks.peers import minigrad_eager

    assert set(minigrad_eager.BUILDERS) == set(workloads.DESCRIPTIONS)


def test_a_peer_says_what_it_does_not_offer():
    with pytest.raises(NotImplementedError, match="has h, not a"):
        workloads.build({"h": None}, "a", 0)


# ---- the numbers ---------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 9, 10, 11, 99, 100])
def test_a_tenth_of_the_values_lie_below_the_tenth_percentile(n):
    values = np.random.default_rng(n).permutation(n)
    assert (values < tenth_percentile(values)).sum() == n // 10


def test_lo_is_the_median_of_the_better_half():
    assert lo_s(samples(5, 1, 9, 3, 2, 8)) == 2
    assert lo_s(samples(5, 1, 900, 3, 2, 800)) == 2
    assert lo_s(samples(7)) == 7


def test_a_ratio_is_taken_round_by_round_and_of_quiet_rounds():
    assert paired_ratio(samples(1, 10, 100), samples(2, 20, 200), LIMIT) == 0.5
    noisy = samples(1, 1) + samples(50, foreign=0.9)
    assert paired_ratio(noisy, samples(2, 2, 2), LIMIT) == 0.5
    assert paired_ratio(samples(3, foreign=0.9), samples(1), LIMIT) == 3


def test_disturbed_samples_are_left_out_and_marked():
    quiet, loud = samples(1), samples(9, foreign=0.5)
    assert clean(quiet + loud, LIMIT) == list(quiet)
    assert clean(loud, LIMIT) == list(loud)
    assert not is_disturbed(quiet + loud, LIMIT)
    assert is_disturbed(quiet + loud + loud, LIMIT)


def test_what_the_system_does_not_tell_counts_as_quiet():
    unknown = (Sample(2.0, 1.0, 1.0, 10, 1.5),)
    assert clean(unknown, LIMIT) == list(unknown) and not is_disturbed(unknown, LIMIT)
    columns = numbers(Run("peer", (1.0,), 0.5, unknown), None, LIMIT)
    untold = [name for name, value in columns.items() if value is None]
    assert untold == ["x ref", "x lo", "RSS MB", "foreign"]


# ---- the table -----------------------------------------------------------------------

REFERENCE = Run("torch_eager", (2.5, 1.25), 2.0, samples(0.002, 0.002))
CANNED = """\
== h: title
peer                           ms       lo  x ref   x lo  RSS MB  cores  foreign  first4 s   losses
torch_eager                 4.000    2.000   1.00   1.00      50   1.50     0.00       2.0   2.5000
slow                        8.000    4.000   2.00   2.00      50   1.50    0.50!       0.1   2.5000
gone                       not installed: gone
dead                       failed: ended with status -9: Killed"""


def test_the_table():
    reference = Run("torch_eager", (2.5,), 2.0, samples(0.002, 0.002))
    slow = Run("slow", (2.5,), 0.1, samples(0.004, 0.004, foreign=0.5))
    gone = Run("gone", absent="not installed: gone")
    dead = Run("dead", failure="ended with status -9: Killed")
    assert table("h: title", [reference, slow, gone, dead], reference, LIMIT) == CANNED


@pytest.mark.parametrize(
    ("losses", "step"), [((2.5, 1.2503), 2), ((2.4, 1.2), 1), ((math.nan, 1.25), 1)]
)
def test_losses_that_differ_are_told(losses, step):
    wrong = Run("wrong", losses, 0.1, samples(0.001))
    [words] = disagreements([REFERENCE, wrong], REFERENCE)
    assert words.startswith(f"LOSSES DIFFER: step {step}: wrong has ")
    assert words in table("h", [REFERENCE, wrong], REFERENCE, LIMIT)


def test_losses_within_rounding_agree():
    assert not disagreements([REFERENCE, Run("near", (2.50005, 1.25001))], REFERENCE)


# ---- the command ---------------------------------------------------------------------

PEER = "def make(workload, seed):\n    import os\n    return lambda: {}\n"


def command(folder, peers):
    """run.py on `h` with the modules of a folder as peers."""
    words = ["-w", "h", "-p", peers, "--ref", "one", "-r", "1", "-s", "0.001", "-o", folder / "out"]
    return subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "run.py", *words],
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("other", "status", "words"),
    [
        ("1.0", 0, "1.0000 1.0000 1.0000 1.0000"),
        ("1.01", 1, "LOSSES DIFFER: step 1: other has 1.01, one has 1"),
        ("float('OPENBLAS_CORETYPE' in os.environ) + 1", 0, "1.0000 1.0000 1.0000 1.0000"),
        ("__import__('absent_library')", 0, "not installed: absent_library"),
        ("1 / 0", 1, "failed: ZeroDivisionError: division by zero"),
        ("os._exit(7)", 1, "failed: ended with status 7"),
    ],
)
def test_the_command_tells_how_every_peer_fared(tmp_path, monkeypatch, other, status, words):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    (tmp_path / "one.py").write_text(PEER.format("1.0"), encoding="utf-8")
    (tmp_path / "other.py").write_text(PEER.format(other), encoding="utf-8")
    done = command(tmp_path, "one,other")
    assert done.returncode == status and words in done.stdout, done.stdout + done.stderr
    assert (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["-w", "z"], "no workload 'z': there are a, b, c"),
        (["-p", "torch_eagre"], "no peer 'torch_eagre': there are hips_autograd, jax_jit"),
        (["-p", "torch_eager:TUNED"], "got 'TUNED'"),
        (["-r", "0"], "at least one round"),
    ],
)
def test_a_wrong_command_line_is_refused_before_anything_starts(capsys, words, complaint):
    with pytest.raises(SystemExit):
        run.arguments(words)
    assert complaint in capsys.readouterr().err


def test_every_library_gets_the_same_thread_budget(monkeypatch):
    monkeypatch.setenv("OPENBLAS_L2_SIZE", "1")
    for settings, threads in ([], "2"), (["NT=1"], "1"):
        environment = run.environment(settings)
        assert {environment[name] for name in run.THREAD_VARIABLES} == {threads}
        assert "OPENBLAS_L2_SIZE" not in environment


def test_the_readme_names_every_file():
    readme = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    for path in (ROOT / "benchmarks").rglob("[!_]*.py"):
        assert path.name in readme or path.parent.name in readme, path


COMMANDS = [path for path in sorted((ROOT / "benchmarks").glob("[!_]*.py"))
            if "ArgumentParser(" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.name)
def test_every_command_begins_in_any_folder(path, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, str(path), "--help"], cwd=tmp_path, env=environment, capture_output=True,
                          text=True, encoding="utf-8", timeout=120)
    assert done.returncode == 0 and done.stdout.startswith("usage"), done.stderr
