"""16-bit floats: sums are kept in float32 and rounded once; bfloat16 where ml_dtypes is installed."""

import numpy as np
import pytest

import minigrad as mg


def _bfloat16():
    pytest.importorskip("ml_dtypes")
    return mg.bfloat16


STEPS = {
    "sum": lambda x: x.sum(),
    "sum of rows": lambda x: x.sum(1),
    "mean": lambda x: x.mean(0),
    "var": lambda x: x.var(1),
    "std": lambda x: x.std(),
    "norm": lambda x: x.norm(),
    "logsumexp": lambda x: x.logsumexp(1),
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(0),
    "cumsum": lambda x: x.cumsum(1),
    "layer_norm": lambda x: mg.nn.functional.layer_norm(x, (x.shape[1],)),
    "cross_entropy": lambda x: mg.nn.functional.cross_entropy(x, mg.arange(x.shape[0]) % x.shape[1]),
    "mse": lambda x: mg.nn.functional.mse_loss(x, x * 0),
}


@pytest.mark.parametrize("name", STEPS)
def test_float16_is_float32_rounded_once(name):
    host = (np.random.default_rng(0).standard_normal((40, 60)) * 3 + 5).astype("f2")
    y, wide = STEPS[name](mg.tensor(host)), STEPS[name](mg.tensor(host.astype("f4")))
    assert y.dtype == mg.float16
    np.testing.assert_array_equal(y.numpy(), wide.numpy().astype("f2"))


def test_a_sum_of_many_halves_is_not_lost():
    x = mg.ones(1 << 16, dtype=mg.float16) * 0.5
    assert x.sum().item() == 32768 and x.mean().item() == 0.5
    big = mg.full((1000,), 1000.0, dtype=mg.float16)
    assert big.mean().item() == 1000 and big.var().item() == 0


@pytest.mark.parametrize("name", STEPS)
def test_bfloat16_is_float32_rounded_once(name):
    kind = _bfloat16()
    x = mg.tensor((np.random.default_rng(0).standard_normal((8, 12)) * 3 + 5).astype("f4")).to(kind)
    y, wide = STEPS[name](x), STEPS[name](x.float())
    assert y.dtype == kind
    np.testing.assert_array_equal(y.float().numpy(), wide.to(kind).float().numpy())


ELEMENTWISE = "exp log1p sqrt tanh sigmoid relu abs neg sin cos square reciprocal floor sign erf".split()


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_bfloat16_elementwise(name):
    kind = _bfloat16()
    x = mg.tensor([0.5, 1.25, 3.0], requires_grad=True)
    half = x.detach().to(kind).requires_grad_()
    y, want = getattr(half, name)(), getattr(x, name)()
    y.backward(mg.ones(3, dtype=kind))
    want.backward(mg.ones(3))
    assert y.dtype == half.grad.dtype == kind
    np.testing.assert_allclose(y.detach().float().numpy(), want.detach().numpy(), rtol=2e-2, atol=1e-2)
    np.testing.assert_allclose(half.grad.float().numpy(), x.grad.numpy(), rtol=3e-2, atol=1e-2)


def test_bfloat16_products_and_choices():
    kind = _bfloat16()
    a, b = mg.randn(3, 4).to(kind), mg.randn(4, 2).to(kind)
    assert (a @ b).dtype == kind
    np.testing.assert_array_equal((a @ b).float().numpy(), (a.float() @ b.float()).to(kind).float().numpy())
    assert a.max().dtype == a.amin(1).dtype == kind and a.argmax().item() == a.float().argmax().item()
    assert mg.cat([a, a]).dtype == (a * 2).dtype == (a + 1.5).dtype == kind and (a > 0).dtype == mg.bool


@pytest.mark.parametrize("name", ["mean", "cumsum", "layer_norm", "mse"])
def test_gradients_of_float16_are_those_of_float32_rounded_once(name):
    """Ops whose rules read only inputs and wide statistics, so that nothing was rounded before."""
    rng = np.random.default_rng(2)
    host = (rng.standard_normal((20, 30)) * 3 + 5).astype("f2")
    x, wide = mg.tensor(host, requires_grad=True), mg.tensor(host.astype("f4"), requires_grad=True)
    y, want = STEPS[name](x), STEPS[name](wide)
    g = rng.standard_normal(y.shape).astype("f2")
    y.backward(mg.tensor(g))
    want.backward(mg.tensor(g.astype("f4")))
    np.testing.assert_array_equal(x.grad.numpy(), wide.grad.numpy().astype("f2"))
