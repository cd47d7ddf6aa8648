"""The live pool changes no number, loses nothing, and names who holds what."""
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

import minigrad as mg

pytest.importorskip("numba")
MB = 1 << 20
ROOT = Path(__file__).resolve().parents[2]


# ---- with NumPy ------------------------------------------------------------------------------------------------------
def test_resized_memory_keeps_its_bytes():
    with mg.memory.pool(smallest=1000) as pool:
        for n, m in ((100, 5000), (5000, 100), (5000, 90_000), (90_000, 5000), (5000, 5010)):
            a = np.arange(n)
            a.resize(m, refcheck=False)
            assert np.array_equal(a[:min(n, m)], np.arange(min(n, m))) and not a[n:].any()
        assert len(np.fromiter(iter(range(100_000)), int)) == 100_000
        del a
        stats = pool.stats()
    assert stats.live == 0 and stats.allocs > 5


def test_zeros_are_zero_also_in_memory_that_was_written():
    with mg.memory.pool() as pool:
        a = np.full(100_000, 7.0)
        at = a.ctypes.data
        del a
        z = np.zeros(100_000)
        assert z.ctypes.data == at and not z.any() and at % 64 == 0
        assert pool.stats().hits == 1


def test_small_arrays_go_where_they_went():
    with mg.memory.pool(smallest=4096) as pool:
        a, b = np.ones(511), np.ones(512)
        assert pool.stats().allocs == 1 and pool.stats().requested == b.nbytes and a.any()


def test_arrays_outlive_the_block_and_their_memory_goes_back_with_the_last():
    with mg.memory.pool() as pool:
        arrays = [np.full(100_000, float(k)) for k in range(40)]
        dead = np.ones(10 << 20)
        del dead
        assert pool.stats().reserved > 80 * MB
    assert pool.stats().reserved < 80 * MB                           # the empty segment went at once
    assert all((a == k).all() for k, a in enumerate(arrays))
    outside = np.ones(100_000)
    assert pool.stats().live == 40 and outside.any()
    arrays.clear()
    assert pool.stats().reserved == pool.stats().live == 0
    with pool:                                                       # and again
        a = np.ones(100_000)
        assert pool.stats().live == 1
    assert a.all()


def test_two_threads_enter_one_pool_and_each_has_its_own_handler_back():
    from minigrad.memory.handler import _numpy

    pool, wrong = mg.memory.pool(), []

    def work(first, then, k):
        before = _numpy()[1]()
        with pool, pool:
            a = np.full(50_000, k)
            first.wait(60)
        then.set()
        if _numpy()[1]() is not before or not (a == k).all():
            wrong.append(k)

    events = [threading.Event(), threading.Event()]
    threads = [threading.Thread(target=work, args=(events[0], events[1], 1)),
               threading.Thread(target=work, args=(events[1], threading.Event(), 2))]
    for t in threads:
        t.start()
    events[0].set()                                                  # the first to enter leaves first
    for t in threads:
        t.join(60)
    assert not wrong and pool.stats().reserved == 0 and pool.stats().allocs == 2


def test_looking_at_the_pool_leaves_it_as_it_is():
    with mg.memory.pool(smallest=1) as pool:
        a = [np.ones(100) for _ in range(3000)]
        before = pool.stats()
        assert before == pool.stats() and before.live >= 3000 and len(pool.holders()) == 10 and a
        assert "segments" in repr(pool) and pool.stats() == before


def test_pools_nest():
    with mg.memory.pool() as outer:
        with mg.memory.pool() as inner:
            a = np.ones(MB)
            assert inner.stats().requested == a.nbytes and outer.stats().live >= 1      # the segment, and its table
        assert outer.stats().live >= 1
        del a
        assert outer.stats().live == 0 == inner.stats().live
    assert outer.stats().reserved == 0


def test_a_recording_inside_sees_what_arrays_ask():
    with mg.memory.pool() as pool, mg.memory.record() as r:
        x = mg.ones(300, 300, requires_grad=True)
        (x * 2).exp().sum().backward()
        assert pool.stats().live >= 2
    assert r.peak >= 3 * 360_000 and any(what == "Exp" for what, *_ in r.by_owner())


def workload(name):
    sys.path.insert(0, str(ROOT))
    try:
        from benchmarks.peers.minigrad_eager import make
    finally:
        sys.path.remove(str(ROOT))
    return make(name, 0)


