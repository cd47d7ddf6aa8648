"""The vocabulary cut among ranks: each looks up the tokens whose rows it has, and the loss is computed without anybody
having all logits of a token (Shoeybi et al. 2019, section 3).  After `tensor_parallel.py`, whose column-parallel
product is the head of such a model.
"""
from __future__ import annotations

from collections.abc import Sequence
from math import prod

import minigrad as mg
from minigrad import nn
from minigrad.nn import functional as F
from minigrad.ops.index import check_index
from simulator.comm_ops import reduce_from
from simulator.communicator import Communicator
from simulator.strategies.sequence import SequenceRegion
from simulator.strategies.shards import Shard
from simulator.strategies.tensor_parallel import summed

REDUCTIONS = ("mean", "sum", "none")


class VocabParallelEmbedding(nn.Module):
    """`embedding` with its rows cut: (…) of token numbers that all ranks have to (…, D), the sum over ranks of the rows
    that each has, 0 for others.  `sequence`: each rank gets its part of the sequence of the sum."""

    def __init__(self, embedding: nn.Embedding, comm: Communicator, *, sequence: SequenceRegion | None = None) -> None:
        shard = Shard.even(comm, 0, embedding.num_embeddings)
        self.num_embeddings, self.embedding_dim = embedding.num_embeddings, embedding.embedding_dim
        self.comm, self.sequence, self.start = comm, sequence, shard.start
        own = None if embedding.padding_idx is None else embedding.padding_idx - shard.start
        self.padding_idx = own if own is not None and 0 <= own < shard.sizes[comm.rank] else None
        self.options = (embedding.max_norm, embedding.norm_type, embedding.scale_grad_by_freq, embedding.sparse)
        self.weight = shard.parameter(embedding.weight, "weight")
        self.shards = {"weight": shard}

    def forward(self, input: mg.Tensor) -> mg.Tensor:
        check_index(input, self.num_embeddings, "VocabParallelEmbedding")
        numbers, rows = input.reshape(-1) - self.start, self.weight.shape[0]
        at = ((numbers >= 0) & (numbers < rows)).nonzero()[:, 0]
        found = F.embedding(numbers[at], self.weight, self.padding_idx, *self.options)
        nothing = mg.zeros(numbers.shape[0], self.embedding_dim, dtype=found.dtype, device=found.device)
        y = nothing.index_copy(0, at, found).reshape(*input.shape, self.embedding_dim)
        return summed(y, self.comm, self.sequence)

    def extra_repr(self) -> str:
        return (f"{self.num_embeddings}, {self.embedding_dim}: rows {self.start} … "
                f"{self.start + self.weight.shape[0] - 1} on rank {self.comm.rank} of {self.comm.world_size}")


def vocab_parallel_cross_entropy(input: mg.Tensor, target: mg.Tensor, comm: Communicator, *, ignore_index: int = -100,
                                 reduction: str = "mean", label_smoothing: float = 0.0,
                                 sizes: Sequence[int] | None = None) -> mg.Tensor:
    """The cross entropy of logits (…, this rank's part of the vocabulary) with the token numbers (…), on each rank.

    All ranks give the same targets: broadcast the batch first.  Only their shapes are compared.
    What travels are two or three numbers a token, not its logits: the largest logit, and the sums.  `sizes` of the
    parts; None asks the ranks.  Otherwise as `F.cross_entropy`."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"vocab_parallel_cross_entropy: reduction {reduction!r} is none of {', '.join(REDUCTIONS)}")
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"vocab_parallel_cross_entropy: label_smoothing is a share between 0 and 1, got "
                         f"{label_smoothing}")
    if input.shape[:-1] != target.shape:
        raise ValueError(f"vocab_parallel_cross_entropy: logits {tuple(input.shape)} and targets "
                         f"{tuple(target.shape)}: expected (…, vocabulary) and (…)")
    sizes = comm.all_gather(input.shape[-1]) if sizes is None else list(sizes)
    if len(sizes) != comm.world_size or sizes[comm.rank] != input.shape[-1]:
        raise ValueError(f"vocab_parallel_cross_entropy: sizes={sizes} of {comm.world_size} parts, and rank "
                         f"{comm.rank} has {input.shape[-1]} logits of each token")
    x, vocabulary = input.reshape(prod(target.shape), input.shape[-1]), sum(sizes)
    target = target.reshape(-1)
    counted = target != ignore_index
    check_index(target[counted], vocabulary, "vocab_parallel_cross_entropy")
    x = x - mg.unsqueeze(_largest(x, comm), 1)
    sums = [x.exp().sum(1), _picked(x, target - sum(sizes[:comm.rank]))] + ([x.sum(1)] if label_smoothing else [])
    total, right, *rest = reduce_from(mg.stack(sums), comm)
    loss = total.log() - right
    if label_smoothing:
        loss = (1 - label_smoothing) * loss + label_smoothing * (total.log() - rest[0] / vocabulary)
    loss = mg.where(counted, loss, mg.zeros((), dtype=loss.dtype, device=loss.device))
    if reduction == "none":
        return loss.reshape(input.shape[:-1])
    return loss.sum() / counted.sum().to(loss.dtype) if reduction == "mean" else loss.sum()


def _largest(x: mg.Tensor, comm: Communicator) -> mg.Tensor:
    """The largest logit of each token, over all ranks; it cancels, so no gradient goes through it."""
    x = x.detach()
    own = x.amax(1) if x.shape[1] else mg.full((x.shape[0],), float("-inf"), dtype=x.dtype, device=x.device)
    return comm.all_reduce(own, "max")


def _picked(x: mg.Tensor, numbers: mg.Tensor) -> mg.Tensor:
    """x[i, numbers[i]], and 0 where this rank has no such number."""
    at = ((numbers >= 0) & (numbers < x.shape[1])).nonzero()[:, 0]
    found = x[at, numbers[at]]
    return mg.zeros(x.shape[0], dtype=x.dtype, device=x.device).index_copy(0, at, found)


__all__ = ["VocabParallelEmbedding", "vocab_parallel_cross_entropy"]
