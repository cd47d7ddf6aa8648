"""Views share storage and history: a write is seen by every alias, and its gradient goes the way the value went."""

import numpy as np
import pytest
from hypothesis import given, settings

import minigrad as mg
from minigrad.errors import DTypeError, GraphError, ImplicitTransfer
from tests.minigrad.view_programs import LEAF, OTHER, programs, run, total


def leaf(data, dtype=mg.float64):
    return mg.tensor(data, dtype=dtype, requires_grad=True)


def grid(device="cpu"):
    """A leaf of 2 x 3 and a value made of it that may be written to."""
    x = leaf(np.arange(6.0).reshape(2, 3)).to(device).detach().requires_grad_()
    return x, x * 1


# -- random programs


@settings(max_examples=150, deadline=None, derandomize=True)
@given(programs)
def test_values_equal_numpys_after_any_program(program):
    got, want = run(program, mg.tensor(LEAF), mg.tensor(OTHER)), run(program, LEAF, OTHER)
    for g, w in zip(got, want):
        np.testing.assert_array_equal(g.numpy(), w)


def gradients(program, device="cpu"):
    """(d total / d leaf, d total / d other), or None where a saved value was overwritten, which raises."""
    xs = [mg.tensor(v, device=device, requires_grad=True) for v in (LEAF, OTHER)]
    y = total(run(program, *xs))
    try:
        return [g.cpu().numpy() for g in mg.autograd.grad(y, xs, materialize_grads=True)]
    except GraphError as e:
        assert "changed in place" in str(e)
        return None


@settings(max_examples=150, deadline=None, derandomize=True)
@given(programs)
def test_gradients_equal_differences_after_any_program(program):
    """Never a wrong number: where a value that a rule needs was overwritten, backward raises."""
    found = gradients(program)
    if found is None:
        return
    v, eps = np.cos(np.arange(12.0)).reshape(2, 2, 3), 1e-6
    at = lambda s: total(run(program, LEAF + s * v[0], OTHER + s * v[1]))
    want = (at(eps) - at(-eps)) / (2 * eps)
    assert sum((g * d).sum() for g, d in zip(found, v)) == pytest.approx(want, rel=1e-5, abs=1e-4)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(programs)
def test_devices_agree_after_any_program(program):
    host, device = gradients(program), gradients(program, "sim:0")
    assert (host is None) == (device is None)
    for h, d in zip(host or (), device or ()):
        np.testing.assert_allclose(d, h, rtol=1e-12, atol=1e-12)


def test_few_programs_raise():
    """The law above is not empty: most programs can be differentiated."""
    r = np.random.default_rng(0)
    drawn = [[tuple(map(int, r.integers(0, (9, 10, 10, 10)))) for _ in range(6)] for _ in range(60)]
    assert sum(gradients(program) is not None for program in drawn) > 40


# -- history


def test_a_write_through_a_view_is_recorded_on_the_base():
    x, y = grid()
    y[1].mul_(10)
    y.backward(mg.tensor(np.arange(6.0).reshape(2, 3)))
    assert x.grad.tolist() == [[0, 1, 2], [30, 40, 50]]


def test_siblings_and_their_views_rebuild():
    x, y = grid()
    row, column = y[0], y[:, 0]
    corner = column[0]
    row.mul_(3)
    assert corner.item() == 0 and column.grad_fn is not None
    (corner * 7).backward()
    assert x.grad.tolist() == [[21, 0, 0], [0, 0, 0]]


def test_an_assignment_cuts_the_old_and_feeds_the_new():
    """A017"""
    x, w = leaf([1.0, 2.0, 3.0]), leaf(4.0)
    y = x * 5
    y[1] = w * 2
    y.sum().backward()
    assert x.grad.tolist() == [5, 0, 5] and w.grad.item() == 2


def test_a_constant_base_takes_the_history_of_what_is_written_into_it():
    x, buffer = leaf([1.0, 2.0]), mg.zeros(2, 2, dtype=mg.float64)
    before = buffer[1]
    buffer[0] = x * 3
    assert buffer.requires_grad and before.requires_grad
    (buffer * mg.tensor([[1.0, 10.0], [5.0, 5.0]], dtype=mg.float64)).sum().backward()
    assert x.grad.tolist() == [3, 30]


def test_the_old_value_keeps_its_own_history():
    x, y = grid()
    z = y.sum()
    y.zero_()
    z.backward()
    assert x.grad.tolist() == [[1] * 3] * 2 and y.detach().tolist() == [[0] * 3] * 2


