"""Checkpointing: the same gradients bit for bit, less kept, and every way of asking for a gradient."""

import gc
import weakref

import numpy as np
import pytest
from minigrad.utils.checkpoint import checkpoint, checkpoint_sequential

import minigrad as mg
from minigrad import nn
from minigrad.nn import functional as F


class Block(nn.Module):
    """A residual block with dropout, written in place and through a view."""

    def __init__(self, n=4):
        super().__init__()
        self.a, self.b, self.norm, self.drop = nn.Linear(n, n), nn.Linear(n, n), nn.LayerNorm(n), nn.Dropout(0.4)

    def forward(self, x, scale=1.0):
        h = self.drop(F.gelu(self.a(self.norm(x))))
        h *= scale
        h[:, 0] = h[:, 1].clone()
        return x + self.drop(self.b(h)).tanh()


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.drop = nn.Conv2d(1, 2, 3, padding=1), nn.Dropout(0.3)

    def forward(self, x):
        y = F.max_pool2d(F.relu(self.conv(self.drop(x.reshape(3, 1, 2, 2)))), 2)
        return mg.cat([y.reshape(3, 2), y.flatten(1).softmax(1)], 1)


NETS = {
    "blocks": lambda: [Block(), Block()],
    "conv": lambda: [Conv(), Block()],
    "functions": lambda: [lambda x: F.dropout(x.exp(), 0.5), lambda x: F.dropout(x.cumsum(1).sigmoid(), 0.2)],
}


def run(steps, wrap, device="cpu", **how):
    """(output, gradients of input and parameters, state of the stream) after one step."""
    mg.manual_seed(3)
    x = mg.randn(3, 4).to(device).requires_grad_()
    h = x
    for step in steps:
        h = wrap(step, h)
    (h * mg.randn(*h.shape).to(device)).sum().backward(**how)
    params = [p for s in steps if isinstance(s, nn.Module) for p in s.parameters()]
    found = [h.detach(), x.grad.detach(), *(p.grad.detach() for p in params)]
    for p in params:
        p.grad = None
    return [t.cpu().numpy().copy() for t in found], mg.get_rng_state().tolist()


def plain(step, x):
    return step(x)


WRAPS = {
    "each": lambda step, x: checkpoint(step, x, use_reentrant=False),
    "nested": lambda step, x: checkpoint(lambda y: checkpoint(step, y) * 1.0, x),
    "twice nested": lambda s, x: checkpoint(lambda y: checkpoint(lambda z: checkpoint(s, z) + 0.0, y.clone()) * 1.0, x),
}


@pytest.mark.parametrize("device", ["cpu", "sim:0"])
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("wrap", WRAPS)
def test_gradients_are_those_of_the_plain_run_bit_for_bit(wrap, net, device):
    mg.manual_seed(1)
    steps = NETS[net]()
    for step in steps:
        if isinstance(step, nn.Module):
            step.to(device)
    same = {"each": plain, "nested": lambda s, x: s(x) * 1.0, "twice nested": lambda s, x: (s(x.clone()) + 0.0) * 1.0}
    for how in ({}, {"create_graph": True}) if device == "cpu" else ({},):
        want, state = run(steps, same[wrap], device, **how)
        found, after = run(steps, WRAPS[wrap], device, **how)
        for a, b in zip(want, found, strict=True):
            np.testing.assert_array_equal(a, b)
        assert state == after


def test_saved_values_are_gone_between_forward_and_backward():
    """The simulated device counts: four layers keep their inputs alone; a plain run keeps every activation."""
    from minigrad.sim import sim_device

    layers, used = [nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Sigmoid(), nn.Linear(64, 64))
                    .to("sim:4") for _ in range(4)], {}
    sim = sim_device(4)
    for name, wrap in (("plain", plain), ("checkpointed", checkpoint)):
        x = mg.zeros(32, 64, device="sim:4", requires_grad=True)
        before, h = sim.used, x
        for layer in layers:
            h = wrap(layer, h)
        used[name] = sim.used - before
        h.sum().backward()
        del h, x
    # 4 blocks end in one array each, and save two more (of tanh and sigmoid) when run plainly
    assert used["checkpointed"] == 4 * 32 * 64 * 4 and used["plain"] == 3 * used["checkpointed"]


def test_nothing_outlives_the_graph_without_the_collector():
    gc.disable()
    try:
        x = mg.ones(3, requires_grad=True)
        held = mg.ones(3)
        y = checkpoint(lambda a, b: (a * b).exp(), x, held)
        ref = weakref.ref(held.array)
        del held
        assert ref() is not None
        y.sum().backward()
        assert ref() is None                                  # backward is through: the arguments are let go
        del y
    finally:
        gc.enable()


