"""Workers that make batches ahead of time: threads of this program, or processes of their own.  After `fetch.py`.

Batch k is made by worker k modulo their number, and the batches are taken in order.  A process gets its jobs through
one pipe and answers through another; if it dies, if it cannot be started, or if the main program dies, the other side
notices within a second.
"""

from __future__ import annotations

import os
import pickle
import queue
import random
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import copy_context
from typing import Any

import numpy as np

from minigrad.autograd import set_grad_enabled
from minigrad.data.fetch import END, Fetch, WorkerInfo, few, inside
from minigrad.dtype import get_default_dtype, set_default_dtype
from minigrad.tensor import is_grad_enabled

POLL_S = 0.1  # an untimed wait would ignore Ctrl-C on Windows
GRACE_S = 1.0  # how long a process may take to end by itself
Job = tuple[int, Any]  # the number of a batch and its items


class WorkerError(RuntimeError):
    """A worker process that could not be started, or that died."""


class WorkerTimeout(TimeoutError, RuntimeError):
    """A batch that took longer than the DataLoader's `timeout`."""


class RemoteTraceback(Exception):
    """The traceback of an error in a worker process, as text: the cause of the error raised here."""

    def __str__(self) -> str:
        return "\n" + self.args[0]


def ahead(workers: list, jobs: Iterator[Job], depth: int) -> Iterator[Any]:
    """The batches in order, each worker `depth` jobs ahead; workers that have come to their end are left out."""
    waiting: deque = deque()
    turns, idle = deque(workers), False
    while True:
        while turns and not idle and len(waiting) < depth * len(workers):
            job = next(jobs, None)
            idle = job is None
            if job is not None:
                turns[0].send(job)
                waiting.append((job, turns[0]))
                turns.rotate(-1)
        if not waiting:
            return
        job, worker = waiting.popleft()
        batch = worker.take(job)
        if batch is not END and not (isinstance(batch, str) and batch == END):
            yield batch
        elif worker in turns:
            turns.remove(worker)


# ---- threads -------------------------------------------------------------------------------------
class ThreadWorker:
    """One thread, with the settings of the loop that started it."""

    def __init__(self, fetch: Fetch, number: int, count: int, init: Callable | None, timeout_s: float) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self.fetch, self.number, self.count, self.init, self.timeout_s = fetch, number, count, init, timeout_s
        self.pool = ThreadPoolExecutor(1, "minigrad-loader")
        self.results: deque = deque()
        self.late = False

    def start(self, seed: int) -> None:
        info = WorkerInfo(self.number, self.count, seed + self.number, self.fetch.dataset)
        self.fetch.start(seed, info)
        if self.init is not None:
            self.pool.submit(copy_context().run, _initialise, self.init, info).result()

    def send(self, job: Job) -> None:
        self.results.append(self.pool.submit(copy_context().run, self.fetch, *job))

    def take(self, job: Job) -> Any:
        from concurrent.futures import wait

        result, clock = self.results.popleft(), time.monotonic()
        while not result.done():
            wait([result], timeout=POLL_S)
            if self.timeout_s and time.monotonic() - clock > self.timeout_s and not result.done():
                self.late = True
                raise _too_late(self, job)
        return result.result()

    def close(self, wait: bool) -> None:
        self.pool.shutdown(wait=wait, cancel_futures=True)


def _initialise(init: Callable, info: WorkerInfo) -> None:
    with inside(info):
        init(info.id)


def _too_late(worker: Any, job: Job) -> WorkerTimeout:
    return WorkerTimeout(
        f"DataLoader: worker {worker.number} took longer than timeout = {worker.timeout_s} s for batch {job[0]} of the "
        f"items {few(job[1])}. Give it more time, or find out what these items wait for (num_workers=0)"
    )