@pytest.mark.parametrize(
    "key, written",
    [
        (0, [[0] * 3, [1] * 3]), ((slice(None), 1), [[1, 0, 1]] * 2), ((0, 0), [[0, 1, 1], [1] * 3]),
        (Ellipsis, [[0] * 3] * 2), (slice(None, None, -1), [[0] * 3] * 2), ([1], [[1] * 3, [0] * 3]),
        (([0, 1], [2, 0]), [[1, 1, 0], [0, 1, 1]]), ((slice(None), [0, 2]), [[0, 1, 0]] * 2),
        (np.array([[True, False, False], [False, True, True]]), [[0, 1, 1], [1, 0, 0]]),
        (np.array([False, True]), [[1] * 3, [0] * 3]), ((0, [0, 0]), [[0, 1, 1], [1] * 3]),
        ((None, 1), [[1] * 3, [0] * 3]), ([], [[1] * 3] * 2),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "sim:0"])
def test_assignment_by_every_kind_of_key(key, written, device):
    """Values as NumPy's; the gradient is 0 where the write was and 1 elsewhere; the value's own counts its places."""
    x, y = grid(device)
    w = leaf(2.5).to(device).detach().requires_grad_()
    want = np.arange(6.0).reshape(2, 3)
    want[key] = 2.5
    y[key if device == "cpu" or not isinstance(key, np.ndarray) else mg.tensor(key, device=device)] = w
    np.testing.assert_array_equal(y.detach().cpu().numpy(), want)
    y.sum().backward()
    assert x.grad.tolist() == written and w.grad.item() == np.full(want.shape, 1.0)[key].size


def test_a_host_array_is_no_index_of_a_device_tensor():
    """Every mix of host and device is refused; Python lists are values, as numbers are."""
    x = mg.zeros(3, device="sim:0")
    with pytest.raises(ImplicitTransfer, match="index: ndarray is on the host"):
        x[np.array([0])]
    with pytest.raises(ImplicitTransfer, match="index: ndarray is on the host"):
        x[np.array([0])] = 1
    assert x[[0, 1]].shape == (2,)


def test_augmented_assignment_writes_in_place_and_counts_a_place_once():
    """A057"""
    g = mg.zeros(3)
    alias, kept = g.detach(), g
    g[[1, 1, 2]] += 1
    g += 1
    assert g is kept and alias.tolist() == [1, 2, 2]


def test_in_place_on_what_the_op_itself_saves():
    """The node keeps a copy of its own of the values it overwrites: h *= w, h.abs_(), h **= 2 as in PyTorch."""
    x, w = leaf([-1.0, 2.0]), leaf([3.0, 4.0])
    h = x * 1
    h *= w
    h.abs_()
    h **= 2
    h.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * np.array([-1.0, 2.0]) * np.array([9.0, 16.0]))
    np.testing.assert_allclose(w.grad.numpy(), 2 * np.array([3.0, 4.0]) * np.array([1.0, 4.0]))


# -- refusals


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.add_(1), lambda x: x[0].zero_(), lambda x: x.__setitem__(0, 1), lambda x: x.T.mul_(2),
        lambda x: x.__setitem__([0], 1), lambda x: x.__iadd__(1), lambda x: x.copy_(x.detach()),
    ],
)
def test_a_leaf_and_its_views_may_be_written_only_without_history(write):
    x, _ = grid()
    with pytest.raises(GraphError, match="leaf.*no_grad"):
        write(x)
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]
    with mg.no_grad():
        write(x)
    assert x.requires_grad and x.is_leaf


def test_a_view_may_be_a_leaf():
    base = mg.zeros(4, dtype=mg.float64)
    v = base[:2].requires_grad_()
    with pytest.raises(GraphError, match="leaf"):
        v.mul_(2)
    base[3] = leaf(1.0) * 2
    (v * 3).sum().backward()
    assert v.is_leaf and v.grad.tolist() == [3, 3]


@pytest.mark.parametrize(
    "write", [lambda e: e.add_(1), lambda e: e[0].add_(1), lambda e: e.T[0].zero_(), lambda e: e.__setitem__(0, 1)]
)
@pytest.mark.parametrize("device", ["cpu", "sim:0"])
def test_expanded_memory_is_not_written(write, device):
    """A018; part of an expanded tensor is no better.  Nothing changes, neither values nor history."""
    x = mg.ones(1, 4, device=device, requires_grad=True)
    b = x * 2
    node = b.grad_fn
    with pytest.raises(GraphError, match="expanded"):
        write(b.expand(3, 4))
    assert b.grad_fn is node and b.tolist() == [[2] * 4]


def test_expanded_memory_is_not_written_on_meta_either():
    """Where no array says that it is read-only: so it is with CuPy's."""
    e = mg.ones(1, 4, device="meta").expand(3, 4)
    for part in (e, e[0], e.T[0], e[0].reshape(2, 2)):
        with pytest.raises(GraphError, match="expanded"):
            part.add_(1)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0, 3)])
