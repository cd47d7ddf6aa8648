"""`torch.nn.utils`' names: only re-exports."""

from minigrad.nn.clip import clip_grad_norm_, clip_grad_value_
from minigrad.nn.grad_pruning import TopKGradient, prune_gradient_
from minigrad.nn.utils import rnn
from minigrad.nn.vectors import parameters_to_vector, vector_to_parameters

__all__ = [
    "TopKGradient",
    "clip_grad_norm_",
    "clip_grad_value_",
    "parameters_to_vector",
    "prune_gradient_",
    "rnn",
    "vector_to_parameters",
]
