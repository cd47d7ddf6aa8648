"""RMSprop (Hinton 2012), Adagrad (Duchi et al. 2011) and Adadelta (Zeiler 2012): each element divided by the size of
its gradients so far.  After `sgd.py`.
"""

from __future__ import annotations

import numpy as np

from minigrad.optim.optimizer import Group, Optimizer


class RMSprop(Optimizer):
    """v: running mean of g², with `centered` less the mean of g squared;  x -= lr · g / (√v + eps), with momentum."""

    counted = ("step",)
    not_negative = ("lr", "alpha", "eps", "weight_decay", "momentum")

    def __init__(
        self, params, lr: float = 1e-2, alpha: float = 0.99, eps: float = 1e-8, weight_decay: float = 0.0,
        momentum: float = 0.0, centered: bool = False, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        options = dict(lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum, centered=centered)
        super().__init__(params, {**options, "maximize": maximize})

    def slots(self, group: Group) -> tuple[str, ...]:
        return "square_avg", *["momentum_buffer"] * (group["momentum"] > 0), *["grad_avg"] * group["centered"]

    def constants(self, group: Group, state: dict, fresh: bool) -> dict[str, float]:
        same = {name: group[name] for name in ("lr", "alpha", "eps", "momentum")}
        return {**same, "new": 1 - group["alpha"], "decay": group["weight_decay"]}

    def update(self, x, g, slots: list, c: dict, group: Group) -> None:
        v, *rest = slots
        g, t = self.decayed(x, g, c, group), self._scratch.like(x, 0)
        np.multiply(v, c["alpha"], out=v)
        np.add(v, np.multiply(np.multiply(g, g, out=t), c["new"], out=t), out=v)
        if group["centered"]:
            mean = rest[-1]
            np.add(mean, np.multiply(np.subtract(g, mean, out=t), c["new"], out=t), out=mean)
            v = np.subtract(v, np.multiply(mean, mean, out=t), out=t)
        np.add(np.sqrt(v, out=t), c["eps"], out=t)
        step = np.divide(g, t, out=t)
        if group["momentum"]:
            buffer = rest[0]
            step = np.add(np.multiply(buffer, c["momentum"], out=buffer), step, out=buffer)
        np.subtract(x, np.multiply(step, c["lr"], out=t), out=x)


class Adagrad(Optimizer):
    """v: the sum of all g², from `initial_accumulator_value`;  x -= lr / (1 + (t - 1) lr_decay) · g / (√v + eps)."""

    counted, rowwise = ("step",), True
    not_negative = ("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps")

    def __init__(
        self, params, lr: float = 1e-2, lr_decay: float = 0.0, weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0, eps: float = 1e-10, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        options = dict(lr=lr, lr_decay=lr_decay, eps=eps, weight_decay=weight_decay, maximize=maximize)
        super().__init__(params, {**options, "initial_accumulator_value": initial_accumulator_value})

    def slots(self, group: Group) -> tuple[str, ...]:
        return ("sum",)

    def beginning(self, group: Group) -> float:
        return group["initial_accumulator_value"]

    def constants(self, group: Group, state: dict, fresh: bool) -> dict[str, float]:
        return {
            "lr": group["lr"] / (1 + (state["step"] - 1) * group["lr_decay"]),
            "eps": group["eps"],
            "decay": group["weight_decay"],
        }

    def update(self, x, g, slots: list, c: dict, group: Group) -> None:
        (v,) = slots
        g, t = self.decayed(x, g, c, group), self._scratch.like(x, 0)
        np.add(v, np.multiply(g, g, out=t), out=v)
        np.add(np.sqrt(v, out=t), c["eps"], out=t)
        np.subtract(x, np.multiply(np.divide(g, t, out=t), c["lr"], out=t), out=x)


class Adadelta(Optimizer):
    """d = √(a + eps) / √(v + eps) · g, a and v the running means of d² and g²;  x -= lr · d."""

    not_negative = ("lr", "rho", "eps", "weight_decay")
    counted = ("step",)

    def __init__(
        self, params, lr: float = 1.0, rho: float = 0.9, eps: float = 1e-6, weight_decay: float = 0.0,
        *, maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, dict(lr=lr, rho=rho, eps=eps, weight_decay=weight_decay, maximize=maximize))

    def check(self, group: Group) -> None:
        super().check(group)
        if group["rho"] > 1:
            raise ValueError(f"Adadelta: rho = {group['rho']} must be at most 1")

    def slots(self, group: Group) -> tuple[str, ...]:
        return "square_avg", "acc_delta"

    def constants(self, group: Group, state: dict, fresh: bool) -> dict[str, float]:
        same = {name: group[name] for name in ("lr", "rho", "eps")}
        return {**same, "new": 1 - group["rho"], "decay": group["weight_decay"]}

    def update(self, x, g, slots: list, c: dict, group: Group) -> None:
        v, a = slots
        g, t, d = self.decayed(x, g, c, group), self._scratch.like(x, 0), self._scratch.like(x, 3)
        np.multiply(v, c["rho"], out=v)
        np.add(v, np.multiply(np.multiply(g, g, out=t), c["new"], out=t), out=v)
        np.sqrt(np.add(a, c["eps"], out=d), out=d)
        np.divide(d, np.sqrt(np.add(v, c["eps"], out=t), out=t), out=d)
        np.multiply(d, g, out=d)
        np.multiply(a, c["rho"], out=a)
        np.add(a, np.multiply(np.multiply(d, d, out=t), c["new"], out=t), out=a)
        np.subtract(x, np.multiply(d, c["lr"], out=d), out=x)
