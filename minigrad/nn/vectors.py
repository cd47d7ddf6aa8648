"""All parameters as one vector, and back.  `nn.utils` re-exports both.  After `clip.py`."""

from __future__ import annotations

from collections.abc import Iterable

from minigrad.autograd import no_grad
from minigrad.errors import ShapeError
from minigrad.ops.shape import cat
from minigrad.ops.views import cut, reshape
from minigrad.tensor import Tensor


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """All elements in one vector, with their history."""
    return cat([reshape(p, (-1,)) for p in parameters])


@no_grad()
def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Copy the elements of a vector into parameters, in their order; it must hold as many as they."""
    found = list(parameters)
    total = sum(p.numel() for p in found)
    if vec.shape != (total,):
        raise ShapeError(f"vector_to_parameters: a vector {vec.shape} for {total} elements")
    begin = 0
    for p in found:
        p.copy_(reshape(cut(vec, (slice(begin, begin + p.numel()),)), p.shape))
        begin += p.numel()
