"""Gradients made smaller before they are sent, and what was left out kept for the next step.

    compressor = ErrorFeedback(TopK(0.01))           # one for each gradient and rank: it has a memory
    mean, _ = compressor.average(gradient, comm)     # sends 1 % of the values, with their places

`encode` makes a Payload, whose `nbytes` travel; `decode` makes an array of it again.  Gradients are NumPy arrays of
floats.  Inf and NaN go through as such and leave no trace in the memory: a step that is skipped for them is over.
"""
from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import ceil, prod
from operator import index
from typing import Any, Protocol

import numpy as np

State = dict[str, Any]


class Ranks(Protocol):
    """What `average` needs of a communicator."""

    @property
    def world_size(self) -> int: ...
    def all_reduce(self, x: np.ndarray) -> np.ndarray: ...
    def all_gather(self, x: np.ndarray) -> list[np.ndarray]: ...


@dataclass(frozen=True)
class Payload:
    """What travels instead of an array of this shape and dtype."""

    parts: tuple[np.ndarray, ...]
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    @property
    def ratio(self) -> float:
        """How many times smaller than the array."""
        return prod(self.shape) * self.dtype.itemsize / self.nbytes if self.nbytes else 1.0

    def packed(self) -> np.ndarray:
        """All parts as bytes, one after the other: one message."""
        return np.concatenate([np.ascontiguousarray(part).reshape(-1).view(np.uint8) for part in self.parts])

    def unpacked(self, packed: np.ndarray) -> Payload:
        """The payload of another rank, whose parts have the same shapes as these."""
        if packed.nbytes != self.nbytes:
            raise ValueError(f"Payload: {packed.nbytes} bytes came, and this rank's has {self.nbytes}: all ranks need "
                             f"the same compressor and gradients of one shape")
        parts, at = [], 0
        for part in self.parts:
            cut = np.ascontiguousarray(packed[at:at + part.nbytes])
            parts.append(cut.view(part.dtype).reshape(part.shape))
            at += part.nbytes
        return Payload(tuple(parts), self.shape, self.dtype)


class Compressor(ABC):
    """A way to make gradients smaller.  One object for each gradient and rank."""

    @abstractmethod
    def encode(self, gradient: np.ndarray) -> Payload: ...

    @abstractmethod
    def decode(self, payload: Payload) -> np.ndarray: ...

    def average(self, gradient: np.ndarray, comm: Ranks) -> tuple[np.ndarray, np.ndarray]:
        """(the mean over all ranks of what their payloads say, what this rank's says): all_gather, then decode each."""
        own = self.encode(gradient)
        decoded = [self.decode(own.unpacked(each)) for each in comm.all_gather(own.packed())]
        return _mean(decoded), self.decode(own)

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None:
        if state:
            raise ValueError(f"{type(self).__name__} keeps nothing, and was given {sorted(state)}")


class Float16(Compressor):
    """Half of float32's bytes.  What is over 65504 becomes inf; what is under 6e-8, 0.  Summed as float16 after the
    division by the ranks (PyTorch's `fp16_compress_hook`)."""

    def encode(self, gradient: np.ndarray) -> Payload:
        x = _floats(gradient)
        with np.errstate(over="ignore", under="ignore"):
            return Payload((x.astype(np.float16),), x.shape, x.dtype)

    def decode(self, payload: Payload) -> np.ndarray:
        return payload.parts[0].astype(payload.dtype)

    def average(self, gradient: np.ndarray, comm: Ranks) -> tuple[np.ndarray, np.ndarray]:
        own = self.encode(_floats(gradient) / comm.world_size)
        total = Payload((comm.all_reduce(own.parts[0]),), own.shape, own.dtype)
        return self.decode(total), self.decode(own) * comm.world_size


