"""SGD with momentum (Sutskever et al. 2013, as PyTorch writes it).  After `optimizer.py`."""

from __future__ import annotations

import numpy as np

from minigrad.optim.optimizer import Group, Optimizer


class SGD(Optimizer):
    """g += decay · x;  b = momentum · b + (1 - dampening) · g, at first b = g;  x -= lr · b.

    With Nesterov x -= lr · (g + momentum · b) instead."""

    def __init__(
        self,
        params,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            dict(
                lr=lr,
                momentum=momentum,
                dampening=dampening,
                weight_decay=weight_decay,
                nesterov=nesterov,
                maximize=maximize,
            ),
        )

    def check(self, group: Group) -> None:
        self.at_least(group, "lr", "momentum", "weight_decay")
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
