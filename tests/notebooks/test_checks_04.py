"""Checks and pictures of notebook 04: right answers pass, plausible wrong ones do not, nothing is told."""

import math

import checks_04 as checks
import numpy as np
import pictures_04 as pictures
import pytest

import minigrad as mg
from minigrad.nn import functional as F
from tests.notebooks.check_laws import (  # noqa: F401
    test_a_right_answer_passes,
    test_a_wrong_answer_is_told_what_is_off_in_one_line,
    test_an_open_answer_stops_nothing,
    test_every_check_has_right_and_wrong_answers,
)


def normed(axes, correction=0):
    def norm(x):
        mean, var = x.mean(axes, keepdim=True), x.var(axes, correction=correction, keepdim=True)
        return (x - mean) / (var + 1e-5) ** 0.5

    return norm


def unfolded(x, w, b, stride, padding, bias=True, flip=False):
    w = w.flip(2, 3) if flip else w
    columns = F.unfold(x, w.shape[2:], stride=stride, padding=padding)
    y = w.reshape(w.shape[0], -1) @ columns + (b.reshape(-1, 1) if bias else 0)
    side = [(n + 2 * padding - k) // stride + 1 for n, k in zip(x.shape[2:], w.shape[2:])]
    return y.reshape(x.shape[0], w.shape[0], *side)


def terms(g, x, w, stride, padding, dilation):
    for n, o, i, j in np.ndindex(g.shape):
        for c, u, v in np.ndindex(w.shape[1:]):
            a, b = stride * i + dilation * u - padding, stride * j + dilation * v - padding
            if 0 <= a < x.shape[2] and 0 <= b < x.shape[3]:
                yield (n, o, i, j), (o, c, u, v), (n, c, a, b)


def gradients(g, x, w, stride, padding, dilation, as_if=lambda s, p, d: (s, p, d)):
    dx, dw = np.zeros(x.shape), np.zeros(w.shape)
    for at_y, at_w, at_x in terms(g, x, w, *as_if(stride, padding, dilation)):
        dx[at_x] += g[at_y] * w[at_w]
        dw[at_w] += g[at_y] * x[at_x]
    return dx, dw, g.sum((0, 2, 3))


def part(change):
    return lambda *a: change(*gradients(*a), *a)


def field(layers, grow=lambda k, d, jump: (k - 1) * d * jump):
    side, jump = 1, 1
    for k, s, d in layers:
        side, jump = side + grow(k, d, jump), jump * s
    return side


RIGHT = {
    checks.check_std: [(lambda shape: math.sqrt(2 / math.prod(shape[1:])),)],
    checks.check_norm: [(normed((0, 2, 3)),)],
    checks.check_size: [(lambda n, k, s, p, d: (n + 2 * p - d * (k - 1) - 1) // s + 1,)],
    checks.check_unfolded: [(unfolded,)],
    checks.check_conv_backward: [(gradients,), (lambda *a: list(gradients(*a)),)],
    checks.check_field: [(field,)],
}
WRONG = {
    checks.check_std: [
        (lambda shape: math.sqrt(1 / math.prod(shape[1:])),),
        (lambda shape: math.sqrt(2 / shape[1]),),
        (lambda shape: math.sqrt(2 / shape[0]),),
        (lambda shape: 2 / math.prod(shape[1:]),),
        (lambda shape: math.sqrt(2 / math.prod(shape)),),
    ],
    checks.check_norm: [
        (normed((0,)),),
        (normed((1, 2, 3)),),
        (normed((2, 3)),),
        (normed((0, 2, 3), correction=1),),
        (lambda x: x - x.mean((0, 2, 3), keepdim=True),),
        (lambda x: normed((0, 2, 3))(x).sum(),),
    ],
    checks.check_size: [
        (lambda n, k, s, p, d: (n + p - d * (k - 1) - 1) // s + 1,),
        (lambda n, k, s, p, d: (n + 2 * p - k) // s + 1,),
        (lambda n, k, s, p, d: (n + 2 * p - d * (k - 1) - 1) / s + 1,),
        (lambda n, k, s, p, d: -(-(n + 2 * p - d * (k - 1) - 1) // s) + 1,),
        (lambda n, k, s, p, d: (n + 2 * p - d * k) // s + 1,),
    ],
    checks.check_unfolded: [
        (lambda x, w, b, s, p: F.conv2d(x, w, b, stride=s, padding=p),),
        (lambda *a: unfolded(*a, bias=False),),
        (lambda *a: unfolded(*a, flip=True),),
        (lambda *a: unfolded(*a).flatten(2),),
        (lambda x, w, b, s, p: unfolded(x, w, b, 1, p),),
    ],
    checks.check_conv_backward: [
        (lambda *a: gradients(*a, as_if=lambda s, p, d: (1, p, d)),),
        (lambda *a: gradients(*a, as_if=lambda s, p, d: (s, 0, d)),),
        (lambda *a: gradients(*a, as_if=lambda s, p, d: (s, p, 1)),),
        (part(lambda dx, dw, db, *a: (dw, dx, db)),),
        (part(lambda dx, dw, db, *a: (dx, dw, db / a[0].shape[0])),),
        (part(lambda dx, dw, db, *a: (dx, dw, a[0].sum((0, 1)))),),
        (part(lambda dx, dw, db, *a: (dx, dw[:, :, ::-1, ::-1], db)),),
        (part(lambda dx, dw, db, *a: gradients(np.ones(a[0].shape), *a[1:])),),
        (lambda *a: gradients(*a)[0],),
    ],
    checks.check_field: [
        (lambda layers: field(layers, lambda k, d, jump: (k - 1) * d),),
        (lambda layers: field(layers, lambda k, d, jump: (k - 1) * jump),),
        (lambda layers: field(layers, lambda k, d, jump: k * d * jump),),
        (lambda layers: sum(k for k, _, _ in layers),),
        (lambda layers: field([(k, s, d) for k, s, d in layers][::-1]),),
    ],
}


def test_grids_say_their_numbers_in_words_and_in_the_picture():
    left = pictures.grid("x", [[1, 2.5], [0, -3]], [[1, 0], [0, 2]])
    drawn = pictures.grids(left, pictures.grid("y", mg.ones(1, 2), shaded=True), across=1)
    assert repr(drawn) == "x\n  1 2.5\n  0  -3\n\ny\n1 1" and drawn.svg.count("<rect") == 6
    with pytest.raises(ValueError, match=r"needs a matrix, got shape \(3,\)"):
        pictures.grid("z", [1, 2, 3])


def test_windows_mark_what_the_engine_reads():
    how = {"stride": 2, "padding": 1, "dilation": 2}
    lines = repr(pictures.windows(("both", how), at=(1, 0))).splitlines()
    x = mg.zeros(1, 1, 5, 5, requires_grad=True)
    y = F.conv2d(x, mg.ones(1, 1, 3, 3), **how)
    y[0, 0, 1, 0].backward()
    inner = [line.ljust(13)[2:11:2] for line in lines[2:7]]
    assert lines[0] == f"both: 5 → {y.shape[2]}"
    assert [[ch == "•" for ch in row] for row in inner] == (x.grad[0, 0] != 0).tolist()
