"""Products under PyTorch's names: of matrices and stacks of them, of all pairs, and distances.  After `linalg.py`."""

from __future__ import annotations

import math
from functools import reduce

import numpy as np

from minigrad.aval import aval_of
from minigrad.dtype import is_float
from minigrad.errors import ArgumentError, DTypeError, ShapeError
from minigrad.ops import linalg
from minigrad.ops.indexed import index_select
from minigrad.ops.matmul import matmul, mm
from minigrad.ops.op import cast
from minigrad.ops.reduce_functions import sum
from minigrad.ops.statistics import norm
from minigrad.ops.structure import axis_of
from minigrad.ops.views import reshape, unsqueeze
from minigrad.tensor import Tensor


def _product(name: str, a: Tensor, b: Tensor, *ndims: int) -> Tensor:
    """a @ b for operands of exactly these ranks."""
    if (a.ndim, b.ndim) != ndims:
        raise ShapeError(f"{name}: expected tensors of {ndims[0]} and {ndims[1]} axes, got {a.shape} and {b.shape}. "
                         f"Use matmul")
    return matmul(a, b)


def bmm(input: Tensor, mat2: Tensor) -> Tensor:
    """The products of two stacks of matrices, one by one."""
    if input.ndim == mat2.ndim == 3 and input.shape[0] != mat2.shape[0]:
        raise ShapeError(f"bmm: stacks of {input.shape[0]} and {mat2.shape[0]} matrices. Use matmul to broadcast")
    return _product("bmm", input, mat2, 3, 3)


def mv(input: Tensor, vec: Tensor) -> Tensor:
    """A matrix times a vector."""
    return _product("mv", input, vec, 2, 1)


def dot(input: Tensor, tensor: Tensor) -> Tensor:
    """The inner product of two vectors of one length."""
    return _product("dot", input, tensor, 1, 1)


def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """The products of all pairs of elements of two vectors."""
    if input.ndim != 1 or vec2.ndim != 1:
        raise ShapeError(f"outer: expected two vectors, got {input.shape} and {vec2.shape}")
    return unsqueeze(input, 1) * unsqueeze(vec2, 0)


def inner(input: Tensor, other: Tensor) -> Tensor:
    """The sum over the last axes of both."""
    return input * other if 0 in (input.ndim, other.ndim) else tensordot(input, other, ([-1], [-1]))


def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta · input + alpha · mat1 @ mat2."""
    return _plus(input, mm(mat1, mat2), beta, alpha)


def addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta · input + alpha · mat @ vec."""
    return _plus(input, mv(mat, vec), beta, alpha)


def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta · input + alpha · outer(vec1, vec2)."""
    return _plus(input, outer(vec1, vec2), beta, alpha)


def baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta · input + alpha · batch1 @ batch2, for stacks of matrices."""
    return _plus(input, bmm(batch1, batch2), beta, alpha)


def addbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta · input + alpha · the sum of batch1 @ batch2 over the stack."""
    return _plus(input, sum(bmm(batch1, batch2), 0), beta, alpha)


def _plus(x: Tensor, y: Tensor, beta: float, alpha: float) -> Tensor:
    """beta · x + alpha · y in their dtype; with beta 0 nothing of x is looked at, NaN neither."""
    if x.dtype != y.dtype:
        raise DTypeError(f"addmm and its kin: {x.dtype} and products of {y.dtype} must have one dtype. Use .to(dtype)")
    if not is_float(y.dtype):
        beta, alpha = int(beta), int(alpha)
    total = y if alpha == 1 else y * alpha
    shape = total.shape
    total = total if beta == 0 else (x if beta == 1 else x * beta) + total
    if total.shape != shape:
        raise ShapeError(f"addmm and its kin: {x.shape} does not broadcast to the product's shape {shape}")
    return cast(total, y.dtype)


def tensordot(a: Tensor, b: Tensor, dims=2) -> Tensor:
    """The sum over pairs of axes: the last `dims` of a with the first of b, or two lists of axes."""
    dims = dims.tolist() if isinstance(dims, Tensor) else dims
    if isinstance(dims, int) and not 0 <= dims <= min(a.ndim, b.ndim):
        raise ShapeError(f"tensordot: dims {dims} of {a.shape} and {b.shape}")
    pairs = (range(-dims, 0), range(dims)) if isinstance(dims, int) else dims
    left, right = ([axis_of(x, d, "tensordot") for d in p] for p, x in zip(pairs, (a, b)))
    if len(left) != len(right) or any(a.shape[i] != b.shape[j] and 1 not in (a.shape[i], b.shape[j])
                                      for i, j in zip(left, right)):
        raise ShapeError(f"tensordot: axes {list(left)} of {a.shape} and {list(right)} of {b.shape} do not match")
    for i, j in zip(left, right):                            # an axis of one broadcasts, so the other is summed
        if a.shape[i] != b.shape[j]:
            a, b = (sum(a, i, True), b) if b.shape[j] == 1 else (a, sum(b, j, True))
    keep_a, keep_b = ([i for i in range(x.ndim) if i not in gone] for x, gone in ((a, left), (b, right)))
    n = math.prod(a.shape[i] for i in left)
    rows = reshape(a.permute(*keep_a, *left), (math.prod(a.shape[i] for i in keep_a), n))
    columns = reshape(b.permute(*right, *keep_b), (n, math.prod(b.shape[i] for i in keep_b)))
    return reshape(matmul(rows, columns), (*(a.shape[i] for i in keep_a), *(b.shape[i] for i in keep_b)))


def chain_matmul(*matrices: Tensor) -> Tensor:
    """The product of matrices, from left to right."""
    return reduce(mm, matrices)


def kron(input: Tensor, other: Tensor) -> Tensor:
    """The Kronecker product: `other` times each element of `input`, in blocks."""
    n = max(input.ndim, other.ndim)
    a, b = (reshape(x, (1,) * (n - x.ndim) + x.shape) for x in (input, other))
    outside, inside = (tuple(m for s in a.shape for m in (s, 1)), tuple(m for s in b.shape for m in (1, s)))
    pairs = reshape(a, outside) * reshape(b, inside)
    return reshape(pairs, tuple(s * t for s, t in zip(a.shape, b.shape)))


def cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """The cross product of vectors of three along `dim`, by default the first axis of three elements."""
    if dim is None:
        dim = next((k for k, n in enumerate(np.broadcast_shapes(input.shape, other.shape)) if n == 3), 0)
    return linalg.cross(input, other, dim=dim)


def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str | None = None) -> Tensor:
    """The p-norm distances of all pairs of rows: (…, P, M) and (…, R, M) give (…, P, R); gradient 0 at distance 0.
    They are always computed as differences, whatever `compute_mode` says."""
    if p < 0:
        raise ArgumentError(f"cdist: p must not be negative, got {p}")
    if x1.ndim < 2 or x2.ndim < 2 or x1.shape[-1] != x2.shape[-1]:
        raise ShapeError(f"cdist: expected (…, P, M) and (…, R, M), got {x1.shape} and {x2.shape}")
    return norm(unsqueeze(x1, -2) - unsqueeze(x2, -3), p, -1)


def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """The p-norm distances of all pairs of the N rows of a matrix: N (N - 1) / 2 of them."""
    if input.ndim != 2 or p < 0:
        raise ShapeError(f"pdist: expected a matrix and p from 0, got {input.shape} and {p}")
    rows, columns = np.triu_indices(input.shape[0], 1)
    at = lambda k: index_select(input, 0, Tensor(input.o.upload(k)) if input.o.eager else Tensor(aval_of(k)))  # noqa: E731
    return norm(at(rows) - at(columns), p, -1)


def vdot(input: Tensor, other: Tensor) -> Tensor:
    """The inner product of two vectors of one length."""
    return dot(input, other)
