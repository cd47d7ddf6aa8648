"""Steps by the sign of the gradient alone: Rprop and Lion.  After `rmsprop.py`."""

from __future__ import annotations

import numpy as np

from minigrad.optim.adam import Betas, moments
from minigrad.optim.optimizer import Group, Optimizer


class Rprop(Optimizer):
    """Each element has a step of its own: times etas[1] while its gradient keeps its sign, times etas[0] when that
    turns, and then the element rests once (Riedmiller & Braun 1993, without back-tracking).  For full batches only.
    """

    counted = ("step",)
    not_negative = ("lr",)

    def __init__(
        self, params, lr: float = 1e-2, etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50), *, maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, dict(lr=lr, etas=etas, step_sizes=step_sizes, maximize=maximize, weight_decay=0.0))

    def check(self, group: Group) -> None:
        super().check(group)
        if not 0 < group["etas"][0] < 1 < group["etas"][1]:
            raise ValueError(f"Rprop: etas = {group['etas']} must be a number in (0, 1) and one above 1")

    def slots(self, group: Group) -> tuple[str, ...]:
        return "prev", "step_size"

    def constants(self, group: Group, state: dict, fresh: bool) -> dict[str, float]:
        (down, up), (least, most) = group["etas"], group["step_sizes"]
        return dict(down=down, up=up, least=least, most=most, one=1.0, zero=0.0, start=group["lr"] if fresh else 0.0)

    def update(self, x, g, slots: list, c: dict, group: Group) -> None:
        before, size = slots
        g, t = self.decayed(x, g, c, group), self._scratch.like(x, 0)
        if c["start"]:
            np.add(size, c["start"], out=size)
        turn = np.multiply(g, before, out=t)
        turned = turn < c["zero"]
        np.multiply(size, np.where(turned, c["down"], np.where(turn > c["zero"], c["up"], c["one"])), out=size)
        np.minimum(np.maximum(size, c["least"], out=size), c["most"], out=size)
        before[...] = np.where(turned, c["zero"], g)
        np.subtract(x, np.multiply(np.sign(before, out=t), size, out=t), out=x)


class Lion(Optimizer):
    """x -= lr (sign(beta₁ · m + (1 - beta₁) g) + decay · x);  then m = beta₂ · m + (1 - beta₂) g  (Chen et al. 2023).

    Every element moves by lr: a tenth of Adam's rate, and ten times its decay, are a usual start."""

    below_one = ("betas",)

    def __init__(
        self, params, lr: float = 1e-4, betas: Betas = (0.9, 0.99), weight_decay: float = 0.0, *, maximize: bool = False
    ) -> None:
        options = dict(lr=lr, betas=betas, weight_decay=weight_decay, maximize=maximize)
        super().__init__(params, {**options, "decoupled_weight_decay": True})

    def slots(self, group: Group) -> tuple[str, ...]:
        return ("exp_avg",)

    def constants(self, group: Group, state: dict, fresh: bool) -> dict[str, float]:
        return {**moments(group), "lr": group["lr"]}

    def update(self, x, g, slots: list, c: dict, group: Group) -> None:
        (m,) = slots
        g, t, step = self.decayed(x, g, c, group), self._scratch.like(x, 0), self._scratch.like(x, 3)
        np.add(np.multiply(m, c["b1"], out=step), np.multiply(g, c["new1"], out=t), out=step)
        np.subtract(x, np.multiply(np.sign(step, out=step), c["lr"], out=step), out=x)
        np.multiply(m, c["b2"], out=m)
        np.add(m, np.multiply(g, c["new2"], out=t), out=m)
