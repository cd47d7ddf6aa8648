"""The strict simulated device: NumPy arrays that refuse what CuPy refuses: a CPU finds GPU bugs.

After `sim_allow.py`, before `device.py`.  A `SimArray` wraps a host array (a subclass would pass
for one: the very bug to catch); its `SimDevice` keeps the account.  Stricter than CuPy on purpose:
no float(x), bool(x), iteration, pickling, host index arrays or lists (CuPy copies or waits without
a word), and `empty` is full of NaN.  Not emulated: wrap-around of out-of-range indices (here
IndexError), the order of atomics and of writes with repeated indices, asynchronous errors, rounding
of allocations, scratch memory inside one NumPy call, strides of results.  They need `tests/gpu`.
"""
from __future__ import annotations

import math
import operator
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn
from weakref import ref

import numpy as np

from minigrad import sim_allow as allow
from minigrad.errors import ImplicitTransfer, SimOutOfMemory
from minigrad.sim_allow import SCALARS, lower, lower_index, lower_value, refuse, say

_ndarray, _asarray = np.ndarray, np.asarray
_PLAIN = frozenset((int, float, bool, str, type(None), type, np.dtype))


# -- the device and its account

class SimDevice:
    """One simulated device, "sim:<index>", and the account of its memory and traffic.

    `used`, `peak`, `limit` (None: unlimited; may be set), `h2d_bytes`, `d2h_bytes` are bytes;
    `allocations`, `h2d_count`, `d2h_count`, `syncs` are counts.  A buffer counts once, whatever
    views look at it, until the last of them dies.  A copy between devices is d2h there, h2d here.
    """

    __slots__ = ("index", "name", "limit", "used", "peak", "allocations", "h2d_bytes", "h2d_count",
                 "d2h_bytes", "d2h_count", "syncs", "_live", "_lock", "__weakref__")

    def __init__(self, index: int, limit_bytes: int | None = None) -> None:
        self.index, self.name, self.limit = index, f"sim:{index}", limit_bytes
        self.used = self.peak = self.allocations = self.syncs = 0
        self.h2d_bytes = self.h2d_count = self.d2h_bytes = self.d2h_count = 0
        self._live: dict[int, ref] = {}                # id of an owning buffer -> weak reference
        # Under it nothing is made that the collector tracks: it might free buffers right there.
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        limit = "no limit" if self.limit is None else f"limit {self.limit:,} B"
        return f"<{self.name}: {self.used:,} B used, peak {self.peak:,} B, {limit}>"

    def asarray(self, host: Any, dtype: Any = None) -> SimArray:
        """A counted copy here of a host array, list or number, or of another device's array."""
        if type(host) is not SimArray:
            x = _fresh(np.array(host, dtype), self)
        elif host.device is self:
            return host if dtype is None else host.astype(dtype, copy=False)
        else:
            x = _fresh(host._a.astype(host.dtype if dtype is None else dtype), self)
            host.device._count("d2h", host.nbytes)
        self._count("h2d", x.nbytes)
        return x

    def empty(self, shape: Any, dtype: Any = float) -> SimArray:
        """Memory with unusable content, NaN or the largest integer: reading it too early shows."""
        x = self._make(np.empty, shape, dtype)
        _poison(x._a)
        return x

    def zeros(self, shape: Any, dtype: Any = float) -> SimArray:
        return self._make(np.zeros, shape, dtype)

    def ones(self, shape: Any, dtype: Any = float) -> SimArray:
        return self._make(np.ones, shape, dtype)

    def full(self, shape: Any, value: Any, dtype: Any = None) -> SimArray:
        if not isinstance(value, SCALARS):
            refuse(f"{self.name} full", (value,))
        dtype = np.asarray(value).dtype if dtype is None else dtype
        return self._make(partial(np.full, fill_value=value), shape, dtype)

    def arange(self, *bounds: float, dtype: Any = None) -> SimArray:
        return _fresh(np.arange(*bounds, dtype=dtype), self)

    def _make(self, make: Callable[..., np.ndarray], shape: Any, dtype: Any) -> SimArray:
        count = int(shape if isinstance(shape, (int, np.integer)) else math.prod(shape))
        self._require(count * np.dtype(dtype).itemsize)    # before the host tries to allocate it
        return _fresh(make(shape, dtype=dtype), self)

    def reset_peak(self) -> None:
        """Measure the peak anew, from what is in use now."""
        self.peak = self.used

    def _require(self, nbytes: int) -> None:
        if self.limit is not None and self.used + nbytes > self.limit:
            raise SimOutOfMemory(
                f"{self.name}: out of memory: {nbytes:,} bytes wanted, {self.used:,} of "
                f"{self.limit:,} in use. Drop arrays, take a smaller batch, checkpoint, "
                "or raise the device's limit")

    def _charge(self, owner: np.ndarray) -> None:
        """Enter a buffer that owns its memory; it leaves by itself when its last view dies."""
        if owner.dtype.char not in allow.DTYPE_CHARS:
            allow.permit_dtype(self.name, owner.dtype)
        key, nbytes = id(owner), owner.nbytes
        entry = ref(owner, partial(self._release, key, nbytes))
        with self._lock:
            used = self.used + nbytes
            if self.limit is None or used <= self.limit:
                self.used = used
                if used > self.peak:
                    self.peak = used
                self.allocations += 1
                self._live[key] = entry
                return
        self._require(nbytes)

    def _release(self, key: int, nbytes: int, _: ref) -> None:
        with self._lock:
            self.used -= nbytes
            del self._live[key]

    def _count(self, way: str, nbytes: int) -> None:
        with self._lock:
            if way == "h2d":
                self.h2d_bytes, self.h2d_count = self.h2d_bytes + nbytes, self.h2d_count + 1
            elif way == "d2h":
                self.d2h_bytes, self.d2h_count = self.d2h_bytes + nbytes, self.d2h_count + 1
            else:
                self.syncs += 1


