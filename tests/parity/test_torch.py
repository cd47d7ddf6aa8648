"""A table of expressions, each run by PyTorch and by minigrad: same values, dtypes, gradients and refusals.

Optional: skipped where PyTorch is not installed.  `t` stands for the library; a row is one Python expression in the
names of LEAVES.  What differs on purpose is in DIFFERENT, with the reason.
"""

import re

import numpy as np
import pytest

import minigrad as mg

torch = pytest.importorskip("torch")

RNG = np.random.default_rng(7)
LEAVES = {
    "a": RNG.standard_normal((3, 4)),
    "b": RNG.standard_normal(4),
    "c": RNG.standard_normal((3, 1)),
    "s": np.array(1.5),
    "e": np.zeros((0, 3)),
    "p": RNG.random((3, 4)) + 0.5,
    "u": RNG.standard_normal((2, 3, 4)),
    "w": RNG.standard_normal((4, 3)),
    "o": np.zeros(3),
    "r": np.array([1.0, -1.0, 1.0, 0.0]),
    "n": np.array([np.nan, np.inf, -np.inf, 1.0]),
    "z": np.array([-0.0, 0.0, 2.0]),
    "x": np.array([-0.5, 0.0, 0.5, 2.0]),
    "one": np.array([2.0]),
    "img": RNG.standard_normal((2, 2, 5, 4)),
    "ker": RNG.standard_normal((3, 2, 2, 3)),
}
LEAVES = {k: v.astype("f4") for k, v in LEAVES.items()}
LEAVES |= {
    "d": RNG.standard_normal((3, 4)),
    "h": np.array([0.5, -2.0, 3.0, 1.0], "f2"),
    "i": RNG.integers(-3, 4, (3, 4)),
    "j": np.array([1, 200, 255, 3], "u1"),
    "k": np.array([1, -100, 127, 3], "i1"),
    "i4": np.array([1, 2, 3, 4], "i4"),
    "m": RNG.random((3, 4)) > 0.5,
    "m4": np.array([True, False, True, True]),
    "q": np.array([2, 0, 1, 2]),
    "s8": np.array(1.5),
    "i0": np.array(2),
    "m0": np.array(True),
    "t3": np.array([0, 3, 1]),
    "h0": np.array(0.5, "f2"),
}

