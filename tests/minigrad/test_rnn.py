"""Recurrent nets: a whole sequence equals its cells one by one, a ragged batch equals its sequences one by one."""

import math

import numpy as np
import pytest

import minigrad as mg
from minigrad import nn
from minigrad.autograd import grad
from minigrad.check import gradcheck, gradgradcheck
from minigrad.nn.utils import rnn as packing

LENGTHS = [4, 4, 2, 1]
NETS = {"RNN": nn.RNN, "LSTM": nn.LSTM, "GRU": nn.GRU}
CELLS = {"RNN": nn.RNNCell, "LSTM": nn.LSTMCell, "GRU": nn.GRUCell}
WAYS = {
    "plain": {},
    "deep": {"num_layers": 2},
    "both ways": {"num_layers": 2, "bidirectional": True},
    "no bias": {"bias": False},
}


def states_of(hx):
    return list(hx) if isinstance(hx, tuple) else [hx]


def made(kind, **how):
    mg.manual_seed(3)
    return NETS[kind](3, 5, **how).double()


def drawn(*shape, seed=0):
    return mg.tensor(np.random.default_rng(seed).standard_normal(shape))


def start(net, n, seed=5):
    count = net.num_layers * (1 + net.bidirectional)
    sizes = ((net.proj_size or net.hidden_size), net.hidden_size)[: net.states]
    hx = tuple(drawn(count, n, size, seed=seed + k) for k, size in enumerate(sizes))
    return hx if net.states > 1 else hx[0]


def by_cells(kind, net, x, hx):
    """The first layer of `net` written out with the cell: x (T, N, I)."""
    cell = CELLS[kind](3, 5, bias=net.bias).double()
    for name, p in cell.named_parameters():
        with mg.no_grad():
            p.copy_(getattr(net, f"{name}_l0"))
    outs = []
    for row in x:
        hx = cell(row, hx)
        outs.append(states_of(hx)[0])
    return mg.stack(outs), hx, cell


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", NETS)
def test_a_sequence_equals_its_cells(kind, bias):
    net, x = made(kind, bias=bias), drawn(4, 2, 3).requires_grad_()
    hx = [s[0] for s in states_of(start(net, 2))]
    y, last = net(x, start(net, 2))
    want, end, cell = by_cells(kind, net, x, tuple(hx) if len(hx) > 1 else hx[0])
    np.testing.assert_allclose(y.detach(), want.detach(), rtol=1e-12)
    for a, b in zip(states_of(last), states_of(end)):
        np.testing.assert_allclose(a[0].detach(), b.detach(), rtol=1e-12)
    up, ups = drawn(4, 2, 5, seed=1), [drawn(2, 5, seed=k + 2) for k in range(2)]
    ours = (y * up).sum() + sum((s[0] * u).sum() for s, u in zip(states_of(last), ups))
    theirs = (want * up).sum() + sum((s * u).sum() for s, u in zip(states_of(end), ups))
    pairs = zip(grad(ours, [x, *net.parameters()]), grad(theirs, [x, *cell.parameters()]))
    for a, b in pairs:
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", NETS)
def test_a_ragged_batch_equals_its_sequences_one_by_one(kind, way):
    net, x = made(kind, **WAYS[way]), drawn(4, 4, 3).requires_grad_()
    hx = start(net, 4)
    packed, last = net(packing.pack_padded_sequence(x, LENGTHS), hx)
    y, lengths = packing.pad_packed_sequence(packed)
    assert lengths.tolist() == LENGTHS
    up = drawn(*y.shape, seed=9)
    total, alone = (y * up).sum() + sum(s.sum() for s in states_of(last)), 0
    for b, n in enumerate(LENGTHS):
        own = [s[:, b : b + 1] for s in states_of(hx)]
        z, end = net(x[:n, b : b + 1], tuple(own) if len(own) > 1 else own[0])
        np.testing.assert_allclose(y[:n, b].detach(), z[:, 0].detach(), rtol=1e-12)
        assert not y[n:, b].detach().numpy().any()
        for s, e in zip(states_of(last), states_of(end)):
            np.testing.assert_allclose(s[:, b].detach(), e[:, 0].detach(), rtol=1e-12)
        alone = alone + (z[:, 0] * up[:n, b]).sum() + sum(e.sum() for e in states_of(end))
    for a, b in zip(grad(total, [x, *net.parameters()]), grad(alone, [x, *net.parameters()])):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", NETS)
