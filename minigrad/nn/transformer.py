"""The transformer of Vaswani et al. 2017 under `torch.nn`'s names: encoder, decoder, and the two together.

After `attention.py`.  The decoder-only models are in `gpt.py` and `llama.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np

from minigrad.create import full
from minigrad.errors import ShapeError
from minigrad.nn import functional as F, init
from minigrad.nn.attention import MultiheadAttention
from minigrad.nn.containers import ModuleList
from minigrad.nn.layers import Dropout, Linear
from minigrad.nn.module import Module
from minigrad.nn.norm import LayerNorm
from minigrad.ops.diagonals import triu
from minigrad.tensor import Tensor

Activation = str | Callable[[Tensor], Tensor]
NAMED: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}


def named_activation(activation: Activation) -> Callable[[Tensor], Tensor]:
    """A function of x, or the one that "relu" or "gelu" names."""
    if not isinstance(activation, str):
        return activation
    if activation not in NAMED:
        raise RuntimeError(f"activation should be relu/gelu, or a function, not {activation!r}")
    return NAMED[activation]


def causal_mask(sz: int, device="cpu", dtype=None) -> Tensor:
    """(sz, sz) with minus infinity above the diagonal, 0 elsewhere."""
    return triu(full((sz, sz), float("-inf"), device=device, dtype=dtype), 1)


def is_causal_mask(mask: Tensor | None, is_causal: bool | None, length: int) -> bool:
    """What the caller says, or else whether the mask is the causal one (which looks at its values)."""
    if is_causal is not None or mask is None or mask.shape != (length, length) or not mask.o.eager:
        return bool(is_causal)
    seen = np.asarray(mask.o.host(mask.array))
    return bool(np.array_equal(seen, np.triu(np.full((length, length), -np.inf), 1)))


class _Layer(Module):
    """What both kinds of layers are made of: attention blocks and a feed-forward block, each added to its input.

    `norm_first` normalises the input of a block, else the sum behind it (Xiong et al. 2020 compare the two)."""

    attentions: tuple[str, ...] = ()  # the names of the attention blocks, in order

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = F.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device="cpu",
        dtype=None,
    ) -> None:
        how = {"bias": bias, "device": device, "dtype": dtype}
        for name in self.attentions:
            setattr(self, name, MultiheadAttention(d_model, nhead, dropout, batch_first=batch_first, **how))
        self.linear1 = Linear(d_model, dim_feedforward, **how)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, **how)
        numbers = range(1, len(self.attentions) + 2)
        for n in numbers:
            setattr(self, f"norm{n}", LayerNorm(d_model, layer_norm_eps, **how))
        for n in numbers:
            setattr(self, f"dropout{n}", Dropout(dropout))
        self.activation = named_activation(activation)
        self.norm_first = norm_first

    def _added(self, x: Tensor, norm: LayerNorm, block: Callable[[Tensor], Tensor]) -> Tensor:
        return x + block(norm(x)) if self.norm_first else norm(x + block(x))

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


class TransformerEncoderLayer(_Layer):
    """Self-attention and a feed-forward block; src (S, N, d_model), or (N, S, d_model) with `batch_first`."""

    self_attn: MultiheadAttention
    norm1: LayerNorm
    norm2: LayerNorm
    dropout1: Dropout
    dropout2: Dropout

    attentions = ("self_attn",)

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Masks as those of MultiheadAttention."""
        attend = lambda x: self.dropout1(
            self.self_attn(x, x, x, src_key_padding_mask, False, src_mask, is_causal=is_causal)[0]
        )
        x = self._added(src, self.norm1, attend)
        return self._added(x, self.norm2, lambda x: self.dropout2(self._feed_forward(x)))


class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to `memory`, and a feed-forward block."""

    self_attn: MultiheadAttention
    multihead_attn: MultiheadAttention
    norm1: LayerNorm
    norm2: LayerNorm
    norm3: LayerNorm
    dropout1: Dropout
    dropout2: Dropout
    dropout3: Dropout

    attentions = ("self_attn", "multihead_attn")

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        own = lambda x: self.dropout1(
            self.self_attn(x, x, x, tgt_key_padding_mask, False, tgt_mask, is_causal=tgt_is_causal)[0]
        )
        other = lambda x: self.dropout2(
            self.multihead_attn(
                x, memory, memory, memory_key_padding_mask, False, memory_mask, is_causal=memory_is_causal
            )[0]
        )
        x = self._added(tgt, self.norm1, own)
        x = self._added(x, self.norm2, other)
        return self._added(x, self.norm3, lambda x: self.dropout3(self._feed_forward(x)))


class TransformerEncoder(Module):
    """Copies of one layer, one after the other, then `norm`.  `enable_nested_tensor` and `mask_check` are PyTorch's."""

    def __init__(
        self,
        encoder_layer: Module,
        num_layers: int,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        self.layers = ModuleList([copy.deepcopy(encoder_layer) for _ in range(num_layers)])
        self.num_layers, self.norm = num_layers, norm

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        """`is_causal` None: found out from the mask."""
        causal = is_causal_mask(mask, is_causal, _length(self.layers, src))
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, causal)
        return src if self.norm is None else self.norm(src)


class TransformerDecoder(Module):
    """Copies of one layer, one after the other, then `norm`."""

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        self.layers = ModuleList([copy.deepcopy(decoder_layer) for _ in range(num_layers)])
        self.num_layers, self.norm = num_layers, norm

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """`tgt_is_causal` None: found out from the mask."""
        masks = tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask
        causal = is_causal_mask(tgt_mask, tgt_is_causal, _length(self.layers, tgt))
        for layer in self.layers:
            tgt = layer(tgt, memory, *masks, causal, memory_is_causal)
        return tgt if self.norm is None else self.norm(tgt)


def _length(layers: ModuleList, x: Tensor) -> int:
    """How long the sequences in x are."""
    first = len(layers) and getattr(getattr(layers[0], "self_attn", None), "batch_first", False)
    return x.shape[1 if first and x.ndim == 3 else 0]


class Transformer(Module):
    """Encoder and decoder; src (S, N, d_model) and tgt (T, N, d_model) give (T, N, d_model)."""

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = F.relu,
        custom_encoder: Module | None = None,
        custom_decoder: Module | None = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device="cpu",
        dtype=None,
    ) -> None:
        how = {"device": device, "dtype": dtype}
        sizes = d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias
        norm = lambda: LayerNorm(d_model, layer_norm_eps, bias=bias, **how)
        self.encoder = custom_encoder or TransformerEncoder(
            TransformerEncoderLayer(*sizes, **how), num_encoder_layers, norm()
        )
        self.decoder = custom_decoder or TransformerDecoder(
            TransformerDecoderLayer(*sizes, **how), num_decoder_layers, norm()
        )
        self._reset_parameters()
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first

    def _reset_parameters(self) -> None:
        for p in self.parameters():
            if p.ndim > 1:
                init.xavier_uniform_(p)

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        batch = 0 if self.batch_first else 1
        if src.ndim == tgt.ndim == 3 and src.shape[batch] != tgt.shape[batch]:
            raise ShapeError(f"Transformer: src {src.shape} and tgt {tgt.shape} have batches of different sizes")
        if src.shape[-1] != self.d_model or tgt.shape[-1] != self.d_model:
            raise ShapeError(f"Transformer: src {src.shape} and tgt {tgt.shape}: expected last size {self.d_model}")
        memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal)
        masks = tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask
        return self.decoder(tgt, memory, *masks, tgt_is_causal, memory_is_causal)

    generate_square_subsequent_mask = staticmethod(causal_mask)
