"""Adam in place on NumPy arrays, for peers that bring no optimiser."""

import numpy as np

from benchmarks.workloads import ADAM_LR


def adam(parameters: list[np.ndarray]):
    """The function that takes one step, given the gradients (Kingma & Ba 2015, algorithm 1)."""
    moments = [(np.zeros_like(p), np.zeros_like(p)) for p in parameters]
    steps = 0

    def update(gradients: list[np.ndarray]) -> None:
        nonlocal steps
        steps += 1
        size, root = ADAM_LR / (1 - 0.9**steps), (1 - 0.999**steps) ** 0.5
        for p, g, (m, v) in zip(parameters, gradients, moments, strict=True):
            m += 0.1 * (g - m)
            v += 0.001 * (g * g - v)
            p -= size * m / (np.sqrt(v) / root + 1e-8)

    return update
