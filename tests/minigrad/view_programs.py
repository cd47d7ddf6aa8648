"""Random programs of views and writes, run alike on NumPy arrays, minigrad tensors and PyTorch tensors.

A program is a list of steps (kind, target, other, choice), all small integers, each of which means something for any
values: so hypothesis can draw and shrink them.  Used by `test_views.py` and `parity/test_torch_views.py`.
"""

import numpy as np
from hypothesis import strategies as st

LEAF = np.random.default_rng(5).standard_normal((2, 3))
OTHER = np.random.default_rng(6).standard_normal((2, 3))
KINDS = ("view", "view", "write", "add", "scale", "multiply", "part", "new", "product")

programs = st.lists(st.tuples(*(st.integers(0, n) for n in (len(KINDS) - 1, 9, 9, 9))), max_size=9)


def look(x, choice: int):
    """One of the views of `x`."""
    n = x.shape[0] if x.ndim else 0
    ways = [lambda: x[choice % n, ...], lambda: x[::2], lambda: x[1:], lambda: x[..., :1]] if n else []
    ways += [lambda: turned(x), lambda: x.reshape(-1), lambda: x[None], lambda: x[...]]
    return ways[choice % len(ways)]()


def turned(x):
    """The first and the last axis exchanged."""
    if x.ndim < 2:
        return x[...]
    return np.swapaxes(x, 0, -1) if isinstance(x, np.ndarray) else x.transpose(0, -1)


def fitting(x, value):
    """`value` where it has x's shape, else the sum of it; its own memory, so that writing to x is no overlap."""
    return value * 1 if tuple(value.shape) == tuple(x.shape) else value.sum()


def step(values: list, kind: int, target: int, other: int, choice: int) -> None:
    """One step; a new value is appended."""
    what, x, y = KINDS[kind], values[target % len(values)], values[other % len(values)]
    if what == "view":
        values.append(look(x, choice))
    elif what == "new":
        new = x * (choice - 4) + y.sum()
        values.append(np.asarray(new) if isinstance(new, np.generic) else new)
    elif what == "product":
        new = x * (y if tuple(y.shape) == tuple(x.shape) else choice)
        values.append(np.asarray(new) if isinstance(new, np.generic) else new)
    elif what == "part":
        part = look(x, choice)
        part[...] = fitting(part, y)
    elif what == "write":
        x[...] = fitting(x, y) if choice % 2 else choice - 3.0
    elif what == "add":
        x += fitting(x, y)
    elif what == "scale":
        x *= choice / 4
    else:
        x *= fitting(x, y)


def run(program, leaf, other) -> list:
    """The values that a program makes, from two tensors or arrays that it may write to."""
    values = [leaf * 1, other * 2]
    for s in program:
        step(values, *s)
    return values


def total(values: list):
    """A number made of every value, each with weights of its own."""
    return sum((v * (k + 1.5)).sum() + (v.reshape(-1)[:1] * 0.7).sum() for k, v in enumerate(values))
