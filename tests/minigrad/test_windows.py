"""Pooling by powers and back, pooling of integers, other sizes, transposed convolution: laws of windows."""

import numpy as np
import pytest

import minigrad as mg
from minigrad.errors import DTypeError
from minigrad.nn import functional as F

RNG = np.random.default_rng(3)


def draw(*shape, **how):
    return mg.tensor(RNG.permutation(int(np.prod(shape))).reshape(shape) * 0.37 - 2.0, **how)


# -- maxima put back


@pytest.mark.parametrize("kernel, stride, shape",
                         [(2, None, (2, 3, 4, 6)), ((2, 3), None, (3, 4, 6)), (2, 2, (1, 1, 5, 5))])
def test_unpooling_puts_maxima_where_they_were(kernel, stride, shape):
    """Pooling what was unpooled gives the maxima again; all else is 0; windows do not overlap."""
    x = draw(*shape) + 10
    y, places = F.max_pool2d(x, kernel, stride, return_indices=True)
    back = F.max_unpool2d(y, places, kernel, stride, output_size=shape)
    assert back.shape == shape and (back == 0).sum().item() == x.numel() - y.numel()
    np.testing.assert_array_equal(F.max_pool2d(back, kernel, stride).numpy(), y.numpy())
    np.testing.assert_array_equal(back.numpy()[back.numpy() != 0], x.numpy()[back.numpy() != 0])


def test_unpooling_of_sequences_and_its_gradient():
    x = draw(2, 3, 8, requires_grad=True)
    _, places = F.max_pool1d(x, 2, return_indices=True)
    assert mg.gradcheck(lambda y: F.max_unpool1d(y, places, 2), draw(2, 3, 4, requires_grad=True))
    assert mg.gradgradcheck(lambda y: F.max_unpool1d(y, places, 2) ** 2, draw(2, 3, 4, requires_grad=True))


@pytest.mark.parametrize("bad", [
    lambda y, i: F.max_unpool2d(y, i, 2, output_size=(9, 9)), lambda y, i: F.max_unpool2d(y, i + 99, 2),
    lambda y, i: F.max_unpool2d(y, i.float(), 2), lambda y, i: F.max_unpool2d(y, i[:1], 2),
])
def test_unpooling_refuses(bad):
    with pytest.raises((RuntimeError, ValueError, IndexError), match="max_unpool2d"):
        bad(*F.max_pool2d(draw(2, 1, 4, 4), 2, return_indices=True))


# -- powers


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_pooling_by_powers_is_the_root_of_the_sum(p):
    x = draw(1, 2, 4, 6) + 3
    want = sum(x.numpy()[:, :, i::2, j::3] ** p for i in range(2) for j in range(3)) ** (1 / p)
    np.testing.assert_allclose(F.lp_pool2d(x, p, (2, 3)).numpy(), want, rtol=1e-12)
    np.testing.assert_allclose(F.lp_pool1d(x[0], p, 2, 1).numpy()[..., 0],
                               (x.numpy()[0, :, :, :2] ** p).sum(-1) ** (1 / p), rtol=1e-12)
    assert mg.gradcheck(lambda x: F.lp_pool2d(x, p, 2), (draw(1, 1, 4, 4) + 3).requires_grad_())


# -- integers


def test_pools_of_integers():
    x = mg.tensor(RNG.integers(-9, 9, (2, 3, 6, 6)))
    cells = x.numpy().reshape(2, 3, 3, 2, 3, 2).transpose(0, 1, 2, 4, 3, 5).reshape(2, 3, 3, 3, 4)
    np.testing.assert_array_equal(F.max_pool2d(x, 2).numpy(), cells.max(-1))
    np.testing.assert_array_equal(F.avg_pool2d(x, 2).numpy(), np.trunc(cells.sum(-1) / 4))
    assert F.max_pool2d(x - 99, 3, 2, 1).max().item() < 0                     # the border is less than all of them
    with pytest.raises(DTypeError, match="avg_pool"):
        F.avg_pool2d(x.int(), 2)


# -- other sizes

MODES = [("nearest", 1), ("nearest-exact", 2), ("area", 2), ("linear", 1), ("bilinear", 2), ("bicubic", 2),
         ("trilinear", 3), ("nearest", 3), ("area", 1)]


