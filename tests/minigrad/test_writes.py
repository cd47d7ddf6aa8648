"""A saved value that was written afterwards is noticed, through whatever alias: backward raises, with both lines."""

import numpy as np
import pytest

import minigrad as mg
from minigrad.errors import GraphError
from minigrad.tensor import Writes


def leaf(data, dtype=mg.float64):
    return mg.tensor(data, dtype=dtype, requires_grad=True)


def through(write, device="cpu"):
    x = leaf([1.0, 2.0]).to(device).detach().requires_grad_()
    y = x.exp()
    z = (y * y).sum()
    write(y)
    return x, z


@pytest.mark.parametrize(
    "write",
    [
        lambda y: y.add_(1),
        lambda y: y[0].mul_(2),
        lambda y: y.detach().zero_(),
        lambda y: y.detach()[1:].add_(1),
        lambda y: y.reshape(2, 1).t().fill_(3),
        lambda y: y.data.mul_(2),
        lambda y: y.__setitem__([0], 1.0),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "sim:0"])
def test_a_write_through_any_alias_makes_saved_values_stale(write, device):
    _, z = through(write, device)
    with pytest.raises(GraphError, match="(?s)changed in place.*test_writes.py.*test_writes.py.*clone"):
        z.backward()


@pytest.mark.parametrize("create_graph", [False, True])
def test_grad_looks_at_writes_too(create_graph):
    x = leaf([1.0, 2.0])
    y = x.exp()
    z = (y * y).sum()
    y[0] = 1
    with pytest.raises(GraphError, match="changed in place"):
        mg.autograd.grad(z, x, create_graph=create_graph)


def test_an_alias_made_by_numpy_is_seen_too():
    _, z = through(lambda y: mg.from_numpy(y.detach().numpy()[1:]).add_(1))
    with pytest.raises(GraphError, match="changed in place"):
        z.backward()


def test_raw_writes_are_seen_when_they_are_noted():
    """What an optimiser does.  A write through .numpy() is not seen: NumPy tells nobody."""

    def raw(y):
        y.array[...] = 0
        Writes.note(y.array)

    _, z = through(raw)
    with pytest.raises(GraphError, match="changed in place"):
        z.backward()


def test_writes_that_no_rule_minds():
    """Before the use; to a clone; where only the shape is needed; after backward."""
    x = leaf([1.0, 2.0])
    y = x * 2
    y.add_(1)
    z = (y * y).sum() + y.clone().zero_().sum()
    s = y.sum()
    z.backward(retain_graph=True)
    y.zero_()
    s.backward(retain_graph=True)
    assert x.grad.tolist() == [2 * 2 * 3 + 2, 2 * 2 * 5 + 2]
    with pytest.raises(GraphError, match="changed in place"):
        z.backward()


def test_an_index_changed_after_its_use_raises():
    """A021"""
    x, i = leaf([1.0, 2.0, 3.0]), mg.tensor([0, 2])
    y = x[i].sum()
    i.fill_(1)
    with pytest.raises(GraphError, match="index"):
        y.backward()


def test_a_parameter_stepped_between_forward_and_backward_raises():
    w, x = leaf([2.0]), leaf([3.0])
    y = w * x
    with mg.no_grad():
        w -= 0.5
    with pytest.raises(GraphError, match="changed in place"):
        y.sum().backward()


def test_exchanging_data_is_a_write():
    w, x = leaf([2.0]), leaf([3.0])
    y = w * x
    w.data = mg.tensor([5.0], dtype=mg.float64)
    with pytest.raises(GraphError, match="changed in place"):
        y.sum().backward()
    (w * x).sum().backward()
    assert x.grad.item() == 5


def test_data_may_move_to_another_device():
    w = leaf([2.0])
    w.data = w.data.to("sim:0")
    (w * 3).sum().backward()
    assert w.device == w.grad.device == mg.device("sim:0") and w.grad.item() == 3


SEVERAL_STEPS = {
    "renorm_": (2, 0, 0.5), "lerp_": (mg.ones(3, 2, dtype=mg.float64), 0.3), "cumprod_": (0,), "nan_to_num_": (),
    "addcmul_": (mg.ones(3, 2, dtype=mg.float64), mg.ones(3, 2, dtype=mg.float64)), "float_power_": (3,),
    "logit_": (0.1,),
}


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("name", SEVERAL_STEPS)
def test_a_method_of_several_steps_keeps_the_values_that_it_overwrites(name, view):
    """The gradient in place is that of the form without `_`, though steps before the last saved what is written."""
    host = np.random.default_rng(4).uniform(0.2, 0.8, (3, 2))
    args, grads = SEVERAL_STEPS[name], []
    for method in (name, name.removesuffix("_")):
        x = mg.tensor(host, requires_grad=True)
        y = x * 2
        y = y.reshape(3, 2)[:] if view else y
        z = getattr(y, method)(*args)
        (z * mg.tensor(host + 1)).sum().backward()
        grads.append(x.grad.numpy())
    np.testing.assert_allclose(grads[0], grads[1], rtol=1e-12)


def test_a_running_product_of_a_number_in_place():
    """The step that saves a view of the number as a vector keeps its own copy."""
    x = mg.tensor(3.0, requires_grad=True)
    y = x * 1
    y.cumprod_(0)
    y.backward()
    assert x.grad.item() == 1


# -- axes in place


@pytest.mark.parametrize("name, args, shape", [
    ("t_", (), (3, 2)), ("transpose_", (0, 1), (3, 2)), ("unsqueeze_", (1,), (2, 1, 3)), ("squeeze_", (), (2, 3)),
    ("swapaxes_", (0, -1), (3, 2)), ("swapdims_", (1, 0), (3, 2)),
])
@pytest.mark.parametrize("of_a_view", [False, True])
def test_axes_change_in_place(name, args, shape, of_a_view):
    """The tensor itself has other axes, its memory and its history; a write goes through to the base."""
    x = mg.tensor(np.arange(12.0).reshape(4, 3), requires_grad=True)
    h = x[:2] * 1 if not of_a_view else (x * 1)[:2]
    want = getattr(x[:2], name[:-1])(*args).detach().numpy()
    array = h.array
    assert getattr(h, name)(*args) is h and h.shape == shape and np.shares_memory(h.array, array)
    np.testing.assert_array_equal(h.detach().numpy(), want)
    h.mul_(3)
    g = np.random.default_rng(0).standard_normal(shape)
    (h * mg.tensor(g)).sum().backward()
    back = x.detach() * 0
    getattr(back[:2], name[:-1])(*args).copy_(mg.tensor(g * 3))
    np.testing.assert_allclose(x.grad.numpy(), back.numpy())


def test_axes_in_place_are_refused_where_others_count_on_them():
    h = mg.ones(2, 3)
    row = h[0]
    with pytest.raises(GraphError, match="views"):
        h.t_()
    with pytest.raises(GraphError, match="leaf"):
        mg.ones(2, 3, requires_grad=True).t_()
    assert h.shape == (2, 3) and row.shape == (3,)