def test_arguments_and_results_of_every_kind():
    x, w = mg.tensor([1.0, 2.0], requires_grad=True), mg.tensor([3.0], requires_grad=True)
    calls = []

    def f(a, factor, *, names, flag=True, gen=None):
        calls.append(names)
        noise = mg.rand(2, generator=gen)
        return {"out": (a["x"] * factor * w + noise, names), "n": 7, "same": a["x"]}

    gen = mg.Generator(5)
    out = checkpoint(f, {"x": x}, 2.0, names=["k"], gen=gen)
    assert out["n"] == 7 and out["out"][1] == ["k"] and out["same"] is x and gen.offset == 1
    out["out"][0].sum().backward()
    assert x.grad.tolist() == [6, 6] and w.grad.tolist() == [6] and len(calls) == 2 and gen.offset == 1
    a, b = checkpoint(lambda t: (t.exp(), t.sin()), x)
    (ga,) = mg.autograd.grad(a.sum(), x, retain_graph=True)
    (gb,) = mg.autograd.grad(b.sum(), x)
    np.testing.assert_allclose(ga.numpy() + gb.numpy(), np.exp([1, 2]) + np.cos([1, 2]), rtol=1e-6)
    with mg.no_grad():
        assert not checkpoint(f, {"x": x}, 1.0, names=[])["out"][0].requires_grad
    d = mg.ones(2)
    assert not checkpoint(lambda t: t * 2, d).requires_grad


def test_streams_go_on_as_if_nothing_had_been_drawn_again():
    x = mg.ones(50, requires_grad=True)
    mg.manual_seed(0)
    y = checkpoint(lambda t: F.dropout(t, 0.5) * t, x)
    mg.rand(3)
    state = mg.get_rng_state().tolist()
    y.sum().backward()
    assert mg.get_rng_state().tolist() == state
    np.testing.assert_array_equal(x.grad.numpy(), 2 * y.detach().numpy())


def test_hooks_second_derivatives_deferred_work_and_repeated_backwards():
    x = mg.tensor([0.3, 0.7], requires_grad=True, dtype=mg.float64)
    f = lambda t: (t.sin() * t.exp()).tanh()  # noqa: E731
    g = lambda t: checkpoint(f, t)  # noqa: E731
    assert mg.autograd.gradcheck(g, x) and mg.autograd.gradgradcheck(g, x)
    seen = []

    def hooked(t):
        s = t.sin()
        s.register_hook(lambda d: seen.append(d.tolist()) or d * 2)
        return s * s

    for function in (hooked, lambda t: checkpoint(hooked, t)):
        y = function(x).sum()
        for _ in range(2):
            y.backward(retain_graph=True)
    want, x.grad = x.grad.numpy() / 4, None
    assert len(seen) == 4 and seen[:2] == seen[2:]
    y = checkpoint(hooked, x).sum()
    work = y.backward(defer=[x])
    assert x.grad is None
    for each in work:
        each()
    np.testing.assert_allclose(x.grad.numpy(), want)


def test_sequential_is_the_same_in_segments():
    mg.manual_seed(0)
    net = nn.Sequential(*[Block() for _ in range(5)])
    want, state = run([net], plain)
    for segments in (1, 2, 3, 5):
        found, after = run([net], lambda step, x, s=segments: checkpoint_sequential(step, s, x, use_reentrant=False))
        assert state == after
        for a, b in zip(want, found):
            np.testing.assert_array_equal(a, b)
    with pytest.raises(ValueError, match="6 segments of 5"):
        checkpoint_sequential(net, 6, mg.ones(1, 4))


def test_functions_that_cannot_run_twice_are_found_out():
    x = mg.ones(3, requires_grad=True)
    count = iter((1, 2, 3))
    y = checkpoint(lambda t: t * t if next(count) == 1 else t.exp(), x)
    with pytest.raises(RuntimeError, match="did not do the same again: step 0 was Mul.* and now is Exp"):
        y.sum().backward()
    with pytest.raises(RuntimeError, match="writ"):
        checkpoint(lambda t, u: t * u.add_(1), x, mg.ones(3))
    w = mg.ones(3)
    y = checkpoint(lambda t: t * w, x)
    w.add_(1)
    with pytest.raises(RuntimeError, match="changed since forward"):
        y.sum().backward()
    u = mg.ones(3)
    y = checkpoint(lambda t, v: t * v, x, u)
    u.add_(1)
    with pytest.raises(RuntimeError, match="changed between forward and backward"):
        y.sum().backward()
    with pytest.raises(ValueError, match="sometimes"):
        checkpoint(lambda t: t, x, determinism_check="sometimes")
    with pytest.raises(KeyError):
        checkpoint(lambda t: {}[0], x)


def test_a_retained_graph_with_writes_inside_goes_twice():
    """Values written in place while running again count as those of the first run."""
    x = mg.tensor([1.0, 2.0], requires_grad=True)

    def f(t):
        h = t * 3
        h += 1
        return h * h

    y = checkpoint(f, x).sum()
    y.backward(retain_graph=True)
    first = x.grad.tolist()
    y.backward()
    assert x.grad.tolist() == [2 * g for g in first]


def test_context_fn_wraps_each_run():
    x, log = mg.ones(2, requires_grad=True), []

    class Note:
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            log.append(self.name)

        def __exit__(self, *_):
            return None

    checkpoint(lambda t: t.exp(), x, context_fn=lambda: (Note("first"), Note("again"))).sum().backward()
    assert log == ["first", "again"]
