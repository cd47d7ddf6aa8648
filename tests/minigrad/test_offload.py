"""Offloading: gradients bit for bit, bytes that really leave, and nothing lost or left behind when it goes wrong."""
import errno
import os
import time
from pathlib import Path

import numpy as np
import pytest

import minigrad as mg
from minigrad import nn
from minigrad.checkpoint import checkpoint
from minigrad.errors import GraphError, OffloadError
from minigrad.memory import offload, stores
from minigrad.memory.stores import DiskStore
from minigrad.nn import functional as F
from minigrad.nn.gpt import TransformerBlock
from minigrad.nn.tree import ChildSumTreeLSTM
from minigrad.sim import sim_device
from minigrad.tensor import current


@pytest.fixture
def folder(tmp_path):
    """A folder that must be empty afterwards."""
    yield tmp_path
    assert list(tmp_path.iterdir()) == []


def mlp():
    net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Dropout(0.3), nn.Linear(32, 8), nn.Sigmoid())
    return net, net, mg.randn(12, 16)


def cnn():
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                        nn.Dropout(0.4), nn.Linear(64, 5))
    return net, net, mg.randn(6, 1, 8, 8)


def gpt():
    net = nn.Sequential(TransformerBlock(16, 4, 0.1), TransformerBlock(16, 4, 0.1))
    return net, net, mg.randn(3, 10, 16)


def tree():
    net = ChildSumTreeLSTM(8, 6)
    children = [[1, 2], [3, 4, 5], [], [6], [], [], []]
    return net, lambda x: mg.cat(net(x, children), 1), mg.randn(7, 8)


def dynamic():
    """A loop whose length depends on values, with views, writes in place and a checkpoint within."""
    net = nn.Linear(8, 8)

    def run(x):
        h, k = x, 0
        while k < 5 and (k < 2 or h.detach().abs().mean().item() > 0.1):
            h = checkpoint(lambda t: F.dropout(net(t).tanh(), 0.2), h) if k % 2 else net(h).t().exp().t() * 0.1
            h *= 1.2
            h[:, 0] = h[:, 1].clone().sin()
            k += 1
        return h

    return net, run, mg.randn(5, 8)


NETS = [mlp, cnn, gpt, tree, dynamic]


def gradients(make, device, context=None, steps=1, how=None):
    mg.manual_seed(3)
    module, run, x = make()
    module.to(device)
    x = x.to(device).requires_grad_()
    found = []
    for _ in range(steps):
        with context() if context is not None else mg.enable_grad():
            y = run(x)
            (y * mg.randn(*y.shape).to(device)).sum().backward(**(how or {}))
        found += [y, x.grad, *(p.grad for p in module.parameters())]
    return [t.detach().cpu().numpy().copy() for t in found]


def same(a, b):
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("to, device, how", [("disk", "cpu", {}), ("disk", "cpu", {"create_graph": True}),
                                             ("disk", "sim:0", {}), ("host", "sim:0", {"retain_graph": True})], ids=str)
@pytest.mark.parametrize("net", NETS)
def test_gradients_are_those_without_bit_for_bit(net, to, device, how, folder):
    away = offload(to, min_bytes=0, folder=folder, in_flight=0)         # forward waits: every array really leaves
    same(gradients(net, device, how=how, steps=2), gradients(net, device, lambda: away, steps=2, how=how))
    assert away.buffers > 0 and away.bytes_in > 0


def test_backward_towards_some_and_twice(folder):
    def run(context):
        mg.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Sigmoid())
        x = mg.randn(4, 6).requires_grad_()
        with context:
            y = (net(x) * mg.randn(4, 6)).sum()
            (g,) = mg.autograd.grad(y, [x], retain_graph=True)
            y.backward(retain_graph=True)
            y.backward()
        return [g.numpy(), x.grad.numpy(), *(p.grad.numpy() for p in net.parameters())]
    same(run(mg.enable_grad()), run(offload(min_bytes=0, folder=folder, in_flight=0)))


