"""Optimisers for large batches, whose step is measured by the norm of the parameter: LARS and LAMB.  After `adam.py`.

A matrix, a bias and a gain each count as one "layer" of the papers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigrad.optim.adam import Betas, average, moments
from minigrad.optim.optimizer import Group, Optimizer


class LARS(Optimizer):
    """SGD with momentum on g · trust · ‖x‖ / (‖g‖ + decay · ‖x‖ + eps), decay included (You, Gitman & Ginsburg 2017).

    Where x or g is all zeros the gradient is taken as it is."""

    not_negative = ("lr", "momentum", "weight_decay", "trust_coefficient", "eps")
    whole = True

    def __init__(
        self, params, lr: float = 0.1, momentum: float = 0.9, weight_decay: float = 0.0,
        trust_coefficient: float = 1e-3, eps: float = 1e-8, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        options = dict(lr=lr, momentum=momentum, weight_decay=weight_decay, trust_coefficient=trust_coefficient)
        super().__init__(params, {**options, "eps": eps, "maximize": maximize})

    def slots(self, group: Group) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] else ()

    def constants(self, group: Group, state: dict, fresh: bool) -> dict[str, float]:
        same = {name: group[name] for name in ("lr", "momentum", "eps")}
        return {**same, "decay": group["weight_decay"], "trust": group["trust_coefficient"]}

    def update(self, x, g, slots: list, c: dict, group: Group) -> None:
        size, slope, t = norm(x), norm(g), self._scratch.like(x, 0)
        trust = np.where(size * slope > 0, c["trust"] * size / (slope + c["decay"] * size + c["eps"]), 1.0)
        step = np.multiply(self.decayed(x, g, c, group), trust.astype(x.dtype), out=t)
        if slots:
            np.multiply(slots[0], c["momentum"], out=slots[0])
            step = np.add(slots[0], step, out=slots[0])
        np.subtract(x, np.multiply(step, c["lr"], out=t), out=x)


class LAMB(Optimizer):
    """r = m̂ / (√v̂ + eps) + decay · x;  x -= lr · ‖x‖ / ‖r‖ · r  (You et al. 2020, algorithm 2).

    Where x or r is all zeros the quotient of norms is taken as 1."""

    counted = ("step",)
    not_negative, below_one = ("lr", "eps", "weight_decay"), ("betas",)
    whole = True

    def __init__(
        self, params, lr: float = 1e-3, betas: Betas = (0.9, 0.999), eps: float = 1e-6, weight_decay: float = 1e-2,
        *, maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, maximize=maximize))

    def slots(self, group: Group) -> tuple[str, ...]:
        return "exp_avg", "exp_avg_sq"

    def constants(self, group: Group, state: dict, fresh: bool) -> dict[str, float]:
        (b1, b2), t = group["betas"], state["step"]
        c1, root2 = 1 - b1**t, math.sqrt(1 - b2**t)
        return {**moments(group), "eps": group["eps"] * root2, "scale": root2 / c1, "lr": group["lr"]}

    def update(self, x, g, slots: list, c: dict, group: Group) -> None:
        m, v = slots
        t, r = self._scratch.like(x, 0), self._scratch.like(x, 1)
        average(m, v, np.negative(g, out=r) if group["maximize"] else g, t, c)
        np.divide(m, np.add(np.sqrt(v, out=t), c["eps"], out=t), out=r)
        np.add(np.multiply(r, c["scale"], out=r), np.multiply(x, c["decay"], out=t), out=r)
        size, length = norm(x), norm(r)
        ones = length == 0  # keeps 0 / 0 away
        trust = np.where((size > 0) & ~ones, size / (length + ones), 1.0)
        np.subtract(x, np.multiply(r, (c["lr"] * trust).astype(x.dtype), out=r), out=x)


def norm(x: Any) -> Any:
    """The 2-norm of all elements, summed in float64, as an array of the device in the dtype of `x`."""
    return np.sqrt(np.sum(np.multiply(x, x, dtype=np.float64))).astype(x.dtype)
