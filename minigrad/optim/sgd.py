"""SGD with momentum (Sutskever et al. 2013, as PyTorch writes it) and with averaging.  After `optimizer.py`."""

from __future__ import annotations

import numpy as np

from minigrad.optim.optimizer import Group, Optimizer


class SGD(Optimizer):
    """g += decay · x;  b = momentum · b + (1 - dampening) · g, at first b = g;  x -= lr · b.

    With Nesterov x -= lr · (g + momentum · b) instead."""

    not_negative, rowwise = ("lr", "momentum", "weight_decay"), True

    def __init__(
        self, params, lr: float = 1e-3, momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0,
        nesterov: bool = False, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        options = dict(lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay, nesterov=nesterov)
        super().__init__(params, {**options, "maximize": maximize})

    def check(self, group: Group) -> None:
        super().check(group)
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ValueError(
                f"SGD: nesterov needs a momentum above 0 and no dampening, got momentum = {group['momentum']}, "
                f"dampening = {group['dampening']}"
            )

    def slots(self, group: Group) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] else ()

    def constants(self, group: Group, state: dict, fresh: bool) -> dict[str, float]:
        return {
            "lr": group["lr"],
            "momentum": group["momentum"],
            "decay": group["weight_decay"],
            "share": 1.0 if fresh else 1 - group["dampening"],
        }

    def update(self, x, g, slots: list, c: dict, group: Group) -> None:
        g, t = self.decayed(x, g, c, group), self._scratch.like(x, 0)
        if slots:
            (b,) = slots
            np.multiply(b, c["momentum"], out=b)
            np.add(b, np.multiply(g, c["share"], out=t) if c["share"] != 1 else g, out=b)
            g = np.add(g, np.multiply(b, c["momentum"], out=t), out=t) if group["nesterov"] else b
        np.subtract(x, np.multiply(g, c["lr"], out=t), out=x)


class ASGD(Optimizer):
    """x = (1 - lambd · eta) x - eta · g, and `ax`: the mean of all x since step `t0` (Polyak & Juditsky 1992).

    eta falls from lr as lr / (1 + lambd · lr · t)^alpha.  The mean is kept in the state; x itself is not replaced."""

    counted = ("step", "eta", "mu")
    not_negative = ("lr", "weight_decay")

    def __init__(
        self, params, lr: float = 1e-2, lambd: float = 1e-4, alpha: float = 0.75, t0: float = 1e6,
        weight_decay: float = 0.0, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        options = dict(lr=lr, lambd=lambd, alpha=alpha, t0=t0, weight_decay=weight_decay)
        super().__init__(params, {**options, "maximize": maximize})

    def slots(self, group: Group) -> tuple[str, ...]:
        return ("ax",)

    def count(self, state: dict, group: Group) -> None:
        """`eta` and `mu` of this step; PyTorch makes them at the end of the step before, with the rate of then."""
        lr, step = group["lr"], state.get("step", 0) + 1
        state["eta"], state["mu"] = state.get("next", (lr, 1.0))
        state["next"] = lr / (1 + group["lambd"] * lr * step) ** group["alpha"], 1 / max(1, step - group["t0"])
        state["step"] = step

    def constants(self, group: Group, state: dict, fresh: bool) -> dict[str, float]:
        eta = state["eta"]
        return {"keep": 1 - group["lambd"] * eta, "eta": eta, "mu": state["mu"], "decay": group["weight_decay"]}

    def update(self, x, g, slots: list, c: dict, group: Group) -> None:
        (mean,) = slots
        g, t = self.decayed(x, g, c, group), self._scratch.like(x, 0)
        np.multiply(x, c["keep"], out=x)
        np.subtract(x, np.multiply(g, c["eta"], out=t), out=x)
        if c["mu"] == 1:
            mean[...] = x
        else:
            np.add(mean, np.multiply(np.subtract(x, mean, out=t), c["mu"], out=t), out=mean)