_devices: dict[int, SimDevice] = {}                    # as hardware, one set per process


def sim_device(index: int) -> SimDevice:
    """Simulated device number `index`: one object per process, made on first use, in any thread."""
    if not isinstance(index, int) or index < 0:
        raise ValueError(f"sim_device: expected a number from 0, got {index!r}")
    return _devices.get(index) or _devices.setdefault(index, SimDevice(index))


# -- between the wrapper and the host array inside

def _owner(a: np.ndarray) -> np.ndarray:
    base = a.base
    while base is not None:
        if isinstance(base, _ndarray):
            a = base
        base = getattr(base, "base", None)             # window views have a plain object in between
    return a


def _fresh(a: Any, device: SimDevice) -> SimArray:
    """Wrap a result that shares memory with nothing."""
    if type(a) is not _ndarray:
        a = _asarray(a)                                # a NumPy scalar becomes a 0-d array
    device._charge(a)
    return SimArray(a, device)


def _adopt(a: np.ndarray, device: SimDevice) -> SimArray:
    """Wrap a result that may be a view, or an array that is wrapped already."""
    owner = a if a.base is None else _owner(a)
    if id(owner) not in device._live:
        device._charge(owner)
    return SimArray(a, device)


def _lift(result: Any, device: SimDevice) -> Any:
    """Host results as device arrays; of several, all are charged or none."""
    if type(result) is _ndarray:
        return _adopt(result, device)
    if isinstance(result, (list, tuple)):
        arrays = [_asarray(a) for a in result]
        owners = {id(o): o.nbytes for o in map(_owner, arrays)}
        device._require(sum(n for key, n in owners.items() if key not in device._live))
        return (list if type(result) is list else tuple)([_adopt(a, device) for a in arrays])
    return None if result is None else _adopt(_asarray(result), device)


def _poison(a: np.ndarray) -> None:
    kind = a.dtype.kind
    a.fill(True if kind == "b" else np.iinfo(a.dtype).max if kind in "iu" else np.nan)


# -- NumPy's functions and methods

def _call(rule: allow.Rule, run: Callable, device: SimDevice, args: tuple, options: dict) -> Any:
    name, arrays, lacks, on_host, waits = rule
    for x in args[:arrays]:
        if isinstance(x, (list, tuple)) and not any([type(i) is SimArray for i in x]):
            refuse(name, args)
    if not options:
        result = run(*[x._a if type(x) is SimArray and x.device is device else
                       x if type(x) in _PLAIN else lower(x, device, name, args) for x in args])
        waits = waits or (name == "where" and len(args) == 1)
    else:
        if not lacks.isdisjoint(options):
            allow.refuse_keywords(name, lacks.intersection(options))
        values = (*args, *options.values())
        result = run(*[lower(x, device, name, values) for x in args],
                     **{k: x if type(x) in _PLAIN else lower(x, device, name, values)
                        for k, x in options.items()})
    if waits:
        device._count("sync", 0)
    out = options.get("out")
    return result if on_host else _lift(result, device) if out is None else out


def _method(name: str) -> Callable[..., Any]:
    rule, run = allow.METHOD_RULES[name], getattr(_ndarray, name)

    def method(self: SimArray, *args: Any, **options: Any) -> Any:
        return _call(rule, run, self.device, (self, *args), options)
    method.__name__ = name
    return method


