"""Functions that draw: the leaky relu of random slopes, and choices that a gradient passes through.

After `create.py`; `functional.py` offers them.
"""
from __future__ import annotations

from minigrad.create import next_key
from minigrad.errors import ArgumentError
from minigrad.methods import where
from minigrad.ops.limits import leaky_relu
from minigrad.ops.random import Uniform
from minigrad.ops.views import unsqueeze
from minigrad.tensor import Tensor, apply


def _uniform(x: Tensor) -> Tensor:
    return apply(Uniform.of(x.shape), x.detach(), next_key())


def rrelu(input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False) -> Tensor:
    """x where it is positive, else x times a slope: drawn from lower … upper for each element in training, their middle
    otherwise (Xu et al. 2015)."""
    if lower > upper:
        raise ArgumentError(f"rrelu: lower {lower} must be less than or equal to the upper bound {upper}")
    if not training:
        return leaky_relu(input, (lower + upper) / 2)
    slope = _uniform(input) * (upper - lower) + lower
    return where(input.detach() >= 0, input, input * slope)


def gumbel_softmax(logits: Tensor, tau: float = 1.0, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Tensor:
    """A draw from the classes along `dim` as a softmax of (logits + Gumbel noise) / tau, which has a gradient (Jang et
    al. 2017); `hard`: exactly one 1, with the gradient of the soft draw.  `eps` is PyTorch's and not needed."""
    noise = _uniform(logits)
    tiny = 1e-30 if logits.dtype.itemsize > 2 else 1e-7
    gumbel = -(-noise.clamp(min=tiny).log()).clamp(min=tiny).log()
    soft = ((logits + gumbel) / tau).softmax(dim)
    if not hard:
        return soft
    best = soft.detach().argmax(dim)
    chosen = unsqueeze(best, dim % logits.ndim)
    one = (soft.detach() * 0).scatter(dim, chosen, 1.0)
    return one - soft.detach() + soft
