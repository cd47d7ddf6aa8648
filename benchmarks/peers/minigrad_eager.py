"""minigrad eager, written as a user of the library writes it.

The models are in parts/minigrad_models.py, f and g in parts/minigrad_recurrent.py.
"""

import minigrad as mg  # noqa: I001 - before NumPy, where the names of installed packages stand in order
import minigrad.nn.functional as F
import numpy as np
from benchmarks import workloads
from benchmarks.peers.parts import minigrad_models as models, minigrad_recurrent
from benchmarks.workloads import Step

MODELS = {
    "c": (models.lenet, models.momentum),
    "d": (models.resnet, models.momentum),
    "e": (models.gpt, models.adamw),
}


def train_mlp(workload: str, seed: int) -> Step:
    """Three dense layers, cross-entropy, Adam."""
    arrays, images, labels = workloads.data(workload, seed)
    transposed = [np.ascontiguousarray(arrays[f"w{n}"].T) for n in range(3)]  # (out, in)
    weights = [mg.tensor(w, requires_grad=True) for w in transposed]
    biases = [mg.tensor(arrays[f"b{n}"], requires_grad=True) for n in range(3)]
    x, target = mg.tensor(images), mg.tensor(labels)
    optimiser = mg.optim.Adam([*weights, *biases], lr=workloads.ADAM_LR)

    def step():
        optimiser.zero_grad()
        h = F.relu(F.linear(x, weights[0], biases[0]))
        h = F.relu(F.linear(h, weights[1], biases[1]))
        loss = F.cross_entropy(F.linear(h, weights[2], biases[2]), target)
        loss.backward()
        optimiser.step()
        return loss.item()

    return step


def train(workload: str, seed: int) -> Step:
    """One optimiser step on a fixed batch."""
    arrays, images, labels = workloads.data(workload, seed)
    model, optimiser = MODELS[workload]
    p, x, target = models.parameters_of(arrays), mg.tensor(images), mg.tensor(labels)
    optimiser = optimiser(p)

    def step():
        optimiser.zero_grad()
        loss = F.cross_entropy(model(p, x).flatten(0, -2), target.flatten())
        loss.backward()
        optimiser.step()
        return loss.item()

    return step


def infer(workload: str, seed: int) -> Step:
    """The forward pass alone."""
    arrays, inputs, _ = workloads.data(workload, seed)
    model, _ = MODELS[workload.removesuffix("_inf")]
    p, x = models.parameters_of(arrays), mg.tensor(inputs)

    def step():
        with mg.no_grad():
            return model(p, x).mean().item()

    return step


def tiny(workload: str, seed: int) -> Step:
    """Multiply, add, relu, subtract, over and over."""
    a0, x = (mg.tensor(array, requires_grad=True) for array in workloads.data(workload, seed))

    def step():
        a0.grad = x.grad = None
        a, b = a0, x
        for _ in range(workloads.H_ROUNDS):
            c = a * b + x
            b = mg.relu(c)
            a = c - b
        loss = (a + b).sum()
        loss.backward()
        return loss.item()

    return step


BUILDERS = (
    dict.fromkeys("ab", train_mlp)
    | dict.fromkeys("cde", train)
    | dict.fromkeys(("c_inf", "e_inf"), infer)
    | minigrad_recurrent.BUILDERS
    | {"h": tiny}
)


def make(workload: str, seed: int) -> Step:
    """The step of a workload."""
    return workloads.build(BUILDERS, workload, seed)
