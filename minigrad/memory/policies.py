"""Where a block goes: first fit, best fit, buddies, and size classes as PyTorch's caching allocator has them.

A policy manages addresses, not memory, so that a recorded program can be replayed through any (`replays.py`).  Each is
the three or four rules in which it differs; what they share stands first.  After `blocks.py`; `native_pool.py` does the
same as `SizeClasses` in machine code.
"""
from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable

from minigrad.memory.blocks import ALIGN, Block, Segment, Stats, Use, refused, totals
from minigrad.memory.live import size_text


def up(n: int, to: int) -> int:
    """`n` rounded up to a multiple of `to`."""
    return -(-n // to) * to


class Policy(ABC):
    """An address space: `alloc(nbytes)` gives a Block, `free(block)` takes it back, merged with free neighbours.

    `limit`: bytes that may be reserved; a request beyond it releases the empty segments, and then raises MemoryError.
    `header`: bytes of each block that the allocator keeps for itself, at its start."""

    kinds: tuple[str, ...] = ("arena",)

    def __init__(self, limit: int | None = None, header: int = 0) -> None:
        self.limit, self.header = limit, header
        self.segments: list[Segment] = []                          # in the order of their addresses
        self.vacant: dict[str, list[Block]] = defaultdict(list)    # the free blocks of each kind, in the order of `key`
        self._use = {kind: dict(requested=0, allocated=0, reserved=0, segments=0) for kind in self.kinds}
        self._did = dict.fromkeys(("allocs", "frees", "splits", "merges", "hits", "misses"), 0)
        self._peak = dict.fromkeys(("requested", "allocated", "reserved"), 0)
        self.named: Callable[[int], str] = "request {}".format      # what an error says of a block's serial

    # ---- the rules ----
    @abstractmethod
    def rounded(self, size: int) -> int:
        """The size of the block for `size` bytes."""

    def kind(self, size: int) -> str:
        """Of the segments that serve blocks of this (rounded) size."""
        return self.kinds[0]

    def key(self, block: Block) -> tuple[int, int]:
        """Free blocks are kept in this order."""
        return block.size, block.start

    def find(self, kind: str, size: int) -> Block | None:
        """A free block of at least `size`; of those the first in the order of `key`, which begins with the size."""
        blocks = self.vacant[kind]
        k = bisect_left(blocks, size, key=lambda b: b.size)
        return blocks[k] if k < len(blocks) else None

    @abstractmethod
    def grow(self, kind: str, size: int) -> Block:
        """A free block of at least `size` in memory from the system."""

    @abstractmethod
    def cut(self, block: Block, size: int) -> None:
        """Split off, with `split`, what of the block should stay free."""

    def merge(self, block: Block) -> Block:
        """The free block with the free blocks beside it."""
        if block.before and block.before.free:
            block = self.join(block.before, block)
        if block.after and block.after.free:
            block = self.join(block, block.after)
        return block

    # ---- what all do ----
    def alloc(self, nbytes: int) -> Block:
        if nbytes < 0:
            raise ValueError(f"alloc: cannot give {nbytes} bytes")
        size, self._asked = self.rounded(nbytes + self.header), nbytes
        kind = self.kind(size)
        block = self.find(kind, size)
        self._did["misses" if block is None else "hits"] += 1
        try:
            block = block or self.grow(kind, size)
        except MemoryError:
            self._did["misses"] -= 1
            raise
        self.vacant[kind].remove(block)
        self.cut(block, size)
        self._did["allocs"] += 1
        block.requested, block.serial = nbytes, self._did["allocs"]
        self._count(block, 1)
        return block

    def free(self, block: Block) -> None:
        if block.free or block.segment not in self.segments:
            raise ValueError(f"free: the block at {block.start:,} is not given to anybody: given back twice?")
        self._count(block, -1)
        self._did["frees"] += 1
        block.requested = block.serial = 0
        self._list(self.merge(block))

    def release(self) -> int:
        """Give the empty segments back to the system; their bytes."""
        empty = [s for s in self.segments if s.empty]
        for segment in empty:
            self.segments.remove(segment)
            self.vacant[segment.kind].remove(segment.first)
            self._reserved(segment.kind, -segment.size, -1)
        return sum(s.size for s in empty)

    def stats(self) -> Stats:
        by_kind = {kind: Use(**use) for kind, use in self._use.items()}
        peaks = {f"peak_{name}": n for name, n in self._peak.items()}
        largest = max((b.size for blocks in self.vacant.values() for b in blocks), default=0)
        return Stats(**totals(by_kind), **peaks, **self._did, largest_free=largest, by_kind=by_kind)

    def now(self) -> tuple[int, int, int]:
        """Bytes (requested, allocated, reserved)."""
        return tuple(sum(use[name] for use in self._use.values()) for name in self._peak)  # type: ignore[return-value]

    # ---- for the rules ----
    def split(self, block: Block, size: int) -> Block:
        """The block keeps `size` bytes; the rest is a free block of its own."""
        rest = Block(block.start + size, block.size - size, block.segment, before=block, after=block.after)
        if rest.after:
            rest.after.before = rest
        block.size, block.after = size, rest
        self._did["splits"] += 1
        self._list(rest)
        return rest

    def join(self, a: Block, b: Block) -> Block:
        """Two neighbours as one block; what was listed of them is no longer."""
        for block in (a, b):
            if block in self.vacant[block.segment.kind]:
                self.vacant[block.segment.kind].remove(block)
        a.size, a.after = a.size + b.size, b.after
        if b.after:
            b.after.before = a
        self._did["merges"] += 1
        return a

    def reserve(self, kind: str, size: int) -> Block:
        """The one free block of a new segment, at the lowest address where it has room."""
        self.allow(size)
        start = 0
        for segment in self.segments:
            if segment.start - start >= size:
                break
            start = segment.stop
        new = Segment(start, size, kind)
        insort(self.segments, new, key=lambda s: s.start)
        self._reserved(kind, size, 1)
        self._list(new.first)
        return new.first

    def allow(self, more: int) -> None:
        """MemoryError if `more` bytes would pass the limit, also when the empty segments have been released."""
        within = lambda: self.limit is None or more <= self.limit - self.now()[2]
        if within() or (self.release() and within()):
            return
        live = sorted((b for s in self.segments for b in s if not b.free), key=lambda b: (-b.requested, b.serial))
        holders = [f"{size_text(b.requested)}: {self.named(b.serial)}" for b in live[:3]]
        raise refused(self._asked, more, self.limit, self.stats(), holders)

    def _list(self, block: Block) -> None:
        insort(self.vacant[block.segment.kind], block, key=self.key)

    def _count(self, block: Block, sign: int) -> None:
        use = self._use[block.segment.kind]
        use["requested"] += sign * block.requested
        use["allocated"] += sign * block.size
        self._note_peaks()

    def _reserved(self, kind: str, size: int, segments: int) -> None:
        self._use[kind]["reserved"] += size
        self._use[kind]["segments"] += segments
        self._note_peaks()

    def _note_peaks(self) -> None:
        for name, n in zip(self._peak, self.now()):
            self._peak[name] = max(self._peak[name], n)


# ---- one arena that grows ------------------------------------------------------------------------
class BestFit(Policy):
    """The smallest free block that is large enough, and of equals the lowest; what is left of it stays free (Knuth,
    TAOCP 1, 2.5).  The arena grows at its end by what is missing."""

    def rounded(self, size: int) -> int:
        return up(max(size, 1), ALIGN)

    def grow(self, kind: str, size: int) -> Block:
        if not self.segments:
            return self.reserve(kind, size)
        arena = self.segments[0]
        *_, last = arena
        more = size - last.size if last.free else size
        self.allow(more)
        if not self.segments:                                      # the arena was empty, and is released
            return self.reserve(kind, size)
        if last.free:
            self.vacant[kind].remove(last)
        else:
            last.after = Block(last.stop, 0, arena, before=last)
            last = last.after
        last.size += more
        arena.size += more
        self._reserved(kind, more, 0)
        self._list(last)
        return last

    def cut(self, block: Block, size: int) -> None:
        if block.size > size:
            self.split(block, size)


class FirstFit(BestFit):
    """The free block with the lowest address that is large enough (Knuth, TAOCP 1, 2.5)."""

    def key(self, block: Block) -> tuple[int, int]:
        return block.start, block.size

    def find(self, kind: str, size: int) -> Block | None:
        return next((b for b in self.vacant[kind] if b.size >= size), None)


# ---- halves of halves ----------------------------------------------------------------------------
class Buddy(Policy):
    """Powers of two (Knowlton 1965): a block is halved until it just holds the request, and merges only with the half
    it was cut from, whose place in the segment differs from its own in one bit.  Finding it needs no search, but up to
    half of each block is lost."""

    kinds = ("buddies",)

    def __init__(self, limit: int | None = None, header: int = 0, segment: int = 1 << 24) -> None:
        if segment < ALIGN or segment & (segment - 1):
            raise ValueError(f"Buddy: the segment must be a power of two of at least {ALIGN} bytes, got {segment}")
        super().__init__(limit, header)
        self.segment = segment

    def rounded(self, size: int) -> int:
        return max(ALIGN, 1 << (size - 1).bit_length()) if size else ALIGN

    def grow(self, kind: str, size: int) -> Block:
        return self.reserve(kind, max(size, self.segment))

    def cut(self, block: Block, size: int) -> None:
        while block.size > size:
            self.split(block, block.size // 2)

    def merge(self, block: Block) -> Block:
        while buddy := self.buddy(block):
            block = self.join(*sorted((block, buddy), key=lambda b: b.start))
        return block

    def buddy(self, block: Block) -> Block | None:
        """The other half, if it is free and whole."""
        upper = (block.start - block.segment.start) & block.size
        other = block.before if upper else block.after
        return other if other and other.free and other.size == block.size else None


# ---- size classes --------------------------------------------------------------------------------
class SizeClasses(Policy):
    """As PyTorch's caching allocator for CUDA (c10/cuda/CUDACachingAllocator.cpp, the numbers too).

    Sizes are rounded up to 512 bytes.  Requests of up to 1 MiB are cut from segments of 2 MiB, others of less than
    10 MiB from segments of 20 MiB, and larger ones have their own, of whole 2 MiB.  The best fit of its class serves a
    request; what is left stays free where it is worth it: from 512 bytes on among the small, above 1 MiB among the
    large.  Segments are kept when they are empty, until the limit is reached or `release` is called."""

    kinds = ("small", "large")
    ROUND, SMALL, SMALL_SEGMENT = 512, 1 << 20, 2 << 20
    OWN, LARGE_SEGMENT, ROUND_LARGE = 10 << 20, 20 << 20, 2 << 20

    def rounded(self, size: int) -> int:
        return up(max(size, 1), self.ROUND)

    def kind(self, size: int) -> str:
        return "small" if size <= self.SMALL else "large"

    def grow(self, kind: str, size: int) -> Block:
        if kind == "small":
            return self.reserve(kind, self.SMALL_SEGMENT)
        return self.reserve(kind, self.LARGE_SEGMENT if size < self.OWN else up(size, self.ROUND_LARGE))

    def cut(self, block: Block, size: int) -> None:
        rest = block.size - size
        if rest >= self.ROUND if block.segment.kind == "small" else rest > self.SMALL:
            self.split(block, size)


POLICIES = (FirstFit, BestFit, Buddy, SizeClasses)
__all__ = ["POLICIES", "BestFit", "Buddy", "FirstFit", "Policy", "SizeClasses", "up"]
