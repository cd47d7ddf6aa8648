"""Recurrent nets over whole sequences: RNN, LSTM, GRU.  After `packed.py`; `rnn_cells.py` has single steps.

A layer and direction is one op (`ops/recurrent.py`) over all steps, packed or padded; parameters have PyTorch's names
and shapes, so a state fits both.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

from minigrad.create import empty, zeros
from minigrad.errors import DTypeError, ShapeError
from minigrad.nn import functional as F, init
from minigrad.nn.module import Module
from minigrad.nn.packed import PackedSequence
from minigrad.nn.parameter import Parameter
from minigrad.ops.cells import LSTMStep
from minigrad.ops.doors import function
from minigrad.ops.recurrent import GRUSequence, LSTMSequence, RNNSequence
from minigrad.ops.shape import cat, stack
from minigrad.ops.views import cut, reshape, transpose, unsqueeze
from minigrad.tensor import Tensor, apply

States = tuple[Tensor, ...]
Weights = dict[str, Parameter]


def rows(x: Tensor, first: int, n: int) -> Tensor:
    return x if n == x.shape[0] else cut(x, (slice(first, first + n),))


def check_sizes(name: str, **sizes: Any) -> None:
    """Refuse a size that is no integer above zero: `check_sizes("LSTM", hidden_size=n)`."""
    for key, value in sizes.items():
        if not isinstance(value, int):
            raise TypeError(f"{name}: {key} must be an int, got {type(value).__name__}")
        if value < 1:
            raise ValueError(f"{name}: {key} must be above zero, got {value}")


class RNNBase(Module):
    """What RNN, LSTM and GRU share: parameters by layer and direction, states, packed and padded input.

    input (T, N, input_size), (N, T, input_size) with batch_first, (T, input_size) for one sequence, or packed; states
    (num_layers · directions, N, size), zeros unless given.  Returns (output, last states): output (T, N, directions ·
    size) or packed as the input.  Dropout acts between layers."""

    gates: int = 1
    states: int = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device="cpu",
        dtype=None,
    ) -> None:
        name = type(self).__name__
        check_sizes(name, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout <= 1:
            raise ValueError(f"{name}: dropout must be a probability, got {dropout}")
        if dropout and num_layers == 1:
            warnings.warn(f"{name}: dropout acts between layers, and there is one", stacklevel=3)
        if proj_size and self.states < 2:
            raise ValueError(f"{name}: proj_size is for LSTM only")
        if not 0 <= proj_size < hidden_size:
            raise ValueError(f"{name}: proj_size {proj_size} must be from 0 to below hidden_size {hidden_size}")
        self.input_size, self.hidden_size, self.num_layers, self.bias = input_size, hidden_size, num_layers, bias
        self.batch_first, self.dropout, self.bidirectional = batch_first, float(dropout), bidirectional
        self.proj_size = proj_size
        for layer in range(num_layers):
            for suffix in self._directions():
                for key, shape in self._shapes(layer).items():
                    made = Parameter(empty(*shape, device=device, dtype=dtype))
                    self.register_parameter(f"{key}_l{layer}{suffix}", made)
        self.reset_parameters()

    def _directions(self) -> tuple[str, ...]:
        return ("", "_reverse") if self.bidirectional else ("",)

    @property
    def _size(self) -> int:
        """Elements of h."""
        return self.proj_size or self.hidden_size

    def _shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        """The parameters of a layer in one direction."""
        wide, own = self.gates * self.hidden_size, self._size
        inputs = self.input_size if layer == 0 else own * len(self._directions())
        shapes: dict[str, tuple[int, ...]] = {"weight_ih": (wide, inputs), "weight_hh": (wide, own)}
        if self.bias:
            shapes |= {"bias_ih": (wide,), "bias_hh": (wide,)}
        return shapes | ({"weight_hr": (own, self.hidden_size)} if self.proj_size else {})

    def _weights(self, layer: int, suffix: str) -> Weights:
        return {key: getattr(self, f"{key}_l{layer}{suffix}") for key in self._shapes(layer)}

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """The parameters, one list for each layer and direction."""
        return [list(self._weights(k, s).values()) for k in range(self.num_layers) for s in self._directions()]

    def reset_parameters(self) -> None:
        """All from U(-1/√hidden_size, 1/√hidden_size)."""
        bound = 1 / math.sqrt(self.hidden_size)
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    def flatten_parameters(self) -> None:
        """Nothing: for PyTorch's sake, which keeps its weights in one piece on a GPU."""

    # -- forward
    def forward(self, input: Tensor | PackedSequence, hx: Any = None) -> tuple:
        if isinstance(input, PackedSequence):
            sizes = tuple(input.batch_sizes.tolist())
            y, last = self._run(input.data, sizes, self._start(hx, input.data, sizes[0], False, input.sorted_indices))
            back = input.unsorted_indices
            last = last if back is None else tuple(s.index_select(1, back) for s in last)
            return PackedSequence(y, *input[1:]), self._said(last)
        single = self._check_input(input) == 2
        x = unsqueeze(input, 1) if single else transpose(input, 0, 1) if self.batch_first else input
        steps, n = x.shape[:2]
        flat = reshape(x, (steps * n, x.shape[2]))
        y, last = self._run(flat, (n,) * steps, self._start(hx, flat, n, single))
        if single:
            return y, self._said(tuple(reshape(s, (s.shape[0], s.shape[2])) for s in last))
        y = reshape(y, (steps, n, y.shape[1]))
        return transpose(y, 0, 1) if self.batch_first else y, self._said(last)

    def _said(self, last: States) -> Any:
        return last if self.states > 1 else last[0]

    def _check_input(self, x: Tensor) -> int:
        name = type(self).__name__
        if x.ndim not in (2, 3):
            raise ShapeError(f"{name}: expected an input of 2 or 3 axes, got {x.shape}")
        if x.shape[0 if not self.batch_first or x.ndim == 2 else 1] < 1:
            raise ShapeError(f"{name}: a sequence without steps: input {x.shape}")
        return x.ndim

    def _start(self, hx: Any, x: Tensor, n: int, single: bool, order: Tensor | None = None) -> States:
        """The states before the first step, (layers · directions, N, size) each, checked; x: all rows."""
        name, dtype = type(self).__name__, self.weight_ih_l0.dtype
        if x.ndim != 2 or x.shape[1] != self.input_size:
            raise ShapeError(f"{name}: input rows of {x.shape[1:]}, expected ({self.input_size},), the input_size")
        if x.dtype != dtype:
            raise DTypeError(f"{name}: input {x.dtype}, weights {dtype}. Convert one with .to(dtype)")
        count = self.num_layers * len(self._directions())
        shapes = [(count, n, size) for size in (self._size, self.hidden_size)[: self.states]]
        if hx is None:
            return tuple(zeros(*shape, dtype=dtype, device=x.o.device) for shape in shapes)
        given = hx if isinstance(hx, tuple | list) else (hx,)
        if len(given) != self.states:
            raise ShapeError(f"{name}: {len(given)} states given, expected {'(h, c)' if self.states > 1 else 'h'}")
        want = [(s[0], s[2]) if single else s for s in shapes]
        if [s.shape for s in given] != want:
            raise ShapeError(f"{name}: states of shapes {[s.shape for s in given]}, expected {want}")
        given = tuple(unsqueeze(s, 1) for s in given) if single else tuple(given)
        return given if order is None else tuple(s.index_select(1, order) for s in given)

    def _run(self, x: Tensor, sizes: tuple[int, ...], start: States) -> tuple[Tensor, States]:
        """All layers: (rows of output, last states)."""
        last: list[States] = []
        for layer in range(self.num_layers):
            if layer and self.dropout:
                x = F.dropout(x, self.dropout, self.training)
            outs = []
            for suffix in self._directions():
                begin = tuple(reshape(rows(s, len(last), 1), s.shape[1:]) for s in start)
                y, *end = self._direction(x, sizes, suffix == "_reverse", begin, self._weights(layer, suffix))
                outs.append(y)
                last.append(tuple(end))
            x = cat(outs, 1) if len(outs) > 1 else outs[0]
        return x, tuple(unsqueeze(s[0], 0) if len(s) == 1 else stack(s) for s in zip(*last))

    def _direction(self, x: Tensor, sizes: tuple, reverse: bool, start: States, w: Weights) -> list[Tensor]:
        """One layer in one direction: [rows of output, each last state]."""
        y = self._sequence(x, sizes, reverse, start, w)
        n, many = sizes[0], x.shape[0]
        return [cut(y, (slice(0, many),)), *(rows(y, many + k * n, n) for k in range(self.states))]

    def _sequence(self, x: Tensor, sizes: tuple, reverse: bool, start: States, w: Weights) -> Tensor:
        raise NotImplementedError

    def _biases(self, w: Weights) -> tuple[Tensor, Tensor]:
        """The bias of the input and that of the state; zeros where there are none."""
        if self.bias:
            return w["bias_ih"], w["bias_hh"]
        like = w["weight_ih"]
        none = zeros(like.shape[0], dtype=like.dtype, device=like.o.device)
        return none, none

    def extra_repr(self) -> str:
        said = [f"{self.input_size}, {self.hidden_size}"]
        said += [f"proj_size={self.proj_size}"] * bool(self.proj_size)
        said += [f"num_layers={self.num_layers}"] * (self.num_layers != 1) + ["bias=False"] * (not self.bias)
        said += ["batch_first=True"] * self.batch_first + [f"dropout={self.dropout}"] * bool(self.dropout)
        return ", ".join(said + ["bidirectional=True"] * self.bidirectional)