@pytest.mark.parametrize("name", ["c", "d", "e"])
def test_training_is_bit_equal_with_and_without(name):
    runs = []
    for context in (nullcontext(), mg.memory.pool()):
        with context as pool:
            step = workload(name)
            runs.append([step() for _ in range(2)])
            if pool:
                assert pool.stats().hits > pool.stats().misses > 0
            del step
    assert runs[0] == runs[1]
    assert pool.stats().live == 0


def test_threads_with_the_context_share_the_pool():
    from contextvars import copy_context

    def work(results, k):
        rng = np.random.default_rng(k)
        for _ in range(100):
            n = int(rng.integers(10_000, 60_000))
            a = np.full(n, k)
            b = np.zeros(n)
            if not (a == k).all() or b.any():
                results.append(k)

    with mg.memory.pool() as pool:
        wrong = []
        threads = [threading.Thread(target=copy_context().run, args=(work, wrong, k)) for k in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
        assert not wrong and pool.stats().allocs == 800 and pool.stats().live == 0


# ---- the limit -------------------------------------------------------------------------------------------------------
def test_at_the_limit_the_three_largest_are_named():
    with pytest.raises(MemoryError) as found, mg.memory.pool(limit=60 * MB) as pool:
        x = mg.ones(2000, 1000, requires_grad=True)
        y = (x * 3).exp()                                            # this line
        z = mg.ones(2000, 1000)
        mg.ones(6, 2000, 1000)
    text = str(found.value)
    assert "48.00 MB are in no free piece, and the limit of 62.91 MB allows no 48.23 MB more" in text
    rows = text.splitlines()[2:-1]
    assert [row.split(":")[0].strip() for row in rows] == ["8.00 MB"] * 3
    assert "shape (2000, 1000), Tensor" in rows[0]
    assert "shape (2000, 1000), Exp, made at" in rows[1] and f"{__file__}:" in rows[1]
    assert "raise the limit" in text and isinstance(found.value.__cause__, MemoryError)
    del found, x, y, z
    assert pool.stats().live == 0


def test_an_error_inside_loses_nothing_and_the_handler_is_the_old_one():
    from minigrad.memory.handler import _numpy

    before = _numpy()[1]()
    for error in (KeyboardInterrupt, ValueError):
        with pytest.raises(error), mg.memory.pool() as pool:
            a = np.ones(100_000)
            raise error
        assert _numpy()[1]() is before and a.all()
        del a
        assert pool.stats().reserved == 0


def test_a_memory_error_that_is_not_the_pools_stays_as_it_is():
    with pytest.raises(MemoryError, match="mine"), mg.memory.pool():
        raise MemoryError("mine")


def test_after_a_refusal_that_was_caught_work_goes_on():
    with mg.memory.pool(limit=30 * MB) as pool:
        with pytest.raises(MemoryError, match="Unable to allocate"):
            np.ones(10 * MB)
        a = np.ones(MB)
        assert pool.stats().live == 1 and a.all()


def test_what_is_wrong_is_refused():
    for how in (dict(limit=0), dict(limit=-1), dict(smallest=0)):
        with pytest.raises(ValueError, match="at least 1"):
            mg.memory.pool(**how)


@pytest.mark.parametrize("inside", [
    "pool.__enter__(); a = np.ones(100_000)",
    "with pool: a = np.ones(100_000)",
    "with pool, mg.memory.record() as r: a = np.ones(100_000)",
    "with pool, mg.memory.record() as r: a = np.ones(100_000); b = mg.ones(300, 300, requires_grad=True) * 2",
    "with mg.memory.record() as r, pool: a = np.ones(100_000); raise KeyError('mine')",
    "c = mg.memory.pool(); c.__enter__(); pool.__enter__(); a = np.ones(100_000); np.cycle = [a]; "
    "np.cycle.append(np.cycle)",
])
def test_a_process_ends_cleanly_with_arrays_alive(inside):
    program = f"import numpy as np, minigrad as mg\npool = mg.memory.pool()\n{inside}\nprint(a.sum(), flush=True)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, encoding="utf-8", timeout=300)
    mine = "mine" in inside
    assert done.returncode == mine and (mine or done.stdout == "100000.0\n")
    assert ("KeyError: 'mine'" in done.stderr) if mine else not done.stderr


def test_a_limit_below_one_segment_says_what_would_do():
    with pytest.raises(MemoryError, match="raise the limit to 20,971,520 bytes"):
        with mg.memory.pool(limit=5 << 20):
            np.ones(2 << 20, np.uint8)