@pytest.mark.parametrize("mode, n", MODES)
@pytest.mark.parametrize(
    "how", [{"scale_factor": 1.7}, {"scale_factor": 0.6, "recompute_scale_factor": True}, {"size": 3}])
def test_another_size_keeps_constants_and_has_the_right_gradient(mode, n, how):
    x = draw(1, 2, *(4, 5, 3)[:n], requires_grad=True)
    y = F.interpolate(x * 0 + 2.5, mode=mode, **how)
    np.testing.assert_allclose(y.detach().numpy(), 2.5, rtol=1e-12)
    assert mg.gradcheck(lambda x: F.interpolate(x, mode=mode, **how), x)


@pytest.mark.parametrize("mode, n", MODES)
def test_the_same_size_is_the_same_values(mode, n):
    x = draw(1, 2, *(4, 5, 3)[:n])
    np.testing.assert_allclose(F.interpolate(x, x.shape[2:], mode=mode).numpy(), x.numpy(), rtol=1e-12, atol=1e-12)


def test_cubics_and_lines_keep_straight_lines_inside():
    x = (mg.arange(8.0).double() * 3 - 1).reshape(1, 1, 1, 8).expand(1, 1, 8, 8)
    for mode in ("bilinear", "bicubic"):
        y = F.interpolate(x, (8, 15), mode=mode, align_corners=True).numpy()[0, 0, 0]
        np.testing.assert_allclose(np.diff(y)[3:-3], 1.5, rtol=1e-12)
    x = draw(1, 2, 5, 4)
    np.testing.assert_allclose(F.interpolate(x, (3, 2), mode="area").numpy(), F.adaptive_avg_pool2d(x, (3, 2)).numpy())


@pytest.mark.parametrize("bad, error", [
    (lambda x: F.interpolate(x, 3, mode="cubic"), NotImplementedError),
    (lambda x: F.interpolate(x, 3, mode="linear"), RuntimeError),
    (lambda x: F.interpolate(x, 3, 2.0), ValueError), (lambda x: F.interpolate(x), ValueError),
    (lambda x: F.interpolate(x, 3, align_corners=True), ValueError),
    (lambda x: F.interpolate(x, scale_factor=(1.0, 2.0, 3.0)), ValueError),
    (lambda x: F.interpolate(x, 3, recompute_scale_factor=True), ValueError),
])
def test_other_sizes_refused(bad, error):
    with pytest.raises(error, match="interpolate"):
        bad(draw(1, 1, 4, 4))


# -- transposed convolution


def test_output_padding_beyond_the_stride():
    """Allowed below the dilation: as many rows of zeros, or of what the kernel still reaches, are added."""
    x, w = draw(1, 1, 3, 3), draw(1, 1, 2, 2)
    more = F.conv_transpose2d(x, w, None, 1, 1, (2, 3), 1, 4).numpy()
    full = F.conv_transpose2d(x, w, None, 1, 0, 0, 1, 4).numpy()               # 7 x 7, of which the border is left out
    want = np.zeros((1, 1, 7 - 2 + 2, 7 - 2 + 3))
    part = full[:, :, 1:1 + 7, 1:1 + 8]
    want[:, :, :part.shape[2], :part.shape[3]] = part
    np.testing.assert_allclose(more, want, rtol=1e-12)


def test_a_bias_of_another_dtype_is_refused():
    for f in (F.conv2d, F.conv_transpose2d):
        with pytest.raises(DTypeError, match="same"):
            f(mg.ones(1, 1, 3, 3), mg.ones(1, 1, 2, 2), mg.ones(1, dtype=mg.float64))


@pytest.mark.parametrize("device", ["cpu", "sim:0"])
def test_a_window_of_minus_infinity_gives_its_gradient_to_the_input_not_to_the_border(device):
    x = mg.full((1, 1, 4), float("-inf"), device=device, requires_grad=True)
    mg.nn.functional.max_pool1d(x, 2, padding=1).backward(mg.tensor([[[3.0, 5.0, 7.0]]], device=device))
    assert x.grad.tolist() == [[[3.0, 5.0, 0.0, 7.0]]]
