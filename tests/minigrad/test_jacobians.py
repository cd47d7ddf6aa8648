"""Jacobians, Hessians and their products: closed forms, each other, and central differences."""

import numpy as np
import pytest

import minigrad as mg
from minigrad.autograd import functional as AF

RNG = np.random.default_rng(0)


def leaf(*shape):
    return mg.tensor(RNG.standard_normal(shape))


def two(x, y):
    """(2, 3), (3,) -> (2, 3), (): every pair depends."""
    return (x * y).sin() + y.sum(), (x.exp().sum() * y.prod())


def differences(f, xs, k, i, eps=1e-6):
    """∂f[k]/∂xs[i] as central differences."""
    out = np.zeros((*f(*xs)[k].shape, *xs[i].shape))
    for at in np.ndindex(*xs[i].shape):
        moved = []
        for s in (eps, -eps):
            arrays = [x.detach().numpy().copy() for x in xs]
            arrays[i][at] += s
            moved.append(f(*map(mg.tensor, arrays))[k].numpy())
        out[(..., *at)] = (moved[0] - moved[1]) / (2 * eps)
    return out


@pytest.mark.parametrize("how", [{}, {"vectorize": True}, {"strategy": "forward-mode"}], ids=str)
def test_jacobian_of_two_outputs_by_two_inputs(how):
    xs = leaf(2, 3), leaf(3)
    J = AF.jacobian(two, xs, **how)
    assert len(J) == 2 and len(J[0]) == 2
    for k in range(2):
        for i in range(2):
            assert not J[k][i].requires_grad
            np.testing.assert_allclose(J[k][i].numpy(), differences(two, xs, k, i), atol=1e-8)


def test_nesting_follows_inputs_and_outputs():
    x, y = leaf(3), leaf(3)
    assert AF.jacobian(lambda a: a * 2, x).shape == (3, 3)
    (block,) = AF.jacobian(lambda a: a * 2, (x,))
    assert block.shape == (3, 3)
    ((block,),) = AF.jacobian(lambda a: (a * 2,), (x,))
    out, found = AF.vjp(lambda a, b: (a * b, a + b), (x, y), (x, y))
    assert isinstance(out, tuple) and isinstance(found, tuple)
    np.testing.assert_allclose(found[0].numpy(), (x * y + y).numpy())
    assert AF.jacobian(lambda a: a[:0] * 2, x).shape == (0, 3)
    assert AF.jacobian(lambda a: a.sum(), x).shape == (3,)


def test_products_are_products_with_the_whole():
    xs, vs, us = (leaf(2, 3), leaf(3)), (leaf(2, 3), leaf(3)), (leaf(2, 3), leaf())
    J = AF.jacobian(two, xs)
    _, right = AF.jvp(two, xs, vs)
    _, left = AF.vjp(two, xs, us)
    for k in range(2):
        want = sum(np.tensordot(J[k][i].numpy(), v.numpy(), v.ndim) for i, v in enumerate(vs))
        np.testing.assert_allclose(right[k].numpy(), want)
    for i in range(2):
        want = sum(np.tensordot(u.numpy(), J[k][i].numpy(), u.ndim) for k, u in enumerate(us))
        np.testing.assert_allclose(left[i].numpy(), want)


def test_hessian_and_its_products():
    xs, vs = (leaf(2, 3), leaf(3)), (leaf(2, 3), leaf(3))
    f = lambda x, y: (x * y).sin().sum() * y.exp().sum()  # noqa: E731
    H = AF.hessian(f, xs)
    gradient = lambda x, y: AF.vjp(f, (x, y))[1]  # noqa: E731
    for i in range(2):
        for j in range(2):
            np.testing.assert_allclose(H[i][j].numpy(), differences(gradient, xs, i, j), atol=1e-7)
    for product in (AF.hvp, AF.vhp):
        value, found = product(f, xs, vs)
        np.testing.assert_allclose(value.numpy(), f(*xs).numpy())
        for i in range(2):
            want = sum(np.tensordot(H[i][j].numpy(), v.numpy(), v.ndim) for j, v in enumerate(vs))
            np.testing.assert_allclose(found[i].numpy(), want)
    forward = AF.hessian(f, xs, outer_jacobian_strategy="forward-mode")
    np.testing.assert_allclose(forward[0][1].numpy(), H[0][1].numpy())


def test_create_graph_differentiates_on():
    x = leaf(3).requires_grad_()
    cube = lambda a: (a**3).sum()  # noqa: E731
    for found, want in (
        (AF.jacobian(lambda a: a**3, x, create_graph=True), 6 * x),
        (AF.vjp(cube, x, create_graph=True)[1], 6 * x),
        (AF.jvp(cube, x, mg.ones(3, dtype=mg.float64), create_graph=True)[1], 6 * x),
        (AF.hessian(cube, x, create_graph=True), 6 * mg.ones(3)),
        (AF.hvp(cube, x, mg.ones(3, dtype=mg.float64), create_graph=True)[1], 6 * mg.ones(3)),
    ):
        (g,) = mg.autograd.grad(found.sum(), x)
        np.testing.assert_allclose(g.numpy(), want.detach().numpy())


def test_derivatives_are_by_the_argument_and_leave_grad_alone():
    """The same tensor, captured by the function, is a constant for it."""
    x = leaf(3).requires_grad_()
    for how in (False, True):
        J = AF.jacobian(lambda a: a * x, x, create_graph=how)
        np.testing.assert_allclose(J.detach().numpy(), np.diag(x.detach().numpy()))
    assert x.grad is None
    with mg.no_grad():
        J = AF.jacobian(lambda a: a * a, x)
    np.testing.assert_allclose(J.numpy(), np.diag(2 * x.detach().numpy()))


def test_what_does_not_depend_is_zero_or_refused():
    x, y = leaf(2), leaf(2)
    J = AF.jacobian(lambda a, b: a * 2, (x, y))
    assert not J[1].numpy().any()
    np.testing.assert_array_equal(AF.jvp(lambda a, b: a * 2, (x, y), (x, y))[1].numpy(), 2 * x.numpy())
    assert not AF.hessian(lambda a: a.sum(), x).numpy().any()
    assert not AF.jacobian(lambda a: mg.ones(2), x).numpy().any()
    for call, what in (
        (lambda: AF.jacobian(lambda a, b: a * 2, (x, y), strict=True), "input 1"),
        (lambda: AF.jacobian(lambda a: mg.ones(2), x, strict=True), "output 0"),
        (lambda: AF.hessian(lambda a: a.sum(), x, strict=True), "depend"),
        (lambda: AF.vjp(lambda a: a * 2, x), "v may be left out"),
        (lambda: AF.vjp(lambda a: a * 2, x, leaf(3)), r"\(3,\)"),
        (lambda: AF.jvp(lambda a: a * 2, x, leaf(3)), r"\(3,\)"),
        (lambda: AF.hessian(lambda a: a * 2, x), "one number"),
        (lambda: AF.jacobian(lambda a: a, x, strategy="sideways"), "sideways"),
    ):
        with pytest.raises((RuntimeError, ValueError), match=what):
            call()
    with pytest.raises(TypeError, match="float"):
        AF.jacobian(lambda a: 1.0, x)


def test_second_check_of_several_inputs_and_outputs():
    xs = [leaf(2, 3).requires_grad_(), leaf(3).requires_grad_()]
    assert mg.autograd.gradcheck(two, xs) and mg.autograd.gradgradcheck(two, xs)
