"""Promotion beside PyTorch: every pair of dtypes, as tensors with axes, 0-d tensors and Python numbers.

Optional: skipped where PyTorch is not installed.  `minigrad/test_dtype.py` holds the golden table.
"""

import itertools
import operator

import pytest

import minigrad as mg
from tests.minigrad.test_dtype import ORDER

torch = pytest.importorskip("torch")

SHAPES = [(), (2,), (0,), (1, 1)]
NUMBERS = [True, 2, 2.5]
OPS = [operator.add, operator.mul, operator.truediv, operator.eq, operator.gt, "maximum", "fmod", "atan2", "pow"]


def name(dtype) -> str:
    return str(dtype).removeprefix("torch.")


def outcome(f) -> str:
    """The dtype of what f gives, or the kind of its error."""
    try:
        return name(f().dtype)
    except (RuntimeError, TypeError, NotImplementedError):
        return "refused"


def run(lib, op, a, b) -> str:
    return outcome(lambda: getattr(lib, op)(a, b) if isinstance(op, str) else op(a, b))


def make(lib, dtype, shape):
    return lib.ones(shape, dtype=getattr(lib, dtype))


@pytest.mark.parametrize("op", OPS, ids=lambda op: getattr(op, "__name__", op))
@pytest.mark.parametrize("a", ORDER)
def test_pairs_of_tensors(a, op):
    for b, (left, right) in itertools.product(ORDER, itertools.product(SHAPES, SHAPES)):
        ours, theirs = (run(lib, op, make(lib, a, left), make(lib, b, right)) for lib in (mg, torch))
        assert ours == theirs, f"{a}{left} {op} {b}{right}"
        assert name(mg.result_type(make(mg, a, left), make(mg, b, right))) == name(
            torch.result_type(make(torch, a, left), make(torch, b, right)))


@pytest.mark.parametrize("op", OPS, ids=lambda op: getattr(op, "__name__", op))
@pytest.mark.parametrize("a", ORDER)
def test_numbers(a, op):
    for number, shape in itertools.product(NUMBERS, SHAPES):
        pairs = [(run(lib, op, make(lib, a, shape), number), run(lib, op, number, make(lib, a, shape)))
                 for lib in (mg, torch)]
        assert pairs[0] == pairs[1], f"{a}{shape} {op} {number}"
