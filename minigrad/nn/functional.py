"""Layers and losses as functions: ops under their names, and what is composed of ops, stable at the extremes.

`mg.nn.functional` is this file.  The modules in `layers.py`, `norm.py` and `loss.py` call it.
"""

from __future__ import annotations

import math
import warnings

from minigrad.aval import Aval
from minigrad.create import Generator, next_key
from minigrad.dtype import int64
from minigrad.errors import ArgumentError, DTypeError, ShapeError
from minigrad.inplace import overwrite
from minigrad.methods import clamp, where
from minigrad.nn.drawn import gumbel_softmax
from minigrad.nn.in_place import (
    celu,
    elu,
    hardsigmoid,
    hardswish,
    hardtanh,
    leaky_relu,
    mish,
    relu,
    relu6,
    rrelu,
    selu,
    silu,
    threshold,
)
from minigrad.nn.running import batch_norm, instance_norm
from minigrad.ops import attention, derived
from minigrad.ops.activations import SELU, glu, softplus
from minigrad.ops.bags import channel_shuffle, embedding_bag
from minigrad.ops.conv import conv2d
from minigrad.ops.convolutions import (
    conv1d,
    conv_transpose1d,
    conv_transpose2d,
    fold,
    pixel_shuffle,
    pixel_unshuffle,
    unfold,
)
from minigrad.ops.criteria import (
    cosine_embedding_loss,
    gaussian_nll_loss,
    hinge_embedding_loss,
    huber_loss,
    kl_div,
    margin_ranking_loss,
    multi_margin_loss,
    multilabel_margin_loss,
    multilabel_soft_margin_loss,
    pairwise_distance,
    poisson_nll_loss,
    reduced,
    smooth_l1_loss,
    soft_margin_loss,
    triplet_margin_loss,
    triplet_margin_with_distance_loss,
)
from minigrad.ops.ctc import ctc_loss
from minigrad.ops.einsum import einsum
from minigrad.ops.embed import embedding
from minigrad.ops.fused import cross_entropy, log_softmax, softmax
from minigrad.ops.gelu import gelu
from minigrad.ops.index import OneHot, check_index, getitem
from minigrad.ops.layer_norm import layer_norm
from minigrad.ops.limits import hardshrink, prelu, softshrink
from minigrad.ops.losses import BinaryCrossEntropy, SquaredError
from minigrad.ops.matmul import linear
from minigrad.ops.norms import group_norm, local_response_norm, rms_norm
from minigrad.ops.op import cast
from minigrad.ops.padding import pad
from minigrad.ops.pooling import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    avg_pool1d,
    avg_pool2d,
    max_pool1d,
    max_pool2d,
)
from minigrad.ops.public import cdist, pdist, softmin
from minigrad.ops.random import Bernoulli, Dropout
from minigrad.ops.reduce_functions import amax, sum
from minigrad.ops.resize import interpolate
from minigrad.ops.statistics import cosine_similarity, norm
from minigrad.ops.unpooling import lp_pool1d, lp_pool2d, max_unpool1d, max_unpool2d
from minigrad.ops.views import flatten, permute, reshape, squeeze
from minigrad.tensor import Tensor, apply

_table = derived("functional")
tanh, sigmoid, exp = (_table[name] for name in ("tanh", "sigmoid", "exp"))
logsigmoid, softsign, tanhshrink = (_table[name] for name in ("logsigmoid", "softsign", "tanhshrink"))


# ---- parts of layers -----------------------------------------------------------------------------
def dropout(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, *, generator: Generator | None = None
) -> Tensor:
    """In training each element is zero with probability `p`, the others grow by 1 / (1 - p); else `input` itself."""
    if not 0 <= p <= 1:
        raise ArgumentError(f"dropout: p must be a probability, got {p}")
    y = apply(Dropout.of(float(p)), input, next_key(generator)) if training and p else input
    return overwrite(input, y, "dropout") if inplace and y is not input else y


def _by_channel(x: Tensor, p: float, training: bool, lead: int) -> Tensor:
    """dropout of all that follows the first `lead` axes at once."""
    if not (training and p):
        return dropout(x, p, training)
    shape = (*x.shape[:lead], *(1,) * (x.ndim - lead))
    return x * dropout(Tensor(x.o.full(shape, 1) if x.o.eager else Aval(shape, x.dtype)), p)


