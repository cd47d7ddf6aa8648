"""Many slices of one tensor: their gradients meet in one buffer, which is nobody else's."""

import numpy as np
import pytest

import minigrad as mg

WAYS = {
    "index": lambda x: [x[k] for k in range(len(x))],
    "unbind": lambda x: x.unbind(0),
    "iteration": list,
    "split": lambda x: [part.squeeze(0) for part in x.split(1, 0)],
    "overlapping": lambda x: [x[0], x[1], x[1], *x[1:], x[::2].sum(0)],
    "column": lambda x: [x[:, 0].sum() + x[k, 1:].sum() for k in range(len(x))],
}


def weights(parts):
    rng = np.random.default_rng(0)
    return [mg.tensor(rng.standard_normal(p.shape)) for p in parts]


@pytest.mark.parametrize("device", ["cpu", "sim:0"])
@pytest.mark.parametrize("how", WAYS)
def test_slices_give_the_gradient_of_a_product_with_their_weights(how, device):
    host = np.random.default_rng(1).standard_normal((4, 3))
    want = np.zeros(host.shape)
    x = mg.tensor(host, device=device, requires_grad=True)
    inner = x * 1
    loss = sum((p * w.to(device)).sum() for p, w in zip(WAYS[how](inner), weights(WAYS[how](mg.tensor(host)))))
    for at in np.ndindex(4, 3):                                     # the parts are linear in x
        unit = np.zeros((4, 3))
        unit[at] = 1
        want[at] = sum((p * w).sum().item() for p, w in zip(WAYS[how](mg.tensor(unit)),
                                                            weights(WAYS[how](mg.tensor(host)))))
    (raw,) = mg.autograd.grad(loss, x, retain_graph=True)
    (traced,) = mg.autograd.grad(loss, x, create_graph=True)
    loss.backward()
    for got in (raw, traced.detach(), x.grad):
        np.testing.assert_allclose(got.cpu().numpy(), want, rtol=1e-12, atol=1e-12)


def test_a_gradient_that_someone_else_holds_is_not_written():
    x = mg.randn(3, 2, requires_grad=True)
    y = x * 2
    g = mg.ones(3, 2)
    seen = []
    y.register_hook(lambda t: seen.append(t))
    z = y + 0
    keep = mg.ones(3, 2)
    mg.autograd.backward([z, y[0], y[1]], [g, keep[0], keep[1]])
    assert (g.numpy() == 1).all() and (keep.numpy() == 1).all()
    np.testing.assert_array_equal(x.grad.numpy(), [[4, 4], [4, 4], [2, 2]])


def test_both_inputs_of_a_sum_may_be_cut():
    """An add hands one array to both of its inputs; a slice of one must not write the gradient of the other."""
    a, b = mg.zeros(3, requires_grad=True), mg.zeros(3, requires_grad=True)
    p, q = a * 1, b * 1
    first = p[0] * 5
    total = (p + q).sum() + first + (p + q)[1:].sum() + q[2] * 7
    total.backward()
    assert a.grad.tolist() == [6, 2, 2] and b.grad.tolist() == [1, 2, 9]


def test_a_view_of_a_gradient_is_not_written_through():
    """A reshape hands on a view of its gradient: the slice after it must not reach the other holder."""
    x = mg.zeros(4, requires_grad=True)
    y = x * 1
    held = []
    r = y.reshape(2, 2)
    r.register_hook(lambda t: held.append(t))
    (r * mg.tensor([[1.0, 2], [3, 4]])).sum().backward(retain_graph=True)
    x.grad = None
    (y[0] * 10 + (r * mg.tensor([[1.0, 2], [3, 4]])).sum() + y[3]).backward()
    assert held[1].tolist() == [[1, 2], [3, 4]] and x.grad.tolist() == [11, 2, 3, 5]


def test_a_number_seen_as_a_vector_twice():
    x = mg.tensor(3.0, requires_grad=True)
    y = x * 1
    (y[None] * 2 + y[None] * 3 + y * 4).sum().backward()
    assert x.grad.item() == 9
