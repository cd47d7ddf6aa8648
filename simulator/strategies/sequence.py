"""Sequence parallel: between the cut products of tensor parallel each rank works on a part of the places of a sequence,
so that norms, dropout and sums are not done by all alike, and their values not kept by all (Korthikanti et al. 2022).

Where tensor parallel has an all-reduce, this has a reduce-scatter before and an all-gather after: as many bytes.  What
was gathered is kept for backward (the paper keeps a part and gathers again, for a quarter more bytes).
After `regions.py`; `tensor_parallel.py` takes a `SequenceRegion` where it would sum.
"""
from __future__ import annotations

import minigrad as mg
from minigrad import nn
from minigrad.nn import functional as F
from simulator.collectives import cut
from simulator.comm_ops import all_gather, copy_to, reduce_scatter, scatter_to
from simulator.communicator import Communicator
from simulator.strategies.regions import dropout


class SequenceRegion:
    """Tensors cut among the ranks of `comm` along `dim`: (B, T, C) along T.  One for a whole model; it knows T from
    where sequences come in (`scatter`, `reduce_scatter`)."""

    def __init__(self, comm: Communicator, dim: int = 1) -> None:
        self.comm, self.dim, self.sizes = comm, dim, [0] * comm.world_size

    def scatter(self, x: mg.Tensor) -> mg.Tensor:
        """The part of this rank of x, which all have alike."""
        self.sizes = cut(x.shape[self.dim], self.comm.world_size)
        return scatter_to(x, self.comm, self.dim)

    def reduce_scatter(self, x: mg.Tensor) -> mg.Tensor:
        """The part of this rank of the sum of all x."""
        self.sizes = cut(x.shape[self.dim], self.comm.world_size)
        return reduce_scatter(x, self.comm, self.dim)

    def gather(self, x: mg.Tensor) -> mg.Tensor:
        """The whole sequence, for each rank to go its own way with: the gradients of their ways are summed, and cut."""
        return all_gather(x, self.comm, self.dim)

    def own(self, x: mg.Tensor) -> mg.Tensor:
        """The part of this rank of what belongs to the places and needs no gradient, such as their numbers (T)."""
        return mg.split(x, cut(x.shape[0], self.comm.world_size))[self.comm.rank]


# ---- modules without talk between places, on this rank's part of them ----------------------------
# Their parameters are the same on all ranks; `copy_to` sums the ranks' parts of the gradients in backward.
class SequenceLayerNorm(nn.LayerNorm):
    """A LayerNorm of this rank's places, with the parameters of `norm`."""

    def __init__(self, norm: nn.LayerNorm, region: SequenceRegion) -> None:
        super().__init__(norm.normalized_shape, norm.eps, elementwise_affine=False)
        self.weight, self.bias, self.region = norm.weight, norm.bias, region

    def forward(self, x: mg.Tensor) -> mg.Tensor:
        weight, bias = (None if p is None else copy_to(p, self.region.comm) for p in (self.weight, self.bias))
        return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


class SequenceRMSNorm(nn.RMSNorm):
    """The same of an RMSNorm."""

    def __init__(self, norm: nn.RMSNorm, region: SequenceRegion) -> None:
        super().__init__(norm.normalized_shape, norm.eps, elementwise_affine=False)
        self.weight, self.region = norm.weight, region

    def forward(self, x: mg.Tensor) -> mg.Tensor:
        weight = None if self.weight is None else copy_to(self.weight, self.region.comm)
        return F.rms_norm(x, self.normalized_shape, weight, self.eps)


class SequenceEmbedding(nn.Embedding):
    """The rows of `embedding` for this rank's places, of the numbers (T) for all of them."""

    def __init__(self, embedding: nn.Embedding, region: SequenceRegion) -> None:
        rows, size = embedding.weight.shape
        super().__init__(rows, size, embedding.padding_idx, _weight=embedding.weight)
        self.weight, self.region = embedding.weight, region

    def forward(self, input: mg.Tensor) -> mg.Tensor:
        return F.embedding(self.region.own(input), copy_to(self.weight, self.region.comm), self.padding_idx)


class SequenceDropout(nn.Dropout):
    """Dropout of this rank's places, with its part of one mask for all of them."""

    def __init__(self, p: float, region: SequenceRegion) -> None:
        super().__init__(p)
        self.region = region

    def forward(self, x: mg.Tensor) -> mg.Tensor:
        region = self.region
        return dropout(x, self.p, region.comm, "sharded", self.training, dim=region.dim, sizes=region.sizes)


__all__ = ["SequenceDropout", "SequenceEmbedding", "SequenceLayerNorm", "SequenceRMSNorm",
           "SequenceRegion"]
