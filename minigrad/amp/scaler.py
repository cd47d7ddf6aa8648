"""GradScaler: the loss times a factor, so that small gradients do not vanish in float16 (Micikevicius et al. 2018).

    scaler.scale(loss).backward()
    scaler.step(optimizer)            # divides the gradients again; leaves the step out if one is inf or NaN
    scaler.update()                   # then a smaller factor, and after `growth_interval` good steps a larger one
"""
from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from minigrad.errors import DTypeError, GraphError
from minigrad.optim.optimizer import Optimizer
from minigrad.rows import values_of, written
from minigrad.tensor import Tensor

SMALLEST, LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


class GradScaler:
    """Scales losses, and steps optimisers with what they would have seen without; with `enabled=False` it does nothing.

    ValueError for factors on the wrong side of 1, RuntimeError for calls in the wrong order."""

    def __init__(
        self, device: str = "cpu", init_scale: float = 2.0**16, growth_factor: float = 2.0,
        backoff_factor: float = 0.5, growth_interval: int = 2000, enabled: bool = True,
    ) -> None:  # fmt: skip
        if growth_factor <= 1 or backoff_factor >= 1:
            raise ValueError(
                f"GradScaler: growth_factor {growth_factor} must be above 1, backoff_factor {backoff_factor} below"
            )
        self.device, self._enabled = device, enabled
        self._scale, self._good_steps, self._used = float(init_scale), 0, False
        self._growth_factor, self._backoff_factor = growth_factor, backoff_factor
        self._growth_interval = growth_interval
        self._seen: dict[Optimizer, dict] = {}     # since the last update: {"stage", "found": flag of each device}

    # -- the factor
    def get_scale(self) -> float:
        return self._scale if self._enabled else 1.0

    def get_growth_factor(self) -> float:
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        self._growth_factor = new_factor

    def get_backoff_factor(self) -> float:
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        self._backoff_factor = new_factor

    def get_growth_interval(self) -> int:
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        self._growth_interval = new_interval

    def is_enabled(self) -> bool:
        return self._enabled

    # -- one training step
    def scale(self, outputs: Tensor | Iterable) -> Any:
        """A tensor, or a list, tuple or iterator of such, times the factor; dtypes are kept."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            self._used = True
            wide = outputs.float() if outputs.dtype.itemsize < 4 else outputs      # the factor may not fit into 16 bits
            return (wide * self._scale).to(outputs.dtype)
        if isinstance(outputs, list | tuple):
            return type(outputs)(map(self.scale, outputs))
        if isinstance(outputs, Iterable):
            return map(self.scale, outputs)
        raise ValueError(f"GradScaler.scale: expected a Tensor or an iterable of them, got {type(outputs).__name__}")

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide its gradients now, in place, so that they can be looked at or clipped: once, before `step`."""
        if not self._enabled:
            return
        self._check_used("unscale_")
        stage = self._seen.get(optimizer, {}).get("stage")
        if stage == "unscaled":
            raise GraphError("unscale_: was called for this optimiser already since the last update()")
        if stage == "stepped":
            raise GraphError("unscale_: is called after step(); call update() first")
        self._seen[optimizer] = {"stage": "unscaled", "found": self._unscaled(optimizer)}

    def _unscaled(self, optimizer: Optimizer) -> dict:
        """Divide the gradients; {device: 0-d raw array, whether one of them is inf or NaN}."""
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        for g in grads:
            if g.dtype == np.float16:
                raise DTypeError(
                    "unscale_: gradients in float16 would vanish when divided. Keep the parameters in float32, "
                    "or write step(optimizer) alone after a division of your own"
                )
        inverse = float(np.float32(1 / self._scale))
        found: dict = {}
        for t in map(values_of, grads):
            if t.o.eager:
                bad = t.o.logical_not(t.o.isfinite(t.array)).any()
                found[t.o.device] = bad | found[t.o.device] if t.o.device in found else bad
                written(t, t.array * t.o.lit(inverse))
        return found

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """`optimizer.step(*args)`, after `unscale_` if that was not called; left out if a gradient is inf or NaN."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs:
            raise GraphError("GradScaler.step: a closure would compute gradients that nobody scales. Write it out")
        self._check_used("step")
        stage = self._seen.get(optimizer, {}).get("stage")
        if stage == "stepped":
            raise GraphError("GradScaler.step: was called for this optimiser already since the last update()")
        if stage is None:
            self.unscale_(optimizer)
        seen = self._seen[optimizer]
        if not seen["found"]:
            raise GraphError("GradScaler.step: no parameter of the optimiser has a gradient. Call backward() first")
        seen["found"] = {where: bool(bad.item()) for where, bad in seen["found"].items()}
        result = None if any(seen["found"].values()) else optimizer.step(*args, **kwargs)
        seen["stage"] = "stepped"
        return result

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Set the next factor: smaller if a step was left out, larger after `growth_interval` good ones."""
        if not self._enabled:
            return
        self._check_used("update")
        if new_scale is not None:
            self._scale = _number(new_scale)
        else:
            found = [bool(bad if isinstance(bad, bool) else bad.item())
                     for seen in self._seen.values() for bad in seen["found"].values()]
            if not found:
                raise GraphError("GradScaler.update: no optimiser was stepped or unscaled since the last update()")
            self._adapt(any(found))
        self._seen = {}

    def _adapt(self, overflowed: bool) -> None:
        self._good_steps = 0 if overflowed else self._good_steps + 1
        if overflowed:
            self._scale = max(float(np.float32(self._scale * self._backoff_factor)), SMALLEST)
        elif self._good_steps == self._growth_interval:
            larger, self._good_steps = self._scale * self._growth_factor, 0
            self._scale = float(np.float32(larger)) if larger <= LARGEST else self._scale

    def _check_used(self, name: str) -> None:
        if not self._used:
            raise GraphError(f"GradScaler.{name}: nothing was scaled yet. Write scaler.scale(loss).backward() first")

    # -- state
    def state_dict(self) -> dict[str, Any]:
        """The factor and how it grows, under PyTorch's names; empty if not enabled."""
        return {} if not self._enabled else {
            "scale": self._scale, "growth_factor": self._growth_factor, "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval, "_growth_tracker": self._good_steps,
        }  # fmt: skip

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if not self._enabled:
            return
        if not state_dict:
            raise GraphError("GradScaler.load_state_dict: the state is empty; was its scaler enabled?")
        self._scale, self._good_steps = float(state_dict["scale"]), state_dict["_growth_tracker"]
        self._growth_factor, self._backoff_factor = state_dict["growth_factor"], state_dict["backoff_factor"]
        self._growth_interval = state_dict["growth_interval"]

    def __getstate__(self) -> dict[str, Any]:
        if self._seen:
            raise GraphError("GradScaler: to be copied or pickled between update() and the next step")
        return self.__dict__


def _number(new_scale: float | Tensor) -> float:
    """A factor given by the user."""
    if isinstance(new_scale, Tensor) and (new_scale.numel() != 1 or new_scale.requires_grad):
        raise ValueError(
            f"GradScaler.update: new_scale must be a number, or one element without a gradient, got {new_scale!r}"
        )
    value = float(np.float32(new_scale.item() if isinstance(new_scale, Tensor) else new_scale))
    if not math.isfinite(value):
        raise ValueError(f"GradScaler.update: new_scale {value} must be finite")
    return value


__all__ = ["GradScaler"]
