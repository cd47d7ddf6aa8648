"""The memory tracker in trouble: errors, lost events, threads, devices."""
import gc
import subprocess
import sys
import threading
import weakref
from contextvars import copy_context

import numpy as np
import pytest

pytest.importorskip("numba")

import minigrad as mg  # noqa: E402
from benchmarks import memory_account  # noqa: E402
from minigrad import nn  # noqa: E402
from minigrad.memory import tracker as tracker_file  # noqa: E402
from minigrad.memory.account import CATEGORIES  # noqa: E402
from minigrad.memory.handler import watched  # noqa: E402
from minigrad.tensor import current  # noqa: E402
from tests.minigrad.tracked import check, grown, handler_now, mlp  # noqa: E402

F = nn.functional


@pytest.fixture(autouse=True)
def _collected():
    """What earlier tests left in cycles would die at any time."""
    gc.collect()


# ---- trouble ---------------------------------------------------------------------------------------------------------
def test_an_error_midway_leaves_nothing_installed_and_keeps_what_was_seen():
    before, model = handler_now(), mlp()
    with pytest.raises(ZeroDivisionError), mg.memory.track() as t:
        y = model(mg.ones(10, 4))
        y.register_hook(lambda g: 1 / 0)
        y.sum().backward()
    assert handler_now() == before and current().observers == ()
    assert t.live > 0 and [m[1:] for m in t.marks] == [("backward", True), ("backward", False)]
    check(t)
    seen = t.live
    kept = np.ones(1000)
    assert t.live == seen and kept.size


def test_after_an_op_that_failed_the_next_phase_is_on_its_own_again():
    model = mlp()
    with mg.memory.track() as t:
        with pytest.raises(ValueError):
            mg.ones(2, 3) @ mg.ones(2, 3)
        model(mg.ones(2, 4)).sum().backward()
        start = t.by_category()
        mine = np.ones(501)
        assert grown(t, start) == {**dict.fromkeys(CATEGORIES, 0), "input": mine.nbytes}
        assert any(h.nbytes == 4008 and h.category == "input" and h.op == "" for h in t.holders(1000))


def test_looking_keeps_nothing_alive():
    gc.collect()
    gc.disable()
    try:
        with mg.memory.track() as t:
            x = mg.ones(100, requires_grad=True)
            (x * 2).sum().backward()
            t.holders()
            refs = [weakref.ref(x), weakref.ref(x.grad), weakref.ref(x.array)]
            held = t.live
            x = None
            assert [r() for r in refs] == [None] * 3 and t.live == held - 800
        t = weakref.ref(t)
        assert t() is None
    finally:
        gc.enable()


def test_a_tracker_serves_one_block():
    with mg.memory.track() as t:
        with pytest.raises(RuntimeError, match="one block"), t:
            pass
    with pytest.raises(RuntimeError, match="one block"), t:
        pass


def test_blocks_nest():
    with mg.memory.track() as outer:
        a = np.ones(100)
        with mg.memory.track() as inner:
            b = np.ones(50)
            assert outer.live == inner.live == memory_account.counted_bytes()
            del a
            assert outer.live == inner.live
        c = np.ones(10)
        assert outer.live == memory_account.counted_bytes() != inner.live
    assert b.size + c.size == 60


def test_arrays_that_are_resized_and_arrays_without_elements():
    with mg.memory.track() as t:
        a, empty = np.arange(10), np.zeros((0, 3))
        a.resize(1000)
        assert t.live == memory_account.counted_bytes()
        check(t)
    assert empty.size == 0


def test_bytes_stay_true_when_events_are_lost(monkeypatch):
    monkeypatch.setattr(tracker_file, "watched", lambda: watched(capacity=16))
    gc.collect()
    with mg.memory.track() as t:
        kept = [np.ones(10 + k) for k in range(50)]
        assert t.live == memory_account.counted_bytes() and t.lost > 0
        check(t)
        for each in (kept[::2], kept[5:], []):
            kept = [*each]
            x = mg.ones(3, requires_grad=True)
            (x * 2).sum().backward()
            assert t.live == memory_account.counted_bytes()
            check(t)
    assert "log full" in str(t)


