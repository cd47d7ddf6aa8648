"""Module hooks: order, replacement, what they see, and that they go when told."""

import copy
import pickle

import numpy as np
import pytest

import minigrad as mg
from minigrad import nn
from minigrad.errors import HookError


def layer():
    mg.manual_seed(0)
    return nn.Linear(2, 2)


class Two(nn.Module):
    """Two tensors and a number in, two tensors and a number out."""

    def forward(self, a, k, b=None, *, scale=1.0):
        return a * k * scale, a + b, k


def test_backward_hooks_see_both_sides_and_replace_the_inputs_gradient():
    m, x, seen = layer(), mg.ones(3, 2, requires_grad=True), []
    m.register_full_backward_hook(lambda mod, gi, go: seen.append((mod is m, gi, go)))
    m.register_full_backward_hook(lambda mod, gi, go: (gi[0] * 2,))
    m.register_full_backward_hook(lambda mod, gi, go: seen.append(gi), prepend=True)
    up = mg.tensor(np.arange(6.0).reshape(3, 2).astype("f4"))
    y = m(x)
    (y * up).sum().backward()
    plain = layer()
    x2 = mg.ones(3, 2, requires_grad=True)
    (plain(x2) * up).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), 2 * x2.grad.numpy())
    np.testing.assert_array_equal(m.weight.grad.numpy(), plain.weight.grad.numpy())
    assert len(seen) == 2 and seen[1][0] and len(seen[0]) == 1
    np.testing.assert_array_equal(seen[1][2][0].numpy(), up.numpy())
    np.testing.assert_array_equal(seen[1][1][0].numpy(), x2.grad.numpy())


def test_backward_pre_hooks_change_what_the_module_gets():
    m, x = layer(), mg.ones(1, 2, requires_grad=True)
    m.register_full_backward_pre_hook(lambda mod, go: (go[0] * 3,))
    m.register_full_backward_pre_hook(lambda mod, go: go[0] + 1)
    m(x).sum().backward()
    np.testing.assert_allclose(m.bias.grad.numpy(), [4, 4])
    np.testing.assert_allclose(x.grad.numpy(), 4 * m.weight.detach().numpy().sum(0)[None], rtol=1e-6)


def test_tuples_with_other_things_in_them():
    m, seen = Two(), []
    m.register_full_backward_hook(lambda mod, gi, go: seen.append((gi, go)))
    a, b = mg.ones(2, requires_grad=True), mg.ones(2, requires_grad=True)
    first, second, k = m(a, 3.0, b)
    assert k == 3.0
    (first.sum() * 2).backward(retain_graph=True)
    gi, go = seen.pop()
    assert [g is None for g in gi] == [False, True, True] and [g is None for g in go] == [False, True, True]
    np.testing.assert_array_equal(gi[0].numpy(), [6, 6])
    (first.sum() + second.sum()).backward()
    gi, go = seen.pop()
    assert [g is None for g in gi] == [False, True, False] and go[1].tolist() == [1, 1]


def test_inputs_without_a_gradient():
    m, seen = layer(), []
    m.register_full_backward_hook(lambda mod, gi, go: seen.append((gi, go[0].tolist())))
    m(mg.ones(1, 2)).sum().backward()
    assert seen == [((None,), [[1, 1]])] and m.weight.grad is not None
    m.register_full_backward_hook(lambda mod, gi, go: (mg.ones(1, 2),))
    with pytest.raises(HookError, match="only None"):
        m(mg.ones(1, 2)).sum().backward()
    n = layer()
    n.register_full_backward_hook(lambda mod, gi, go: (gi[0], gi[0]))
    with pytest.raises(RuntimeError, match="2 gradients for 1"):
        n(mg.ones(1, 2, requires_grad=True)).sum().backward()
    with mg.no_grad():
        n(mg.ones(1, 2))


