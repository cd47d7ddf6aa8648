"""Source lines: where in the user's program something was called, as two words now and as text on demand.

Before `tensor.py`, whose nodes and writes remember such a call site.
"""
from __future__ import annotations

import linecache
import os
import sys

frame = sys._getframe
_HERE = os.path.dirname(os.path.abspath(__file__))
INTERNAL = {os.path.join(folder, name) for folder, _, names in os.walk(_HERE) for name in names if name.endswith(".py")}


def call_site(depth: int) -> tuple:
    """(code, lasti) of the nearest caller outside this package: two words now, file and line on demand."""
    f = frame(depth)
    code = f.f_code
    while code.co_filename in INTERNAL and f.f_back:
        f = f.f_back
        code = f.f_code
    return code, f.f_lasti


def cells() -> dict[str, int]:
    """{file name: number of the notebook cell}, where IPython runs; nothing is imported for it."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(getattr(shell, "compile", None), "_filename_map", {})


def line_of(code, lasti: int) -> int:
    """The number of the line of a call site."""
    return next((n for a, b, n in code.co_lines() if a <= lasti < b), None) or code.co_firstlineno


def line_text(code, lasti: int) -> str:
    """The line itself, where its file is still there; else empty."""
    return "" if code is None else linecache.getline(code.co_filename, line_of(code, lasti)).strip()


def site_text(code, lasti: int) -> str:
    """'file:line, in function' of a call site; in a notebook 'cell [3]:line'."""
    if code is None:
        return "an unknown line (sites are off)"
    line = line_of(code, lasti)
    cell = cells().get(code.co_filename)
    where = f"{code.co_filename}:{line}" if cell is None else f"cell [{cell}]:{line}"
    return where if cell and code.co_name == "<module>" else f"{where}, in {code.co_name}"
