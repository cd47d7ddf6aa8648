"""Values at which a gradient, a loss or an argument is easily wrong: ties, NaN, infinity, 0, singular, out of range.

Each test names the fault that was possible; expected values are closed forms, mostly PyTorch's choice too.
"""

import io
import math

import numpy as np
import pytest

import minigrad as mg
from minigrad import nn

F, inf, nan = nn.functional, math.inf, math.nan


def d(data, grad=True):
    return mg.tensor(data, dtype=mg.float64, requires_grad=grad)


def slopes(y, *xs, up=None):
    y = y if up is None else y * d(up, False)
    return [g.tolist() for g in mg.autograd.grad(y.sum(), xs)]


# ---- gradients at special values -------------------------------------------------------------------
@pytest.mark.parametrize("f", [mg.maximum, mg.minimum])
def test_a_nan_in_maximum_does_not_swallow_the_gradient(f):
    a, b = d([nan, 1.0, nan]), d([1.0, nan, nan])
    assert slopes(f(a, b), a, b, up=[2.0, 3.0, 5.0]) == [[2.0, 3.0, 5.0]] * 2


def test_median_of_all_shares_among_equal_elements():
    x = d([2.0, 1.0, 2.0, 2.0, 5.0])
    assert slopes(x.median(), x, up=6.0) == [[2.0, 0.0, 2.0, 2.0, 0.0]]
    y = d([1.0, nan, 3.0, nan])
    assert slopes(y.median(), y) == [[0.0, 0.5, 0.0, 0.5]]


@pytest.mark.parametrize("b", [0, 0.0])
def test_zero_to_a_negative_power_has_an_infinite_slope(b):
    x = d([-2.0, 1.0])
    with np.errstate(divide="ignore"):
        assert slopes(b**x, x) == [[-inf, 0.0]]


@pytest.mark.parametrize("p", [-1, -0.5])
def test_norm_of_a_negative_power_is_zero_where_an_element_is(p):
    x = d([[0.0, 3.0], [2.0, 2.0]])
    y = x.norm(p=p, dim=1)
    np.testing.assert_allclose(y.tolist(), [0.0, 2 * 2 ** (1 / p)])
    (g,) = slopes(y, x)
    assert g[0] == [0.0, 0.0] and g[1][0] == g[1][1] > 0


def test_variance_of_too_few_elements_is_infinite():
    x = d([1.0, 2.0, 4.0], False)
    assert x.var(correction=3).item() == x.var(correction=5).item() == inf
    with np.errstate(invalid="ignore"):
        assert math.isnan(d([3.0], False).var().item())


