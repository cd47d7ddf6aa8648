"""Messages between the workers of a Dask cluster, over the connections that Dask itself has.

A worker gets one `Hub`, which answers to two more operations of its server: an array for a rank ("post"), and words for
a rank or the referee, in order and many at once ("say").  What comes for a job that is not, or no longer, here is
dropped.  Before `seat.py`, which waits for what comes; Dask's own shuffle works the same way.
"""
from __future__ import annotations

import asyncio
import pickle
import threading
import time
from array import array as numbers
from collections import defaultdict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, Protocol, cast

import numpy as np
from distributed import Worker
from distributed.core import Status
from distributed.protocol import to_serialize

from simulator.errors import Stopped, WorkerLost

SMALL = 64 * 1024                            # bytes: rather copied than waited for
ON_THE_WAY = 256 * 2**20                     # bytes that a rank may have sent and nobody has yet
RETRY_S, LIMIT_S = 0.02, 0.1


class Place(Protocol):
    """Where words arrive: a seat or the referee.  Called on the event loop of the worker."""

    def hear(self, words: list[tuple]) -> None: ...


class Hub:
    """Where the messages for all ranks on one worker arrive."""

    def __init__(self, worker: Worker) -> None:
        self.worker, self.address = worker, worker.address
        self.loop: asyncio.AbstractEventLoop = cast(Any, worker.loop).asyncio_loop
        self.transports: dict[tuple[str, int], Transport] = {}
        self.places: dict[tuple[str, Any], Place] = {}
        worker.handlers["minigrad_post"] = self._posted
        worker.handlers["minigrad_say"] = self._said

    @classmethod
    def of(cls, worker: Worker) -> Hub:
        """The one of this worker, made when first asked for."""
        with _MAKING:
            found = worker.extensions.get("minigrad")
            if found is None:
                found = worker.extensions["minigrad"] = cls(worker)
            return found

    @property
    def open(self) -> bool:
        """Whether the worker goes on."""
        return self.worker.status in (Status.running, Status.paused)

    def wanted(self, task: str) -> bool:
        """Whether anybody still waits for this task; not after its client is gone."""
        state = self.worker.state.tasks.get(task)
        return state is not None and state.state not in ("cancelled", "released", "forgotten")

    # -- on the event loop
    async def _posted(self, job: str, src: int, dst: int, letter: bytes, data: Any) -> bool:
        there = self.transports.get((job, dst))
        if there is not None:
            name, header, dtype, shape = pickle.loads(letter)
            there.put(src, name, header, data.view(dtype).reshape(shape))
        return there is not None

    async def _said(self, job: str, words: bytes) -> bool:
        return self.heard(job, pickle.loads(words))

    def heard(self, job: str, words: list[tuple[Any, tuple]]) -> bool:
        """Words (to whom, word); False if none of those is here."""
        by: dict[Any, list[tuple]] = {}
        for to, word in words:
            by.setdefault(to, []).append(word)
        there = [(self.places.get((job, to)), batch) for to, batch in by.items()]
        for place, batch in there:
            if place is not None:
                place.hear(batch)
        return any(place is not None for place, _ in there)

    async def send(self, address: str, **message: Any) -> bool:
        return await self.worker.rpc(address).minigrad_post(**message)


_MAKING = threading.Lock()


class Line:
    """Words from here to one worker: they arrive in order, and those that wait travel together.

    Until `until` (monotonic) it is tried again where the job is not there yet.  `broken` is told what went wrong."""

    def __init__(self, hub: Hub, job: str, address: str, until: float, broken: Callable[[Exception], None]) -> None:
        self.hub, self.job, self.address, self.until, self.broken = hub, job, address, until, broken
        self._words: deque[tuple[Any, tuple]] = deque()
        self._going = self._closed = False
        self._task: asyncio.Task | None = None

    def say(self, to: Hashable, *words: tuple) -> None:
        """From any thread."""
        self._words.extend((to, word) for word in words)
        self.hub.loop.call_soon_threadsafe(self._start)

    def close(self) -> None:
        """Nobody has to hear what was not heard yet."""
        self._closed = True

    def _start(self) -> None:
        if not self._going and self._words:
            self._going = True
            self._task = self.hub.loop.create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._words:
                batch = [self._words.popleft() for _ in range(len(self._words))]
                while not await self._tell(batch) and not self._closed and time.monotonic() < self.until:
                    await asyncio.sleep(RETRY_S)
        except Exception as error:                           # of the connection: whoever waits is told
            if not self._closed:
                self.broken(error)
        finally:
            self._going = False

    async def _tell(self, batch: list[tuple[Any, tuple]]) -> bool:
        if self.address == self.hub.address:
            return self.hub.heard(self.job, batch)
        return await self.hub.worker.rpc(self.address).minigrad_say(job=self.job, words=pickle.dumps(batch))


