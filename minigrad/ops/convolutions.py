"""Convolution of sequences, transposed convolution, and windows as columns, under PyTorch's names.  After `padding.py`.

A transposed convolution is the adjoint of a convolution, so its class is that one with forward and gradient exchanged.
"""

from __future__ import annotations

import math

import numpy as np

from minigrad import kernels
from minigrad.aval import Aval
from minigrad.errors import ArgumentError, ShapeError
from minigrad.ops.conv import Conv2d, Fold, Pair, Windows, check_bias, conv2d, out_sizes, pair
from minigrad.ops.op import Op, op
from minigrad.ops.pooling import sizes_of
from minigrad.ops.samples import Sample
from minigrad.ops.shape import Pad
from minigrad.ops.views import cut, permute, reshape, unsqueeze
from minigrad.tensor import Tensor, apply


@op
class ConvTranspose2d(Op):
    """The adjoint of Conv2d: x (N, C, H, W), w (C, O / groups, KH, KW); `more` rows and columns at the end"""

    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    more: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    exact, onnx, precision, functional = True, "ConvTranspose", "low", "conv_transpose2d"

    @property
    def forwards(self) -> Conv2d:
        return Conv2d.of(self.stride, self.padding, self.dilation, self.groups)

    def shape(self, x, w) -> tuple[int, ...]:
        rows = zip(x[2:], w[2:], self.stride, self.padding, self.more, self.dilation)
        return (x[0], w[1] * self.groups, *((n - 1) * s - 2 * p + d * (k - 1) + m + 1 for n, k, s, p, m, d in rows))

    def forward(self, o, x, w):
        self._check(x, w)
        y = self.forwards.dx(o, x, self.shape(x.shape, w.shape), w)
        return o.dense_copy(y) if any(self.padding) and not kernels.serves(x, w) else y

    def dx(self, o, g, w):
        return self.forwards.forward(o, g, w)

    def dw(self, o, g, x, w_shape):
        return self.forwards.dw(o, x, g, w_shape)

    def _check(self, x, w) -> None:
        fits = len(x.shape) == 4 and len(w.shape) == 4 and x.shape[1] == w.shape[0] and w.shape[0] % self.groups == 0
        if not fits or min(self.shape(x.shape, w.shape)[2:]) < 1:
            raise ShapeError(
                f"conv_transpose2d: input {tuple(x.shape)}, weight {tuple(w.shape)}, groups {self.groups}: expected "
                f"input "
                "(N, C, H, W), weight (C, O / groups, KH, KW), C divisible by groups, and a result with elements"
            )

    def infer(self, x: Aval, w: Aval) -> Aval:
        self._check(x, w)
        return Aval(self.shape(x.shape, w.shape), x.dtype)

    def flops(self, y: Aval, x: Aval, w: Aval) -> int:
        return 2 * x.size * math.prod(w.shape[1:])

    def reference(self, x, w):
        n, c, height, width = self.shape(x.shape, w.shape)
        (s, t), (a, b), (d, e) = self.stride, self.padding, self.dilation
        y = np.zeros((n, c, height + 2 * a + 64, width + 2 * b + 64))
        per = w.shape[0] // self.groups
        for i, ci, r, q in np.ndindex(*x.shape):
            lo = ci // per * w.shape[1]
            place = (i, slice(lo, lo + w.shape[1]), slice(r * s, r * s + d * (w.shape[2] - 1) + 1, d))
            y[(*place, slice(q * t, q * t + e * (w.shape[3] - 1) + 1, e))] += x[i, ci, r, q] * w[ci]
        return y[:, :, a : a + height, b : b + width]

    @classmethod
    def samples(cls) -> list[Sample]:
        one = (1, 1)
        ways = [(one, (0, 0), (0, 0), one, 1), ((2, 1), (1, 0), (1, 0), one, 1), ((1, 2), (0, 1), (0, 1), (2, 1), 2)]
        return [Sample(cls.of(*w), ("normal(2,4,3,2)", f"normal(4,{2 // w[4]},3,2)")) for w in ways]


