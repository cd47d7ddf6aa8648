"""`with pool():` NumPy's large arrays from a caching allocator of ours, whose statistics one can read.

Memory that an array gives back stays with the pool for the next one, so that the system need not hand out, and clear,
fresh pages at each step.  The rules are `SizeClasses` of `policies.py`, run as machine code (`native_pool.py`).
"""
from __future__ import annotations

import ctypes
import gc
import sys
from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np

from minigrad.arguments import whole
from minigrad.memory.blocks import Stats, Use, refused, totals
from minigrad.memory.handler import Handler, address_of, functions_now
from minigrad.memory.live import is_a, size_text
from minigrad.memory.policies import SizeClasses
from minigrad.memory.recording import LARGE
from minigrad.tensor import Node, Tensor

BLOCK = np.dtype([("address", np.int64), ("size", np.int64), ("requested", np.int64), ("serial", np.int64)])


@dataclass(frozen=True)
class Holder:
    """Who has a block: `nbytes` asked for; shape, op and line where a tensor or the graph that is alive tells."""

    address: int
    nbytes: int
    shape: tuple[int, ...] | None = None
    op: str = ""
    line: str = ""

    def __str__(self) -> str:
        shape = f"shape {self.shape}" if self.shape is not None else ""
        told = [shape, self.op, f"made at {self.line}" * bool(self.line)]
        return f"{size_text(self.nbytes)}: {', '.join(filter(None, told)) or 'an array that no tensor shows'}"


class Pool:
    """A context manager, which may be entered again, within itself too and by several threads at a time.

    Arrays of at least `smallest` bytes that are made inside lie in the pool, others where they would.  They stay valid
    after the block; then a segment goes back to the system when its last array has died.  `limit`: bytes that the pool
    may take from the system; what passes it is a MemoryError, and when that leaves the block it names the largest
    holders.  Threads share the pool if they run in a copy of the context, as lanes and loaders do."""

    def __init__(self, limit: int | None = None, smallest: int = LARGE) -> None:
        smallest = whole("pool", "smallest", smallest, 1)
        limit = None if limit is None else whole("pool", "limit, bytes,", limit, 1)
        if not getattr(sys, "_is_gil_enabled", lambda: True)():
            raise RuntimeError("pool: Python runs without its global lock here, on which the pool relies")
        from minigrad.memory import native_pool

        self.limit, self.smallest, self._at = limit, smallest, native_pool
        self._words = (ctypes.c_ssize_t * native_pool.WORDS)()
        self._words[native_pool.SMALLEST], self._words[native_pool.LIMIT] = smallest, limit or 0
        self._words[native_pool.MEMSET] = _address(ctypes.memset)
        self._words[native_pool.MEMMOVE] = _address(ctypes.memmove)
        self._handler: _PoolHandler | None = None
        self._entered: ContextVar[tuple[tuple[ExitStack, int], ...]] = ContextVar("entered", default=())
        self._open = 0

    def __enter__(self) -> Pool:
        if self._handler is None:
            self._handler = _PoolHandler(self._words, functions_now(), self._at.POOLING)
        stack = ExitStack()
        stack.enter_context(self._handler.installed())
        self._entered.set((*self._entered.get(), (stack, self._words[self._at.REFUSALS])))
        self._open += 1
        self._words[self._at.KEEP] = 1
        return self

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        if not self._entered.get():
            raise RuntimeError("pool: it ends where it did not begin. Use it in a `with`, or end it in the thread and "
                               "context that began it")
        *rest, (stack, refusals) = self._entered.get()
        self._entered.set(tuple(rest))
        stack.close()
        self._open -= 1
        told = None
        if isinstance(error, MemoryError) and self._words[self._at.REFUSALS] > refusals:
            told = self._refusal()
        if not self._open:
            self._words[self._at.KEEP] = 0
            self.empty_cache()
        if told:
            raise told from error

    # ---- looking ----
    def stats(self) -> Stats:
        at, words = self._at, self._words[:]
        uses = (words[k:k + 4] for k in (at.USE, at.USE + 4))
        by_kind = {kind: Use(*use) for kind, use in zip(SizeClasses.kinds, uses)}
        peaks = dict(zip(("peak_requested", "peak_allocated", "peak_reserved"), words[at.PEAK:]))
        did = dict(zip(("allocs", "frees", "splits", "merges", "hits", "misses"), words[at.ALLOCS:]))
        largest = max((size for _, size, _, serial in self.blocks().tolist() if not serial), default=0)
        return Stats(**totals(by_kind), **peaks, **did, largest_free=largest, by_kind=by_kind)

    def blocks(self) -> np.ndarray:
        """(address, size, requested, serial) of each block, by address; a free one has serial 0."""
        capacity, n = 0, 1
        while n > capacity:                                         # others may allocate between the calls
            capacity = 2 * n
            rows = (ctypes.c_int64 * (4 * capacity))()              # no array of NumPy's, which might lie in the pool
            n = self._ask("blocks", ctypes.addressof(rows), capacity)
        found = np.frombuffer(memoryview(rows), BLOCK)[:n]
        found.sort(order="address")
        return found

    def holders(self, most: int = 10) -> list[Holder]:
        """The largest blocks that are given, and who has them."""
        largest = sorted((row for row in self.blocks().tolist() if row[3]), key=lambda row: (-row[2], row[3]))[:most]
        return _named([(row[0] + self._at.HEADER, row[2]) for row in largest])

    def empty_cache(self) -> int:
        """Give the empty segments back to the system; their bytes."""
        return self._ask("release")

    def __repr__(self) -> str:
        return f"pool of arrays from {size_text(self.smallest)} on" + (
            f", at most {size_text(self.limit)}" if self.limit else "") + f"\n{self.stats()}"

    def _ask(self, name: str, *numbers: int) -> int:
        """Call the machine code under Python's lock."""
        if self._handler is None:
            return 0
        kinds = [ctypes.c_size_t] * (2 + len(numbers))
        return ctypes.PYFUNCTYPE(*kinds)(self._at.ASKING[name].address)(ctypes.addressof(self._words), *numbers)

    def _refusal(self) -> MemoryError:
        at, words = self._at, self._words[:]
        nbytes, requested, allocated, reserved, largest, more = words[at.REFUSED:at.HOLDERS]
        pairs = words[at.HOLDERS:at.FIRST]
        holders = [str(h) for h in _named([(a, n) for a, n in zip(pairs[::2], pairs[1::2]) if a])]
        stats = Stats(requested, allocated, reserved, largest_free=largest)
        return refused(nbytes, more, self.limit, stats, holders, "pool")


