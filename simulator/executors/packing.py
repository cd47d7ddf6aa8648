"""What travels to another process: functions too, with the names of their files and their lines, so that errors there
can name them.  Before `service.py`; after `minigrad.sites`, whose words for a notebook's cells these are.
"""
from __future__ import annotations

import io
import linecache
from collections.abc import Iterable
from types import CodeType
from typing import Any

import cloudpickle

from minigrad.sites import cells

Lines = dict[str, list[str]]


class Pickler(cloudpickle.Pickler):
    """Code keeps the name of its file, which cloudpickle leaves out; that of a notebook's cell becomes "cell [3]".

    `files`: the names as they were, by what they became."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.files: dict[str, str] = {}
        self._cells = cells()

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, CodeType):
            return super().reducer_override(obj)
        make, args, *rest = self.dispatch_table[CodeType](obj)
        number = self._cells.get(obj.co_filename)
        name = obj.co_filename if number is None else f"cell [{number}]"
        self.files[name] = obj.co_filename
        return make, tuple(name if arg in (obj.co_filename, "<dynamic-code>") else arg for arg in args), *rest


def pack(*things: Any) -> bytes:
    """`unpack` gives a tuple of them.  Raises what pickle does."""
    file = io.BytesIO()
    pickler = Pickler(file)
    pickler.dump(things)
    lines = {name: found for name, was in pickler.files.items() if (found := linecache.getlines(was))}
    return cloudpickle.dumps((file.getvalue(), lines))


def unpack(packed: bytes) -> tuple:
    """What was packed; the lines of its functions can be looked up here too."""
    things, lines = cloudpickle.loads(packed)
    for name, text in lines.items():
        if not linecache.getlines(name):
            linecache.cache[name] = len(text), None, text, name
    return cloudpickle.loads(things)


def unsendable(parts: Iterable[tuple[str, Any]]) -> str:
    """The first of these, (what it is, the thing), that cannot be packed."""
    for name, part in parts:
        try:
            pack(part)
        except Exception:
            return f"{name} ({type(part).__name__})"
    return "the program with its arguments"


__all__ = ["pack", "unpack", "unsendable"]
