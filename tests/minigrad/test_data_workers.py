"""Workers: the same batches in the same order whoever makes them; errors, deaths, early ends leave nothing behind."""

import gc
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

import minigrad as mg
from minigrad import data
from minigrad.data.workers import WorkerError, WorkerTimeout
from tests.minigrad.data_items import (
    Large,
    Noisy,
    Picky,
    Random,
    Squares,
    Stream,
    Unloadable,
    Whole,
    failing,
    marked,
    unpicklable_batch,
)

WAYS = {"none": dict(num_workers=0), "threads": dict(num_workers=2)}
WAYS["processes"] = dict(num_workers=2, multiprocessing_context="spawn")
SPAWN = dict(num_workers=1, multiprocessing_context="spawn")


def listed(batches):
    return [[part.tolist() if isinstance(part, mg.Tensor) else part for part in batch] for batch in batches]


def left_over():
    return multiprocessing.active_children() + [t for t in threading.enumerate() if "minigrad-loader" in t.name]


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    gc.collect()
    assert not left_over()


@pytest.mark.parametrize("dataset", [Squares(20), Noisy(20)], ids=["order", "augmentation"])
def test_one_seed_one_sequence_whoever_works(dataset):
    def run(way):
        mg.manual_seed(7)
        stay = way == "processes"
        loader = data.DataLoader(dataset, 3, shuffle=True, persistent_workers=stay, **WAYS[way])
        return [listed(loader), listed(loader), mg.rand(2).tolist()]

    one = run("none")
    assert one[0] != one[1] and run("threads") == run("processes") == one


def test_every_batch_draws_its_own_numbers():
    draws = [x.tolist() for x, _ in data.DataLoader(Noisy(30), 3)]
    assert len({tuple(row) for batch in draws for row in batch}) == 30


@pytest.mark.parametrize("way", WAYS)
def test_settings_and_numbers_of_workers(way):
    with mg.no_grad():
        seen = [batch for batch in data.DataLoader(Whole(6), 1, collate_fn=lambda b: b[0], **WAYS["none"])]
        assert [s[1:3] for s in seen] == [(-1, False)] * 6
        seen = [batch[0] for batch in data.DataLoader(Whole(6), 1, collate_fn=list, **WAYS[way])]
    ids = [-1] * 6 if way == "none" else [0, 1] * 3
    assert [(k, i, g) for k, i, g, _ in seen] == [(k, i, False) for k, i in enumerate(ids)]
    assert len({s[3] for s in seen}) == (2 if way == "processes" else 1)
    assert (os.getpid() in {s[3] for s in seen}) == (way != "processes")
    assert data.get_worker_info() is None


@pytest.mark.parametrize("way", WAYS)
def test_streams_are_read_to_their_end(way):
    loader = data.DataLoader(Stream(11), 2, persistent_workers=way == "processes", **WAYS[way])
    got = [batch.tolist() for batch in loader]
    assert sorted(sum(got, [])) == list(range(11))
    if way == "none":
        assert got[0] == [0, 1]
    else:  # worker 0 has the even numbers, worker 1 the odd ones; they take turns
        assert got[:3] == [[0, 2], [1, 3], [4, 6]]
    assert [batch.tolist() for batch in loader] == got
    short = data.DataLoader(Stream(11), 2, drop_last=True, **WAYS["none" if way == "none" else "threads"])
    assert all(len(batch) == 2 for batch in short)
    assert list(data.DataLoader(Stream(3), None, **WAYS["none"])) == [0, 1, 2]


def test_every_worker_sees_a_stream_that_is_not_shared_out():
    loader = data.DataLoader(Stream(3, shared=False), None, num_workers=2)
    assert list(loader) == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("way", WAYS)
def test_an_error_names_its_batch_and_item(way):
    loader = data.DataLoader(Squares(9, fail_at=5), batch_size=2, **WAYS[way])
    batches = iter(loader)
    with pytest.raises(OSError, match="item 5 is broken") as caught:
        assert listed([next(batches), next(batches)])[1][1] == [4, 9]  # those before the error come
        next(batches)
    assert any("batch 2 of the items [4, 5], at item 5" in note for note in caught.value.__notes__)
    if way == "processes":
        assert "data_items.py" in str(caught.value.__cause__)  # the worker's own traceback


def test_an_error_that_cannot_be_sent_is_told_all_the_same():
    with pytest.raises(RuntimeError, match="PickyError: 1 and 2") as caught:
        list(data.DataLoader(Picky(2), **SPAWN))
    assert any("at item 0" in note for note in caught.value.__notes__)


