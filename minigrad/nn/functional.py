"""Layers and losses as functions: ops under their names, and what is composed of ops, stable at the extremes.

`mg.nn.functional` is this file.  The modules in `layers.py`, `norm.py` and `loss.py` call it.
"""

from __future__ import annotations

import math
import warnings

from minigrad.aval import Aval
from minigrad.create import Generator, next_key
from minigrad.dtype import int64
from minigrad.errors import DTypeError, ShapeError
from minigrad.methods import clamp, where
from minigrad.ops import attention, derived
from minigrad.ops.activations import celu, elu, gelu, glu, selu, softplus
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
    multilabel_soft_margin_loss,
    pairwise_distance,
    poisson_nll_loss,
    reduced,
    smooth_l1_loss,
    soft_margin_loss,
    triplet_margin_loss,
)
from minigrad.ops.fused import BatchNorm, cross_entropy, layer_norm, log_softmax, softmax
from minigrad.ops.index import OneHot, check_index, getitem
from minigrad.ops.limits import hardshrink, hardtanh, leaky_relu, prelu, relu6, softshrink, threshold
from minigrad.ops.losses import BinaryCrossEntropy, SquaredError
from minigrad.ops.matmul import linear
from minigrad.ops.norms import group_norm, instance_norm, local_response_norm, rms_norm
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
from minigrad.ops.public import cdist, softmin
from minigrad.ops.random import Dropout
from minigrad.ops.reduce_functions import amax, sum
from minigrad.ops.statistics import cosine_similarity
from minigrad.ops.views import flatten, reshape, squeeze
from minigrad.tensor import Tensor, Writes, apply

_table = derived("functional")
relu, tanh, sigmoid, exp = (_table[name] for name in ("relu", "tanh", "sigmoid", "exp"))
silu, mish, hardsigmoid, hardswish = (_table[name] for name in ("silu", "mish", "hardsigmoid", "hardswish"))
logsigmoid, softsign, tanhshrink = (_table[name] for name in ("logsigmoid", "softsign", "tanhshrink"))


# ---- parts of layers -----------------------------------------------------------------------------
def dropout(x: Tensor, p: float = 0.5, training: bool = True, generator: Generator | None = None) -> Tensor:
    """In training each element is zero with probability `p`, the others grow by 1 / (1 - p); else `x` itself."""
    if not 0 <= p <= 1:
        raise ValueError(f"dropout: p must be a probability, got {p}")
    return apply(Dropout.of(float(p)), x, next_key(generator)) if training and p else x


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


def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """Rows of `weight` (V, D) by number: (…) of integers to (…, D).  The row `padding_idx` gets no gradient."""
    if weight.ndim != 2:
        raise ShapeError(f"embedding: expected a weight (V, D), got {weight.shape}")
    check_index(input, weight.shape[0], "embedding")
    rows = getitem(weight, input)
    if padding_idx is None:
        return rows
    still = reshape(input == padding_idx % weight.shape[0], (*input.shape, 1))
    return where(still, rows.detach(), rows)


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
    s = sum(x.abs() if p == 1 else x**2 if p == 2 else x.abs() ** p, dim, True)
    far = s > eps**p
    root = where(far, s, 1.0)
    return x / where(far, root if p == 1 else root ** (1 / p), eps)


# ---- batch norm ----------------------------------------------------------------------------------
def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each channel (axis 1) with the statistics of the batch in training, else with the running ones.

    In training the running ones move by `momentum` towards the batch's mean and its variance over n - 1."""
    if not training:
        return _scaled(x, running_mean, running_var, weight, bias, eps)
    if math.prod(x.shape) == x.shape[1]:
        raise ValueError(
            f"batch_norm: one value per channel has no variance: input {x.shape} in training. "
            "Use a larger batch, or call .eval()"
        )
    like = lambda v: Tensor(x.o.full(x.shape[1:2], v) if x.o.eager else Aval(x.shape[1:2], x.dtype))
    y, mean, var = apply(BatchNorm.of(eps), x, like(1) if weight is None else weight, like(0) if bias is None else bias)
    n = math.prod(x.shape) // max(x.shape[1], 1)
    _move(running_mean, mean, momentum)
    _move(running_var, var, momentum, n / max(n - 1, 1))
    return y


def _move(running: Tensor | None, now: Tensor, momentum: float, times: float = 1.0) -> None:
    """running = (1 - momentum) · running + momentum · times · now, on the raw arrays: no part of the graph."""
    if running is not None and running.o.eager:
        r = running.array
        r *= 1 - momentum
        r += now.array.reshape(r.shape).astype(r.dtype) * (times * momentum)
        Writes.note(r)


def _scaled(x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Evaluation: one scale and one shift per channel."""
    if mean is None or var is None:
        raise ValueError("batch_norm: evaluation needs running_mean and running_var; pass training=True without them")
    row = (1, -1, *(1,) * (x.ndim - 2))
    scale = (var + eps) ** 0.5
    scale = (1 if weight is None else weight) / scale
    shift = -(mean * scale) if bias is None else bias - mean * scale
    return x * reshape(scale, row) + reshape(shift, row)


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
    """-input[target], for log-probabilities (N, C) or (C) and class numbers (N) or ().

    Ignored rows count neither in the sum nor in the mean; the mean divides by the weights of the targets."""
    if target.dtype != int64:
        raise DTypeError(f"nll_loss: targets must be int64 class numbers, got {target.dtype}. Convert with .long()")
    if input.ndim == 1:
        input, target = reshape(input, (1, -1)), reshape(target, (1,))
    if input.ndim != 2 or target.shape != input.shape[:1]:
        raise ShapeError(f"nll_loss: input {input.shape} and target {target.shape}: expected (N, C) and (N,)")
    kept = target != ignore_index
    safe = where(kept, target, 0)
    check_index(safe, input.shape[1], "nll_loss")
    w = cast(kept, input.dtype) if weight is None else getitem(weight, safe) * cast(kept, input.dtype)
    rows = -squeeze(input.gather(1, reshape(safe, (-1, 1))), 1)
    rows = where(kept, rows * w, 0.0)
    return sum(rows) / sum(w) if reduction == "mean" else reduced(rows, reduction)


def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """-(t log p + (1 - t) log(1 - p)) of probabilities; the logarithms are at least -100, as in PyTorch."""
    if input.shape != target.shape:
        raise ShapeError(f"binary_cross_entropy: input {input.shape} and target {target.shape} must have one shape")
    if input.o.eager and input.array.size and not bool(((input >= 0) & (input <= 1)).all()):
        raise ValueError(
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
    "avg_pool1d",
    "avg_pool2d",
    "batch_norm",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cdist",
    "celu",
    "conv1d",
    "conv2d",
    "conv_transpose1d",
    "conv_transpose2d",
    "cosine_embedding_loss",
    "cosine_similarity",
    "cross_entropy",
    "dropout",
    "elu",
    "embedding",
    "flatten",
    "fold",
    "gaussian_nll_loss",
    "gelu",
    "glu",
    "group_norm",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "hinge_embedding_loss",
    "huber_loss",
    "instance_norm",
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
    "max_pool2d",
    "mish",
    "mse_loss",
    "multi_margin_loss",
    "multilabel_soft_margin_loss",
    "nll_loss",
    "normalize",
    "one_hot",
    "pad",
    "pairwise_distance",
    "pixel_shuffle",
    "pixel_unshuffle",
    "poisson_nll_loss",
    "prelu",
    "relu",
    "relu6",
    "rms_norm",
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
    "unfold",
]
