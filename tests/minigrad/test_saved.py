"""Hooks for saved tensors: what they see, that gradients stay the same bit for bit, and every way of going wrong."""
import gc
import weakref

import numpy as np
import pytest
from minigrad.autograd.graph import disable_saved_tensors_hooks, save_on_cpu, saved_tensors_hooks

import minigrad as mg
from minigrad import nn
from minigrad.checkpoint import checkpoint
from minigrad.errors import GraphError
from minigrad.nn import functional as F
from minigrad.sim import sim_device
from minigrad.tensor import current


def copies():
    """Hooks that keep NumPy copies, laid out as they lie."""
    return saved_tensors_hooks(lambda t: (t.o, t.o.copy(t.array)), lambda p: mg.Tensor(p[1]))


class Square(mg.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g


class Parts(mg.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(x, y)
        return y, x * 3

    @staticmethod
    def backward(ctx, g, h):
        x, y = ctx.saved_tensors
        return g * y + h * 3 + 0 * x


def program(x, w):
    """Views, writes in place, several outputs, ops of many inputs, dropout, a Function, a checkpoint."""
    h = F.gelu(x @ w) + Square.apply(x)
    h = F.dropout(h, 0.3)
    h *= 1.5
    h[:, 0] = h[:, 1].exp()
    a, b = Parts.apply(h)
    h = mg.cat([a.t()[:3], b.t()]).softmax(0) * mg.stack([x, w[:3]]).prod(0).sum()
    h = checkpoint(lambda t: (t.tanh() * t).cumsum(0), h)
    return F.layer_norm(h.sin(), (3,)) + h.max(0)[0]


def gradients(context, device="cpu", **how):
    mg.manual_seed(2)
    x = mg.randn(3, 4).to(device).requires_grad_()
    w = mg.randn(4, 4).to(device).requires_grad_()
    up = mg.randn(7, 3).to(device)
    with context:
        y = program(x, w)
    (y * up).sum().backward(**how)
    return [t.detach().cpu().numpy() for t in (y, x.grad, w.grad)]


class Nothing:
    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass


@pytest.mark.parametrize("how", [{}, {"create_graph": True}, {"retain_graph": True}], ids=str)
@pytest.mark.parametrize("device", ["cpu", "sim:0"])
@pytest.mark.parametrize("hooks", [copies, save_on_cpu, lambda: saved_tensors_hooks(lambda t: t.detach(), lambda t: t)],
                         ids=["copies", "save_on_cpu", "same"])
def test_gradients_are_those_without_hooks_bit_for_bit(hooks, device, how):
    for a, b in zip(gradients(Nothing(), device, **how), gradients(hooks(), device, **how), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("hooks", [copies, save_on_cpu], ids=["copies", "save_on_cpu"])
def test_second_derivatives_and_grad_towards_some(hooks):
    def second(context):
        x = mg.tensor([0.3, -1.2, 2.0], requires_grad=True)
        w = mg.tensor([1.5, 0.5, -1.0], requires_grad=True)
        with context:
            h = (x * w).tanh() * x.exp()
            (g,) = mg.autograd.grad(h, x, mg.tensor([1.0, 2.0, 3.0]), create_graph=True)
            (g2,) = mg.autograd.grad((g * g).sum(), w)
        return g.detach().numpy(), g2.numpy()
    for a, b in zip(second(Nothing()), second(hooks()), strict=True):
        np.testing.assert_array_equal(a, b)


def test_every_saved_array_is_packed_once_a_save_and_unpacked_each_time_it_is_needed():
    packed, opened = [], []
    x = mg.ones(3, requires_grad=True)
    c = mg.full((3,), 2.0)
    with saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: opened.append(t) or t):
        y = (x * c).exp()                                    # mul saves c for x alone, exp saves y
        z = (y * y).sum()
    assert [p is q for p, q in zip(packed, (c, None, y, y), strict=True)] == [True, False, True, True]
    assert np.array_equal(packed[1].numpy(), y.detach().numpy()) and packed[1].node is None
    z.backward(retain_graph=True)
    assert len(opened) == 4
    z.backward()
    assert len(opened) == 8


def test_the_innermost_hooks_alone_are_asked():
    seen = []
    note = lambda name: saved_tensors_hooks(lambda t: seen.append(name) or t, lambda t: t)  # noqa: E731
    x = mg.ones(3, requires_grad=True)
    with note("outer"):
        with note("inner"):
            x.exp()
        x.sin()
    x.cos()
    assert seen == ["inner", "outer"] and current().observers == ()


def test_what_was_packed_goes_with_the_graph():
    class Packed:
        pass

    refs = []

    def pack(t):
        p = Packed()
        p.tensor = t.detach()
        refs.append(weakref.ref(p))
        return p

    gc.disable()
    try:
        for how in ({}, {"inputs": True}):
            refs.clear()
            x = mg.ones(3, requires_grad=True)
            with saved_tensors_hooks(pack, lambda p: p.tensor):
                y = x.exp()
                z = (y * y).sum()
            assert all(r() for r in refs)
            z.backward(**{k: [x] for k in how})
            assert not any(r() for r in refs)                # though y and z are still there
    finally:
        gc.enable()


def test_errors():
    x = mg.ones(3, requires_grad=True)
    with pytest.raises(TypeError, match="two functions"), saved_tensors_hooks(1, 2):
        pass
    with pytest.raises(GraphError, match="wrote to its input"), saved_tensors_hooks(lambda t: t.mul_(2), lambda t: t):
        (x * 1).sin()
    with pytest.raises(ZeroDivisionError), saved_tensors_hooks(lambda t: 1 / 0, lambda t: t):
        x.exp()
    with saved_tensors_hooks(lambda t: t, lambda t: 5):
        y = x.exp().sum()
    with pytest.raises(TypeError, match="expected to be a Tensor but got result of type int"):
        y.backward()
    assert x.grad is None and current().observers == ()
    with pytest.raises(RuntimeError, match="not here"), disable_saved_tensors_hooks("not here"), save_on_cpu():
        pass
    with pytest.raises(RuntimeError, match="not here"), save_on_cpu(), disable_saved_tensors_hooks("not here"):
        pass
    with copies():
        x.exp().sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), x.detach().exp().numpy())