# ---- as functions --------------------------------------------------------------------------------
def conv1d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride=1, padding=0, dilation=1, groups: int = 1
) -> Tensor:
    """Convolution of (N, C, L) or (C, L) with weight (O, C / groups, K); `padding` may be "same" or "valid"."""
    if input.ndim not in (2, 3) or weight.ndim != 3:
        raise ShapeError(
            f"conv1d: input {input.shape}, weight {weight.shape}: expected (N, C, L) or (C, L) and (O, C / groups, K)"
        )
    one = lambda v, fill: (fill, *sizes_of(v, 1, "conv1d"))
    border = padding if isinstance(padding, str) else one(padding, 0)
    y = conv2d(unsqueeze(input, -2), unsqueeze(weight, -2), bias, one(stride, 1), border, one(dilation, 1), groups)
    return reshape(y, (*y.shape[:-2], y.shape[-1]))


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride=1,
    padding=0,
    output_padding=0,
    groups: int = 1,
    dilation=1,
) -> Tensor:
    """The adjoint of `conv2d` (N, C, H, W) or (C, H, W), with weight (C, O / groups, KH, KW)."""
    if input.ndim == 3:
        y = conv_transpose2d(unsqueeze(input, 0), weight, bias, stride, padding, output_padding, groups, dilation)
        return reshape(y, y.shape[1:])
    s, p, m, d = (pair(v, "conv_transpose2d") for v in (stride, padding, output_padding, dilation))
    if min(*s, *d, groups) < 1 or min(*p, *m) < 0 or any(v >= max(a, b) for v, a, b in zip(m, s, d)):
        raise ArgumentError(
            f"conv_transpose2d: stride {s}, dilation {d}, groups {groups} must be at least 1, padding {p} at least 0, "
            f"output_padding {m} below the stride or the dilation"
        )
    check_bias(bias, weight, "conv_transpose2d")
    rows, columns = (v // a for v, a in zip(m, s))
    if rows or columns:                                      # as many zeros after the input say the same
        input = apply(Pad.of(((0, 0), (0, 0), (0, rows), (0, columns)), 0.0), input)
        m = m[0] - rows * s[0], m[1] - columns * s[1]
    y = apply(ConvTranspose2d.of(s, p, m, d, groups), input, weight)
    return y if bias is None else y + reshape(bias, (1, -1, 1, 1))


def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride=1,
    padding=0,
    output_padding=0,
    groups: int = 1,
    dilation=1,
) -> Tensor:
    """The adjoint of `conv1d` of (N, C, L) or (C, L), with weight (C, O / groups, K)."""
    if input.ndim not in (2, 3) or weight.ndim != 3:
        raise ShapeError(
            f"conv_transpose1d: input {input.shape}, weight {weight.shape}: expected (N, C, L) and (C, O / groups, K)"
        )
    one = lambda v, fill: (fill, *sizes_of(v, 1, "conv_transpose1d"))
    how = (one(stride, 1), one(padding, 0), one(output_padding, 0), groups, one(dilation, 1))
    y = conv_transpose2d(unsqueeze(input, -2), unsqueeze(weight, -2), bias, *how)
    return reshape(y, (*y.shape[:-2], y.shape[-1]))


# ---- windows as columns ---------------------------------------------------------------------------
def unfold(input: Tensor, kernel_size, dilation=1, padding=0, stride=1) -> Tensor:
    """The windows of (N, C, H, W) as columns: (N, C·KH·KW, number of windows)."""
    if input.ndim not in (3, 4):
        raise ShapeError(f"unfold: expected (N, C, H, W) or (C, H, W), got {input.shape}")
    if input.ndim == 3:
        y = unfold(unsqueeze(input, 0), kernel_size, dilation, padding, stride)
        return reshape(y, y.shape[1:])
    k, d, (a, b), s = (pair(v, "unfold") for v in (kernel_size, dilation, padding, stride))
    x = apply(Pad.of(((0, 0), (0, 0), (a, a), (b, b)), 0.0), input) if a or b else input
    w = apply(Windows.of(k, s, d), x)  # (N, C, OH, OW, KH, KW)
    n, c, oh, ow = w.shape[:4]
    return reshape(permute(w, 0, 1, 4, 5, 2, 3), (n, c * k[0] * k[1], oh * ow))


def fold(input: Tensor, output_size, kernel_size, dilation=1, padding=0, stride=1) -> Tensor:
    """The adjoint of `unfold`: columns (N, C·KH·KW, L) added back to their places in (N, C, *output_size)."""
    if input.ndim == 2:
        y = fold(unsqueeze(input, 0), output_size, kernel_size, dilation, padding, stride)
        return reshape(y, y.shape[1:])
    size, k, d, p, s = (pair(v, "fold") for v in (output_size, kernel_size, dilation, padding, stride))
    oh, ow = out_sizes(size, k, s, p, d, "fold")
    area = k[0] * k[1]
    if input.ndim != 3 or input.shape[1] % area or input.shape[2] != oh * ow:
        raise ShapeError(f"fold: input {input.shape}, expected (N, C·{area}, {oh * ow}) for an output of {size}")
    n, c = input.shape[0], input.shape[1] // area
    w = permute(reshape(input, (n, c, *k, oh, ow)), 0, 1, 4, 5, 2, 3)
    y = apply(Fold.of((n, c, size[0] + 2 * p[0], size[1] + 2 * p[1]), s, d), w)
    return cut(y, (Ellipsis, slice(p[0], p[0] + size[0]), slice(p[1], p[1] + size[1]))) if any(p) else y


def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """(…, C·r², H, W) as (…, C, H·r, W·r)."""
    r = upscale_factor
    *lead, c, h, w = input.shape
    if c % (r * r):
        raise ShapeError(f"pixel_shuffle: {c} channels are not divisible by {r}²")
    n = len(lead)
    x = reshape(input, (*lead, c // (r * r), r, r, h, w))
    return reshape(permute(x, *range(n + 1), n + 3, n + 1, n + 4, n + 2), (*lead, c // (r * r), h * r, w * r))


def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """(…, C, H·r, W·r) as (…, C·r², H, W)."""
    r = downscale_factor
    *lead, c, h, w = input.shape
    if h % r or w % r:
        raise ShapeError(f"pixel_unshuffle: {h} × {w} is not divisible by {r}")
    n = len(lead)
    x = reshape(input, (*lead, c, h // r, r, w // r, r))
    return reshape(permute(x, *range(n + 1), n + 2, n + 4, n + 1, n + 3), (*lead, c * r * r, h // r, w // r))
