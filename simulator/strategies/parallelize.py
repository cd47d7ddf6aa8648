"""`parallelize`: a model cut among ranks, its modules replaced by parallel ones.  After `heads.py` and `vocabulary.py`.

    model = parallelize(CharGPT(config), mesh["tp"], sequence=True)
    loss = vocab_parallel_cross_entropy(model(tokens), targets, mesh["tp"])
"""
from __future__ import annotations

import hashlib
from typing import TypeVar

import numpy as np

import minigrad as mg
from minigrad import nn
from minigrad.nn.gpt import MLP, CharGPT, TransformerBlock
from minigrad.nn.llama import Llama, LlamaBlock, LlamaMLP
from simulator.communicator import Communicator
from simulator.strategies.heads import ParallelLlamaAttention, ParallelMultiheadAttention, ParallelSelfAttention
from simulator.strategies.regions import Dropout
from simulator.strategies.sequence import (
    SequenceDropout,
    SequenceEmbedding,
    SequenceLayerNorm,
    SequenceRegion,
    SequenceRMSNorm,
)
from simulator.strategies.shards import Shard, shards_of
from simulator.strategies.tensor_parallel import ColumnParallelLinear, RowParallelLinear, gathered
from simulator.strategies.vocabulary import VocabParallelEmbedding

M = TypeVar("M", bound=nn.Module)
Layer = nn.TransformerEncoderLayer | nn.TransformerDecoderLayer
Known = TransformerBlock | LlamaBlock | Layer


def parallelize(model: M, comm: Communicator, *, sequence: bool = False, gather_output: bool = False) -> M:
    """The same model, changed in place: of each attention and feed-forward block, and of a language model's
    vocabulary, this rank keeps its part (`shards_of`); the rest is whole on each rank.

    Known are CharGPT, Llama, their blocks, and the layers of `nn.Transformer`, also within other modules.  All ranks
    give the same inputs and, before, the same weights (ValueError where they differ).  The logits of a language model
    are this rank's part of the vocabulary, for `vocab_parallel_cross_entropy`; `gather_output`: all of them, on each
    rank.  `sequence`: between the products of a language model each rank works on its part of the places."""
    if sequence and not isinstance(model, CharGPT | Llama):
        raise ValueError(f"parallelize: sequence=True knows CharGPT and Llama, where sequences begin and end; got "
                         f"{type(model).__name__}")
    _check(model, comm)
    region = SequenceRegion(comm) if sequence else None
    for module in list(model.modules()):
        if isinstance(module, TransformerBlock):
            _cut_block(module, comm, region)
        elif isinstance(module, LlamaBlock):
            _cut_llama_block(module, comm, region)
        elif isinstance(module, Layer):
            _cut_layer(module, comm)
    if isinstance(model, CharGPT):
        _cut_ends(model, "wte", comm, region, gather_output)
        if region is not None:
            model.wpe, model.ln_f = SequenceEmbedding(model.wpe, region), SequenceLayerNorm(model.ln_f, region)
            model.drop = SequenceDropout(model.drop.p, region)
    elif isinstance(model, Llama):
        _cut_ends(model, "embed_tokens", comm, region, gather_output)
        model.norm = model.norm if region is None else SequenceRMSNorm(model.norm, region)
    return model


def _check(model: nn.Module, comm: Communicator) -> None:
    """Whole models, of known kinds, the same on all ranks: asked by one small all_gather."""
    if any(True for _ in shards_of(model)):
        raise ValueError(f"parallelize: the {type(model).__name__} is cut already. Make it anew to cut it otherwise")
    if not any(isinstance(m, Known) for m in model.modules()):
        raise ValueError(f"parallelize: nothing in the {type(model).__name__} is a block of CharGPT or Llama, or a "
                         f"layer of nn.Transformer. Replace its Linears by ColumnParallelLinear and RowParallelLinear")
    digests = comm.all_gather(_digest(model))
    strange = [rank for rank, digest in enumerate(digests) if (digest != digests[0]).any()]
    if strange:
        raise ValueError(f"parallelize: rank {', '.join(map(str, strange))} has other weights than rank 0. Seed all "
                         f"ranks alike, or broadcast the state of one")


