"""The roofline of this processor, with each op of the catalogue on it (Williams, Waterman & Patterson 2009).

Work of so many floating-point operations and so many bytes takes at least max(flops / peak, bytes / bandwidth): left
of the ridge, at peak / bandwidth operations a byte, memory sets the pace, right of it arithmetic.  Both are measured:
the peak by a matrix product, the bandwidth by STREAM's triad.  After `locality.py`.
"""
from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import inf, prod
from typing import Any

import numpy as np

from minigrad.algebra import algebra_of
from minigrad.arguments import of_kind
from minigrad.aval import aval_of
from minigrad.dtype import is_float
from minigrad.memory.hierarchy import walks
from minigrad.memory.hierarchy.system import (
    best_s,
    binary_size,
    blas_limited,
    blas_threads,
    bundle,
    caches,
    processor,
    processors,
    shown,
)
from minigrad.ops.op import CATALOGUE, Elementwise, Op
from minigrad.ops.samples import make

ROUNDS = 8                              # of which the best is the roof


@dataclass(frozen=True)
class Roof:
    """Of so many threads: GFLOP/s and GB/s at most, as measured."""

    name: str
    threads: int
    flops_per_s: float
    bandwidth_Bps: float

    @property
    def ridge(self) -> float:
        """The intensity, in operations a byte, from which on arithmetic sets the pace."""
        return self.flops_per_s / self.bandwidth_Bps

    def reach(self, intensity: float) -> float:
        """Operations a second that are possible at most."""
        return min(self.flops_per_s, intensity * self.bandwidth_Bps)

    def least_s(self, flops: float, nbytes: float) -> float:
        return max(flops / self.flops_per_s, nbytes / self.bandwidth_Bps)


@dataclass(frozen=True)
class OpPoint:
    """One forward of an op: what it counts for itself, and how long it took."""

    name: str
    inputs: str
    flops: int
    nbytes: int
    seconds: float

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return self.flops / self.nbytes if self.nbytes else inf

    @property
    def flops_per_s(self) -> float:
        return self.flops / self.seconds

    def share(self, roof: Roof) -> float:
        """Of the roof: the least time over the time.  Above 1 for data that stayed in a cache, and for a view."""
        return roof.least_s(self.flops, self.nbytes) / self.seconds

    def bound(self, roof: Roof) -> str:
        return "arithmetic" if self.intensity >= roof.ridge else "memory"


@dataclass(frozen=True)
class Roofline:
    """`roofs`: one thread, all threads if these are more, both with memory's bandwidth; then all with the bandwidth of
    data as large as the ops': perhaps a cache holds them.  `small`: ops whose samples could not be made larger, so that
    calling them is most of their time; `views` move nothing."""

    roofs: tuple[Roof, ...]
    points: tuple[OpPoint, ...]
    small: tuple[OpPoint, ...]
    views: tuple[OpPoint, ...]
    processor: str

    @property
    def roof(self) -> Roof:
        """The last, to which the shares refer."""
        return self.roofs[-1]

    _repr_mimebundle_ = bundle

    def __str__(self) -> str:
        rows = [f"{self.processor}; float32"]
        rows += [f"roof, {r.name:28}{r.flops_per_s / 1e9:8.3g} GFLOP/s{r.bandwidth_Bps / 1e9:8.3g} GB/s   ridge at "
                 f"{r.ridge:.3g} flop/B" for r in self.roofs]
        rows += [f"{'op':22}{'flop/B':>8}{'GFLOP/s':>10}{'GB/s':>8}{'ms':>9}{'of roof':>9}  bound by"]
        rows += [f"{p.name:22}{p.intensity:8.3g}{p.flops_per_s / 1e9:10.3g}{p.nbytes / p.seconds / 1e9:8.3g}"
                 f"{1e3 * p.seconds:9.3g}{p.share(self.roof):9.0%}  {p.bound(self.roof)}"
                 for p in sorted(self.points, key=lambda p: -p.intensity)]
        for what, some in (("too small to be placed", self.small), ("views, which move nothing", self.views)):
            rows += [f"{what}: {', '.join(p.name for p in some)}"] * bool(some)
        return "\n".join(rows)

    __repr__ = __str__