def test_unsorted_batches_come_back_in_their_order(kind):
    net, x, lengths = made(kind, bidirectional=True), drawn(4, 3, 4, 3)[0], mg.tensor([1, 4, 2])
    hx = start(net, 3)
    packed = packing.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    out, last = net(packed, hx)
    y, back = packing.pad_packed_sequence(out, batch_first=True)
    assert back.tolist() == lengths.tolist() and y.shape == (3, 4, 10)
    for b, n in enumerate(lengths.tolist()):
        own = [s[:, b : b + 1] for s in states_of(hx)]
        z, end = net(x[b : b + 1, :n].transpose(0, 1), tuple(own) if len(own) > 1 else own[0])
        np.testing.assert_allclose(y[b, :n].detach(), z[:, 0].detach(), rtol=1e-12)
        for s, e in zip(states_of(last), states_of(end)):
            np.testing.assert_allclose(s[:, b].detach(), e[:, 0].detach(), rtol=1e-12)


def test_a_projected_lstm_equals_its_formula():
    net, x = made("LSTM", proj_size=2, bidirectional=True), drawn(3, 2, 3)
    y, (h, c) = net(x)
    assert y.shape == (3, 2, 4) and h.shape == (2, 2, 2) and c.shape == (2, 2, 5)
    p = {k: v.detach().numpy() for k, v in net.named_parameters()}
    for suffix, times in (("", (0, 1, 2)), ("_reverse", (2, 1, 0))):
        h_, c_ = np.zeros((2, 2)), np.zeros((2, 5))
        for t in times:
            z = x.numpy()[t] @ p[f"weight_ih_l0{suffix}"].T + p[f"bias_ih_l0{suffix}"] + p[f"bias_hh_l0{suffix}"]
            i, f, u, o = np.split(z + h_ @ p[f"weight_hh_l0{suffix}"].T, 4, 1)
            s = lambda v: 1 / (1 + np.exp(-v))
            c_ = s(f) * c_ + s(i) * np.tanh(u)
            h_ = s(o) * np.tanh(c_) @ p[f"weight_hr_l0{suffix}"].T
            at = slice(2, 4) if suffix else slice(0, 2)
            np.testing.assert_allclose(y[t, :, at].detach(), h_, rtol=1e-12)
        np.testing.assert_allclose(h[int(bool(suffix))].detach(), h_, rtol=1e-12)
    gradcheck(lambda x: net(x)[0], drawn(3, 2, 3).requires_grad_())


@pytest.mark.parametrize("kind", NETS)
def test_gradients_and_second_derivatives_of_a_net(kind):
    net, x = made(kind, num_layers=2, bidirectional=True), drawn(3, 2, 3)
    assert gradcheck(lambda x: net(x)[0], x.requires_grad_())
    assert gradgradcheck(lambda x: states_of(net(x)[1])[-1], drawn(2, 1, 3).requires_grad_())


def test_batch_first_and_a_single_sequence():
    net, x = made("LSTM"), drawn(4, 2, 3)
    y, (h, c) = net(x)
    other = nn.LSTM(3, 5, batch_first=True).double()
    other.load_state_dict(net.state_dict())
    z, (h2, _) = other(x.transpose(0, 1))
    np.testing.assert_array_equal(z.transpose(0, 1).detach(), y.detach())
    np.testing.assert_array_equal(h.detach(), h2.detach())
    alone, (h1, c1) = net(x[:, 1])
    assert alone.shape == (4, 5) and h1.shape == c1.shape == (1, 5)
    np.testing.assert_allclose(alone.detach(), y[:, 1].detach(), rtol=1e-12)
    again, _ = net(x[:, 1], (h1, c1))
    assert again.shape == (4, 5)


