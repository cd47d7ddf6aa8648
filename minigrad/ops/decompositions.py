"""Decompositions with gradients: QR, singular values, pseudo-inverse, exponential of a matrix.  After `matrices.py`.

An op with several results packs them into one output, so that one gradient carries all of them.
"""

from __future__ import annotations

import numpy as np

from minigrad.aval import Aval
from minigrad.dtype import finest
from minigrad.errors import DTypeError, ShapeError
from minigrad.ops.matrices import quotient
from minigrad.ops.op import NoOnnx, Op, op
from minigrad.ops.samples import Sample


class OfRectangle(Op):
    """An op on matrices of any shape in the last two axes; in float32 or float64."""

    takes, precision = "only float", "high"

    def check(self, x: Aval) -> tuple[tuple[int, ...], int, int]:
        """(leading axes, rows, columns), or the refusal."""
        if x.ndim < 2:
            raise ShapeError(f"linalg.{self.label}: expected matrices in the last two axes, got {x.shape}")
        if x.dtype.itemsize < 4:
            raise DTypeError(f"linalg.{self.label}: {x.dtype} is too narrow; convert with .float()")
        return x.shape[:-2], x.shape[-2], x.shape[-1]

    def flops(self, y: Aval, x: Aval) -> int:
        return 4 * x.size * min(x.shape[-2:])


def packed(o, *parts):
    """Matrices, each flattened, one behind the other."""
    return o.cat([o.reshape(p, (*p.shape[:-2], p.shape[-2] * p.shape[-1])) for p in parts], -1)


def unpacked(o, y, *shapes: tuple[int, int]) -> list:
    """The matrices of these shapes that `packed` joined."""
    parts, start = [], 0
    for m, n in shapes:
        part = o.cut(y, (Ellipsis, slice(start, start + m * n)))
        parts.append(o.reshape(part, (*y.shape[:-1], m, n)))
        start += m * n
    return parts


@op
class Qr(OfRectangle):
    """Q and R of x = Q R, packed: Q (m, k) with orthonormal columns, R (k, n) upper triangular"""

    complete: bool = False
    onnx = NoOnnx("no such operator")

    def sizes(self, shape) -> tuple[tuple[int, int], tuple[int, int]]:
        m, n = shape[-2:]
        k = m if self.complete else min(m, n)
        return (m, k), (k, n)

    def forward(self, o, x):
        return packed(o, *o.qr(x, self.complete))

    def dx(self, o, g, x, y):
        """Walter and Lehmann 2018; of a wide x = [X, Y] the first columns alone decide on Q."""
        m, n = x.shape[-2:]
        if self.complete and m > n:
            raise DTypeError(f"linalg.qr: mode 'complete' of a tall matrix {x.shape} has no gradient. Use 'reduced'")
        (q, r), (gq, gr) = unpacked(o, y, *self.sizes(x.shape)), unpacked(o, g, *self.sizes(x.shape))
        if m >= n:
            return self.tall(o, q, r, gq, gr)
        left, right = (Ellipsis, slice(0, m)), (Ellipsis, slice(m, n))
        gq = gq + o.matmul(o.cut(x, right), o.mT(o.cut(gr, right)))
        return o.cat((self.tall(o, q, o.cut(r, left), gq, o.cut(gr, left)), o.matmul(q, o.cut(gr, right))), -1)

    def tall(self, o, q, r, gq, gr):
        inner = o.matmul(r, o.mT(gr)) - o.matmul(o.mT(gq), q)
        both = o.tril(inner, 0) + o.mT(o.tril(inner, -1))
        return o.mT(o.solve(r, o.mT(gq + o.matmul(q, both))))

    def infer(self, x: Aval) -> Aval:
        lead, *_ = self.check(x)
        return Aval((*lead, sum(a * b for a, b in self.sizes(x.shape))), x.dtype)

    @classmethod
    def samples(cls) -> list[Sample]:
        shapes = ("normal(3,3)", "normal(4,3)", "normal(2,3,2)", "normal(2,3)", "normal(4,3).T")
        return [Sample(cls.of(), (s,), dtypes=("f4",)) for s in shapes]


