"""`torch.optim.lr_scheduler`'s names: only re-exports."""

from minigrad.optim.annealing import (
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    LinearLR,
    PolynomialLR,
)
from minigrad.optim.composed import ChainedScheduler, SequentialLR, warm_up
from minigrad.optim.cycles import CyclicLR, OneCycleLR
from minigrad.optim.plateau import ReduceLROnPlateau
from minigrad.optim.schedule import ExponentialLR, LambdaLR, LRScheduler, MultiplicativeLR, MultiStepLR, StepLR

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
    "warm_up",
]