def roofline(ops: Iterable[type[Op]] | None = None, *, quick: bool = False, progress: bool = True) -> Roofline:
    """Measure the roofs, then each op (all of the catalogue) at a size of some megabytes; about half a minute.

    `quick`: tiny sizes and few ops, for tests.  Interrupted, it leaves the threads of BLAS as they were."""
    if ops is not None:
        ops = [_an_op(each) for each in of_kind("roofline", "ops", ops, Iterable)]
    chosen = list(CATALOGUE[:8] if quick else CATALOGUE) if ops is None else list(ops)
    most = 2**16 if quick else 2**24
    points = [p for cls in shown(chosen, "ops", progress) if (p := place(cls, most)) is not None]
    views = tuple(p for p in points if not p.nbytes)
    large = tuple(p for p in points if 256 * p.nbytes >= most)
    small = tuple(p for p in points if p.nbytes and p not in large)
    return Roofline(roofs(most, quick=quick), large, small, views, processor())


def _an_op(cls: Any) -> type[Op]:
    if not (isinstance(cls, type) and issubclass(cls, Op)):
        raise TypeError(f"roofline: ops are classes of the catalogue, as minigrad.ops.elementwise.Add, got {cls!r}")
    return cls


# ---- the roofs -----------------------------------------------------------------------------------
def roofs(ops_nbytes: int = 2**24, *, quick: bool = False) -> tuple[Roof, ...]:
    """Measured now; `ops_nbytes`: of the data of an op, for the last roof."""
    far = 2**18 if quick else 4 * max([2**25, *(c.nbytes for c in caches())])
    n, every = 64 if quick else 1024, blas_threads() or 1
    with blas_limited(1):
        peaks = {1: peak_flops_per_s(n)}
    names = {1: "one thread, memory"}
    if every > 1:
        peaks[every], names[every] = peak_flops_per_s(n), f"{every} threads, memory"
    found = [Roof(name, k, peaks[k], bandwidth_Bps(far, min(k, processors()))) for k, name in names.items()]
    near = max(bandwidth_Bps(ops_nbytes, k) for k in {1, min(every, processors())})
    name = f"{every} thread{'s' * (every > 1)}, {binary_size(ops_nbytes)}"
    return (*found, Roof(name, every, max(peaks.values()), near))


def peak_flops_per_s(n: int = 1024) -> float:
    """Of a product of n × n float32, with the threads that BLAS has now."""
    a = np.ones((n, n), np.float32)
    c = np.empty_like(a)
    return 2 * n**3 / best_s(lambda: np.matmul(a, a, out=c), ROUNDS)


