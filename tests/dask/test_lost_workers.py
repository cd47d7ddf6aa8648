"""Processes that die, leave, are busy or are interrupted: named in time, no process stays, the next run is right."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
from dask import config
from distributed import Client

from simulator.errors import RanksAbsent, WorkerLost
from simulator.executors import dask
from simulator.spawn import spawn

ROOT = Path(__file__).resolve().parents[2]
BUSY_S = 4.0                                           # slack of a limit on a machine that does other things too

pytestmark = pytest.mark.skipif(os.name == "nt", reason="sends POSIX signals")


@pytest.fixture(scope="module")
def own():
    """A cluster whose workers may be killed; others take their place."""
    with warnings.catch_warnings(), config.set({"distributed.deploy.lost-worker-timeout": "1 hour"}):
        warnings.simplefilter("ignore")                # else one that is down 15 s after it first was is given up
        with dask.local_cluster(2) as cluster, Client(cluster, set_as_default=False) as client:
            yield client


@pytest.fixture
def run(own):
    own.wait_for_workers(2, timeout=20)
    return partial(spawn, executor="dask", client=own, timeout=60)


def waiting(comm):
    if comm.rank:
        comm.recv(0)
    while True:
        time.sleep(0.05)


def computing(comm):
    while True:
        sum(range(1000))


def sending(comm):
    x = np.ones(100_000)
    while True:
        comm.isend(x, 1 - comm.rank)
        comm.recv(1 - comm.rank)


def reducing(comm):
    while True:
        comm.all_reduce(np.ones(10))


def suddenly(comm, program, victim, note):
    """The process of rank `victim` dies in the middle of `program`, and `note` says when."""
    def die():
        Path(note).write_text(str(time.time()), encoding="utf-8")
        psutil.Process().kill()
    if comm.rank == victim:
        threading.Timer(0.3, die).start()
    program(comm)


@pytest.mark.parametrize("program, victim", [(waiting, 0), (computing, 1), (sending, 1), (reducing, 0),
                                             (reducing, 1)])      # rank 0 has the referee
def test_a_worker_that_is_killed(run, program, victim, tmp_path):
    note = tmp_path / "died"
    with pytest.raises(WorkerLost, match=rf"died or left the cluster while it ran ranks \[{victim}\]"):
        run(suddenly, 2, program, victim, str(note))
    assert time.time() - float(note.read_text(encoding="utf-8")) < 2 + BUSY_S


def test_after_a_loss_the_cluster_goes_on(run):
    assert run(lambda comm: comm.all_reduce(comm.rank), 4).values == [6] * 4


def test_workers_that_do_other_work(run, own, monkeypatch):
    monkeypatch.setattr(dask, "START_S", 1.0)
    address = sorted(own.scheduler_info(n_workers=-1)["workers"])[1]
    other = own.submit(time.sleep, 4, workers=[address], pure=False)
    time.sleep(0.3)
    with pytest.raises(RanksAbsent, match=rf"ranks \[1\] have not begun after 1 s: their workers \({address}\)"):
        run(lambda comm: comm.barrier(), 2)
    other.cancel()
    monkeypatch.undo()
    assert run(lambda comm: comm.all_reduce(1), 2).values == [2, 2]       # once that other work is done


@pytest.mark.parametrize("leave", ["scaled down", "closed"])
def test_a_cluster_that_shrinks_or_ends(leave):
    """Also that the scheduler goes: nobody waits for it."""
    with dask.local_cluster(2) as cluster, Client(cluster, set_as_default=False) as client:
        spawn(lambda comm: comm.barrier(), 2, executor="dask", client=client, timeout=60)
        left = []

        def go():
            left.append(time.monotonic())
            cluster.scale(1) if leave == "scaled down" else cluster.close()
        timer = threading.Timer(0.5, go)
        timer.start()
        with pytest.raises(WorkerLost, match="died or left the cluster|does not answer"):
            spawn(reducing, 2, executor="dask", client=client, timeout=60)
        assert time.monotonic() - left[0] < 2 + BUSY_S
        timer.join(20)


def test_a_cluster_without_workers(monkeypatch):
    from distributed import LocalCluster

    monkeypatch.setattr(dask, "CONNECT_S", 1.0)
    with LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as empty:
        with pytest.raises(RanksAbsent, match="has no workers. Start some"):
            spawn(lambda comm: None, 2, executor="dask", client=empty)


def test_workers_without_the_package(run, own):
    def hide():
        """As on a machine that has Python and Dask alone."""
        import sys

        class Hidden:
            def find_spec(self, name, *_):
                if name.split(".")[0] == "simulator":
                    raise ModuleNotFoundError("No module named 'simulator'")

        sys.meta_path.insert(0, Hidden())
        for name in [name for name in sys.modules if name.split(".")[0] == "simulator"]:
            del sys.modules[name]
    own.run(hide)
    try:
        with pytest.raises(RanksAbsent, match="cannot read the program: No module named 'simulator'. Install"):
            run(lambda comm: None, 2)
        assert len(own.scheduler_info(n_workers=-1)["workers"]) == 2
    finally:
        own.restart(timeout=60)


# ---- whole programs --------------------------------------------------------------------------------
HEAD = """
import os, sys, time
sys.path.insert(0, {root!r})
import simulator as sim
"""


def script(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "program.py"
    path.write_text(HEAD.format(root=str(ROOT)) + textwrap.dedent(text), encoding="utf-8")
    return [sys.executable, str(path)]


def gone(pids: list[int], seconds: float = 10.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return True
        time.sleep(0.05)
    return False


def test_a_cluster_is_made_and_closed_for_a_program_in_main(tmp_path):
    command = script(tmp_path, """
        class Mine:
            def __init__(self, k): self.k = k

        def helper(k): return Mine(k)

        def program(comm, n):
            return helper(comm.all_reduce(comm.rank * n)), os.getpid(), os.environ["OPENBLAS_NUM_THREADS"]

        if __name__ == "__main__":
            values = sim.spawn(program, 3, 2, executor="dask").values
            assert all(type(v[0]) is Mine and v[0].k == 6 for v in values) and len({v[1] for v in values}) == 3
            print(*(v[1] for v in values), *{v[2] for v in values})
    """)
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=120)
    assert done.returncode == 0, done.stderr
    *pids, threads = map(int, done.stdout.split())
    assert threads == 1 and gone(pids) and "Traceback" not in done.stderr


def test_ctrl_c_in_a_script_ends_everything(tmp_path):
    command = script(tmp_path, """
        def program(comm, path):
            with open(f"{path}/{comm.rank}.pid.part", "w", encoding="utf-8") as file:
                file.write(str(os.getpid()))
            os.replace(f"{path}/{comm.rank}.pid.part", f"{path}/{comm.rank}.pid")
            while True:
                comm.barrier()
                sum(range(100))

        if __name__ == "__main__":
            try:
                sim.spawn(program, 2, sys.argv[1], executor="dask")
            except KeyboardInterrupt:
                print("interrupted")
    """)
    process = subprocess.Popen([*command, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               encoding="utf-8")
    until = time.monotonic() + 90
    while len(list(tmp_path.glob("*.pid"))) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    pids = [int(path.read_text(encoding="utf-8")) for path in tmp_path.glob("*.pid")]
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert "interrupted" in out, err
    assert len(pids) == 2 and gone(pids)
