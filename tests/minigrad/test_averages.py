"""Averages of weights and outputs: equal to the mean written out, and no worse than the members where a theorem says
so."""

import copy

import numpy as np
import pytest

import minigrad as mg
from minigrad import nn
from minigrad.optim import swa_utils


def model(seed):
    mg.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def parameters(m):
    return np.concatenate([p.detach().numpy().ravel() for p in m.parameters()])


def batches(n=3):
    rng = np.random.default_rng(0)
    return [mg.tensor(rng.standard_normal((8, 3)).astype("f4") * 3 + 1) for _ in range(n)]


EMA = 0.7
KINDS = {
    "plain": (dict(), None),
    "plain, all at once": (dict(multi_avg_fn=swa_utils.get_swa_multi_avg_fn()), None),
    "running": (dict(avg_fn=swa_utils.get_ema_avg_fn(EMA)), EMA),
    "running, all at once": (dict(multi_avg_fn=swa_utils.get_ema_multi_avg_fn(EMA)), EMA),
    "of one's own": (dict(avg_fn=lambda average, new, count: average * EMA + new * (1 - EMA)), EMA),
}


@pytest.mark.parametrize("name", KINDS)
def test_the_average_is_the_mean(name):
    options, decay = KINDS[name]
    members = [model(seed) for seed in range(4)]
    average = swa_utils.AveragedModel(members[0], **options)
    for m in members:
        average.update_parameters(m)
    values = [parameters(m) for m in members]
    want = values[0]
    for v in values[1:]:
        want = np.mean(values, 0) if decay is None else decay * want + (1 - decay) * v
    np.testing.assert_allclose(parameters(average), want, rtol=1e-5, atol=1e-6)
    assert average.n_averaged.item() == 4
    assert all(a is not b for a, b in zip(average.module.parameters(), members[0].parameters()))


@pytest.mark.parametrize("use_buffers", [False, True])
def test_buffers_are_copied_or_averaged(use_buffers):
    members = [model(0), model(1)]
    for m, x in zip(members, batches()):
        m(x)
    average = swa_utils.AveragedModel(members[0], use_buffers=use_buffers)
    for m in members:
        average.update_parameters(m)
    means = [m[1].running_mean.numpy() for m in members]
    want = np.mean(means, 0) if use_buffers else means[1]
    np.testing.assert_allclose(average.module[1].running_mean.numpy(), want, rtol=1e-6)
    assert average.module[1].num_batches_tracked.item() == 1


def test_an_average_is_resumed_from_its_state():
    first, second = model(0), model(1)
    one = swa_utils.AveragedModel(first)
    one.update_parameters(first)
    other = swa_utils.AveragedModel(model(5))
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    for average in (one, other):
        average.update_parameters(second)
    np.testing.assert_array_equal(parameters(one), parameters(other))


def test_update_bn_gives_the_statistics_of_all_batches():
    m = model(0).eval()
    m[1].running_mean.fill_(7.0)
    data = batches()
    swa_utils.update_bn(((x, None) for x in data), m)
    with mg.no_grad():
        seen = np.stack([m[0](x).numpy() for x in data])
    np.testing.assert_allclose(m[1].running_mean.numpy(), seen.mean((0, 1)), rtol=1e-4)
    np.testing.assert_allclose(m[1].running_var.numpy(), seen.var(1, ddof=1).mean(0), rtol=1e-4)
    assert m[1].momentum == 0.1 and not m.training and not m[1].training


def test_update_bn_restores_the_momentum_after_an_error():
    m = model(0)
    with pytest.raises(ValueError):
        swa_utils.update_bn([mg.zeros(2, 5)], m)
    assert m[1].momentum == 0.1 and m.training


def test_a_soup_takes_what_does_not_hurt():
    """Models in one dimension, scored by their distance to 1: 0.8 first, then 1.3; 9 would hurt."""
    members = []
    for value in (9.0, 0.8, 1.3):
        m = nn.Linear(1, 1, bias=False)
        with mg.no_grad():
            m.weight.fill_(value)
        members.append(m)
    soup, taken = swa_utils.greedy_soup(members, lambda m: -abs(m.weight.item() - 1))
    assert taken == [1, 2] and soup.weight.item() == pytest.approx(1.05)
    assert [m.weight.item() for m in members] == pytest.approx([9.0, 0.8, 1.3])


def test_ensembles_average_outputs_or_probabilities():
    members = [model(seed).eval() for seed in range(3)]
    x = batches()[0]
    logits = np.stack([m(x).detach().numpy() for m in members]).astype("f8")
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    for kind, want in (("outputs", logits.mean(0)), ("probabilities", p.mean(0)),
                       ("log_probabilities", np.log(p.mean(0)))):  # fmt: skip
        got = nn.Ensemble(members, kind)(x)
        np.testing.assert_allclose(got.detach().numpy(), want, rtol=1e-5, atol=1e-6)


def test_an_ensemble_is_no_worse_than_its_members_in_the_mean():
    members = [model(seed).eval() for seed in range(4)]
    x, y = batches()[0], mg.tensor([0, 1, 1, 0, 1, 0, 0, 1])
    losses = [nn.functional.cross_entropy(m(x), y).item() for m in members]
    together = nn.functional.nll_loss(nn.Ensemble(members, "log_probabilities")(x), y).item()
    assert together <= np.mean(losses) + 1e-6


def test_what_is_refused():
    with pytest.raises(ValueError, match="not both"):
        swa_utils.AveragedModel(model(0), avg_fn=max, multi_avg_fn=max)
    with pytest.raises(ValueError, match="decay"):
        swa_utils.get_ema_avg_fn(1.5)
    with pytest.raises(ValueError, match="other shapes"):
        swa_utils.AveragedModel(nn.Linear(2, 2)).update_parameters(nn.Linear(3, 2))
    with pytest.raises(ValueError, match="no models"):
        nn.Ensemble([])
    with pytest.raises(ValueError, match="median"):
        nn.Ensemble([model(0)], "median")
