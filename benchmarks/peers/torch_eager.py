"""PyTorch eager, the reference: as a user writes it, or with TUNED=1 as an expert does.

Tuned is: fused optimiser, F.linear, channels_last. The models are in parts/torch_models.py, f and g
in parts/torch_recurrent.py. torch_compile.py sets `compiled`.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from benchmarks import workloads
from benchmarks.peers.parts import torch_models as models, torch_recurrent
from benchmarks.workloads import Step

compiled: Callable[[Callable], Callable] = lambda function: function
MODELS = {
    "a": (models.mlp, models.adam),
    "b": (models.mlp, models.adam),
    "c": (models.lenet, models.momentum),
    "d": (models.resnet, models.momentum),
    "e": (models.gpt, models.adamw),
}


def tensors(workload: str, seed: int) -> tuple:
    """Parameters, inputs and labels; images and filters channels_last when tuned."""
    arrays, x, labels = workloads.data(workload, seed)
    p, x = models.parameters_of(arrays), torch.from_numpy(x)
    if models.TUNED:
        for v in (x, *p.values()):
            if v.ndim == 4:
                v.data = v.data.contiguous(memory_format=torch.channels_last)
    return p, x, torch.from_numpy(labels)


def train(workload: str, seed: int) -> Step:
    """One optimiser step on a fixed batch."""
    p, x, labels = tensors(workload, seed)
    model, optimiser = MODELS[workload]
    optimiser = optimiser(p)

    @compiled
    def loss_of(x, labels):
        return F.cross_entropy(model(p, x).flatten(0, -2), labels.flatten())

    def step():
        optimiser.zero_grad()
        loss = loss_of(x, labels)
        loss.backward()
        optimiser.step()
        return loss.item()

    return step


def infer(workload: str, seed: int) -> Step:
    """The forward pass alone."""
    p, x, _ = tensors(workload, seed)
    model, _ = MODELS[workload.removesuffix("_inf")]
    logits = compiled(lambda x: model(p, x))

    def step():
        with torch.inference_mode():
            return logits(x).mean().item()

    return step


def tiny(workload: str, seed: int) -> Step:
    """Multiply, add, relu, subtract, over and over."""
    a0, x = (torch.tensor(array, requires_grad=True) for array in workloads.data(workload, seed))

    def step():
        a0.grad = x.grad = None
        a, b = a0, x
        for _ in range(workloads.H_ROUNDS):
            c = a * b + x
            b = torch.relu(c)
            a = c - b
        loss = (a + b).sum()
        loss.backward()
        return loss.item()

    return step


BUILDERS = dict.fromkeys("abcde", train) | dict.fromkeys(("c_inf", "e_inf"), infer) | {"h": tiny}


def make(workload: str, seed: int) -> Step:
    """The step of a workload."""
    return workloads.build(BUILDERS | torch_recurrent.BUILDERS, workload, seed)
