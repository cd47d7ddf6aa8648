"""MyGrad, define-by-run over NumPy: a, b, h."""

import mygrad as mg
from mygrad.nnet import relu, softmax_crossentropy

from benchmarks import workloads
from benchmarks.peers.parts.numpy_adam import adam
from benchmarks.workloads import Step

mg.turn_memory_guarding_off()  # its manual's advice for speed


def train_mlp(workload: str, seed: int) -> Step:
    """Three dense layers, cross-entropy, Adam."""
    arrays, x, labels = workloads.data(workload, seed)
    p = {name: mg.tensor(array) for name, array in arrays.items()}
    update = adam([v.data for v in p.values()])

    def step():
        h = relu(x @ p["w0"] + p["b0"])
        h = relu(h @ p["w1"] + p["b1"])
        loss = softmax_crossentropy(h @ p["w2"] + p["b2"], labels)
        loss.backward()
        update([v.grad for v in p.values()])
        for v in p.values():
            v.null_grad()
        return loss.item()

    return step


def tiny(workload: str, seed: int) -> Step:
    """Multiply, add, relu, subtract, over and over."""
    a0, x = (mg.tensor(array) for array in workloads.data(workload, seed))

    def step():
        a, b = a0, x
        for _ in range(workloads.H_ROUNDS):
            c = a * b + x
            b = relu(c)
            a = c - b
        loss = (a + b).sum()
        loss.backward()
        return loss.item()

    return step


BUILDERS = {"a": train_mlp, "b": train_mlp, "h": tiny}


def make(workload: str, seed: int) -> Step:
    """The step of a workload."""
    return workloads.build(BUILDERS, workload, seed)
