"""Every module of the table is its function, keeps its state, and obeys the laws that all modules obey."""

import copy

import numpy as np
import pytest

import minigrad as mg
import minigrad.nn.functional as F
from minigrad import nn
from minigrad.autograd import grad
from tests.minigrad.module_rows import ACTIVATIONS, RANDOM, ROWS

EVERY = [*ROWS, *RANDOM]


def made(row):
    """The module in float64, its parameters drawn so that none is 0 or 1."""
    mg.manual_seed(2)
    module, rng = row.make(nn).double(), np.random.default_rng(7)
    with mg.no_grad():
        for p in module.parameters():
            p.copy_(mg.tensor(rng.uniform(0.2, 0.9, p.shape)))
    return module


def inputs(row, seed=0):
    xs = [mg.tensor(a) for a in row.arrays(seed)]
    return [x.requires_grad_() if x.dtype == mg.float64 and k == 0 else x for k, x in enumerate(xs)]


def gradients(module, y, xs):
    rng = np.random.default_rng(5)
    wanted = [*module.parameters(), *(x for x in xs if x.requires_grad)]
    return grad(y, wanted, mg.tensor(rng.standard_normal(y.shape)), allow_unused=True)


@pytest.mark.parametrize("row", EVERY, ids=str)
def test_a_module_equals_its_function(row):
    module, xs = made(row), inputs(row)
    state = mg.get_rng_state()
    y = module(*xs)
    mg.set_rng_state(state)
    z = row.function(F, module, *xs)
    assert y.shape == z.shape and y.dtype == z.dtype
    np.testing.assert_allclose(y.detach().numpy(), z.detach().numpy(), rtol=1e-12, atol=1e-12)
    if y.requires_grad:
        for a, b in zip(gradients(module, y, xs), gradients(module, z, xs)):
            assert (a is None) == (b is None)
            if a is not None:
                np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("row", EVERY, ids=str)
def test_a_state_goes_round_and_a_copy_is_the_same(row):
    module, xs = made(row), inputs(row)
    module.eval()
    other = row.make(nn).double().eval()
    assert repr(other) == repr(module) == repr(copy.deepcopy(module)) and row.kind in repr(module)
    other.load_state_dict(module.state_dict())
    want = module(*xs).detach().numpy()
    np.testing.assert_array_equal(other(*xs).detach().numpy(), want)
    np.testing.assert_array_equal(copy.deepcopy(module)(*xs).detach().numpy(), want)


@pytest.mark.parametrize("row", EVERY, ids=str)
def test_the_same_on_sim_and_the_same_shape_on_meta(row):
    module, xs = made(row).eval(), inputs(row)
    want = module(*xs).detach().numpy()
    there = module.to("sim:0")(*(x.detach().to("sim:0") for x in xs))
    np.testing.assert_allclose(there.detach().cpu().numpy(), want, rtol=1e-9, atol=1e-12)
    ghost = row.make(nn).double().eval().to("meta")(*(x.detach().to("meta") for x in xs))
    assert ghost.shape == want.shape and ghost.dtype == mg.float64


@pytest.mark.parametrize("row", RANDOM, ids=str)
def test_random_modules_rest_in_evaluation(row):
    module, (x,) = made(row), inputs(row)
    assert module.eval()(x) is x
    y = module.train()(x).detach().numpy()
    assert (y != x.detach().numpy()).any()
    changed = copy.deepcopy(x.detach())
    module.inplace = True
    assert module(changed) is changed and (changed.numpy() != x.detach().numpy()).any()


@pytest.mark.parametrize("row", [r for r in ACTIVATIONS if hasattr(r.make(nn), "inplace")], ids=str)
def test_in_place_activations_write_into_their_input(row):
    module, (x,) = made(row), inputs(row)
    want = module(x)
    module.inplace = True
    if not type(module).inplace and "inplace" in type(module).__init__.__code__.co_varnames:
        y = x * 1
        assert module(y) is y
        np.testing.assert_array_equal(y.detach().numpy(), want.detach().numpy())
        for a, b in zip(gradients(module, y, [x]), gradients(module, want, [x])):
            np.testing.assert_allclose(a.numpy(), b.numpy())
        with pytest.raises(RuntimeError, match="leaf"):
            module(x)


