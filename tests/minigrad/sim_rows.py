"""Rows of Python text that run on host arrays, on device arrays, and on every mix of them.

For `test_sim.py` and `test_sim_numpy.py`; whatever a row names is imported here.
"""
import copy  # noqa: F401
import operator  # noqa: F401
import pickle  # noqa: F401
from functools import lru_cache

import numpy as np
import pytest

from minigrad.errors import DeviceMismatch, ImplicitTransfer
from minigrad.sim import SimArray, SimDevice, as_strided  # noqa: F401

HERE, THERE = SimDevice(0), SimDevice(1)
windows = np.lib.stride_tricks.sliding_window_view
sides = pytest.mark.parametrize("elsewhere, error", [("host", ImplicitTransfer),
                                                     ("there", DeviceMismatch)])


def rng():
    return np.random.default_rng(0)


def random_arrays():
    r = np.random.default_rng(7)
    a = r.standard_normal((3, 3))
    return {
        "x": r.standard_normal((3, 4)).astype("f4"), "y": r.standard_normal((3, 4)).astype("f4"),
        "v": r.standard_normal(4), "w": r.standard_normal(4), "t": r.standard_normal((2, 4, 3)),
        "i": r.integers(0, 3, (3, 4)), "k": r.integers(0, 3, 5), "b": r.random((3, 4)) > 0.5,
        "m": r.random(4) > 0.3, "z": r.standard_normal(4) + 1j, "up": np.arange(4.0),
        "spd": a @ a.T + 3 * np.eye(3), "sym": a + a.T, "col": r.standard_normal((3, 1)),
        "s": np.array(1.5, "f4")}


ARRAYS = random_arrays()


def arrays():
    return {name: a.copy() for name, a in ARRAYS.items()}


def on(device):
    return {name: device.asarray(a) for name, a in arrays().items()}


@lru_cache(None)
def compiled(text):
    return compile(text, text, "eval")


def run(text, values, f=None):
    with np.errstate(all="ignore"):
        return eval(compiled(text), {**globals(), **values, "f": f})


def names_in(text):
    return [name for name in compiled(text).co_names if name in ARRAYS]


def account(device):
    return {name: getattr(device, name) for name in SimDevice.__slots__ if name[0] != "_"}


def check_same(host, device):
    """NumPy's values, dtype and shape, in a device array or a sequence of them."""
    if isinstance(host, (tuple, list)):
        assert isinstance(device, (tuple, list)) and len(device) == len(host)
        for h, d in zip(host, device):
            check_same(h, d)
    elif host is None:
        assert device is None
    else:
        assert type(device) is SimArray and device.device is HERE
        assert (device.dtype, device.shape) == (np.asarray(host).dtype, np.shape(host))
        np.testing.assert_array_equal(device.get(), host)


def rows(text):
    """Rows separated by semicolons and line ends."""
    return [row.strip() for line in text.splitlines() for row in line.split(";") if row.strip()]


def table(text):
    """Rows "call: names" as (name, call)."""
    pairs = [line.rsplit(":", 1) for line in text.strip().splitlines()]
    return [(name, call.strip()) for call, names in pairs for name in names.split()]
