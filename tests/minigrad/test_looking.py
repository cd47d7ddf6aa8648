"""Any value, any gradient, and the user's line that made it can be looked at, at any moment."""

import numpy as np
from minigrad.utils.checkpoint import checkpoint

import minigrad as mg
from minigrad import nn
from minigrad.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        hidden = self.layer(x)                                 # the line of the linear
        return hidden.relu()                                   # the line of the relu


def test_every_way_of_making_a_tensor_tells_its_line():
    x = mg.ones(2, 2, requires_grad=True)
    net = Net()
    made = [
        x * 2, 2 - x, -x, x @ x, x[0], x[mg.tensor([0])], x.T, x.sum(), x.mean(0), x.max(1)[0], mg.cat([x, x]),
        mg.stack([x, x]), F.softmax(x, 1), F.layer_norm(x, (2,)), x.double(), x.clone(), mg.einsum("ij->i", x),
        F.embedding(mg.tensor([0]), x), F.dropout(x), nn.Sequential(nn.Linear(2, 2))(x), x.sort(1)[0], x.cumsum(0),
        checkpoint(lambda t: t * 2, x), x.reshape(4), mg.where(x > 0, x, 0), x.norm(), F.mse_loss(x, x * 0),
    ]  # fmt: skip
    y = x * 1
    y.add_(1)
    y[0] = 5.0
    for t in [*made, y]:
        assert "test_looking.py:" in t.grad_fn.made_at and t.grad_fn.made_at == t.made_at, t.grad_fn
        assert t.grad_fn.line and t.grad_fn.name().endswith("Backward") and "test_looking.py" in repr(t.grad_fn)
        assert len(t.grad_fn.next_functions) >= 1
    assert y.grad_fn.line == "y[0] = 5.0"
    out = net(x)
    assert out.grad_fn.line.startswith("return hidden.relu()") and "in forward" in out.made_at
    ((before, _),) = out.grad_fn.next_functions
    assert before.line.startswith("hidden = self.layer(x)")
    leaves = [e for e, _ in before.next_functions]
    assert [leaf.shape for leaf in leaves] == [(2, 2), (2, 2), (2,)] and leaves[0] is x


def test_gradients_of_intermediates_stay_where_asked():
    x = mg.tensor([1.0, 2.0], requires_grad=True)
    h = x * 3
    y = h * h
    for t in (h, y, x):
        t.retain_grad()
    seen = []
    h.register_hook(lambda g: seen.append(g.tolist()))
    y.sum().backward()
    assert y.grad.tolist() == [1, 1] and h.grad.tolist() == [6, 12] and x.grad.tolist() == [18, 36]
    assert seen == [[6, 12]]
    assert h.tolist() == [3, 6] and "MulBackward" in h.grad_fn.name() and h.grad_fn.line == "h = x * 3"
    (g,) = mg.autograd.grad((x**3).sum(), x, create_graph=True)  # the line of a gradient
    assert g.grad_fn.line.startswith("(g,) = mg.autograd.grad")
    np.testing.assert_array_equal(g.detach().numpy(), [3, 12])


def test_a_printed_intermediate_tells_its_line():
    h = mg.ones(2, requires_grad=True) * 2
    assert "grad_fn=<Mul" in repr(h)