# ---- what the table cannot say -------------------------------------------------------------------
def test_dropout_of_whole_channels():
    mg.manual_seed(0)
    for module, shape, lead in (
        (nn.Dropout1d(0.5), (8, 6, 3), 2),
        (nn.Dropout1d(0.5), (40, 3), 1),
        (nn.Dropout2d(0.5), (8, 6, 3, 2), 2),
    ):
        y = module(mg.ones(*shape)).numpy().reshape(*shape[:lead], -1)
        assert (y == y[..., :1]).all() and set(np.unique(y)) == {0.0, 2.0}
        assert 0.25 < (y == 0).mean() < 0.75
    with pytest.raises(ValueError, match="Dropout2d"):
        nn.Dropout2d(1.5)
    with pytest.raises(ValueError, match="dropout1d"):
        nn.Dropout1d()(mg.ones(3))


def test_alpha_dropout_keeps_mean_and_variance():
    mg.manual_seed(0)
    y = nn.AlphaDropout(0.3)(mg.randn(100_000)).numpy()
    assert abs(y.mean()) < 0.02 and abs(y.std() - 1) < 0.02
    assert not nn.AlphaDropout(1.0)(mg.randn(5)).numpy().any()


def test_instance_norm_follows_its_statistics():
    rng, layer = np.random.default_rng(0), nn.InstanceNorm1d(2, momentum=0.3, track_running_stats=True).double()
    mean, var = np.zeros(2), np.ones(2)
    for _ in range(3):
        x = rng.standard_normal((4, 2, 3)) * 2 + 1
        layer(mg.tensor(x))
        mean, var = 0.7 * mean + 0.3 * x.mean((0, 2)), 0.7 * var + 0.3 * x.var(2, ddof=1).mean(0)
    np.testing.assert_allclose(layer.running_mean.numpy(), mean)
    np.testing.assert_allclose(layer.running_var.numpy(), var)
    want = (x - mean[:, None]) / np.sqrt(var[:, None] + 1e-5)
    np.testing.assert_allclose(layer.eval()(mg.tensor(x)).numpy(), want)
    np.testing.assert_allclose(layer(mg.tensor(x[0])).numpy(), want[0])


def test_a_transposed_convolution_reaches_the_size_asked_for():
    layer, x = nn.ConvTranspose1d(2, 3, 3, stride=2), mg.ones(1, 2, 4)
    assert [layer(x, [n]).shape[-1] for n in (9, 10)] == [9, 10]
    with pytest.raises(ValueError, match="output_size"):
        layer(x, [11])


def test_pooling_says_where():
    y, at = nn.MaxPool1d(2, return_indices=True)(mg.tensor([[1.0, 3.0, 2.0, 0.0]]))
    assert y.tolist() == [[3.0, 2.0]] and at.tolist() == [[1, 2]]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: nn.Conv2d(3, 4, 3, groups=2),
        lambda: nn.Conv2d(3, 4, 3, stride=2, padding="same"),
        lambda: nn.Conv1d(3, 4, 3, padding="full"),
        lambda: nn.Conv1d(3, 4, 3, padding_mode="mirror"),
        lambda: nn.ConvTranspose2d(3, 4, 3, padding_mode="reflect"),
        lambda: nn.Conv1d(0, 4, 3),
        lambda: nn.Conv2d(3, 4, 3)(mg.ones(1, 2, 5, 5)),
        lambda: nn.GroupNorm(4, 6),
        lambda: nn.InstanceNorm1d(3)(mg.ones(2, 4, 5)),
        lambda: nn.Softmax()(mg.ones(3)),
        lambda: nn.Softmax2d()(mg.ones(3)),
        lambda: nn.Hardtanh(1.0, 0.0),
        lambda: nn.Upsample(2, mode="bilinear")(mg.ones(1, 2, 3)),
        lambda: nn.Upsample()(mg.ones(1, 2, 3)),
        lambda: nn.Bilinear(2, 3, 4)(mg.ones(1, 3), mg.ones(1, 3)),
        lambda: nn.L1Loss("average"),
        lambda: nn.MultiMarginLoss(3),
        lambda: nn.TripletMarginLoss(0),
        lambda: nn.NLLLoss()(mg.zeros(2, 3), mg.tensor([1])),
    ],
)
def test_what_is_refused(wrong):
    with pytest.raises(ValueError):
        wrong()