TABLE = """
a + b; a - c; a * s; a / c; c + b; b - a; a + 1; 1 + a; 2 - a; a * 2.5; 2.5 / p; a / 2; -a; +s; a + True; a * s8
a + d
i + 1; i + 1.5; i * True; i / 2; i / i4; i + i4; j + 1; j + k; k + 1.5; m + 1; m + 1.5; m + m; m * a; i + a; i + s
i + s8
i * h; h + 1; h + 1.5; h * s; h * s8; h + b; h + d[0]; k + i; i0 + k; i0 + j; i0 + h; m0 + k; s + k; s8 + i; h0 + i
i0 + m
j - 1; -j; -k; k - j; m - m; -m; i ** 2; i ** 2.0; 2 ** i4; p ** 2; p ** 3; p ** 0.5; p ** -1; 2 ** p; p ** p
a ** 2; a ** 0
a ** i4; i4 ** 2; p ** s; o ** 2; o ** 0; o ** 3; p ** 1; i ** -1; a.pow(2); p.pow(2.5); t.pow(p, 2); t.pow(2, p)
a > b; a >= 0; a < s; i == i; i != 1; m == True; m & m; m | m0; ~m; m ^ m; a == d; n == n; n != n; n > 0; i > 0.5
j > 100
a.exp(); p.log(); p.log1p(); p.sqrt(); a.sin(); a.cos(); a.tanh(); a.abs(); a.sign(); p.reciprocal(); a.square()
a.relu()
a.sigmoid(); i.exp(); i.sqrt(); i4.log(); m.exp(); i.sin(); i.abs(); i.sign(); i.relu(); k.abs(); j.abs()
i.square(); i4.reciprocal()
o.sqrt(); o.log(); o.abs(); o.sign(); z.relu(); z.abs(); z.sqrt(); n.relu(); n.exp(); n.sigmoid(); n.tanh(); n.abs()
n.isnan(); h.exp()
h.relu(); h.sigmoid(); e.exp(); e.relu(); abs(a); t.exp(a); t.relu(a); t.nn.functional.softplus(a)
(a * 50).sigmoid().sum()
t.nn.functional.softplus(a * 100); t.nn.functional.relu(n)
t.maximum(a, b); t.minimum(a, b); t.maximum(r, r); t.minimum(r, o.sum()); t.maximum(n, b); t.maximum(i, i4)
t.maximum(i, a)
t.where(m, a, b); t.where(m, a, 0); t.where(m, 1, 2); t.where(m, 1.5, 2); t.where(a > 0, a, -a); a.where(m, b)
t.where(m, i, a)
t.where(m, i, 1.5); t.where(i, a, b); t.where(m4, a, n); t.where(m, True, 2); a.clamp(-0.5, 0.5); a.clamp(min=0)
a.clamp(max=0.1)
i.clamp(0, 2); i.clamp(0.5); n.clamp(-1, 1); x.clamp(0, 0.5); a.clamp(b - 1, b + 1); a.clamp(); a.clip(0, 1)
a.clamp(1, 0)
a.sum(); a.sum(0); a.sum(1, True); a.sum((0, 1)); a.sum(-1); a.sum(dim=(), keepdim=True); a.sum(2); a.sum((0, 0))
s.sum(); s.sum(0); s.sum(-1)
i.sum(); m.sum(); j.sum(); k.sum(0); h.sum(); e.sum(); e.sum(0); e.sum(1); a.sum(dtype=t.float64)
i.sum(dtype=t.float32); u.sum((0, 2)); s.sum(1)
a.mean(); a.mean(0); a.mean((0, 1), True); i.mean(); i.mean(dtype=t.float32); e.mean(); e.mean(0); e.mean(1)
s.mean(); m.mean(); d.mean(-1)
a.var(); a.var(0); a.var(1, False); a.var(dim=1, correction=0); a.var((0, 1), keepdim=True); one.var()
one.var(unbiased=False); i.var(); r.var(); d.var(0)
a.amax(); a.amax(0); a.amax((0, 1), True); r.amax(); r.amin(0); a.max(); a.min(); a.max(0); a.min(1, True)
a.max(1)[0]; r.max(0)[1]; t.max(a, b)
i.max(); i.max(0); m.max(); m.amax(0); e.max(); e.amax(0); e.amax(1); e.max(1); s.max(); s.max(0); n.max(); n.min()
n.amax(0); j.max(); k.min(0)
a.argmax(); a.argmax(0); a.argmin(1, True); r.argmax(); i.argmax(0); e.argmax(); e.argmax(1); e.argmax(0)
s.argmax(); n.argmax(); a.argmax(2)
m.all(); m.any(); m.all(0); a.any(1); i.all(); e.all(); e.any(); m.any(1, True); s.all(); n.any()
a.norm(); a.norm(2, 0); a.norm(1); a.norm(1, 1, True); a.norm(float("inf")); a.norm(float("-inf")); o.norm()
o.norm(3); a.norm(3, 1); a.norm(0); r.norm(float("inf"))
o.norm(1); a.norm("fro"); p.norm(0.5); e.norm(); a.norm(p=2, dim=(0, 1)); n.norm()
a.softmax(1); a.softmax(0); a.softmax(-1); u.softmax(1); a.log_softmax(1); s.softmax(0); (a * 1000).softmax(1)
n.softmax(0); e.softmax(1); e.softmax(0)
a.logsumexp(1); a.logsumexp(0, True); a.logsumexp((0, 1)); (a * 1000).logsumexp(1); n[1:].logsumexp(0)
n[2:3].logsumexp(0); h.softmax(0); a.softmax(2)
a @ w; a @ b; b @ w; b @ b; u @ w; u @ a.T; w @ u; a @ a; s @ a; a @ s; i @ i4; a @ d.T; e @ w.T[:3]; w @ e.T
a.mm(w); a.matmul(w); t.matmul(b, w); u @ b; b @ u.mT; i @ i.T
a.T @ a; a[:, ::2] @ w[::2]; a.mm(b); h @ h; d @ d.T
a.reshape(4, 3); a.reshape(-1); a.reshape(2, -1); a.T.reshape(-1); a.reshape(5); a.reshape(-1, -1); a.reshape(-1, 5)
a.view(4, 3); a.T.view(-1); a.view(12, 1).view(3, 4)
s.reshape(1, 1); e.reshape(0); e.reshape(-1); e.reshape(-1, 3); e.reshape(3, -1); e.view(0, 3); a.flatten()
u.flatten(1); u.flatten(0, 1); s.flatten(); u.flatten(1, 0); a.reshape((4, 3))
a.permute(1, 0); u.permute(2, 0, 1); u.permute(-1, 0, 1); u.permute(0, 1); u.permute(0, 0, 1); a.transpose(0, 1)
u.transpose(-1, 0); a.t(); u.t(); b.t(); a.T; u.mT; s.transpose(0, 0)
c.expand(3, 4); b.expand(3, 4); b.expand(3, -1); a.expand(3, 5); s.expand(2, 2); c.expand(-1, 4); b.expand(-1, 4)
a.expand(3, 4); a.expand(2, 3, 4); c.expand(3, 0); b.expand(4, 1)
a.unsqueeze(0); a.unsqueeze(-1); a.unsqueeze(3); s.unsqueeze(0); c.squeeze(); c.squeeze(1); c.squeeze(0)
c.squeeze(-1); s.squeeze(); s.squeeze(0); c.squeeze(2); a.contiguous(); a.T.contiguous(); a.clone()
c.squeeze((0, 1)); t.cat([a, a]); t.cat([a, a], 1); t.cat([a, c], 1); t.cat([a, b]); t.cat([a, i])
t.cat([a, d], -1); t.cat([e, e, w.T[:, :3]]); t.stack([b, r]); t.stack([b, r], -1); t.stack([a, b]); t.cat([])
t.cat([s, s]); t.cat([m, i]); t.cat([j[:2], k])
t.stack([s, s]); t.stack([b, r], 1); t.stack([]); t.cat([b, h]); t.cat((b, b), dim=2)
a[0]; a[-1]; a[0, 1]; a[3]; a[-4]; a[:, 1]; a[1:]; a[::2]; a[:, ::3]; a[5:]; a[2:1]; a[...]; a[..., 0]; a[None]
a[:, None]; a[..., None]; a[0, ..., 1]; a[0, 0, 0]; a[1:, :-1]; a[-2:]; a[-100:100]
s[...]; s[None]; s[0]; e[0]; e[:, 0]; u[1, :, 2]; u[:, 1]; u[..., 1, :]; u[0, None, 1]; u[..., ...]; a[:]
a[1:2, 2:3]
b[q]; a[[0, 2]]; a[q[1:]]; a[[0, 1], [1, 2]]; a[:, q]; u[0, :, q]; u[q[1:3], :, q[:2]]; u[:, q[1:3]]; a[m]
a[m[:, 0]]; a[:, m4]; b[m4]; b[m4[:1]]; a[m4]; b[m]; a[i0]; a[i0, 1]; a[q[:2], None]; u[:, 0, [1, 3]]; u[None, q[1:3]]
u[q[1:3], 0]
u[[1, 0], ..., 0]; u[i0 - 1, :, q]; a[[]]; b[[-1, -4]]; b[[4]]; b[[-5]]; a[[[0, 1], [2, 0]]]; a[q[1:3], q[:2]]
a[[0], [0, 1]]; a[q[1:3, None], q[:3]]; a[1.0]; a["x"]; a[b]; a[0][1]; u[m[:2, :3]]; a[m & (a > 0)]
a[[0, 1], [0, 1, 2]]
a[m[:, :1].expand(3, 4)]; a[1:, [0, 2]]; a[[0, 2], 1:]; a[[0, 2], ::2]; u[0, [1, 2]]; u[:, :, m4]; u[1, :, m4]
a[range(2)]; a[..., q]
a.gather(1, q[:3, None]); a.gather(0, q[None]); a.gather(1, q); a.gather(1, i); b.gather(0, q); s.gather(0, i0 * 0)
a.gather(1, q[:2, None])
a.to(t.float64); a.double(); a.half(); a.long(); a.int(); i.float(); m.float(); a.bool(); i.to(t.float32)
a.to(t.int64).float(); d.float(); h.double(); n.bool(); i.double() / 3; a.type_as(d)
a.detach(); a.numel(); a.dim(); a.size(0); a.size(-1); a.size(2); a.is_contiguous(); a.T.is_contiguous(); a.stride()
a.T.stride(); a[:, ::2].stride(); a.element_size(); a.ndim; a.is_floating_point(); i.is_floating_point(); s.item()
a.item(); one.item(); i0.item()
a.tolist(); e.tolist(); m0.item(); float(s); int(s); bool(s); bool(a); bool(e); len(a); len(s); list(range(int(i0)))
[1, 2, 3][i0]; [1, 2, 3][s]; float(a); 2.0 in r; f"{s:.2f}"; f"{a:.2f}"; a.shape[0]; hash(a) == hash(a)
round(float(s), 1); list(iter(s))
a.requires_grad; (a > 0).requires_grad; a.argmax().requires_grad; a.long().requires_grad; a.detach().requires_grad
(a + 1).is_leaf; a.is_leaf
t.nn.functional.linear(a, w.T[:, :4], None); t.nn.functional.linear(a, a[:2], b[:2])
t.nn.functional.linear(b, a, o); t.nn.functional.linear(u, a, o); t.nn.functional.linear(a, w)
t.nn.functional.linear(a, u)
t.nn.functional.cross_entropy(a, t3); t.nn.functional.cross_entropy(a, t3, reduction="none")
t.nn.functional.cross_entropy(a, t3, reduction="sum"); t.nn.functional.cross_entropy(a, t3, weight=p[0].detach())
t.nn.functional.cross_entropy(a, t3, label_smoothing=0.1)
t.nn.functional.cross_entropy(a, t3[:1]); t.nn.functional.cross_entropy(a, t3[:2], reduction="none")
t.nn.functional.cross_entropy(a, t3, ignore_index=3); t.nn.functional.cross_entropy(b, t3[1])
t.nn.functional.cross_entropy(u, t3[None, :].expand(2, 3)[:, [0, 2, 0, 2]])
t.nn.functional.cross_entropy(a, t3 + 2)
t.nn.functional.cross_entropy(a, t3, weight=p[0].detach(), label_smoothing=0.2, ignore_index=3)
t.nn.functional.cross_entropy(a, t3 * 0 - 100); t.nn.functional.cross_entropy(a, t3[:, None])
t.nn.functional.layer_norm(a, (4,)); t.nn.functional.layer_norm(u, (3, 4))
t.nn.functional.layer_norm(a, (4,), b, r); t.nn.functional.layer_norm(a, (3,))
t.nn.functional.layer_norm(u, [4], b)
t.nn.functional.conv2d(img, ker); t.nn.functional.conv2d(img, ker, None, 2, 1)
t.nn.functional.conv2d(img, ker, c[:, 0], (1, 2), (0, 1), (2, 1)); t.nn.functional.conv2d(img[0], ker)
t.nn.functional.conv2d(img, ker[:2, :1], None, 1, 0, 1, 2); t.nn.functional.conv2d(img, ker, padding="same")
t.nn.functional.conv2d(img, ker[:, :1])
t.nn.functional.max_pool2d(img, 2); t.nn.functional.max_pool2d(img, (3, 2), 1, 1)
t.nn.functional.avg_pool2d(img, 2); t.nn.functional.avg_pool2d(img, 3, 1, 1); t.nn.functional.max_pool2d(img, 9)
t.tensor([1, 2]); t.tensor([1.0, 2]); t.tensor([True, 2]); t.tensor([[1, 2], [3, 4]]); t.tensor([])
t.tensor([[], []]); t.tensor(3); t.tensor([[1], [2, 3]]); t.tensor("x"); t.tensor(None)
t.tensor([1, 2], dtype=t.float32); t.tensor([1.7, -1.7], dtype=t.int64); t.tensor([300], dtype=t.uint8)
t.tensor([s, s]); t.tensor([1, 2], requires_grad=True)
t.tensor([1, None]); t.tensor({}); t.tensor([2 ** 70]); t.tensor((1, (2,))); t.tensor([2, 0], dtype=t.bool)
t.tensor(a)
t.zeros(2, 3); t.ones((2,)); t.zeros(()); t.zeros(0, 3); t.zeros(-1); t.zeros(2.5); t.full((2,), 3)
t.full((2,), 3.5); t.full((2,), True); t.full((2,), 300, dtype=t.uint8); t.eye(3); t.eye(2, 3); t.zeros_like(a)
t.ones_like(i); t.full_like(a, 2); t.zeros(2, dtype=t.int64)
t.arange(5); t.arange(2, 5); t.arange(0, 1, 0.25); t.arange(5, 0, -2); t.arange(0); t.arange(5, 2)
t.arange(0, 5, 0); t.arange(3.0); t.arange(3, dtype=t.float64); t.arange(float("inf")); t.linspace(0, 1, 5)
t.linspace(1, 0, 1); t.linspace(0, 1, 0); t.linspace(0, 1, -1)
t.randn(2, 3).shape; t.rand(2).dtype == t.float32; t.randint(0, 5, (3,)).dtype == t.int64; t.randint(5, 5, (3,))
t.randperm(4).sum(); t.randn(2, dtype=t.int64); t.rand(0).shape; t.randint(3, (2, 2)).shape; t.randperm(0)
"""

