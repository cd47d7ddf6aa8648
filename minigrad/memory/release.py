"""Release of inputs: the array of a tensor goes after its last use, though the tensor's name lives on."""
from __future__ import annotations

from minigrad.algebra import algebra_of
from minigrad.arguments import of_kind
from minigrad.errors import GraphError
from minigrad.tensor import LEAF, Tensor, View


def release(x: Tensor) -> int:
    """Let go of `x`'s array, where forward has read it for the last time: it lives on only as long as what operations
    saved of it.  `x` itself is on `meta` from here on: a shape, a history, no values.  Returns its bytes.

    A caller's variable (the batch, in most training loops) otherwise holds it to the end of the step.  GraphError for a
    view or a tensor of which there are views, whose memory is shared, and for a leaf that wants a gradient."""
    of_kind("release", "x", x, Tensor)
    if x.node is LEAF:
        raise GraphError(f"release: a leaf {x.shape} that wants a gradient is read in the next step too. Release only "
                         "inputs and results")
    if isinstance(x, View) or x.family is not None:
        raise GraphError(f"release: the memory of this tensor {x.shape} is shared with views of it. Drop the views "
                         "and their base instead")
    if not x.o.eager:
        return 0
    nbytes, aval = x.array.nbytes, x.aval
    x.array, x.o = aval, algebra_of(aval)
    return nbytes


__all__ = ["release"]
