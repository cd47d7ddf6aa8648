"""Models: DigitsCNN, the net of the guided notebooks.  After `clip.py`; last of the package."""

from __future__ import annotations

from minigrad.nn.containers import Sequential
from minigrad.nn.layers import Conv2d, Dropout, Flatten, Linear, MaxPool2d, ReLU
from minigrad.nn.module import Module
from minigrad.nn.norm import BatchNorm2d
from minigrad.tensor import Tensor


class DigitsCNN(Module):
    """Images (N, 1, 8, 8) to logits (N, 10): two stages of convolution, norm, ReLU and pooling, then a classifier."""

    def __init__(self, width: int = 24, dropout: float = 0.3) -> None:
        self.stage1 = Sequential(Conv2d(1, width, 3, padding=1, bias=False), BatchNorm2d(width), ReLU(), MaxPool2d(2))
        self.stage2 = Sequential(
            Conv2d(width, 2 * width, 3, padding=1, bias=False), BatchNorm2d(2 * width), ReLU(), MaxPool2d(2)
        )
        self.head = Sequential(Flatten(), Dropout(dropout), Linear(8 * width, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stage2(self.stage1(x)))
