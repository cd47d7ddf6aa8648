"""Random streams: where draws come from.  A draw is a counter (seed, offset), so a state is two integers and a saved
one replays exactly.  After `values.py`, before `draws.py` and `create.py`."""
from __future__ import annotations

import threading
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from minigrad.algebra import draw
from minigrad.dtype import int64
from minigrad.errors import ArgumentError
from minigrad.tensor import Tensor

_DRAWING = threading.Lock()


class Generator:
    """A random stream: a seed and how many draws were made from it (Philox; each draw has its own counter block)."""

    def __init__(self, seed: int = 0) -> None:
        self.manual_seed(seed)

    def manual_seed(self, seed: int) -> Generator:
        """Start anew from `seed`, an integer of up to 63 bits (negative ones are folded)."""
        self.seed, self.offset = int(seed) & (2**63 - 1), 0
        return self

    def __repr__(self) -> str:
        return f"Generator(seed={self.seed}, offset={self.offset})"

    def initial_seed(self) -> int:
        return self.seed

    def key(self) -> Tensor:
        """The key of the next draw, handed out once whatever thread asks."""
        with _DRAWING:
            self.offset += 1
            return self.get_state()

    def get_state(self) -> Tensor:
        """[seed, offset] as an int64 tensor."""
        return Tensor(np.array([self.seed, self.offset], np.int64))

    def set_state(self, state: Tensor) -> None:
        if not isinstance(state, Tensor) or state.shape != (2,) or state.dtype != int64 or min(state.tolist()) < 0:
            raise ArgumentError(f"set_state: expected the int64 tensor [seed, offset] of get_state, got {state!r}")
        self.seed, self.offset = state.tolist()

    def host(self) -> np.random.Generator:
        """A NumPy generator for one shuffle or split, from the next draw of this stream."""
        return draw(self.key().array)


default_generator = Generator(0)


_own: ContextVar[Generator | None] = ContextVar("minigrad.own_stream", default=None)


def process_stream() -> Generator:
    """The process's stream, or the one that stands in for it here (`own_stream`)."""
    return _own.get() or default_generator


def manual_seed(seed: int) -> Generator:
    """Seed the process's stream, from which parameters, dropout and shuffles are drawn."""
    return process_stream().manual_seed(seed)


def get_rng_state() -> Tensor:
    """The state of the process's stream."""
    return process_stream().get_state()


def set_rng_state(state: Tensor) -> None:
    """Continue the process's stream from a saved state."""
    process_stream().set_state(state)


_stream: ContextVar[Generator | None] = ContextVar("minigrad.stream", default=None)


def stream(generator: Generator | None = None) -> Generator:
    """The stream to draw from: the given one, else that of `drawing_from`, else the process's."""
    return generator or _stream.get() or process_stream()


@contextmanager
def own_stream(generator: Generator):
    """`with own_stream(g):` – in this context `g` is the process's stream, as in a process of its own: `manual_seed`
    seeds it, and nobody outside sees a draw."""
    tokens = _own.set(generator), _stream.set(None)
    try:
        yield generator
    finally:
        _own.reset(tokens[0])
        _stream.reset(tokens[1])


@contextmanager
def drawing_from(generator: Generator):
    """`with drawing_from(g):` – what names no generator draws from `g`; the process's stream stays as it is."""
    token = _stream.set(generator)
    try:
        yield generator
    finally:
        _stream.reset(token)


def next_key(generator: Generator | None = None) -> Tensor:
    """The key of the next draw of a stream, by default the process's."""
    return stream(generator).key()