def _inner(name: str) -> property:
    return property(operator.attrgetter(f"_a.{name}"))


def _refused(what: str) -> Callable[..., Any]:
    def method(self: SimArray, *args: Any, **options: Any) -> NoReturn:
        raise ImplicitTransfer(f"{what}: {say(self)} would go to the host unasked. Ask for it: "
                               "x.item() gives one number, x.get() an array (both are counted)")
    return method


def _scatter(name: str, ufunc: np.ufunc, x: Any, key: Any, *values: Any) -> None:
    """`ufunc.at(x, key, value)`: repeated indices count as often as they occur."""
    if type(x) is not SimArray:
        refuse(name, (x, *values))
    allow.permit_at(ufunc.__name__, x.dtype)
    ufunc.at(x._a, lower_index(key, x, name), *[lower_value(v, x, name) for v in values])


# -- operators: on the host arrays themselves, without the detour through __array_ufunc__

def _decline(name: str, self: SimArray, other: Any) -> Any:
    if isinstance(other, (SimArray, _ndarray, list, tuple)):
        refuse(name, (self, other))
    return NotImplemented                              # a Tensor, for one, has reflected operators


def _operators(run: Callable, update: Callable | None = None) -> tuple[Callable, ...]:
    """The methods of one operator: x op y, y op x, and x op= y where there is one."""
    name = run.__name__

    def forward(self: SimArray, other: Any) -> Any:
        device = self.device
        if type(other) is SimArray and other.device is device:
            return _fresh(run(self._a, other._a), device)
        if isinstance(other, SCALARS):
            return _fresh(run(self._a, other), device)
        return _decline(name, self, other)

    def reflected(self: SimArray, other: Any) -> Any:
        if isinstance(other, SCALARS):
            return _fresh(run(other, self._a), self.device)
        return _decline(name, self, other)

    def in_place(self: SimArray, other: Any) -> Any:
        update(self._a, lower_value(other, self, f"in-place {name}"))
        return self
    return (forward, reflected, in_place) if update else (forward, reflected)


def _unary(run: Callable[[Any], Any]) -> Callable[..., SimArray]:
    return lambda self: _fresh(run(self._a), self.device)


