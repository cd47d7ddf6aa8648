"""einsum: products of tensors summed over letters.  After `matmul.py`.

Repeated letters become diagonals, letters of one operand alone are summed first, and the rest is contracted pair by
pair,
the pair of the smallest result first.  A pair is one op, a batched matrix product between transposes; the gradient of
either operand is such a contraction again.
"""

from __future__ import annotations

import itertools
import math
import string

import numpy as np

from minigrad.aval import Aval, like, view_of
from minigrad.errors import ArgumentError, ShapeError
from minigrad.ops.diagonals import unique_letters
from minigrad.ops.op import Op, op
from minigrad.ops.reduce_functions import sum
from minigrad.ops.samples import Sample
from minigrad.ops.views import permute, reshape
from minigrad.tensor import Tensor, apply


def contracted(o, x, a: str, y, b: str, out: str):
    """The sum over the letters that are not in `out` of x[a] · y[b]; every letter of an operand is in the other
    or in out."""
    sizes = dict(zip(a + b, (*x.shape, *y.shape)))
    both = [c for c in a if c in b and c in out]
    rows, columns = [c for c in a if c not in b], [c for c in b if c not in a]
    inner = [c for c in a if c in b and c not in out]
    size = lambda letters: math.prod(sizes[c] for c in letters)
    lead = tuple(sizes[c] for c in both)
    x = _laid(o, x, a, both + rows + inner, (*lead, size(rows), size(inner)))
    y = _laid(o, y, b, both + inner + columns, (*lead, size(inner), size(columns)))
    z = o.matmul(x, y) if inner else x * y
    found = _made_in(a, b, out)
    z = o.reshape(z, tuple(sizes[c] for c in found))
    return z if "".join(found) == out else o.transpose(z, tuple(found.index(c) for c in out))


def _made_in(a: str, b: str, out: str) -> list[str]:
    """The letters of the output in the order in which `contracted` makes them."""
    return [c for c in a if c in b and c in out] + [c for c in a if c not in b] + [c for c in b if c not in a]


def _laid(o, x, letters: str, order: list[str], shape: tuple[int, ...]):
    """`x` with its axes in `order`, then in `shape`."""
    axes = tuple(letters.index(c) for c in order)
    return o.reshape(x if axes == tuple(range(len(axes))) else o.transpose(x, axes), shape)


@op
class Contract(Op):
    """The product of p and q summed over the letters that are not in the output; see `contracted`"""

    a: str
    b: str
    out: str
    onnx, precision, exact = "Einsum", "low", True
    reference = lambda self, p, q: np.einsum(f"{self.a},{self.b}->{self.out}", p, q)  # noqa: E731

    def forward(self, o, p, q):
        return contracted(o, p, self.a, q, self.b, self.out)

    def dp(self, o, g, q):
        return contracted(o, g, self.out, q, self.b, self.a)

    def dq(self, o, g, p):
        return contracted(o, g, self.out, p, self.a, self.b)

    def infer(self, p: Aval, q: Aval) -> Aval:
        sizes = dict(zip(self.a + self.b, (*p.shape, *q.shape)))
        if tuple(sizes[c] for c in self.a) != p.shape:
            raise ShapeError(f"einsum: {self.a} {p.shape} and {self.b} {q.shape} give one letter two sizes")
        found = _made_in(self.a, self.b, self.out)
        y = Aval(tuple(sizes[c] for c in found), p.dtype)
        if y.size and not any(c in self.b and c not in self.out for c in self.a):     # a product of elements
            beside = lambda x, letters: view_of(x, lambda a: np.transpose(                       # noqa: E731
                a[(..., *(None,) * (len(found) - len(letters)))],
                [(letters + "".join(c for c in found if c not in letters)).index(c) for c in found]))
            y = like(y.shape, y.dtype, beside(p, self.a), beside(q, self.b))
        return view_of(y, lambda a: np.transpose(a, [found.index(c) for c in self.out]))

    def flops(self, y: Aval, p: Aval, q: Aval) -> int:
        inner = [n for c, n in zip(self.a, p.shape) if c not in self.out]
        return 2 * y.size * math.prod(inner) if inner else y.size

    @classmethod
    def samples(cls) -> list[Sample]:
        rows = [
            ("ij", "jk", "ik", "3,4", "4,2"),
            ("ij", "jk", "ki", "3,4", "4,2"),
            ("bij", "bjk", "bik", "2,3,4", "2,4,2"),
            ("i", "i", "", "3", "3"),
            ("i", "j", "ij", "3", "2"),
            ("ib", "bj", "jbi", "3,2", "2,4"),
            ("", "ij", "ij", "", "2,3"),
            ("ij", "ij", "ij", "2,3", "2,3"),
            ("ijk", "kj", "i", "2,3,4", "4,3"),
            ("ij", "jk", "ik", "3,0", "0,2"),
        ]
        return [Sample(cls.of(a, b, out), (f"normal({s})", f"normal({t})")) for a, b, out, s, t in rows]


# ---- the equation --------------------------------------------------------------------------------
def _parsed(equation: str, xs: tuple[Tensor, ...]) -> tuple[list[str], str]:
    """(letters of each operand, of the output), with the axes under an ellipsis as letters of their own."""
    text = equation.replace(" ", "")
    left, arrow, out = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(xs):
        raise ArgumentError(f"einsum: {equation!r} names {len(terms)} operands, got {len(xs)}")
    free = [c for c in string.ascii_letters if c not in text]
    dots = max((x.ndim - len(t.replace("...", "")) for t, x in zip(terms, xs) if "..." in t), default=0)
    shared = "".join(free[: max(dots, 0)])
    terms = [_spelled(t, x, shared, equation) for t, x in zip(terms, xs)]
    if not arrow:  # implicit: the letters that occur once, in their order
        named = "".join(sorted(c for c in set(left) - set(",.") if left.count(c) == 1))
        return terms, ("" if "..." not in left else shared) + named
    return terms, _output(out.replace("...", shared), terms, equation)


