"""Convolution and pooling over images (N, C, H, W), written with `windows` and its adjoint `fold`.

A convolution is a matrix product over the windows of its input (im2col); both gradients are matrix products too.
Windows are a view; the copy that BLAS needs lives only inside one forward or one rule.  After `random.py`.
"""
from __future__ import annotations

import math

import numpy as np

from minigrad import kernels
from minigrad.aval import Aval
from minigrad.dtype import is_float
from minigrad.errors import ArgumentError, DTypeError, ShapeError
from minigrad.ops.op import NoOnnx, Op, op
from minigrad.ops.samples import Sample
from minigrad.ops.shape import Pad
from minigrad.ops.views import reshape
from minigrad.tensor import Tensor, apply

Pair = tuple[int, int]


def pair(v: int | tuple[int, int], name: str) -> Pair:
    """One number for both axes, or one for each."""
    p = (v, v) if isinstance(v, int | np.integer) else tuple(v)
    if len(p) != 2 or not all(isinstance(n, int | np.integer) for n in p):
        raise ArgumentError(f"{name}: expected an integer or a pair of them, got {v!r}")
    return int(p[0]), int(p[1])


def out_sizes(size, kernel, stride, padding, dilation, name: str) -> tuple[int, ...]:
    """floor((size + 2·padding − dilation·(kernel − 1) − 1) / stride) + 1 per axis."""
    sizes = tuple(
        (n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in zip(size, kernel, stride, padding, dilation)
    )
    if min(sizes, default=1) < 1:
        raise ShapeError(
            f"{name}: the kernel {tuple(kernel)} (dilation {tuple(dilation)}) is larger than the padded input: "
            f"size {tuple(size)}, padding {tuple(padding)}"
        )
    return sizes


@op
class Windows(Op):
    """Every window of the last axes: (…, H, W) as (…, OH, OW, KH, KW); a copy"""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    onnx = NoOnnx("no im2col")

    def forward(self, o, x):
        return o.dense_copy(o.windows(x, self.kernel, self.stride, self.dilation))

    def dx(self, o, g, x_shape):
        return o.fold(g, x_shape, self.stride, self.dilation)

    def infer(self, x: Aval) -> Aval:
        n = len(self.kernel)
        sizes = out_sizes(x.shape[-n:], self.kernel, self.stride, (0,) * n, self.dilation, "windows")
        return Aval((*x.shape[:-n], *sizes, *self.kernel), x.dtype)

    def flops(self, y: Aval, x: Aval) -> int:
        return 0

    @classmethod
    def samples(cls) -> list[Sample]:
        return [
            Sample(cls.of((2, 2), (1, 2), (1, 1)), ("normal(1,4,5)",)),
            Sample(cls.of((2, 2), (1, 1), (2, 1)), ("normal(4,5)",)),
            Sample(cls.of((3,), (2,), (1,)), ("normal(2,6)",)),
        ]


@op
class Fold(Op):
    """The adjoint of Windows: every window added back to its place"""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    onnx = NoOnnx("Col2Im")

    def forward(self, o, x):
        return o.fold(x, self.shape, self.stride, self.dilation)

    def dx(self, o, g, x_shape):
        return o.windows(g, x_shape[-len(self.stride):], self.stride, self.dilation)

    def infer(self, x: Aval) -> Aval:
        return Aval(self.shape, x.dtype)

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of((4, 5), (1, 2), (1, 1)), ("normal(3,2,2,2)",))]


