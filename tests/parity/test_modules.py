"""Every module of the table has PyTorch's text, state, values and gradients."""

import numpy as np
import pytest

import minigrad as mg
from tests.minigrad.module_rows import RANDOM, ROWS

torch = pytest.importorskip("torch")


def pair(row):
    """The module in both, in float64, with the same parameters and buffers."""
    ours, theirs = row.make(mg.nn).double(), row.make(torch.nn).double()
    assert list(ours.state_dict()) == list(theirs.state_dict())
    rng = np.random.default_rng(7)
    with mg.no_grad(), torch.no_grad():
        for a, b in zip(ours.parameters(), theirs.parameters()):
            assert a.shape == tuple(b.shape)
            values = rng.uniform(0.2, 0.9, a.shape)
            a.copy_(mg.tensor(values))
            b.copy_(torch.tensor(values))
    return ours, theirs


@pytest.mark.parametrize("row", [*ROWS, *RANDOM], ids=str)
def test_text_and_state(row):
    ours, theirs = pair(row)
    assert repr(ours) == repr(theirs)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("row", ROWS, ids=str)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
def test_values_gradients_and_buffers(row, training):
    found = []
    for package, module in zip((mg, torch), pair(row)):
        xs = [package.tensor(a) for a in row.arrays()]
        x = xs[0].requires_grad_() if xs[0].dtype == package.float64 else xs[0]
        y = module.train(training)(x, *xs[1:])
        y = module(x, *xs[1:]) if training else y                  # twice: running statistics move twice
        up = package.tensor(np.random.default_rng(1).standard_normal(tuple(y.shape)))
        if y.requires_grad:
            (y * up).sum().backward()
        grads = [x.grad, *(p.grad for p in module.parameters())]
        found.append([y.detach(), *(g for g in grads if g is not None), *module.buffers()])
    rtol = 1e-7 if row.kind == "Hardsigmoid" else 1e-9             # of which PyTorch keeps 1/6 in float32
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=rtol, atol=1e-11)
