"""Expert parallel: the experts of a mixture cut among ranks, each of which has tokens of its own; tokens travel to
their experts and back by two all_to_alls (Lepikhin et al. 2021, GShard).

The loss is the sum of what all ranks compute, as in data parallel.  After `shards.py`.
"""
from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

import minigrad as mg
from minigrad import nn
from minigrad.errors import ShapeError
from minigrad.nn import functional as F
from minigrad.nn.moe import MoE, Routing
from simulator.comm_ops import all_to_all, copy_to
from simulator.communicator import Communicator
from simulator.strategies.shards import Shard

CAPACITIES = ("global", "local")


@dataclass(frozen=True)
class Seating:
    """Who sits where, known to all ranks from how many tokens of each rank chose what.

    `first` (rank, choice, expert): the seat of the first of them, of the others those after it; `kept`: how many of
    them have one.  At an expert the `capacity[r]` seats of rank r begin at `offset[r]`, of `size` in all."""

    first: np.ndarray
    kept: np.ndarray
    capacity: np.ndarray
    offset: np.ndarray
    size: int

    def sent(self, rank: int, owners: np.ndarray, world: int) -> list[int]:
        """How many tokens rank `rank` has for the experts of each rank; `owners` of the experts."""
        return [int(self.kept[rank][:, owners == other].sum()) for other in range(world)]

    def slots(self, experts: np.ndarray) -> np.ndarray:
        """The places in the table (expert, seat) of `experts` of the tokens that come: by rank, expert, choice."""
        return np.concatenate([np.empty(0, np.int64)] + [
            k * self.size + self.offset[rank] + self.first[rank, choice, e] + np.arange(self.kept[rank, choice, e])
            for rank in range(len(self.first)) for k, e in enumerate(experts) for choice in range(self.first.shape[1])])


class SummedGate(nn.Linear):
    """`gate`, whose gradients are summed over ranks in backward."""

    def __init__(self, gate: nn.Linear, comm: Communicator) -> None:
        self.in_features, self.out_features, self.comm = gate.in_features, gate.out_features, comm
        self.weight, self.bias = gate.weight, gate.bias

    def forward(self, x: mg.Tensor) -> mg.Tensor:
        return F.linear(x, copy_to(self.weight, self.comm), None)


