"""Adam (Kingma & Ba 2015), AMSGrad (Reddi et al. 2018) and AdamW (Loshchilov & Hutter 2019).  After `sgd.py`."""

from __future__ import annotations

import math

import numpy as np

from minigrad.errors import GraphError
from minigrad.optim.optimizer import Group, Optimizer
from minigrad.rows import Rows
from minigrad.tensor import Tensor

Betas = tuple[float, float]


class Adam(Optimizer):
    """m and v: running means of g and g²;  x -= lr · m̂ / (√v̂ + eps), with both corrected for their start at zero.

    Computed as lr √c₂ / c₁ · m / (√v + eps √c₂), c = 1 - betaᵗ: the same with one pass less."""

    counted, rowwise = ("step",), True
    not_negative, below_one = ("lr", "eps", "weight_decay"), ("betas",)

    def __init__(
        self, params, lr: float = 1e-3, betas: Betas = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0,
        amsgrad: bool = False, *, maximize: bool = False, decoupled_weight_decay: bool = False,
    ) -> None:  # fmt: skip
        options = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad, maximize=maximize)
        super().__init__(params, {**options, "decoupled_weight_decay": decoupled_weight_decay})

    def slots(self, group: Group) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq", "max_exp_avg_sq") if group["amsgrad"] else ("exp_avg", "exp_avg_sq")

    def constants(self, group: Group, state: dict, fresh: bool) -> dict[str, float]:
        (b1, b2), lr, t = group["betas"], group["lr"], state["step"]
        c1, root2 = 1 - b1**t, math.sqrt(1 - b2**t)
        return {**moments(group), "lr": lr * root2 / c1, "eps": group["eps"] * root2}

    def update(self, x, g, slots: list, c: dict, group: Group) -> None:
        m, v, *top = slots
        t = self._scratch.like(x, 0)
        average(m, v, self.decayed(x, g, c, group), t, c)
        if top:
            v = np.maximum(top[0], v, out=top[0])
        np.add(np.sqrt(v, out=t), c["eps"], out=t)
        np.subtract(x, np.multiply(np.divide(m, t, out=t), c["lr"], out=t), out=x)


class AdamW(Adam):
    """Adam whose weight decay shrinks the parameters themselves, apart from the gradient: x *= 1 - lr · decay."""

    def __init__(
        self, params, lr: float = 1e-3, betas: Betas = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 1e-2,
        amsgrad: bool = False, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize, decoupled_weight_decay=True)


class SparseAdam(Adam):
    """Adam for row-sparse gradients: rows not read, and their moments, stay as they are; eps is not corrected.

    Adam itself takes such gradients too; RuntimeError for dense ones."""

    def __init__(
        self, params, lr: float = 1e-3, betas: Betas = (0.9, 0.999), eps: float = 1e-8, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, betas, eps, maximize=maximize)

    def constants(self, group: Group, state: dict, fresh: bool) -> dict[str, float]:
        return {**super().constants(group, state, fresh), "eps": group["eps"]}

    def _step_one(self, p: Tensor, g: Tensor | Rows, group: Group, known: dict) -> None:
        if g.__class__ is not Rows:
            raise GraphError(f"SparseAdam: the gradient of a parameter {p.shape} is dense. Use Adam, or sparse=True")
        super()._step_one(p, g, group, known)


def moments(group: Group) -> dict[str, float]:
    """The numbers by which `average` mixes and `decayed` decays."""
    (b1, b2), decay = group["betas"], group["weight_decay"]
    return {"b1": b1, "b2": b2, "new1": 1 - b1, "new2": 1 - b2, "decay": decay, "shrink": 1 - group["lr"] * decay}


def average(m, v, g, t, c: dict) -> None:
    """m and v a step on: m = b1 · m + (1 - b1) g, v = b2 · v + (1 - b2) g²; `t` is working memory."""
    np.multiply(m, c["b1"], out=m)
    np.add(m, np.multiply(g, c["new1"], out=t), out=m)
    np.multiply(v, c["b2"], out=v)
    np.add(v, np.multiply(np.multiply(g, g, out=t), c["new2"], out=t), out=v)