def test_a_killed_worker_is_named_within_seconds():
    clock = time.monotonic()
    with pytest.raises(WorkerError, match=r"worker 0 .* died with SIG.* before batch 2 of the items \[2\]"):
        list(data.DataLoader(Squares(9, kill_at=2), **SPAWN))
    assert time.monotonic() - clock < 20


def test_a_worker_killed_from_outside_is_noticed():
    loader = iter(data.DataLoader(Squares(400, nap_s=0.05), **SPAWN))
    next(loader)
    (child,) = multiprocessing.active_children()
    os.kill(child.pid, getattr(signal, "SIGKILL", signal.SIGTERM))
    clock = time.monotonic()
    with pytest.raises(WorkerError, match=str(child.pid)):
        list(loader)
    assert time.monotonic() - clock < 5


@pytest.mark.parametrize("way", ["threads", "processes"])
def test_a_batch_that_takes_too_long(way):
    loader = data.DataLoader(Squares(3, nap_s=4.0), timeout=0.2 if way == "threads" else 3.0, **WAYS[way])
    clock = time.monotonic()
    with pytest.raises(WorkerTimeout, match="batch 0"):
        list(loader)
    assert time.monotonic() - clock < (3 if way == "threads" else 9)
    if way == "threads":
        time.sleep(4.2)  # a thread cannot be stopped; it ends after its item


@pytest.mark.parametrize("way", ["threads", "processes"])
def test_leaving_early_leaves_nothing(way):
    loader = iter(data.DataLoader(Squares(2000, nap_s=0.01), **WAYS[way]))
    next(loader)
    assert left_over()
    clock = time.monotonic()
    del loader
    gc.collect()
    assert not left_over() and time.monotonic() - clock < 4


def test_leaving_early_while_a_worker_is_stuck_in_an_item_or_a_full_pipe():
    for dataset in (Squares(9, nap_s=600), Large(50)):
        loader = iter(data.DataLoader(dataset, prefetch_factor=4, **SPAWN))
        if isinstance(dataset, Large):
            next(loader)
            time.sleep(0.3)  # it fills the pipe
        else:
            loader = loader_with_timeout(dataset)
        clock = time.monotonic()
        loader.close()
        assert not left_over() and time.monotonic() - clock < 5


def loader_with_timeout(dataset):
    loader = iter(data.DataLoader(dataset, timeout=0.1, **SPAWN))
    with pytest.raises(WorkerTimeout):
        next(loader)
    return loader


def test_large_items_and_many_indices_pass_through_the_pipes():
    assert [int(b[0, -1]) for b in data.DataLoader(Large(5), prefetch_factor=5, **SPAWN)] == list(range(5))
    assert [len(b) for b in data.DataLoader(list(range(90_000)), 60_000, **SPAWN)] == [60_000, 30_000]


def test_persistent_workers_stay_and_serve_one_loop_at_a_time():
    loader = data.DataLoader(Whole(6), 2, persistent_workers=True, collate_fn=list, **WAYS["processes"])
    mg.manual_seed(3)
    first, second = ({item[3] for batch in loader for item in batch} for _ in range(2))
    assert first == second and len(first) == 2
    early = iter(loader)
    next(early)
    assert [item[0] for batch in loader for item in batch] == list(range(6))
    with pytest.raises(RuntimeError, match="one loop at a time"):
        next(early)
    del loader, early


def test_persistent_workers_outlive_an_error_in_an_item():
    loader = data.DataLoader(Squares(6, fail_at=3), persistent_workers=True, **SPAWN)
    for _ in range(2):
        with pytest.raises(OSError, match="item 3"):
            list(loader)
    del loader


def test_seeds_and_worker_init_fn():
    mg.manual_seed(4)
    options = dict(num_workers=2, multiprocessing_context="spawn")
    batches = listed(data.DataLoader(Random(4), 1, generator=mg.Generator(5), **options))
    assert batches[0] != batches[1]
    fixed = listed(data.DataLoader(Random(1), 1, worker_init_fn=marked, generator=mg.Generator(5), **SPAWN))
    assert fixed[0][0] == [random.Random(1000).random()]
    assert fixed[0][1] == batches[0][1]  # the seed is that of the loop, whoever works


@pytest.mark.parametrize("way", ["threads", "processes"])
def test_an_error_in_worker_init_fn(way):
    with pytest.raises(ValueError, match="no camera"):
        list(data.DataLoader(Squares(3), worker_init_fn=failing, **WAYS[way]))


