"""Which items of a dataset each rank reads: all of them once, shared out in turn; as
`torch.utils.data.distributed.DistributedSampler`.
"""
from __future__ import annotations

from collections.abc import Iterator, Sized
from operator import index
from typing import TYPE_CHECKING

from minigrad import Generator, randperm
from minigrad.data import Sampler

if TYPE_CHECKING:
    from simulator.communicator import Communicator


class DistributedSampler(Sampler):
    """Item numbers rank, rank + num_replicas, … of one order of all items, the same on all ranks.

    The order is drawn anew from `seed` + epoch (`set_epoch`, before each epoch), or is 0, 1, 2, … without `shuffle`.
    All ranks get equally many: the first items come again at the end, or, with `drop_last`, the last ones not at all;
    `exact_mean` takes a mean without those that come twice.  `comm` stands for its world size and rank."""

    def __init__(self, dataset: Sized, num_replicas: int | None = None, rank: int | None = None, shuffle: bool = True,
                 seed: int = 0, drop_last: bool = False, *, comm: Communicator | None = None) -> None:
        if comm is not None:
            num_replicas = comm.world_size if num_replicas is None else num_replicas
            rank = comm.rank if rank is None else rank
        if num_replicas is None or rank is None:
            raise ValueError(f"DistributedSampler: num_replicas={num_replicas}, rank={rank}: give both, or comm=comm")
        if not 0 <= index(rank) < index(num_replicas):
            raise ValueError(f"DistributedSampler: rank={rank}, and {num_replicas} replicas have ranks 0 … "
                             f"{num_replicas - 1}")
        self.dataset, self.num_replicas, self.rank = dataset, num_replicas, rank
        self.shuffle, self.seed, self.drop_last, self.epoch = shuffle, index(seed), drop_last, 0

    def set_epoch(self, epoch: int) -> None:
        """The order that the next walk takes; without it every epoch has the same."""
        self.epoch = index(epoch)

    @property
    def num_samples(self) -> int:
        """How many items each rank gets."""
        whole, rest = divmod(len(self.dataset), self.num_replicas)
        return whole + (rest > 0 and not self.drop_last)

    @property
    def total_size(self) -> int:
        """How many items all ranks get, those that come twice counted twice."""
        return self.num_samples * self.num_replicas

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        n = len(self.dataset)
        order = randperm(n, generator=Generator(self.seed + self.epoch)).tolist() if self.shuffle else range(n)
        return iter([order[k % n] for k in range(self.rank, self.total_size, self.num_replicas)])


__all__ = ["DistributedSampler"]
