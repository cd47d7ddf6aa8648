"""Bytes, seconds, FLOP/s and bytes/s: plain floats in the code, text with a unit wherever they are read or printed.

GB is 1e9 bytes, GiB 2**30; a bit is an eighth of a byte.  First file of the story.
"""
from __future__ import annotations

import re
from math import isfinite

kB, MB, GB, TB = 1e3, 1e6, 1e9, 1e12
KiB, MiB, GiB, TiB = 2.0**10, 2.0**20, 2.0**30, 2.0**40
ms, us, ns = 1e-3, 1e-6, 1e-9
GFLOPs, TFLOPs = 1e9, 1e12                                    # per second: a device's speed

UNITS = ("B", "s", "FLOP", "FLOP/s", "B/s")
_SCALES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_SMALL = {"m": 1e-3, "u": 1e-6, "µ": 1e-6, "n": 1e-9, "p": 1e-12}
_BINARY = {"Ki": KiB, "Mi": MiB, "Gi": GiB, "Ti": TiB}
_WORDS = {"byte": "B", "bytes": "B", "sec": "s", "second": "s", "seconds": "s"}
_NUMBER = re.compile(r"\s*([-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(\S*)\s*$")


def parse(quantity: str | float, unit: str) -> float:
    """`"80 GB"`, `"1.5 us"`, `"200 Gbit/s"` as a float in `unit`, one of `UNITS`; a number is in `unit` already.

    >>> parse("200 Gbit/s", "B/s")
    25000000000.0
    """
    if unit not in UNITS:
        raise ValueError(f"parse: unit {unit!r} is none of {', '.join(UNITS)}")
    if not isinstance(quantity, str):
        return float(quantity)
    match = _NUMBER.match(quantity)
    if match is None:
        raise ValueError(f"parse: {quantity!r} is no number with a unit; write it like '25 GB/s'")
    number, name = float(match[1]), _WORDS.get(match[2], match[2]) or unit
    scale = _names(unit).get(name)
    if scale is None:
        raise ValueError(f"parse: {quantity!r} is not in {unit}: its unit {name!r} is none of "
                         f"{', '.join(n for n in _names(unit) if n)}")
    return number * scale


def _names(unit: str) -> dict[str, float]:
    """Every spelling of a unit, with what it is worth."""
    plain, per = unit.removesuffix("/s"), "/s" if unit.endswith("/s") else ""
    scales = {**_SCALES, **_SMALL} if unit == "s" else {**_SCALES, **_BINARY} if plain == "B" else _SCALES
    names = {f"{prefix}{plain}{per}": scale for prefix, scale in scales.items()}
    if plain == "B":
        names |= {f"{prefix}bit{per}": scale / 8 for prefix, scale in scales.items()}
    return names


def show(value: float, unit: str) -> str:
    """With three or four digits and the unit that fits: `show(2.5e10, "B/s")` is "25 GB/s".

    >>> show(0.00012, "s")
    '120 us'
    """
    if unit not in UNITS:
        raise ValueError(f"show: unit {unit!r} is none of {', '.join(UNITS)}")
    if not value or not isfinite(value):
        return f"{value:g} {unit}"
    prefixes = {"": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9} if unit == "s" else {
        "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
    fitting = [(scale, prefix) for prefix, scale in prefixes.items() if abs(value) >= 0.99995 * scale]
    scale, prefix = max(fitting, default=min((s, p) for p, s in prefixes.items()))
    number = value / scale
    return f"{number:.0f} {prefix}{unit}" if abs(number) >= 9999.5 else f"{number:.4g} {prefix}{unit}"


__all__ = ["UNITS", "GB", "GFLOPs", "GiB", "KiB", "MB", "MiB", "TB", "TFLOPs", "TiB", "kB", "ms", "ns", "parse", "show",
           "us"]