def settled(o):
    """Wait until the thread has nothing to do."""
    until = time.monotonic() + 10
    while o._pending and time.monotonic() < until:
        time.sleep(0.001)
    assert not o._pending
    o._retire()


def test_on_disk_saved_arrays_leave_memory_and_come_back(folder):
    pytest.importorskip("numba")
    from minigrad.memory.handler import watched
    mg.manual_seed(0)
    layers, x = [nn.Linear(64, 64) for _ in range(8)], mg.randn(256, 64)
    size = 256 * 64 * 4

    def forward():
        h = x
        for layer in layers:
            h = layer(h).tanh()
        return h

    with watched() as watch:
        y = forward()
        plain = watch.live
        del y
    with watched() as watch, offload(folder=folder, min_bytes=size) as o:
        y = forward()
        settled(o)
        assert plain >= 8 * size and watch.live <= size + 4096           # y alone
        assert o.bytes_out == 9 * size                                   # x and eight results of tanh, each once
        inside = list(Path(o._store.folder).iterdir())
        assert len(inside) == 9 and all(f.stat().st_size == size for f in inside)
        y.backward(mg.ones_like(y))
        assert o.bytes_in == 9 * size and list(Path(o._store.folder).iterdir()) == []
        assert o._store.used == 0
        assert f"offload to disk: 9 buffers, {9 * size:,} bytes out, {9 * size:,} in" in str(o) and "hidden" in str(o)
        assert 0 <= o.hidden <= 1 and o.copying_s > 0


def test_every_buffer_comes_back_once_however_often_it_is_needed(folder):
    """gelu needs its input and its result, which the next layer needs too."""
    x, layers = mg.randn(64, 32), [nn.Linear(32, 32) for _ in range(6)]
    with offload(folder=folder, min_bytes=64 * 32 * 4, in_flight=0, prefetch=3) as o:
        h = x
        for layer in layers:
            h = F.gelu(layer(h))
        y = h.square().mean()
        for k in (1, 2):
            y.backward(retain_graph=True)
            assert o.bytes_in == k * o.bytes_out


def test_on_the_host_the_account_of_the_device_shows_it():
    sim, size = sim_device(6), 128 * 32 * 4
    net = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(32, 32), nn.Tanh()))).to("sim:6")
    x = mg.ones(128, 32, device="sim:6")
    before = sim.used
    with offload("host", min_bytes=size) as o:
        y = net(x)
    assert sim.used - before <= size + 8                                 # y; the end of the block waited for the rest
    assert o.bytes_out == 5 * size
    y.backward(mg.ones(128, 32, device="sim:6"))                         # what is on the host may come back later
    assert o.bytes_in == 5 * size
    with offload("host", min_bytes=0) as o:
        (mg.ones(3, requires_grad=True) * mg.ones(3)).exp().sum().backward()
    assert o.buffers == 0                                                # host arrays are there already


def test_what_a_leaf_holds_stays_and_small_arrays_too(folder):
    w = nn.Linear(64, 64).weight
    x = mg.randn(64, 64).requires_grad_()
    with offload(folder=folder, min_bytes=64 * 64 * 4) as o:
        y = (x @ w.t()).sum()
        small = (x[0] * x[1]).exp()
        assert o.buffers == 0
        (y + small.sum()).backward()


def test_views_of_one_memory_leave_once_and_keep_their_strides(folder):
    x = mg.randn(6, 8).requires_grad_()
    with offload(folder=folder, min_bytes=0) as o:
        h = x * 1.0
        one = o.buffers                                                  # the number beside x
        views = [h, h.t(), h[1:, ::2], h.flip(0)[:2], h[::2].mT, h.expand(2, 6, 8)]
        strides = [v.array.strides for v in views[:3]]
        y = sum((v * v).sum() for v in views)
        assert o.buffers <= one + 2                                      # h's memory, and flip's copy
        settled(o)
        opened = [n.saved[0].open() for n in nodes_of(y) if n.saved and hasattr(n.saved[0], "open")]
        assert {tuple(s) for s in strides} <= {a.strides for a in opened}
        y.backward()
    want = x.detach().clone().requires_grad_()
    h = want * 1.0
    sum((v * v).sum() for v in [h, h.t(), h[1:, ::2], h.flip(0)[:2], h[::2].mT, h.expand(2, 6, 8)]).backward()
    np.testing.assert_array_equal(x.grad.numpy(), want.grad.numpy())


