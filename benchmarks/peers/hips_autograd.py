"""HIPS autograd, a tape over NumPy: a, b, h."""

import autograd.numpy as np
import numpy
from autograd import value_and_grad

from benchmarks import workloads
from benchmarks.peers.parts.numpy_adam import adam
from benchmarks.workloads import Step

ZERO = numpy.float32(0)


def relu(x):
    """The larger of x and 0."""
    return np.maximum(x, ZERO)


def cross_entropy(logits, labels):
    """Mean over the batch; the shift by the largest logit is left out: they are small here."""
    return np.mean(np.log(np.sum(np.exp(logits), 1)) - logits[numpy.arange(len(labels)), labels])


def train_mlp(workload: str, seed: int) -> Step:
    """Three dense layers, cross-entropy, Adam."""
    p, x, labels = workloads.data(workload, seed)

    def loss_of(p):
        h = relu(np.dot(x, p["w0"]) + p["b0"])
        h = relu(np.dot(h, p["w1"]) + p["b1"])
        return cross_entropy(np.dot(h, p["w2"]) + p["b2"], labels)

    both, update = value_and_grad(loss_of), adam(list(p.values()))

    def step():
        loss, gradients = both(p)
        update([gradients[name] for name in p])
        return float(loss)

    return step


def tiny(workload: str, seed: int) -> Step:
    """Multiply, add, relu, subtract, over and over."""

    def loss_of(leaves):
        a, x = leaves
        b = x
        for _ in range(workloads.H_ROUNDS):
            c = a * b + x
            b = relu(c)
            a = c - b
        return np.sum(a + b)

    both, leaves = value_and_grad(loss_of), workloads.data(workload, seed)
    return lambda: float(both(leaves)[0])


BUILDERS = {"a": train_mlp, "b": train_mlp, "h": tiny}


def make(workload: str, seed: int) -> Step:
    """The step of a workload."""
    return workloads.build(BUILDERS, workload, seed)