@pytest.mark.parametrize("rows", [[[1.0, 2.0], [2.0, 4.0]], [[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [0.0, 1.0, 5.0]], [[0]]])
def test_the_determinant_of_a_singular_matrix_has_a_gradient(rows):
    x = np.array(rows)
    n = len(x)
    cofactor = lambda i, j: (-1) ** (i + j) * np.linalg.det(np.delete(np.delete(x, i, 0), j, 1))
    want = [[cofactor(i, j) for j in range(n)] for i in range(n)]
    t = d(rows)
    np.testing.assert_allclose(slopes(t.det(), t, up=3.0)[0], 3 * np.array(want), atol=1e-12)


def test_the_second_derivative_of_a_singular_determinant():
    x = d([[1.0, 2.0], [2.0, 4.0]])
    (g,) = mg.autograd.grad(x.det(), x, create_graph=True)
    assert slopes(g, x, up=[[1.0, 2.0], [3.0, 4.0]]) == [[[4.0, -3.0], [-2.0, 1.0]]]
    assert mg.gradgradcheck(lambda x: x.det(), [d([[1.0, 2.0, 0.0], [2.0, 4.0, 1.0], [3.0, 0.0, 2.0]])])


@pytest.mark.parametrize("x", [0.0, 1e-9, 5e-4, 9.9e-4, 1.01e-3, 0.3])
def test_sinc_is_smooth_at_zero(x):
    t = d(x)
    (g,) = mg.autograd.grad(mg.sinc(t), t, create_graph=True)
    z = math.pi * x
    series = [-(math.pi**2) / 3 * x + math.pi**4 / 30 * x**3, -(math.pi**2) / 3 + math.pi**4 / 10 * x * x]
    exact = [(math.cos(z) - math.sin(z) / (z or 1)) / (x or 1)]
    assert g.item() == pytest.approx(series[0] if x < 0.1 else exact[0], rel=1e-9, abs=1e-15)
    if x < 0.1:
        assert slopes(g, t)[0] == pytest.approx(series[1], rel=1e-6)


def test_the_remainder_of_an_infinite_divisor():
    a, b = d([-6.0, 6.0]), d([inf, inf])
    with np.errstate(invalid="ignore"):
        assert slopes(mg.remainder(a, b), a, b) == [[1.0, 1.0], [1.0, 0.0]]


# ---- what gradgradcheck sees -----------------------------------------------------------------------
def test_gradgradcheck_notices_a_gradient_that_is_cut_off_from_its_inputs():
    class Cube(mg.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 3 * (x * x).detach() * g

    x = d([1.0, 2.0])
    assert mg.gradcheck(Cube.apply, x) and not mg.gradgradcheck(Cube.apply, x, raise_exception=False)
    assert mg.gradgradcheck(lambda x: x**3, x) and mg.gradgradcheck(lambda x: x * 2, x)


# ---- functions, views, dtypes ----------------------------------------------------------------------
def test_a_function_may_return_what_is_no_tensor():
    class Labelled(mg.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2, "two", x * 3

        @staticmethod
        def backward(ctx, g, none, h):
            assert none is None
            return g * 2 + h * 3

    x = d([1.0])
    y, word, z = Labelled.apply(x)
    assert word == "two" and slopes(y * 5 + z * 7, x) == [[31.0]]


def test_a_view_whose_base_was_written_retains_the_gradient_of_its_new_value():
    x = d([[1.0, 2.0], [3.0, 4.0]])
    y = x * 2
    w = y[0]
    w.retain_grad()
    y.mul_(2)
    (w * 3).sum().backward()
    assert w.grad.tolist() == [3.0, 3.0] and x.grad.tolist() == [[12.0, 12.0], [0.0, 0.0]]


def test_a_list_of_tensors_keeps_their_dtype():
    assert mg.tensor([d(1.0, False), d(2.0, False)]).dtype == mg.float64
    assert mg.tensor([mg.tensor(1), mg.tensor(2)]).dtype == mg.int64 and mg.tensor([1.0, 2]).dtype == mg.float32


def test_where_with_the_condition_alone_gives_its_places():
    rows, columns = mg.where(mg.tensor([[True, False], [False, True]]))
    assert rows.tolist() == columns.tolist() == [0, 1]


def test_index_fill_counts_from_the_end():
    x = d([1.0, 2.0, 3.0])
    y = x.index_fill(0, mg.tensor([-1, 0]), 7.0)
    assert y.tolist() == [7.0, 2.0, 7.0] and slopes(y, x) == [[0.0, 1.0, 0.0]]
    with pytest.raises(IndexError):
        x.index_fill(0, mg.tensor([-4]), 7.0)


# ---- arguments that were taken silently ------------------------------------------------------------
@pytest.mark.parametrize(
    "call",
    [
        lambda: F.cross_entropy(mg.zeros(2, 3), mg.tensor([0, 1]), weight=mg.ones(2)),
        lambda: F.cross_entropy(mg.zeros(2, 3), mg.ones(2, 3), weight=mg.ones(4)),
        lambda: F.cross_entropy(mg.zeros(2, 3), mg.tensor([0, 1]), label_smoothing=1.5),
        lambda: F.cross_entropy(mg.zeros(2, 3), mg.ones(2, 3), ignore_index=0),
        lambda: F.nll_loss(mg.zeros(2, 3), mg.tensor([0, 1]), weight=mg.ones(2)),
        lambda: F.gaussian_nll_loss(mg.ones(1), mg.ones(1), -mg.ones(1)),
        lambda: F.binary_cross_entropy(mg.tensor([1.5]), mg.ones(1)),
        lambda: F.dropout(mg.ones(1), 1.5),
        lambda: mg.normal(0.0, -1.0, (2,)),
        lambda: mg.normal(mg.zeros(2), mg.tensor([1.0, -1.0])),
    ],
)
def test_refused(call):
    with pytest.raises(ValueError) as error:
        call()
    assert isinstance(error.value, RuntimeError)


# ---- training ----------------------------------------------------------------------------------------
def test_the_norm_of_float16_gradients_does_not_overflow():
    p = mg.zeros(3, dtype=mg.float16, requires_grad=True)
    p.grad = mg.full((3,), 300.0, dtype=mg.float16)
    assert nn.utils.clip_grad_norm_(p, 1.0).item() == pytest.approx(519.6, abs=0.5)
    np.testing.assert_allclose(p.grad.tolist(), 3 * [3**-0.5], rtol=1e-3)


@pytest.mark.parametrize("owner", [lambda m: mg.optim.SGD(m.parameters(), lr=0.1), lambda m: m])
def test_zeroed_gradients_stay_where_they_are(owner):
    m = nn.Linear(2, 1)
    m(mg.ones(1, 2)).sum().backward()
    grad = m.weight.grad
    owner(m).zero_grad(set_to_none=False)
    assert m.weight.grad is grad and grad.tolist() == [[0.0, 0.0]]


def test_load_takes_weights_only():
    file = io.BytesIO()
    mg.save({"a": mg.ones(2)}, file)
    file.seek(0)
    assert mg.load(file, weights_only=True)["a"].tolist() == [1.0, 1.0]


INPLACE = {
    "relu": (),
    "relu6": (),
    "silu": (),
    "mish": (),
    "hardsigmoid": (),
    "hardswish": (),
    "elu": (0.7,),
    "selu": (),
    "celu": (0.7,),
    "hardtanh": (-0.5, 2.0),
    "leaky_relu": (0.2,),
    "threshold": (0.1, 7.0),
    "rrelu": (0.1, 0.3, False),
    "dropout": (1.0, True),
}


@pytest.mark.parametrize("name", INPLACE)
def test_activations_in_place(name):
    f, data = getattr(F, name), [-1.0, -0.3, 0.4, 3.0]
    x, z = d(data), d(data)
    y = x * 1
    out = f(y, *INPLACE[name], inplace=True)
    want = f(z, *INPLACE[name])
    assert out is y and y.tolist() == want.tolist()
    up = [1.0, 2.0, 3.0, 4.0]
    assert slopes(y, x, up=up) == slopes(want, z, up=up)
    assert f(x.detach(), *INPLACE[name], True).tolist() == want.tolist()
    with pytest.raises(RuntimeError):
        f(d(data), *INPLACE[name], inplace=True)


# ---- what a walk to an inner tensor leaves ---------------------------------------------------------
@pytest.mark.parametrize("way", ["grad", "inputs"])
def test_the_graph_beyond_the_inputs_stays_for_another_walk(way):
    x = d([1.0, 2.0])
    h = x * x
    loss = (h * h).sum()
    if way == "grad":
        (g,) = mg.autograd.grad(loss, h)
    else:
        loss.backward(inputs=[h])
        g = h.grad
    assert x.grad is None
    h.backward(g)
    assert x.grad.tolist() == [4.0, 32.0]
    with pytest.raises(RuntimeError, match="second time"):
        mg.autograd.grad(loss, h)


def test_an_inner_tensor_whose_own_graph_is_gone_can_still_be_differentiated_by():
    x = d([1.0, 2.0])
    h = x * x
    h.sum().backward()
    (g,) = mg.autograd.grad((h * 3).sum(), h)
    assert g.tolist() == [3.0, 3.0]
    with pytest.raises(RuntimeError, match="second time"):
        (h * 3).sum().backward()


def test_equal_elements_beyond_float16_share_the_gradient_of_max():
    x = mg.ones(70000, dtype=mg.float16, requires_grad=True)
    (x.max() * 1024).backward()
    np.testing.assert_allclose(x.grad.tolist(), 1024 / 70000, rtol=1e-3)
    y = mg.ones(2, 3000, dtype=mg.float16, requires_grad=True)
    y.amin(1).sum().backward()
    np.testing.assert_allclose(y.grad.tolist(), 1 / 3000, rtol=1e-3)