class Transport:
    """What rank `me` of a job sends to the others and gets from them: `post` and `take`.

    `posted[dst]`: the bytes of each message, in order; `arrived[src]`: their sum, as the other side saw it."""

    def __init__(self, hub: Hub, job: str, me: int, addresses: list[str]) -> None:
        self.hub, self.job, self.me, self.addresses = hub, job, me, addresses
        self.posted: dict[int, numbers] = defaultdict(lambda: numbers("q"))
        self.arrived: dict[int, int] = defaultdict(int)
        self._mail: dict[tuple[int, Hashable], tuple[Any, np.ndarray]] = {}
        self._come = threading.Condition()
        self._stopped = False
        self._going: deque[tuple[Future, int, int]] = deque()        # (answer, bytes, receiver)
        hub.transports[job, me] = self

    # -- sending
    def post(self, dst: int, key: Hashable, header: Any, array: np.ndarray) -> Future | None:
        """A message, which belongs to the receiver; a large `array` may not be written to until the answer is there.

        WorkerLost if an earlier one did not arrive."""
        self.posted[dst].append(array.nbytes)
        if self.addresses[dst] == self.hub.address:          # one process: it would be the same memory
            there = self.hub.transports.get((self.job, dst))
            if there is not None:
                there.put(self.me, key, header, np.array(array))
            return None
        self._forget(ON_THE_WAY - array.nbytes)
        one = self.addresses[dst].startswith("inproc")        # workers in one process hand over the memory itself
        data = array.copy() if array.nbytes <= SMALL or one else array
        answer = asyncio.run_coroutine_threadsafe(self.hub.send(
            self.addresses[dst], job=self.job, src=self.me, dst=dst,
            letter=pickle.dumps((key, header, array.dtype, array.shape)),
            data=to_serialize(data.reshape(-1).view(np.uint8))), self.hub.loop)
        self._going.append((answer, array.nbytes, dst))
        return answer if data is array else None

    def flush(self) -> None:
        """Until all that was sent has arrived."""
        self._forget(-1)

    def _forget(self, most: int) -> None:
        """Look after what is on its way, until it is at most so many bytes."""
        while self._going:
            answer, _, dst = self._going[0]
            if not answer.done() and sum(nbytes for _, nbytes, _ in self._going) <= max(most, -1):
                return
            self.settle(answer, dst)
            self._going.popleft()

    def settle(self, answer: Future | None, dst: int) -> None:
        """Until a message has arrived at rank `dst`."""
        while answer is not None:
            try:
                answer.result(LIMIT_S)
                return
            except OSError as error:
                if not answer.done():                        # TimeoutError is one: not there yet
                    self._check()
                    continue
                raise WorkerLost(f"rank {self.me}: rank {dst} on {self.addresses[dst]} cannot be reached: "
                                 f"{error}") from error

    # -- receiving
    def put(self, src: int, key: Hashable, header: Any, array: np.ndarray) -> None:
        """A message has come; from any thread."""
        if not (array.flags.writeable and array.flags.aligned and array.flags.c_contiguous):
            array = np.array(array, order="C")
        with self._come:
            self.arrived[src] += array.nbytes
            self._mail[src, key] = header, array
            self._come.notify_all()

    def take(self, src: int, key: Hashable, timeout: float) -> tuple[Any, np.ndarray]:
        """(header, array) of the message with this key.  TimeoutError if it does not come; Stopped."""
        with self._come:
            if not self._come.wait_for(lambda: self._stopped or (src, key) in self._mail, timeout):
                raise TimeoutError(f"no message from rank {src} within {timeout:g} s")
            self._check()
            return self._mail.pop((src, key))

    def stop(self) -> None:
        """Whoever waits here raises Stopped."""
        with self._come:
            self._stopped = True
            self._come.notify_all()

    def close(self) -> None:
        self.stop()
        self.hub.transports.pop((self.job, self.me), None)

    def _check(self) -> None:
        if self._stopped or not self.hub.open:
            raise Stopped


__all__ = ["Hub", "Line", "Transport"]
