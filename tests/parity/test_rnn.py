"""Recurrent nets and packing give what PyTorch gives, from the same state."""

import numpy as np
import pytest

import minigrad as mg

torch = pytest.importorskip("torch")

KINDS = {
    "RNN": {},
    "RNN relu": {"nonlinearity": "relu"},
    "LSTM": {},
    "LSTM proj": {"proj_size": 2},
    "GRU": {},
}
WAYS = [
    {},
    {"num_layers": 2, "bidirectional": True},
    {"bias": False, "batch_first": True, "bidirectional": True},
]
LENGTHS = [2, 5, 1, 4]


def pair(kind, way):
    how = {**KINDS[kind], **way}
    ours, theirs = (getattr(p.nn, kind.split()[0])(3, 4, **how) for p in (mg, torch))
    ours, theirs = ours.double(), theirs.double()
    assert list(ours.state_dict()) == list(theirs.state_dict()) and repr(ours) == repr(theirs)
    theirs.load_state_dict({k: torch.from_numpy(v.numpy().copy()) for k, v in ours.state_dict().items()})
    return ours, theirs


def states_of(hx):
    return list(hx) if isinstance(hx, tuple) else [hx]


def same(a, b):
    np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("packed", [False, True])
def test_values_and_gradients(kind, way, packed):
    nets, rng = pair(kind, way), np.random.default_rng(0)
    x = rng.standard_normal((4, 5, 3) if way.get("batch_first") else (5, 4, 3))
    found = []
    for package, net in zip((mg, torch), nets):
        leaf = package.tensor(x, requires_grad=True)
        given = leaf
        if packed:
            given = package.nn.utils.rnn.pack_padded_sequence(leaf, LENGTHS, net.batch_first, enforce_sorted=False)
        y, last = net(given)
        if packed:
            again = package.nn.utils.rnn.pad_packed_sequence(y, net.batch_first, -1.5, 6)
            y = again[0]
            assert again[1].tolist() == LENGTHS
        up = package.tensor(np.random.default_rng(1).standard_normal(y.shape))
        ((y * up).sum() + sum((s**2).sum() for s in states_of(last))).backward()
        found.append([y, *states_of(last), leaf.grad, *(p.grad for p in net.parameters())])
    for a, b in zip(*found, strict=True):
        same(a, b)


def test_packed_sequences_are_laid_out_alike():
    x = np.arange(24.0).reshape(4, 3, 2)
    for lengths, ordered in (([4, 2, 1], True), ([2, 4, 1], False)):
        pack = lambda p, n=lengths, s=ordered: p.nn.utils.rnn.pack_padded_sequence(p.tensor(x), n, enforce_sorted=s)
        for a, b in zip(pack(mg), pack(torch)):
            assert (None if a is None else a.tolist()) == (None if b is None else b.tolist())
    parts = [x[0], x[1, :2], x[2, :1]]
    for how in ({}, {"batch_first": True, "padding_value": 3.0}, {"padding_side": "left"}):
        same(*(p.nn.utils.rnn.pad_sequence([p.tensor(a) for a in parts], **how) for p in (mg, torch)))


@pytest.mark.parametrize("kind", ["RNNCell", "LSTMCell", "GRUCell"])
def test_cells(kind):
    ours, theirs = (getattr(p.nn, kind)(3, 4).double() for p in (mg, torch))
    assert repr(ours) == repr(theirs)
    theirs.load_state_dict({k: torch.from_numpy(v.numpy().copy()) for k, v in ours.state_dict().items()})
    rng = np.random.default_rng(2)
    x, h, c = rng.standard_normal((2, 3)), rng.standard_normal((2, 4)), rng.standard_normal((2, 4))
    for row in (slice(None), 0):
        ends = []
        for package, cell in ((mg, ours), (torch, theirs)):
            states = tuple(package.tensor(s[row]) for s in (h, c))
            ends.append(states_of(cell(package.tensor(x[row]), states if kind == "LSTMCell" else states[0])))
        for a, b in zip(*ends, strict=True):
            same(a, b)