def dropout1d(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """dropout of whole channels of sequences (N, C, L) or (C, L)."""
    if x.ndim not in (2, 3):
        raise ShapeError(f"dropout1d: expected (N, C, L) or (C, L), got {x.shape}")
    return _by_channel(x, p, training, x.ndim - 1)


def dropout2d(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """dropout of whole channels of (N, C, H, W) or, as PyTorch takes three axes, (N, C, L)."""
    if x.ndim not in (3, 4):
        raise ShapeError(f"dropout2d: expected (N, C, H, W) or (N, C, L), got {x.shape}")
    return _by_channel(x, p, training, 2)


def dropout3d(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """dropout of whole channels of (N, C, D, H, W) or (C, D, H, W)."""
    if x.ndim not in (4, 5):
        raise ShapeError(f"dropout3d: expected (N, C, D, H, W) or (C, D, H, W), got {x.shape}")
    return _by_channel(x, p, training, x.ndim - 3)


def alpha_dropout(x: Tensor, p: float = 0.5, training: bool = False) -> Tensor:
    """dropout to selu's lowest value, scaled and moved so that mean 0 and variance 1 stay (Klambauer et al. 2017)."""
    if not 0 <= p <= 1:
        raise ValueError(f"alpha_dropout: p must be a probability, got {p}")
    if not (training and p):
        return x
    if p == 1:
        return x * 0
    low = -SELU[0] * SELU[1]
    kept = apply(Bernoulli.of(x.shape, 1 - p), x.detach(), next_key())
    scale = ((1 - p) * (1 + p * low * low)) ** -0.5
    return (x * kept + (1 - kept) * low) * scale - scale * p * low


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input1ᵀ weight[o] input2 for each o: (…, I), (…, J) and weight (O, I, J) to (…, O)."""
    if input1.shape[:-1] != input2.shape[:-1] or weight.shape[1:] != (input1.shape[-1], input2.shape[-1]):
        raise ShapeError(
            f"bilinear: inputs {input1.shape} and {input2.shape}, weight {weight.shape}: expected (…, I), (…, J) and "
            "(O, I, J)"
        )
    y = einsum("...i,oij,...j->...o", input1, weight, input2)
    return y if bias is None else y + bias


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(query @ key.mT · scale + mask) @ value; see `ops/attention.py`.  Dropout acts on the probabilities."""
    rng = next_key() if dropout_p > 0 else None
    return attention.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, rng=rng
    )


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """int64 (…, C) with a 1 where the class number is; C is the largest number plus 1 unless given."""
    if tensor.dtype != int64:
        raise DTypeError(f"one_hot: expected int64 class numbers, got {tensor.dtype}. Convert with .long()")
    if num_classes == -1:
        num_classes = int(tensor.max().item()) + 1
    check_index(tensor, num_classes, "one_hot")
    return apply(OneHot.of(num_classes), tensor, tensor)


def normalize(x: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """x / max(norm of x along dim, eps); a row of zeros stays zero, with a finite gradient."""
    if p == math.inf:
        return x / clamp(amax(x.abs(), dim, True), min=eps)
    if p not in (1, 2):
        return x / clamp(norm(x, p, dim, True), min=eps)
    s = sum(x.abs() if p == 1 else x**2, dim, True)
    far = s > eps**p
    root = where(far, s, 1.0)
    return x / where(far, root if p == 1 else root ** 0.5, eps)


# ---- losses --------------------------------------------------------------------------------------
def _compare(name: str, input: Tensor, target: Tensor) -> None:
    """Warn of shapes that only broadcast: (N, 1) against (N,) compares everything with everything."""
    if input.shape != target.shape:
        warnings.warn(
            f"{name}: input {input.shape} and target {target.shape} differ and will broadcast, which is "
            "rarely meant. Reshape one of them",
            stacklevel=3,
        )


def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """(input - target)², its mean, sum or all of it."""
    _compare("mse_loss", input, target)
    if reduction in ("mean", "sum") and input.shape == target.shape and input.dtype == target.dtype:
        return apply(SquaredError.of(reduction == "mean"), input, target)
    return reduced((input - target) ** 2, reduction)


def l1_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """|input - target|."""
    _compare("l1_loss", input, target)
    return reduced((input - target).abs(), reduction)


def nll_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor:
    """-input[target], for log-probabilities (N, C), (N, C, …) or (C) and class numbers (N), (N, …) or ().

    Ignored rows count neither in the sum nor in the mean; the mean divides by the weights of the targets."""
    if target.dtype != int64:
        raise DTypeError(f"nll_loss: targets must be int64 class numbers, got {target.dtype}. Convert with .long()")
    shape, wide = target.shape, input.shape
    if weight is not None and weight.shape != wide[:2][-1:]:
        raise ShapeError(f"nll_loss: weight {weight.shape} must have one number for each class, {wide[:2][-1:]}")
    if not wide or shape != wide[: len(wide) > 1] + wide[2:]:
        raise ShapeError(f"nll_loss: input {wide} and target {shape}: expected (N, C, …) and (N, …), or (C) and ()")
    if input.ndim > 2:
        input = permute(input, 0, *range(2, input.ndim), 1)
    input, target = reshape(input, (-1, input.shape[-1])), reshape(target, (-1,))
    kept = target != ignore_index
    safe = where(kept, target, 0)
    check_index(safe, input.shape[1], "nll_loss")
    w = cast(kept, input.dtype) if weight is None else getitem(weight, safe) * cast(kept, input.dtype)
    rows = -squeeze(input.gather(1, reshape(safe, (-1, 1))), 1)
    rows = where(kept, rows * w, 0.0)
    return sum(rows) / sum(w) if reduction == "mean" else reduced(reshape(rows, shape), reduction)


def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """-(t log p + (1 - t) log(1 - p)) of probabilities; the logarithms are at least -100, as in PyTorch."""
    if input.shape != target.shape:
        raise ShapeError(f"binary_cross_entropy: input {input.shape} and target {target.shape} must have one shape")
    if input.o.eager and input.array.size and not bool(((input >= 0) & (input <= 1)).all()):
        raise ArgumentError(
            "binary_cross_entropy: the input must be probabilities in [0, 1]. For any number use "
            "binary_cross_entropy_with_logits"
        )
    loss = apply(BinaryCrossEntropy.of(), input, target)
    return reduced(loss if weight is None else loss * weight, reduction)


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """binary_cross_entropy(sigmoid(input), target) without overflow: (1 - t) x + (1 + (w - 1) t) softplus(-x)."""
    if input.shape != target.shape:
        raise ShapeError(
            f"binary_cross_entropy_with_logits: input {input.shape} and target {target.shape} must have one shape"
        )
    tail = softplus(-input)
    if pos_weight is not None:
        tail = tail * (target * (pos_weight - 1) + 1)
    loss = (1 - target) * input + tail
    return reduced(loss if weight is None else loss * weight, reduction)


__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "alpha_dropout",
    "avg_pool1d",
    "avg_pool2d",
    "batch_norm",
    "bilinear",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cdist",
    "celu",
    "channel_shuffle",
    "conv1d",
    "conv2d",
    "conv_transpose1d",
    "conv_transpose2d",
    "cosine_embedding_loss",
    "cosine_similarity",
    "cross_entropy",
    "ctc_loss",
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "elu",
    "embedding",
    "embedding_bag",
    "flatten",
    "fold",
    "gaussian_nll_loss",
    "gelu",
    "glu",
    "group_norm",
    "gumbel_softmax",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "hinge_embedding_loss",
    "huber_loss",
    "instance_norm",
    "interpolate",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "leaky_relu",
    "linear",
    "local_response_norm",
    "log_softmax",
    "logsigmoid",
    "margin_ranking_loss",
    "max_pool1d",
    "lp_pool1d",
    "lp_pool2d",
    "max_pool2d",
    "max_unpool1d",
    "max_unpool2d",
    "mish",
    "mse_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "nll_loss",
    "normalize",
    "one_hot",
    "pad",
    "pairwise_distance",
    "pdist",
    "pixel_shuffle",
    "pixel_unshuffle",
    "poisson_nll_loss",
    "prelu",
    "relu",
    "relu6",
    "rms_norm",
    "rrelu",
    "scaled_dot_product_attention",
    "selu",
    "sigmoid",
    "silu",
    "smooth_l1_loss",
    "soft_margin_loss",
    "softmax",
    "softmin",
    "softplus",
    "softshrink",
    "softsign",
    "tanh",
    "tanhshrink",
    "threshold",
    "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
    "unfold",
]
