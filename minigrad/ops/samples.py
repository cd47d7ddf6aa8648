"""Sample inputs: how an op says on what it should be tried.  Generated tests and the op catalogue read them.

A sample is an op and one text per input: a kind, a shape, and perhaps a way to lie in memory –
"normal(3,4)", "positive(2,1)", "index(3)<4" (integers below 4), "truth(2,2)", "key()", "normal(3,4).T",
"normal(4,6)[::2]".
"""
from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

import numpy as np

_FORM = re.compile(r"(?P<kind>\w+)\((?P<shape>[\d,]*)\)(?:<(?P<below>\d+))?(?P<lie>\.T|\[::2\])?$")


@dataclass(frozen=True)
class Sample:
    """`op` with one text per input; `dtypes`: the narrower float dtypes in which it must stay."""

    op: object
    inputs: tuple[str, ...]
    dtypes: tuple[str, ...] = ("f4", "f2")
    skip: tuple[str, ...] = ()         # laws that cannot be put to it

    def arrays(self, rng: np.random.Generator) -> list[np.ndarray]:
        """One array per input, floats in float64."""
        return [make(text, rng) for text in self.inputs]

    def __str__(self) -> str:
        return f"{self.op} on {', '.join(self.inputs)}"


_DRAW = {
    "normal": lambda r, s: r.standard_normal(s),
    "positive": lambda r, s: r.uniform(0.5, 2, s),
    "probability": lambda r, s: r.uniform(0.05, 0.95, s),
    "unit": lambda r, s: r.uniform(-0.9, 0.9, s),
    "away": lambda r, s: r.uniform(0.2, 2, s) * r.choice([-1, 1], s),  # from zero
    "spread": lambda r, s: r.permutation(np.prod(s, dtype=int)).reshape(s) * 0.37 - 1.1,  # all different
    "above": lambda r, s: r.uniform(1.2, 3, s),
    "below": lambda r, s: r.uniform(-2, -0.5, s),
    "steps": lambda r, s: (
        r.integers(-3, 3, s) + r.uniform(0.1, 0.4, s) + 0.5 * r.integers(0, 2, s)
    ),  # no integers, no halves
    "whole": lambda r, s: r.integers(-9, 9, s),
    "labels": lambda r, s: r.integers(1, 3, s),  # no blanks
    "few": lambda r, s: r.integers(0, 5, s),
    "rising": lambda r, s: np.sort(r.standard_normal(s), -1),
    "definite": lambda r, s: (lambda x: x @ np.swapaxes(x, -1, -2) + np.eye(s[-1]))(r.standard_normal(s)),
    "truth": lambda r, s: r.integers(0, 2, s).astype(bool),
    "order": lambda r, s: r.permutation(np.prod(s, dtype=int)).reshape(s),  # 0, 1, … shuffled
    "key": lambda r, s: np.array([7, 3], np.int64),
}


def make(text: str, rng: np.random.Generator) -> np.ndarray:
    """The array that a sample text describes."""
    m = _FORM.match(text)
    if m is None:
        raise ValueError(f"sample {text!r}: write kind(shape), e.g. normal(3,4), index(3)<4, normal(4,3).T")
    shape = tuple(int(n) for n in m["shape"].split(",") if n)
    if m["lie"] == ".T":
        return np.asarray(_draw(m, rng, shape[::-1])).T
    if m["lie"] == "[::2]":
        return np.asarray(_draw(m, rng, (shape[0] * 2, *shape[1:])))[::2]
    return np.asarray(_draw(m, rng, shape))


def _draw(m: re.Match, rng: np.random.Generator, shape: tuple[int, ...]):
    if m["kind"] == "index":
        return rng.integers(0, int(m["below"]), shape)
    return _DRAW[m["kind"]](rng, shape)


ONE = ("(3,2)", "()", "(0,3)", "(3,4).T", "(4)[::2]")
TWO = (
    ("(3,4)", "(4)"),
    ("(3,1)", "(1,4)"),
    ("()", "(2)"),
    ("(2,3)", "(2,3)"),
    ("(0,3)", "(1)"),
    ("(3,4).T", "(3,4).T"),
    ("(3,4)", "(3,4).T"),
)
THREE = (("(3,4)", "(4)", "(3,1)"), ("(2)", "(2)", "()"), ("()", "(2)", "(3,1)"))


def elementwise_samples(cls) -> list[Sample]:
    """Shapes that broadcast every way, empty, 0-d and non-contiguous, drawn from the op's `domain`."""
    op = cls.of()
    shapes = {1: [(s,) for s in ONE], 2: TWO, 3: THREE}[len(cls.inputs)]
    kinds = tuple(itertools.islice(itertools.cycle(cls.domain), len(cls.inputs)))
    return [Sample(op, tuple(k + s for k, s in zip(kinds, row))) for row in shapes]
