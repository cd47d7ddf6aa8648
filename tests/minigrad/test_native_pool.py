"""The machine code of the live pool decides as `SizeClasses` does, address for address."""
import ctypes
from bisect import insort
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

import minigrad as mg
from minigrad.memory.policies import SizeClasses

pytest.importorskip("numba")
MB = 1 << 20
ROOT = Path(__file__).resolve().parents[2]


# ---- the machine code against the policy -----------------------------------------------------------------------------
class System:
    """Memory for segments at the lowest address with room, as `Policy.reserve` has it; called as the handler below."""

    def __init__(self):
        self.memory = np.empty(600 * MB, np.uint8)                   # pages that nobody touches take no memory
        self.base = (self.memory.ctypes.data + 63) & -64
        self.taken, self.tables = [], {}
        word = ctypes.c_size_t
        self.calls = [ctypes.PYFUNCTYPE(word, word, word)(self.malloc),
                      ctypes.PYFUNCTYPE(word, word, word, word)(self.realloc),
                      ctypes.PYFUNCTYPE(None, word, word, word)(self.free)]

    def malloc(self, _, n):
        if n < MB:
            table = ctypes.create_string_buffer(n)
            self.tables[ctypes.addressof(table)] = table
            return ctypes.addressof(table)
        start = 0
        for a, size in self.taken:
            if a - start >= n - 64:
                break
            start = a + size
        insort(self.taken, (start, n - 64))
        return self.base + start

    def realloc(self, _, old, n):
        new = self.malloc(0, n)
        ctypes.memmove(new, old, len(self.tables.pop(old)))
        return new

    def free(self, _, at, n):
        if at in self.tables:
            assert len(self.tables.pop(at)) == n
        else:
            self.taken.remove((at - self.base, n - 64))


class Live:
    """A pool over such a system, called as NumPy calls it."""

    def __init__(self, limit):
        from minigrad.memory.native_pool import KEEP, POOLING

        self.system, self.pool = System(), mg.memory.pool(limit, smallest=1)
        malloc, realloc, free = (ctypes.cast(f, ctypes.c_void_p).value for f in self.system.calls)
        self.words = self.pool._words
        self.words[0], self.words[1], self.words[3], self.words[4], self.words[KEEP] = 0, malloc, realloc, free, 1
        self.pool._handler = self
        word, self.control = ctypes.c_size_t, ctypes.addressof(self.words)
        kinds = {"malloc": 3, "calloc": 4, "realloc": 4, "free": 4}
        self.call = {name: ctypes.PYFUNCTYPE(*([word] * n if name != "free" else [None, *[word] * 3]))(
            POOLING[name].address) for name, n in kinds.items()}

    def __getattr__(self, name):
        if name in ("malloc", "calloc", "realloc", "free"):
            return lambda *numbers: self.call[name](self.control, *numbers)
        raise AttributeError(name)


class Machine(RuleBasedStateMachine):
    """`live`: [(address, model's block, its bytes)], each filled with a mark of its own."""

    def __init__(self, limit=None):
        super().__init__()
        self.live_pool, self.model, self.live = Live(limit), SizeClasses(limit, header=64), []

    sizes = st.one_of(
        st.integers(1, 3000), st.integers(1, 3 * MB), st.sampled_from([448, 449, MB - 64, 9 * MB, 25 * MB]))

    @rule(n=sizes, zero=st.booleans())
    def alloc(self, n, zero):
        at = self.live_pool.calloc(n, 1) if zero else self.live_pool.malloc(n)
        try:
            block = self.model.alloc(n)
        except MemoryError as e:
            assert at == 0
            told = str(self.live_pool.pool._refusal()).splitlines()
            said = str(e).splitlines()
            assert told[0].removeprefix("pool") == said[0].removeprefix("alloc")
            assert [line.split(":")[0] for line in told[2:-1]] == [line.split(":")[0] for line in said[2:-1]]
            return
        assert at == self.live_pool.system.base + block.start + 64
        if zero:
            assert ctypes.string_at(at, n) == bytes(n)
        self.live.append((at, block, n))
        self.mark(at, block.serial, n)

    def mark(self, at, serial, n):
        """At both ends: in between nobody writes."""
        m = min(n, 256)
        ctypes.memset(at, serial % 251, m)
        ctypes.memset(at + n - m, serial % 251, m)

    def marked(self, at, serial, n):
        m = min(n, 256)
        return ctypes.string_at(at, m) == ctypes.string_at(at + n - m, m) == bytes([serial % 251]) * m

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data):
        at, block, n = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        assert self.marked(at, block.serial, n)
        self.live_pool.free(at, n)
        self.model.free(block)

    @precondition(lambda self: self.live and self.model.limit is None)
    @rule(data=st.data(), n=sizes)
    def realloc(self, data, n):
        k = data.draw(st.integers(0, len(self.live) - 1))
        at, block, before = self.live[k]
        new = self.live_pool.realloc(at, n)
        if self.model.rounded(n + 64) == block.size:
            assert new == at
            self.model._use[block.segment.kind]["requested"] += n - before
            self.model._note_peaks()
            block.requested = n
        else:
            old, old_serial, block = block, block.serial, self.model.alloc(n)
            self.model.free(old)
            assert new == self.live_pool.system.base + block.start + 64
            m = min(n, before, 256)
            assert ctypes.string_at(new, m) == bytes([old_serial % 251]) * m
        self.live[k] = new, block, n
        self.mark(new, block.serial, n)

    @rule()
    def release(self):
        assert self.live_pool.pool.empty_cache() == self.model.release()

    @invariant()
    def account(self):
        assert self.live_pool.pool.stats() == self.model.stats()
        base = self.live_pool.system.base
        blocks = [(b.start + base, b.size, b.requested, b.serial) for s in self.model.segments for b in s]
        told = [(a, size, n * (serial > 0), serial) for a, size, n, serial in self.live_pool.pool.blocks().tolist()]
        assert told == blocks
        assert self.live_pool.system.taken == [(s.start, s.size) for s in self.model.segments]

    def teardown(self):
        from minigrad.memory.native_pool import KEEP

        self.live_pool.words[KEEP] = 0                                # closed: what is empty goes back at once
        self.live_pool.pool.empty_cache()
        for at, block, n in self.live:
            assert self.marked(at, block.serial, n)
            self.live_pool.free(at, n)
        assert self.live_pool.system.taken == [] and not self.live_pool.system.tables
        stats = self.live_pool.pool.stats()
        assert stats.reserved == stats.allocated == stats.requested == stats.live == 0


@pytest.mark.parametrize("limit", [None, 45 * MB])
def test_the_machine_code_decides_as_the_policy_does(limit):
    quick = settings(max_examples=20, stateful_step_count=40, deadline=None, derandomize=True,
                     suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(lambda: Machine(limit), settings=quick)


@pytest.mark.parametrize("order", list(permutations((0, 2, 4))))
def test_of_equal_blocks_the_lowest_is_taken(order):
    live, model = Live(None), SizeClasses(header=64)
    at, blocks = [live.malloc(448) for _ in range(6)], [model.alloc(448) for _ in range(6)]
    for k in order:
        live.free(at[k], 448)
        model.free(blocks[k])
    assert [live.malloc(448) for _ in range(3)] == [at[0], at[2], at[4]]
    assert [model.alloc(448).start for _ in range(3)] == [blocks[k].start for k in (0, 2, 4)]
