"""What the simulated device lets through: the names, keywords and dtypes that CuPy 14 has, the gate
that operands pass, and the words in which everything else is refused.

After `errors.py`, before `sim.py`.  Read off CuPy 14.2.0 (signatures in the wheel; its source for
the ufunc methods); `tests/minigrad/test_sim.py` compares the tables with CuPy if it is installed.
A name belongs here when it takes and gives device arrays and needs no Python callback.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, NoReturn

import numpy as np

from minigrad.errors import DeviceMismatch, ImplicitTransfer


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _each(text: str, value: Any) -> dict[str, Any]:
    return dict.fromkeys(text.split(), value)


class DeviceArray:
    """What `SimArray` is to this file, which comes before it."""

    __slots__ = ()


SCALARS = (int, float, complex, np.generic)  # a bool is an int; np.generic: NumPy's scalars
BASIC_INDEX = (int, slice, type(None), type(...), np.integer, np.bool_)
DTYPE_CHARS = _names("? b B h H i I l L q Q e f d F D")  # and bfloat16, known by name

# -- ufuncs

UFUNCS = _names("""
    add subtract multiply divide floor_divide remainder fmod divmod power float_power
    negative positive absolute fabs sign heaviside reciprocal square sqrt cbrt matmul
    exp exp2 expm1 log log2 log10 log1p logaddexp logaddexp2
    sin cos tan arcsin arccos arctan arctan2 hypot degrees radians deg2rad rad2deg
    sinh cosh tanh arcsinh arccosh arctanh
    bitwise_and bitwise_or bitwise_xor bitwise_count invert left_shift right_shift gcd lcm
    greater greater_equal less less_equal equal not_equal
    logical_and logical_or logical_xor logical_not maximum minimum fmax fmin
    isfinite isinf isnan signbit copysign nextafter ldexp frexp modf
    floor ceil trunc rint conjugate""")

COMPARISONS = _names("greater greater_equal less less_equal equal not_equal")
UFUNC_KEYWORDS = _names("out dtype casting")          # not where=, order=, subok=
REDUCE_KEYWORDS = _names("out dtype axis keepdims")   # not where=, initial=
UFUNC_METHODS = {
    "reduce": _names("add multiply"),
    "accumulate": _names("add multiply"),
    "reduceat": _names("add"),
    "at": _names("add maximum minimum"),
    "outer": UFUNCS - {"matmul"},
}
AT_DTYPE_CHARS = {                                    # what CUDA has an atomic operation for
    "add": _names("i I l L q Q e f d"),
    "maximum": _names("i I l L q Q f d"),
    "minimum": _names("i I l L q Q f d"),
}

# -- functions

FUNCTIONS = _names("""
    zeros_like ones_like full_like empty_like copy astype
    reshape ravel transpose permute_dims matrix_transpose swapaxes moveaxis rollaxis squeeze
    expand_dims broadcast_to broadcast_arrays atleast_1d atleast_2d atleast_3d
    flip fliplr flipud roll rot90
    concatenate concat stack vstack hstack dstack column_stack append tile repeat pad
    split array_split hsplit vsplit dsplit lib.stride_tricks.sliding_window_view
    where take take_along_axis compress extract diag diagonal diagflat tril triu trace meshgrid
    nonzero flatnonzero argwhere searchsorted digitize bincount unravel_index ravel_multi_index
    tril_indices_from triu_indices_from
    copyto put_along_axis put putmask place fill_diagonal
    sum prod mean var std max min amax amin ptp all any argmax argmin count_nonzero
    average median percentile quantile
    nansum nanprod nanmean nanvar nanstd nanmax nanmin nanargmax nanargmin nanmedian
    cumsum cumprod nancumsum nancumprod cumulative_sum cumulative_prod
    diff ediff1d gradient trapezoid
    sort argsort partition argpartition unique isin
    clip round around nan_to_num real imag angle sinc convolve correlate cov corrcoef
    allclose isclose array_equal array_equiv isreal iscomplex isneginf isposinf
    dot vdot inner outer tensordot einsum kron cross
    linalg.norm linalg.det linalg.slogdet linalg.inv linalg.pinv linalg.solve linalg.cholesky
    linalg.qr linalg.svd linalg.eigh linalg.eigvalsh linalg.matrix_power
    fft.fft fft.ifft fft.rfft fft.irfft fft.fft2 fft.ifft2 fft.rfft2 fft.irfft2
    fft.fftn fft.ifftn fft.rfftn fft.irfftn fft.fftshift fft.ifftshift
    shape ndim size result_type may_share_memory shares_memory iscomplexobj isrealobj""")

# These answer from shape and dtype alone, so they give plain Python values in CuPy too.
HOST_RESULT = _names(
    "shape ndim size result_type may_share_memory shares_memory iscomplexobj isrealobj")

# The shape of their result depends on values, so CuPy waits for the GPU (as it does for x[mask]).
SYNCHRONISES = _names("nonzero flatnonzero argwhere compress extract unique")

# How many leading arguments are arrays (1 where not listed): there a list is a hidden upload.
ARRAY_ARGUMENTS = {
    **_each("""full_like take take_along_axis compress extract searchsorted digitize append isin
        dot vdot inner outer tensordot kron cross convolve correlate allclose isclose array_equal
        array_equiv copyto linalg.solve""", 2),
    **_each("where clip put_along_axis put putmask place", 3),
    **_each("broadcast_arrays atleast_1d atleast_2d atleast_3d meshgrid", 64),
}

# Keywords of NumPy's that CuPy's do not take; some only because the parameter has another name.
LACKS = {
    **_each("sum prod max min amax amin nansum nanprod nanmax nanmin", _names("initial where")),
    **_each("var std nanvar nanstd", _names("where mean correction")),
    **_each("all any mean nanmean", _names("where")),
    **_each("zeros_like ones_like full_like empty_like astype", _names("device")),
    **_each("""fft.fft fft.ifft fft.rfft fft.irfft fft.fft2 fft.ifft2 fft.rfft2 fft.irfft2
        fft.fftn fft.ifftn fft.rfftn fft.irfftn""", _names("out")),
    **_each("concatenate concat stack", _names("arrays")),
    **_each("flip fliplr flipud rot90 cov", _names("m")),
    **_each("argpartition partition", _names("kind order")),
    **_each("argsort sort", _names("order stable")),
    **_each("percentile quantile", _names("weights")),
    **_each("broadcast_arrays broadcast_to copy", _names("subok")),
    **_each("reshape unravel_index", _names("shape")),
    **_each("extract take_along_axis", _names("arr")),
    "clip": _names("min max"), "take": _names("mode"), "unique": _names("sorted"),
    "ediff1d": _names("ary"), "isin": _names("kind"),
    "corrcoef": _names("x"), "count_nonzero": _names("keepdims"), "einsum": _names("out"),
    "linalg.matrix_power": _names("a"), "linalg.cholesky": _names("upper"),
    "linalg.svd": _names("hermitian"), "linalg.pinv": _names("hermitian rtol"),
}

# The methods of a device array, each with the keywords of NumPy's method that CuPy's lacks.
METHODS = {
    **_each("""reshape transpose swapaxes ravel flatten squeeze diagonal view copy repeat trace
        argmax argmin cumsum cumprod round clip dot fill nonzero conj conjugate""", frozenset()),
    **{name: LACKS[name] for name in "sum prod max min mean var std any all".split()},
    **{name: LACKS[name] for name in "take argsort sort".split()},
    "astype": _names("casting subok"),
}


class Rule(NamedTuple):
    """What the tables above say about one function or method."""

    name: str
    arrays: int               # so many leading arguments must not be host lists
    lacks: frozenset[str]
    on_host: bool
    waits: bool


def _rule(name: str, lacks: frozenset[str]) -> Rule:
    arrays = ARRAY_ARGUMENTS.get(name, 1)
    return Rule(name, arrays, lacks, name in HOST_RESULT, name in SYNCHRONISES)


def numpy_function(dotted: str) -> Any:
    """`np.linalg.norm` for "linalg.norm"; None where this NumPy has none."""
    found: Any = np
    for part in dotted.split("."):
        found = getattr(found, part, None)
    return found


RULES = {numpy_function(name): _rule(name, LACKS.get(name, frozenset()))
         for name in sorted(FUNCTIONS)}
METHOD_RULES = {name: _rule(name, lacks) for name, lacks in METHODS.items()}


# -- refusals

def permit_dtype(name: str, dtype: np.dtype) -> None:
    if dtype.char not in DTYPE_CHARS and dtype.name != "bfloat16":
        raise TypeError(f"{name}: a GPU has no dtype {dtype}; convert it on the host first")


def permit_at(short: str, dtype: np.dtype) -> None:
    if dtype.char not in AT_DTYPE_CHARS[short]:
        raise TypeError(f"{short}.at: CUDA has no atomic operation on {dtype}; "
                        "use float32, float64 or a wider integer")


def permit_ufunc(ufunc: np.ufunc, method: str, options: Iterable[str]) -> str:
    """The operation's name for messages; TypeError for what CuPy's ufuncs cannot do."""
    short = ufunc.__name__
    name = short if method == "__call__" else f"{short}.{method}"
    if short not in UFUNCS:
        raise TypeError(f"{name}: not in CuPy 14 (minigrad/sim_allow.py); run it on x.get()")
    if method != "__call__" and short not in UFUNC_METHODS[method]:
        has = ", ".join(sorted(UFUNC_METHODS[method]))
        raise TypeError(f"{name}: CuPy 14 has {method} for {has} only; use a function (np.max, …)")
    if options:
        plain = method in ("__call__", "outer")
        lacking = set(options) - (UFUNC_KEYWORDS if plain else REDUCE_KEYWORDS)
        if lacking:
            refuse_keywords(name, lacking)
    return name


def refuse_keywords(name: str, lacking: Iterable[str]) -> NoReturn:
    raise TypeError(f"{name}: CuPy's takes no keyword {', '.join(sorted(lacking))}: pass the "
                    "argument by position, or select with np.where in an operation of its own")


def refuse_function(function: Callable) -> NoReturn:
    raise TypeError(
        f"{function.__module__}.{function.__name__}: not among the functions that CuPy 14 has "
        "(minigrad/sim_allow.py). Build it from those, or run it on the host: x.get()")


def say(x: Any) -> str:
    """One operand in words: dtype[shape] and place."""
    if isinstance(x, DeviceArray):
        return f"{x.dtype}{list(x.shape)} on {x.device.name}"
    if isinstance(x, np.ndarray):
        return f"{x.dtype}{list(x.shape)} on the host"
    kind = type(x).__name__
    return f"a host {kind}" if isinstance(x, (list, tuple)) else f"{kind} {x!r}"


def _operands(values: Iterable[Any]) -> list[Any]:
    """The values, with a sequence that holds arrays replaced by those arrays."""
    found: list[Any] = []
    for x in values:
        inside = _operands(x) if isinstance(x, (list, tuple)) else []
        arrays = [i for i in inside if isinstance(i, (DeviceArray, np.ndarray))]
        found += arrays if arrays and len(arrays) == len(inside) else [*arrays, x]
    return found


def refuse(name: str, values: Iterable[Any]) -> NoReturn:
    """Raise what fits the operands: two devices, a host array or list, or a wrong kind of value."""
    found = list({id(x): x for x in _operands(values)}.values())
    said = " with ".join(map(say, found))
    devices = {x.device.name: x.device.index for x in found if isinstance(x, DeviceArray)}
    if len(devices) > 1:
        raise DeviceMismatch(f"{name}: {said}: two devices in one operation. "
                             f"Move one first: sim_device({min(devices.values())}).asarray(x)")
    if any(isinstance(x, (np.ndarray, list, tuple)) for x in found):
        raise ImplicitTransfer(
            f"{name}: {said}. Nothing moves unasked: upload the host value with the device's "
            f"asarray(value) ({next(iter(devices), 'sim')}), or bring the array down with x.get()")
    raise TypeError(f"{name}: no device operation takes {said}")


# -- the gate: operands go in as the user gave them and come out as host arrays, or not at all

def lower(x: Any, device: Any, name: str, values: Any) -> Any:
    """An argument's host side; refuses other places, and lists of arrays and other things."""
    if isinstance(x, DeviceArray):
        return x._a if x.device is device else refuse(name, values)
    if isinstance(x, (tuple, list)):
        host = [i._a for i in x if isinstance(i, DeviceArray) and i.device is device]
        if len(host) < len(x):
            if any([isinstance(i, (DeviceArray, np.ndarray)) for i in x]):
                refuse(name, x)
            host = [lower(i, device, name, values) if type(i) in (tuple, list) else i for i in x]
        return host if isinstance(x, list) else tuple(host)
    return refuse(name, values) if isinstance(x, np.ndarray) else x


def lower_value(x: Any, beside: Any, name: str) -> Any:
    """The host side of an array or number that goes into the device array `beside`."""
    if isinstance(x, DeviceArray) and x.device is beside.device:
        return x._a
    return x if isinstance(x, SCALARS) else refuse(name, (beside, x))


def lower_index(key: Any, x: Any, name: str) -> Any:
    """The host side of an index into `x`."""
    if type(key) is tuple:
        return tuple([k if type(k) is slice else lower_index(k, x, name) for k in key])
    if isinstance(key, DeviceArray):
        return key._a if key.device is x.device else refuse(name, (x, key))
    return key if isinstance(key, BASIC_INDEX) else refuse(name, (x, key))


def has_mask(index: Any) -> bool:
    """Whether a lowered index holds a boolean array, so that its result has a size to wait for."""
    keys = index if type(index) is tuple else (index,)
    return any([type(k) is np.ndarray and k.dtype.kind == "b" for k in keys])


def stray(x: Any, name: str, values: Any) -> Any:
    """`np.float64(2) < x`: NumPy hands its scalar over as a 0-d array; CuPy lets that pass too."""
    if isinstance(x, np.ndarray) and x.ndim == 0 and name in COMPARISONS:
        return x[()]
    return refuse(name, values)