class SimArray(allow.DeviceArray):
    """An array on a `SimDevice`, made by it (`asarray`, `empty`, …), not by this constructor.

    Python numbers and NumPy scalars mix with it as in CuPy (NEP 50: `x * 2.0` keeps float32,
    `x * np.float64(2)` does not).  Host arrays, lists and arrays of other devices never do.
    Every result is a SimArray, a 0-d one too.
    """

    __slots__ = ("_a", "device", "__weakref__")
    __array_priority__ = 100

    def __init__(self, a: np.ndarray, device: SimDevice) -> None:
        self._a, self.device = a, device

    def __repr__(self) -> str:
        return f"SimArray({say(self)})"                # its values would be a hidden transfer

    def __len__(self) -> int:
        return len(self._a)

    shape, dtype, ndim, size = map(_inner, ("shape", "dtype", "ndim", "size"))
    nbytes, itemsize, strides, flags = map(_inner, ("nbytes", "itemsize", "strides", "flags"))
    storage = property(lambda self: _owner(self._a), doc="The owning buffer: one for all views.")
    base = property(lambda self: None if self._a.base is None else self.storage)
    T = property(lambda self: _adopt(self._a.T, self.device))
    mT = property(lambda self: _adopt(self._a.mT, self.device))
    real = property(lambda self: _adopt(self._a.real, self.device))
    imag = property(lambda self: _adopt(self._a.imag, self.device))

    # explicit transfers and copies
    def get(self) -> np.ndarray:
        """A host copy: counted as a transfer and a wait."""
        self.device._count("d2h", self._a.nbytes)
        self.device._count("sync", 0)
        return self._a.copy()

    def item(self) -> Any:
        """The one value as a Python number: counted as a wait."""
        value = self._a.item()
        self.device._count("sync", 0)
        return value

    def __deepcopy__(self, memo: dict | None = None) -> SimArray:
        return _fresh(self._a.copy(), self.device)
    __copy__ = __deepcopy__

    # implicit ones
    __array__, __iter__, __contains__ = map(_refused, ("numpy.asarray(x)", "iteration", "in"))
    __float__, __int__, __complex__ = map(_refused, ("float(x)", "int(x)", "complex(x)"))
    __bool__, __index__ = map(_refused, ("bool(x), if, and, or, not", "use as a Python index"))
    __reduce_ex__, __dlpack__, tolist = map(_refused, ("pickling", "from_dlpack(x)", "tolist()"))

    # NumPy's protocols
    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        name, device, out = allow.permit_ufunc(ufunc, method, options), self.device, ()
        if method == "at":
            return _scatter(name, ufunc, *inputs)
        if "out" in options:
            out = options["out"]
            options["out"] = tuple([lower_value(x, self, name) for x in out])
        host = [x._a if type(x) is SimArray and x.device is device else
                x if isinstance(x, SCALARS) else allow.stray(x, name, inputs + out) for x in inputs]
        result = (ufunc if method == "__call__" else getattr(ufunc, method))(*host, **options)
        if not out:
            return _lift(result, device)
        return out[0] if len(out) == 1 else out

    def __array_function__(self, function: Callable, types: Any, args: tuple, options: dict) -> Any:
        rule = allow.RULES.get(function) or allow.refuse_function(function)
        result = _call(rule, function, self.device, args, options)
        if rule.name == "empty_like":
            _poison(result._a)
        return result

    # indexing
    def __getitem__(self, key: Any) -> SimArray:
        index = lower_index(key, self, "x[index]")
        a = self._a[index]
        if type(a) is not _ndarray:                    # one element: a 0-d view, not a NumPy scalar
            a = self._a[(*index, ...) if type(index) is tuple else (index, ...)]
        x = _adopt(a, self.device)
        if index is not key and allow.has_mask(index):
            self.device._count("sync", 0)
        return x

    def __setitem__(self, key: Any, value: Any) -> None:
        value = lower_value(value, self, "x[index] = value")
        self._a[lower_index(key, self, "x[index] = value")] = value

    # operators; as in CuPy there is no @=
    __add__, __radd__, __iadd__ = _operators(operator.add, operator.iadd)
    __sub__, __rsub__, __isub__ = _operators(operator.sub, operator.isub)
    __mul__, __rmul__, __imul__ = _operators(operator.mul, operator.imul)
    __truediv__, __rtruediv__, __itruediv__ = _operators(operator.truediv, operator.itruediv)
    __floordiv__, __rfloordiv__, __ifloordiv__ = _operators(operator.floordiv, operator.ifloordiv)
    __mod__, __rmod__, __imod__ = _operators(operator.mod, operator.imod)
    __pow__, __rpow__, __ipow__ = _operators(operator.pow, operator.ipow)
    __and__, __rand__, __iand__ = _operators(operator.and_, operator.iand)
    __or__, __ror__, __ior__ = _operators(operator.or_, operator.ior)
    __xor__, __rxor__, __ixor__ = _operators(operator.xor, operator.ixor)
    __lshift__, __rlshift__, __ilshift__ = _operators(operator.lshift, operator.ilshift)
    __rshift__, __rrshift__, __irshift__ = _operators(operator.rshift, operator.irshift)
    __matmul__, __rmatmul__ = _operators(operator.matmul)
    __eq__, __ne__, __lt__, __le__, __gt__, __ge__ = [
        _operators(run)[0] for run in (operator.eq, operator.ne, operator.lt, operator.le,
                                       operator.gt, operator.ge)]
    __neg__, __pos__ = map(_unary, (operator.neg, operator.pos))
    __abs__, __invert__ = map(_unary, (operator.abs, operator.invert))

    # methods
    astype, view, copy, fill = map(_method, ("astype", "view", "copy", "fill"))
    reshape, transpose, swapaxes = map(_method, ("reshape", "transpose", "swapaxes"))
    squeeze, ravel, flatten, diagonal = map(_method, ("squeeze", "ravel", "flatten", "diagonal"))
    sum, mean, prod, var, std = map(_method, ("sum", "mean", "prod", "var", "std"))
    max, min, argmax, argmin = map(_method, ("max", "min", "argmax", "argmin"))
    any, all, cumsum, cumprod = map(_method, ("any", "all", "cumsum", "cumprod"))
    sort, argsort, take, nonzero = map(_method, ("sort", "argsort", "take", "nonzero"))
    dot, round, clip, repeat = map(_method, ("dot", "round", "clip", "repeat"))
    trace, conj, conjugate = map(_method, ("trace", "conj", "conjugate"))


def as_strided(x: SimArray, shape: tuple[int, ...], strides: tuple[int, ...]) -> SimArray:
    """`lib.stride_tricks.as_strided`, which CuPy has and NumPy does not dispatch."""
    return _adopt(np.lib.stride_tricks.as_strided(x._a, shape, strides), x.device)
