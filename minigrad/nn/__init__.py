"""Models and their parts, under `torch.nn`'s names.  The files, in reading order: README.md in this folder."""

from minigrad.nn import functional, init, utils
from minigrad.nn.containers import ModuleDict, ModuleList, ParameterList, Sequential
from minigrad.nn.layers import (
    ELU,
    AvgPool2d,
    Conv2d,
    Dropout,
    Embedding,
    Flatten,
    Identity,
    LeakyReLU,
    Linear,
    LogSigmoid,
    LogSoftmax,
    MaxPool2d,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
)
from minigrad.nn.loss import (
    BCELoss,
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    L1Loss,
    MSELoss,
    NLLLoss,
)
from minigrad.nn.module import Module
from minigrad.nn.norm import BatchNorm1d, BatchNorm2d, LayerNorm
from minigrad.nn.parameter import Parameter
