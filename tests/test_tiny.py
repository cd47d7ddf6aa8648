"""The whole story in five seconds: a graph, its gradient, a net that learns, its picture, its file, its other
devices."""

import io

import numpy as np

import minigrad as mg
from minigrad import nn


def xor_net() -> tuple[nn.Module, mg.Tensor, mg.Tensor]:
    mg.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
    return net, mg.tensor([[0.0, 0], [0, 1], [1, 0], [1, 1]]), mg.tensor([0, 1, 1, 0])


def train(net: nn.Module, x: mg.Tensor, y: mg.Tensor, steps: int = 200) -> float:
    optimizer = mg.optim.Adam(net.parameters(), lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
    return loss.item()


def test_a_graph_appears_as_python_runs_and_gradients_come_back():
    x = mg.tensor([3.0], requires_grad=True)
    y = x
    while y.item() < 100:
        y = y * x
    y.sum().backward()
    assert y.item() == 243.0 and x.grad.item() == 5 * 3.0**4


def test_a_net_learns():
    net, x, y = xor_net()
    assert train(net, x, y) < 0.05
    assert net(x).argmax(1).tolist() == y.tolist()


def test_the_same_step_on_the_simulated_device_and_on_meta():
    net, x, y = xor_net()
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    there, _, _ = xor_net()
    there.to("sim:0")
    far = nn.functional.cross_entropy(there(x.to("sim:0")), y.to("sim:0"))
    far.backward()
    for p, q in zip(net.parameters(), there.parameters(), strict=True):
        np.testing.assert_allclose(p.grad.numpy(), q.grad.cpu().numpy(), rtol=1e-5, atol=1e-7)
    shapes, _, _ = xor_net()
    assert shapes.to("meta")(x.to("meta")).shape == (4, 2)


def test_a_picture_says_the_same_in_text():
    net, x, y = xor_net()
    picture = mg.draw(nn.functional.cross_entropy(net(x), y), params=net)
    assert picture.svg.startswith("<svg") and "0.weight" in picture.text


def test_a_file_brings_everything_back():
    net, x, y = xor_net()
    train(net, x, y, 3)
    file = io.BytesIO()
    mg.save(net.state_dict(), file)
    file.seek(0)
    fresh, _, _ = xor_net()
    fresh.load_state_dict(mg.load(file))
    assert fresh(x).tolist() == net(x).tolist()