def test_dropout_acts_between_layers_in_training_only():
    net, x = made("GRU", num_layers=2, dropout=1.0), drawn(3, 2, 3)
    lone = made("GRU", num_layers=2)
    lone.load_state_dict(net.state_dict())
    np.testing.assert_array_equal(net.eval()(x)[0].detach(), lone(x)[0].detach())
    dead = net.train()(x)[0]
    np.testing.assert_allclose(dead[0, 0].detach(), dead[0, 1].detach())  # the second layer sees zeros
    with pytest.warns(UserWarning, match="between layers"):
        nn.GRU(3, 4, dropout=0.5)


@pytest.mark.parametrize("kind", NETS)
def test_names_shapes_and_first_values(kind):
    net = NETS[kind](3, 16, num_layers=2, bidirectional=True)
    k = net.gates * 16
    shapes = {name: p.shape for name, p in net.named_parameters()}
    assert list(shapes)[:4] == ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]
    assert list(shapes)[-1] == "bias_hh_l1_reverse" and len(shapes) == 16 == sum(map(len, net.all_weights))
    assert shapes["weight_ih_l0"] == (k, 3) and shapes["weight_ih_l1_reverse"] == (k, 32)
    values = np.concatenate([p.detach().numpy().ravel() for p in net.parameters()])
    assert np.abs(values).max() <= 0.25 and np.abs(values).max() > 0.24
    assert abs(values.var() - 0.25**2 / 3) < 0.002


def test_the_same_net_on_sim_and_on_meta():
    net, x = made("LSTM", bidirectional=True), drawn(4, 4, 3)
    y, (h, c) = net(packing.pack_padded_sequence(x, LENGTHS))
    net.to("sim:0")
    z, (h2, c2) = net(packing.pack_padded_sequence(x.to("sim:0"), LENGTHS))
    np.testing.assert_allclose(y.data.detach(), z.data.cpu().detach(), rtol=1e-12)
    np.testing.assert_allclose(c.detach(), c2.cpu().detach(), rtol=1e-12)
    ghost = nn.GRU(3, 5, device="meta")
    y, h = ghost(mg.zeros(4, 2, 3, device="meta"))
    assert y.shape == (4, 2, 5) and h.shape == (1, 2, 5)
    y.sum().backward()
    assert ghost.weight_ih_l0.grad.shape == (15, 3)


def test_an_lstm_learns_to_add_bits():
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2, (32, 2, 5))
    total = [a + b for a, b in ((int("".join(map(str, p[::-1])), 2) for p in pair) for pair in bits)]
    target = np.array([[n >> k & 1 for k in range(5)] for n in total])
    x, t = mg.tensor(bits.transpose(2, 0, 1).astype("f4")), mg.tensor(target.T.astype("f4"))
    mg.manual_seed(0)
    net, head = nn.LSTM(2, 16), nn.Linear(16, 1)
    optimiser = mg.optim.Adam([*net.parameters(), *head.parameters()], lr=0.03)
    for _ in range(120):
        optimiser.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(head(net(x)[0])[..., 0], t)
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.02


# ---- packing -------------------------------------------------------------------------------------
def test_packing_and_padding_are_inverse():
    parts = [drawn(n, 2, seed=n).requires_grad_() for n in (1, 3, 2)]
    for batch_first in (False, True):
        for side, value in (("right", 0.0), ("left", -2.0)):
            padded = packing.pad_sequence(parts, batch_first, value, side)
            for k, part in enumerate(parts):
                rows = (padded[k] if batch_first else padded[:, k]).detach().numpy()
                n = len(part)
                own, rest = (rows[:n], rows[n:]) if side == "right" else (rows[3 - n :], rows[: 3 - n])
                np.testing.assert_array_equal(own, part.detach())
                assert (rest == value).all()
        padded = packing.pad_sequence(parts, batch_first)
        back = packing.unpad_sequence(padded, [1, 3, 2], batch_first)
        packed = packing.pack_padded_sequence(padded, [1, 3, 2], batch_first, enforce_sorted=False)
        again, lengths = packing.pad_packed_sequence(packed, batch_first, total_length=4, padding_value=7.0)
        assert again.shape[not batch_first :][0] == 3 and lengths.tolist() == [1, 3, 2]
        for a, b, c in zip(parts, back, packing.unpack_sequence(packed)):
            np.testing.assert_array_equal(a.detach(), b.detach())
            np.testing.assert_array_equal(a.detach(), c.detach())
        assert (again.detach().numpy() == 7).sum() == 2 * (12 - 6)
    packed = packing.pack_sequence(parts, enforce_sorted=False)
    assert packed.batch_sizes.tolist() == [3, 2, 1] and packed.sorted_indices.tolist() == [1, 2, 0]
    (packed.data * 3).sum().backward()
    assert all((p.grad.numpy() == 3).all() for p in parts)
    assert packing.invert_permutation(packed.sorted_indices).tolist() == packed.unsorted_indices.tolist()