def test_a_hook_that_writes_cannot_change_what_a_number_means():
    """Numbers beside tensors are interned: one tensor for the whole process."""
    x = mg.ones(3, requires_grad=True)
    with saved_tensors_hooks(lambda t: t.mul_(2), lambda t: t):
        x * 7
    assert (mg.ones(3) * 7).tolist() == [7, 7, 7]


def test_an_error_in_unpacking_leaves_the_graph_as_it_was():
    broken = [True]
    x = mg.ones(3, requires_grad=True)

    def unpack(t):
        if broken:
            raise OSError("gone")
        return t

    with saved_tensors_hooks(lambda t: t.detach(), unpack):
        y = x.exp()
    with pytest.raises(OSError, match="gone"):
        y.backward(mg.ones(3), retain_graph=True)
    broken.clear()
    y.backward(mg.ones(3))
    np.testing.assert_array_equal(x.grad.numpy(), y.detach().numpy())


def test_save_on_cpu_moves_activations_once_and_parameters_not_at_all():
    sim = sim_device(5)
    net = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()).to("sim:5")
    x = mg.ones(32, 64, device="sim:5")
    size, before = 32 * 64 * 4, (sim.used, sim.d2h_bytes, sim.h2d_bytes)
    with save_on_cpu():
        y = net(x)                    # saved: x, tanh's y by itself and by the next product, the other tanh's y
    assert sim.d2h_bytes - before[1] == 3 * size
    held = sim.used - before[0]
    assert held == size                                      # y alone
    y.backward(mg.ones(32, 64, device="sim:5"))
    assert sim.h2d_bytes - before[2] >= 4 * size             # each time that it is needed


def test_the_input_of_a_checkpoint_is_packed_and_nothing_within():
    seen = []
    x = mg.ones(3, requires_grad=True)
    h = x * 2
    with saved_tensors_hooks(lambda t: seen.append("pack") or t.detach(), lambda t: seen.append("unpack") or t):
        y = checkpoint(lambda t: t.exp().sin().cos(), h).sum()
        assert seen == ["pack"]
        y.backward()
    assert seen == ["pack", "unpack"]
    t = mg.full((3,), 2.0, requires_grad=True)
    t.exp().sin().cos().sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), t.grad.numpy() * 2)


def test_a_packed_graph_can_be_drawn_and_counted():
    x = mg.ones(2, 3, requires_grad=True)
    with copies():
        y = (x * x).tanh().sum()
    assert "tanh" in str(mg.draw(y)).lower()
    assert mg.memory.live_tensors().count > 0
