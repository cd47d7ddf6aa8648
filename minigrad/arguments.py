"""Arguments that must be numbers, files or things of a class: refused by name where a call begins, before anything is
done.

Imports nothing of the engine; the calls that users make of `memory/`, `profiler/` and `comparison.py` ask here.
"""
from __future__ import annotations

import os
from operator import index
from typing import Any


def whole(call: str, name: str, value: Any, least: int = 0, most: int | None = None) -> int:
    """`value` as an int of `least` to `most`; True is none."""
    asked = f"a whole number of at least {least:,}" + (f" and at most {most:,}" if most is not None else "")
    try:
        number = index(value)
    except TypeError:
        raise TypeError(f"{call}: {name} must be {asked}, got {value!r}") from None
    if isinstance(value, bool):
        raise TypeError(f"{call}: {name} must be {asked}, got {value!r}")
    if number < least or (most is not None and number > most):
        raise ValueError(f"{call}: {name} must be {asked}, got {number:,}")
    return number


def of_kind(call: str, name: str, value: Any, *kinds: type) -> Any:
    """`value`, if it is an instance of one of the kinds."""
    if not isinstance(value, kinds):
        told = " or ".join(f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}" for kind in kinds)
        raise TypeError(f"{call}: {name} must be {told}, got {value!r:.80} ({type(value).__name__})")
    return value


def function(call: str, name: str, value: Any) -> Any:
    """`value`, if it can be called."""
    if not callable(value):
        raise TypeError(f"{call}: {name} must be a function, got {value!r:.80} ({type(value).__name__})")
    return value


def folder_there(call: str, value: str | os.PathLike | None) -> None:
    """FileNotFoundError unless `value` is None or a folder that exists."""
    if value is not None and not os.path.isdir(value):
        raise FileNotFoundError(f"{call}: there is no folder {os.fspath(value)!r}. Make it first, or leave it out for "
                                "the system's own")


__all__ = ["folder_there", "function", "of_kind", "whole"]