def nodes_of(y):
    found, waiting = [], [y.node]
    while waiting:
        n = waiting.pop()
        found.append(n)
        waiting += [e for e in n.edges if hasattr(e, "plan")]
    return found


# ---- bad luck ------------------------------------------------------------------------------------
def deep(x, k=6):
    h = x
    for _ in range(k):
        h = h.exp().tanh()
    return h.sum()


def plain_gradient(x):
    x = x.detach().clone().requires_grad_()
    deep(x).backward()
    return x.grad.numpy()


@pytest.mark.parametrize("how", ["limit", "the system"])
def test_a_full_disk_loses_nothing(folder, how, monkeypatch):
    x = mg.randn(100).requires_grad_()
    if how == "the system":
        real = stores._write

        def full(path, data):
            if int(path.stem) > 2:
                path.write_bytes(bytes(data[:7]))
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            real(path, data)
        monkeypatch.setattr("minigrad.memory.stores._write", full)
    with pytest.warns(UserWarning, match="saved array of 400 bytes could not be put on disk: .*stays in") as told:
        with offload(folder=folder, min_bytes=0, limit=1000 if how == "limit" else None) as o:
            y = deep(x)
            settled(o)
            assert not list(Path(o._store.folder).glob("*.part"))
            y.backward()
    assert len(told) == 1 and 0 < o.kept_bytes and o.bytes_out == 800
    np.testing.assert_array_equal(x.grad.numpy(), plain_gradient(x))


def test_room_that_comes_back_is_used(folder):
    x = mg.randn(100).requires_grad_()
    with pytest.warns(UserWarning, match="could not be put"), offload(folder=folder, min_bytes=0, limit=1000) as o:
        for _ in range(2):
            y = deep(x)
            settled(o)
            y.backward()
    assert o.bytes_out == 1600


def test_a_full_disk_can_be_an_error_that_leaves_all_as_it_was(folder):
    x = mg.randn(100).requires_grad_()
    with pytest.raises(OffloadError, match="could not be put on disk.*still in memory"):
        with offload(folder=folder, min_bytes=0, limit=500, on_full="raise") as o:
            kept = [deep(x, 1)]
            settled(o)
            kept.append(x.exp())
    assert current().observers == ()
    deep(x).backward()
    np.testing.assert_array_equal(x.grad.numpy(), plain_gradient(x))


@pytest.mark.parametrize("harm", ["deleted", "changed", "cut", "longer"])
def test_a_file_that_was_harmed_is_named_and_nothing_is_left(folder, harm):
    x = mg.randn(100).requires_grad_()
    with pytest.raises(OffloadError, match="cannot be read back|was changed by somebody") as told:
        with offload(folder=folder, min_bytes=0) as o:
            y = deep(x)
            settled(o)
            for path in list(Path(o._store.folder).iterdir()):
                data = bytearray(path.read_bytes())
                data[5] ^= 1
                if harm == "deleted":
                    path.unlink()
                else:
                    path.write_bytes({"changed": data, "cut": data[:-1], "longer": path.read_bytes() + b"0"}[harm])
            y.backward()
    assert ".bytes" in str(told.value) and x.grad is None and current().observers == ()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_an_error_midway_leaves_nothing_on_disk(folder, error):
    x = mg.randn(100).requires_grad_()
    with pytest.raises(error), offload(folder=folder, min_bytes=0) as o:
        y = deep(x)
        settled(o)
        raise error
    assert list(folder.iterdir()) == []                                  # though y is still there
    with pytest.raises(OffloadError, match="backward inside the block"):
        y.backward()


