"""Ops that work in blocks on the host equal their plain formula, across the borders of blocks and at the extremes."""

import numpy as np
import pytest

import minigrad as mg
import minigrad.nn.functional as F
from minigrad.autograd import grad
from minigrad.ops import gelu, layer_norm

RNG = np.random.default_rng(0)


def same_gradients(y, leaves, rtol, atol):
    """By blocks, and by the rules on tensors, which are the plain formula."""
    g = mg.tensor(RNG.standard_normal(y.shape), dtype=y.dtype)
    for a, b in zip(grad(y, leaves, g, create_graph=True), grad(y, leaves, g)):
        assert a.dtype == b.dtype == y.dtype
        np.testing.assert_allclose(a.detach(), b.detach(), rtol=rtol, atol=atol)


@pytest.mark.parametrize("block", [1 << 14, 1000])
@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize(("dtype", "rtol"), [(mg.float64, 1e-11), (mg.float32, 1e-4)], ids=str)
def test_gelu(block, approximate, dtype, rtol, monkeypatch):
    """float32: a share near 1 has lost what it lacks of 1, which a large x multiplies: 20 ulp of the slope at x = 4."""
    monkeypatch.setattr(gelu, "BLOCK", block)
    numbers = np.linspace(-60, 60, 4001), np.zeros(3), [1e-30, -1e-20, -0.0], RNG.standard_normal(3000)
    x = mg.tensor(np.concatenate(numbers), dtype=dtype, requires_grad=True)
    y = F.gelu(x, approximate)
    small = mg.cat([F.gelu(part, approximate) for part in x.detach().split(1000)])  # too small for blocks
    np.testing.assert_allclose(y.detach(), small, rtol=rtol, atol=1e-6 if dtype == mg.float32 else 1e-12)
    same_gradients(y, [x], rtol, 1e-5 if dtype == mg.float32 else 1e-11)
    for strange in (x[:7000].reshape(7, 1000).mT, x[::2]):
        plain, blocks = F.gelu(strange, approximate), F.gelu(strange.contiguous(), approximate)
        np.testing.assert_allclose(plain.detach(), blocks.detach(), rtol=rtol, atol=1e-6)


@pytest.mark.parametrize("block", [1 << 16, 7, 1])
@pytest.mark.parametrize("needs", [(1, 1, 1), (1, 0, 0), (0, 1, 0), (0, 0, 1)], ids=str)
def test_layer_norm(block, needs, monkeypatch):
    monkeypatch.setattr(layer_norm, "BLOCK", block)
    sizes = zip(((5, 3, 4), 4, 4), needs)
    x, w, b = (mg.tensor(RNG.standard_normal(s) * 3 + 1, requires_grad=bool(n)) for s, n in sizes)
    y = F.layer_norm(x, (4,), w, b)
    a, scale, shift = (t.detach().numpy() for t in (x, w, b))
    want = (a - a.mean(-1, keepdims=True)) / np.sqrt(a.var(-1, keepdims=True) + 1e-5) * scale + shift
    np.testing.assert_allclose(y.detach(), want, rtol=1e-12)
    same_gradients(y, [t for t in (x, w, b) if t.requires_grad], 1e-10, 1e-12)


def test_layer_norm_of_a_constant_row_and_of_a_large_one():
    x = mg.full((2, 300), 7.0, requires_grad=True)
    y = F.layer_norm(x, (300,))
    assert np.abs(y.detach().numpy()).max() < 1e-2          # a rounded mean, over the square root of eps
    far = RNG.standard_normal((4, 300)).astype("f4") + 1000
    want = (far - far.astype("f8").mean(1, keepdims=True)) / far.astype("f8").std(1, keepdims=True)
    np.testing.assert_allclose(F.layer_norm(mg.tensor(far), (300,)), want, atol=1e-3)  # 6e-5 is an ulp of 1,000


def test_one_matrix_for_a_whole_stack():
    for shape in ((2, 3, 4), (2, 0, 4), (2, 2, 3, 4)):
        a, b = (mg.tensor(RNG.standard_normal(s), requires_grad=True) for s in (shape, (4, 5)))
        y, stacked = a @ b, a @ b.expand(*shape[:-2], 4, 5)
        np.testing.assert_allclose(y.detach(), stacked.detach(), rtol=1e-12)
        g = mg.tensor(RNG.standard_normal(y.shape))
        for u, v in zip(grad(y, [a, b], g), grad(stacked, [a, b], g)):
            np.testing.assert_allclose(u, v, rtol=1e-10, atol=1e-12)
