"""Where a token stands: waves, learned vectors, or a slope on the attention scores.  After `attention.py`.

Rotary places are an op, `ops/attention.py`.
"""

from __future__ import annotations

import math

import numpy as np

from minigrad.create import arange, empty, tensor
from minigrad.errors import ShapeError
from minigrad.nn import init
from minigrad.nn.module import Module
from minigrad.nn.parameter import Parameter
from minigrad.ops.views import cut
from minigrad.tensor import Tensor


def sinusoids(length: int, d_model: int, base: float = 10000.0) -> np.ndarray:
    """(length, d_model): sin(place / base^(2i/d)) at 2i, its cos at 2i + 1 (Vaswani et al. 2017, section 3.5)."""
    angle = np.outer(np.arange(length), base ** (-np.arange(0, d_model, 2) / d_model))
    waves = np.empty((length, d_model))
    waves[:, 0::2], waves[:, 1::2] = np.sin(angle), np.cos(angle[:, : d_model // 2])
    return waves


class _Positions(Module):
    """Adds row 0, 1, … of a table to (…, length, d_model)."""

    table: str

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """`start`: the place of the first."""
        table: Tensor = getattr(self, self.table)
        end = start + x.shape[-2] if x.ndim > 1 else math.inf
        if end > table.shape[0] or x.shape[-1] != table.shape[1]:
            name = type(self).__name__
            raise ShapeError(f"{name}: {x.shape} from place {start} does not fit the table {table.shape}")
        return x + cut(table, (slice(start, int(end)), slice(None)))


class SinusoidalPositions(_Positions):
    """Waves of growing length: nothing is learned."""

    table = "waves"

    def __init__(self, max_len: int, d_model: int, device="cpu", dtype=None) -> None:
        waves = tensor(sinusoids(max_len, d_model), dtype=empty(0, dtype=dtype).dtype, device=device)
        self.register_buffer("waves", waves, persistent=False)


class LearnedPositions(_Positions):
    """A vector a place, N(0, 0.02²) at first."""

    table = "weight"

    def __init__(self, max_len: int, d_model: int, device="cpu", dtype=None) -> None:
        self.weight = Parameter(empty(max_len, d_model, device=device, dtype=dtype))
        init.normal_(self.weight, 0.0, 0.02)


def alibi_slopes(heads: int) -> np.ndarray:
    """2^(-8 h / heads) for h = 1 … heads; between powers of two every other one of the next power is taken in.

    Press, Smith & Lewis 2022, and their code for other numbers of heads."""
    power = 2 ** math.floor(math.log2(heads))
    found = 2.0 ** (-8 / power * np.arange(1, power + 1))
    more = 2.0 ** (-4 / power * np.arange(1, 2 * power, 2))
    return np.concatenate([found, more[: heads - power]])


def alibi_bias(heads: int, rows: int, columns: int | None = None, device="cpu", dtype=None) -> Tensor:
    """(heads, rows, columns) to add to the scores: minus slope · distance.  The last row stands at the last column."""
    columns = rows if columns is None else columns
    like = empty(0, dtype=dtype, device=device)
    slopes = tensor(alibi_slopes(heads).reshape(-1, 1, 1), dtype=like.dtype, device=device)
    row = arange(columns - rows, columns, dtype=like.dtype, device=device).reshape(-1, 1)
    return -(row - arange(columns, dtype=like.dtype, device=device)).abs() * slopes
