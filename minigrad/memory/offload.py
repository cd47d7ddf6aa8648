"""Saved arrays that leave during forward, to the host or to disk, and are back when backward reaches them.

One thread copies in the background: out in the order in which they were saved, and in, ahead of the sweep, the other
way round.  What leaves is the whole buffer behind an array (`buffers.py`), once for all arrays in it.  After
`stores.py`; the hooks are those of `saved.py`.
"""
from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from time import monotonic, perf_counter
from typing import Any

from minigrad.algebra import algebra_of
from minigrad.arguments import folder_there
from minigrad.aval import Aval
from minigrad.buffers import Place, taken_apart
from minigrad.device import CPU, device_of
from minigrad.errors import GraphError, OffloadError
from minigrad.memory.stores import DiskStore, HostStore
from minigrad.saved import Box, Saver, held_by_leaf
from minigrad.tensor import Tensor, Writes, site_text, tick

# Of a buffer: in memory and on its way out; copied, memory not yet let go; elsewhere; on its way in; in again; to stay.
LEAVING, COPIED, AWAY, COMING, BACK, STAYS = "leaving", "copied", "away", "coming", "back", "stays"


class offload(Saver):
    """`with offload(to="disk") as o:` – forward and backward of steps, with less memory; `print(o)` tells what it cost.

    `to`: "host", for arrays of other devices, or "disk".  Buffers of fewer than `min_bytes` stay, and so do what leaves
    hold (parameters, inputs that want a gradient): they are alive anyway.  `prefetch`: buffers that are fetched ahead
    of backward.  `in_flight`: bytes that wait to be copied at most; then forward waits.

    On disk: files are in a folder of their own within `folder`, and gone at the end of the block, however it ends, so
    backward belongs inside; what is on the host may come back later.  A disk that is full, or `limit` bytes of it:
    arrays stay in memory, with one warning (`on_full="keep"`), or OffloadError (`"raise"`).  OffloadError also where a
    file was deleted or changed, and after `timeout_s` without an answer.  As ever a saved array must not be written
    before backward: GraphError, unless its copy was made before."""

    def __init__(self, to: str = "disk", *, min_bytes: int = 1 << 16, folder: str | os.PathLike | None = None,
                 prefetch: int = 2, limit: int | None = None, on_full: str = "keep", in_flight: int = 1 << 26,
                 timeout_s: float = 60.0) -> None:
        super().__init__()
        if to not in ("host", "disk") or on_full not in ("keep", "raise"):
            raise ValueError(f'offload: to={to!r}, on_full={on_full!r}; take "host" or "disk", and "keep" or "raise"')
        if min(min_bytes, prefetch, in_flight, limit or 0) < 0 or not 0 < timeout_s <= threading.TIMEOUT_MAX:
            raise ValueError(f"offload: min_bytes={min_bytes}, prefetch={prefetch}, in_flight={in_flight}, "
                             f"limit={limit} must not be negative, and timeout_s={timeout_s} positive and finite")
        folder_there("offload", folder)
        self.to, self.min_bytes, self.prefetch, self.on_full = to, min_bytes, prefetch, on_full
        self.folder, self.limit, self.in_flight, self.timeout_s = folder, limit, in_flight, timeout_s
        self.buffers = self.bytes_out = self.bytes_in = self.kept_bytes = 0
        self.copying_s = self.waited_s = 0.0
        self._store: Any = None
        self._thread: threading.Thread | None = None
        self._turn = threading.Condition(threading.RLock())
        self._reads: deque[tuple[weakref.ref, int, Context]] = deque()     # with bytes that are pending
        self._writes: deque[tuple[weakref.ref, int, Context]] = deque()
        self._done: deque[_Buffer] = deque()
        self._known: weakref.WeakValueDictionary[int, _Buffer] = weakref.WeakValueDictionary()
        self._order: list[weakref.ref] = []                  # as saved; a buffer's last place counts
        self._pending, self._full_at, self._warned, self._open = 0, None, False, False
        self._pass = 1                                       # backwards so far, of a graph that is kept
        self._failed: OffloadError | None = None             # told when the next array would leave

    @property
    def hidden(self) -> float | None:
        """The share of the copying that nobody waited for: 1 - waited / copying.  None if nothing was copied."""
        return max(0.0, 1 - self.waited_s / self.copying_s) if self.copying_s else None

    def __str__(self) -> str:
        hidden = "" if self.hidden is None else f", {self.hidden:.0%} hidden"
        return (f"offload to {self.to}: {self.buffers} buffers, {self.bytes_out:,} bytes out, {self.bytes_in:,} in; "
                f"copying {self.copying_s * 1e3:.1f} ms, waited {self.waited_s * 1e3:.1f} ms{hidden}"
                + f"; {self.kept_bytes:,} bytes stayed, as there was no room" * bool(self.kept_bytes))

    __repr__ = __str__

    # -- the block
    def __enter__(self) -> offload:
        if self._open:
            raise RuntimeError("offload: this one is in use already; make another")
        self._known.clear()                                  # of blocks before
        self._order.clear()
        self._store = HostStore() if self.to == "host" else DiskStore(self.folder, self.limit)
        try:
            self._open, self._full_at, self._warned, self._failed = True, None, False, None
            self._thread = threading.Thread(target=self._work, name="minigrad offload", daemon=True)
            self._thread.start()
            super().__enter__()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, kind: Any = None, *rest: object) -> None:
        try:
            super().__exit__(kind, *rest)
            if kind is None and self._store.lasts:           # backward may come later: let the memory go now
                self._wait(lambda: not self._pending)
        finally:
            self._close()

    def _close(self) -> None:
        """The thread ends after what it is doing, and files go, also if it hangs."""
        with self._turn:
            self._open = False
            self._turn.notify_all()
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join(min(self.timeout_s, 5.0))
        self._store.close()
        self._thread = None
        self._reads.clear()
        self._writes.clear()

    # -- out
    def pack(self, value: Any, x: Tensor | None) -> Any:
        self._retire()
        if self._failed is not None:
            error, self._failed = self._failed, None
            raise error
        if value.__class__ is Aval or held_by_leaf(x) or not self._open:
            return value
        if self.to == "host" and device_of(value) is CPU:
            return value
        apart = taken_apart(value)
        if apart is None or apart[0].nbytes < self.min_bytes:
            return value
        flat, place = apart
        owner = algebra_of(flat).storage(flat)
        buffer = self._known.get(id(owner))
        if buffer is None or buffer.owner() is not owner or Writes.of(flat)[0] > buffer.clock:
            if self._full_at is not None and self._store.used >= self._full_at:
                self.kept_bytes += flat.nbytes
                return value
            buffer = self._known[id(owner)] = _Buffer(self, flat, owner)
            self._send(buffer)
        while self._order and self._order[-1]() is None:
            self._order.pop()
        buffer.uses, buffer.left, buffer.index = buffer.uses + 1, buffer.left + 1, len(self._order)
        self._order.append(weakref.ref(buffer))
        return _AwayBox(buffer, place)

    def _send(self, buffer: _Buffer) -> None:
        self._full_at = None
        with self._turn:
            self.buffers, self._pending = self.buffers + 1, self._pending + buffer.nbytes
            self._writes.append((weakref.ref(buffer), buffer.nbytes, copy_context()))
            self._turn.notify_all()
        if self._pending > self.in_flight and not self._wait(lambda: self._pending <= self.in_flight):
            self._warn(f"{self.to} took nothing for {self.timeout_s} s; arrays pile up in memory meanwhile")

    def _retire(self) -> None:
        """Let go of what has been copied; called by the program's threads, whose writes in place are over then."""
        while self._done:
            try:
                buffer = self._done.popleft()
            except IndexError:                               # another thread was faster
                return
            if buffer.state == LEAVING:
                self._stays(buffer)
            elif buffer.state == COPIED:
                if Writes.of(buffer.flat)[0] > buffer.clock:
                    buffer.torn = Writes.of(buffer.flat)[1]
                buffer.state, buffer.flat = AWAY, None

    def _stays(self, buffer: _Buffer) -> None:
        """It could not be written."""
        buffer.state, error, buffer.error = STAYS, buffer.error, None
        self.kept_bytes, self._full_at = self.kept_bytes + buffer.nbytes, self._store.used
        said = f"a saved array of {buffer.nbytes:,} bytes could not be put on {self.to}: {error}"
        if self.on_full == "keep":
            return self._warn(f"{said}. It stays in memory, and so will others until there is room")
        self._failed = OffloadError(f"offload: {said}. It is still in memory; on_full=\"keep\" goes on with it")
        self._failed.__cause__ = error

    def _warn(self, said: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(f"offload: {said}", stacklevel=2)

    # -- in
    def fetch(self, buffer: _Buffer) -> Any:
        """The buffer's bytes in memory again; those before it are sent for."""
        self._retire()
        if buffer.state in (LEAVING, COPIED, STAYS):
            at, site, _ = Writes.of(buffer.flat)
            if at > buffer.clock:
                buffer.torn = site
        if buffer.torn is not None:
            raise GraphError(f"offload: a saved value of {buffer.nbytes:,} bytes was changed in place\n"
                             f"at {site_text(*buffer.torn)}\nbefore its copy was made. Write to a clone(), or move the "
                             "write after backward()")
        if buffer.over == self._pass:
            self._pass += 1
        here = self._open and buffer.store is self._store
        if not here and buffer.state in (AWAY, COMING):
            self._fetch_alone(buffer)
        if here:
            self._ask(buffer)
            self._ahead(buffer.index)
        if buffer.state == COMING and not self._wait(lambda: buffer.state != COMING):
            raise OffloadError(f"offload: {buffer.nbytes:,} bytes did not come back from {self.to} within "
                               f"{self.timeout_s} s. Run the forward again")
        if buffer.state == AWAY:
            raise buffer.error
        return buffer.used()

    def _fetch_alone(self, buffer: _Buffer) -> None:
        """After the end of the block."""
        if not buffer.store.lasts:
            raise OffloadError('offload: backward after the end of `with offload(to="disk")`, whose files are gone. '
                               "Call backward inside the block")
        buffer.flat, buffer.state = buffer.store.get(buffer.key, buffer.where), BACK
        self.bytes_in += buffer.nbytes

    def _ask(self, buffer: _Buffer) -> None:
        with self._turn:
            if buffer.state == AWAY:
                buffer.state = COMING
                self._reads.append((weakref.ref(buffer), 0, copy_context()))
                self._turn.notify_all()

    def _ahead(self, index: int) -> None:
        """Send for those that backward reaches next."""
        found = 0
        for k in range(index - 1, -1, -1):
            if found == self.prefetch:
                return
            buffer = self._order[k]()
            if buffer is not None and buffer.index == k and buffer.over < self._pass and buffer.torn is None:
                self._ask(buffer)
                found += 1

    # -- the thread
    def _work(self) -> None:
        while True:
            with self._turn:
                while self._open and not (self._reads or self._writes):
                    self._turn.wait(1.0)
                if not self._open:
                    return
                ref, nbytes, context = (self._reads or self._writes).popleft()
            buffer = ref()                                   # None: nobody needs it any more
            if buffer is not None:
                context.run(self._copy, buffer)
                del buffer
            with self._turn:
                self._pending -= nbytes
                self._turn.notify_all()

    def _copy(self, buffer: _Buffer) -> None:
        start, state = perf_counter(), buffer.state
        error: Exception | None = None
        try:
            if state == LEAVING:
                buffer.key = buffer.store.put(buffer.flat)
            else:
                buffer.flat = buffer.store.get(buffer.key, buffer.where)
        except Exception as e:
            error = e
        seconds = perf_counter() - start
        with self._turn:
            self.copying_s, buffer.error = self.copying_s + seconds, error
            if state == LEAVING:
                if error is None and buffer.state == LEAVING:        # else it was settled meanwhile, and stays
                    buffer.state, self.bytes_out = COPIED, self.bytes_out + buffer.nbytes
                self._done.append(buffer)
            else:
                buffer.state = BACK if error is None else AWAY
                self.bytes_in += buffer.nbytes if error is None else 0
            self._turn.notify_all()

    def _wait(self, ready: Callable[[], bool]) -> bool:
        """Wait for the thread; False after `timeout_s`."""
        start, until = perf_counter(), monotonic() + self.timeout_s
        try:
            with self._turn:
                while not ready():
                    left = until - monotonic()
                    if left <= 0 or not self._open:
                        return ready()
                    self._turn.wait(left)
        finally:
            self.waited_s += perf_counter() - start
        self._retire()
        return True

    def settle(self, buffer: _Buffer, x: Tensor, shows: Callable[[Any, Tensor], bool]) -> None:
        """`x` is about to be written: if the buffer is its memory still, it is copied first."""
        self._retire()
        if buffer.flat is None or buffer.state not in (LEAVING, COPIED, STAYS) or not shows(buffer.flat, x):
            return
        if buffer.state == LEAVING and self._open:
            self._wait(lambda: buffer.state != LEAVING or buffer.error is not None)
            self._retire()
        if buffer.flat is not None and buffer.state in (LEAVING, STAYS):
            buffer.flat, buffer.state = algebra_of(buffer.flat).copy(buffer.flat), STAYS


class _Buffer:
    """A buffer that leaves and comes back, for all the boxes whose arrays lie in it."""

    __slots__ = ("of", "store", "flat", "owner", "clock", "nbytes", "where", "state", "key", "error", "torn", "uses",
                 "left", "index", "over", "__weakref__")

    def __init__(self, of: offload, flat: Any, owner: Any) -> None:
        self.key, self.store = None, of._store
        self.of, self.flat, self.owner, self.clock = of, flat, weakref.ref(owner), tick()
        self.nbytes, self.where, self.state = flat.nbytes, device_of(flat), LEAVING
        self.error: Exception | None = None
        self.torn: tuple | None = None                       # where it was written while it was on its way
        self.uses = self.left = self.index = self.over = 0

    def used(self) -> Any:
        """Its bytes, for one of the boxes; after the last of them it is elsewhere again."""
        flat, self.left = self.flat, self.left - 1
        if self.left <= 0:
            self.left, self.over = self.uses, self.of._pass
            if self.state == BACK:
                self.state, self.flat = AWAY, None
        return flat

    def __del__(self) -> None:
        if self.key is not None:
            self.store.drop(self.key)


class _AwayBox(Box):
    __slots__ = ("buffer", "place")

    def __init__(self, buffer: _Buffer, place: Place) -> None:
        self.buffer, self.place = buffer, place

    def open(self) -> Any:
        return self.place.look(self.buffer.of.fetch(self.buffer))

    def spare(self, x: Tensor, shows: Callable[[Any, Tensor], bool]) -> None:
        self.buffer.of.settle(self.buffer, x, shows)


__all__ = ["offload"]
