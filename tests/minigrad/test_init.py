"""Initial values: their support, variance, orthogonality; the same from one seed on every device."""

import math

import numpy as np
import pytest

import minigrad as mg
from minigrad import nn
from minigrad.nn import init


def of(fill, *shape, dtype=mg.float64, seed=0, **how):
    """The values that `fill` leaves in a tensor of a shape, from a generator of their own."""
    t = mg.empty(*shape, dtype=dtype)
    assert fill(t, generator=mg.Generator(seed), **how) is t
    return t.numpy()


def test_truncated_normal_numbers_follow_their_distribution():
    stats = pytest.importorskip("scipy.stats")
    for mean, std, a, b in ((0.0, 1.0, -2.0, 2.0), (1.0, 2.0, 0.0, 2.5), (0.0, 0.02, -2.0, 2.0)):
        x = of(init.trunc_normal_, 200, 200, mean=mean, std=std, a=a, b=b)
        assert x.min() >= a and x.max() <= b
        want = stats.truncnorm((a - mean) / std, (b - mean) / std, mean, std)
        assert stats.kstest(x.ravel(), want.cdf).pvalue > 1e-3
    with pytest.warns(UserWarning, match="two standard deviations"):
        of(init.trunc_normal_, 3, mean=9.0)
    with pytest.raises(ValueError, match="nothing lies"):
        of(init.trunc_normal_, 3, a=1.0, b=1.0)


@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (5, 5), (3, 2, 2, 2), (9, 2, 2)])
def test_orthogonal_rows_or_columns(shape):
    for dtype, tolerance in ((mg.float64, 1e-12), (mg.float32, 1e-6)):
        x = of(init.orthogonal_, *shape, gain=3.0, dtype=dtype).reshape(shape[0], -1)
        square = x @ x.T if x.shape[0] <= x.shape[1] else x.T @ x
        np.testing.assert_allclose(square, 9 * np.eye(len(square)), atol=20 * tolerance)


def test_orthogonal_matrices_are_evenly_distributed():
    """The determinant of Q is 1 and -1 equally often, and no diagonal is favoured: the signs of R were divided out."""
    many = np.stack([of(init.orthogonal_, 3, 3, seed=k) for k in range(300)])
    assert abs((np.linalg.det(many) > 0).mean() - 0.5) < 0.1
    assert np.abs(many.mean(0)).max() < 0.15


def test_sparse_columns_have_their_zeros():
    x = of(init.sparse_, 40, 50, sparsity=0.31, std=0.5)
    assert ((x == 0).sum(0) == 13).all()
    assert abs(x[x != 0].std() - 0.5) < 0.05
    assert len({tuple(column) for column in (x == 0).T.tolist()}) > 40
    assert not of(init.sparse_, 3, 2, sparsity=1.0).any()


@pytest.mark.parametrize("shape, groups", [((3, 3, 3), 1), ((4, 2, 3, 3), 2), ((2, 4, 3, 3), 1), ((6, 2, 5), 3)])
def test_dirac_weights_pass_channels_on(shape, groups):
    weight = init.dirac_(mg.empty(*shape), groups)
    inputs = shape[1] * groups
    x = mg.randn(2, inputs, *(7,) * (len(shape) - 2))
    conv = nn.functional.conv1d if len(shape) == 3 else nn.functional.conv2d
    y = conv(x, weight, None, 1, shape[2] // 2, 1, groups)
    per = shape[0] // groups
    for group in range(groups):
        for k in range(per):
            own = y[:, group * per + k].numpy()
            want = x[:, group * shape[1] + k].numpy() if k < shape[1] else 0 * own
            np.testing.assert_array_equal(own, want)


@pytest.mark.parametrize(
    "fill, how, std",
    [
        (init.uniform_, {"a": -1.0, "b": 2.0}, 3 / math.sqrt(12)),
        (init.normal_, {"mean": 1.0, "std": 0.3}, 0.3),
        (init.xavier_uniform_, {"gain": 2.0}, 2 * math.sqrt(2 / 500)),
        (init.xavier_normal_, {}, math.sqrt(2 / 500)),
        (init.kaiming_uniform_, {"a": 0.2}, math.sqrt(2 / (1 + 0.04) / 200)),
        (init.kaiming_normal_, {"mode": "fan_out", "nonlinearity": "tanh"}, 5 / 3 / math.sqrt(300)),
        (init.trunc_normal_, {"std": 0.5}, 0.5),
        (init.orthogonal_, {}, 1 / math.sqrt(300)),
    ],
)
def test_widths_and_generators(fill, how, std):
    x = of(fill, 300, 200, **how)
    assert x.std() == pytest.approx(std, rel=0.02)
    state = mg.get_rng_state().tolist()
    np.testing.assert_array_equal(x, of(fill, 300, 200, **how))
    assert mg.get_rng_state().tolist() == state                    # a generator of its own: the common stream rests
    assert (of(fill, 300, 200, seed=1, **how) != x).mean() > 0.99
    there = fill(mg.empty(300, 200, dtype=mg.float64, device="sim:0"), generator=mg.Generator(0), **how)
    np.testing.assert_allclose(there.cpu().numpy(), x, rtol=1e-12)
    assert fill(mg.empty(3, 2, device="meta"), **how).shape == (3, 2)


def test_plain_fillings_and_gains():
    t = nn.Parameter(mg.ones(2, 3))
    assert init.eye_(t) is t and t.tolist() == [[1, 0, 0], [0, 1, 0]] and t.requires_grad
    assert init.constant_(t, 2.5).tolist() == [[2.5] * 3] * 2
    assert init.zeros_(t).tolist() == [[0] * 3] * 2 and init.ones_(t).tolist() == [[1] * 3] * 2
    assert init.calculate_gain("leaky_relu", 1) == 1 and init.calculate_gain("conv_transpose2d") == 1
    for wrong in (
        lambda: init.calculate_gain("cubic"),
        lambda: init.calculate_gain("leaky_relu", True),
        lambda: init.eye_(mg.ones(3)),
        lambda: init.dirac_(mg.ones(3, 3)),
        lambda: init.dirac_(mg.ones(3, 3, 3), 2),
        lambda: init.orthogonal_(mg.ones(3)),
        lambda: init.sparse_(mg.ones(3, 3, 3), 0.1),
        lambda: init.sparse_(mg.ones(3, 3), 1.5),
        lambda: init.kaiming_normal_(mg.ones(3, 3), mode="fan"),
    ):
        with pytest.raises(ValueError):
            wrong()
