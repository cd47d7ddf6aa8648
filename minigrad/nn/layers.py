"""Layers: Linear, Bilinear, the forms of Dropout, Embedding, likeness of two inputs.  After `containers.py`.

`convolutions.py`, `pooling.py`, `shapes.py`, `activations.py` and `norm.py` have the others."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from minigrad.create import empty
from minigrad.errors import ShapeError
from minigrad.inplace import overwrite
from minigrad.nn import functional as F, init
from minigrad.nn.module import Module
from minigrad.nn.parameter import Parameter
from minigrad.tensor import Tensor


def sized(**sizes: int) -> None:
    """Refuse a size below 1: `sized(in_features=n)`."""
    for name, n in sizes.items():
        if n < 1:
            raise ValueError(f"{name} must be at least 1, got {n}")


class Identity(Module):
    """x itself; takes and ignores any arguments."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def forward(self, x: Any) -> Any:
        return x


class Linear(Module):
    """x @ weight.T + bias: (…, in_features) to (…, out_features)."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True, device="cpu", dtype=None) -> None:
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(empty(out_features, in_features, device=device, dtype=dtype))
        self.bias = Parameter(empty(out_features, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters anew."""
        init.as_layer_(self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Bilinear(Module):
    """x1ᵀ weight[o] x2 + bias[o]: (…, in1_features) and (…, in2_features) to (…, out_features)."""

    def __init__(
        self, in1_features: int, in2_features: int, out_features: int, bias: bool = True, device="cpu", dtype=None
    ) -> None:
        sized(in1_features=in1_features)
        self.in1_features, self.in2_features, self.out_features = in1_features, in2_features, out_features
        self.weight = Parameter(empty(out_features, in1_features, in2_features, device=device, dtype=dtype))
        self.bias = Parameter(empty(out_features, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """All from U(-1/√in1_features, 1/√in1_features)."""
        bound = 1 / math.sqrt(self.in1_features)
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return F.bilinear(x1, x2, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )


class Dropping(Module):
    """What the forms of dropout share: a probability p, and nothing happens in evaluation."""

    function: Callable[..., Tensor]

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        if not 0 <= p <= 1:
            raise ValueError(f"{type(self).__name__}: p must be a probability, got {p}")
        self.p, self.inplace = p, inplace

    def forward(self, x: Tensor) -> Tensor:
        y = self.function(x, self.p, self.training)
        return overwrite(x, y, type(self).__name__) if self.inplace and y is not x else y

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


class Dropout(Dropping):
    """In training each element is zero with probability p and the others grow by 1 / (1 - p); else nothing happens."""

    function = staticmethod(F.dropout)


class Dropout1d(Dropping):
    """Dropout of whole channels of sequences (N, C, L) or (C, L)."""

    function = staticmethod(F.dropout1d)


class Dropout2d(Dropping):
    """Dropout of whole channels of images (N, C, H, W)."""

    function = staticmethod(F.dropout2d)


class AlphaDropout(Dropping):
    """Dropout that keeps mean 0 and variance 1 behind SELU (Klambauer et al. 2017)."""

    function = staticmethod(F.alpha_dropout)


class Embedding(Module):
    """A table of num_embeddings vectors, looked up by number: (…) of integers to (…, embedding_dim).

    `max_norm`, `norm_type`, `scale_grad_by_freq` and `sparse` are those of `F.embedding`."""

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, max_norm: float | None = None,
        norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
        _weight: Tensor | None = None, _freeze: bool = False, device="cpu", dtype=None,
    ) -> None:  # fmt: skip
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(f"Embedding: padding_idx {padding_idx} is outside the {num_embeddings} rows")
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.max_norm, self.norm_type = max_norm, norm_type
        self.scale_grad_by_freq, self.sparse = scale_grad_by_freq, sparse
        if _weight is not None:
            if _weight.shape != (num_embeddings, embedding_dim):
                raise ShapeError(f"Embedding: the rows are {_weight.shape}, not {(num_embeddings, embedding_dim)}")
            self.weight = Parameter(_weight, not _freeze)
            return
        self.weight = Parameter(empty(num_embeddings, embedding_dim, device=device, dtype=dtype), not _freeze)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Standard normal numbers; the padding row is zero."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            init.zeros_(self.weight.detach()[self.padding_idx])

    @classmethod
    def from_pretrained(
        cls, embeddings: Tensor, freeze: bool = True, padding_idx: int | None = None, max_norm: float | None = None,
        norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
    ) -> Embedding:  # fmt: skip
        """A table with given rows, which are not trained if `freeze`."""
        if embeddings.ndim != 2:
            raise ShapeError(f"Embedding.from_pretrained: expected rows (V, D), got {embeddings.shape}")
        options = (padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
        n, size = embeddings.shape
        return cls(n, size, *options, _weight=embeddings, _freeze=freeze)

    def forward(self, input: Tensor) -> Tensor:
        options = (self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse)
        return F.embedding(input, self.weight, self.padding_idx, *options)

    def extra_repr(self) -> str:
        told = "".join(
            f", {name}={value}"
            for name, default in (("padding_idx", None), ("max_norm", None), ("norm_type", 2.0),
                                  ("scale_grad_by_freq", False), ("sparse", False))
            if (value := getattr(self, name)) != default
        )
        return f"{self.num_embeddings}, {self.embedding_dim}{told}"


# ---- likeness of two inputs -----------------------------------------------------------------------
class CosineSimilarity(Module):
    """The cosine of the angle between two vectors along `dim`."""

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        self.dim, self.eps = dim, eps

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return F.cosine_similarity(x1, x2, self.dim, self.eps)


class PairwiseDistance(Module):
    """The p-norm of x1 - x2 + eps over the last axis."""

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        self.norm, self.eps, self.keepdim = p, eps, keepdim

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return F.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)
