"""What every notebook needs beside the library: predictions, things that go wrong, checks.

A check takes the reader's answer and says `right`, or what is off, with shapes and numbers, and
never the answer itself.  An answer still left out (None) is no error: a page runs top to bottom
before anybody has done an exercise.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps

import numpy as np

import minigrad as mg

WIDE = 96


# ---- predict, then run --------------------------------------------------------------------------
def compare(what: str, guess: object, truth: object) -> None:
    """One line: what was asked, the reader's guess, and what is so."""
    if guess is None or isinstance(guess, list | tuple) and any(g is None for g in guess):
        verdict = "no guess yet"
    elif same(guess, truth):
        verdict = f"you said {guess}: yes"
    else:
        number = (
            isinstance(guess, int | float)
            and isinstance(truth, int | float)
            and not isinstance(truth, bool)
        )
        off = f", off by {shown(abs(guess - truth))}" if number else ""
        verdict = f"you said {guess}: not quite{off}"
    print(f"{what:<34} {shown(truth):<22} {verdict}")


def same(a: object, b: object) -> bool:
    """Equal: numbers to half a percent, a list as a tuple, the name of a dtype as the dtype."""
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, bool) or isinstance(b, bool) or not isinstance(b, int | float):
        return str(a) == str(b)
    try:
        return math.isclose(float(a), float(b), rel_tol=5e-3)
    except (TypeError, ValueError):
        return False


def shown(value: object) -> str:
    return (
        f"{value:.3g}"
        if isinstance(value, float)
        else f"{value:,}"
        if type(value) is int
        else str(value)
    )


# ---- break it -----------------------------------------------------------------------------------
@contextmanager
def breaks(lines: int | None = None) -> Iterator[None]:
    """Run something that ought to fail, and print its message, or so many lines of it, in place of a long traceback."""
    try:
        yield
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        print(
            "\n".join(
                textwrap.fill(line, WIDE, subsequent_indent="    ") for line in text.splitlines()[:lines]
            )
        )
    else:
        print("nothing broke")


# ---- checks -------------------------------------------------------------------------------------
class Off(Exception):
    """An answer that is not right; the message says what is off."""


class Unanswered(Exception):
    """Nothing to check so far."""


def check(test: Callable[..., str]) -> Callable[..., None]:
    """A check made of `test(answer)`, which returns what a right answer shows, or raises Off."""

    @wraps(test)
    def checked(*answers: object) -> None:
        try:
            if any(
                a is None or isinstance(a, dict) and any(v is None for v in a.values())
                for a in answers
            ):
                raise Unanswered("put your answer in the place of None")
            print(f"right: {test(*answers)}")
        except Unanswered as why:
            print(f"not answered yet: {why}")
        except Off as off:
            print(f"not yet: {off}")
        except Exception as error:
            print(f"not yet: your code stopped with {type(error).__name__}: {error}")

    return checked


def ask(function: Callable, *inputs: object) -> object:
    """What the reader's function returns; a body that is still `...` returns None."""
    answer = function(*inputs)
    if answer is None:
        raise Unanswered("your function returns None")
    return answer


def expect(holds: object, message: str) -> None:
    if not holds:
        raise Off(message)


def close(value: object, want: np.ndarray, what: str) -> None:
    """Off unless `value` has the shape of `want` and is near it; says where it differs most."""
    expect(
        isinstance(value, mg.Tensor | np.ndarray | float | int),
        f"{what} is a {type(value).__name__}, expected a tensor",
    )
    found, want = (
        np.asarray(value.detach().numpy() if isinstance(value, mg.Tensor) else value),
        np.asarray(want),
    )
    expect(found.shape == want.shape, f"{what} has shape {found.shape}, expected {want.shape}")
    gap = np.abs(found - want)
    at = tuple(map(int, np.unravel_index(gap.argmax(), gap.shape)))
    expect(
        np.allclose(found, want, rtol=1e-4, atol=1e-5),
        f"{what} is off by {gap.max():.3g}{f' at {at}' if at else ''}",
    )