def pool(limit: int | None = None, smallest: int = LARGE) -> Pool:
    """See `Pool`: `with mg.memory.pool() as pool: ...; print(pool.stats())`."""
    return Pool(limit, smallest)


class _PoolHandler(Handler):
    def at_exit(self) -> None:
        """Arrays that die after our machine code has gone leave their memory to the end of the process."""
        self.step_aside()
        functions, does_nothing, gives_null = self._handler.functions, ctypes.pythonapi.Py_IsInitialized, \
            ctypes.pythonapi.PyErr_Occurred
        functions.free, functions.realloc = _address(does_nothing), _address(gives_null)


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


# ---- who has what --------------------------------------------------------------------------------
def _named(blocks: list[tuple[int, int]]) -> list[Holder]:
    """The blocks (address, bytes) with what the tensors and the graphs that are alive know of them."""
    found = {at: Holder(at, n) for at, n in blocks}
    for x in gc.get_objects():
        if is_a(x, Tensor) and hasattr(x, "array"):
            node = x.node
            op, line = (type(node.op).__name__, x.made_at) if is_a(node, Node) else (type(x).__name__, "")
            _tell(found, x.array, op, line)
        elif type(x) is Node:
            for value in x.saved or ():
                for array in value if isinstance(value, tuple) else (value,):
                    _tell(found, array, f"saved for the backward of {type(x.op).__name__}", x.made_at)
    return [found[at] for at, _ in blocks]


def _tell(found: dict[int, Holder], array: Any, op: str, line: str) -> None:
    """Enter what is known of the memory that `array` shows, unless something better is known."""
    while isinstance(getattr(array, "base", None), np.ndarray):
        array = array.base
    if type(array) is np.ndarray:
        at = address_of(array)
        if at in found and (not found[at].op or (line and not found[at].line)):
            found[at] = Holder(at, found[at].nbytes, array.shape, op, line)


__all__ = ["Holder", "Pool", "pool"]
