"""PyTorch with `torch.compile` around the loss, or the forward pass; it needs a C++ compiler."""

import torch

from benchmarks import workloads
from benchmarks.peers import torch_eager
from benchmarks.workloads import Step

torch_eager.compiled = torch.compile
BUILDERS = torch_eager.BUILDERS.copy()
del BUILDERS["h"]  # it compiles for minutes


def make(workload: str, seed: int) -> Step:
    """The step of a workload whose graph stays the same."""
    return workloads.build(BUILDERS, workload, seed)
