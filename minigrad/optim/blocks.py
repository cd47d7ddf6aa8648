"""Arrays in pieces that stay in the processor's cache while an update passes over them several times.

Measured (AMD EPYC, float32): Adam's twelve passes over 9 million elements take 33 ms in pieces and 57 ms whole; up to
some hundred thousand elements both are alike.  On a device the arrays are taken whole.  First file of the package.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

BLOCK = 1 << 16  # elements
Arrays = tuple


class Scratch:
    """Working memory for one dtype on the host, made once; on a device new memory, which its pool keeps."""

    def __init__(self) -> None:
        self._host: dict[tuple[np.dtype, int], np.ndarray] = {}

    def like(self, x, number: int):
        """Memory number `number` in the shape of `x`, its content undefined."""
        if x.__class__ is not np.ndarray:
            return x.copy()
        key = x.dtype, number
        memory = self._host.get(key)
        if memory is None or memory.size < x.size:
            memory = self._host[key] = np.empty(x.size, x.dtype)
        return memory[: x.size].reshape(x.shape)


def blocks(arrays: Arrays) -> Iterator[Arrays]:
    """The arrays, of one shape, whole or in corresponding pieces."""
    x = arrays[0]
    if x.__class__ is not np.ndarray or x.size <= BLOCK or not all(a.flags.c_contiguous for a in arrays):
        yield arrays
        return
    flat = [a.reshape(-1) for a in arrays]
    for start in range(0, x.size, BLOCK):
        yield tuple(a[start : start + BLOCK] for a in flat)
