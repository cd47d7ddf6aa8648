"""The algebra `o`: what an op's `forward` and gradient rules may say, as one object per (device, dtype).

A rule is written once, with Python operators and these names, and is read on raw arrays (here), on Tensors
(`ops/traced.py`: second derivatives, observers) and on symbols (`ops/symbols.py`: generated source).  `zero`, `one` and
`lit(v)` are typed 0-d arrays: a bare Python number costs 250 ns more per use and would compute in float64 on symbols.
After `device.py`, before `tensor.py`.
"""
from __future__ import annotations

import contextvars
import math
from functools import lru_cache, partial

import numpy as np

from minigrad import transcendental
from minigrad.device import CPU, META, Device, backend_of, device_of
from minigrad.dtype import float32, is_float
from minigrad.indexing import Indexing

UFUNCS = {
    "exp": "exp", "log": "log", "log1p": "log1p", "expm1": "expm1", "sqrt": "sqrt", "tanh": "tanh", "sin": "sin",
    "cos": "cos", "abs": "absolute", "sign": "sign", "floor": "floor", "maximum": "maximum", "minimum": "minimum",
    "isnan": "isnan", "logical_not": "logical_not", "isfinite": "isfinite", "isinf": "isinf",
    "tan": "tan", "asin": "arcsin", "acos": "arccos", "atan": "arctan", "atan2": "arctan2", "hypot": "hypot",
    "sinh": "sinh", "cosh": "cosh", "asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh",
    "exp2": "exp2", "log2": "log2", "log10": "log10", "logaddexp": "logaddexp",
    "ceil": "ceil", "rint": "rint", "trunc": "trunc",
    "remainder": "remainder", "fmod": "fmod", "floor_divide": "floor_divide",
    "bitwise_and": "bitwise_and", "bitwise_or": "bitwise_or", "bitwise_xor": "bitwise_xor", "bitwise_not": "invert",
    "left_shift": "left_shift", "right_shift": "right_shift",
    "copysign": "copysign", "signbit": "signbit", "fmax": "fmax", "fmin": "fmin", "logaddexp2": "logaddexp2",
    "gcd": "gcd", "lcm": "lcm", "nextafter": "nextafter", "heaviside": "heaviside",
}
SPECIAL = tuple(getattr(transcendental, name) for name in transcendental.__all__)