# In place: statements on copies `y` (of a), `g` (of i) and what they leave there.
WRITES = """
y += 1; y *= b; y -= c; y /= 2; y **= 2; y += d; y += i; y += u; y.add_(b, alpha=2); y.mul_(y); y.sub_(1)
y.clamp_(0, 1); y.relu_(); y.exp_(); y.zero_(); y.fill_(2.5); y.fill_(s)
y.copy_(b); y.copy_(d); y.copy_(u); y.copy_(i); y.neg_(); y.abs_(); y.sigmoid_(); y.tanh_(); y.square_(); y.sin_()
y.div_(p); y.pow_(2); y += y; y -= y.sum()
y[0] = 1; y[0] = b; y[:, 1] = 0; y[1:] = y[:-1]; y[m] = 0; y[m] = b[0]; y[[0, 2]] = b; y[[0, 2], 1] = b[:2]
y[i0] = 3; y[...] = 2; y[:, ::2] *= 2; y[0] += b; y[[0, 0]] += 1; y[5] = 1; y[0] = u; y[0] = b[None]
y[None, 0] = 1; y[0, 0] = s; y[0][1] = 5; y[m] += 1; y[1:, [0, 2]] = 7; y.T[0] = 1; y.view(-1)[3] = 9
y.view(12)[::5] = s; y[0, :2] = b[2:]; y[:, None] = 1; y[i > 0] = s; y[y > 0] = 0; y[0] = d[0]; y[0] = i[0]
y[2, 1:3].mul_(3)
y.t().add_(1); y[:, 0].fill_(2); y[0].zero_(); y.detach().add_(1); y.data.add_(1); y.expand(2, 3, 4).add_(1)
c.expand(3, 4).add_(1); y[[]] = 1; y[0] = "x"; y[True] = 1; y[0] = [1, 2, 3, 4]; y[1:2] = b; y[q[:2]] = y[q[1:3]]
g += 1; g += 1.5; g /= 2; g *= 2; g -= g; g[0] = 1.7; g[m] = 5; g += m; g *= a; g.fill_(2.5); g.copy_(a); g **= 2
g[0] = a[0]; g &= g; g.abs_(); g.neg_()
"""