def _spelled(term: str, x: Tensor, shared: str, equation: str) -> str:
    """The letters of one operand, its ellipsis replaced by the last of the shared ones."""
    named = term.replace("...", "", 1)
    if not all(c in string.ascii_letters for c in named):
        raise ArgumentError(f"einsum: {equation!r}: {term!r} is no run of letters with at most one ellipsis")
    under = x.ndim - len(named)
    if under < 0 or (under and "..." not in term):
        raise ShapeError(f"einsum: {term!r} in {equation!r} names {len(named)} axes, the operand has shape {x.shape}")
    return term.replace("...", shared[len(shared) - under :])


def _output(out: str, terms: list[str], equation: str) -> str:
    for c in out:
        if c not in string.ascii_letters or out.count(c) > 1 or not any(c in t for t in terms):
            raise ArgumentError(f"einsum: {equation!r}: {c!r} in the output is repeated, or in no operand")
    return out


def _sizes(terms: list[str], xs: tuple[Tensor, ...], equation: str) -> dict[str, int]:
    """The size of each letter; an axis of size 1 fits any."""
    sizes: dict[str, int] = {}
    for t, x in zip(terms, xs):
        for c, n in zip(t, x.shape):
            if sizes.setdefault(c, n) != n and 1 not in (n, sizes[c]):
                raise ShapeError(f"einsum: in {equation!r} the letter {c!r} has sizes {sizes[c]} and {n}")
            sizes[c] = n if sizes[c] == 1 else sizes[c]
    return sizes


# ---- one operand, and pairs ----------------------------------------------------------------------
def _alone(x: Tensor, term: str, elsewhere: set[str], sizes: dict[str, int]) -> tuple[Tensor, str]:
    """The operand without repeated letters, without those that nothing else names, and without axes that broadcast."""
    x, term = unique_letters(x, term)
    gone = [i for i, c in enumerate(term) if c not in elsewhere]
    if gone:
        x = sum(x, tuple(gone))
        term = "".join(c for i, c in enumerate(term) if i not in gone)
    if any(n == 1 != sizes[c] for c, n in zip(term, x.shape)):
        kept = [(c, n) for c, n in zip(term, x.shape) if not n == 1 != sizes[c]]
        x, term = reshape(x, tuple(n for _, n in kept)), "".join(c for c, _ in kept)
    return x, term


def _cheapest(terms: list[str], out: str, sizes: dict[str, int]) -> tuple[int, int]:
    """The pair of operands whose product grows least."""
    size = lambda letters: math.prod(sizes[c] for c in letters)

    def growth(pair: tuple[int, int]) -> float:
        i, j = pair
        return size(_kept(terms, i, j, out)) - size(terms[i]) - size(terms[j])

    return min(itertools.combinations(range(len(terms)), 2), key=growth)


def _kept(terms: list[str], i: int, j: int, out: str) -> str:
    """The letters that the product of operands i and j must keep for the others and the output."""
    wanted = set(out).union(*(t for k, t in enumerate(terms) if k not in (i, j)))
    return "".join(c for c in dict.fromkeys(terms[i] + terms[j]) if c in wanted)


def einsum(equation: str, *operands: Tensor) -> Tensor:
    """Products summed over the letters that the output does not name: "ij,jk->ik" is a matrix product.

    All of it: repeated letters take diagonals, "..." stands for axes that broadcast, no "->" means the letters that
    occur once in alphabetical order.  Operands may be given as one list."""
    xs = tuple(operands[0]) if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands
    if not isinstance(equation, str) or not xs or not all(isinstance(x, Tensor) for x in xs):
        raise TypeError("einsum: expected an equation such as 'ij,jk->ik' and then the Tensors it names")
    terms, out = _parsed(equation, xs)
    sizes = _sizes(terms, xs, equation)
    for k in range(len(xs)):
        elsewhere = set(out).union(*(t for i, t in enumerate(terms) if i != k))
        x, terms[k] = _alone(xs[k], terms[k], elsewhere, sizes)
        xs = (*xs[:k], x, *xs[k + 1 :])
    return _spread(*_contract_all(list(xs), terms, out, sizes), out, sizes)


def _contract_all(xs: list[Tensor], terms: list[str], out: str, sizes: dict[str, int]) -> tuple[Tensor, str]:
    """All operands as one, pair by pair."""
    while len(xs) > 1:
        i, j = _cheapest(terms, out, sizes)
        kept = _kept(terms, i, j, out) if len(xs) > 2 else "".join(c for c in out if c in terms[0] + terms[1])
        y, b = xs.pop(j), terms.pop(j)
        x, a = xs[i], terms[i]
        x, a = _alone(x, a, {*b, *kept}, sizes)  # what only one of the two names is summed now
        y, b = _alone(y, b, {*a, *kept}, sizes)
        xs[i], terms[i] = apply(Contract.of(a, b, kept), x, y), kept
    return xs[0], terms[0]


def _spread(x: Tensor, term: str, out: str, sizes: dict[str, int]) -> Tensor:
    """The one operand left, its axes in the order of the output; axes that only broadcast were 1 everywhere."""
    order = tuple(term.index(c) for c in out if c in term)
    return x if order == tuple(range(x.ndim)) else permute(x, *order)
