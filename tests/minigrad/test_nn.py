"""Modules: what they hold, how they are called, saved and copied; training on sim equals training on the host."""

import copy
import pickle

import numpy as np
import pytest

import minigrad as mg
import minigrad.nn.functional as F
from minigrad import nn
from minigrad.nn.models import DigitsCNN


class Net(nn.Module):
    """Two layers in a list, one named; no call of super().__init__()."""

    def __init__(self):
        self.layers = nn.ModuleList([nn.Linear(3, 4), nn.Linear(4, 4)])
        self.norm = nn.BatchNorm1d(4)
        self.scale = nn.Parameter(mg.ones(1))
        self.register_buffer("seen", mg.zeros(1), persistent=False)
        self.head = nn.Sequential(nn.Tanh(), nn.Linear(4, 2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)) * self.scale


@pytest.fixture
def net():
    mg.manual_seed(0)
    return Net()


def values(module):
    return {k: v.numpy().copy() for k, v in module.state_dict().items()}


def same(a, b):
    assert a.keys() == b.keys()
    for key in a:
        np.testing.assert_array_equal(a[key], b[key], err_msg=key)


# ---- what a module holds -------------------------------------------------------------------------


def test_everything_is_found_by_its_dotted_name(net):
    own = ["scale", "layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias"]
    own += ["norm.weight", "norm.bias", "head.1.weight", "head.1.bias"]
    buffers = ["norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]
    assert [name for name, _ in net.named_parameters()] == own
    assert sorted(net.state_dict()) == sorted(own + buffers)
    assert sorted(name for name, _ in net.named_buffers()) == sorted([*buffers, "seen"])
    assert [name for name, _ in net.named_children()] == ["layers", "norm", "head"]
    assert net.get_submodule("head.1") is net.head[1] and net.get_submodule("") is net


def test_the_text_of_a_module_is_pytorchs(net):
    assert repr(net) == "\n".join([
        "Net(",
        "  (layers): ModuleList(",
        "    (0): Linear(in_features=3, out_features=4, bias=True)",
        "    (1): Linear(in_features=4, out_features=4, bias=True)",
        "  )",
        "  (norm): BatchNorm1d(4, eps=1e-05, momentum=0.1, affine=True, bias=True, "
        "track_running_stats=True)",
        "  (head): Sequential(",
        "    (0): Tanh()",
        "    (1): Linear(in_features=4, out_features=2, bias=True)",
        "  )",
        ")",
    ])  # fmt: skip
    assert repr(nn.ModuleList([nn.Tanh(), nn.Tanh(), nn.ReLU()])) == (
        "ModuleList(\n  (0-1): 2 x Tanh()\n  (2): ReLU()\n)"
    )
    assert repr(nn.Parameter(mg.ones(1))).startswith("Parameter containing:\ntensor([1.]")


def test_what_cannot_be_assigned_is_refused(net):
    with pytest.raises(TypeError, match="is a Parameter"):
        net.scale = mg.ones(1)
    with pytest.raises(TypeError, match="is a buffer"):
        net.seen = 3
    with pytest.raises(TypeError, match="not a Tensor"):
        net.register_buffer("other", 3)
    with pytest.raises(KeyError, match="without dots"):
        net.add_module("a.b", nn.Tanh())
    with pytest.raises(KeyError, match="taken"):
        net.register_buffer("forward", mg.ones(1))
    with pytest.raises(TypeError, match="expected a Tensor"):
        nn.Parameter([1.0])
    with pytest.raises(TypeError, match="int64"):
        nn.Parameter(mg.tensor([1]))
    with pytest.raises(TypeError, match="is not a Module"):
        nn.Sequential(lambda x: x)
    with pytest.raises(NotImplementedError, match="Bare has no forward"):
        type("Bare", (nn.Module,), {})()(1)
    net.scale = None
    assert "scale" not in net.state_dict()


def test_a_list_of_modules_is_a_list():
    items = [nn.Linear(1, n) for n in (1, 2, 3)]
    for kind in (nn.ModuleList(items), nn.Sequential(*items)):
        kind.append(nn.Tanh())
        kind.insert(1, nn.ReLU())
        assert [type(m).__name__ for m in kind] == ["Linear", "ReLU", "Linear", "Linear", "Tanh"]
        assert isinstance(kind.pop(), nn.Tanh) and len(kind) == 4
        del kind[1]
        assert list(kind) == items and kind[-1] is items[-1] and list(kind[1:]) == items[1:]
        kind[0] = items[1]
        assert list(kind.state_dict())[0] == "0.weight" and kind[0] is items[1]
    named = nn.ModuleDict({"a": items[0]})
    named["b"] = items[1]
    assert list(named) == ["a", "b"] and "a" in named and named["b"] is items[1]
    ps = nn.ParameterList([mg.ones(2), mg.zeros(3)])
    assert [name for name, _ in ps.named_parameters()] == ["0", "1"] and ps[1].shape == (3,)


# ---- calling -------------------------------------------------------------------------------------


def scopes(y):
    """The scope of each node behind `y`, from the newest."""
    found, node = [], y.node
    while isinstance(node, mg.Node):
        found.append(".".join(node.scope))
        node = next((e for e in node.edges if isinstance(e, mg.Node)), None)
    return found


def test_nodes_know_the_modules_they_were_made_in(net):
    y = net(mg.ones(2, 3))
    assert list(dict.fromkeys(scopes(y))) == [
        "Net", "Net.head.1", "Net.head.0", "Net.norm", "Net.layers.1", "Net.layers.0",
    ]  # fmt: skip
    assert scopes(mg.exp(y))[0] == "" and mg.tensor([1.0], requires_grad=True).exp().node.scope == ()
    outer = nn.Sequential(net)
    assert scopes(outer(mg.ones(2, 3)))[0] == "Sequential.0"


def test_no_scope_is_left_behind_by_an_error(net):
    with pytest.raises(ValueError):
        net(mg.ones(2, 5))
    assert mg.tensor([1.0], requires_grad=True).exp().node.scope == ()


def test_hooks_see_and_replace():
    layer, seen = nn.Linear(2, 1, bias=False), []
    handles = [
        layer.register_forward_pre_hook(lambda m, args: seen.append("pre")),
        layer.register_forward_pre_hook(lambda m, args: (args[0] * 2,)),
        layer.register_forward_hook(lambda m, args, y: seen.append(tuple(args[0].tolist()))),
        layer.register_forward_hook(lambda m, args, y: y + 1),
        layer.register_forward_hook(lambda m, args, y: seen.append("first"), prepend=True),
    ]
    x = mg.tensor([1.0, 2.0])
    want = (x * 2 @ layer.weight.detach().t()).item() + 1
    assert layer(x).item() == pytest.approx(want) and seen == ["pre", "first", (2.0, 4.0)]
    with mg.no_grad():
        assert layer(x).item() == pytest.approx(want)
    for handle in handles:
        handle.remove()
    assert layer(x).item() == pytest.approx((want - 1) / 2)


def test_modes_freezing_and_zero_grad(net):
    assert net.eval() is net and not any(m.training for m in net.modules())
    assert all(m.training for m in net.train().modules())
    net(mg.ones(2, 3)).sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    net.zero_grad(set_to_none=False)
    assert all(not p.grad.numpy().any() for p in net.parameters())
    net.zero_grad()
    assert all(p.grad is None for p in net.parameters())
    net.requires_grad_(False)
    assert not net(mg.ones(2, 3)).requires_grad
    seen = []
    assert net.apply(lambda m: seen.append(type(m).__name__)) is net
    assert seen[-1] == "Net" and seen[0] == "Linear"


@pytest.mark.parametrize("to", ["float64", "float16"])
def test_floats_change_their_dtype_and_integers_do_not(net, to):
    net(mg.ones(2, 3)).sum().backward()
    p = net.scale
    net.to(getattr(mg, to))
    assert net.scale is p and p.dtype == p.grad.dtype == net.norm.running_var.dtype == to
    assert net.norm.num_batches_tracked.dtype == mg.int64 and p.requires_grad


def test_meta_has_shapes_alone(net):
    net.to("meta")
    y = net(mg.zeros(2, 3, device="meta"))
    assert y.shape == (2, 2) and y.device.type == "meta"


# ---- state ---------------------------------------------------------------------------------------


def test_the_state_is_live_and_loading_copies(net):
    state, snapshot = net.state_dict(), copy.deepcopy(net.state_dict())
    with mg.no_grad():
        net.scale.add_(1)
    assert state["scale"].item() == 2 and snapshot["scale"].item() == 1
    p = net.scale
    assert not any(net.load_state_dict(snapshot))
    snapshot["scale"].fill_(7)
    assert net.scale is p and p.item() == 1


def test_a_wrong_state_names_everything_and_loads_nothing(net):
    state = {k: v.clone() + 1 for k, v in net.state_dict().items() if k != "norm.bias"}
    state["scale"], state["new"] = mg.zeros(2), mg.zeros(1)
    before = values(net)
    with pytest.raises(RuntimeError) as caught:
        net.load_state_dict(state)
    for words in ("norm.bias", "new", "(2,) in the state, (1,) in the module", "strict=False"):
        assert words in str(caught.value)
    same(values(net), before)
    del state["scale"]
    found = net.load_state_dict(state, strict=False)
    assert found.missing_keys == ["scale", "norm.bias"] and found.unexpected_keys == ["new"]
    assert net.layers[0].bias.tolist() == (before["layers.0.bias"] + 1).tolist()
    with pytest.raises(TypeError, match="dict"):
        net.load_state_dict([1])


def test_assign_takes_the_tensors_themselves():
    layer = nn.Linear(2, 1, device="meta")
    layer.load_state_dict({"weight": mg.ones(1, 2), "bias": mg.zeros(1)}, assign=True)
    assert layer(mg.ones(1, 2)).item() == 2 and isinstance(layer.weight, nn.Parameter)


def tied():
    a, b = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    b.weight = a.weight
    return nn.Sequential(a, b)


@pytest.mark.parametrize("way", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"])
def test_copies_are_equal_and_apart_and_keep_ties(net, way):
    net(mg.ones(3, 3))
    net.eval()
    twin = way(net)
    same(values(twin), values(net))
    x = mg.randn(2, 3)
    assert twin(x).tolist() == net(x).tolist() and not twin.training
    with mg.no_grad():
        twin.scale.add_(1)
    assert net.scale.item() == 1 and twin.scale.requires_grad
    pair = way(tied())
    assert pair[0].weight is pair[1].weight and len(list(pair.parameters())) == 1
    assert list(pair.state_dict()) == ["0.weight", "1.weight"]


def test_tensors_copy_and_pickle():
    base = mg.arange(6.0).reshape(2, 3)
    cases = [base[:, 1], base.t(), mg.tensor(2.5), mg.zeros(0, 3), mg.tensor([1, 2]), mg.tensor([True])]
    cases += [mg.tensor([1.5], dtype=mg.float16, requires_grad=True), base.to("sim:0")]
    for x in cases:
        for y in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
            assert (y.dtype, y.shape, y.device, y.requires_grad) == (x.dtype, x.shape, x.device, x.requires_grad)
            np.testing.assert_array_equal(y.detach().cpu().numpy(), x.detach().cpu().numpy())
    assert len(pickle.dumps(mg.zeros(1000, 1000)[0, :2])) < 2000
    with pytest.raises(RuntimeError, match="deepcopy"):
        copy.deepcopy(mg.tensor([1.0], requires_grad=True) * 2)


# ---- one step on every device --------------------------------------------------------------------


def digits_step(device):
    mg.manual_seed(3)
    net = DigitsCNN(width=2).to(device)
    optimiser = mg.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)  # Adam makes whole steps of gradients of 0 ± 1e-9
    x, y = mg.rand(6, 1, 8, 8), mg.randint(10, (6,))
    for _ in range(2):
        optimiser.zero_grad()
        F.cross_entropy(net(x.to(device)), y.to(device)).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()
    return {k: v.cpu().numpy() for k, v in net.state_dict().items()}


def test_training_on_sim_equals_training_on_the_host():
    here, there = digits_step("cpu"), digits_step("sim:0")
    for key in here:  # sums of the host are pairwise, those of sim go through another entry
        np.testing.assert_allclose(there[key], here[key], rtol=1e-5, atol=1e-6, err_msg=key)


def test_the_same_seed_gives_the_same_training():
    same(digits_step("cpu"), digits_step("cpu"))