def test_what_cannot_be_sent_is_named_with_the_way_out():
    with pytest.raises(TypeError, match="collate_fn cannot be sent .*multiprocessing_context='thread'"):
        list(data.DataLoader(Squares(3), collate_fn=lambda b: b, **SPAWN))

    class Local(Squares):
        pass

    with pytest.raises(TypeError, match="the dataset cannot be sent"):
        list(data.DataLoader(Local(3), **SPAWN))
    with pytest.raises(WorkerError, match="notebook"):
        list(data.DataLoader(Unloadable(3), **SPAWN))
    with pytest.raises(Exception, match="local object|pickle") as caught:
        list(data.DataLoader(Squares(3), collate_fn=unpicklable_batch, **SPAWN))
    assert any("what collate_fn returned" in note for note in caught.value.__notes__)


SCRIPT = """
    import os, sys, time
    sys.path.insert(0, {root!r})
    from minigrad import data
    from tests.minigrad.data_items import Squares
    if {guard}:
        loader = iter(data.DataLoader(Squares(10_000, nap_s=0.01), num_workers=1, multiprocessing_context="spawn"))
        next(loader)
        import multiprocessing
        print(*[p.pid for p in multiprocessing.active_children()], flush=True)
        {then}
"""


def script(tmp_path, then, guard="__name__ == '__main__'"):
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    file = tmp_path / "script.py"
    file.write_text(textwrap.dedent(SCRIPT.format(root=root, then=then, guard=guard)), encoding="utf-8")
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8")
    return subprocess.Popen([sys.executable, str(file)], **pipes)


def gone(pid, within_s=5.0):
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except OSError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.skipif(sys.platform == "win32", reason="signals and pids of POSIX")
@pytest.mark.parametrize("way", ["ctrl-c", "killed", "error"])
def test_the_workers_end_with_the_main_program(tmp_path, way):
    then = "raise KeyError('x')" if way == "error" else "[batch for batch in loader]"
    program = script(tmp_path, then)
    pids = [int(word) for word in program.stdout.readline().split()]
    assert len(pids) == 1
    if way in ("ctrl-c", "killed"):
        time.sleep(0.3)
        program.send_signal(signal.SIGINT) if way == "ctrl-c" else program.kill()
    _, errors = program.communicate(timeout=20)
    assert ("KeyboardInterrupt" in errors) == (way == "ctrl-c")
    assert all(gone(pid) for pid in pids)


def test_a_script_without_its_guard_is_told_so(tmp_path):
    _, errors = script(tmp_path, "pass", guard="True").communicate(timeout=60)
    assert "WorkerError" in errors and "__name__ == '__main__'" in errors.splitlines()[-1]


# ---- resuming ------------------------------------------------------------------------------------


@pytest.mark.parametrize("way, generator", [("none", None), ("none", 5), ("threads", 5), ("processes", None)])
def test_a_loop_goes_on_where_its_state_was_taken(way, generator):
    def made():
        own = None if generator is None else mg.Generator(generator)
        stay = way == "processes"
        return data.DataLoader(Noisy(20), 3, shuffle=True, generator=own, persistent_workers=stay, **WAYS[way])

    mg.manual_seed(2)
    loader = made()
    listed(loader)  # so that the streams are somewhere
    whole = []
    for k, batch in enumerate(loader):
        whole.append(listed([batch])[0])
        if k == 2:
            state, stream = loader.state_dict(), mg.get_rng_state()
    after = listed(loader)

    mg.manual_seed(99)
    resumed = made()
    resumed.load_state_dict(state)
    mg.set_rng_state(stream)
    assert listed(resumed) == whole[3:] and listed(resumed) == after
    assert resumed.state_dict()["batches"] == 0


def test_a_stream_is_resumed_too():
    loader = data.DataLoader(Stream(10), 2)
    batches = iter(loader)
    next(batches), next(batches)
    other = data.DataLoader(Stream(10), 2)
    other.load_state_dict(loader.state_dict())
    assert [b.tolist() for b in other] == [[4, 5], [6, 7], [8, 9]]


def test_what_contradicts_itself_is_refused():
    for options in (
        dict(persistent_workers=True),
        dict(multiprocessing_context="fork", num_workers=1),
        dict(prefetch_factor=0, num_workers=1),
        dict(timeout=-1),
        dict(batch_size=None, drop_last=True),
    ):
        with pytest.raises(ValueError):
            data.DataLoader(Squares(3), **options)
    for options in (dict(shuffle=True), dict(sampler=[0]), dict(batch_sampler=[[0]]), dict(batch_size=0)):
        with pytest.raises(ValueError):
            data.DataLoader(Stream(3), **options)