# ---- parameters by name and as one vector --------------------------------------------------------
def test_a_dict_of_parameters():
    d = nn.ParameterDict({"a": mg.ones(2), "b": nn.Parameter(mg.zeros(1))})
    assert list(d) == ["a", "b"] == [n for n, _ in d.named_parameters()] == list(d.state_dict())
    d["a"] = mg.zeros(3)
    d["c"] = mg.ones(1)
    assert d["a"].shape == (3,) and isinstance(d["a"], nn.Parameter) and len(d) == 3 and "c" in d
    assert d.pop("b").shape == (1,) and list(d.keys()) == ["a", "c"] and len(d.items()) == len(d.values()) == 2
    assert repr(d).startswith("ParameterDict(\n  (a): Parameter of shape (3,)")
    with pytest.raises(TypeError, match="not a Tensor"):
        d["d"] = 3
    with pytest.raises(KeyError):
        d["e"]
    with pytest.raises(KeyError, match="taken"):
        d["keys"] = mg.ones(1)


def test_parameters_as_a_vector_and_back():
    a, b = nn.Linear(3, 2), nn.Linear(3, 2)
    flat = nn.utils.parameters_to_vector(a.parameters())
    assert flat.shape == (8,) and flat.requires_grad
    nn.utils.vector_to_parameters(flat, b.parameters())
    x = mg.ones(1, 3)
    assert a(x).tolist() == b(x).tolist()
    flat.sum().backward()
    assert a.weight.grad.tolist() == [[1.0] * 3] * 2 and b.weight.grad is None
    with pytest.raises(ValueError, match="8 elements"):
        nn.utils.vector_to_parameters(mg.zeros(7), b.parameters())


@pytest.mark.parametrize("given", [[[1.0, 2.0]], np.ones((1, 2), np.float32), None])
@pytest.mark.parametrize("make", [lambda: nn.Linear(2, 2), lambda: nn.LSTM(2, 2), lambda: nn.RMSNorm(2)])
def test_what_is_no_tensor_is_refused_by_name(make, given):
    with pytest.raises(TypeError, match="expected a Tensor, got .*mg.tensor"):
        make()(given)


def test_an_attribute_missing_elsewhere_stays_an_attribute_error():
    class Broken(nn.Module):
        def forward(self, x):
            return self.nothing(x)

    with pytest.raises(AttributeError, match="nothing"):
        Broken()([1.0])


@pytest.mark.parametrize("how", [{"dtype": mg.int64}, {"dtype": bool}])
def test_a_module_becomes_no_integers(how):
    with pytest.raises(TypeError, match="parameters are floats"):
        nn.Linear(2, 2).to(**how)


def test_a_buffer_takes_no_parameters_name():
    with pytest.raises(KeyError, match="weight is a Parameter already"):
        nn.Linear(2, 2).register_buffer("weight", mg.ones(1))


def test_a_kernel_without_cells_is_refused():
    with pytest.raises(ValueError, match="kernel_size must be at least 1"):
        nn.Conv2d(2, 3, 0)


def test_rms_norm_of_integers_is_refused():
    with pytest.raises(TypeError, match="rms_norm: expected a float"):
        F.rms_norm(mg.ones(2, dtype=mg.int64), (2,))
