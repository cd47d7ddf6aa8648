"""Linear algebra: what each decomposition promises, and gradients of losses that do not see signs."""

import math

import numpy as np
import pytest

import minigrad as mg

L = mg.linalg
F8 = mg.float64


def matrix(*shape, seed=0):
    return mg.tensor(np.random.default_rng(seed).standard_normal(shape), requires_grad=True)


@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 4), (2, 3, 2)])
def test_decompositions_multiply_back(shape):
    a = matrix(*shape)
    u, s, vh = L.svd(a, full_matrices=False)
    np.testing.assert_allclose((u * s.unsqueeze(-2) @ vh).detach().numpy(), a.detach().numpy(), atol=1e-12)
    full = L.svd(a)
    for part, n in ((full.U, shape[-2]), (full.Vh, shape[-1])):
        assert part.shape[-2:] == (n, n)
        np.testing.assert_allclose((part @ part.mT).detach().numpy() - np.eye(n), 0, atol=1e-12)
    for mode in ("reduced", "complete"):
        q, r = L.qr(a, mode)
        np.testing.assert_allclose((q @ r).detach().numpy(), a.detach().numpy(), atol=1e-12)
    p = L.pinv(a)
    np.testing.assert_allclose((a @ p @ a).detach().numpy(), a.detach().numpy(), atol=1e-12)


LOSSES = {
    "svd": lambda a: (lambda r: (r[0].abs() * 0.3).sum() + (r[1] ** 2).sum() + (r[2] ** 4).sum())(L.svd(a, False)),
    "svdvals": lambda a: (L.svdvals(a) ** 3).sum(),
    "qr": lambda a: (lambda r: (r.Q ** 4).sum() + (r.R ** 2).sum())(L.qr(a)),
    "pinv": lambda a: (L.pinv(a) ** 2).sum(),
    "lstsq": lambda a: L.lstsq(a, mg.ones(a.shape[-2], 2, dtype=F8))[0].sin().sum(),
    "nuc": lambda a: L.matrix_norm(a, "nuc") ** 2,
    "2": lambda a: L.matrix_norm(a, 2) ** 2,
}


@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 4)])
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_of_both_orders(name, shape):
    a = matrix(*shape, seed=5)
    assert mg.gradcheck(LOSSES[name], (a,)) and mg.gradgradcheck(LOSSES[name], (a,))


SQUARE = {
    "matrix_exp": lambda a: L.matrix_exp(a).sin().sum(),
    "eigh": lambda a: (lambda r: (r[0] ** 3).sum() + (r[1] ** 4).sum())(L.eigh(a + a.mT)),
    "cond": lambda a: L.cond(a),
    "triangular": lambda a: L.solve_triangular(a, mg.ones(3, 2, dtype=F8), upper=True).sum(),
    "power": lambda a: L.matrix_power(a, 3).sum(),
    "cholesky_solve": lambda a: mg.cholesky_solve(
        mg.ones(3, 1, dtype=F8), L.cholesky(a @ a.mT + mg.eye(3, dtype=F8))).sum(),
}


@pytest.mark.parametrize("name", SQUARE)
def test_gradients_of_square_matrices(name):
    assert mg.gradcheck(SQUARE[name], (matrix(3, 3, seed=2),))


def test_equal_singular_values_do_no_harm_to_their_sum():
    a = mg.eye(3, dtype=F8, requires_grad=True)
    L.matrix_norm(a, "nuc").backward()
    np.testing.assert_allclose(a.grad.numpy(), np.eye(3), atol=1e-12)


def test_the_exponential_of_a_turn_is_a_rotation():
    a = mg.tensor([[0.0, -20.0], [20.0, 0.0]], dtype=F8)
    want = [[math.cos(20), -math.sin(20)], [math.sin(20), math.cos(20)]]
    np.testing.assert_allclose(L.matrix_exp(a).numpy(), want, atol=1e-12)


def test_rank_and_refusals():
    a = mg.tensor([[1.0, 2], [2, 4], [0, 0]])
    assert L.matrix_rank(a).item() == 1
    for bad in (lambda: L.qr(mg.ones(3)), lambda: L.svd(mg.ones(2, 2, dtype=mg.int64)), lambda: L.inv(mg.ones(2, 3)),
                lambda: L.matrix_norm(a, 3), lambda: L.qr(a, "half"), lambda: L.solve(a, a)):
        with pytest.raises(RuntimeError):
            bad()