@op
class Conv2d(Op):
    """The cross-correlation that deep learning calls convolution: x (N, C, H, W), w (O, C / groups, KH, KW)"""

    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    exact, onnx, precision, functional = True, "Conv", "low", "conv2d"

    def _sizes(self, x_shape, w_shape):
        shapes = tuple(x_shape), tuple(w_shape)
        return kernels.convolution(*shapes, self.stride, self.padding, self.dilation, self.groups)

    def _columns(self, o, x, kernel):
        """(G, N·OH·OW, C/G·KH·KW): one row per window."""
        n, c = x.shape[:2]
        (a, b), g = self.padding, self.groups
        x = o.pad(x, ((0, 0), (0, 0), (a, a), (b, b))) if a or b else x
        w = o.windows(x, kernel, self.stride, self.dilation)                       # (N, C, OH, OW, KH, KW)
        oh, ow = w.shape[2:4]
        w = o.reshape(w, (n, g, c // g, oh, ow, *kernel)) if g > 1 else o.reshape(w, (n, 1, c, oh, ow, *kernel))
        return o.reshape(o.transpose(w, (1, 0, 3, 4, 2, 5, 6)), (g, n * oh * ow, c // g * kernel[0] * kernel[1]))

    def _rows(self, o, g):
        """The upstream gradient (N, O, OH, OW) as (G, N·OH·OW, O/G)."""
        n, c, oh, ow = g.shape
        g = o.reshape(g, (n, self.groups, c // self.groups, oh, ow))
        return o.reshape(o.transpose(g, (1, 0, 3, 4, 2)), (self.groups, n * oh * ow, c // self.groups))

    def forward(self, o, x, w):
        self._check(x, w)
        if kernels.serves(x, w):
            return kernels.convolve(self._sizes(x.shape, w.shape), x, w)
        n, (oh, ow) = (
            x.shape[0],
            out_sizes(x.shape[2:], w.shape[2:], self.stride, self.padding, self.dilation, "conv2d"),
        )
        flat = o.reshape(w, (self.groups, w.shape[0] // self.groups, -1 if w.size else 0))
        y = o.matmul(self._columns(o, x, w.shape[2:]), o.mT(flat))                 # (G, N·OH·OW, O/G)
        y = o.dense_copy(o.transpose(o.reshape(y, (self.groups, n, oh, ow, flat.shape[1])), (1, 0, 4, 2, 3)))
        return o.reshape(y, (n, w.shape[0], oh, ow))

    def vjp(self, o, needs, g, x, w):
        if kernels.serves(g, x, w):
            return kernels.convolve_back(self._sizes(x.shape, w.shape), needs, g, x, w)
        return self.dx(o, g, x.shape, w) if needs[0] else None, self.dw(o, g, x, w.shape) if needs[1] else None

    def dw(self, o, g, x, w_shape):
        if kernels.serves(g, x):
            return kernels.convolve_back(self._sizes(x.shape, w_shape), (False, True), g, x, None)[1]
        return o.reshape(o.matmul(o.mT(self._rows(o, g)), self._columns(o, x, w_shape[2:])), w_shape)

    def dx(self, o, g, x_shape, w):
        if kernels.serves(g, w):
            return kernels.convolve_back(self._sizes(x_shape, w.shape), (True, False), g, None, w)[0]
        (n, c, h, wd), (kh, kw), k = x_shape, w.shape[2:], self.groups
        flat = o.reshape(w, (k, w.shape[0] // k, c // k * kh * kw))
        cols = o.matmul(self._rows(o, g), flat)                                    # (G, N·OH·OW, C/G·KH·KW)
        cols = o.reshape(cols, (k, n, *g.shape[2:], c // k, kh, kw))
        cols = o.reshape(o.transpose(cols, (1, 0, 4, 2, 3, 5, 6)), (n, c, *g.shape[2:], kh, kw))
        a, b = self.padding
        wide = o.fold(cols, (n, c, h + 2 * a, wd + 2 * b), self.stride, self.dilation)
        return o.cut(wide, (Ellipsis, slice(a, a + h), slice(b, b + wd))) if a or b else wide

    def _check(self, x, w) -> None:
        if len(x.shape) != 4 or len(w.shape) != 4 or x.shape[1] != w.shape[1] * self.groups or w.shape[0] % self.groups:
            raise ShapeError(
                f"conv2d: input {tuple(x.shape)}, weight {tuple(w.shape)}, groups {self.groups}: expected input "
                "(N, C, H, W), weight (O, C / groups, KH, KW), O and C divisible by groups"
            )

    def infer(self, x: Aval, w: Aval) -> Aval:
        self._check(x, w)
        return Aval(
            (
                x.shape[0],
                w.shape[0],
                *out_sizes(x.shape[2:], w.shape[2:], self.stride, self.padding, self.dilation, "conv2d"),
            ),
            x.dtype,
        )

    def flops(self, y: Aval, x: Aval, w: Aval) -> int:
        return 2 * y.size * math.prod(w.shape[1:])

    def reference(self, x, w):
        (a, b), (s, t), (d, e) = self.padding, self.stride, self.dilation
        x = np.pad(x, ((0, 0), (0, 0), (a, a), (b, b)))
        per, (kh, kw) = w.shape[0] // self.groups, w.shape[2:]
        oh, ow = (x.shape[2] - d * (kh - 1) - 1) // s + 1, (x.shape[3] - e * (kw - 1) - 1) // t + 1
        y = np.zeros((x.shape[0], w.shape[0], oh, ow))
        for n, c, i, j in np.ndindex(*y.shape):
            lo = c // per * w.shape[1]
            window = x[n, lo:lo + w.shape[1], i * s:i * s + d * (kh - 1) + 1:d, j * t:j * t + e * (kw - 1) + 1:e]
            y[n, c, i, j] = (window * w[c]).sum()
        return y

    @classmethod
    def samples(cls) -> list[Sample]:
        ways = [
            ((1, 1), (0, 0), (1, 1), 1),
            ((2, 1), (1, 2), (1, 1), 1),
            ((1, 2), (1, 1), (2, 1), 1),
            ((1, 1), (1, 0), (1, 1), 2),
        ]
        return [Sample(cls.of(*w), ("normal(2,4,5,4)", f"normal(2,{4 // w[3]},2,3)")) for w in ways] + [
            Sample(cls.of(), ("normal(0,1,4,4)", "normal(2,1,2,2)"))]


def lowest(dtype: np.dtype) -> float:
    """What is less than all numbers of a dtype, or as little as the least."""
    return -math.inf if is_float(dtype) else int(np.iinfo(dtype).min)


@op
class MaxPool2d(Op):
    """The largest of each window and where it stands in it; the border counts as minus infinity"""

    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    extra, onnx, functional = ("index",), "MaxPool", "max_pool2d"

    def forward(self, o, x):
        (a, b) = self.padding
        x = o.pad(x, ((0, 0),) * (x.ndim - 2) + ((a, a), (b, b)), lowest(o.dtype)) if a or b else x
        if kernels.serves(x) and math.prod(self.kernel) < 128:
            found = kernels.largest(x, self.kernel, self.stride, self.dilation)
            if found is not None:
                return found[0], self.inside(o, found[1][..., None])
        w = o.windows(x, self.kernel, self.stride, self.dilation)
        w = o.reshape(w, (*w.shape[:-2], self.kernel[0] * self.kernel[1]))
        index = o.argmax(w, -1, True)
        y = o.take_along(w, index, w.ndim - 1)
        return o.reshape(y, y.shape[:-1]), self.inside(o, index)

    def inside(self, o, index):
        """Where all of a window is minus infinity, its first cell of the input, not of the border."""
        if self.padding == (0, 0):
            return index
        rows, columns = (
            np.maximum(0, -((np.arange(n) * s - p) // d)) for n, s, p, d in
            zip(index.shape[-3:-1], self.stride, self.padding, self.dilation))
        return o.maximum(index, o.upload((rows[:, None] * self.kernel[1] + columns)[..., None]))

    def dx(self, o, g, x_shape, index):
        (a, b), (h, w) = self.padding, x_shape[-2:]
        if kernels.serves(g) and math.prod(self.kernel) < 128:
            full = (*x_shape[:-2], h + 2 * a, w + 2 * b)
            wide = kernels.largest_back(g, index[..., 0], full, self.kernel, self.stride, self.dilation)
            return wide[..., a:a + h, b:b + w] if a or b else wide
        cells = o.add_along(o.reshape(g, (*g.shape, 1)), index, len(g.shape), self.kernel[0] * self.kernel[1])
        cells = o.reshape(cells, (*g.shape, *self.kernel))
        wide = o.fold(cells, (*x_shape[:-2], h + 2 * a, w + 2 * b), self.stride, self.dilation)
        return o.cut(wide, (Ellipsis, slice(a, a + h), slice(b, b + w))) if a or b else wide

    def infer(self, x: Aval):
        if x.ndim < 3:
            raise ShapeError(f"max_pool2d: expected (N, C, H, W) or (C, H, W), got {x.shape}")
        if any(2 * p > k for p, k in zip(self.padding, self.kernel)):
            raise ShapeError(f"max_pool2d: padding {self.padding} may be at most half the kernel {self.kernel}")
        shape = (
            *x.shape[:-2],
            *out_sizes(x.shape[-2:], self.kernel, self.stride, self.padding, self.dilation, "max_pool2d"),
        )
        return Aval(shape, x.dtype), Aval((*shape, 1), np.dtype(np.int64))

    def flops(self, y: Aval, x: Aval) -> int:
        return y.size * math.prod(self.kernel)

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of(*w), ("spread(2,1,4,5)",)) for w in
                [((2, 2), (2, 2), (0, 0), (1, 1)), ((3, 2), (1, 2), (1, 1), (1, 1)), ((2, 2), (1, 1), (0, 0), (2, 1))]]


# ---- as functions ------------------------------------------------------------------------------
def conv2d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride=1, padding=0, dilation=1, groups: int = 1
) -> Tensor:
    """Convolution of (N, C, H, W) or (C, H, W) with weight (O, C / groups, KH, KW); `padding` may be "same" or
    "valid"."""
    if x.ndim == 3:
        return reshape(
            y := conv2d(reshape(x, (1, *x.shape)), weight, bias, stride, padding, dilation, groups), y.shape[1:]
        )
    if x.ndim != 4 or weight.ndim != 4:
        raise ShapeError(f"conv2d: expected input (N, C, H, W) or (C, H, W) and weight (O, C / groups, KH, KW), got "
                         f"{x.shape} and {weight.shape}")
    stride, dilation = pair(stride, "stride"), pair(dilation, "dilation")
    if padding == "same":
        x, padding = _same(x, weight.shape[2:], stride, dilation), 0
    padding = (0, 0) if padding == "valid" else pair(padding, "padding")
    if min(stride) < 1 or min(dilation) < 1 or min(padding) < 0 or groups < 1:
        raise ArgumentError(
            f"conv2d: stride {stride}, dilation {dilation}, groups {groups} must be at least 1 and padding {padding} "
            f"at least 0"
        )
    check_bias(bias, weight, "conv2d")
    y = apply(Conv2d.of(stride, padding, dilation, groups), x, weight)
    return y if bias is None else y + reshape(bias, (1, -1, 1, 1))


def check_bias(bias: Tensor | None, weight: Tensor, name: str) -> None:
    """Refuse a bias of another dtype: nothing is promoted here."""
    if bias is not None and bias.dtype != weight.dtype:
        raise DTypeError(f"{name}: the dtypes {weight.dtype} and {bias.dtype} of weight and bias should be the same")


def _same(x: Tensor, kernel, stride, dilation) -> Tensor:
    if stride != (1, 1):
        raise RuntimeError(f"conv2d: padding='same' needs stride 1, got {stride}")
    total = [d * (k - 1) for d, k in zip(dilation, kernel)]
    return apply(Pad.of(((0, 0), (0, 0), *((t // 2, t - t // 2) for t in total)), 0.0), x)