class Arrays(Indexing):
    """Raw arrays of one device and one dtype."""

    eager = True

    def __init__(self, device: Device, dtype: np.dtype) -> None:
        self.device, self.dtype, self.backend = device, dtype, backend_of(device)
        self.floating = is_float(dtype)
        self.narrow = self.floating and dtype.itemsize == 2     # ops of precision "high" compute in float32
        self.fast = self.floating and device is CPU and not self.narrow         # the flattened doors may be used
        self.xp = xp = self.backend.xp()
        self._drawn = np.float64 if dtype == np.float64 else np.float32
        self.lit = lru_cache(4096)(lambda v: self.upload(np.array(v, dtype)))
        self.zero, self.one = self.lit(0), self.lit(1)
        self.infinity = self.lit(math.inf) if self.floating else None
        for name, ufunc in UFUNCS.items():
            setattr(self, name, getattr(xp, ufunc))
        for function in SPECIAL:
            setattr(self, function.__name__, partial(function, xp))
        self.where = xp.where
        if self.narrow and device is CPU:                       # sums of products are in float32, and BLAS is faster
            setattr(self, "matmul", lambda a, b: (a.astype(np.float32) @ b.astype(np.float32)).astype(dtype))  # noqa: B010

    def __repr__(self) -> str:
        return f"{self.device}/{self.dtype}"

    @property
    def wide(self):
        """The algebra in which a 16-bit float is computed where rounding would add up."""
        return algebra(self.device, float32) if self.narrow else self

    # -- moving and making
    def upload(self, host: np.ndarray):
        """A host array as a new array of this device; on the host itself, the same array."""
        return host if self.device is CPU else self.backend.put(self.device.index, host)

    def host(self, x) -> np.ndarray:
        """Values on the host: the array itself where it lives there, else a counted copy."""
        return x if self.device is CPU else self.backend.get(x)

    def storage(self, x):
        return self.backend.storage(x)

    def full(self, shape, value):
        out = self.backend.empty(self.device.index, shape, self.dtype)
        out[...] = value
        return out

    def zeros(self, shape, dtype):
        return np.zeros(shape, dtype) if self.device is CPU else algebra(self.device, dtype).full(shape, 0)

    def copy(self, x):
        """The values of `x` in new memory, laid out as they lie."""
        return x.copy() if self.device is not CPU else np.array(x, order="K")       # a 0-d result may be a NumPy scalar

    def dense_copy(self, x):
        """The values of `x` in new memory, row-major."""
        return x.copy()

    def arange(self, n: int):
        """0 … n-1 as int64 on this device."""
        return np.arange(n) if self.device is CPU else algebra(self.device, np.dtype(np.int64)).upload(np.arange(n))

    def cast(self, x, dtype: np.dtype):
        return x.astype(dtype)

    # -- arithmetic
    def add_(self, y, b):
        """y + b where `y` is a fresh buffer of ours: overwritten when it has room for the result."""
        if y.__class__ is np.ndarray and y.ndim >= b.ndim:
            return np.add(y, b, out=y)
        return y + b

    def positive(self, x):
        """max(x, 0).  On large host arrays by clip, whose loop is vectorised; that of maximum with a number is not."""
        if x.size < 4096 or self.device is not CPU:
            return self.maximum(x, self.zero)
        return np.clip(x, self.zero, self.infinity)

    def sigmoid(self, x):
        """1 / (1 + exp(-x)): where the exponential overflows the result is 0, without a warning."""
        xp = self.xp
        y = xp.negative(x)
        if self.device is not CPU or y.__class__ is not np.ndarray:         # CuPy never warns
            with np.errstate(over="ignore"):
                return self.one / (xp.exp(y) + self.one)
        try:
            _overflowing(np.exp, y, y)
        except RuntimeError:                                 # another thread is in there
            with np.errstate(over="ignore"):
                np.exp(y, y)
        np.add(y, self.one, y)
        return np.divide(self.one, y, y)

    def sum(self, x, axis=None, keepdims=False):
        if self.narrow:
            return x.sum(axis, float32, keepdims=keepdims).astype(self.dtype)
        return (
            self.xp.add.reduce(x, axis, None, None, keepdims) if self.device is CPU else x.sum(axis, keepdims=keepdims)
        )

    def prod(self, x, axis=None, keepdims=False):
        return x.prod(axis, keepdims=keepdims)

    def max(self, x, axis=None, keepdims=False):
        return x.max(axis, keepdims=keepdims)

    def min(self, x, axis=None, keepdims=False):
        return x.min(axis, keepdims=keepdims)

    def argmax(self, x, axis=None, keepdims=False):
        return self.xp.argmax(x, axis, keepdims=keepdims)

    def argmin(self, x, axis=None, keepdims=False):
        return self.xp.argmin(x, axis, keepdims=keepdims)

    def cumsum(self, x, axis):
        return x.cumsum(axis, dtype=x.dtype)

    def cumprod(self, x, axis):
        return x.cumprod(axis, dtype=x.dtype)

    def recurrence(self, a, b, axis):
        """y[k] = a[k] y[k-1] + b[k] along an axis, from y[-1] = 0."""
        y = self.copy(b)
        lead = (slice(None),) * axis
        for k in range(1, b.shape[axis]):
            y[(*lead, k)] += a[(*lead, k)] * y[(*lead, k - 1)]
        return y

    def argsort(self, x, axis):
        """The stable order along an axis; NaN comes last."""
        return self.xp.argsort(x, axis, "stable")

    def matmul(self, a, b):
        """a @ b; a stack of matrices times one matrix is one product of all their rows, which BLAS does faster."""
        if a.__class__ is np.ndarray and b.ndim == 2 < a.ndim and a.size and a.flags.c_contiguous:
            return (a.reshape(-1, a.shape[-1]) @ b).reshape(*a.shape[:-1], b.shape[-1])
        return a @ b

    # -- of matrices in the last two axes
    def inv(self, x):
        return self.xp.linalg.inv(x)

    def det(self, x):
        return self.xp.linalg.det(x)

    def logabsdet(self, x):
        return self.xp.linalg.slogdet(x)[1]

    def cholesky(self, x):
        return self.xp.linalg.cholesky(x)

    def eigh(self, x):
        return tuple(self.xp.linalg.eigh(x))

    def solve(self, a, b):
        return self.xp.linalg.solve(a, b)

    def qr(self, x, complete: bool):
        return tuple(self.xp.linalg.qr(x, "complete" if complete else "reduced"))

    def matrix_exp(self, x):
        size = float(self.host(self.xp.absolute(x).sum(-1).max())) if x.size else 0.0      # a device waits for it
        squarings = max(0, math.ceil(math.log2(size)) + 1) if 0 < size < 1e300 else 0
        return transcendental.matrix_exp(x, self.constant(np.eye(x.shape[-1])), squarings)

    # -- shapes: views wherever NumPy gives one
    def reshape(self, x, shape):
        return x.reshape(shape)

    def transpose(self, x, axes):
        return x.transpose(axes)

    def mT(self, x):
        return x.swapaxes(-1, -2)

    def broadcast_to(self, x, shape):
        return self.xp.broadcast_to(x, shape)

    def spread(self, x, shape):
        """`broadcast_to` as a copy where that is cheaper than NumPy's view, which costs as much as 8,000 elements."""
        if self.device is not CPU or math.prod(shape) > 8192:
            return self.xp.broadcast_to(x, shape)
        y = np.empty(shape, x.dtype)
        y[...] = x
        return y

    def windows(self, x, kernel, stride, dilation):
        """(…, H, W) as (…, OH, OW, KH, KW): a view of every window, read-only where they overlap."""
        span = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilation))
        axes = tuple(range(-len(kernel), 0))
        apart = self.device.type != "cuda" and all(k <= s for k, s in zip(span, stride))  # CuPy has no such flag
        view = self.xp.lib.stride_tricks.sliding_window_view(x, span, axes, **{"writeable": True} if apart else {})
        return view[(..., *(slice(None, None, s) for s in stride), *(slice(None, None, d) for d in dilation))]

    def fold(self, w, shape, stride, dilation):
        """The adjoint of `windows`: every window added back to its place in an array of `shape`."""
        out = algebra(self.device, w.dtype).full(shape, 0)
        n = len(stride)
        steps, kernel = w.shape[-2 * n:-n], w.shape[-n:]
        for at in np.ndindex(*kernel):
            place = tuple(slice(a * d, a * d + s * (m - 1) + 1, s) for a, d, s, m in zip(at, dilation, stride, steps))
            out[(..., *place)] += w[(..., *at)]
        return out

    def diagonal(self, x, offset, axis1, axis2):
        """The diagonal of two axes as a last axis: a view, which may be written where `x` may."""
        view = x.diagonal(offset, axis1, axis2)
        if self.device.type != "cuda":                                    # CuPy's may always
            view.flags.writeable = x.flags.writeable
        return view

    def on_diagonal(self, g, shape, offset, axis1, axis2):
        """The adjoint of `diagonal`: `g` on the diagonal of zeros."""
        return self.put_diagonal(algebra(self.device, g.dtype).full(shape, 0), g, offset, axis1, axis2)

    def put_diagonal(self, x, value, offset, axis1, axis2):
        """A copy of `x` with `value` on its diagonal."""
        out = self.copy(x)
        self.diagonal(out, offset, axis1, axis2)[...] = value
        return out

    def tril(self, x, k):
        return self.xp.tril(x, k)

    def triu(self, x, k):
        return self.xp.triu(x, k)

    def constant(self, host):
        """An array that a rule works out from shapes alone, in this dtype."""
        return self.upload(np.asarray(host, self.dtype))

    def pad(self, x, widths, value=0.0):
        return self.xp.pad(x, widths, constant_values=value)

    def cat(self, xs, axis):
        return self.xp.concatenate(xs, axis)

    def stack(self, xs, axis):
        if axis == 0 and self.device is CPU:
            return np.array(xs)                              # a quarter of the time of np.stack
        return self.xp.stack(xs, axis)

    # -- random: `key` is a host array [seed, offset]; the same key draws the same numbers on every device
    def normal(self, key, shape):
        return self.upload(draw(key).standard_normal(shape, self._drawn).astype(self.dtype))

    def uniform(self, key, shape):
        return self.upload(draw(key).random(shape, self._drawn).astype(self.dtype))

    def bernoulli(self, key, shape, keep, like):
        """Ones with probability `keep`, else zeros."""
        return self.upload((draw(key).random(shape, np.float32) < keep).astype(self.dtype))


