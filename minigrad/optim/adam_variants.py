"""Relatives of Adam: Adamax, NAdam and RAdam.  After `adam.py`."""

from __future__ import annotations

import math

import numpy as np

from minigrad.optim.adam import Betas, average, moments
from minigrad.optim.optimizer import Group, Optimizer


class Adamax(Optimizer):
    """u = max(beta₂ · u, |g| + eps);  x -= lr / (1 - beta₁ᵗ) · m / u  (Kingma & Ba 2015, section 7.1)."""

    counted = ("step",)
    not_negative, below_one = ("lr", "eps", "weight_decay"), ("betas",)

    def __init__(
        self, params, lr: float = 2e-3, betas: Betas = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0,
        *, maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, maximize=maximize))

    def slots(self, group: Group) -> tuple[str, ...]:
        return "exp_avg", "exp_inf"

    def constants(self, group: Group, state: dict, fresh: bool) -> dict[str, float]:
        return {**moments(group), "eps": group["eps"], "lr": group["lr"] / (1 - group["betas"][0] ** state["step"])}

    def update(self, x, g, slots: list, c: dict, group: Group) -> None:
        m, u = slots
        g, t = self.decayed(x, g, c, group), self._scratch.like(x, 0)
        np.multiply(m, c["b1"], out=m)
        np.add(m, np.multiply(g, c["new1"], out=t), out=m)
        np.multiply(u, c["b2"], out=u)
        np.maximum(u, np.add(np.absolute(g, out=t), c["eps"], out=t), out=u)
        np.subtract(x, np.multiply(np.divide(m, u, out=t), c["lr"], out=t), out=x)


class NAdam(Optimizer):
    """Adam with Nesterov momentum (Dozat 2016): the step uses the mean as it will be after the next gradient.

    mu_t = beta₁ (1 - 0.96^(t · momentum_decay) / 2);  x -= lr (a · g + b · m) / (√v̂ + eps), a and b made of mu."""

    counted = ("step", "mu_product")
    not_negative, below_one = ("lr", "eps", "weight_decay", "momentum_decay"), ("betas",)

    def __init__(
        self, params, lr: float = 2e-3, betas: Betas = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0,
        momentum_decay: float = 4e-3, decoupled_weight_decay: bool = False, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        options = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, momentum_decay=momentum_decay)
        super().__init__(params, {**options, "decoupled_weight_decay": decoupled_weight_decay, "maximize": maximize})

    def slots(self, group: Group) -> tuple[str, ...]:
        return "exp_avg", "exp_avg_sq"

    def count(self, state: dict, group: Group) -> None:
        state["step"] = state.get("step", 0) + 1
        state["mu_product"] = state.get("mu_product", 1.0) * _mu(group, state["step"])

    def constants(self, group: Group, state: dict, fresh: bool) -> dict[str, float]:
        lr, t, product = group["lr"], state["step"], state["mu_product"]
        now, then = _mu(group, t), _mu(group, t + 1)
        root2 = math.sqrt(1 - group["betas"][1] ** t)
        return {
            **moments(group),
            "eps": group["eps"] * root2,
            "of g": lr * root2 * (1 - now) / (1 - product),
            "of m": lr * root2 * then / (1 - product * then),
        }

    def update(self, x, g, slots: list, c: dict, group: Group) -> None:
        m, v = slots
        g, t, step = self.decayed(x, g, c, group), self._scratch.like(x, 0), self._scratch.like(x, 3)
        average(m, v, g, t, c)
        np.add(np.multiply(g, c["of g"], out=step), np.multiply(m, c["of m"], out=t), out=step)
        np.add(np.sqrt(v, out=t), c["eps"], out=t)
        np.subtract(x, np.divide(step, t, out=t), out=x)


def _mu(group: Group, t: int) -> float:
    return group["betas"][0] * (1 - 0.5 * 0.96 ** (t * group["momentum_decay"]))


class RAdam(Optimizer):
    """Adam that divides by √v only once v is known well enough (Liu et al. 2020), rectified; until then x -= lr · m̂.

    rho_t = rho_inf - 2 t beta₂ᵗ / (1 - beta₂ᵗ) counts the gradients that v stands for; more than 5 are enough."""

    counted = ("step",)
    not_negative, below_one = ("lr", "eps", "weight_decay"), ("betas",)

    def __init__(
        self, params, lr: float = 1e-3, betas: Betas = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        options = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, maximize=maximize)
        super().__init__(params, {**options, "decoupled_weight_decay": decoupled_weight_decay})

    def slots(self, group: Group) -> tuple[str, ...]:
        return "exp_avg", "exp_avg_sq"

    def constants(self, group: Group, state: dict, fresh: bool) -> dict[str, float]:
        (b1, b2), t = group["betas"], state["step"]
        c2, far = 1 - b2**t, 2 / (1 - b2) - 1
        rho = far - 2 * t * b2**t / c2
        known = rho > 5
        rectified = math.sqrt(c2 * (rho - 4) * (rho - 2) * far / ((far - 4) * (far - 2) * rho)) if known else 1.0
        return {**moments(group), "eps": group["eps"], "known": known, "lr": group["lr"] / (1 - b1**t) * rectified}

    def update(self, x, g, slots: list, c: dict, group: Group) -> None:
        m, v = slots
        t = self._scratch.like(x, 0)
        average(m, v, self.decayed(x, g, c, group), t, c)
        step = np.divide(m, np.add(np.sqrt(v, out=t), c["eps"], out=t), out=t) if c["known"] else m
        np.subtract(x, np.multiply(step, c["lr"], out=t), out=x)