DIFFERENT = {
    "n.abs()": "the sign of NaN is NaN, in NumPy",
    "t.maximum(n, b)": "a NaN takes no gradient",
    "n.clamp(-1, 1)": "a NaN passes its gradient",
    "n.max()": "where the largest is NaN, so is the gradient",
    "n.min()": "where the smallest is NaN, so is the gradient",
    "a.norm(0)": "how many elements are not 0 is a constant, and so says requires_grad",
    "u[..., ...]": "one ellipsis is enough",
    "y[True] = 1": "truth values are no places",
    "a[[[0, 1], [2, 0]]]": "a nested list is one index tensor, as in NumPy, not a tuple",
    "y.mul_(y)": "works, with the right gradient",
    "y[1:] = y[:-1]": "works: the value is copied first",
}


def rows(text: str) -> list[str]:
    return [row.strip() for line in text.splitlines() for row in line.split(";") if row.strip()]


def leaves(source: str, make) -> dict:
    """The LEAVES that a row names, as tensors; float ones want a gradient."""
    named = {*re.findall(r"[a-z]\w*", source), "a", "i"}
    return {k: make(v.copy()).requires_grad_(v.dtype.kind == "f") for k, v in LEAVES.items() if k in named}


def is_tensor(y) -> bool:
    return isinstance(y, torch.Tensor | mg.Tensor)


