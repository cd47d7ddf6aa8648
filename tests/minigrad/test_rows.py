"""Row-sparse gradients: whatever is done with them gives what the dense gradient gives, for the rows alone."""

import copy
import pickle

import numpy as np
import pytest

import minigrad as mg
from minigrad import nn, optim
from minigrad.errors import GraphError
from minigrad.nn import functional as F
from minigrad.rows import Rows

TABLE = np.arange(12.0).reshape(6, 2) / 7
NUMBERS = ([1, 1, 3], [0, 3, 3], [[5, 1], [1, 1]])
UP = np.random.default_rng(0)


def table(device="cpu"):
    return mg.tensor(TABLE, requires_grad=True, device=device)


def loss(w, numbers, sparse, **how):
    rows = F.embedding(mg.tensor(numbers, device=w.device), w, sparse=sparse, **how)
    up = mg.tensor(np.random.default_rng(len(numbers)).standard_normal(rows.shape), device=w.device)
    return (rows * rows * up).sum()


def dense_and_sparse(device="cpu"):
    return [(w, sparse) for w, sparse in ((table(device), False), (table(device), True))]


def host(grad):
    return grad.to_dense().cpu().numpy()


@pytest.mark.parametrize("device", ["cpu", "sim:0"])
@pytest.mark.parametrize("how", [{}, {"padding_idx": 1}, {"padding_idx": -3}, {"max_norm": 1.0}], ids=str)
def test_one_gradient_equals_the_dense_one(device, how):
    found = []
    for w, sparse in dense_and_sparse(device):
        for numbers in NUMBERS:
            loss(w, numbers, sparse, **how).backward()
        assert (w.grad.__class__ is Rows) == sparse == w.grad.is_sparse
        found.append((host(w.grad), w.detach().cpu().numpy()))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-14)  # sums in another order


@pytest.mark.parametrize("device", ["cpu", "sim:0"])
@pytest.mark.parametrize("make", [
    lambda p: optim.SGD(p, lr=0.1), lambda p: optim.SGD(p, lr=0.1, maximize=True),
    lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    lambda p: optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.3, lr_decay=0.1),
], ids=["sgd", "maximize", "momentum", "adagrad"])  # fmt: skip
def test_steps_equal_the_dense_ones(make, device):
    found = []
    for w, sparse in dense_and_sparse(device):
        opt = make([w])
        for numbers in NUMBERS:
            opt.zero_grad()
            loss(w, numbers, sparse).backward()
            opt.step()
        found.append(w.detach().cpu().numpy())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-14)


@pytest.mark.parametrize("make", [optim.Adam, optim.SparseAdam])
def test_adam_leaves_what_was_not_read(make):
    """Rows with a gradient step as a table of theirs alone would; the others, with their moments, stay."""
    w, alone = table(), mg.tensor(TABLE[[1, 4]], requires_grad=True)
    opt, other = make([w], lr=0.1), make([alone], lr=0.1)
    for numbers, theirs in (([1, 4, 1], [0, 1, 0]), ([4, 4, 4], [1, 1, 1]), ([4, 1, 1], [1, 0, 0])):
        for x, o, n in ((w, opt, numbers), (alone, other, theirs)):
            o.zero_grad()
            loss(x, n, True).backward()
            o.step()
    np.testing.assert_array_equal(w.detach().numpy()[[1, 4]], alone.detach().numpy())
    np.testing.assert_array_equal(w.detach().numpy()[[0, 2, 3, 5]], TABLE[[0, 2, 3, 5]])
    assert not opt.state[w]["exp_avg"].numpy()[[0, 2, 3, 5]].any()


@pytest.mark.parametrize("make", [
    lambda p: optim.SGD(p, weight_decay=0.1), lambda p: optim.AdamW(p), lambda p: optim.RMSprop(p),
    lambda p: optim.Adagrad(p, weight_decay=0.1),
], ids=["decay", "adamw", "rmsprop", "adagrad"])  # fmt: skip
def test_steps_that_change_every_row_are_refused_and_change_nothing(make):
    w = table()
    opt = make([w])
    loss(w, [1, 2], True).backward()
    with pytest.raises(RuntimeError, match="row"):
        opt.step()
    assert not opt.state and (w.detach().numpy() == TABLE).all()


