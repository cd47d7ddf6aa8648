"""NumPy's memory for arrays, watched: NumPy asks for every buffer through a handler that one may replace (NEP 49).

The handler is machine code that numba makes (0.1 µs an array); Python must not stand there, since arrays also die while
an error is on its way, which ctypes would drop.  NumPy's C API is reached by ctypes as a compiled extension reaches
it.  A handler belongs to a context (`contextvars`): threads see it only if they run in a copy of one.  An array goes
back to the handler that it came from, also long after the `with`.
"""
from __future__ import annotations

import atexit
import ctypes
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import numpy as np

WORD = ctypes.c_void_p
_NAME = b"mem_handler"                       # of the capsule, as NEP 49 has it
_SET, _GET = 304, 305                        # PyDataMem_SetHandler, PyDataMem_GetHandler in NumPy's table of its C API
FUNCTIONS = ("malloc", "calloc", "realloc", "free")


class _Functions(ctypes.Structure):
    """PyDataMemAllocator: each function gets `ctx` first."""

    _fields_ = [(name, WORD) for name in ("ctx", *FUNCTIONS)]


class _Handler(ctypes.Structure):
    """PyDataMem_Handler."""

    _fields_ = [("name", ctypes.c_char * 127), ("version", ctypes.c_uint8), ("functions", _Functions)]


@lru_cache(1)
def _numpy() -> tuple[Callable[[Any], Any], Callable[[], Any]]:
    """NumPy's (set, get); set returns the handler before."""
    try:
        from numpy._core._multiarray_umath import _ARRAY_API

        table = ctypes.cast(_pointer(_ARRAY_API, None), ctypes.POINTER(WORD))
        kind = ctypes.PYFUNCTYPE
        return kind(ctypes.py_object, ctypes.py_object)(table[_SET]), kind(ctypes.py_object)(table[_GET])
    except (ImportError, AttributeError, ValueError) as e:
        raise RuntimeError("memory: this Python or NumPy has no memory handlers (NEP 49), so arrays cannot be watched "
                           f"here: {e}") from e


def _pointer(capsule: Any, name: bytes | None) -> int:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = WORD, [ctypes.py_object, ctypes.c_char_p]
    return get(capsule, name)


def _capsule(handler: _Handler) -> Any:
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [WORD, ctypes.c_char_p, WORD]
    return new(ctypes.addressof(handler), _NAME, None)


def functions_now() -> _Functions:
    """Of the handler in this context.  Keep them as long as the memory that came from them."""
    capsule = _numpy()[1]()
    functions = ctypes.cast(_pointer(capsule, _NAME), ctypes.POINTER(_Handler)).contents.functions
    functions.keeps = capsule
    return functions


# ---- a handler of ours ---------------------------------------------------------------------------
class Installed:
    """One that is installed: upon which other of ours, and NumPy's handler before it."""

    def __init__(self, below: Installed | None, before: Any) -> None:
        self.below, self.before, self.open = below, before, True


_INSTALLED: ContextVar[Installed | None] = ContextVar("minigrad.memory handler on top", default=None)


class Handler:
    """Machine code for NumPy to call, with `control` as its `ctx`: words, of which the first five are the functions
    below, as in `_Functions`.  Never freed (some hundred bytes), since arrays may die at any time."""

    every: list[Handler] = []

    def __init__(self, control: ctypes.Array, below: _Functions, code: dict[str, Any]) -> None:
        for k, name in enumerate(("ctx", *FUNCTIONS)):
            control[k] = getattr(below, name) or 0
        self.control, self.below, self._code = control, below, code
        here = [code[name].address for name in FUNCTIONS]
        self._handler = _Handler(b"minigrad", 1, _Functions(ctypes.addressof(control), *here))
        self._capsule = _capsule(self._handler)
        self.every.append(self)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))

    @contextmanager
    def installed(self) -> Iterator[None]:
        """In this context until the end of the block; one that ends before a later one does so when that ends."""
        put, top = _numpy()[0], _INSTALLED.get()
        here = Installed(top, put(self._capsule))
        _INSTALLED.set(here)
        try:
            yield
        finally:
            here.open = False
            if _INSTALLED.get() is here:
                last = here
                while last.below is not None and not last.below.open:
                    last = last.below
                put(last.before)
                _INSTALLED.set(last.below)

    def step_aside(self) -> None:
        """From here on NumPy calls what is below, for the arrays that are alive too: only for a handler that hands on
        every call."""
        for name in ("ctx", *FUNCTIONS):
            setattr(self._handler.functions, name, getattr(self.below, name))

    def at_exit(self) -> None:
        """Our machine code goes before the last arrays do."""
        self.step_aside()


@atexit.register
def _at_exit() -> None:
    for handler in Handler.every:
        handler.at_exit()