def outputs(y) -> list:
    return [v for v in y if is_tensor(v)] if isinstance(y, tuple) else [y] if is_tensor(y) else []


def host(t) -> np.ndarray:
    return np.asarray(t.detach().numpy())


def upstream(y, make):
    return make(np.cos(np.arange(y.numel()) + 1.0).reshape(tuple(y.shape)).astype(str(host(y).dtype)))


def pulled(ys: list, xs: dict, make) -> dict:
    """{name: gradient} after one backward with non-unit upstream gradients."""
    ys = [y for y in ys if y.requires_grad]
    if not ys:
        return {}
    grad = torch.autograd.grad if isinstance(ys[0], torch.Tensor) else mg.autograd.grad
    names = [k for k, x in xs.items() if x.requires_grad and x.is_leaf]
    got = grad(ys, [xs[k] for k in names], [upstream(y, make) for y in ys], allow_unused=True)
    return {k: host(g) for k, g in zip(names, got) if g is not None}


def run(source: str, library, make, mode: str = "eval"):
    """(what it gives, gradients) or the exception that it raises."""
    xs = leaves(source, make)
    scope = {"t": library, **xs}
    if mode == "exec":
        scope |= {"y": xs["a"] * 1, "g": xs["i"].clone()}
    try:
        with np.errstate(all="ignore"):
            y = eval(source, scope) if mode == "eval" else exec(source, scope)
            if mode == "exec":
                y = (scope["y"], scope["g"])
            return y, pulled(outputs(y), xs, make)
    except Exception as e:
        return e, None


