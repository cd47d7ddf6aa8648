"""Losses as modules; each calls its function in `functional.py`, which says what it computes.  After `norm.py`."""

from __future__ import annotations

from minigrad.nn import functional as F
from minigrad.nn.module import Module
from minigrad.tensor import Tensor


class Loss(Module):
    """A loss with a `reduction`: "mean", "sum" or "none"."""

    reductions: tuple[str, ...] = ("mean", "sum", "none")

    def __init__(self, reduction: str = "mean") -> None:
        if reduction not in self.reductions:
            raise ValueError(f"{type(self).__name__}: reduction {reduction!r} is none of {', '.join(self.reductions)}")
        self.reduction = reduction


class MSELoss(Loss):
    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(input, target, self.reduction)


class L1Loss(Loss):
    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.l1_loss(input, target, self.reduction)


class WeightedLoss(Loss):
    """A loss with weights, a buffer: they move with the module."""

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)


class CrossEntropyLoss(WeightedLoss):
    """Of logits (N, C, …) and class numbers (N, …)."""

    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(weight, reduction)
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(input, target, self.weight, self.ignore_index, self.reduction, self.label_smoothing)


class NLLLoss(WeightedLoss):
    """Of log-probabilities (N, C) and class numbers (N)."""

    def __init__(self, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean") -> None:
        super().__init__(weight, reduction)
        self.ignore_index = ignore_index

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.nll_loss(input, target, self.weight, self.ignore_index, self.reduction)


class CTCLoss(Loss):
    """Of log-probabilities (T, N, C), texts (N, S) and the lengths of both."""

    def __init__(self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False) -> None:
        super().__init__(reduction)
        self.blank, self.zero_infinity = blank, zero_infinity

    def forward(self, log_probs: Tensor, targets: Tensor, input_lengths, target_lengths) -> Tensor:
        how = (self.blank, self.reduction, self.zero_infinity)
        return F.ctc_loss(log_probs, targets, input_lengths, target_lengths, *how)


class BCELoss(WeightedLoss):
    """Of probabilities and targets in [0, 1], of one shape."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.binary_cross_entropy(input, target, self.weight, self.reduction)


class BCEWithLogitsLoss(WeightedLoss):
    """Of logits and targets in [0, 1], of one shape."""

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean", pos_weight: Tensor | None = None) -> None:
        super().__init__(weight, reduction)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(input, target, self.weight, self.reduction, self.pos_weight)


# ---- of numbers and distributions ---------------------------------------------------------------------
class HuberLoss(Loss):
    """Squared near 0, straight beyond `delta`."""

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        self.delta = delta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.huber_loss(input, target, self.reduction, self.delta)


class SmoothL1Loss(Loss):
    """HuberLoss / beta."""

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction)
        self.beta = beta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.smooth_l1_loss(input, target, self.reduction, self.beta)


class KLDivLoss(Loss):
    """Of log-probabilities and a distribution; "batchmean" is the divergence of a row, on average."""

    reductions = ("mean", "sum", "none", "batchmean")

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__(reduction)
        self.log_target = log_target

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.kl_div(input, target, reduction=self.reduction, log_target=self.log_target)


class PoissonNLLLoss(Loss):
    """Of rates, or their logarithms, and counts."""

    def __init__(
        self, log_input: bool = True, full: bool = False, eps: float = 1e-8, reduction: str = "mean"
    ) -> None:
        super().__init__(reduction)
        self.log_input, self.full, self.eps = log_input, full, eps

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        how = {"log_input": self.log_input, "full": self.full, "eps": self.eps, "reduction": self.reduction}
        return F.poisson_nll_loss(input, target, **how)


class GaussianNLLLoss(Loss):
    """Of means, targets and variances."""

    def __init__(self, *, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.full, self.eps = full, eps

    def forward(self, input: Tensor, target: Tensor, var: Tensor | float) -> Tensor:
        return F.gaussian_nll_loss(input, target, var, full=self.full, eps=self.eps, reduction=self.reduction)


# ---- of margins -----------------------------------------------------------------------------------------
class MarginLoss(Loss):
    """A loss with a margin."""

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.margin = margin


class MarginRankingLoss(MarginLoss):
    """Of two scores and which one should be the larger: 1 the first, -1 the second."""

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        return F.margin_ranking_loss(input1, input2, target, margin=self.margin, reduction=self.reduction)


class CosineEmbeddingLoss(MarginLoss):
    """Of two vectors and whether they should be alike: 1 or -1."""

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        return F.cosine_embedding_loss(input1, input2, target, margin=self.margin, reduction=self.reduction)


class HingeEmbeddingLoss(MarginLoss):
    """Of a distance and whether it should be small: 1 or -1."""

    def __init__(self, margin: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(margin, reduction)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.hinge_embedding_loss(input, target, margin=self.margin, reduction=self.reduction)


class SoftMarginLoss(Loss):
    """log(1 + exp(-target · input)), target 1 or -1."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.soft_margin_loss(input, target, reduction=self.reduction)


class MultiMarginLoss(WeightedLoss):
    """Of scores (N, C) and class numbers (N): each wrong class should lie `margin` below the right one."""

    def __init__(
        self, p: int = 1, margin: float = 1.0, weight: Tensor | None = None, reduction: str = "mean"
    ) -> None:
        if p not in (1, 2):
            raise ValueError(f"MultiMarginLoss: p must be 1 or 2, got {p}")
        super().__init__(weight, reduction)
        self.p, self.margin = p, margin

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        how = {"p": self.p, "margin": self.margin, "weight": self.weight, "reduction": self.reduction}
        return F.multi_margin_loss(input, target, **how)


class MultiLabelSoftMarginLoss(WeightedLoss):
    """The mean over classes of binary cross-entropies with logits."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.multilabel_soft_margin_loss(input, target, weight=self.weight, reduction=self.reduction)


class TripletMarginLoss(MarginLoss):
    """Of an anchor, a vector that should be nearer to it, and one that should be farther off, by `margin`."""

    def __init__(
        self, margin: float = 1.0, p: float = 2.0, eps: float = 1e-6, swap: bool = False, reduction: str = "mean"
    ) -> None:
        if margin <= 0:
            raise ValueError(f"TripletMarginLoss: the margin must be above 0, got {margin}")
        super().__init__(margin, reduction)
        self.p, self.eps, self.swap = p, eps, swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        how = {"margin": self.margin, "p": self.p, "eps": self.eps, "swap": self.swap, "reduction": self.reduction}
        return F.triplet_margin_loss(anchor, positive, negative, **how)