class Int8(Compressor):
    """A byte a value, and for each block a scale: its largest magnitude is 127 (Alistarh et al. 2017, QSGD).

    Rounded up or down by chance, so that its expectation is the gradient; `stochastic=False`: to the nearest.  Give
    ranks different seeds, so that their errors average out."""

    def __init__(self, block: int = 256, *, stochastic: bool = True, seed: int = 0) -> None:
        if index(block) < 1:
            raise ValueError(f"Int8: block must be at least 1, got {block}")
        self.block, self.stochastic, self.seed, self.step = block, stochastic, index(seed), 0

    def encode(self, gradient: np.ndarray) -> Payload:
        x = _floats(gradient)
        wide = x.astype(np.promote_types(x.dtype, np.float32), copy=False).reshape(-1)
        blocks = np.zeros((ceil(wide.size / self.block), self.block), wide.dtype)
        blocks.reshape(-1)[:wide.size] = wide
        with np.errstate(all="ignore"):
            scale = np.abs(blocks).max(axis=1, initial=0, keepdims=True) / 127
            level = np.where(scale > 0, blocks / scale, 0)
        chance = self._chance(blocks.shape) if self.stochastic else 0.5
        codes = np.clip(np.floor(np.nan_to_num(level) + chance), -127, 127).astype(np.int8)
        return Payload((codes.reshape(-1)[:wide.size], scale[:, 0]), x.shape, x.dtype)

    def decode(self, payload: Payload) -> np.ndarray:
        codes, scale = payload.parts
        with np.errstate(invalid="ignore", over="ignore"):
            values = codes * np.repeat(scale, self.block)[:codes.size]
            return values.astype(payload.dtype).reshape(payload.shape)

    def _chance(self, shape: tuple[int, ...]) -> np.ndarray:
        self.step += 1
        return np.random.Generator(np.random.Philox(key=[self.seed % 2**64, self.step])).random(shape)

    def state_dict(self) -> State:
        return {"step": self.step}

    def load_state_dict(self, state: State) -> None:
        self.step = state["step"]


class TopK(Compressor):
    """The values of largest magnitude and their places: `keep` of them, or that part of all if under 1 (Aji, Heafield
    2017).  Not unbiased: without `ErrorFeedback` the small ones never arrive."""

    def __init__(self, keep: float) -> None:
        if not keep > 0 or (keep >= 1 and keep != int(keep)):
            raise ValueError(f"TopK: keep must be a part under 1 or a whole number of values, got {keep}")
        self.keep = keep

    def encode(self, gradient: np.ndarray) -> Payload:
        x = _floats(gradient)
        flat = x.reshape(-1)
        count = min(ceil(self.keep * flat.size) if self.keep < 1 else int(self.keep), flat.size)
        largest = np.argpartition(np.abs(flat), flat.size - count)[flat.size - count:] if count else np.empty(0, int)
        places = np.sort(largest).astype(np.int32 if flat.size < 2**31 else np.int64)
        return Payload((flat[places], places), x.shape, x.dtype)

    def decode(self, payload: Payload) -> np.ndarray:
        values, places = payload.parts
        flat = np.zeros(prod(payload.shape), payload.dtype)
        flat[places] = values
        return flat.reshape(payload.shape)


