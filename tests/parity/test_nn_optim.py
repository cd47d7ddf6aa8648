"""Optional: modules, losses and optimisers beside PyTorch's own.  Skipped where torch is not installed."""

import numpy as np
import pytest

import minigrad as mg

torch = pytest.importorskip("torch")

OPTIMISERS = {
    "SGD": dict(lr=0.1),
    "SGD momentum": dict(lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.1),
    "SGD nesterov": dict(lr=0.1, momentum=0.9, nesterov=True, maximize=True),
    "Adam": dict(lr=0.1, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.1),
    "Adam amsgrad": dict(lr=0.1, amsgrad=True, maximize=True),
    "AdamW": dict(lr=0.1, weight_decay=0.1),
    "RMSprop": dict(lr=0.1, alpha=0.9, momentum=0.5, weight_decay=0.1),
    "RMSprop centered": dict(lr=0.1, centered=True, eps=0.1),
    "Adagrad": dict(lr=0.1, lr_decay=0.2, initial_accumulator_value=0.3),
    "Adam decoupled": dict(lr=0.1, weight_decay=0.2, decoupled_weight_decay=True),
    "AdamW amsgrad": dict(lr=0.1, amsgrad=True, maximize=True),
    "RMSprop all": dict(lr=0.1, momentum=0.5, centered=True, weight_decay=0.1, maximize=True, eps=0.1),
    "Adadelta": dict(lr=0.5),
    "Adadelta decay": dict(lr=0.5, rho=0.8, weight_decay=0.1, maximize=True),
    "Adamax": dict(lr=0.1, betas=(0.8, 0.9), weight_decay=0.1),
    "Adamax up": dict(maximize=True),
    "NAdam": dict(lr=0.1, weight_decay=0.1),
    "NAdam decoupled": dict(lr=0.1, weight_decay=0.1, decoupled_weight_decay=True, maximize=True, momentum_decay=0.1),
    "RAdam": dict(lr=0.1, betas=(0.8, 0.95), weight_decay=0.1),
    "RAdam decoupled": dict(lr=0.1, weight_decay=0.1, decoupled_weight_decay=True, maximize=True),
    "ASGD": dict(lr=0.1, lambd=0.1, t0=10, weight_decay=0.1),
    "Rprop": dict(lr=0.1),
    "Rprop bounds": dict(lr=0.1, etas=(0.4, 1.3), step_sizes=(0.05, 0.15), maximize=True),
}
MODULES = {
    "Linear": lambda nn: nn.Linear(3, 2, bias=False),
    "Conv2d": lambda nn: nn.Conv2d(4, 8, 3, 2, padding=1, dilation=2, groups=2, bias=False),
    "pooling": lambda nn: nn.Sequential(nn.MaxPool2d(2), nn.AvgPool2d(3, 1, 1), nn.Flatten()),
    "norm": lambda nn: nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm2d(3, momentum=None), nn.LayerNorm(4)),
    "list": lambda nn: nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2), nn.Tanh()]),
    "activations": lambda nn: nn.Sequential(nn.ReLU(), nn.Softmax(dim=1), nn.LeakyReLU(0.1), nn.SiLU()),
    "others": lambda nn: nn.ModuleDict({"a": nn.Embedding(5, 2, padding_idx=1), "b": nn.Dropout(0.3)}),
}


def of(package, name):
    return getattr(package, name.split()[0])