def test_empty_tensors_are_written_too(shape):
    """NumPy gives them strides of 0, as if they were expanded."""
    x = mg.zeros(shape, dtype=mg.float64, requires_grad=True)
    y = x * 1
    y += 1
    y[...] = 2
    y.zero_()
    y.sum().backward()
    assert y.shape == x.grad.shape == shape


def test_read_only_memory_is_not_written():
    array = np.zeros(2)
    array.setflags(write=False)
    with pytest.raises(GraphError, match="read-only"):
        mg.from_numpy(array).add_(1)


@pytest.mark.parametrize(
    "bad, error",
    [
        (lambda y: y.add_(mg.ones(3, 2, 3, dtype=mg.float64)), RuntimeError),
        (lambda y: y.copy_(mg.ones(4, dtype=mg.float64)), RuntimeError),
        (lambda y: y.__setitem__(0, mg.ones(4, dtype=mg.float64)), RuntimeError),
        (lambda y: y.__setitem__(2, 1), IndexError), (lambda y: y.__setitem__([2], 1), IndexError),
        (lambda y: y.__setitem__(0, "x"), TypeError), (lambda y: y.__setitem__(0, [1, 2, 3]), TypeError),
        (lambda y: y.__setitem__(0, mg.ones(3, device="sim:0")), RuntimeError),
        (lambda y: y.add_(mg.ones(3, device="sim:0")), RuntimeError), (lambda y: y.long().add_(1.5), DTypeError),
        (lambda y: (y > 0).add_(1), DTypeError), (lambda y: y.long().div_(2), DTypeError),
        (lambda y: y.T.view(6), RuntimeError), (lambda y: y.__setitem__(y[0] > 0, 1), IndexError),
        (lambda y: y.__setitem__(mg.tensor([True]), 1), IndexError),
    ],
)
def test_a_refused_write_changes_nothing(bad, error):
    x, y = grid()
    node = y.grad_fn
    with pytest.raises(error) as e:
        bad(y)
    assert str(e.value) and y.grad_fn is node and y.grad_fn.edges and y.detach().tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_view_made_under_no_grad_is_not_written_with_history():
    """It has none of its own, so the write would cut the base's (gradients of 0 where there are 5)."""
    x, y = grid()
    with mg.no_grad():
        v = y[1:]
        v.mul_(5)
    with pytest.raises(GraphError, match="no_grad"):
        v.mul_(5)
    y.sum().backward()
    assert x.grad.tolist() == [[1] * 3] * 2 and y.tolist()[1] == [15, 20, 25]


# -- what is a view


@pytest.mark.parametrize(
    "look, is_view",
    [
        (lambda x: x[0], True), (lambda x: x[:, 1:], True), (lambda x: x[::2, None], True),
        (lambda x: x[1, 2], True), (lambda x: x.T, True), (lambda x: x.reshape(-1), True),
        (lambda x: x.T.reshape(-1), False), (lambda x: x.view(3, 2), True), (lambda x: x.expand(2, 2, 3), True),
        (lambda x: x.unsqueeze(0), True), (lambda x: x.permute(1, 0), True), (lambda x: x[[0]], False),
        (lambda x: x[x > 0], False), (lambda x: x * 1, False), (lambda x: x.clone(), False),
        (lambda x: x.T.contiguous(), False), (lambda x: x.to(mg.float64), True), (lambda x: x.float(), False),
        (lambda x: x.flatten(), True), (lambda x: x.detach(), True), (lambda x: x.squeeze(), True),
        (lambda x: x[range(2)], False),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "sim:0"])
def test_views_share_memory_and_copies_do_not(look, is_view, device):
    x = mg.tensor(np.arange(1.0, 7.0).reshape(2, 3), device=device)
    y = look(x)
    x.mul_(10)
    assert (y.float().max().item() >= 10) is is_view


def test_meta_tells_views_from_copies_too():
    x = mg.zeros(2, 3, device="meta")
    assert x.T.reshape(3, 2).is_view and not x.T.reshape(-1).is_view and x[1:, ::2].stride() == (3, 2)
    with pytest.raises(RuntimeError, match="without a copy"):
        x.T.view(-1)
    x[0] = 1
    x.T.add_(x.T)
    assert x.shape == (2, 3)


def test_the_gradient_of_a_number_written_through_a_view_of_one_element():
    """A 0-d result of NumPy is a scalar, which cannot be written: backward copied it and failed."""
    x = mg.tensor(2.0, dtype=mg.float64, requires_grad=True)
    y = x * 1
    y[None].mul_(3.0)
    (y * y).backward()
    assert x.grad.item() == 36.0


def test_a_copy_by_index_is_row_major():
    """NumPy keeps the memory order of what was indexed; then view() would be refused where PyTorch's is not."""
    assert mg.zeros(3, 4).t()[[0, 1]].is_contiguous()
