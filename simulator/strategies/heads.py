"""Attention with its heads cut among ranks: each rank has the queries, keys, values and the rows of the last product of
its own heads, and what it gives is summed (Shoeybi et al. 2019, figure 3b).  After `tensor_parallel.py`.
"""
from __future__ import annotations

import minigrad as mg
from minigrad import nn
from minigrad.nn import functional as F
from minigrad.nn.gpt import CausalSelfAttention
from minigrad.nn.kv_cache import LayerCache, causal_attention
from minigrad.nn.llama import LlamaAttention
from minigrad.ops.attention import attention_weights
from simulator.collectives import cut
from simulator.comm_ops import copy_to, gather_from
from simulator.communicator import Communicator
from simulator.strategies.regions import dropout
from simulator.strategies.sequence import SequenceRegion
from simulator.strategies.shards import Shard
from simulator.strategies.tensor_parallel import ColumnParallelLinear, RowParallelLinear, gathered


class ParallelSelfAttention(nn.Module):
    """The causal attention of a CharGPT, `attention`: (B, T, C) that all ranks have to the same, on each.

    With `sequence` both are this rank's part of T.  The mask of dropout on the weights is drawn for all heads."""

    def __init__(self, attention: CausalSelfAttention, comm: Communicator, *,
                 sequence: SequenceRegion | None = None) -> None:
        self.heads = _shared(attention.n_head, comm)
        self.n_head, self.dropout, self.comm = self.heads[comm.rank], attention.dropout, comm
        width, rows = attention.c_proj.in_features, attention.c_attn.out_features
        self.head_dim = width // attention.n_head
        self.c_attn = ColumnParallelLinear(attention.c_attn, comm, sequence=sequence,
                                           shard=Shard.even(comm, 0, rows, blocks=3, width=self.head_dim))
        self.c_proj = RowParallelLinear(attention.c_proj, comm, sequence=sequence,
                                        shard=Shard.even(comm, 1, width, width=self.head_dim))
        self.resid_dropout = attention.resid_dropout

    def forward(self, x: mg.Tensor, cache: LayerCache | None = None) -> mg.Tensor:
        qkv = self.c_attn(x)
        b, t, _ = qkv.shape
        q, k, v = qkv.reshape(b, t, 3, self.n_head, self.head_dim).permute(2, 0, 3, 1, 4)   # (B, H / ranks, T, C / H)
        y = self._attended(q, k, v, cache)
        return self.resid_dropout(self.c_proj(y.transpose(1, 2).reshape(b, t, self.n_head * self.head_dim)))

    def _attended(self, q: mg.Tensor, k: mg.Tensor, v: mg.Tensor, cache: LayerCache | None) -> mg.Tensor:
        if not (self.training and self.dropout):
            return causal_attention(q, k, v, cache)
        if cache is not None:
            raise RuntimeError("ParallelSelfAttention: a cache is for reading, without dropout. Call eval() first")
        weights = attention_weights(q, k, is_causal=True)
        return dropout(weights, self.dropout, self.comm, "sharded", dim=1, sizes=self.heads) @ v


