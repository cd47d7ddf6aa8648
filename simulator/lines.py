"""The user's own line: of a call, of an error, of a thread – the innermost that no file of the library wrote.

After `errors.py`; whatever names a line in what it tells takes it from here.
"""
from __future__ import annotations

import os
import sys
from functools import lru_cache

from minigrad.sites import INTERNAL, site_text

_HERE = os.path.dirname(os.path.abspath(__file__))
INTERNAL.update(os.path.join(folder, name) for folder, _, names in os.walk(_HERE) for name in names)
ours = lru_cache(maxsize=4096)(lambda name: name in INTERNAL or name.startswith("<minigrad "))   # a file of the library
line_of = lru_cache(maxsize=4096)(lambda code, lasti: site_text(code, lasti))


def called_at(depth: int) -> tuple:
    """(code, lasti) of the nearest caller that is the user's, at least so many frames up."""
    f = sys._getframe(depth)
    while ours(f.f_code.co_filename) and f.f_back:
        f = f.f_back
    return f.f_code, f.f_lasti


def raised_at(error: BaseException) -> str:
    """The user's innermost line in a traceback, as ", at file:line, in function"; an error that came from another
    process has it with it."""
    found, tb = getattr(error, "raised_at", ""), error.__traceback__
    while tb is not None:
        code = tb.tb_frame.f_code
        found = found if ours(code.co_filename) else f", at {line_of(code, tb.tb_lasti)}"
        tb = tb.tb_next
    return found


def thread_at(ident: int) -> str:
    """The same of where a thread is."""
    f = sys._current_frames().get(ident)
    while f is not None and ours(f.f_code.co_filename):
        f = f.f_back
    return "" if f is None else f", at {line_of(f.f_code, f.f_lasti)}"


__all__ = ["called_at", "line_of", "ours", "raised_at", "thread_at"]
