"""Losses composed of ops: of distributions, of pairs, of margins.  `losses.py` has those that are one op."""

from __future__ import annotations

import math

from minigrad.aval import Aval
from minigrad.dtype import int64
from minigrad.errors import ArgumentError, DTypeError, ShapeError
from minigrad.ops.doors import function, literal
from minigrad.ops.elementwise import Abs, Exp, Log, Softplus, Where
from minigrad.ops.exponential import Xlogy
from minigrad.ops.index import check_index, getitem
from minigrad.ops.indexed import scatter_add
from minigrad.ops.limits import clamp
from minigrad.ops.losses import Huber
from minigrad.ops.op import cast
from minigrad.ops.reduce_functions import mean, sum
from minigrad.ops.scan import cumsum
from minigrad.ops.statistics import cosine_similarity, norm
from minigrad.ops.views import reshape, unsqueeze
from minigrad.tensor import Tensor

where, exp, log, softplus, absolute, xlogy = (function(cls) for cls in (Where, Exp, Log, Softplus, Abs, Xlogy))


def reduced(loss: Tensor, reduction: str) -> Tensor:
    """The mean or the sum of a loss, or all of it for "none"."""
    if reduction not in ("mean", "sum", "none"):
        raise ArgumentError(f"reduction {reduction!r} is not one of 'mean', 'sum', 'none'")
    return mean(loss) if reduction == "mean" else sum(loss) if reduction == "sum" else loss


# ---- of numbers ----------------------------------------------------------------------------------
def huber_loss(input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0) -> Tensor:
    """Squared near 0, straight beyond `delta` (Huber 1964)."""
    if delta <= 0:
        raise ArgumentError(f"huber_loss: delta must be above 0, got {delta}")
    return reduced(function(Huber, float(delta))(input, target), reduction)