@op
class Svd(OfRectangle):
    """U, S and Vᵀ of x = U diag(S) Vᵀ, packed: as many columns of U and rows of Vᵀ as singular values"""

    onnx = NoOnnx("no such operator")

    def sizes(self, shape) -> tuple:
        m, n = shape[-2:]
        k = min(m, n)
        return (m, k), (1, k), (k, n)

    def forward(self, o, x):
        u, s, vt = o.xp.linalg.svd(x, full_matrices=False)
        return packed(o, u, s[..., None, :], vt)

    def dx(self, o, g, x_shape, y):
        """Townsend 2016, real case: the parts of gU and gV within the spanned spaces, and those beside them."""
        (u, s, vt), (gu, gs, gvt) = unpacked(o, y, *self.sizes(x_shape)), unpacked(o, g, *self.sizes(x_shape))
        m, n = x_shape[-2:]
        k = min(m, n)
        eye = o.constant(np.eye(k))
        gaps = s * s - o.mT(s * s) + eye
        turned = lambda a, b: self.skew(o, o.matmul(o.mT(a), b))  # noqa: E731
        inner = quotient(o, turned(u, gu), gaps) * s + o.mT(s) * quotient(o, turned(o.mT(vt), o.mT(gvt)), gaps)
        left = o.matmul(u, inner + eye * gs)
        if m > k:
            left = left + quotient(o, gu - o.matmul(u, o.matmul(o.mT(u), gu)), s)
        y = o.matmul(left, vt)
        if n > k:
            rest = gvt - o.matmul(o.matmul(gvt, o.mT(vt)), vt)
            y = y + o.matmul(u, quotient(o, rest, o.mT(s)))
        return y

    def skew(self, o, x):
        return x - o.mT(x)

    def infer(self, x: Aval) -> Aval:
        lead, *_ = self.check(x)
        return Aval((*lead, sum(a * b for a, b in self.sizes(x.shape))), x.dtype)

    @classmethod
    def samples(cls) -> list[Sample]:
        shapes = ("normal(3,3)", "normal(4,3)", "normal(2,2,3)", "normal(4,3).T")
        return [Sample(cls.of(), (s,), dtypes=("f4",)) for s in shapes]


@op
class Pinv(OfRectangle):
    """The pseudo-inverse; singular values up to max(atol, rtol · the largest) count as 0; rtol None: the rounding"""

    rtol: float | None = None
    atol: float = 0.0
    onnx, reference = NoOnnx("no such operator"), staticmethod(np.linalg.pinv)

    def forward(self, o, x):
        rounding = 0.0 if self.atol else max(x.shape[-2:]) * finest(x.dtype)[0]
        return o.pinv(x, rounding if self.rtol is None else self.rtol, self.atol)

    def dx(self, o, g, x, y):
        """Golub and Pereyra 1973, for matrices of constant rank."""
        t, gt = o.mT(y), o.mT(g)
        first = o.matmul(o.matmul(gt - o.matmul(x, o.matmul(y, gt)), y), t)
        second = o.matmul(o.matmul(t, y), gt - o.matmul(o.matmul(gt, y), x))
        return first + second - o.matmul(o.matmul(t, g), t)

    def infer(self, x: Aval) -> Aval:
        lead, m, n = self.check(x)
        return Aval((*lead, n, m), x.dtype)

    @classmethod
    def samples(cls) -> list[Sample]:
        shapes = ("normal(3,3)", "normal(4,2)", "normal(2,2,3)", "normal(4,3).T")
        return [Sample(cls.of(), (s,), dtypes=("f4",)) for s in shapes]


@op
class MatrixExp(OfRectangle):
    """The exponential of a square matrix, Σ xᵏ / k!"""

    onnx = NoOnnx("no such operator")

    def forward(self, o, x):
        return o.matrix_exp(x)

    def dx(self, o, g, x):
        """The upper right block of exp([[xᵀ, g], [0, xᵀ]]) (Van Loan 1978)."""
        n, t = x.shape[-1], o.mT(x)
        rows = o.cat((t, g), -1), o.cat((g * o.zero, t), -1)
        return o.cut(o.matrix_exp(o.cat(rows, -2)), (Ellipsis, slice(0, n), slice(n, None)))

    def infer(self, x: Aval) -> Aval:
        _, m, n = self.check(x)
        if m != n:
            raise ShapeError(f"matrix_exp: expected square matrices in the last two axes, got {x.shape}")
        return Aval(x.shape, x.dtype)

    def reference(self, x):
        """By eigenvalues."""
        w, v = np.linalg.eig(x)
        return ((v * np.exp(w)[..., None, :]) @ np.linalg.inv(v)).real

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of(), (s,), dtypes=("f4",)) for s in ("normal(3,3)", "normal(2,2,2)", "normal(3,3).T")]

