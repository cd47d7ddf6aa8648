"""Written-out arithmetic, "37+5=42": a text task whose answers are right or wrong.  After `text.py`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from minigrad.data.text import CharTokenizer
from minigrad.tensor import Tensor

FUNCTIONS: dict[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
END, PAD = "\n", " "
TOKENIZER = CharTokenizer(PAD + END + "0123456789=" + "".join(FUNCTIONS))


def make(n: int, digits: int = 2, ops: str = "+", seed: int = 0) -> list[str]:
    """n different problems with operands of up to `digits` digits, evenly drawn; parts of the list share none.

    ops: the signs to draw from, "+-*".  ValueError if there are fewer than n."""
    if digits < 1 or not ops or len(set(ops)) < len(ops) or not set(ops) <= FUNCTIONS.keys():
        raise ValueError(f"make: digits must be at least 1 and ops some of {''.join(FUNCTIONS)}, got {digits}, {ops!r}")
    size = 10**digits
    there = size * size * len(ops)
    if not 0 <= n <= there:
        raise ValueError(f"make: {n} problems of {there} different ones")
    drawn = np.random.default_rng(seed).choice(there, n, replace=False).tolist()
    return [_written(k // (size * len(ops)), k // len(ops) % size, ops[k % len(ops)]) for k in drawn]


def _written(a: int, b: int, sign: str) -> str:
    return f"{a}{sign}{b}={FUNCTIONS[sign](a, b)}"


def question(problem: str) -> str:
    """ "37+5=" of "37+5=42". """
    return problem[: problem.index("=") + 1]


def answer(problem: str) -> str:
    """ "42" of "37+5=42". """
    return problem[problem.index("=") + 1 :]


def encode(problems: Sequence[str], length: int | None = None) -> Tensor:
    """int64 (N, length): each text, its end mark, and blanks; by default as long as the longest needs."""
    longest = max((len(p) + 1 for p in problems), default=0)
    length = longest if length is None else length
    if longest > length:
        raise ValueError(f"encode: {max(problems, key=len)!r} and its end mark do not fit into {length} places")
    text = "".join((p + END).ljust(length, PAD) for p in problems)
    return TOKENIZER.encode(text).reshape(len(problems), length)


def decode(numbers: Tensor | Sequence[Sequence[int]]) -> list[str]:
    """The texts, each up to its end mark."""
    rows = numbers.tolist() if isinstance(numbers, Tensor) else numbers
    return [TOKENIZER.decode(row).split(END)[0] for row in rows]


def answer_mask(problems: Sequence[str], length: int | None = None) -> Tensor:
    """(N, length), True where `encode` has the answer and its end mark: what a loss should count."""
    numbers = encode(problems, length)
    places = np.arange(numbers.shape[1])
    starts = np.array([len(question(p)) for p in problems]).reshape(-1, 1)
    ends = np.array([len(p) for p in problems]).reshape(-1, 1)
    return Tensor((places >= starts) & (places <= ends))


def score(problems: Iterable[str], given: Iterable[str]) -> float:
    """The share of problems whose given answer is exactly theirs: no more digits, no fewer."""
    pairs = list(zip(problems, given, strict=True))
    if not pairs:
        raise ValueError("score: no problems")
    return sum(text == answer(problem) for problem, text in pairs) / len(pairs)
