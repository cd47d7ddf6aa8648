"""Gradient scaling and row-sparse gradients, step by step as PyTorch takes them."""

import numpy as np
import pytest

import minigrad as mg

torch = pytest.importorskip("torch")
quiet = pytest.mark.filterwarnings("ignore:Sparse invariant checks")         # PyTorch warns about its own Adagrad


def scaled_steps(lib, multipliers):
    w = lib.tensor([1.0, 2.0], requires_grad=True)
    opt = lib.optim.SGD([w], lr=0.25)
    scaler = lib.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2, growth_factor=4.0, backoff_factor=0.25)
    seen = []
    for k, m in enumerate(multipliers):
        opt.zero_grad()
        scaler.scale((w * w * m).sum()).backward()
        if k % 2:
            scaler.unscale_(opt)
            seen += w.grad.tolist()
        scaler.step(opt)
        scaler.update()
        seen += [*w.tolist(), scaler.get_scale(), scaler.state_dict()["_growth_tracker"]]
    return np.array(seen)


def test_scaler_follows_pytorch():
    for seed in range(5):
        kinds, odds = [0.5, 1.0, -0.25, np.inf, np.nan], [0.4, 0.2, 0.2, 0.1, 0.1]
        multipliers = np.random.default_rng(seed).choice(kinds, 12, p=odds)
        ours, theirs = (scaled_steps(lib, multipliers.tolist()) for lib in (mg, torch))
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def table_steps(lib, name, kw, options, sparse=True):
    rng = np.random.default_rng(3)
    start = rng.standard_normal((7, 3))
    m = lib.nn.Embedding(7, 3, sparse=sparse, dtype=lib.float64, **options)
    with lib.no_grad():
        m.weight.copy_(lib.tensor(start))
    opt = getattr(lib.optim, name)(m.parameters(), **kw)
    for _ in range(4):
        opt.zero_grad()
        up = rng.standard_normal((2, 4, 3))
        (m(lib.tensor(rng.integers(0, 7, (2, 4)).tolist())) ** 2 * lib.tensor(up)).sum().backward()
        opt.step()
    return m.weight.detach().numpy()


@pytest.mark.parametrize("options", [{}, {"padding_idx": 2}, {"max_norm": 0.8, "norm_type": 1.0}], ids=str)
@pytest.mark.parametrize("name, kw", [
    ("SGD", dict(lr=0.1)), ("SGD", dict(lr=0.1, momentum=0.9)), ("SparseAdam", dict(lr=0.1, eps=1e-3)),
    ("Adagrad", dict(lr=0.1, initial_accumulator_value=0.2)),
], ids=str)  # fmt: skip
@quiet
def test_sparse_steps_follow_pytorch(name, kw, options):
    ours, theirs = (table_steps(lib, name, kw, options) for lib in (mg, torch))
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)


def test_gradients_by_frequency_follow_pytorch():
    ours, theirs = (table_steps(lib, "SGD", dict(lr=0.1), {"scale_grad_by_freq": True, "padding_idx": 1}, False)
                    for lib in (mg, torch))
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def two(x, y):
    return (x * y).sin() + y.sum(), x.exp().sum() * y.prod()


def nested(found):
    """Nested tuples of tensors as one flat list of arrays."""
    return [a for t in found for a in nested(t)] if isinstance(found, tuple) else [found.detach().numpy()]


@pytest.mark.parametrize("name", ["jacobian", "hessian", "vjp", "jvp", "hvp", "vhp"])
@pytest.mark.parametrize("alone", [False, True])
def test_functional_follows_pytorch(name, alone):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((2, 3)), rng.standard_normal(3)]
    vs = [rng.standard_normal(s) for s in ((2, 3), (3,) if name != "vjp" else ())]
    results = []
    for lib in (mg, torch):
        make = lambda values, lib=lib: tuple(lib.tensor(a) for a in values)  # noqa: E731
        xs, v, f = make(arrays), make(vs), two if name in ("jacobian", "vjp", "jvp") else lambda x, y: two(x, y)[1]
        if alone:
            g, xs, v = f, xs[0], v[0]
            fixed = make(arrays)[1]
            f = lambda x, g=g, fixed=fixed: _first(g(x, fixed))  # noqa: E731
        args = (f, xs) if name in ("jacobian", "hessian") else (f, xs, v)
        results.append(nested(getattr(lib.autograd.functional, name)(*args)))
    assert [a.shape for a in results[0]] == [a.shape for a in results[1]]
    for ours, theirs in zip(*results):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


def _first(x):
    return x[0] if isinstance(x, tuple) else x


def hooked_run(lib):
    net = lib.nn.Sequential(lib.nn.Linear(3, 2), lib.nn.Tanh(), lib.nn.Linear(2, 1)).double()
    with lib.no_grad():
        for k, p in enumerate(net.parameters()):
            p.copy_(lib.tensor(np.random.default_rng(k).standard_normal(tuple(p.shape))))
    seen = []
    look = lambda name: lambda m, gi, go: seen.append((name, *nested(tuple(g for g in (*gi, *go) if g is not None))))  # noqa: E731
    net[0].register_full_backward_hook(look("first"))
    net[1].register_full_backward_hook(look("tanh"))
    net[1].register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,), prepend=True)
    net[2].register_full_backward_pre_hook(lambda m, go: (go[0] * 3,))
    net.register_full_backward_hook(look("net"))
    net[1].register_forward_hook(lambda m, args, kwargs, out: out * 0.5, with_kwargs=True)
    x = lib.tensor(np.random.default_rng(9).standard_normal((4, 3)), requires_grad=True)
    net(x).sum().backward()
    return seen, nested(tuple(p.grad for p in (x, *net.parameters())))


def test_module_hooks_follow_pytorch():
    (ours, grads), (theirs, wanted) = hooked_run(mg), hooked_run(torch)
    assert [name for name, *_ in ours] == [name for name, *_ in theirs]
    for a, b in zip([g for _, *gs in ours for g in gs] + grads, [g for _, *gs in theirs for g in gs] + wanted):
        np.testing.assert_allclose(a, b, rtol=1e-9)
