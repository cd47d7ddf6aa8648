"""Embedding: rows of a table by number, with a gradient that is dense, or those rows alone (`minigrad/rows.py`).

After `index.py`, whose `At` reads and `AddAt` spreads out.
"""
from __future__ import annotations

from minigrad.aval import Aval
from minigrad.dtype import int64
from minigrad.errors import GraphError, ShapeError
from minigrad.indexing import HOLE
from minigrad.ops.index import check_index
from minigrad.ops.op import Op, cast, op
from minigrad.ops.samples import Sample
from minigrad.rows import Rows
from minigrad.tensor import LEAF, Tensor, Writes, apply, current


@op
class Embed(Op):
    """Rows of a table by number.  Row `padding` (-1: none) gets no gradient; `by_frequency` divides a row's gradient
    by how often it was read; `sparse` gives raw gradients as Rows, those with a history dense as ever"""

    padding: int
    by_frequency: bool
    sparse: bool
    as_is, onnx = ("index",), "Gather"
    reference = lambda self, w, index: w[index]  # noqa: E731

    def forward(self, o, w, index):
        return o.at(w, (HOLE,), (index,))

    def dw(self, o, g, w_shape, index):
        if self.by_frequency:
            ones = o.cast(index == index, o.dtype)
            counts = o.add_at(ones, (HOLE,), (index,), w_shape[:1])
            g = g / o.reshape(o.at(counts, (HOLE,), (index,)), (*index.shape, 1))
        if self.sparse and not isinstance(g, Tensor):
            return self.rows(o, g, w_shape, index)
        if self.padding >= 0:
            g = o.where(o.reshape(index != self.padding, (*index.shape, 1)), g, o.zero)
        return o.add_at(g, (HOLE,), (index,), w_shape)

    def rows(self, o, g, w_shape, index) -> Rows:
        index, g = index.reshape(-1), o.reshape(g, (-1, *w_shape[1:])) if g.size else g.reshape(0, *w_shape[1:])
        if self.padding >= 0:
            read = index != self.padding
            index, g = index[read], g[read]
        return Rows(index, g, w_shape)

    def infer(self, w: Aval, index: Aval) -> Aval:
        return Aval((*index.shape, *w.shape[1:]), w.dtype)

    def flops(self, y: Aval, w: Aval, index: Aval) -> int:
        return 0

    def bytes(self, y: Aval, w: Aval, index: Aval) -> int:
        return 2 * y.nbytes + index.nbytes                    # of the table what is read

    @classmethod
    def samples(cls) -> list[Sample]:
        # `padding` and `by_frequency` are no derivatives, so differences say otherwise; the door's law compares `.grad`
        # as an array; rows are for leaves alone, which no view that was written is.  test_rows.py has closed forms
        kinds = {(-1, False, False): (), (1, True, False): ("gradient",),
                 (-1, False, True): ("door", "input_view"), (1, False, True): ("door", "gradient", "input_view")}
        inputs = [("normal(4,2)", "index(3)<4"), ("normal(4,2)", "index(2,3)<4")]
        return [Sample(cls.of(*kind), each, skip=skip) for kind, skip in kinds.items() for each in inputs]


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Rows of `weight` (V, D) by number: (…) of integers to (…, D).  The row `padding_idx` gets no gradient.

    `max_norm` first shortens the rows that are read, in place, to that norm.  `sparse`: the gradient of a leaf is
    `Rows`, the rows read alone, so that a step costs what was read, not the table; a weight that an operation made
    has a dense one."""
    if weight.ndim != 2:
        raise ShapeError(f"embedding: expected a weight (V, D), got {weight.shape}")
    n = weight.shape[0]
    check_index(input, n, "embedding")
    if padding_idx is not None and not -n <= padding_idx < n:
        raise ValueError(f"embedding: padding_idx {padding_idx} is outside the {n} rows")
    if sparse and scale_grad_by_freq:
        raise GraphError("embedding: scale_grad_by_freq counts what sparse gradients have not summed yet. Use one")
    index = cast(input, int64)
    if max_norm is not None:
        shorten(weight, index, max_norm, norm_type)
    padding = -1 if padding_idx is None else padding_idx % n
    rows = sparse and weight.node is LEAF and current().grad
    return apply(Embed.of(padding, bool(scale_grad_by_freq), rows), weight, index)


def shorten(weight: Tensor, index: Tensor, max_norm: float, norm_type: float) -> None:
    """The rows that `index` names, where longer than `max_norm`, scaled to it in place, unseen by the graph."""
    if not weight.o.eager or not index.array.size:
        return
    o = weight.o
    numbers = o.xp.unique(index.array)
    rows = weight.array[numbers]
    p = float(norm_type)
    size = o.abs(rows)
    length = o.max(size, 1, True) if p == float("inf") else o.sum(size**p, 1, True) ** (1 / p)
    scale = o.where(length > max_norm, max_norm / (length + 1e-7), o.one)       # 1e-7 as PyTorch
    weight.array[numbers] = o.cast(rows * scale, o.dtype)
    Writes.note(weight.array)


__all__ = ["Embed", "embedding", "shorten"]