class ParallelLlamaAttention(LlamaAttention):
    """The same of a Llama: groups of queries stay with the head of keys and values that they share."""

    def __init__(self, attention: LlamaAttention, comm: Communicator, *,
                 sequence: SequenceRegion | None = None) -> None:
        self.head_dim, self.comm, self.sequence = attention.head_dim, comm, sequence
        wide, narrow = attention.q_proj.out_features, attention.k_proj.out_features
        _shared(narrow // self.head_dim, comm)
        group = self.head_dim * (wide // narrow)
        cut_by = lambda linear, width: ColumnParallelLinear(
            linear, comm, shard=Shard.even(comm, 0, linear.out_features, width=width), input_is_copied=True)
        self.q_proj = cut_by(attention.q_proj, group)                                        # type: ignore[assignment]
        self.k_proj = cut_by(attention.k_proj, self.head_dim)                                # type: ignore[assignment]
        self.v_proj = cut_by(attention.v_proj, self.head_dim)                                # type: ignore[assignment]
        self.o_proj = RowParallelLinear(attention.o_proj, comm, sequence=sequence,           # type: ignore[assignment]
                                        shard=Shard.even(comm, 1, wide, width=group))

    def forward(self, x: mg.Tensor, places: tuple[mg.Tensor, mg.Tensor],
                cache: LayerCache | None = None) -> mg.Tensor:
        return super().forward(gathered(x, self.comm, self.sequence), places, cache)


class ParallelMultiheadAttention(nn.MultiheadAttention):
    """`attention` with its heads cut; its inputs, masks and outputs are those of `nn.MultiheadAttention`, whole and the
    same on all ranks."""

    def __init__(self, attention: nn.MultiheadAttention, comm: Communicator) -> None:
        nn.Module.__init__(self)
        self.heads, self.comm = _shared(attention.num_heads, comm), comm
        self.embed_dim, self.kdim, self.vdim = attention.embed_dim, attention.kdim, attention.vdim
        self.num_heads, self.head_dim = self.heads[comm.rank], attention.head_dim
        self.dropout, self.batch_first = attention.dropout, attention.batch_first
        self.add_zero_attn = attention.add_zero_attn
        self.shards: dict[str, Shard] = {}
        self._cut(attention, comm)
        self.out_proj = RowParallelLinear(attention.out_proj, comm,                          # type: ignore[assignment]
                                          shard=Shard.even(comm, 1, self.embed_dim, width=self.head_dim))

    def _cut(self, attention: nn.MultiheadAttention, comm: Communicator) -> None:
        """The projections, by heads."""
        for name in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias", "bias_k",
                     "bias_v"):
            whole = getattr(attention, name)
            dim, blocks = 2 * name.startswith("bias_"), 3 if name.startswith("in_") else 1
            if whole is not None:
                self.shards[name] = Shard.even(comm, dim, whole.shape[dim], blocks, self.head_dim)
            setattr(self, name, None if whole is None else self.shards[name].parameter(whole, name))

    def forward(self, query: mg.Tensor, key: mg.Tensor, value: mg.Tensor, key_padding_mask: mg.Tensor | None = None,
                need_weights: bool = True, attn_mask: mg.Tensor | None = None, average_attn_weights: bool = True,
                is_causal: bool = False) -> tuple[mg.Tensor, mg.Tensor | None]:
        """As `nn.MultiheadAttention`; the weights are those of all heads."""
        attn_mask = self._own_mask(attn_mask)
        self._check(query, key, value, attn_mask, key_padding_mask, is_causal)
        batched = query.ndim == 3
        q, k, v = self._queries_keys_values(query, key, value)
        causal = is_causal and key_padding_mask is None and not need_weights
        bias = self._bias(q, None if causal else attn_mask, key_padding_mask, k.shape[2] - (self.bias_k is not None))
        if self.add_zero_attn:
            k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
        p, weights = self.dropout if self.training else 0.0, None
        if need_weights or p:
            weights = dropout(attention_weights(q, k, bias, causal), p, self.comm, "sharded", dim=1, sizes=self.heads)
            y = weights @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, bias, 0.0, causal)
        y = self.out_proj(y.transpose(1, 2).flatten(2))
        shown = self._shown(weights, average_attn_weights) if need_weights and weights is not None else None
        if not batched:
            return y.squeeze(0), None if shown is None else shown.squeeze(0)
        return (y if self.batch_first else y.transpose(0, 1)), shown

    def _queries_keys_values(self, query: mg.Tensor, key: mg.Tensor, value: mg.Tensor) -> list[mg.Tensor]:
        """Those of this rank's heads, (N, heads, length, width); one input that serves several times is copied once."""
        copies: dict[int, mg.Tensor] = {}
        for x in (query, key, value):
            copies.setdefault(id(x), self._batch_first(copy_to(x, self.comm)))
        q, k, v = (copies[id(x)] for x in (query, key, value))
        q, k, v = self._projected(q, k, v)
        if self.bias_k is not None and self.bias_v is not None:
            k, v = (mg.cat([x, row.expand(x.shape[0], 1, -1)], 1) for x, row in ((k, self.bias_k), (v, self.bias_v)))
        return [self._heads(x) for x in (q, k, v)]

    def _own_mask(self, mask: mg.Tensor | None) -> mg.Tensor | None:
        """Of a mask for each head, that of this rank's heads."""
        if mask is None or mask.ndim != 3 or mask.shape[0] % sum(self.heads):
            return mask
        whole = mask.reshape(-1, sum(self.heads), *mask.shape[1:])
        return mg.split(whole, self.heads, 1)[self.comm.rank].flatten(0, 1)

    def _shown(self, weights: mg.Tensor, average: bool) -> mg.Tensor:
        weights = gather_from(weights, self.comm, 1)
        return weights.mean(1) if average else weights


def _shared(heads: int, comm: Communicator) -> list[int]:
    """How many heads each rank has."""
    if heads < comm.world_size:
        raise ValueError(f"{heads} heads cannot be shared by {comm.world_size} ranks: some would have none. Use at "
                         f"most {heads} ranks for tensor parallel")
    return cut(heads, comm.world_size)


__all__ = ["ParallelLlamaAttention", "ParallelMultiheadAttention", "ParallelSelfAttention"]