def test_a_long_past_is_forgotten_but_never_the_peak():
    def run(history):
        mg.manual_seed(0)
        model = mlp()
        optimizer = mg.optim.Adam(model.parameters())
        gc.collect()
        with mg.memory.track(history=history) as t:
            model(mg.ones(500, 4)).sum().backward()
            for _ in range(120 + len(t._account.past) // 4):       # what the process holds is always remembered
                optimizer.zero_grad()
                model(mg.ones(2, 4)).sum().backward()
                optimizer.step()
        check(t)
        peak = t.at_peak()
        return t.peak - t.live, peak.by_category["activation"], peak.by_module.keys(), len(t.timeline()[0])

    *whole, events = run(200_000)
    *short, remembered = run(300)
    assert short == whole and remembered < 0.8 * events


# ---- threads, devices ------------------------------------------------------------------------------------------------
def test_what_loader_threads_make_is_input():
    class Squares(mg.utils.data.Dataset):
        def __len__(self):
            return 32

        def __getitem__(self, i):
            return (mg.full((100,), float(i)) ** 2).numpy().copy()

    model = nn.Linear(100, 2)
    optimizer = mg.optim.SGD(model.parameters(), 0.1)
    with mg.memory.track() as t:
        before = t.by_category()["input"]
        for x in mg.utils.data.DataLoader(Squares(), batch_size=8, num_workers=2):
            optimizer.zero_grad()
            model(mg.as_tensor(x)).sum().backward()
            optimizer.step()
        assert t.by_category()["input"] - before >= 8 * 100 * 4
        del x
        assert t.live == memory_account.counted_bytes() and t.lost == 0
        check(t)
    assert {phase for _, phase, _ in t.marks} == {"load", "backward", "update"}


def test_what_another_thread_makes_meanwhile_is_not_the_ops():
    y, made = mg.ones(1), []
    with mg.memory.track() as t:
        start = t.by_category()
        t.begin("op", made, ())
        thread = threading.Thread(target=copy_context().run, args=(lambda: made.append(np.ones(1000)),))
        thread.start()
        thread.join(20)
        mine = np.ones(10)
        found = grown(t, start)
        t.end("op", made, (y,))
    assert (found["input"], found["workspace"]) == (made[0].nbytes, mine.nbytes)


def test_what_lanes_make_belongs_to_the_op(monkeypatch):
    from minigrad import lanes

    class Blas:
        get_num_threads = staticmethod(lambda: 2)
        set_num_threads = staticmethod(lambda n: None)

    monkeypatch.setattr(lanes, "_blas", lambda: Blas)
    others = []
    work = lambda a, b: (others.append(threading.get_ident()), np.ones(1000))[1]  # noqa: E731
    with mg.memory.track() as t:
        t.begin("op", work, ())
        parts = lanes.in_lanes(work, 4, 1 << 21)
        assert len(set(others)) == 2
        before = t.by_category()["workspace"]
        assert before >= 16_000 and t.live == memory_account.counted_bytes()
        t.end("op", work, (mg.ones(1),))
        parts.clear()
        x = mg.randn(64, 200, 200, requires_grad=True)
        F.gelu(x).sum().backward()
        del x
        assert t.live == memory_account.counted_bytes()
        check(t)


def test_a_simulated_device_has_its_own_account():
    from minigrad.sim import sim_device

    device = sim_device(7)
    mg.ones(2, device="sim:7").exp() * 2
    gc.collect()
    big = mg.ones(100_000, device="sim:7")
    del big
    of_its_life, used = device.peak, device.used
    with mg.memory.track() as t:
        start = t.by_category()
        x = mg.ones(1000, device="sim:7", requires_grad=True)
        y = (x * 2).exp()
        y.sum().backward()
        assert t.devices["sim:7"] == (device.used, device.peak)
        assert device.used - used >= 3 * 4000 and device.peak - used < 40_000
        assert t.live == memory_account.counted_bytes()          # its arrays are the host's
        assert grown(t, start)["gradient"] == 4000
    assert device.peak == of_its_life >= 400_000
    assert t.devices["sim:7"][1] < 100_000 and "sim:7:" in str(t) and y.shape


OFF = """
import sys
import minigrad as mg
mg.memory.track
assert "numba" not in sys.modules
with mg.memory.track():
    pass
assert "numba" in sys.modules
"""


def test_off_nothing_is_loaded():
    done = subprocess.run([sys.executable, "-c", OFF], capture_output=True, encoding="utf-8", timeout=120)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_what_track_is_given_is_looked_at_and_a_tracker_may_be_read_before():
    for wrong in ({"model": "net"}, {"optimizer": nn.Linear(2, 2)}):
        with pytest.raises(TypeError, match="track: (model|optimizer) must be"):
            mg.memory.track(**wrong)
    for history in (0, -5, "many"):
        with pytest.raises(ValueError, match="history"):
            mg.memory.track(history=history)
    assert "0 B alive" in str(mg.memory.track())