def test_a_disk_that_never_answers_is_no_wait_without_a_limit(folder, monkeypatch):
    monkeypatch.setattr(DiskStore, "get", lambda *_: time.sleep(1.0))
    x = mg.randn(100).requires_grad_()
    with pytest.raises(OffloadError, match="did not come back from disk within 0.1 s"):
        with offload(folder=folder, min_bytes=0, timeout_s=0.1) as o:
            y = deep(x)
            settled(o)
            start = time.monotonic()
            y.backward()
    assert time.monotonic() - start < 5


def test_forward_waits_when_too_much_is_on_its_way_and_no_longer_than_told(folder, monkeypatch):
    x = mg.randn(100).requires_grad_()
    with offload(folder=folder, min_bytes=0, in_flight=0) as o:
        deep(x).backward()
    assert o.waited_s > 0
    np.testing.assert_array_equal(x.grad.numpy(), plain_gradient(x))
    slow = DiskStore.put
    monkeypatch.setattr(DiskStore, "put", lambda self, flat: time.sleep(0.3) or slow(self, flat))
    with pytest.warns(UserWarning, match="took nothing for 0.05 s"):
        with offload(folder=folder, min_bytes=0, in_flight=0, timeout_s=0.05):
            deep(x, 1).backward()


@pytest.mark.parametrize("copied", [False, True])
def test_a_write_in_place_is_noticed_or_came_after_the_copy(folder, monkeypatch, copied):
    x = mg.randn(100).requires_grad_()
    slow = DiskStore.put
    with offload(folder=folder, min_bytes=0) as o:
        h = x * mg.ones(100)
        y = h.exp()
        settled(o)
        with mg.no_grad():
            y.mul_(3)                                                    # the copy is made: the gradient is right
        y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), x.detach().exp().numpy())
    monkeypatch.setattr(DiskStore, "put", lambda self, flat: time.sleep(0.2) or slow(self, flat))
    with offload(folder=folder, min_bytes=0) as o:
        y = (x * mg.ones(100)).exp()
        with mg.no_grad():
            y.mul_(3)
        if copied:                                                       # before the copy, or in the middle of it
            settled(o)
        with pytest.raises(GraphError, match="changed in place.*\n.*test_offload"):
            y.sum().backward(retain_graph=True)


def test_what_an_operation_in_place_still_needs_is_copied_first(folder, monkeypatch):
    """`h *= w` saves the old h for the gradient of w, and then writes over it."""
    slow = DiskStore.put
    monkeypatch.setattr(DiskStore, "put", lambda self, flat: time.sleep(0.02) or slow(self, flat))

    def run(context):
        x, w = mg.tensor([1.0, 2.0, 3.0], requires_grad=True), mg.tensor([0.5, -1.0, 2.0], requires_grad=True)
        with context:
            h = x * 2.0
            h *= w
            h *= w.exp()
            h.sum().backward()
        return [x.grad.numpy(), w.grad.numpy()]
    same(run(mg.enable_grad()), run(offload(folder=folder, min_bytes=0)))


def test_arguments_are_checked_and_one_block_at_a_time(folder):
    for wrong in ({"to": "tape"}, {"on_full": "cry"}, {"prefetch": -1}, {"timeout_s": 0}):
        with pytest.raises(ValueError, match="offload"):
            offload(**wrong)
    o = offload(folder=folder)
    with o, pytest.raises(RuntimeError, match="in use already"), o:
        pass
    with pytest.raises(FileNotFoundError), offload(folder=folder / "missing"):
        pass
    assert current().observers == ()


def test_no_thread_is_left(folder):
    import threading
    before = threading.active_count()
    with offload(folder=folder, min_bytes=0):
        deep(mg.randn(5).requires_grad_()).backward()
    assert threading.active_count() <= before


@pytest.mark.parametrize("wrong", [{"limit": -1}, {"timeout_s": float("nan")}, {"timeout_s": float("inf")}])
def test_numbers_that_are_no_limits_are_refused(wrong):
    with pytest.raises(ValueError, match="must not be negative"):
        mg.memory.offload(**wrong)