# ---- processes: the side of the main program -----------------------------------------------------
class ProcessWorker:
    """One process, started by spawn: it imports what it needs, and gets the dataset pickled."""

    def __init__(self, payload: bytes, number: int, count: int, timeout_s: float) -> None:
        from multiprocessing import get_context

        context = get_context("spawn")
        self.number, self.count, self.timeout_s, self.loop = number, count, timeout_s, 0
        theirs, self.jobs = context.Pipe(duplex=False)
        self.results, answers = context.Pipe(duplex=False)
        name = f"minigrad-loader-{number}"
        self.process = context.Process(target=serve, args=(theirs, answers, number, count), name=name, daemon=True)
        try:
            self.process.start()
        except BaseException:
            for end in (self.jobs, self.results):
                end.close()
            raise
        finally:
            theirs.close()
            answers.close()
        self._send(payload)

    def start(self, seed: int) -> None:
        """Begin a loop; answers to an earlier one, left early, are dropped."""
        self.loop += 1
        self._send((self.loop, seed, is_grad_enabled(), get_default_dtype().name))

    def send(self, job: Job) -> None:
        self._send((self.loop, job))

    def _send(self, message: Any) -> None:
        try:
            self.jobs.send(message)
        except OSError:  # it is dead: `take` says so, when its turn comes
            pass

    def take(self, job: Job) -> Any:
        clock, loop = time.monotonic(), None
        while loop != self.loop:
            kind, loop, value = self._answer(job, clock)
            if kind == "unusable":
                error = WorkerError(f"DataLoader: worker {self.number} could not begin. {_HOW}")
                raise error from RemoteTraceback(value)
        if kind == "error":
            error, text = value
            raise error from RemoteTraceback(text)
        return value

    def _answer(self, job: Job, clock: float) -> tuple[str, int, Any]:
        from multiprocessing.connection import wait

        while True:
            ready = wait([self.results, self.process.sentinel], POLL_S)
            if self.results in ready:
                try:
                    return pickle.loads(self.results.recv_bytes())
                except (EOFError, OSError):
                    raise self._dead(job) from None
            if ready:
                raise self._dead(job)
            if self.timeout_s and time.monotonic() - clock > self.timeout_s:
                raise _too_late(self, job)

    def _dead(self, job: Job) -> WorkerError:
        self.process.join(5 * GRACE_S)  # its pipes close before it has quite ended
        code = self.process.exitcode
        try:
            how = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
        except ValueError:
            how = f"signal {-code}"
        return WorkerError(
            f"DataLoader: worker {self.number} (process {self.process.pid}) died with {how} before batch {job[0]} of "
            f"the items {few(job[1])} was made. SIGKILL often means that memory ran out; exit code 1 at the start, "
            "that a script starts its loop outside of: if __name__ == '__main__'"
        )

    def ask_to_end(self) -> None:
        self._send(None)
        self.jobs.close()

    def close(self, until: float) -> None:
        """End by itself, by request, by force: whichever comes first."""
        for force in (None, self.process.terminate, self.process.kill):
            if force is not None:
                force()
                until = time.monotonic() + GRACE_S
            if self._ended(until):
                break
        self.results.close()
        if not self.process.is_alive():
            self.process.close()

    def _ended(self, until: float) -> bool:
        """Whether the process ends in time.  Answers that nobody wants are read: their sender would wait for it."""
        while self.process.is_alive() and time.monotonic() < until:
            try:
                if self.results.poll(0.01):
                    self.results.recv_bytes()
            except (EOFError, OSError):
                self.process.join(0.01)
        return not self.process.is_alive()


_HOW = (
    "A new process cannot see what a notebook's cells define: put the dataset's class and the functions it needs into "
    "a file of their own and import it, or let threads work: multiprocessing_context='thread'"
)


