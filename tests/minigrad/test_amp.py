"""GradScaler: what the optimiser sees, and how the factor moves."""

import copy
import pickle

import numpy as np
import pytest

import minigrad as mg
from minigrad import optim
from minigrad.nn import functional as F


def leaf(values, device="cpu", dtype=mg.float32):
    return mg.tensor(values, dtype=dtype, device=device, requires_grad=True)


def one_step(scaler, opt, loss):
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()


@pytest.mark.parametrize("device", ["cpu", "sim:0"])
def test_a_scaled_step_is_the_step(device):
    found = []
    for enabled in (True, False):
        w = leaf([1.0, -2.0], device)
        opt, scaler = optim.SGD([w], lr=0.5), mg.amp.GradScaler(device, init_scale=2.0**10, enabled=enabled)
        for _ in range(3):
            one_step(scaler, opt, (w * w * w).sum())
        found.append(w.detach().cpu().numpy())
    np.testing.assert_array_equal(*found)                     # a power of two changes no digit


@pytest.mark.parametrize("bad", [np.inf, np.nan])
@pytest.mark.parametrize("device", ["cpu", "sim:0"])
def test_a_bad_gradient_leaves_every_parameter_of_its_optimiser_alone(device, bad):
    a, b, c = (leaf([1.0], device) for _ in range(3))
    first, second = optim.SGD([a, b], lr=1.0), optim.SGD([c], lr=1.0)
    scaler = mg.amp.GradScaler(init_scale=4.0, growth_interval=1)
    scaler.scale((a * bad + b + c).sum()).backward()
    scaler.step(first)
    scaler.step(second)
    scaler.update()
    assert (a.item(), b.item(), c.item()) == (1.0, 1.0, 0.0)
    assert scaler.get_scale() == 2.0                          # one bad optimiser is enough


def test_unscale_then_clip_then_step():
    w = leaf([3.0, 4.0])
    opt, scaler = optim.SGD([w], lr=1.0), mg.GradScaler(init_scale=256.0)
    scaler.scale((w * w).sum() / 2).backward()
    scaler.unscale_(opt)
    assert mg.nn.utils.clip_grad_norm_([w], 1.0).item() == 5.0
    scaler.step(opt)
    np.testing.assert_allclose(w.detach().numpy(), [3 - 0.6, 4 - 0.8], rtol=1e-6)


def test_the_factor_grows_after_good_steps_in_a_row_and_stays_finite():
    w = leaf([1.0])
    opt, scaler = optim.SGD([w], lr=0.0), mg.GradScaler(init_scale=2.0, growth_interval=2, growth_factor=3.0)
    seen = []
    for m in (1, np.inf, 1, 1, 1, 1):
        one_step(scaler, opt, (w * m).sum())
        seen.append(scaler.get_scale())
    assert seen == [2.0, 1.0, 1.0, 3.0, 3.0, 9.0]
    scaler = mg.GradScaler(init_scale=2.0**127, growth_interval=1)
    one_step(scaler, opt, (w * 1e-30).sum())
    assert scaler.get_scale() == 2.0**127


def test_row_sparse_gradients_are_unscaled_too():
    w = leaf(np.ones((4, 2)))
    opt, scaler = optim.SGD([w], lr=1.0), mg.GradScaler(init_scale=8.0)
    for up, want in ((1.0, -1.0), (np.inf, -1.0)):
        opt.zero_grad()
        scaler.scale((F.embedding(mg.tensor([1, 1]), w, sparse=True) * up).sum()).backward()
        scaler.step(opt)
        scaler.update()
        np.testing.assert_array_equal(w.detach().numpy(), [[1, 1], [want, want], [1, 1], [1, 1]])


def test_half_outputs_keep_their_dtype_and_nested_outputs_their_shape():
    scaler = mg.GradScaler()
    half = leaf([0.25], dtype=mg.float16)
    scaled = scaler.scale(half)
    assert scaled.dtype == mg.float16 and scaled.item() == 0.25 * 2**16
    a, (b, c) = scaler.scale([mg.tensor(1.0), (mg.tensor(2.0), mg.tensor(3.0))])
    assert [t.item() / 2**16 for t in (a, b, c)] == [1, 2, 3]
    assert [t.item() for t in scaler.scale(iter([mg.tensor(1.0)]))] == [2**16]
    with pytest.raises(ValueError, match="int"):
        scaler.scale(3)


def test_wrong_moments_and_values_are_named():
    w = leaf([1.0])
    opt = optim.SGD([w], lr=1.0)
    scaler = mg.GradScaler(init_scale=2.0)
    for call in (lambda: scaler.step(opt), scaler.update, lambda: scaler.unscale_(opt)):
        with pytest.raises(RuntimeError, match="scaled yet"):
            call()
    loss = scaler.scale(w.sum())
    with pytest.raises(RuntimeError, match="no parameter"):
        scaler.step(opt)
    scaler = mg.GradScaler(init_scale=2.0)
    scaler.scale(w.sum()).backward()
    with pytest.raises(RuntimeError, match="no optimiser"):
        scaler.update()
    scaler.unscale_(opt)
    for call in (scaler.unscale_, scaler.step, scaler.step, scaler.unscale_):
        if call == scaler.step and scaler._seen[opt]["stage"] == "unscaled":
            scaler.step(opt)
            continue
        with pytest.raises(RuntimeError, match="update"):
            call(opt)
    with pytest.raises(RuntimeError, match="between"):
        pickle.dumps(scaler)
    scaler.update(16.0)
    assert scaler.get_scale() == 16.0 == copy.deepcopy(scaler).get_scale()
    with pytest.raises(RuntimeError, match="closure"):
        scaler.step(opt, closure=lambda: loss)
    with pytest.raises(ValueError, match="growth_factor"):
        mg.GradScaler(growth_factor=1.0)
    h = leaf([1.0], dtype=mg.float16)
    scaler.scale(h.sum()).backward()
    with pytest.raises(TypeError, match="float16"):
        scaler.step(optim.SGD([h]))


def test_state_goes_on():
    w = leaf([1.0])
    opt, scaler = optim.SGD([w], lr=0.1), mg.GradScaler(init_scale=2.0, growth_interval=3)
    for _ in range(2):
        one_step(scaler, opt, w.sum())
    other = mg.GradScaler()
    other.load_state_dict(scaler.state_dict())
    one_step(other, opt, w.sum())
    assert other.get_scale() == 4.0 and other.state_dict()["_growth_tracker"] == 0
    assert mg.GradScaler(enabled=False).state_dict() == {} and mg.GradScaler(enabled=False).get_scale() == 1.0
    with pytest.raises(RuntimeError, match="empty"):
        other.load_state_dict({})