def test_sparse_adam_refuses_a_dense_gradient():
    w = table()
    loss(w, [1], False).backward()
    with pytest.raises(GraphError, match="dense"):
        optim.SparseAdam([w]).step()


def test_tied_weights_are_dense_whichever_gradient_comes_first():
    for make in (lambda w, s: (F.embedding(mg.tensor([1, 1]), w, sparse=s) @ w.T).square().sum(),
                 lambda w, s: (w @ w.T).sum() + loss(w, [2, 2], s)):
        found = []
        for w, sparse in dense_and_sparse():
            make(w, sparse).backward()
            found.append(w.grad.numpy())
        np.testing.assert_allclose(found[0], found[1], rtol=1e-14)


@pytest.mark.parametrize("first", [True, False])
def test_sparse_and_dense_backwards_add_up(first):
    w, v = table(), table()
    for sparse in (first, not first):
        loss(w, [1, 1, 3], sparse).backward()
    for _ in range(2):
        loss(v, [1, 1, 3], False).backward()
    assert isinstance(w.grad, mg.Tensor)
    np.testing.assert_allclose(w.grad.numpy(), v.grad.numpy(), rtol=1e-14)


def test_hooks_grad_and_second_derivatives_see_dense_gradients():
    found = []
    for w, sparse in dense_and_sparse():
        seen = []
        handle = w.register_hook(lambda g, seen=seen: seen.append(g.numpy().copy()) or g * 2)
        loss(w, [1, 1], sparse).backward()
        handle.remove()
        (g,) = mg.autograd.grad(loss(w, [1, 2], sparse), w)
        (first,) = mg.autograd.grad(loss(w, [1, 2], sparse), w, create_graph=True)
        (second,) = mg.autograd.grad(first.square().sum(), w)
        found.append((seen[0], w.grad.numpy(), g.numpy(), first.detach().numpy(), second.numpy()))
    for dense, sparse in zip(*found):
        np.testing.assert_allclose(dense, sparse, rtol=1e-14)


def test_clipping_equals_dense_clipping():
    for clip in (lambda w: nn.utils.clip_grad_norm_([w], 0.1), lambda w: nn.utils.clip_grad_norm_([w], 0.1, np.inf),
                 lambda w: nn.utils.clip_grad_value_([w], 0.2)):
        found = []
        for w, sparse in dense_and_sparse():
            loss(w, [1, 1, 3], sparse).backward()
            clip(w)
            found.append(host(w.grad))
        np.testing.assert_allclose(found[0], found[1], rtol=1e-14)


def test_zeroed_gradients_hold_no_rows():
    w = table()
    opt = optim.SGD([w], lr=0.1)
    loss(w, [1, 2], True).backward()
    opt.zero_grad(set_to_none=False)
    assert w.grad.values().shape == (0, 2)
    opt.step()
    assert (w.detach().numpy() == TABLE).all()


def test_copies_are_apart():
    w = table()
    loss(w, [1, 1, 2], True).backward()
    want = host(w.grad)
    copies = [copy.deepcopy(w).grad, copy.deepcopy(w.grad), pickle.loads(pickle.dumps(w.grad)), w.grad.clone()]
    w.grad.values().zero_()
    for each in copies:
        assert each.__class__ is Rows
        np.testing.assert_array_equal(host(each), want)


def test_the_gradient_is_apart_from_what_the_user_holds():
    """The upstream gradient and the numbers may be written after backward."""
    w, numbers, up = table(), mg.tensor([1, 2]), mg.ones(2, 2, dtype=mg.float64)
    F.embedding(numbers, w, sparse=True).backward(up)
    numbers.fill_(0)
    up.fill_(7.0)
    want = np.zeros((6, 2))
    want[[1, 2]] = 1
    np.testing.assert_array_equal(host(w.grad), want)