def close_all(workers: list) -> None:
    """End all workers, together; again does nothing."""
    processes = [w for w in workers if isinstance(w, ProcessWorker)]
    threads = [w for w in workers if isinstance(w, ThreadWorker)]
    workers.clear()
    for process in processes:
        process.ask_to_end()
    until = time.monotonic() + GRACE_S
    for process in processes:
        process.close(until)
    in_time = not any(thread.late for thread in threads)
    for thread in threads:
        thread.close(wait=in_time)  # a thread cannot be stopped: those that are late end after their item


def packed(fetch: Fetch, init: Callable | None) -> bytes:
    """What each process gets: dataset, collate_fn and worker_init_fn, pickled; TypeError names what cannot be."""
    parts = {"dataset": fetch.dataset, "collate_fn": fetch.collate_fn, "worker_init_fn": init}
    for name, part in parts.items():
        try:
            pickle.dumps(part)
        except Exception as e:
            raise TypeError(
                f"DataLoader: the {name} cannot be sent to a new process ({type(e).__name__}: {e}). Functions and "
                "classes must stand at the top of a file, not inside a function and not be lambdas; or let threads "
                "work: multiprocessing_context='thread'"
            ) from e
    return pickle.dumps((fetch, init))


# ---- processes: the side of the worker -----------------------------------------------------------
def serve(link: Any, answers: Any, number: int, count: int) -> None:
    """The whole life of a worker process: the payload first, then loops and jobs until the main program says None."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main program, which ends this one
    mail: queue.SimpleQueue = queue.SimpleQueue()
    over = threading.Event()
    threading.Thread(target=_read, args=(link, mail, over), daemon=True).start()
    try:
        fetch, init = pickle.loads(mail.get())
    except BaseException:
        _send(answers, ("unusable", 0, traceback.format_exc()))
        return
    first, grad, trouble = True, True, None
    for message in iter(mail.get, None):
        if over.is_set():
            return
        if len(message) == 4:
            _, seed, grad, dtype = message
            set_default_dtype(np.dtype(dtype))
            fetch.start(seed, WorkerInfo(number, count, seed + number, fetch.dataset))
            trouble = _prepared(init, fetch.info) if first else trouble
            first = False
        else:
            loop, job = message
            kind, value = ("error", trouble) if trouble else _made(fetch, job, grad)
            if not _send(answers, (kind, loop, value)):
                return


def _read(link: Any, mail: queue.SimpleQueue, over: threading.Event) -> None:
    """Take messages at once, so that the main program never waits to send; without it, end."""
    while not over.is_set():
        try:
            message = link.recv()
        except (EOFError, OSError):
            os._exit(1)  # the main program is gone
        if message is None:
            over.set()
        mail.put(message)


def _prepared(init: Callable | None, info: WorkerInfo) -> tuple[BaseException, str] | None:
    """Seeds and `worker_init_fn`; an error is kept for the first batch."""
    random.seed(info.seed)
    np.random.seed(info.seed % 2**32)
    try:
        if init is not None:
            _initialise(init, info)
    except Exception as e:
        e.add_note(f"in worker_init_fn({info.id}) of the DataLoader")
        return _portable(e)
    return None


def _made(fetch: Fetch, job: Job, grad: bool) -> tuple[str, Any]:
    try:
        with set_grad_enabled(grad):
            return "batch", fetch(*job)
    except BaseException as e:
        return "error", _portable(e)


def _portable(error: BaseException) -> tuple[BaseException, str]:
    """An error as it can be sent, and its traceback as text."""
    text = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
        return error, text
    except Exception:
        plain = RuntimeError(f"{type(error).__name__}: {error}")
        for note in getattr(error, "__notes__", ()):
            plain.add_note(note)
        return plain, text


def _send(answers: Any, message: tuple) -> bool:
    """Whether the main program is still there."""
    try:
        data = pickle.dumps(message)
    except Exception as e:
        e.add_note("in the DataLoader: what collate_fn returned cannot be sent to the main program")
        data = pickle.dumps(("error", message[1], _portable(e)))
    try:
        answers.send_bytes(data)
        return True
    except OSError:
        return False