_quiet = contextvars.Context()                               # NumPy keeps in it what to do when a number overflows
_quiet.run(np.seterr, over="ignore")
_overflowing = _quiet.run                                    # a twentieth of the time of `with np.errstate`


def draw(key: np.ndarray) -> np.random.Generator:
    """The Philox generator of one draw.  Each offset owns 2**64 counter blocks, so draws never overlap (Salmon et al.
    2011)."""
    seed, offset = int(key[0]), int(key[1])
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, offset, 0, 0]))


class Shapes:
    """The algebra of `meta`: nothing runs, an op's `infer` is asked instead."""

    eager = fast = narrow = False
    device = META

    def __init__(self, dtype: np.dtype) -> None:
        self.dtype, self.floating = dtype, is_float(dtype)

    def __repr__(self) -> str:
        return f"meta/{self.dtype}"


@lru_cache(None)
def algebra(device: Device, dtype: np.dtype):
    """The algebra of a device and a dtype: one object, so `a.o is b.o` compares both at once."""
    return Shapes(dtype) if device is META else Arrays(device, dtype)


F32 = algebra(CPU, float32)
_cpu = lru_cache(None)(lambda dtype: algebra(CPU, dtype))


def algebra_of(array):
    """The algebra that an array belongs to."""
    if array.__class__ is np.ndarray:
        return F32 if array.dtype is float32 else _cpu(array.dtype)
    return algebra(device_of(array), array.dtype)


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    return np.broadcast_shapes(*shapes)


def reduced(shape: tuple[int, ...], axis: tuple[int, ...] | None, keepdims: bool) -> tuple[int, ...]:
    """The shape after reducing `axis` (None: every axis)."""
    gone = range(len(shape)) if axis is None else axis
    return tuple(1 if i in gone else n for i, n in enumerate(shape) if keepdims or i not in gone)


def size_of(shape: tuple[int, ...]) -> int:
    return math.prod(shape)