class ExpertParallelMoE(MoE):
    """`moe` with its experts cut: (…, d_model) of this rank's tokens to (the same shape, this rank's part of the loss).

    `capacity`: whose tokens compete for the seats of an expert.  "global": those of all ranks, in the order of ranks,
    so that output and loss are those of one device with all tokens.  "local": those of each rank among themselves, for
    as many seats as `moe` would give to them alone.  Ranks may have different numbers of tokens; one without any calls
    it all the same.

    The parts of the load-balancing loss add up to that of all tokens; "local": to the mean of what each rank's would be
    alone, weighed by its tokens.  The gate is whole on each rank, its gradients are summed over ranks in backward."""

    def __init__(self, moe: MoE, comm: Communicator, capacity: str = "global") -> None:
        if capacity not in CAPACITIES:
            raise ValueError(f"ExpertParallelMoE: capacity {capacity!r} is none of {', '.join(CAPACITIES)}")
        if moe.n_experts < comm.world_size:
            raise ValueError(f"ExpertParallelMoE: {moe.n_experts} experts cannot be shared by {comm.world_size} ranks: "
                             f"some would have none. Use at most {moe.n_experts} ranks")
        self.d_model, self.d_hidden, self.n_experts, self.k = moe.d_model, moe.d_hidden, moe.n_experts, moe.k
        self.capacity_factor, self.activation = moe.capacity_factor, moe.activation
        self.comm, self.capacity, self.gate = comm, capacity, SummedGate(moe.gate, comm)
        shard = Shard.even(comm, 0, moe.n_experts)
        self.w1, self.b1, self.w2, self.b2 = (shard.parameter(p) for p in (moe.w1, moe.b1, moe.w2, moe.b2))
        self.shards = dict.fromkeys(("w1", "b1", "w2", "b2"), shard)
        self.owners = np.repeat(np.arange(comm.world_size), shard.sizes)         # of each expert

    def forward(self, x: mg.Tensor) -> tuple[mg.Tensor, mg.Tensor]:
        if x.ndim < 1 or x.shape[-1] != self.d_model:
            raise ShapeError(f"ExpertParallelMoE: expected (…, {self.d_model}), got {x.shape}")
        tokens = x.reshape(math.prod(x.shape[:-1]), self.d_model)
        routing, seating = self._routed(tokens)
        return self._visited(tokens, routing, seating).reshape(x.shape), routing.load_balancing

    # -- where tokens go
    def route(self, x: mg.Tensor) -> Routing:
        """The routing of this rank's tokens (N, d_model); all ranks ask together."""
        return self._routed(x)[0]

    def _routed(self, x: mg.Tensor) -> tuple[Routing, Seating]:
        p, gates, experts = self.choose(x)
        chosen, place = self.seats(experts)
        own = chosen.reshape(self.k, x.shape[0], self.n_experts).sum(1).cpu().numpy()            # (choice, expert)
        counts = np.stack(self.comm.all_gather(own))
        seating = self._seating(counts)
        alone = np.cumsum(own, 0) - own                                          # its first seats, were there no others
        moved = mg.tensor(seating.first[self.comm.rank] - alone, device=x.device)
        choice = mg.arange(self.k, device=x.device).expand(*experts.shape)
        place, capacity = place + moved[choice, experts], int(seating.capacity[self.comm.rank])
        return Routing(experts, gates, place, place < capacity, capacity, self._balance(p, counts)), seating

    def _seating(self, counts: np.ndarray) -> Seating:
        """From the choices of all ranks, (rank, choice, expert): first choices first, then in the order of ranks."""
        tokens = counts[:, 0].sum(1)
        if self.capacity == "global":
            total = counts.sum(0)
            first = (np.cumsum(total, 0) - total) + (np.cumsum(counts, 0) - counts)
            capacity = np.full(len(counts), self._room(tokens.sum(), total))
            offset, size = np.zeros(len(counts), np.int64), int(capacity[0])
        else:
            first = np.cumsum(counts, 1) - counts
            capacity = np.array([self._room(n, own) for n, own in zip(tokens, counts)])
            offset, size = np.cumsum(capacity) - capacity, int(capacity.sum())
        kept = np.clip(capacity[:, None, None] - first, 0, counts)
        return Seating(first, kept, capacity, offset, size)

    def _room(self, tokens: int, counts: np.ndarray) -> int:
        """Seats at each expert for so many tokens, whose choices are `counts` (choice, expert)."""
        if self.capacity_factor is None:
            return int(counts.sum(0).max())
        return math.ceil(self.capacity_factor * self.k * int(tokens) / self.n_experts)

    def _balance(self, p: mg.Tensor, counts: np.ndarray) -> mg.Tensor:
        """This rank's part of the loss: linear in its probabilities (N, experts), the choices being numbers."""
        whole = self.capacity == "global"
        chosen = (counts.sum((0, 1)) if whole else counts[self.comm.rank].sum(0)) / self.k
        tokens = max(int(counts[:, 0].sum()), 1)
        among = tokens if whole else max(p.shape[0], 1)
        share = mg.tensor(chosen * (self.n_experts / (tokens * among)), dtype=p.dtype, device=p.device)
        return (p.sum(0) * share).sum()

    # -- there and back
    def _visited(self, x: mg.Tensor, r: Routing, seating: Seating) -> mg.Tensor:
        """gate · expert(x), summed over the choices; 0 for those without a seat."""
        comm, n = self.comm, x.shape[0]
        mine = np.flatnonzero(self.owners == comm.rank)
        going = seating.sent(comm.rank, self.owners, comm.world_size)
        coming = [seating.sent(rank, self.owners, comm.world_size)[comm.rank] for rank in range(comm.world_size)]
        order = _by_expert(r)                                                    # numbers of (choice, token) with seats
        rows = x[mg.tensor(order % max(n, 1), device=x.device)]
        slots = mg.tensor(seating.slots(mine), device=x.device)
        table = mg.zeros(len(mine) * seating.size, self.d_model, dtype=x.dtype, device=x.device)
        table = table.index_copy(0, slots, mg.cat(all_to_all(mg.split(rows, going), comm)))
        y = self.experts(table.reshape(len(mine), seating.size, self.d_model)).reshape(*table.shape)
        back = mg.cat(all_to_all(mg.split(y[slots], coming), comm))
        where = np.full(self.k * n, len(order))                                  # those without a seat get the last row
        where[order] = np.arange(len(order))
        nobody = mg.zeros(1, self.d_model, dtype=x.dtype, device=x.device)
        found = mg.cat([back, nobody])[mg.tensor(where.reshape(self.k, n).T.copy(), device=x.device)]   # (N, k, d)
        return (found * r.gates.unsqueeze(-1)).sum(1)

    def extra_repr(self) -> str:
        here = np.flatnonzero(self.owners == self.comm.rank)
        return f"{super().extra_repr()}, experts {here[0]} … {here[-1]} on rank {self.comm.rank}"


def _by_expert(r: Routing) -> np.ndarray:
    """The numbers choice · N + token of those that have a seat, by expert, then choice, then token."""
    experts, kept = (t.cpu().numpy().T.reshape(-1) for t in (r.experts, r.kept))
    order = np.argsort(experts, kind="stable")
    return order[kept[order]]


__all__ = ["ExpertParallelMoE", "Seating"]