class RNN(RNNBase):
    """h = tanh(w_ih x + b_ih + w_hh h + b_hh), or with relu in place of tanh (Elman 1990)."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device="cpu",
        dtype=None,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"RNN: nonlinearity {nonlinearity!r} is neither 'tanh' nor 'relu'")
        self.nonlinearity = nonlinearity
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device=device, dtype=dtype
        )

    def _sequence(self, x: Tensor, sizes: tuple, reverse: bool, start: States, w: Weights) -> Tensor:
        first, second = self._biases(w)
        run = RNNSequence.of(sizes, reverse, self.nonlinearity == "relu")
        return apply(run, x, *start, w["weight_ih"], w["weight_hh"], first + second)


class LSTM(RNNBase):
    """Long short-term memory (Hochreiter & Schmidhuber 1997, with forget gates); returns (output, (h, c)).

    `proj_size`: h is weight_hr @ (gate · tanh(c)), of that size (Sak et al. 2014); such a layer runs step by step."""

    gates, states = 4, 2

    def _sequence(self, x: Tensor, sizes: tuple, reverse: bool, start: States, w: Weights) -> Tensor:
        first, second = self._biases(w)
        return apply(LSTMSequence.of(sizes, reverse), x, *start, w["weight_ih"], w["weight_hh"], first + second)[0]

    def _direction(self, x: Tensor, sizes: tuple, reverse: bool, start: States, w: Weights) -> list[Tensor]:
        return self._projected(x, sizes, reverse, start, w) if self.proj_size else super()._direction(
            x, sizes, reverse, start, w
        )

    def _projected(self, x: Tensor, sizes: tuple, reverse: bool, start: States, w: Weights) -> list[Tensor]:
        first, second = self._biases(w)
        z, size, (h, c), outs = F.linear(x, w["weight_ih"], first + second), self.hidden_size, start, {}
        for s, n in LSTMSequence.of(sizes, reverse).walk():
            both = function(LSTMStep)(rows(z, s, n) + F.linear(rows(h, 0, n), w["weight_hh"]), rows(c, 0, n))
            outs[s] = F.linear(cut(both, (Ellipsis, slice(0, size))), w["weight_hr"])
            h, c = _over(outs[s], h), _over(cut(both, (Ellipsis, slice(size, None))), c)
        return [cat([outs[s] for s in sorted(outs)], 0), h, c]


def _over(new: Tensor, old: Tensor) -> Tensor:
    """`old` with its first rows replaced."""
    n = new.shape[0]
    return new if n == old.shape[0] else cat([new, cut(old, (slice(n, None),))], 0)


class GRU(RNNBase):
    """Gated recurrent unit (Cho et al. 2014); the reset gate acts on w_hh h + b_hh, as in PyTorch."""

    gates = 3

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device="cpu",
        dtype=None,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device=device, dtype=dtype
        )

    def _sequence(self, x: Tensor, sizes: tuple, reverse: bool, start: States, w: Weights) -> Tensor:
        return apply(GRUSequence.of(sizes, reverse), x, *start, w["weight_ih"], w["weight_hh"], *self._biases(w))[0]
