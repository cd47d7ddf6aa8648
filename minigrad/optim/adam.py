"""Adam (Kingma & Ba 2015), AMSGrad (Reddi et al. 2018) and AdamW (Loshchilov & Hutter 2019).  After `sgd.py`."""

from __future__ import annotations

import math

import numpy as np

from minigrad.optim.optimizer import Group, Optimizer


class Adam(Optimizer):
    """m and v: running means of g and g²;  x -= lr · m̂ / (√v̂ + eps), with both corrected for their start at zero.

    Computed as lr √c₂ / c₁ · m / (√v + eps √c₂), c = 1 - betaᵗ: the same with one pass less."""

    decoupled = False
    counted = ("step",)

    def __init__(
        self,
        params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad, maximize=maximize)
        )

    def check(self, group: Group) -> None:
        self.at_least(group, "lr", "eps", "weight_decay")
        self.at_least(group, "betas", below=1.0)

    def slots(self, group: Group) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq", "max_exp_avg_sq") if group["amsgrad"] else ("exp_avg", "exp_avg_sq")

    def constants(self, group: Group, state: dict, fresh: bool) -> dict[str, float]:
        (b1, b2), lr, t = group["betas"], group["lr"], state["step"]
        c1, root2 = 1 - b1**t, math.sqrt(1 - b2**t)
        return {
            "b1": b1,
            "b2": b2,
            "new1": 1 - b1,
            "new2": 1 - b2,
            "lr": lr * root2 / c1,
            "eps": group["eps"] * root2,
            "decay": group["weight_decay"],
            "shrink": 1 - lr * group["weight_decay"],
        }

    def update(self, x, g, slots: list, c: dict, group: Group) -> None:
        m, v, *top = slots
        t = self._scratch.like(x, 0)
        if self.decoupled and group["weight_decay"]:
            np.multiply(x, c["shrink"], out=x)
            group = {**group, "weight_decay": 0.0}
        g = self.decayed(x, g, c, group)
        np.multiply(m, c["b1"], out=m)
        np.add(m, np.multiply(g, c["new1"], out=t), out=m)
        np.multiply(v, c["b2"], out=v)
        np.add(v, np.multiply(np.multiply(g, g, out=t), c["new2"], out=t), out=v)
        if top:
            v = np.maximum(top[0], v, out=top[0])
        np.add(np.sqrt(v, out=t), c["eps"], out=t)
        np.subtract(x, np.multiply(np.divide(m, t, out=t), c["lr"], out=t), out=x)


class AdamW(Adam):
    """Adam whose weight decay shrinks the parameters themselves, apart from the gradient: x *= 1 - lr · decay."""

    decoupled = True

    def __init__(
        self,
        params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize)