@pytest.mark.parametrize("name", OPTIMISERS)
def test_fifty_steps(name):
    rng = np.random.default_rng(4)
    x = rng.standard_normal(20).astype("f4")
    gradients = rng.standard_normal((50, 20)).astype("f4")
    ours, theirs = mg.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    pair = of(mg.optim, name)([ours], **OPTIMISERS[name]), of(torch.optim, name)([theirs], **OPTIMISERS[name])
    for g in gradients:
        ours.grad, theirs.grad = mg.tensor(g), torch.tensor(g)
        for each in pair:
            each.step()
    np.testing.assert_allclose(ours.detach(), theirs.detach(), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", sorted({name.split()[0] for name in OPTIMISERS}))
def test_the_defaults_are_pytorchs(name):
    ours = of(mg.optim, name)([mg.zeros(1, requires_grad=True)]).defaults
    theirs = of(torch.optim, name)([torch.zeros(1, requires_grad=True)]).defaults
    assert {k: theirs[k] for k in ours if k in theirs} == {k: v for k, v in ours.items() if k in theirs}
    assert set(theirs) - set(ours) <= {"foreach", "fused", "capturable", "differentiable"}


@pytest.mark.parametrize("name", MODULES)
def test_the_text_and_the_names_of_a_module(name):
    ours, theirs = MODULES[name](mg.nn), MODULES[name](torch.nn)
    assert repr(ours) == repr(theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert [n for n, _ in ours.named_modules()] == [n for n, _ in theirs.named_modules()]


@pytest.mark.parametrize("momentum", [0.1, None])
def test_batch_norm_over_many_batches(momentum):
    rng = np.random.default_rng(0)
    ours, theirs = (p.nn.BatchNorm2d(3, momentum=momentum) for p in (mg, torch))
    for _ in range(4):
        x = rng.standard_normal((5, 3, 2, 2)).astype("f4") * 3 + 1
        np.testing.assert_allclose(ours(mg.tensor(x)).detach(), theirs(torch.tensor(x)).detach(), rtol=1e-4, atol=1e-5)
    for name, value in theirs.state_dict().items():
        np.testing.assert_allclose(ours.state_dict()[name], value, rtol=1e-5, err_msg=name)
    x = rng.standard_normal((2, 3, 2, 2)).astype("f4")
    np.testing.assert_allclose(
        ours.eval()(mg.tensor(x)).detach(), theirs.eval()(torch.tensor(x)).detach(), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", ["MSELoss", "L1Loss", "BCELoss", "BCEWithLogitsLoss", "NLLLoss", "CrossEntropyLoss"])
def test_losses(name, reduction):
    rng = np.random.default_rng(1)
    x = rng.uniform(0.1, 0.9, (4, 3))
    t = rng.integers(0, 3, 4) if name in ("NLLLoss", "CrossEntropyLoss") else rng.uniform(0, 1, (4, 3))
    got = []
    for p in (mg, torch):
        leaf = p.tensor(x, requires_grad=True)
        loss = getattr(p.nn, name)(reduction=reduction)(leaf, p.tensor(t))
        (loss * 1.5).sum().backward()
        got.append((np.asarray(loss.detach()), np.asarray(leaf.grad)))
    for a, b in zip(*got):
        np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize(
    "name, args",
    [
        ("elu", ()),
        ("silu", ()),
        ("leaky_relu", (0.2,)),
        ("hardtanh", ()),
        ("relu6", ()),
        ("logsigmoid", ()),
        ("normalize", (2.0, 1)),
        ("normalize", (1.0, 0)),
        ("normalize", (3.0, 1)),
        ("normalize", (float("inf"), 1)),
    ],
)
def test_functions_and_their_gradients(name, args):
    x = np.array([[-200.0, -1.0, 0.0, 0.5], [1.0, 6.0, 7.0, 200.0]])
    got = []
    for p in (mg, torch):
        leaf = p.tensor(x, requires_grad=True)
        y = getattr(p.nn.functional, name)(leaf, *args)
        (y * y).sum().backward()
        got.append((np.asarray(y.detach()), np.asarray(leaf.grad)))
    for a, b in zip(*got):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_initial_values_have_pytorchs_ranges():
    mg.manual_seed(0)
    torch.manual_seed(0)
    for make in (lambda p: p.nn.Linear(50, 400), lambda p: p.nn.Conv2d(4, 300, 3)):
        for a, b in zip(make(mg).parameters(), make(torch).parameters()):
            ours, theirs = np.abs(a.detach().numpy()), np.abs(b.detach().numpy())
            assert ours.max() == pytest.approx(theirs.max(), rel=0.1)
            assert ours.mean() == pytest.approx(theirs.mean(), rel=0.3)
