"""Probes see every op, pull, leaf and phase, nested; and change no number."""
import numpy as np
import pytest

import minigrad as mg
from minigrad.probes import Probe
from minigrad.tensor import changed, current


class Log(Probe):
    def __init__(self):
        self.stack, self.seen = [], []

    def begin(self, kind, thing, inputs=()):
        self.stack.append((kind, thing))

    def end(self, kind, thing, outputs=()):
        while self.stack.pop() != (kind, thing):
            pass
        self.seen.append((kind, type(getattr(thing, "op", thing)).__name__, len(self.stack)))


def step(model, optimizer, loader):
    for x, y in loader:
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
    return [p.detach().numpy().copy() for p in model.parameters()]


def trained(*probes):
    mg.manual_seed(0)
    model = mg.nn.Sequential(mg.nn.Linear(3, 4), mg.nn.ReLU(), mg.nn.Linear(4, 1))
    data = mg.utils.data.TensorDataset(mg.randn(6, 3), mg.randn(6, 1))
    optimizer = mg.optim.Adam(model.parameters())
    with changed(observers=probes):
        return step(model, optimizer, mg.utils.data.DataLoader(data, batch_size=2))


def test_a_probed_step_is_bit_equal_and_all_of_it_is_seen():
    log = Log()
    for a, b in zip(trained(), trained(log)):
        assert np.array_equal(a, b)
    assert not log.stack
    kinds = [kind for kind, _, _ in log.seen]
    assert kinds.count("update") == kinds.count("backward") == 3 and kinds.count("load") == 4
    assert kinds.count("leaf") == 12
    ops = [name for kind, name, _ in log.seen if kind == "op"]
    pulls = [name for kind, name, _ in log.seen if kind == "pull"]
    assert ops.count("Relu") == pulls.count("Relu") == 3
    assert all(depth == 1 for kind, _, depth in log.seen if kind in ("pull", "leaf"))


def test_after_an_error_the_phase_around_it_ends():
    log = Log()
    x = mg.ones(2, requires_grad=True)
    y = (x * 2).sum()
    x.register_hook(lambda g: 1 / 0)
    with changed(observers=(log,)), pytest.raises(ZeroDivisionError):
        y.backward()
    assert not log.stack and current().observers == ()


@pytest.mark.parametrize("how", ["inputs", "create_graph"])
def test_the_other_walks_are_seen_too(how):
    log = Log()
    x = mg.ones(2, requires_grad=True)
    y = (x * x).sum()
    with changed(observers=(log,)):
        y.backward(**{"inputs": {"inputs": [x]}, "create_graph": {"create_graph": True}}[how])
    assert [name for kind, name, _ in log.seen if kind == "pull"] == ["Sum", "Mul"] and not log.stack