def bandwidth_Bps(nbytes: int, threads: int = 1) -> float:
    """Of the triad a = b + s · c over three float32 arrays of `nbytes` together: those bytes over the time.  What the
    cache fetches of `a` before it is written is not counted, as in STREAM."""
    n = max(threads, nbytes // 12)
    a, b, c = (np.ones(n, np.float32) for _ in range(3))
    loops, ends = walks.compiled(), [n * k // threads for k in range(threads + 1)]
    one, passes = (walks.triad_numpy, 5 / 3) if loops is None else (loops.triad, 1.0)
    parts = [(a[i:j], b[i:j], c[i:j], np.float32(3)) for i, j in zip(ends, ends[1:])]
    if threads == 1:
        return 12 * n * passes / best_s(lambda: one(*parts[0]), ROUNDS)
    with ThreadPoolExecutor(threads) as pool:
        return 12 * n * passes / best_s(lambda: list(pool.map(lambda part: one(*part), parts)), ROUNDS)


# ---- the ops -------------------------------------------------------------------------------------
IMAGES, TOKENS = "normal(16,16,32,32)", "normal(1024,512)"
SIZES: dict[str, tuple[tuple, tuple[str, ...]]] = {         # (fields, inputs) of ops that do not just grow
    "MatMul": ((), ("normal(512,512)", "normal(512,512)")),
    "Linear": ((), (TOKENS, "normal(512,512)", "normal(512)")),
    "LinearNoBias": ((), (TOKENS, "normal(512,512)")),
    "Conv2d": (((1, 1), (1, 1), (1, 1), 1), (IMAGES, "normal(32,16,3,3)")),
    "ConvTranspose2d": (((1, 1), (1, 1), (0, 0), (1, 1), 1), (IMAGES, "normal(16,16,3,3)")),
    "MaxPool2d": (((2, 2), (2, 2), (0, 0), (1, 1)), ("normal(16,16,64,64)",)),
    "AvgPool": (((2, 2), (2, 2), (0, 0), False, True, None), ("normal(16,16,64,64)",)),
    "Softmax": ((1,), (TOKENS,)),
    "LogSoftmax": ((1,), (TOKENS,)),
    "CrossEntropy": ((True,), (TOKENS, "index(1024)<512")),
    "LayerNorm": ((1e-5,), (TOKENS, "normal(512)", "normal(512)")),
    "RMSNorm": ((1e-6,), (TOKENS, "normal(512)")),
    "BatchNorm": ((1e-5,), ("normal(16,16,64,64)", "normal(16)", "normal(16)")),
    "Attention": ((0.125, True), ("normal(8,8,128,64)",) * 3),
    "Embed": ((-1, False, False), ("normal(10000,64)", "index(64,128)<10000")),
    "Normal": (((1000, 1000),), ("normal()", "key()")),
    "Uniform": (((1000, 1000),), ("normal()", "key()")),
    "Bernoulli": (((1000, 1000), 0.5), ("normal()", "key()")),
    "LSTMStep": ((), ("normal(512,1024)", "normal(512,256)")),
    "GRUStep": ((), ("normal(512,768)", "normal(512,768)", "normal(512,256)")),
    "Reshape": (((500, 2000),), ("normal(1000,1000)",)),
    "Permute": (((1, 0),), ("normal(1000,1000)",)),
    "Expand": (((1000, 1000),), ("normal(1,1000)",)),
}


def place(cls: type[Op], most_nbytes: int = 2**24, enough_s: float = 1e-3) -> OpPoint | None:
    """The op at the largest size of up to `most_nbytes`: its sample with every side made so many times as long, or,
    where its fields fix sizes, with a larger batch.  None for an op of which no sample runs."""
    best: OpPoint | None = None
    if cls.__name__ in SIZES and most_nbytes >= 2**24:
        fields, texts = SIZES[cls.__name__]
        return _measured(cls.of(*fields), texts, best)
    sample = _plainest(cls)
    for batch_only in (False, True):
        times = 1
        while best is None or best.seconds < enough_s:
            texts = tuple(grown(text, times, sample.inputs[0] if batch_only else "") for text in sample.inputs)
            if 4 * sum(map(_size, texts)) > most_nbytes or (times > 1 and texts == sample.inputs):
                break
            found = _measured(sample.op, texts, best)
            if found is None or found is best:
                break
            best, times = found, 4 * times
        if times > 4:                                        # it could grow
            break
    return best


def _plainest(cls: type[Op]) -> Any:
    """The sample to be made larger: nothing broadcast, nothing empty, with as many axes as there are."""
    def dislikes(sample: Any) -> tuple:
        shapes = [_shape(text) for text in sample.inputs]
        odd = sum(text.endswith(("T", "]")) for text in sample.inputs)
        spread = issubclass(cls, Elementwise) and len(set(shapes)) > 1
        return 0 in map(prod, shapes), spread, odd, -max(map(len, shapes))
    return min(cls.samples(), key=dislikes)


def grown(text: str, times: int, like: str = "") -> str:
    """A sample's text with each side above 1 so many times as long; with `like`, the first side alone, where it is that
    of `like`."""
    shape = _shape(text)
    if like:
        longer = (shape[0] * times, *shape[1:]) if shape and shape[0] == _shape(like)[:1][0] else shape
    else:
        longer = tuple(n * times if n > 1 else n for n in shape)
    return re.sub(r"\([\d,]*\)", "(" + ",".join(map(str, longer)) + ")", text, count=1)


def _shape(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text[text.index("(") + 1:text.index(")")].split(",") if n)


def _size(text: str) -> int:
    return prod(_shape(text))


def _measured(op: Any, texts: tuple[str, ...], otherwise: OpPoint | None) -> OpPoint | None:
    """The op on these inputs in float32; `otherwise` if it cannot run on them."""
    rng = np.random.default_rng(0)
    try:
        arrays = [make(text, rng) for text in texts]
        arrays = [a.astype(np.float32) if a.dtype == np.float64 else a for a in arrays]
        o = next((algebra_of(a) for a in arrays if is_float(a.dtype)), algebra_of(arrays[0]))
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            outs = op.forward(o, *arrays)
            y = np.asarray(outs[0] if op.extra else outs)
            avals = [aval_of(a) for a in arrays]
            flops, nbytes = int(op.flops(aval_of(y), *avals)), int(op.bytes(aval_of(y), *avals))
            seconds = best_s(lambda: op.forward(o, *arrays), 2, 2e-3)
    except (ValueError, TypeError, IndexError, np.linalg.LinAlgError):
        return otherwise
    return OpPoint(op.label, ", ".join(texts), flops, nbytes, seconds)


__all__ = ["OpPoint", "Roof", "Roofline", "bandwidth_Bps", "grown", "peak_flops_per_s", "place", "roofline", "roofs"]