# ---- watching ------------------------------------------------------------------------------------
LIVE, PEAK, HEAD, CAPACITY, LOG, THREAD, COUNT, TAKEN = range(5, 13)


class Watch:
    """What arrays did within a `watched` block: bytes now and at most, and each event since the last `drain`.
    NumPy takes a byte for an array of no elements, which counts."""

    def __init__(self, capacity: int) -> None:
        from minigrad.memory.native import TOLD

        self._logs = [(ctypes.c_size_t * (3 * capacity))() for _ in range(2)]     # one fills while one is read
        self._words = [memoryview(log).cast("B").cast("P") for log in self._logs]
        self.control = (ctypes.c_size_t * 13)()
        self.control[CAPACITY], self.control[LOG] = capacity, ctypes.addressof(self._logs[0])
        self.control[THREAD] = ctypes.cast(ctypes.pythonapi.PyThread_get_thread_ident, WORD).value or 0
        self._at = ctypes.addressof(self.control)
        size, kind = ctypes.c_size_t, ctypes.PYFUNCTYPE                           # these keep the interpreter lock
        self._enter = kind(None, size, size, size, size)(TOLD["enter"].address)
        self._exchange = kind(size, size, size)(TOLD["exchange"].address)
        self._adopted: dict[int, weakref.ref] = {}
        self.lost = 0

    @property
    def live(self) -> int:
        """Bytes of the arrays that were made within the block, or adopted, and are alive."""
        return ctypes.c_ssize_t(self.control[LIVE]).value

    @property
    def peak(self) -> int:
        return self.control[PEAK]

    @property
    def taken(self) -> tuple[int, int]:
        """(buffers, bytes) that arrays were ever given."""
        return self.control[COUNT], self.control[TAKEN]

    @property
    def head(self) -> int:
        """Events since the last `drain`."""
        return self.control[HEAD]

    def reset_peak(self) -> None:
        self.control[PEAK] = max(self.live, 0)

    def correct(self, nbytes: int) -> None:
        self.control[LIVE] -= nbytes

    def adopt(self, owner: np.ndarray) -> None:
        """Count an array that owns its memory and was there before, from now until it dies: an event each.
        Meanwhile NumPy refuses to `resize` it, as anything that is referred to weakly."""
        at, nbytes = address_of(owner), max(owner.nbytes, 1)
        self._adopted[at] = weakref.ref(owner, lambda _: self._leaves(at, nbytes))
        self._enter(self._at, at, nbytes, 0)

    def _leaves(self, at: int, nbytes: int) -> None:
        if self._adopted.pop(at, None) is not None:
            self._enter(self._at, at, nbytes, 1)

    def close(self) -> None:
        """Nothing counts from here on."""
        self._adopted.clear()

    def drain(self) -> list[tuple[int, int]]:
        """[(address, bytes), …] in order, and the log empty again: bytes are negative where a buffer was given back, 0
        where it was resized (then the reader, who knows its bytes, takes them off with `correct`).  `lost` counts
        events that found the log full.  One thread at a time may ask."""
        return [(at, n) for at, n, _ in self.drain_with_threads()]

    def drain_with_threads(self) -> Iterable[tuple[int, int, int]]:
        """The same, to be read once, with the identity of the thread that did it."""
        if not self.control[HEAD]:
            return ()
        self._logs.reverse()
        self._words.reverse()
        told = self._exchange(self._at, ctypes.addressof(self._logs[0]))
        n = min(told, self.control[CAPACITY])
        self.lost += told - n
        words = self._words[1][:3 * n].tolist()
        sizes = [-(w >> 1) if w & 1 else w >> 1 for w in words[1::3]]
        return zip(words[::3], sizes, [w & _THREAD_BITS for w in words[2::3]])


_THREAD_BITS = (1 << 8 * ctypes.sizeof(ctypes.c_ulong)) - 1    # of a thread's identity


_DATA = object.__basicsize__                 # in every NumPy the address stands first after an object's own words


def address_of(array: np.ndarray) -> int:
    """Where its elements begin: what `array.__array_interface__` tells, in a tenth of the time."""
    return ctypes.c_size_t.from_address(id(array) + _DATA).value


@contextmanager
def watched(capacity: int = 1 << 16) -> Iterator[Watch]:
    """Watch every buffer that arrays get in this block and context, and give back within it.  The log holds `capacity`
    events between two drains."""
    from minigrad.memory.native import WATCHING

    watch = Watch(capacity)
    handler = Handler(watch.control, functions_now(), WATCHING)
    handler.logs = watch._logs                               # machine code writes there
    try:
        with handler.installed():
            yield watch
    finally:
        handler.step_aside()
        watch.close()


__all__ = ["FUNCTIONS", "Handler", "Watch", "address_of", "functions_now", "watched"]
