"""Segments, the blocks that they are cut into, and what is counted of them: the words of every allocator.

A segment is what an allocator has from the system; its blocks lie side by side without a gap, each free or given to the
program.  Before `policies.py`, which decides where a block goes.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields

from minigrad.memory.live import size_text

ALIGN = 64                     # bytes: a cache line, and the widest vector that NumPy's loops load


@dataclass(eq=False, slots=True)
class Block:
    """`size` bytes at the address `start`.  `requested` of them the program asked for; `serial` is the number of that
    request, and 0 while the block is free."""

    start: int
    size: int
    segment: Segment = field(repr=False)
    requested: int = 0
    serial: int = 0
    before: Block | None = field(default=None, repr=False)
    after: Block | None = field(default=None, repr=False)

    @property
    def free(self) -> bool:
        return self.serial == 0

    @property
    def stop(self) -> int:
        return self.start + self.size


@dataclass(eq=False, slots=True)
class Segment:
    """`size` bytes from the system at `start`; `kind` says which requests it serves."""

    start: int
    size: int
    kind: str
    first: Block = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.first = Block(self.start, self.size, self)

    def __iter__(self) -> Iterator[Block]:
        """Its blocks in the order of their addresses."""
        block: Block | None = self.first
        while block is not None:
            yield block
            block = block.after

    @property
    def stop(self) -> int:
        return self.start + self.size

    @property
    def empty(self) -> bool:
        return self.first.free and self.first.after is None


@dataclass(frozen=True)
class Use:
    """Bytes now in segments of one kind: `requested` ≤ `allocated` ≤ `reserved`."""

    requested: int = 0
    allocated: int = 0
    reserved: int = 0
    segments: int = 0

    @property
    def free(self) -> int:
        return self.reserved - self.allocated


@dataclass(frozen=True)
class Stats(Use):
    """What an allocator holds and did; `by_kind` sums to the first four.

    `requested` is what the program asked for, `allocated` the sizes of its blocks, `reserved` the segments; `peak_…`
    the most that each was.  A `hit` is a request that a free block served, a `miss` one that took memory from the
    system, so hits + misses = allocs, and allocs - frees blocks are live."""

    peak_requested: int = 0
    peak_allocated: int = 0
    peak_reserved: int = 0
    allocs: int = 0
    frees: int = 0
    splits: int = 0
    merges: int = 0
    hits: int = 0
    misses: int = 0
    largest_free: int = 0
    by_kind: dict[str, Use] = field(default_factory=dict)

    @property
    def live(self) -> int:
        """Blocks that the program has."""
        return self.allocs - self.frees

    @property
    def internal_fragmentation(self) -> float:
        """1 - requested / allocated: the share of its blocks that the program did not ask for."""
        return 1 - self.requested / self.allocated if self.allocated else 0.0

    @property
    def external_fragmentation(self) -> float:
        """1 - largest free block / free bytes: the share of what is free that one request cannot have."""
        return 1 - self.largest_free / self.free if self.free else 0.0

    @property
    def overhead(self) -> float:
        """peak reserved / peak requested - 1: what the program paid for the allocator (Johnstone and Wilson 1998,
        their fourth measure)."""
        return self.peak_reserved / self.peak_requested - 1 if self.peak_requested else 0.0

    def __str__(self) -> str:
        rows = [f"{'':12}{'now':>12}{'at most':>12}"]
        for name in ("requested", "allocated", "reserved"):
            rows.append(f"{name:12}{size_text(getattr(self, name)):>12}{size_text(getattr(self, f'peak_{name}')):>12}")
        rows += [f"{kind}: {size_text(use.reserved)} in {use.segments} segment{'s' * (use.segments != 1)}, "
                 f"{size_text(use.free)} free" for kind, use in self.by_kind.items() if use.segments]
        rows.append(f"{self.allocs:,} requests: {self.hits:,} hits, {self.misses:,} misses; {self.frees:,} given back; "
                    f"{self.splits:,} splits, {self.merges:,} merges")
        rows.append(f"fragmentation: internal {self.internal_fragmentation:.1%}, "
                    f"external {self.external_fragmentation:.1%}; overhead {self.overhead:.1%}")
        return "\n".join(rows)


def totals(by_kind: dict[str, Use]) -> dict[str, int]:
    """The sums over the kinds, as the first fields of `Stats`."""
    return {f.name: sum(getattr(use, f.name) for use in by_kind.values()) for f in fields(Use)}


def refused(
    nbytes: int, more: int, limit: int | None, stats: Stats, holders: list[str], what: str = "alloc"
) -> MemoryError:
    """The error of a request of `nbytes` that needs `more` from the system, which would pass the limit (None: which the
    system has not); `holders`: the largest that the program has, one a line."""
    wrong = "the system has no" if limit is None else f"the limit of {size_text(limit)} allows no"
    told = "".join(f"\n  {holder}" for holder in holders) or "\n  nothing"
    if not holders and limit is not None:                    # a segment, which is more than the request, has no room
        return MemoryError(f"{what}: {size_text(nbytes)} need a segment of {size_text(more)}, and {wrong} that, "
                           f"though nothing is held: raise the limit to {more:,} bytes at least")
    return MemoryError(
        f"{what}: {size_text(nbytes)} are in no free piece, and {wrong} {size_text(more)} more: "
        f"{size_text(stats.reserved)} are reserved, {size_text(stats.free)} of them free, in pieces of at most "
        f"{size_text(stats.largest_free)}.\nThe largest holders:{told}\nFree one of them (`del`, `backward()`, "
        "`detach()` what you keep), take a smaller batch, checkpoint, or raise the limit.")


__all__ = ["ALIGN", "Block", "Segment", "Stats", "Use", "refused", "size_text", "totals"]
