"""The self-checks of notebook 04, in the order in which they are met."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from lesson import ask, check, close, expect

import minigrad as mg
from minigrad.nn import functional as F


def _draw(seed: int, *shape: int) -> mg.Tensor:
    return mg.randn(*shape, dtype=mg.float64, generator=mg.Generator().manual_seed(seed))


@check
def check_std(std: Callable) -> str:
    """std(shape) of a weight behind which ReLU leaves the mean square as it was (He et al. 2015)."""
    for shape in ((256, 256), (64, 100), (10, 2), (16, 3, 3, 3), (8, 16, 5, 5)):
        got, area = ask(std, shape), math.prod(shape[1:])
        grows = float(got) * math.sqrt(area / 2)
        expect(
            abs(grows - 1) < 0.01,
            f"weight {shape}: values grow by a factor of {grows:.3g} from one layer to the next",
        )
    return "matrices and windows, narrow and wide: the values keep their size"


@check
def check_norm(norm: Callable) -> str:
    """norm(x) of images (N, C, H, W): batch norm in training, without weight and bias."""
    for shape in ((8, 3, 4, 4), (2, 1, 5, 2), (16, 4, 1, 1)):
        x = _draw(sum(shape), *shape) * 3 + 2
        close(ask(norm, x), F.batch_norm(x, None, None, training=True).numpy(), f"input {shape}: your result")
    return "each channel has mean 0 and variance 1 over all images and all places"


@check
def check_size(size: Callable) -> str:
    """size(n, k, s, p, d): how many places a window has, asked of the engine."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        n, k, s, p, d = (int(rng.integers(low, high)) for low, high in ((1, 30), (1, 6), (1, 5), (0, 4), (1, 4)))
        if d * (k - 1) + 1 > n + 2 * p:
            continue
        image, kernel = mg.zeros(1, 1, n, 40, device="meta"), mg.zeros(1, 1, k, 1, device="meta")
        want = F.conv2d(image, kernel, stride=(s, 1), padding=(p, 0), dilation=(d, 1)).shape[2]
        got = ask(size, n, k, s, p, d)
        expect(
            type(got) is int and got == want,
            f"n = {n}, kernel {k}, stride {s}, padding {p}, dilation {d}: {got!r} "
            + (f"is off by {abs(got - want):g}" if isinstance(got, int | float) and got != want else "is no integer"),
        )
    return "300 ways to slide, as the engine says"


@check
def check_unfolded(conv: Callable) -> str:
    """conv(x, w, b, stride, padding) as one matrix product over windows."""
    ways = (((2, 3, 6, 5), (4, 3, 3, 3), 1, 0), ((1, 2, 7, 7), (3, 2, 3, 2), 2, 1), ((3, 1, 4, 4), (1, 1, 1, 1), 1, 0))
    for x_shape, w_shape, stride, padding in ways:
        x, w, b = _draw(1, *x_shape), _draw(2, *w_shape), _draw(3, w_shape[0])
        got, labels = _observed(conv, x, w, b, stride, padding)
        expect("conv2d" not in labels, "you called conv2d itself; use F.unfold and a matrix product")
        want = F.conv2d(x, w, b, stride=stride, padding=padding).numpy()
        what = f"x {x_shape}, w {w_shape}, stride {stride}, padding {padding}"
        close(got, want, f"{what}: your result")
    return "windows as rows, kernels as columns: a convolution is a matrix product"


def _observed(function: Callable, *inputs: object) -> tuple[object, list[str]]:
    """What the reader's function returns, and the operations it used."""
    labels: list[str] = []
    with mg.observe(lambda op, inputs, outputs: labels.append(op.label)):
        return ask(function, *inputs), labels


@check
def check_conv_backward(backward: Callable) -> str:
    """backward(g, x, w, stride, padding, dilation) -> gradients of x, w and b, as arrays."""
    ways = ((1, 0, 1, (2, 2, 5, 5)), (2, 1, 1, (1, 3, 6, 5)), (1, 2, 2, (2, 1, 5, 6)), (3, 0, 2, (1, 2, 9, 9)))
    for stride, padding, dilation, shape in ways:
        x, w, b = _draw(1, *shape), _draw(2, 4, shape[1], 3, 2), _draw(3, 4)
        for t in (x, w, b):
            t.requires_grad_()
        y = F.conv2d(x, w, b, stride=stride, padding=padding, dilation=dilation)
        g = _draw(4, *y.shape)
        y.backward(g)
        arrays = (t.detach().numpy() for t in (g, x, w))
        got = ask(backward, *arrays, stride, padding, dilation)
        expect(
            isinstance(got, tuple | list) and len(got) == 3,
            f"return three gradients, of x, w and b; got {type(got).__name__}",
        )
        for name, value, t in zip(("x", "w", "b"), got, (x, w, b)):
            what = f"stride {stride}, padding {padding}, dilation {dilation}: the gradient of {name}"
            close(value, t.grad.numpy(), what)
    return "all three gradients as the engine says, with stride, padding and dilation"


@check
def check_field(field: Callable) -> str:
    """field(layers) of [(kernel, stride, dilation), ...]: the side of what one output sees, measured with backward."""
    stacks = (
        [(3, 1, 1)],
        [(3, 1, 1)] * 3,
        [(3, 2, 1), (3, 1, 1)],
        [(3, 1, 1), (2, 2, 1), (3, 1, 1), (2, 2, 1)],
        [(3, 1, 1), (3, 1, 2), (3, 1, 4)],
        [(5, 3, 1), (1, 1, 1), (2, 2, 2), (3, 1, 1)],
    )
    for layers in stacks:
        got, want = ask(field, layers), _seen(layers)
        expect(got == want, f"layers {layers}: {got} is off by {abs(got - want):g}")
    return "six stacks, as the gradient says"


def _seen(layers: list[tuple[int, int, int]]) -> int:
    x = mg.ones(1, 1, 100, dtype=mg.float64, requires_grad=True)
    h = x
    for kernel, stride, dilation in layers:
        h = F.conv1d(h, mg.ones(1, 1, kernel, dtype=mg.float64), stride=stride, dilation=dilation)
    h[0, 0, 0].backward()
    return int(np.flatnonzero(x.grad.numpy()).max()) + 1
