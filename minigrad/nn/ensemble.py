"""Ensemble: the outputs of several models averaged (Hansen & Salamon 1990).  After `containers.py`.

Averages of weights are in `optim/swa_utils.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

from minigrad.nn import functional as F
from minigrad.nn.containers import ModuleList
from minigrad.nn.module import Module
from minigrad.ops.shape import stack
from minigrad.tensor import Tensor

KINDS = ("outputs", "probabilities", "log_probabilities")


class Ensemble(Module):
    """The mean of the models' outputs; with `average` "probabilities" of the softmax along `dim`.

    "log_probabilities" is its logarithm, for nll_loss: never above the mean loss of the models (Jensen)."""

    def __init__(self, models: Iterable[Module], average: str = "probabilities", dim: int = -1) -> None:
        self.models = ModuleList(models)
        if not len(self.models):
            raise ValueError("Ensemble: no models")
        if average not in KINDS:
            raise ValueError(f"Ensemble: average must be one of {', '.join(KINDS)}, got {average!r}")
        self.average, self.dim = average, dim

    def forward(self, *args: Tensor) -> Tensor:
        outputs = [model(*args) for model in self.models]
        if self.average != "outputs":
            outputs = [F.softmax(y, self.dim) for y in outputs]
        mean = stack(outputs).mean(0)
        return mean.log() if self.average == "log_probabilities" else mean

    def extra_repr(self) -> str:
        return f"average={self.average!r}"
