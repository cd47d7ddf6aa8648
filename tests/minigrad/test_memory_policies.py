"""Every allocation policy: blocks tile their segments, nothing is lost, all merges again, the account is true."""
import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from minigrad.memory.blocks import ALIGN
from minigrad.memory.policies import POLICIES, BestFit, Buddy, FirstFit, SizeClasses

MB = 1 << 20
SIZES = st.one_of(st.integers(0, 2000), st.integers(0, 3 * MB), st.sampled_from([64, 512, 4096, MB, 9 * MB, 25 * MB]))


def checked(policy, live):
    """The account, counted anew from the blocks; `live`: {block: (start, size, requested)}."""
    stats, blocks, stop = policy.stats(), [], 0
    for segment in policy.segments:
        assert segment.start >= stop and segment.kind in policy.kinds
        at, before = segment.start, None
        for b in segment:
            assert b.start == at and b.size > 0 and b.before is before and b.segment is segment
            assert b.start % ALIGN == 0 and b.requested + policy.header <= b.size or b.free
            at, before = b.stop, b
            blocks.append(b)
        assert at == segment.stop
        stop = segment.stop
    given_, free = [b for b in blocks if not b.free], [b for b in blocks if b.free]
    assert {b: (b.start, b.size, b.requested) for b in given_} == live                  # nobody's block moved
    assert sorted(map(id, free)) == sorted(id(b) for kind in policy.vacant.values() for b in kind)
    assert all(kind == sorted(kind, key=policy.key) for kind in policy.vacant.values())
    assert stats.requested == sum(b.requested for b in given_)
    assert stats.allocated == sum(b.size for b in given_)
    assert stats.free == sum(b.size for b in free) and stats.allocated + stats.free == stats.reserved
    assert stats.reserved == sum(s.size for s in policy.segments) and stats.segments == len(policy.segments)
    assert stats.live == len(live) and stats.hits + stats.misses == stats.allocs
    assert stats.largest_free == max((b.size for b in free), default=0)
    for name in ("requested", "allocated", "reserved", "segments", "free"):
        assert getattr(stats, name) == sum(getattr(use, name) for use in stats.by_kind.values())
    assert stats.requested <= stats.allocated <= stats.reserved <= stats.peak_reserved
    if not isinstance(policy, BestFit):                       # an arena also grows by a block behind the last
        assert stats.splits - stats.merges == len(blocks) - stats.segments
    if policy.limit is not None:
        assert stats.peak_reserved <= policy.limit
    return blocks


class Machine(RuleBasedStateMachine):
    def __init__(self, make):
        super().__init__()
        self.policy, self.twin = make(), make()
        self.live, self.pairs = {}, []

    @rule(nbytes=SIZES)
    def alloc(self, nbytes):
        before = self.policy.stats()
        try:
            block = self.policy.alloc(nbytes)
        except MemoryError as e:
            assert self.policy.limit is not None and "raise the limit" in str(e)
            after = self.policy.stats()
            assert (after.requested, after.allocs, after.misses) == (before.requested, before.allocs, before.misses)
            with pytest.raises(MemoryError):
                self.twin.alloc(nbytes)
            return
        twin = self.twin.alloc(nbytes)
        assert (block.start, block.size) == (twin.start, twin.size)                     # deterministic
        assert block.requested == nbytes and block.size >= nbytes + self.policy.header
        self.live[block] = block.start, block.size, nbytes
        self.pairs.append((block, twin))

    @precondition(lambda self: self.pairs)
    @rule(data=st.data())
    def free(self, data):
        block, twin = self.pairs.pop(data.draw(st.integers(0, len(self.pairs) - 1)))
        del self.live[block]
        self.policy.free(block)
        self.twin.free(twin)

    @rule()
    def release(self):
        before = self.policy.stats().reserved
        assert self.policy.release() == self.twin.release() == before - self.policy.stats().reserved
        assert not any(s.empty for s in self.policy.segments)

    @invariant()
    def account(self):
        blocks = checked(self.policy, self.live)
        for a, b in zip(blocks, blocks[1:]):
            if a.free and b.free and a.after is b:
                assert isinstance(self.policy, Buddy) and self.policy.buddy(a) is not b, "two free neighbours"
        if isinstance(self.policy, Buddy):
            for b in blocks:
                assert b.size & (b.size - 1) == 0 and (b.start - b.segment.start) % b.size == 0

    def teardown(self):
        for block, _ in self.pairs:
            self.policy.free(block)
        assert all(s.empty for s in self.policy.segments)
        self.policy.release()
        stats = self.policy.stats()
        assert not any((stats.requested, stats.allocated, stats.reserved, stats.segments, stats.free, stats.live))


