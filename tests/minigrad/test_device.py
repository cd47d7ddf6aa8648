"""Devices: nothing moves unasked, in any op and any order; accounts come back to zero; meta computes shapes alone."""

import gc
import itertools

import numpy as np
import pytest

import minigrad as mg
from minigrad.device import backend_of, register_backend
from minigrad.errors import DeviceMismatch, ImplicitTransfer, SimOutOfMemory
from minigrad.laws import Trial
from minigrad.ops import CATALOGUE
from minigrad.sim import sim_device
from minigrad.tensor import Tensor, apply

PLACES = ("cpu", "sim:0", "sim:1", "meta")
SAMPLES = [s for cls in CATALOGUE for s in cls.samples()[:1] if len(Trial(s).arrays) > 1]


def put(array, where):
    device = mg.device(where)
    return Tensor(array if where == "cpu" else backend_of(device).put(device.index, array))


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_every_mix_of_devices_is_refused_by_every_op(sample):
    """All placements of the inputs but those on one device: DeviceMismatch, naming the op, before anything runs."""
    t = Trial(sample)
    free = [i for i, name in enumerate(t.names) if name not in t.op.on_host]
    if len(free) < 2:
        return
    for first, second in itertools.permutations(PLACES, 2):
        for odd in free:
            xs = [put(a, "cpu" if i not in free else second if i == odd else first) for i, a in enumerate(t.arrays)]
            with pytest.raises(DeviceMismatch) as e:
                apply(t.op, *xs)
            assert t.op.label in str(e.value) and first in str(e.value) and second in str(e.value)


MIXES = [
    lambda a, b: a + b,
    lambda a, b: a * b,
    lambda a, b: a @ b.T,
    lambda a, b: a > b,
    lambda a, b: mg.maximum(a, b),
    lambda a, b: mg.cat([a, b]),
    lambda a, b: mg.stack([a, b]),
    lambda a, b: mg.where(a > 0, a, b),
    lambda a, b: mg.where(a > 0, b, 1.0),
    lambda a, b: a.clamp(b),
    lambda a, b: a**b,
    lambda a, b: a[b.long()],
    lambda a, b: a.gather(0, b.long()),
    lambda a, b: a.add_(b),
    lambda a, b: a.__setitem__(0, b[0]),
    lambda a, b: mg.nn.functional.linear(a, b),
    lambda a, b: mg.nn.functional.cross_entropy(a, b[:, 0].long()),
    lambda a, b: a[b > 0],
]


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("a, b", [*itertools.permutations(PLACES[:3], 2)])
def test_functions_and_doors_refuse_too(mix, a, b):
    x, y = mg.zeros(2, 2, device=a), mg.zeros(2, 2, device=b)
    with pytest.raises((DeviceMismatch, ImplicitTransfer), match=f"{a}.*{b}|{b}.*{a}|host"):
        mix(x, y)


def test_the_gradient_and_the_seed_must_be_where_the_tensor_is():
    x = mg.ones(2, device="sim:0", requires_grad=True)
    with pytest.raises(RuntimeError, match="sim:1.*sim:0"):
        (x * 2).backward(mg.ones(2, device="sim:1"))


@pytest.mark.parametrize("where", PLACES)
def test_python_numbers_mix_with_every_device(where):
    x = mg.ones(2, 3, device=where)
    for y in (
        x + 1,
        2 - x,
        x * np.float64(2.5),
        x / 3,
        x**2,
        x > 0.5,
        x.clamp(0, 1),
        mg.where(x > 0, x, 0.0),
        mg.where(x > 0, 1.0, 2.0),
        x.fill_(3),
        x.add_(1),
    ):
        assert y.device == mg.device(where) and y.shape == (2, 3)


@pytest.mark.parametrize("where", ["cpu", "sim:0"])
def test_numpy_arrays_do_not_mix(where):
    x, a = mg.ones(2, device=where), np.ones(2)
    for mix in (lambda: x + a, lambda: a * x, lambda: x @ a, lambda: np.add(a, x), lambda: x.add_(a)):
        with pytest.raises(TypeError):
            mix()


def test_reading_values_off_a_device_is_asked_for():
    x = mg.ones(2, device="sim:0")
    for bad in (lambda: x.numpy(), lambda: np.asarray(x), lambda: np.sum(x)):
        with pytest.raises(TypeError):
            bad()
    assert x.cpu().numpy().tolist() == x.tolist() == [1, 1] and x[0].item() == 1.0


