"""Lanes: parts of a batch side by side, each in a thread whose BLAS calls run alone.

Many small matrix products with copies between them gain little from BLAS's own threads, which meet after each product;
lanes meet once.  Off where threadpoolctl is not installed or BLAS has one thread.  After `algebra.py`, before
`kernels.py`.
"""
from __future__ import annotations

import os
from collections.abc import Callable
from contextvars import copy_context
from functools import lru_cache

WORTH_BYTES = 1 << 20          # less than this is done before another thread wakes up


@lru_cache(1)
def _blas():
    """The switch of NumPy's BLAS threads; None without threadpoolctl or where it knows no such BLAS."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
    found = [c for c in ThreadpoolController().lib_controllers if c.user_api == "blas"]
    return next((c for c in found if "numpy" in (c.filepath or "")), found[0] if found else None)


@lru_cache(1)
def _threads():
    from concurrent.futures import ThreadPoolExecutor  # an import of 20 ms that few programs need

    return ThreadPoolExecutor(os.cpu_count() or 1, "minigrad lane")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.cache_clear)         # a child has none of the threads


def in_lanes(work: Callable[[int, int], object], n: int, nbytes: int) -> list:
    """[work(0, k), work(k, …), …] for the n rows of a batch of `nbytes`: as many lanes as BLAS has threads.
    A lane is one part of fixed size, so results do not depend on who is faster."""
    blas = _blas() if nbytes >= WORTH_BYTES else None
    threads = blas.get_num_threads() if blas else 1
    lanes = min(threads or 1, n)
    if lanes < 2:
        return [work(0, n)]
    ends = [n * k // lanes for k in range(lanes + 1)]
    blas.set_num_threads(1)
    try:
        others = [_threads().submit(copy_context().run, work, a, b) for a, b in zip(ends[1:], ends[2:])]
        try:
            first = work(0, ends[1])
        finally:
            wait(others)                                     # they write to our memory, also after an error here
        return [first, *(f.result() for f in others)]
    finally:
        blas.set_num_threads(threads)


def wait(futures: list) -> None:
    """Until all have ended; in short waits, since Windows lets nobody interrupt a long one."""
    for f in futures:
        while not f.done():
            try:
                f.exception(0.1)
            except TimeoutError:
                continue


def summed(parts: list):
    """The sum over lanes, in their order."""
    return sum(parts[1:], parts[0])