def test_packing_refuses():
    x = mg.zeros(5, 2, 3)
    for lengths, said in (([5, 0], "at least 1"), ([5], "1 lengths"), ([6, 1], "at most the 5")):
        with pytest.raises(RuntimeError, match=said):
            packing.pack_padded_sequence(x, lengths)
    with pytest.raises(RuntimeError, match="enforce_sorted"):
        packing.pack_padded_sequence(x, [3, 5])
    with pytest.raises(ValueError, match="total_length 3"):
        packing.pad_packed_sequence(packing.pack_padded_sequence(x, [5, 2]), total_length=3)
    with pytest.raises(RuntimeError, match="empty list"):
        packing.pad_sequence([])
    with pytest.raises(ValueError, match="first axis only"):
        packing.pad_sequence([mg.zeros(2, 2), mg.zeros(2, 3)])


# ---- what is refused ---------------------------------------------------------------------------------
def test_wrong_sizes_and_shapes_are_refused():
    for kwargs, error in (
        ({"hidden_size": 0}, ValueError),
        ({"hidden_size": 4.0}, TypeError),
        ({"num_layers": 0}, ValueError),
        ({"dropout": 2.0}, ValueError),
        ({"proj_size": 4}, ValueError),
    ):
        with pytest.raises(error):
            nn.LSTM(**{"input_size": 3, "hidden_size": 4, **kwargs})
    with pytest.raises(ValueError, match="neither"):
        nn.RNN(3, 4, nonlinearity="sigmoid")
    net, x = nn.LSTM(3, 4), mg.zeros(5, 2, 3)
    h = mg.zeros(1, 2, 4)
    for wrong, hx in (
        (mg.zeros(3), None),
        (mg.zeros(5, 2, 4), None),
        (mg.zeros(0, 2, 3), None),
        (x, (mg.zeros(1, 3, 4), h)),
        (x, (mg.zeros(1, 4), mg.zeros(1, 4))),
        (x, h),
        (mg.zeros(5, 3), (h, h)),
    ):
        for error in (ValueError, RuntimeError):
            with pytest.raises(error, match="LSTM"):
                net(wrong, hx)
    with pytest.raises(TypeError, match="float64"):
        net(x.double())
    cell = nn.GRUCell(3, 4)
    assert cell(mg.zeros(3)).shape == (4,) and cell(mg.zeros(2, 3)).shape == (2, 4)
    for wrong, hx in ((mg.zeros(2, 2, 3), None), (mg.zeros(2, 4), None), (mg.zeros(2, 3), mg.zeros(3, 4))):
        with pytest.raises(ValueError, match="GRUCell"):
            cell(wrong, hx)


def test_the_text():
    net = nn.LSTM(3, 4, 2, bias=False, batch_first=True, dropout=0.1, bidirectional=True, proj_size=2)
    said = "3, 4, proj_size=2, num_layers=2, bias=False, batch_first=True, dropout=0.1, bidirectional=True"
    assert repr(net) == f"LSTM({said})"
    assert repr(nn.RNNCell(3, 4, bias=False, nonlinearity="relu")) == "RNNCell(3, 4, bias=False, nonlinearity=relu)"
    assert math.isclose(nn.GRU(3, 4).weight_hh_l0.detach().abs().max().item(), 0.5, abs_tol=0.1)
