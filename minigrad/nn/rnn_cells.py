"""One step of a recurrent net: RNNCell, LSTMCell, GRUCell, for loops written by hand.  After `rnn.py`."""

from __future__ import annotations

import math
from typing import Any

from minigrad.create import empty, zeros
from minigrad.errors import ShapeError
from minigrad.nn import init
from minigrad.nn.module import Module
from minigrad.nn.parameter import Parameter
from minigrad.nn.rnn import States, check_sizes
from minigrad.ops.cells import gru_cell, lstm_cell, rnn_relu_cell, rnn_tanh_cell
from minigrad.ops.views import squeeze, unsqueeze
from minigrad.tensor import Tensor


class RNNCellBase(Module):
    """input (N, input_size) or (input_size), state (N, hidden_size) or (hidden_size), zeros unless given."""

    gates: int = 1
    states: int = 1

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, device="cpu", dtype=None) -> None:
        check_sizes(type(self).__name__, input_size=input_size, hidden_size=hidden_size)
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        wide = self.gates * hidden_size
        made = lambda *shape: Parameter(empty(*shape, device=device, dtype=dtype))
        self.weight_ih, self.weight_hh = made(wide, input_size), made(wide, hidden_size)
        self.bias_ih = made(wide) if bias else None
        self.bias_hh = made(wide) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """All from U(-1/√hidden_size, 1/√hidden_size)."""
        bound = 1 / math.sqrt(self.hidden_size)
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    def forward(self, input: Tensor, hx: Any = None) -> Any:
        name, alone = type(self).__name__, input.ndim == 1
        if input.ndim not in (1, 2) or input.shape[-1] != self.input_size:
            raise ShapeError(f"{name}: input {input.shape}, expected (N, {self.input_size}) or ({self.input_size},)")
        x = unsqueeze(input, 0) if alone else input
        shape = (x.shape[0], self.hidden_size)
        if hx is None:
            given = [zeros(*shape, dtype=x.dtype, device=x.o.device)] * self.states
        else:
            given = list(hx) if isinstance(hx, tuple | list) else [hx]
            if len(given) != self.states or any(s.shape != shape[alone:] for s in given):
                raise ShapeError(
                    f"{name}: states {[s.shape for s in given]} for an input {input.shape}: expected {self.states} of "
                    f"{shape[alone:]}"
                )
            given = [unsqueeze(s, 0) for s in given] if alone else given
        new = self._step(x, tuple(given))
        new = tuple(squeeze(s, 0) for s in new) if alone else new
        return new if self.states > 1 else new[0]

    def _step(self, x: Tensor, states: States) -> States:
        raise NotImplementedError

    def _weights(self) -> tuple:
        return self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else ", bias=False")


class RNNCell(RNNCellBase):
    """tanh, or relu, of w_ih x + b_ih + w_hh h + b_hh."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device="cpu",
        dtype=None,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"RNNCell: nonlinearity {nonlinearity!r} is neither 'tanh' nor 'relu'")
        self.nonlinearity = nonlinearity
        super().__init__(input_size, hidden_size, bias, device, dtype)

    def _step(self, x: Tensor, states: States) -> States:
        cell = rnn_tanh_cell if self.nonlinearity == "tanh" else rnn_relu_cell
        return (cell(x, *states, *self._weights()),)

    def extra_repr(self) -> str:
        return super().extra_repr() + ("" if self.nonlinearity == "tanh" else f", nonlinearity={self.nonlinearity}")


class LSTMCell(RNNCellBase):
    """The new (h, c) from input and (h, c)."""

    gates, states = 4, 2

    def _step(self, x: Tensor, states: States) -> States:
        return lstm_cell(x, states, *self._weights())


class GRUCell(RNNCellBase):
    """The new h from input and h."""

    gates = 3

    def _step(self, x: Tensor, states: States) -> States:
        return (gru_cell(x, *states, *self._weights()),)
