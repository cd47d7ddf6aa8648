"""MoE: of many feed-forward experts each token visits the few that a gate chooses.  After `llama.py`.

Shazeer et al. 2017 (top-k gate); Lepikhin et al. 2021 (capacity, first choices first); Fedus et al. 2021 (k = 1, loss).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from minigrad.create import arange, empty, full, zeros
from minigrad.dtype import int64
from minigrad.errors import ShapeError
from minigrad.methods import where
from minigrad.nn import functional as F, init
from minigrad.nn.layers import Linear, sized
from minigrad.nn.module import Module
from minigrad.nn.parameter import Parameter
from minigrad.ops.fused import softmax
from minigrad.ops.index import getitem
from minigrad.ops.indexed import scatter
from minigrad.ops.op import cast
from minigrad.ops.reduce_functions import sum
from minigrad.ops.scan import cumsum
from minigrad.ops.shape import cat
from minigrad.ops.sorting import topk
from minigrad.ops.structure import repeat
from minigrad.ops.views import flatten, reshape, transpose, unsqueeze
from minigrad.tensor import Tensor


@dataclass(frozen=True)
class Routing:
    """Where N tokens go: `experts`, `gates` and `kept` are (N, k), first choices first.

    `place`: which seat at its expert; a token whose seat is `capacity` or more is dropped there (`kept` is False)."""

    experts: Tensor
    gates: Tensor
    place: Tensor
    kept: Tensor
    capacity: int
    load_balancing: Tensor


class MoE(Module):
    """(…, d_model) to (the same shape, load-balancing loss): the sum over the chosen experts of gate · expert(x).

    An expert is linear, `activation`, linear.  It takes capacity_factor · k · tokens / experts tokens, rounded up
    (None: all that come); for a token without a seat it gives 0, so that in a residual block it passes by.  With k = 1
    the gate is the probability itself, else the k probabilities over their sum.  The loss is experts · Σ (share of
    choices) · (mean probability), 1 when balanced: add it times 0.01 or so."""

    def __init__(
        self,
        d_model: int,
        d_hidden: int,
        n_experts: int,
        k: int = 2,
        capacity_factor: float | None = 1.25,
        activation: Callable[[Tensor], Tensor] = F.relu,
        device="cpu",
        dtype=None,
    ) -> None:
        sized(d_model=d_model, d_hidden=d_hidden, n_experts=n_experts, k=k)
        if k > n_experts:
            raise ValueError(f"MoE: k {k} exceeds the {n_experts} experts")
        if capacity_factor is not None and not capacity_factor > 0:
            raise ValueError(f"MoE: capacity_factor must be above 0, or None for no limit, got {capacity_factor}")
        self.d_model, self.d_hidden, self.n_experts, self.k = d_model, d_hidden, n_experts, k
        self.capacity_factor, self.activation = capacity_factor, activation
        make = lambda *shape: Parameter(empty(*shape, device=device, dtype=dtype))
        self.gate = Linear(d_model, n_experts, bias=False, device=device, dtype=dtype)
        self.w1, self.b1 = make(n_experts, d_hidden, d_model), make(n_experts, 1, d_hidden)
        self.w2, self.b2 = make(n_experts, d_model, d_hidden), make(n_experts, 1, d_model)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Each expert as two Linear layers."""
        for weight, bias, inputs in ((self.w1, self.b1, self.d_model), (self.w2, self.b2, self.d_hidden)):
            for p in (weight, bias):
                init.uniform_(p, -1 / math.sqrt(inputs), 1 / math.sqrt(inputs))

    # -- where tokens go
    def route(self, x: Tensor) -> Routing:
        """The routing of tokens (N, d_model)."""
        p, gates, experts = self.choose(x)
        chosen, place = self.seats(experts)
        capacity = self._capacity(x.shape[0], place)
        n = max(x.shape[0], 1)  # without tokens there is nothing to balance: 0, not 0 / 0
        balance = sum(sum(cast(chosen, p.dtype), 0) * sum(p, 0)) * (self.n_experts / (self.k * n * n))
        return Routing(experts, gates, place, place < capacity, capacity, balance)

    def choose(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of tokens (N, d_model): the probabilities (N, experts), the gates and the experts chosen, (N, k)."""
        p = softmax(self.gate(x), -1)
        gates, experts = topk(p, self.k)
        if self.k > 1:
            gates = gates / sum(gates, -1, True)
        return p, gates, experts

    def seats(self, experts: Tensor) -> tuple[Tensor, Tensor]:
        """The choices as ones among zeros, (k · N, experts), first choices first; and the seat of each, (N, k)."""
        chosen = F.one_hot(flatten(transpose(experts, 0, 1)), self.n_experts)
        seats = sum(chosen * (cumsum(chosen, 0) - 1), -1)
        return chosen, transpose(reshape(seats, (self.k, -1)), 0, 1)

    def _capacity(self, tokens: int, seats: Tensor) -> int:
        if self.capacity_factor is None:
            return int(seats.max().item()) + 1 if tokens else 0
        return math.ceil(self.capacity_factor * self.k * tokens / self.n_experts)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if x.ndim < 1 or x.shape[-1] != self.d_model:
            raise ShapeError(f"MoE: expected (…, {self.d_model}), got {x.shape}")
        tokens = reshape(x, (-1, self.d_model))
        routing = self.route(tokens)
        y = self._gathered(tokens, routing)
        return reshape(y, x.shape), routing.load_balancing

    # -- what experts do
    def _gathered(self, x: Tensor, r: Routing) -> Tensor:
        """All experts at once, each on its own table of `capacity` tokens; empty seats hold zeros."""
        n, seats, device = x.shape[0], self.n_experts * r.capacity, x.o.device
        nobody = zeros(1, self.d_model, dtype=x.dtype, device=device)
        slot = where(r.kept, r.experts * r.capacity + r.place, seats)  # (N, k); those dropped share the last one
        token = repeat(unsqueeze(arange(n, device=device), 1), 1, self.k)
        seated = scatter(full((seats + 1,), n, dtype=int64, device=device), 0, flatten(slot), flatten(token))
        table = getitem(cat([x, nobody], 0), getitem(seated, slice(0, seats)))
        y = self.experts(reshape(table, (self.n_experts, r.capacity, self.d_model)))
        back = getitem(cat([reshape(y, (seats, self.d_model)), nobody], 0), slot)  # (N, k, d_model)
        return sum(back * unsqueeze(r.gates, -1), 1)

    def experts(self, x: Tensor) -> Tensor:
        """(experts, tokens, d_model): every expert on its own tokens."""
        hidden = self.activation(x @ transpose(self.w1, 1, 2) + self.b1)
        return hidden @ transpose(self.w2, 1, 2) + self.b2

    def extra_repr(self) -> str:
        return (
            f"{self.d_model}, {self.d_hidden}, n_experts={self.n_experts}, k={self.k}, "
            f"capacity_factor={self.capacity_factor}"
        )
