"""The catalogue of operations.  Each op is one class in one of these files, whole; `README.md` lists them in reading
order.

`FUNCTIONS` and `METHODS` are derived from the names the classes give themselves; `methods.py` puts them on Tensor.
"""
from minigrad.ops import elementwise, compare, trig, exponential, gamma, rounding, pairs, bits  # noqa: F401, I001
from minigrad.ops import reduce, views  # noqa: F401
from minigrad.ops import diagonals, limits, activations, gelu, shape, matmul, einsum, index, embed, random  # noqa: F401
from minigrad.ops import conv, pooling, structure, padding, convolutions, indexed, scan  # noqa: F401
from minigrad.ops import sorting, statistics, matrices, decompositions, linalg, filled  # noqa: F401
from minigrad.ops import fused, layer_norm, norms, attention, cells, recurrent, packing  # noqa: F401
from minigrad.ops import losses, ctc, transfer, traced  # noqa: F401
from minigrad.ops.doors import function
from minigrad.ops.op import CATALOGUE, Elementwise, NoOnnx, Op, Predicate, op
from minigrad.ops.samples import Sample

__all__ = ["CATALOGUE", "Elementwise", "NoOnnx", "Op", "Predicate", "Sample", "derived", "function", "op"]


def derived(kind: str) -> dict:
    """{name: callable} for every op that names its `functional` or `method` and needs no attributes."""
    names = {}
    for cls in CATALOGUE:
        name = getattr(cls, kind)
        if name and issubclass(cls, Elementwise) and not cls.attributes:
            names[name] = function(cls)
    return names
