"""Layers, losses, initial values and clipping equal NumPy and the published formulas, at the extremes too."""

import math

import numpy as np
import pytest

import minigrad as mg
import minigrad.nn.functional as F
from minigrad import nn
from minigrad.autograd import grad

# ---- layers equal NumPy --------------------------------------------------------------------------


def test_batch_norm_follows_its_statistics():
    rng, layer = np.random.default_rng(0), nn.BatchNorm1d(2, momentum=0.3).double()
    mean, var = np.zeros(2), np.ones(2)
    for _ in range(3):
        x = rng.standard_normal((4, 2, 3)) * 2 + 1
        m, v = x.mean((0, 2), keepdims=True), x.var((0, 2), keepdims=True)
        np.testing.assert_allclose(layer(mg.tensor(x)).detach().numpy(), (x - m) / np.sqrt(v + 1e-5))
        mean, var = 0.7 * mean + 0.3 * m.ravel(), 0.7 * var + 0.3 * v.ravel() * 12 / 11
    np.testing.assert_allclose(layer.running_mean.numpy(), mean)
    np.testing.assert_allclose(layer.running_var.numpy(), var)
    assert layer.num_batches_tracked.item() == 3
    want = (x - mean[:, None]) / np.sqrt(var[:, None] + 1e-5)
    np.testing.assert_allclose(layer.eval()(mg.tensor(x)).detach().numpy(), want)
    np.testing.assert_allclose(layer.running_mean.numpy(), mean)  # evaluation leaves them


def test_a_tiny_variance_is_not_lost_beside_eps():
    x = np.array([[0.0], [1e-4]], "f4")
    layer = nn.BatchNorm1d(1, momentum=1.0)
    layer(mg.tensor(x))
    assert layer.running_var.item() == pytest.approx(5e-9, rel=1e-5)


def test_averaged_statistics_and_none_at_all():
    layer, rng = nn.BatchNorm1d(2, momentum=None).double(), np.random.default_rng(1)
    batches = rng.standard_normal((3, 5, 2))
    for x in batches:
        layer(mg.tensor(x))
    np.testing.assert_allclose(layer.running_mean.numpy(), batches.mean((0, 1)))
    bare = nn.BatchNorm1d(2, affine=False, track_running_stats=False).double()
    assert list(bare.state_dict()) == []
    x = batches[0]
    want = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)
    for mode in (True, False):
        np.testing.assert_allclose(bare.train(mode)(mg.tensor(x)).numpy(), want)


def test_batch_norm_refuses_what_has_no_statistics():
    with pytest.raises(ValueError, match="one value per channel"):
        nn.BatchNorm1d(2)(mg.ones(1, 2))
    with pytest.raises(ValueError, match="expected 4 axes"):
        nn.BatchNorm2d(2)(mg.ones(3, 2))
    with pytest.raises(ValueError, match="channels"):
        nn.BatchNorm1d(2)(mg.ones(3, 4))
    assert nn.BatchNorm1d(2).eval()(mg.ones(1, 2)).shape == (1, 2)


def test_layer_norm_with_and_without_parameters():
    x = np.random.default_rng(2).standard_normal((2, 3, 4))
    want = (x - x.mean((1, 2), keepdims=True)) / np.sqrt(x.var((1, 2), keepdims=True) + 1e-5)
    for layer in (nn.LayerNorm((3, 4)), nn.LayerNorm((3, 4), elementwise_affine=False)):
        np.testing.assert_allclose(layer.double()(mg.tensor(x)).detach().numpy(), want)


def test_dropout_keeps_the_mean_and_replays():
    x = mg.ones(10_000, requires_grad=True)
    mg.manual_seed(1)
    y = F.dropout(x, 0.2)
    kept = y.detach().numpy() != 0
    assert abs(kept.mean() - 0.8) < 0.02 and set(np.unique(y.detach().numpy())) == {0.0, 1.25}
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), y.detach().numpy())
    state = mg.get_rng_state()
    first = F.dropout(x, 0.5).tolist()
    mg.set_rng_state(state)
    assert F.dropout(x, 0.5).tolist() == first
    assert nn.Dropout(0.5).eval()(x) is x and F.dropout(x, 0.0) is x
    assert not F.dropout(x, 1.0).detach().numpy().any()
    for wrong in (-0.1, 1.5, math.nan):
        with pytest.raises(ValueError, match="probability"):
            F.dropout(x, wrong)


