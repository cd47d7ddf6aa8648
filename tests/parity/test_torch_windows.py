"""Other sizes, pooling by powers and back, and CTC beside PyTorch: values and gradients.

Optional: skipped where PyTorch is not installed.
"""

import numpy as np
import pytest

import minigrad as mg

torch = pytest.importorskip("torch")

MODES = [("nearest", 1), ("nearest-exact", 2), ("area", 2), ("linear", 1), ("bilinear", 2), ("bicubic", 2),
         ("trilinear", 3), ("nearest", 3)]


def beside(f, *arrays):
    """f(library, functional, *leaves) in both: the same values and the same gradients."""
    found = []
    for lib in (mg, torch):
        xs = [lib.tensor(a, requires_grad=True) for a in arrays]
        y = f(lib, lib.nn.functional, *xs)
        y.backward(lib.tensor(np.random.default_rng(1).standard_normal(tuple(y.shape))))
        found.append([y.detach().numpy(), *(x.grad.numpy() for x in xs)])
    for ours, theirs in zip(*found):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("mode, n", MODES)
@pytest.mark.parametrize("how", [{"scale_factor": 1.7}, {"scale_factor": 0.6, "recompute_scale_factor": True},
                                 {"size": 7}])
@pytest.mark.parametrize("corners", [False, True])
def test_interpolate(mode, n, how, corners):
    how = how | ({"align_corners": corners} if "linear" in mode or mode == "bicubic" else {})
    x = np.random.default_rng(0).standard_normal((1, 2, *(4, 5, 3)[:n]))
    beside(lambda lib, F, x: F.interpolate(x, mode=mode, **how), x)


def test_pools():
    x = np.random.default_rng(0).uniform(0.5, 2, (2, 3, 6, 6))
    beside(lambda lib, F, x: F.lp_pool2d(x, 3, (2, 3), 1), x)
    beside(lambda lib, F, x: F.lp_pool1d(x[0], 2, 2, ceil_mode=True), x)
    beside(lambda lib, F, x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), x)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_ctc(reduction):
    x = np.random.default_rng(0).standard_normal((6, 3, 4))

    def loss(lib, F, x):
        lengths = lib.tensor([6, 5, 6]), lib.tensor([3, 0, 2])
        return F.ctc_loss(x.log_softmax(2), lib.tensor([[1, 1, 2], [3, 3, 3], [2, 2, 0]]), *lengths, 0, reduction)

    beside(loss, x)