class PowerSGD(Compressor):
    """A matrix as two thin ones, P Qᵀ of rank `rank`: one step of power iteration from the last Q (Vogels et al. 2019).

    A tensor is the matrix of its first dimension by the others.  One with fewer than two dimensions, or no larger than
    its factors, is sent whole.  All ranks need the same `seed`."""

    def __init__(self, rank: int = 2, *, seed: int = 0) -> None:
        if index(rank) < 1:
            raise ValueError(f"PowerSGD: rank must be at least 1, got {rank}")
        self.rank, self.seed = rank, index(seed)
        self.q: np.ndarray | None = None

    def encode(self, gradient: np.ndarray) -> Payload:
        x = _floats(gradient)
        parts = self._factors(x, lambda array: array)
        return Payload((x,) if parts is None else parts, x.shape, x.dtype)

    def decode(self, payload: Payload) -> np.ndarray:
        if len(payload.parts) == 1:
            return payload.parts[0]
        p, q = payload.parts
        with np.errstate(invalid="ignore", over="ignore"):
            return (p @ q.T).astype(payload.dtype).reshape(payload.shape)

    def average(self, gradient: np.ndarray, comm: Ranks) -> tuple[np.ndarray, np.ndarray]:
        """Two all_reduce, of P and of Q: the mean of products with the same P is the product with the mean."""
        x = _floats(gradient)
        mine: list[np.ndarray] = []

        def mean(array: np.ndarray) -> np.ndarray:
            mine.append(array)
            return comm.all_reduce(array) / array.dtype.type(comm.world_size)

        parts = self._factors(x, mean)
        if parts is None:
            return mean(x), x
        own = Payload((parts[0], mine[1]), x.shape, x.dtype)
        return self.decode(Payload(parts, x.shape, x.dtype)), self.decode(own)

    def _factors(self, x: np.ndarray, mean: Any) -> tuple[np.ndarray, np.ndarray] | None:
        rows = x.shape[0] if x.ndim > 1 else 0
        columns = x.size // rows if rows else 0
        if not rows or self.rank * (rows + columns) >= x.size:
            return None
        matrix = x.astype(np.promote_types(x.dtype, np.float32), copy=False).reshape(rows, columns)
        last = self._last_q(columns, matrix.dtype)
        with np.errstate(invalid="ignore", over="ignore"):
            p = np.linalg.qr(mean(matrix @ last))[0]
            q = mean(matrix.T @ p)
        if np.isfinite(q).all():
            self.q = q
        return p, q

    def _last_q(self, columns: int, dtype: np.dtype) -> np.ndarray:
        if self.q is None:
            draws = np.random.Generator(np.random.Philox(key=self.seed % 2**64)).standard_normal((columns, self.rank))
            return draws.astype(dtype)
        if self.q.shape[0] != columns:
            raise ValueError(f"PowerSGD: a matrix of {columns} columns after one of {self.q.shape[0]}; each gradient "
                             f"needs a compressor of its own")
        return self.q.astype(dtype, copy=False)

    def state_dict(self) -> State:
        return {"q": None if self.q is None else self.q.copy()}

    def load_state_dict(self, state: State) -> None:
        self.q = None if state["q"] is None else np.array(state["q"])


class ErrorFeedback(Compressor):
    """What a compressor left out of a gradient is added to the next one (Seide et al. 2014; Karimireddy et al. 2019):
    all that was ever sent and `residual` add up to all gradients."""

    def __init__(self, compressor: Compressor) -> None:
        self.compressor = compressor
        self.residual: np.ndarray | None = None

    def encode(self, gradient: np.ndarray) -> Payload:
        whole = self._with_residual(gradient)
        payload = self.compressor.encode(whole)
        self._keep(whole, self.compressor.decode(payload))
        return payload

    def decode(self, payload: Payload) -> np.ndarray:
        return self.compressor.decode(payload)

    def average(self, gradient: np.ndarray, comm: Ranks) -> tuple[np.ndarray, np.ndarray]:
        whole = self._with_residual(gradient)
        mean, own = self.compressor.average(whole, comm)
        self._keep(whole, own)
        return mean, own

    def _with_residual(self, gradient: np.ndarray) -> np.ndarray:
        x = _floats(gradient)
        if self.residual is None:
            return x
        if self.residual.shape != x.shape:
            raise ValueError(f"ErrorFeedback: a gradient of {x.shape} after one of {self.residual.shape}; each "
                             f"gradient needs a compressor of its own")
        return x + self.residual.astype(x.dtype, copy=False)

    def _keep(self, whole: np.ndarray, sent: np.ndarray) -> None:
        if np.isfinite(whole).all() and np.isfinite(sent).all():
            self.residual = whole - sent

    def state_dict(self) -> State:
        residual = None if self.residual is None else self.residual.copy()
        return {"residual": residual, "compressor": self.compressor.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self.compressor.load_state_dict(state["compressor"])
        self.residual = None if state["residual"] is None else np.array(state["residual"])


def _floats(gradient: np.ndarray) -> np.ndarray:
    if not isinstance(gradient, np.ndarray | np.floating) or not np.issubdtype(gradient.dtype, np.floating):
        kind = getattr(gradient, "dtype", type(gradient).__name__)
        raise TypeError(f"compression works on NumPy arrays of floats, got {kind}; of a tensor, .grad.numpy()")
    return np.asarray(gradient)                               # sums of arrays without dimensions are scalars


def _mean(arrays: list[np.ndarray]) -> np.ndarray:
    total = arrays[0].astype(np.promote_types(arrays[0].dtype, np.float32))
    for each in arrays[1:]:
        total = total + each
    return (total / len(arrays)).astype(arrays[0].dtype)


__all__ = ["Compressor", "ErrorFeedback", "Float16", "Int8", "Payload", "PowerSGD", "TopK"]