def check_equal(want, got):
    if is_tensor(want):
        assert is_tensor(got) and str(want.dtype).removeprefix("torch.") == str(got.dtype)
        assert tuple(want.shape) == got.shape and want.requires_grad == got.requires_grad
        tolerance = 2e-3 if got.dtype == mg.float16 else 3e-6
        np.testing.assert_allclose(host(got), host(want), rtol=tolerance, atol=tolerance)
    elif isinstance(want, tuple):
        assert len(want) == len(got)
        for w, g in zip(want, got):
            check_equal(w, g)
    else:
        assert want == got or (want != want and got != got) or want == pytest.approx(got)


def check_same(source: str, mode: str):
    want, wanted = run(source, torch, torch.from_numpy, mode)
    got, found = run(source, mg, mg.from_numpy, mode)
    if isinstance(want, Exception):
        assert isinstance(got, ValueError | TypeError | RuntimeError | IndexError | OverflowError), (
            f"torch refuses ({want}), here: {got!r}"
        )
        assert str(got), "an error without a message"
        return
    if isinstance(got, Exception):
        raise AssertionError(f"torch gives {want!r}, here: {type(got).__name__}: {got}") from got
    check_equal(want, got)
    assert {k: v.shape for k, v in wanted.items()} == {k: v.shape for k, v in found.items()}
    for k, w in wanted.items():
        assert w.dtype == found[k].dtype
        tolerance = 5e-3 if w.dtype == np.float16 else 2e-5
        np.testing.assert_allclose(found[k], w, rtol=tolerance, atol=tolerance, err_msg=f"gradient of {k}")


@pytest.mark.filterwarnings("ignore")  # PyTorch's own, about old spellings
@pytest.mark.parametrize("source", [row for row in rows(TABLE) if row not in DIFFERENT])
def test_expression(source):
    check_same(source, "eval")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("source", [row for row in rows(WRITES) if row not in DIFFERENT])
def test_write(source):
    check_same(source, "exec")