def test_there_and_back_with_gradient():
    x = mg.tensor([1.0, 2.0], requires_grad=True)
    y = (x.to("sim:0") * 3).to("sim:1") * 2
    assert y.device == mg.device("sim:1")
    y.cpu().backward(mg.tensor([1.0, 10.0]))
    assert x.grad.device == mg.device("cpu") and x.grad.tolist() == [6, 60]
    assert x.to("cpu") is x and x.to(y).device == y.device


def test_a_move_copies_once_each_way():
    device = sim_device(0)
    before = device.h2d_count, device.d2h_count
    mg.ones(3).to("sim:0").cpu()
    assert (device.h2d_count - before[0], device.d2h_count - before[1]) == (1, 1)


def mlp(where):
    mg.manual_seed(0)
    net = mg.nn.Sequential(mg.nn.Linear(4, 8), mg.nn.ReLU(), mg.nn.Linear(8, 3)).to(where)
    return net, mg.optim.Adam(net.parameters(), lr=0.01)


def test_a_step_on_a_device_copies_nothing_and_leaves_nothing():
    """After a warm-up a step moves no byte between host and device, and its account is as before; when all is dropped,
    only the algebra's 0-d constants are left."""
    device = sim_device(5)

    def session():
        net, optimiser = mlp("sim:5")
        x, t = mg.randn(5, 4).to("sim:5"), mg.tensor([0, 1, 2, 1, 0]).to("sim:5")

        def step():
            optimiser.zero_grad()
            ((net(x) - t.reshape(5, 1)) ** 2).mean().backward()
            optimiser.step()

        step(), step()
        counts = device.h2d_count, device.d2h_count, device.used
        step()
        assert (device.h2d_count, device.d2h_count, device.used) == counts

    session()
    gc.collect()
    left = device.used
    session()
    gc.collect()
    assert device.used == left < 200


def test_a_step_on_a_device_equals_one_on_the_host():
    losses = []
    for where in ("cpu", "sim:0"):
        net, optimiser = mlp(where)
        mg.manual_seed(1)
        x, t = mg.randn(5, 4, device=where), mg.tensor([0, 1, 2, 1, 0], device=where)
        for _ in range(3):
            optimiser.zero_grad()
            loss = mg.nn.functional.cross_entropy(net(x), t)
            loss.backward()
            optimiser.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_out_of_memory_leaves_the_account_as_it_was():
    device = sim_device(3)
    x = mg.ones(100, device="sim:3")
    used, device.limit = device.used, device.used + 600
    try:
        with pytest.raises(SimOutOfMemory):
            x.exp() * x
        gc.collect()
        assert device.used == used and (x + 1).sum().item() == 200
    finally:
        device.limit = None


def test_meta_trains_an_mlp_without_values():
    net, _ = mlp("meta")
    x, t = mg.zeros(5, 4, device="meta"), mg.zeros(5, device="meta", dtype=mg.int64)
    loss = mg.nn.functional.cross_entropy(net(x), t)
    loss.backward()
    for p in net.parameters():
        assert p.grad.device == mg.device("meta") and (p.grad.shape, p.grad.dtype) == (p.shape, p.dtype)
    for bad in (
        loss.item,
        loss.tolist,
        loss.cpu,
        loss.detach().numpy,
        lambda: bool(loss),
        lambda: float(loss),
        lambda: mg.zeros(2, device="meta")[mg.zeros(2, device="meta") > 0],
    ):
        with pytest.raises((RuntimeError, TypeError), match="meta"):
            bad()


@pytest.mark.parametrize("name", ["", "gpu", "cpu:1", "sim:", "sim:x", "cuda:-1", "meta:2", "sim:0:1", "CPU", "sim:²"])
def test_an_unknown_device_lists_the_known(name):
    with pytest.raises(RuntimeError, match="cpu, sim, cuda, meta"):
        mg.device(name)


def test_devices_are_values():
    assert (
        mg.device("sim:1") is mg.device("sim", 1) is mg.device(mg.device("sim:1")) and str(mg.device("sim")) == "sim:0"
    )
    assert repr(mg.device("cpu:0")) == "device('cpu')" and mg.zeros(1, device=mg.device("sim:1")).device.index == 1
    with pytest.raises(TypeError, match="name"):
        mg.device(3)


def test_without_a_gpu_cuda_says_what_is_missing():
    if mg.cuda_is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(RuntimeError, match="(?i)cupy|driver"):
        mg.zeros(2, device="cuda")


def test_a_kind_of_device_is_registered_once():
    with pytest.raises(ValueError, match="exists"):
        register_backend("cpu", backend_of(mg.device("cpu")))