def smooth_l1_loss(input: Tensor, target: Tensor, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """huber_loss / beta; with beta 0 the absolute error."""
    if beta < 0:
        raise ArgumentError(f"smooth_l1_loss: beta must be at least 0, got {beta}")
    if beta == 0:
        return reduced(absolute(input - target), reduction)
    return reduced(function(Huber, float(beta))(input, target) / beta, reduction)


def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Tensor:
    """exp(x) - target · x, of x the logarithm of the rate (or of the rate itself); `full` adds Stirling's term."""
    loss = exp(input) - target * input if log_input else input - target * log(input + eps)
    if full:
        big = target > 1
        safe = where(big, target, literal(2.0, target))
        loss = loss + where(big, target * log(safe) - target + log(safe * (2 * math.pi)) * 0.5, literal(0.0, target))
    return reduced(loss, reduction)


def gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Tensor, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """(log var + (input - target)² / var) / 2, var at least eps (seen by the values, not by the gradient)."""
    if var.o.eager and bool((var < 0).any()):
        raise ArgumentError("gaussian_nll_loss: var holds a negative number. Pass exp(log_var)")
    safe = var + (clamp(var.detach(), min=eps) - var.detach())
    loss = (log(safe) + (input - target) ** 2 / safe) * 0.5
    return reduced(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction)


# ---- of distributions -----------------------------------------------------------------------------
def kl_div(input: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """target · (log target - input), input being log-probabilities; 0 where the target is 0.

    "batchmean" divides the sum by the number of rows, which is the divergence; "mean" by that of all elements."""
    loss = exp(target) * (target - input) if log_target else xlogy(target, target) - target * input
    return sum(loss) / input.shape[0] if reduction == "batchmean" else reduced(loss, reduction)


# ---- of margins -------------------------------------------------------------------------------------
def _above(x: Tensor) -> Tensor:
    """max(x, 0), with gradient 1 at 0, as PyTorch's clamp_min."""
    return clamp(x, min=0)


def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """max(0, -target · (input1 - input2) + margin), target 1 or -1."""
    return reduced(_above(-target * (input1 - input2) + margin), reduction)


def hinge_embedding_loss(input: Tensor, target: Tensor, margin: float = 1.0, reduction: str = "mean") -> Tensor:
    """The distance `input` where the target is 1, max(0, margin - input) where it is -1."""
    zero = literal(0.0, input)
    loss = where(target != 1, _above(margin - input), zero) + where(target != -1, input, zero)
    return reduced(loss, reduction)


def soft_margin_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """log(1 + exp(-target · input)), target 1 or -1."""
    return reduced(softplus(-target * input), reduction)


def multilabel_soft_margin_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """The mean over classes of binary cross-entropies with logits."""
    loss = softplus(-input) * target + softplus(input) * (1 - target)
    return reduced(mean(loss if weight is None else loss * weight, -1), reduction)


def multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Σ over the other classes of max(0, margin - input[target] + input[j])ᵖ / C."""
    if reduction not in ("mean", "sum", "none"):
        raise ArgumentError(f"multi_margin_loss: reduction {reduction!r} is not one of 'mean', 'sum', 'none'")
    if weight is not None and weight.ndim != 1:
        raise ArgumentError(f"multi_margin_loss: weight must be one-dimensional, got {weight.shape}")
    if p not in (1, 2):
        raise ArgumentError(f"multi_margin_loss: p must be 1 or 2, got {p}")
    if target.dtype != int64:
        raise DTypeError(f"multi_margin_loss: targets must be int64 class numbers, got {target.dtype}")
    rows = input if input.ndim > 1 else reshape(input, (1, -1))
    if input.ndim > 2 or not rows.shape[1] or target.ndim > 1 or target.numel() != rows.shape[0]:
        raise ShapeError(f"multi_margin_loss: input {input.shape} and target {target.shape}: expected (N, C) and (N)")
    number = reshape(target, (-1, 1))
    check_index(number, rows.shape[1], "multi_margin_loss")
    near = _above(rows - rows.gather(1, number) + margin)
    near = near if p == 1 else near * near
    near = near if weight is None else near * reshape(getitem(weight, reshape(target, -1)), (-1, 1))
    own = number == Tensor(rows.o.arange(rows.shape[1]) if rows.o.eager else Aval((rows.shape[1],), int64))
    loss = sum(where(own, literal(0.0, near), near), 1) / rows.shape[1]
    return reduced(loss if input.ndim > 1 else reshape(loss, ()), reduction)


def multilabel_margin_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Σ over the classes named (in each row up to the first -1) and the others of max(0, 1 - named + other) / C."""
    if target.dtype != int64 or target.shape != input.shape or input.ndim > 2:
        raise ShapeError(f"multilabel_margin_loss: expected input (N, C) or (C) and int64 targets of that shape, got "
                         f"{input.shape} and {target.dtype} {target.shape}")
    x, t = (reshape(v, (1, -1)) if v.ndim < 2 else v for v in (input, target))
    kept = cumsum(cast(t < 0, int64), 1) == 0
    safe = where(kept, t, literal(0, t))
    check_index(safe, x.shape[1], "multilabel_margin_loss")
    named = scatter_add(cast(safe, int64) * 0, 1, safe, cast(kept, int64)) > 0
    near = _above(1 - unsqueeze(x.gather(1, safe), 2) + unsqueeze(x, 1))
    counts = unsqueeze(kept, 2) & unsqueeze(named == False, 1)  # noqa: E712 - a Tensor, not a truth value
    loss = sum(where(counts, near, literal(0.0, near)), (1, 2)) / x.shape[1]
    return reduced(loss if input.ndim > 1 else reshape(loss, ()), reduction)


# ---- of pairs and triples ---------------------------------------------------------------------------
def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """The p-norm of x1 - x2 + eps over the last axis."""
    return norm(x1 - x2 + eps, p, -1, keepdim)


def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """1 - cos where the target is 1, max(0, cos - margin) where it is -1."""
    cos = cosine_similarity(input1, input2, -1)
    zero = literal(0.0, cos)
    return reduced(where(target == 1, 1 - cos, zero) + where(target == -1, _above(cos - margin), zero), reduction)


def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """max(0, d(anchor, positive) - d(anchor, negative) + margin); `swap`: the nearer of anchor and positive counts."""
    if margin <= 0:
        raise ArgumentError(f"triplet_margin_loss: margin must be greater than 0, got {margin}")
    if anchor.ndim != positive.ndim or anchor.ndim != negative.ndim:
        raise ShapeError(f"triplet_margin_loss: {anchor.shape}, {positive.shape} and {negative.shape} differ in rank")
    far = pairwise_distance(anchor, negative, p, eps)
    if swap:
        other = pairwise_distance(positive, negative, p, eps)
        far = where(far < other, far, other)
    return reduced(_above(pairwise_distance(anchor, positive, p, eps) - far + margin), reduction)


def triplet_margin_with_distance_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    distance_function=None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """As `triplet_margin_loss`, with a distance of your own."""
    if margin <= 0:
        raise ArgumentError(f"triplet_margin_with_distance_loss: margin must be greater than 0, got {margin}")
    distance = distance_function or pairwise_distance
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        other = distance(positive, negative)
        far = where(far < other, far, other)
    return reduced(_above(near - far + margin), reduction)
