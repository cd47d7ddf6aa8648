"""Shards: which part of a parameter each rank holds, and the way between the parts and the whole.

A parallel module keeps the names of the module it was made from, and says in `shards` how each parameter is cut, so
that its state can be gathered to that of one device, and the other way.  Before `tensor_parallel.py`.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate, pairwise

import numpy as np

import minigrad as mg
from minigrad import nn
from simulator.collectives import cut
from simulator.communicator import Communicator


class Shard:
    """Rank r of `comm` holds the rows `places[r]` of dimension `dim` of a parameter."""

    def __init__(self, comm: Communicator, dim: int, places: list[np.ndarray]) -> None:
        self.comm, self.dim, self.places = comm, dim, places
        self.sizes = [len(rows) for rows in places]
        self.size = sum(self.sizes)

    def __repr__(self) -> str:
        return f"Shard(dim={self.dim}, {self.size} = {' + '.join(map(str, self.sizes))})"

    @classmethod
    def even(cls, comm: Communicator, dim: int, size: int, blocks: int = 1, width: int = 1) -> Shard:
        """Each of `blocks` equal blocks cut as evenly as can be, with the larger pieces first; never within `width`
        rows: a block of queries, keys or values (3 of them) between heads (`width` numbers)."""
        if size % (blocks * width):
            raise ValueError(f"Shard: {size} rows are not {blocks} blocks of a multiple of {width}")
        units = np.arange(size).reshape(blocks, -1, width)
        ends = accumulate(cut(units.shape[1], comm.world_size), initial=0)
        return cls(comm, dim, [units[:, a:b].reshape(-1) for a, b in pairwise(ends)])

    @property
    def start(self) -> int:
        """Where the piece of this rank begins, in a cut of one block."""
        return sum(self.sizes[: self.comm.rank])

    @property
    def in_order(self) -> bool:
        """Whether the pieces, one after the other, are the whole."""
        return bool((np.concatenate(self.places) == np.arange(self.size)).all())

    def of(self, full: mg.Tensor, name: str = "parameter") -> mg.Tensor:
        """The piece of this rank, in memory of its own."""
        if full.ndim <= self.dim or full.shape[self.dim] != self.size:
            raise ValueError(f"{name}: the shape {tuple(full.shape)} does not have the {self.size} rows in dimension "
                             f"{self.dim} that are cut in {self.sizes}")
        rows = mg.tensor(self.places[self.comm.rank], device=full.device)
        return full.detach().index_select(self.dim, rows)

    def parameter(self, full: mg.Tensor, name: str = "parameter") -> nn.Parameter:
        """The same as a parameter, which is trained if `full` is."""
        return nn.Parameter(self.of(full, name), requires_grad=full.requires_grad)

    def gathered(self, piece: mg.Tensor) -> mg.Tensor:
        """The whole, on each rank, from the pieces of all."""
        piece = piece.detach()
        pieces = self.comm.all_gather(piece.transpose(0, self.dim))
        full = mg.empty(self.size, *pieces[0].shape[1:], dtype=piece.dtype, device=piece.device)
        for rows, each in zip(self.places, pieces):
            full[mg.tensor(rows, device=piece.device)] = each
        return full.transpose(0, self.dim).contiguous()


def shards_of(module: nn.Module) -> Iterator[tuple[str, Shard]]:
    """(name in the state, how it is cut) for each parameter of which this rank has a part."""
    for prefix, each in module.named_modules(remove_duplicate=False):
        for name, shard in getattr(each, "shards", {}).items():
            yield f"{prefix}.{name}" if prefix else name, shard


def gather_state(module: nn.Module) -> dict[str, mg.Tensor]:
    """The state of the module on one device, on each rank; all ranks call it together."""
    shards = dict(shards_of(module))
    return {name: shards[name].gathered(t) if name in shards else t.detach().clone()
            for name, t in module.state_dict().items()}


def load_full_state(module: nn.Module, state: Mapping[str, mg.Tensor], strict: bool = True) -> None:
    """Each rank takes its part of the state of the module on one device.  Nothing is sent."""
    shards = dict(shards_of(module))
    module.load_state_dict({name: shards[name].of(t, name) if name in shards else t for name, t in state.items()},
                           strict)


__all__ = ["Shard", "gather_state", "load_full_state", "shards_of"]