def _digest(model: nn.Module) -> np.ndarray:
    """32 bytes that tell the names, shapes and values of the state."""
    found = hashlib.sha256()
    for name, t in model.state_dict().items():
        found.update(f"{name} {tuple(t.shape)} {t.dtype}".encode())
        found.update(np.ascontiguousarray(t.detach().cpu().numpy()).tobytes())
    return np.frombuffer(found.digest(), np.uint8)


def _cut_block(block: TransformerBlock, comm: Communicator, region: SequenceRegion | None) -> None:
    block.attn = ParallelSelfAttention(block.attn, comm, sequence=region)                    # type: ignore[assignment]
    mlp: MLP = block.mlp
    mlp.c_fc = ColumnParallelLinear(mlp.c_fc, comm, sequence=region)                         # type: ignore[assignment]
    mlp.c_proj = RowParallelLinear(mlp.c_proj, comm, sequence=region)                        # type: ignore[assignment]
    if region is not None:
        block.ln_1, block.ln_2 = (SequenceLayerNorm(norm, region) for norm in (block.ln_1, block.ln_2))
        block.attn.resid_dropout, mlp.dropout = (SequenceDropout(d.p, region)
                                                 for d in (block.attn.resid_dropout, mlp.dropout))


class ParallelLlamaMLP(LlamaMLP):
    """`mlp` with its inner features cut; one copy of x, or one gathering, serves both of the first products."""

    def __init__(self, mlp: LlamaMLP, comm: Communicator, sequence: SequenceRegion | None) -> None:
        self.comm, self.sequence = comm, sequence
        self.gate_proj, self.up_proj = (                                                     # type: ignore[assignment]
            ColumnParallelLinear(linear, comm, input_is_copied=True) for linear in (mlp.gate_proj, mlp.up_proj))
        self.down_proj = RowParallelLinear(mlp.down_proj, comm, sequence=sequence)           # type: ignore[assignment]

    def forward(self, x: mg.Tensor) -> mg.Tensor:
        return super().forward(gathered(x, self.comm, self.sequence))


def _cut_llama_block(block: LlamaBlock, comm: Communicator, region: SequenceRegion | None) -> None:
    block.self_attn = ParallelLlamaAttention(block.self_attn, comm, sequence=region)
    block.mlp = ParallelLlamaMLP(block.mlp, comm, region)
    if region is not None:
        block.input_layernorm, block.post_attention_layernorm = (
            SequenceRMSNorm(norm, region) for norm in (block.input_layernorm, block.post_attention_layernorm))


def _cut_layer(layer: Layer, comm: Communicator) -> None:
    for name in layer.attentions:
        setattr(layer, name, ParallelMultiheadAttention(getattr(layer, name), comm))
    hidden = Shard.even(comm, 0, layer.linear1.out_features)
    layer.linear1 = ColumnParallelLinear(layer.linear1, comm, shard=hidden)                  # type: ignore[assignment]
    layer.linear2 = RowParallelLinear(layer.linear2, comm)                                   # type: ignore[assignment]
    layer.dropout = Dropout(layer.dropout.p, comm, "sharded", sizes=hidden.sizes)


def _cut_ends(model: CharGPT | Llama, table: str, comm: Communicator, region: SequenceRegion | None,
              gather_output: bool) -> None:
    """The vocabulary, where tokens come in and logits go out."""
    tied = model.lm_head.weight is getattr(model, table).weight
    setattr(model, table, VocabParallelEmbedding(getattr(model, table), comm, sequence=region))
    model.lm_head = ColumnParallelLinear(model.lm_head, comm, gather_output=gather_output,   # type: ignore[assignment]
                                         sequence=region)
    if tied:
        model.lm_head.weight = getattr(model, table).weight


__all__ = ["parallelize"]