MAKERS = {
    **{cls.__name__: cls for cls in POLICIES},
    **{f"{cls.__name__} with a limit": lambda cls=cls: cls(limit=30 * MB) for cls in POLICIES},
    **{f"{cls.__name__} with a header": lambda cls=cls: cls(header=64) for cls in POLICIES},
    "Buddy of 4096": lambda: Buddy(segment=4096),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_every_policy_keeps_the_laws(make):
    from hypothesis.stateful import run_state_machine_as_test

    quick = settings(max_examples=15, stateful_step_count=40, deadline=None, derandomize=True,
                     suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(lambda: Machine(make), settings=quick)


# ---- closed forms ----------------------------------------------------------------------------------------------------
def test_first_fit_takes_the_lowest_and_best_fit_the_smallest():
    for cls, expected in ((FirstFit, 0), (BestFit, 1024)):
        p = cls()
        a, _, b, _ = (p.alloc(n) for n in (640, 384, 128, 64))
        p.free(a)
        p.free(b)
        assert p.alloc(128).start == expected and p.stats().reserved == 1216


def test_buddies_merge_with_their_half_alone():
    p = Buddy(segment=1024)
    a, b, c, d = (p.alloc(256) for _ in range(4))
    p.free(b), p.free(c)                                      # neighbours, but halves of different blocks
    assert [x.size for x in p.segments[0]] == [256] * 4 and p.stats().largest_free == 256
    p.free(a)
    assert [x.size for x in p.segments[0]] == [512, 256, 256]
    p.free(d)
    assert p.segments[0].empty and p.stats().merges == p.stats().splits == 3


@pytest.mark.parametrize(("nbytes", "size"), [(0, 64), (1, 64), (64, 64), (65, 128), (1025, 2048)])
def test_a_buddy_is_the_least_power_of_two(nbytes, size):
    assert Buddy().alloc(nbytes).size == size


@pytest.mark.parametrize(("nbytes", "size", "reserved", "kind"), [
    (1, 512, 2 * MB, "small"), (513, 1024, 2 * MB, "small"), (MB, MB, 2 * MB, "small"),
    (MB + 1, MB + 512, 20 * MB, "large"), (10 * MB - 1, 10 * MB, 10 * MB, "large"),
    (10 * MB - 512, 10 * MB - 512, 20 * MB, "large"), (11 * MB, 12 * MB, 12 * MB, "large"),
    (19 * MB, 20 * MB, 20 * MB, "large"), (21 * MB, 22 * MB, 22 * MB, "large"),
])
def test_size_classes_have_the_numbers_of_pytorch(nbytes, size, reserved, kind):
    """Of a block of its own 1 MiB or less stays unused with it, as there."""
    p = SizeClasses()
    b = p.alloc(nbytes)
    assert (b.size, p.stats().reserved, b.segment.kind) == (size, reserved, kind)


def test_a_small_request_leaves_a_large_segment_alone():
    p = SizeClasses()
    p.free(p.alloc(5 * MB))
    p.alloc(100)
    assert p.stats().misses == 2 and p.stats().by_kind["small"].segments == 1


def test_at_the_limit_empty_segments_go_first_and_then_the_largest_are_named():
    p = SizeClasses(limit=40 * MB)
    p.free(p.alloc(12 * MB))
    for n in (11, 12, 13):
        p.alloc(n * MB)
    assert p.stats().reserved == 38 * MB
    with pytest.raises(MemoryError, match=r"(?s)10.49 MB are in no free piece.*limit of 41.94 MB.*13.63 MB: request 4"
                                          ".*12.58 MB: request 3.*11.53 MB: request 2"):
        p.alloc(10 * MB)


def test_fragmentation_is_what_its_formula_says():
    p = BestFit()
    a, _, c, _ = (p.alloc(n) for n in (64, 32, 192, 64))
    p.free(a), p.free(c)
    s = p.stats()
    assert s.internal_fragmentation == 1 - 96 / 128 and s.external_fragmentation == 1 - 192 / 256
    assert s.overhead == 384 / 352 - 1
    assert "internal 25.0%, external 25.0%" in str(s)


def test_what_is_wrong_is_refused():
    p = FirstFit()
    b = p.alloc(10)
    p.free(b)
    with pytest.raises(ValueError, match="given back twice"):
        p.free(b)
    with pytest.raises(ValueError, match="-1"):
        p.alloc(-1)
    with pytest.raises(ValueError, match="power of two"):
        Buddy(segment=1000)