def test_embedding_looks_up_and_spares_the_padding():
    table = nn.Embedding(4, 2, padding_idx=-1).double()
    assert table.padding_idx == 3 and table.weight[3].tolist() == [0, 0]
    index = mg.tensor([[0, 3], [2, 0]])
    y = table(index)
    np.testing.assert_array_equal(y.detach().numpy(), table.weight.detach().numpy()[index.numpy()])
    (y * mg.tensor([1.0, 10.0], dtype=mg.float64)).sum().backward()
    assert table.weight.grad.tolist() == [[2, 20], [0, 0], [1, 10], [0, 0]]
    for wrong in ([4], [-1]):
        with pytest.raises(IndexError):
            table(mg.tensor(wrong))
    frozen = nn.Embedding.from_pretrained(mg.ones(3, 2))
    assert not frozen.weight.requires_grad and frozen(mg.tensor(1)).tolist() == [1, 1]


def test_one_hot():
    assert F.one_hot(mg.tensor([0, 2])).tolist() == [[1, 0, 0], [0, 0, 1]]
    assert F.one_hot(mg.tensor([[1]]), 2).dtype == mg.int64
    with pytest.raises(IndexError):
        F.one_hot(mg.tensor([3]), 3)
    with pytest.raises(TypeError):
        F.one_hot(mg.tensor([1.0]))


def test_normalize_keeps_zero_rows_finite():
    for p in (1, 2, 3, math.inf):
        x = mg.tensor([[0.0, 0.0, 0.2], [0.0, 0.0, 0.0], [3.0, -4.0, 0.0]], requires_grad=True)
        y = F.normalize(x, p=p)
        want = x.detach().numpy() / np.maximum(np.linalg.norm(x.detach().numpy(), p, 1, keepdims=True), 1e-12)
        np.testing.assert_allclose(y.detach().numpy(), want, rtol=1e-6)
        y.sum().backward()
        assert np.isfinite(x.grad.numpy()).all(), p


# ---- losses --------------------------------------------------------------------------------------


def test_the_fused_squared_error_equals_its_parts():
    rng = np.random.default_rng(3)
    a, b = (mg.tensor(rng.standard_normal((3, 2)), requires_grad=True) for _ in range(2))
    for reduction in ("mean", "sum"):
        fused, parts = F.mse_loss(a, b, reduction), getattr((a - b) ** 2, reduction)()
        assert fused.item() == pytest.approx(parts.item(), rel=1e-14)
        for x, y in zip(grad(fused * 3, [a, b]), grad(parts * 3, [a, b])):
            np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=1e-14)
    assert F.mse_loss(a, b, "none").shape == (3, 2)
    with pytest.raises(ValueError, match="reduction"):
        F.mse_loss(a, b, "average")
    with pytest.warns(UserWarning, match="broadcast"):
        F.mse_loss(mg.ones(3, 1), mg.ones(3))


def test_binary_cross_entropy_at_the_edges():
    p = mg.tensor([0.0, 1.0, 0.0, 1.0], requires_grad=True)
    loss = F.binary_cross_entropy(p, mg.tensor([1.0, 0.0, 0.0, 1.0]), reduction="none")
    assert loss.tolist() == [100, 100, 0, 0]
    loss.sum().backward()
    assert np.isfinite(p.grad.numpy()).all()
    tiny = F.binary_cross_entropy(mg.tensor([1e-10]), mg.tensor([0.0]))
    assert tiny.item() == pytest.approx(1e-10)
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        F.binary_cross_entropy(mg.tensor([1.5]), mg.tensor([1.0]))
    z = mg.tensor([0.0, -120.0, 120.0], requires_grad=True)
    t = mg.tensor([0.0, 1.0, 0.0])
    for weight in (None, mg.ones(3)):
        loss = F.binary_cross_entropy_with_logits(z, t, pos_weight=weight, reduction="none")
        np.testing.assert_allclose(loss.detach().numpy(), [math.log(2), 120, 120], rtol=1e-6)
        z.grad = None
        loss.sum().backward()
        assert z.grad.tolist() == [0.5, -1.0, 1.0]


