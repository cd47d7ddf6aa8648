"""Optional: averaged models and SWALR beside PyTorch's own.  Skipped where torch is not installed."""

import numpy as np
import pytest

import minigrad as mg

torch = pytest.importorskip("torch")

KINDS = {
    "plain": lambda u: {},
    "ema": lambda u: {"multi_avg_fn": u.get_ema_multi_avg_fn(0.9)},
    "ema one by one": lambda u: {"avg_fn": u.get_ema_avg_fn(0.9), "use_buffers": True},
    "buffers": lambda u: {"use_buffers": True},
}


@pytest.mark.parametrize("kind", KINDS)
def test_averages_and_their_state(kind):
    averages, nets = [], []
    for p in (mg, torch):
        nets.append(p.nn.Sequential(p.nn.Linear(3, 4), p.nn.BatchNorm1d(4)))
        averages.append(p.optim.swa_utils.AveragedModel(nets[-1], **KINDS[kind](p.optim.swa_utils)))
    rng = np.random.default_rng(0)
    batches = [rng.standard_normal((5, 3)).astype("f4") for _ in range(4)]
    for step, x in enumerate(batches):
        for p, net, average in zip((mg, torch), nets, averages):
            draw = np.random.default_rng(step)
            with p.no_grad():
                for q in net.parameters():
                    q.copy_(p.tensor(draw.standard_normal(tuple(q.shape))))
            net(p.tensor(x))
            average.update_parameters(net)
    for p, average in zip((mg, torch), averages):
        p.optim.swa_utils.update_bn([p.tensor(x) for x in batches], average)
    ours, theirs = (a.state_dict() for a in averages)
    assert set(ours) == set(theirs)
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name].numpy(), value.numpy(), rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("options", [dict(), dict(anneal_epochs=0), dict(anneal_epochs=7, anneal_strategy="linear")])
def test_swalr(options):
    seen = []
    for p in (mg, torch):
        optimiser = p.optim.SGD([p.zeros(1, requires_grad=True)], lr=1.0)
        before = p.optim.lr_scheduler.ExponentialLR(optimiser, 0.9)
        swa = p.optim.swa_utils.SWALR(optimiser, 0.05, **options)
        found = []
        for step in range(40):
            found.append(optimiser.param_groups[0]["lr"])
            optimiser.step()
            (swa if step > 15 else before).step()
        seen.append(found)
    np.testing.assert_allclose(seen[0], seen[1], rtol=1e-12)