def test_deferred_weight_gradients_are_rows():
    w = table()
    work = loss(w, [1, 1], True).backward(defer=[w])
    assert w.grad is None
    for each in work:
        each()
    v = table()
    loss(v, [1, 1], False).backward()
    assert w.grad.is_sparse
    np.testing.assert_array_equal(host(w.grad), v.grad.numpy())


def test_many_backwards_hold_no_more_rows_than_the_table():
    w = table()
    for _ in range(10):
        loss(w, [1, 1, 3], True).backward()
    assert w.grad.values().shape[0] <= 6


def test_a_weight_that_an_operation_made_has_a_dense_gradient():
    w = table()
    F.embedding(mg.tensor([1, 1]), w * 2, sparse=True).sum().backward()
    np.testing.assert_array_equal(w.grad.numpy()[1], [4, 4])


def test_module_options():
    m = nn.Embedding(6, 2, padding_idx=-1, sparse=True, max_norm=1.0, dtype=mg.float64)
    m.weight.data = mg.tensor(TABLE * 10)
    m(mg.tensor([[3, 5], [3, 2]])).sum().backward()
    assert sorted(m.weight.grad.coalesce().indices().tolist()[0]) == [2, 3]
    norms = np.linalg.norm(m.weight.detach().numpy(), axis=1)
    assert (norms[[2, 3, 5]] <= 1).all() and (norms[[1, 4]] > 1).all()
    assert repr(m) == "Embedding(6, 2, padding_idx=5, max_norm=1.0, sparse=True)"
    m.float()
    assert m.weight.grad.dtype == mg.float32
    m.zero_grad(set_to_none=False)
    assert not host(m.weight.grad).any()
    frozen = nn.Embedding.from_pretrained(mg.ones(3, 2), sparse=True)
    assert not frozen.weight.requires_grad and frozen.sparse
    with pytest.raises(RuntimeError, match="scale_grad_by_freq"):
        nn.Embedding(3, 2, sparse=True, scale_grad_by_freq=True)(mg.tensor([1]))


def test_a_step_touches_the_rows_alone():
    """The simulated device counts bytes: a step on 32 of 20,000 rows allocates and moves no table."""
    device = mg.device("sim:3")
    w = mg.zeros(20_000, 8, device=device, requires_grad=True)
    opt = optim.Adagrad([w], lr=0.1)
    numbers = mg.arange(32, device=device)

    def step():
        opt.zero_grad()
        F.embedding(numbers, w, sparse=True).square().sum().backward()
        opt.step()

    step()
    from minigrad.sim import sim_device

    sim = sim_device(3)
    before, moved = sim.used, sim.d2h_bytes
    sim.reset_peak()
    step()
    assert sim.peak - before < w.nbytes / 50 and sim.d2h_bytes - moved <= 16


def test_padding_and_frequency_have_their_closed_forms():
    """The gradient of a row: the sum of its upstream gradients; none for the padding; their mean by frequency."""
    numbers = np.array([[5, 1, 1], [1, 2, 5]])
    up = np.random.default_rng(1).standard_normal((2, 3, 2))
    sums = np.zeros((6, 2))
    np.add.at(sums, numbers, up)
    counts = np.maximum(np.bincount(numbers.reshape(-1), minlength=6), 1)[:, None]
    rest = np.ones((6, 1))
    rest[2] = 0
    for how, want in (({}, sums), ({"padding_idx": 2}, sums * rest), ({"scale_grad_by_freq": True}, sums / counts),
                      ({"scale_grad_by_freq": True, "padding_idx": 2}, sums / counts * rest),
                      ({"sparse": True, "padding_idx": 2}, sums * rest)):
        w = table()
        F.embedding(mg.tensor(numbers), w, **how).backward(mg.tensor(up))
        np.testing.assert_allclose(host(w.grad), want, rtol=1e-12)
        (g,) = mg.autograd.grad(F.embedding(mg.tensor(numbers), w, **how), w, mg.tensor(up), create_graph=True)
        np.testing.assert_allclose(g.detach().numpy(), want, rtol=1e-12)