def test_nll_of_log_softmax_is_cross_entropy():
    rng = np.random.default_rng(4)
    z, w = mg.tensor(rng.standard_normal((4, 3))), mg.tensor([0.2, 0.5, 1.0], dtype=mg.float64)
    t = mg.tensor([0, 2, -100, 1])
    for reduction in ("mean", "sum", "none"):
        for weight in (None, w):
            a = F.nll_loss(F.log_softmax(z, 1), t, weight, reduction=reduction)
            b = F.cross_entropy(z, t, weight, reduction=reduction)
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-12)
    assert F.nll_loss(mg.tensor([-1.0, -2.0]), mg.tensor(1)).item() == 2
    with pytest.raises(IndexError):
        F.nll_loss(z, mg.tensor([0, 1, 2, 3]))
    with pytest.raises(TypeError, match="long"):
        F.nll_loss(z, mg.zeros(4))


def test_losses_as_modules():
    z, t = mg.randn(4, 3), mg.tensor([0, 1, 2, 0])
    loss = nn.CrossEntropyLoss(weight=mg.tensor([1.0, 2.0, 3.0]), label_smoothing=0.1)
    assert loss(z, t).item() == pytest.approx(
        F.cross_entropy(z, t, mg.tensor([1.0, 2.0, 3.0]), label_smoothing=0.1).item()
    )
    assert list(loss.state_dict()) == ["weight"] and loss.double().weight.dtype == mg.float64
    with pytest.raises(ValueError, match="reduction"):
        nn.L1Loss("median")


# ---- initial values and clipping -----------------------------------------------------------------


@pytest.mark.parametrize("fill, bound, std", [
    (nn.init.xavier_uniform_, math.sqrt(6 / 500), None),
    (nn.init.xavier_normal_, None, math.sqrt(2 / 500)),
    (nn.init.kaiming_uniform_, math.sqrt(2) * math.sqrt(3 / 200), None),
    (lambda t: nn.init.kaiming_normal_(t, mode="fan_out", nonlinearity="relu"), None, math.sqrt(2 / 300)),
    (lambda t: nn.init.uniform_(t, -2, 3), None, 5 / math.sqrt(12)),
    (lambda t: nn.init.normal_(t, 0.0, 0.1), None, 0.1),
    (lambda t: nn.Linear(200, 300).weight.detach(), 1 / math.sqrt(200), None),
])  # fmt: skip
def test_initial_values_have_their_width(fill, bound, std):
    mg.manual_seed(0)
    x = fill(mg.empty(300, 200)).numpy()
    if bound:
        assert np.abs(x).max() <= bound and np.abs(x).max() > 0.99 * bound
    std = bound / math.sqrt(3) if bound else std
    assert x.std() == pytest.approx(std, rel=0.02)


def test_initial_values_come_from_the_seed_on_every_device():
    made = []
    for device in ("cpu", "cpu", "sim:0"):
        mg.manual_seed(5)
        made.append(nn.Linear(3, 2, device=device).weight.detach().cpu().tolist())
    assert made[0] == made[1] == made[2]
    p = nn.Parameter(mg.zeros(2, 3))
    assert nn.init.constant_(p, 3.0) is p and p.requires_grad and p.tolist() == [[3.0] * 3] * 2
    assert nn.init.calculate_gain("tanh") == 5 / 3
    with pytest.raises(ValueError, match="two axes"):
        nn.init.xavier_uniform_(mg.zeros(3))


def with_gradients(*values):
    found = [mg.zeros(len(v), requires_grad=True) for v in values]
    for p, v in zip(found, values):
        p.grad = mg.tensor(v)
    return found


def test_clipping_scales_all_gradients_alike():
    for p, total in ((2.0, 13.0), (1.0, 19.0), (math.inf, 12.0)):
        ps = with_gradients([3.0, 0.0], [4.0], [12.0])
        assert nn.utils.clip_grad_norm_((q for q in ps), 1.3, p).item() == pytest.approx(total)
        np.testing.assert_allclose(
            [q.grad.norm(math.inf).item() for q in ps], np.array([3, 4, 12]) * 1.3 / total, rtol=1e-5
        )
    ps = with_gradients([3.0])
    assert nn.utils.clip_grad_norm_(ps, 5.0).item() == 3 and ps[0].grad.item() == 3
    ps = with_gradients([3.0], [math.inf])
    with pytest.raises(RuntimeError, match="nothing was changed"):
        nn.utils.clip_grad_norm_(ps, 1.0, error_if_nonfinite=True)
    assert ps[0].grad.item() == 3
    nn.utils.clip_grad_value_(ps, 2.0)
    assert [q.grad.item() for q in ps] == [2, 2]
    with pytest.warns(UserWarning, match="generator"):
        nn.utils.clip_grad_norm_(iter(()), 1.0)