def test_second_derivatives_and_repeated_backwards_go_through_gates():
    m = nn.Sequential(nn.Linear(2, 3), nn.Tanh()).double()
    calls = []
    m[0].register_full_backward_hook(lambda mod, gi, go: calls.append(len(gi)))
    m.register_full_backward_hook(lambda mod, gi, go: (gi[0] * 2,))
    x = mg.randn(2, 2, dtype=mg.float64, requires_grad=True)
    plain = copy.deepcopy(m)
    plain._hooks.clear()
    (g,) = mg.autograd.grad(m(x).sum(), x, create_graph=True)
    (h,) = mg.autograd.grad(plain(x).sum(), x, create_graph=True)
    np.testing.assert_allclose(g.detach().numpy(), 2 * h.detach().numpy())
    (gg,), (hh,) = (mg.autograd.grad((t * t).sum(), x) for t in (g, h))
    np.testing.assert_allclose(gg.numpy(), 4 * hh.numpy())
    assert calls


def test_forward_hooks_with_keywords_in_order_and_always():
    m, seen = Two(), []
    a = mg.ones(2)

    def pre(mod, args, kwargs):
        return args, {**kwargs, "scale": 5.0}

    m.register_forward_pre_hook(pre, with_kwargs=True)
    m.register_forward_hook(lambda mod, args, kwargs, out: seen.append(kwargs["scale"]), with_kwargs=True)
    assert m(a, 2.0, a)[0].tolist() == [10, 10] and seen == [5.0]

    m.register_forward_hook(lambda mod, args, out: seen.append(("always", out)), always_call=True)
    m.register_forward_hook(lambda mod, args, out: seen.append("never"))
    with pytest.raises(TypeError):
        m(a, 2.0)                                             # b is None
    assert seen == [5.0, ("always", None)]

    def fails(mod, args, out):
        raise KeyError("hook")

    n = layer()
    n.register_forward_hook(fails)
    n.register_forward_hook(lambda mod, args, out: seen.append(out.shape), always_call=True)
    n.register_forward_hook(fails, always_call=True)
    with pytest.raises(KeyError), pytest.warns(UserWarning, match="always_call"):
        n(mg.ones(1, 2))
    assert seen[-1] == (1, 2)
    p = Two()
    p.register_forward_pre_hook(lambda mod, args, kwargs: args, with_kwargs=True)
    with pytest.raises(HookError, match="args, kwargs"):
        p(a, 2.0, a)


def test_handles_take_hooks_away_also_as_a_block():
    m, seen = layer(), []
    x = mg.ones(1, 2, requires_grad=True)
    with m.register_forward_hook(lambda *_: seen.append(1)) as handle, \
            m.register_full_backward_hook(lambda *_: seen.append(2)), \
            x.register_hook(lambda g: seen.append(3)):
        m(x).sum().backward()
    m(x).sum().backward()
    handle.remove()
    assert seen == [1, 2, 3]


def double(mod, args, out):
    return out * 2


def test_hooks_survive_copies():
    m = layer()
    m.register_forward_hook(double)
    want = m(mg.ones(1, 2)).tolist()
    for other in (copy.deepcopy(m), pickle.loads(pickle.dumps(m))):
        assert other(mg.ones(1, 2)).tolist() == want
    other = copy.deepcopy(m)
    other.register_forward_hook(double)
    assert m(mg.ones(1, 2)).tolist() == want                  # a copy's hooks are its own


def test_state_hooks_rename_drop_and_forgive():
    net = nn.Sequential(layer(), layer())
    seen = []
    net[0].register_state_dict_pre_hook(lambda m, prefix, keep: seen.append(prefix))
    net[1].register_state_dict_post_hook(lambda m, state, prefix, meta: state.pop(prefix + "bias"))
    state = net.state_dict()
    assert seen == ["0."] and list(state) == ["0.weight", "0.bias", "1.weight"]

    def rename(m, state, prefix, meta, strict, missing, unexpected, errors):
        state[prefix + "weight"] = state.pop(prefix + "old")

    fresh = nn.Sequential(layer(), layer())
    fresh[0].register_load_state_dict_pre_hook(rename)
    given = {**state, "0.old": mg.ones(2, 2)}
    given.pop("0.weight")
    with pytest.raises(RuntimeError, match="missing: 1.bias"):
        fresh.load_state_dict(given)
    handle = fresh.register_load_state_dict_post_hook(lambda m, keys: keys.missing_keys.clear())
    assert fresh.load_state_dict(given).missing_keys == [] and fresh[0].weight.tolist() == [[1, 1], [1, 1]]
    assert "0.old" in given
    handle.remove()
