"""The rest of the catalogue beside PyTorch: same values, dtypes, gradients, second derivatives and refusals.

The rows are expressions in the names of LEAVES of `test_torch.py`, and `F` for `nn.functional`.
"""

import re

import numpy as np
import pytest

import minigrad as mg

torch = pytest.importorskip("torch")

from tests.parity import test_torch as first  # noqa: E402 - PyTorch must be there first

more = np.random.default_rng(11)
LEAVES = first.LEAVES | {
    "l": more.standard_normal((2, 3, 5)).astype("f4"),                     # (N, C, L)
    "ker1": more.standard_normal((4, 3, 2)).astype("f4"),
    "kerT": more.standard_normal((2, 3, 2, 3)).astype("f4"),               # (C, O, KH, KW)
    "kt1": more.standard_normal((3, 2, 2)).astype("f4"),
    "unit": more.uniform(-0.9, 0.9, (3, 4)).astype("f4"),
    "halves": np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.0, 7.3], "f4"),
    "ends": np.array([-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0, 6.0], "f4"),
    "zs": np.array([[2.0, 0.0, 3.0], [0.0, 0.0, 4.0], [1.0, -2.0, 5.0]], "f4"),
    "sq": (more.standard_normal((3, 3)) + 3 * np.eye(3)).astype("f4"),
    "qs": more.standard_normal((2, 4, 3, 8)).astype("f4"),
    "ks": more.standard_normal((2, 4, 5, 8)).astype("f4"),
    "vs": more.standard_normal((2, 4, 5, 6)).astype("f4"),
    "k2": more.standard_normal((2, 2, 5, 8)).astype("f4"),
    "v2": more.standard_normal((2, 2, 5, 6)).astype("f4"),
    "mask": more.random((3, 5)) > 0.4,
    "four": more.standard_normal((2, 4, 3)).astype("f4"),
    "w4": more.standard_normal(4).astype("f4"),
    "w3": (more.random(3) + 0.5).astype("f4"),
    "pm": np.array([1.0, -1.0, 1.0], "f4"),
    "pmi": np.array([[1, -1, 1, 1], [-1, 1, 1, -1], [1, 1, -1, -1]]),
    "ix": np.array([[0, 1, 2, 0], [2, 0, 1, 1]]),
    "dup": np.array([1, 1, 0]),
    "rep": np.array([3.0, 1.0, 3.0, 2.0, 1.0], "f4"),
    "cols": more.standard_normal((2, 8, 6)).astype("f4"),
}

TABLE = """
unit.tan(); unit.asin(); unit.acos(); a.atan(); t.atan2(a, p); t.atan2(a, 0 * a); a.sinh(); a.cosh(); a.asinh()
(p + 1).acosh(); unit.atanh(); t.hypot(a, p); a.exp2(); a.expm1(); a.log1p(); p.log2(); p.log10(); p.rsqrt()
a.erf(); (a * 3).erfc(); unit.erfinv(); t.logaddexp(a, p); t.xlogy(a, p); t.xlogy(o, o); p.logit(); a.sinc()
o.sinc(); i.erf(); i.tan(); n.erf(); n.tan(); h.erf(); h.expm1(); e.erf(); i.floor(); (a * 3).floor()
(a * 3).ceil(); halves.round(); halves.trunc(); halves.frac(); t.round(a, decimals=2); a.fix(); a % 2; a % -2
5 % p; i % 3; i % -3; t.remainder(a, p); t.fmod(a, p); t.fmod(i, 3); t.fmod(halves, -2); a // 2; i // 2; i // -2
t.div(a, p, rounding_mode="floor"); t.div(a, p, rounding_mode="trunc"); t.div(i, 2, rounding_mode="trunc")
t.div(i, 2, rounding_mode="floor"); t.div(a, 2, rounding_mode="x"); t.floor_divide(a, p); n.isfinite()
n.isinf(); i.isfinite(); i & 3; i | i4; i ^ 1; ~i; ~m; m & m4; m | True; i << 1; i4 >> 1; a & 1; ~a; i & m
k & j; j ^ 3; t.bitwise_and(i, 6); t.logical_xor(m, m4); a.clamp(b - 1, b + 1); a.clamp(-0.5, 0.5)
a.clamp(min=b); a.clamp(max=c); a.clamp(1, 0); x.clamp(0, 0.5); i.clamp(0, 2); n.clamp(-1, 1)
a.clamp(min=0.1, max=s); F.gelu(a); F.gelu(a, approximate="tanh"); F.gelu(a, approximate="x"); F.gelu(i)
F.silu(a); F.mish(a); F.elu(a); F.elu(a, 0.5); F.selu(a); F.celu(a, 2.0); F.leaky_relu(a); F.leaky_relu(a, 0.2)
F.softsign(a); F.logsigmoid(a * 30); F.tanhshrink(a); F.hardtanh(ends); F.hardtanh(ends, -0.5, 0.5)
F.relu6(ends); F.hardsigmoid(ends); F.hardswish(ends); F.hardshrink(ends); F.softshrink(ends)
F.threshold(ends, 0.5, 9.0); F.prelu(a, b); F.prelu(a, s.reshape(1)); F.prelu(u, w3); F.glu(a); F.glu(a, 0)
F.glu(w, 0); F.softplus(a, 2.0); F.softmin(a, 1); F.silu(n); F.gelu(n); F.elu(n); F.leaky_relu(n)
F.leaky_relu(z); F.elu(z); F.prelu(z, s.reshape(1)); F.gelu(h); F.silu(h); F.selu(e); F.hardswish(i); F.silu(i)
F.softsign(n); F.mish(n); F.hardsigmoid(n); F.hardtanh(n); F.hardshrink(n); F.softshrink(n)
t.einsum("ij,jk->ik", a, w); t.einsum("ii->", sq); t.einsum("ii->i", sq); t.einsum("...j,j->...", u, b)
t.einsum("ij,ij->", a, p); t.einsum("bij,kj->bik", u, a); t.einsum("ij,jk,kl->il", a, w, a)
t.einsum("ij,jk", a, a); t.einsum("ij->ik", a); t.einsum("i,j->ij", b, o); t.einsum("ij", a); t.einsum("ji", a)
t.einsum("...", u); t.einsum("i,i", b, b); t.einsum("ij,j", a, b); t.einsum([a], "ij->ji")
t.einsum("ij,kj->", a, a); a.cumsum(0); a.cumsum(1); a.cumsum(-1, dtype=t.float64); i.cumsum(0); m.cumsum(1)
s.cumsum(0); e.cumsum(0); a.cumsum(2); zs.cumprod(0); zs.cumprod(1); a.cumprod(1); i.cumprod(0); s.cumprod(0)
a.logcumsumexp(1); (a * 100).logcumsumexp(0); n.cumsum(0); a.cummax(0); a.cummin(1); r.cummax(0); r.cummin(0)
n.cummax(0); i.cummax(0); zs.prod(); zs.prod(0); zs.prod(1); a.prod(); a.prod(1, True); i.prod(); e.prod()
e.prod(0); s.prod(); m.prod(); a.prod(dtype=t.float64); zs[2].prod(); a.sort(); a.sort(0); a.sort(1, True)
i.sort(dim=1, stable=True); r.sort(stable=True); n.sort(); n.sort(descending=True); s.sort(); e.sort(0)
a.argsort(); a.argsort(0, True); a.topk(2); a.topk(2, 0); a.topk(2, largest=False); a.topk(5); a.topk(0)
a.kthvalue(2); a.kthvalue(1, 0, True); a.kthvalue(0); a.median(); a.median(1); a.median(0, True); n.median()
n.median(0); i.median(); e.median(); rep.mode(); rep.detach().unique()
rep.detach().unique(return_inverse=True, return_counts=True); i.unique()
t.unique_consecutive(rep.sort()[0].detach()); t.bincount(q); t.bincount(q, b.detach())
t.bincount(q, minlength=6); t.histc(a.detach(), 4, -1, 1); a.quantile(0.3); a.quantile(0.5, 1)
a.quantile(0.25, 0, True); t.quantile(a, t.tensor([0.1, 0.9]), 1); n.quantile(0.5); a.quantile(2.0); a.std()
a.std(0); a.std(1, False); a.std(dim=1, correction=0, keepdim=True); o.std(); one.std(); t.std_mean(a, 1)
t.var_mean(a, 0); t.aminmax(a); t.aminmax(a, dim=1); o.std(unbiased=False); a.count_nonzero()
m.count_nonzero(0); n.nansum(); a.nanmean(); n.nan_to_num(); n.nan_to_num(0.5, 1.0, 2.0); a.diff(); a.diff(2)
a.diff(dim=0); t.dist(a, p); t.dist(a, p, 1); a.renorm(2, 0, 0.5); t.allclose(a, a + 1e-7); t.allclose(a, p)
t.isclose(n, n); t.isclose(n, n, equal_nan=True); t.equal(a, a); t.equal(a, b); t.equal(i, i); a.flip(0)
a.flip(0, 1); u.flip((0, 2)); a.flip(2); t.fliplr(a); t.flipud(a); a.roll(1); a.roll(1, 0)
a.roll((1, -1), (0, 1)); a.roll(5, 1); t.rot90(a); t.rot90(a, 2); t.rot90(a, -1); t.rot90(a, 0); a.tril()
a.triu(1); u.tril(-1); b.tril(); i.triu(); a.diagonal(); a.diagonal(1); u.diagonal(0, 1, 2)
u.diagonal(-1, 0, 2); a.diagonal(0, 1, 1); t.diag(b); t.diag(a, 1); t.diag_embed(a); t.diag_embed(a, 1, 0, 2)
t.diagflat(a); t.trace(a); t.trace(b); t.diag(u); a.split(2); a.split(3, 1); a.split([1, 3], 1)
a.split([1, 1], 1); a.chunk(2); a.chunk(3, 1); a.chunk(9); a.tensor_split(2, 1); a.tensor_split((1, 2), 1)
a.unbind(); a.unbind(1); a.narrow(1, 1, 2); a.narrow(1, 3, 2); a.select(0, 1); a.select(1, -1); a.select(1, 4)
a.split(0); u.movedim(0, 2); u.movedim((0, 1), (2, 0)); u.moveaxis(-1, 0); u.swapaxes(0, 1)
a.unflatten(1, (2, 2)); a.unflatten(1, (-1, 4)); a.unflatten(1, (3, 2)); a.unfold(1, 2, 1); a.unfold(0, 2, 2)
l.unfold(2, 3, 2); a.unfold(1, 5, 1); a.ravel(); u.movedim(0, 3); a.repeat(2, 1); a.repeat(2, 1, 3)
a.repeat(1, 1); b.repeat(2); a.repeat(2); a.tile(2); a.tile((2, 1, 1)); a.repeat_interleave(2)
a.repeat_interleave(2, 1); a.repeat_interleave(t.tensor([1, 0, 2]), 0); b.repeat(0)
t.meshgrid(b, o, indexing="ij"); t.meshgrid(b, o, indexing="xy"); t.broadcast_tensors(a, b, c)
t.broadcast_tensors(a, o); b.broadcast_to((2, 4)); t.hstack([a, c]); t.vstack([b, r]); t.hstack([b, o])
t.dstack([a, a]); t.block_diag(a, sq); t.atleast_2d(b); t.atleast_1d(s, b); t.concat([a, a], 1); a.expand_as(u)
a.reshape_as(a); a.view_as(a); u.sum_to_size(4); u.sum_to_size(2, 1, 4); u.sum_to_size(3)
a.index_select(1, dup); a.index_select(0, t.tensor(2)); a.index_select(0, q); a.index_add(1, dup, w.T[:, :3])
b.index_add(0, dup, o, alpha=2); a.index_add(0, dup, a); a.index_fill(1, dup, 9.0)
a.index_fill(0, dup, s.detach()); a.index_copy(0, t.tensor([2, 0]), p[:2]); a.index_add(1, dup, a)
a.index_select(2, dup); a.index_put((dup,), b); a.index_put((dup, t.tensor([0, 0, 1])), o, accumulate=True)
a.index_put((m,), s); b.index_put((dup,), o, accumulate=True); a.index_put((dup,), b, accumulate=True)
a.scatter(0, ix, p[:2]); a.scatter(0, ix, 2.0); a.scatter_add(0, ix, p[:2]); a.scatter(1, ix[:, :2], p[:2, :2])
a.scatter(0, ix + 5, p); a.scatter_add(0, ix, b); o.scatter_add(0, dup, w3); a.scatter(0, ix, s)
a.scatter_reduce(0, ix, p[:2], "sum"); a.scatter_reduce(0, ix, p[:2], "mean")
a.scatter_reduce(0, ix, p[:2], "amax"); a.scatter_reduce(0, ix, p[:2], "amin", include_self=False)
a.scatter_reduce(0, ix, p[:2], "prod"); a.scatter_reduce(0, ix, p[:2], "mean", include_self=False)
a.scatter_reduce(0, ix, p[:2], "x"); a.masked_fill(m, 2.0); a.masked_fill(m4, s); a.masked_fill(i > 0, -1)
a.masked_fill(m, b); i.masked_fill(m, 1.5); a.masked_select(m); a.masked_select(m4); a.masked_scatter(m, p)
a.take(dup); a.take(ix); a.take(t.tensor([12])); a.take(t.tensor([-1])); t.take_along_dim(a, ix[:1], 0)
t.take_along_dim(a, a.argsort(1), 1); i.nonzero(); m.nonzero(); i.nonzero(as_tuple=True); e.nonzero()
t.searchsorted(t.tensor([1.0, 2.0, 3.0]), p.detach()); t.bucketize(p.detach(), t.tensor([0.5, 1.0]), right=True)
t.searchsorted(p.detach().sort(1)[0], p.detach()); t.bmm(u, u.mT); t.bmm(u, u); t.mv(a, b); t.dot(b, r)
t.dot(b, o); t.outer(b, o); t.inner(a, b); t.addmm(sq, a, w); t.addmm(sq, a, w, beta=0.5, alpha=2)
t.addmv(o, a, b); t.baddbmm(u[:, :, :3], u, u.mT); t.kron(a, sq); t.cross(sq, zs, dim=1); t.tensordot(a, w, 1)
t.tensordot(u, a, ([1, 2], [0, 1])); t.tensordot(a, a, 2); t.lerp(a, p, 0.3); t.lerp(a, p, s)
t.addcmul(a, p, p, value=2); t.addcdiv(a, p, p, value=0.5); t.cdist(a, p); t.cdist(a, p, 1.0); t.cdist(u, u)
t.cdist(a, sq); F.pairwise_distance(a, p); F.cosine_similarity(a, p); F.cosine_similarity(a, p, 0)
F.pad(a, (1, 2)); F.pad(a, (1, 2, 0, 1), value=3.0); F.pad(a, (-1, 2)); F.pad(a, (-1, -1))
F.pad(img, (1, 2), mode="reflect"); F.pad(img, (1, 2, 2, 1), mode="reflect")
F.pad(img, (3, 0, 4, 1), mode="replicate"); F.pad(img, (1, 2, 2, 1), mode="circular"); F.pad(a, (1,))
F.pad(img, (9, 0, 0, 0), mode="reflect"); F.pad(l, (2, 1), mode="circular"); F.pad(l, (2, 1), mode="x")
F.conv1d(l, ker1); F.conv1d(l, ker1, w4, 2, 1); F.conv1d(l, ker1, None, 1, 2, 2); F.conv1d(l[0], ker1)
F.conv1d(l, ker1, padding="same"); F.conv1d(l, ker1[:3, :1], groups=3); F.conv1d(l, ker1[:, :2])
F.conv_transpose2d(img, kerT); F.conv_transpose2d(img, kerT, w3, 2, 1, 1)
F.conv_transpose2d(img, kerT, None, (2, 1), (0, 1), (1, 0), 1, (1, 2))
F.conv_transpose2d(img, kerT, None, 1, 0, 0, 2); F.conv_transpose2d(img[0], kerT)
F.conv_transpose2d(img, kerT, None, 1, 0, 1); F.conv_transpose1d(l, kt1)
F.conv_transpose1d(l, kt1, None, 3, 1, 2); F.conv_transpose1d(l, kt1[:2]); F.unfold(img, 2)
F.unfold(img, (2, 3), 1, 1, 2); F.fold(cols, (3, 4), 2); F.fold(cols, (5, 5), 2)
F.pixel_shuffle(img.reshape(1, 4, 5, 4), 2); F.pixel_unshuffle(img[:, :, :4], 2); F.avg_pool1d(l, 2)
F.avg_pool1d(l, 3, 2, 1, True); F.avg_pool1d(l, 3, 2, 1, True, False); F.avg_pool1d(l, 3, 1, 2)
F.avg_pool2d(img, 2, 1, 1, count_include_pad=False); F.avg_pool2d(img, (3, 2), 2, 1, True, True, 5)
F.avg_pool2d(img, 2, ceil_mode=True); F.avg_pool2d(img[0], 2); F.avg_pool2d(img, 9)
F.avg_pool2d(img, 3, 2, 1, ceil_mode=True); F.avg_pool2d(l, 2); F.max_pool1d(l, 2); F.max_pool1d(l, 3, 2, 1)
F.max_pool1d(l, 2, ceil_mode=True); F.max_pool2d(img, 2, ceil_mode=True)
F.max_pool2d(img, 2, return_indices=True); F.max_pool2d(img, 3, 2, 1, 1, True, True)
F.max_pool2d(img, (2, 1), 1, 0, (2, 1), return_indices=True); F.max_pool1d(l, 2, return_indices=True)
F.max_pool2d(img, 2, 1, 2); F.adaptive_avg_pool2d(img, 1); F.adaptive_avg_pool2d(img, (3, 2))
F.adaptive_avg_pool2d(img, (None, 3)); F.adaptive_avg_pool1d(l, 2); F.adaptive_avg_pool1d(l, 7)
F.adaptive_max_pool2d(img, (3, 3)); F.adaptive_max_pool2d(img, 2, return_indices=True)
F.adaptive_max_pool1d(l, 3); F.adaptive_avg_pool2d(img, 5); F.group_norm(four, 2); F.group_norm(four, 4, w4, b)
F.group_norm(four, 3); F.instance_norm(four); F.instance_norm(four, weight=w4, bias=b); F.rms_norm(a, (4,))
F.rms_norm(u, (3, 4), eps=1e-3); F.rms_norm(a, (4,), b); F.rms_norm(a, (3,)); F.local_response_norm(img, 2)
F.local_response_norm(four, 3, 0.1, 0.5, 2.0); F.scaled_dot_product_attention(qs, ks, vs)
F.scaled_dot_product_attention(qs, ks, vs, mask); F.scaled_dot_product_attention(qs, qs, qs, is_causal=True)
F.scaled_dot_product_attention(qs, ks, vs, scale=0.1); F.scaled_dot_product_attention(qs, ks, vs, qs[..., :5])
F.scaled_dot_product_attention(qs, k2, v2, enable_gqa=True)
F.scaled_dot_product_attention(qs, ks, vs, mask & False); F.scaled_dot_product_attention(qs, vs, vs)
F.scaled_dot_product_attention(qs, ks, vs, mask, is_causal=True); F.kl_div(a.log_softmax(1), p)
F.kl_div(a.log_softmax(1), p, reduction="batchmean"); F.kl_div(a, p, reduction="none", log_target=True)
F.kl_div(z, z, reduction="sum"); F.huber_loss(a, p); F.huber_loss(a, p, "sum", 0.5); F.smooth_l1_loss(a, p)
F.smooth_l1_loss(a, p, reduction="none", beta=0.3); F.smooth_l1_loss(a, p, beta=0.0); F.poisson_nll_loss(a, p)
F.poisson_nll_loss(p, p, False, True, reduction="sum"); F.gaussian_nll_loss(a, p, p)
F.gaussian_nll_loss(a, p, p, full=True, reduction="sum"); F.margin_ranking_loss(b[:3], o, pm, 0.5)
F.hinge_embedding_loss(a, pmi); F.hinge_embedding_loss(a, pmi, 0.5, reduction="none")
F.soft_margin_loss(a, pmi.float()); F.multilabel_soft_margin_loss(a, m.float()); F.multi_margin_loss(a, t3)
F.multi_margin_loss(a, t3, 2, 0.5, p[0].detach(), reduction="sum"); F.cosine_embedding_loss(a, p, pm, 0.1)
F.triplet_margin_loss(a, p, a * 0.5); F.triplet_margin_loss(a, p, a * 0.5, 2.0, swap=True, reduction="none")
t.tril_indices(3, 4); t.triu_indices(3, 3, 1); t.logspace(0, 2, 5); t.logspace(0, 3, 4, base=2.0)
a.new_zeros(2, 3); i.new_ones((2,)); a.new_full((2,), 3); a.new_tensor([1, 2]); i.new_empty(0).shape
t.empty_like(a).shape; t.bernoulli(t.ones(3)); t.bernoulli(t.zeros(2, 2)); t.normal(0.0, 0.0, (2,))
t.multinomial(t.tensor([0.0, 1.0]), 3, replacement=True); t.poisson(t.zeros(3)); a.is_contiguous()
a.ndimension(); a.nelement(); t.is_tensor(a); t.is_floating_point(a); t.numel(a); a.is_complex()
t.promote_types(t.int32, t.float32) == t.float32; t.result_type(a, 1) == t.float32
t.can_cast(t.float32, t.int32); a.is_nonzero(); one.is_nonzero(); a.max(0).values; a.max(1).indices
a.min(0).values; a.sort().values; a.topk(2).indices; a.median(0).values; a.cummax(0).values
a.kthvalue(1).values; t.linalg.inv(sq); t.linalg.det(sq); sq.det(); t.linalg.slogdet(sq); t.logdet(sq @ sq.T)
t.linalg.cholesky(sq @ sq.T); t.linalg.cholesky(sq @ sq.T, upper=True); t.linalg.solve(sq, zs)
t.linalg.solve(sq, o + 1); t.linalg.solve(sq, a); t.linalg.inv(a); t.linalg.eigvalsh(sq + sq.T)
t.linalg.matrix_power(sq, 3); t.linalg.matrix_power(sq, -2); t.linalg.matrix_power(sq, 0); t.linalg.pinv(w)
t.linalg.matrix_norm(a); t.linalg.matrix_norm(a, 1); t.linalg.matrix_norm(a, float("inf"))
t.linalg.vector_norm(a, 3); t.linalg.multi_dot([a, w, a]); t.linalg.inv(o); t.inverse(sq)
t.linalg.eigh(sq + sq.T)[1].abs() * p[:, :3]
t.lstm_cell(a, (sq[:, :2], w[:3, :2]), u.reshape(6, 4)[[0, 1, 2, 3, 4, 5, 0, 1]], u.reshape(12, 2)[:8])
t.gru_cell(a, sq[:, :2], u.reshape(6, 4), u.reshape(12, 2)[:6])
t.rnn_tanh_cell(a, sq[:, :2], w.T[:2], sq[:2, :2])
"""

WRITES = """
y.add_(1).round_(); y.floor_(); y.tril_(); y.cumsum_(0); y.index_add_(1, dup, w.T[:, :3])
y.index_fill_(0, dup, 2.0); y.masked_fill_(m, 0.5); y.scatter_(0, ix, p[:2]); y.scatter_add_(0, ix, p[:2])
y.index_put_((dup,), b, accumulate=True); y.lerp_(p, 0.3); y.addcmul_(p, p); y.remainder_(2); y.erf_()
y.clip_(0, 1); y %= 2; y //= 2; g &= 3; g |= 1; g ^= 2; g %= 2; g //= 2; y.diagonal().fill_(0)
y.diagonal(1).mul_(b[:3]); y.index_copy_(0, t.tensor([2, 0]), p[:2]); y.select(0, 1).zero_()
y.narrow(1, 0, 2).mul_(2); y.unbind()[1].add_(1); y.chunk(2, 1)[0].zero_(); y.split(2, 1)[1].mul_(b[:2])
y.swapaxes(0, 1)[1] = 5; y.unflatten(1, (2, 2))[:, 0] = 1; y.nan_to_num_(); y.atan2_(p); y.addcdiv_(p, p)
y.sign_(); y.frac_(); g.bitwise_not_(); y.masked_scatter_(m, p); y.scatter_reduce_(0, ix, p[:2], "sum")
y.flip(0).zero_(); y.repeat(1, 1).zero_(); y.roll(0, 0).zero_(); y.movedim(0, 1)[0] = 3; y.diagonal().diagonal
"""

DIFFERENT = {
    "t.linalg.slogdet(sq)": "the sign is a constant, and so says requires_grad",
    "t.linalg.matrix_power(sq, 0)": "the unit matrix is a constant, and so says requires_grad",
    "5 % p": "works, with the right gradient",
    "a // 2": "the gradient is 0, as that of floor",
    "y //= 2": "the gradient is 0, as that of floor",
    "t.floor_divide(a, p)": "the gradient is 0, as that of floor",
    "a.clamp(min=0.1, max=s)": "a number and a tensor may be mixed",
    "F.softsign(n)": "at infinity the gradient is 0, not NaN",
    "y.unbind()[1].add_(1)": "each part is a view of its own and may be written",
    "y.chunk(2, 1)[0].zero_()": "as unbind",
    "y.split(2, 1)[1].mul_(b[:2])": "as unbind",
    "n.quantile(0.5)": "infinities beside NaN",
    "a.tile((2, 1, 1))": "as the tuple says",
}
SECOND = re.compile(r"F\.max_pool|cdist|renorm|median|nan|dist\(")  # PyTorch has none, or another


def split(text: str) -> list[str]:
    return [row.strip() for line in text.splitlines() for row in re.split(r";\s", line + " ") if row.strip(" ;")]


@pytest.fixture(autouse=True)
def _leaves(monkeypatch):
    monkeypatch.setattr(first, "LEAVES", LEAVES)


def library_rows(source: str) -> str:
    return source.replace("F.", "t.nn.functional.")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("source", [row for row in split(TABLE) if row not in DIFFERENT])
def test_expression(source):
    first.check_same(library_rows(source), "eval")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("source", [row for row in split(WRITES) if row not in DIFFERENT])
def test_write(source):
    first.check_same(library_rows(source), "exec")


def second(source: str, library, make):
    """{name: gradient of Σ cos · gradient}: what second derivatives there are, in float64."""
    wide = {k: v.astype("f8") if v.dtype.kind == "f" else v for k, v in LEAVES.items()}
    named = {*re.findall(r"[a-zA-Z]\w*", source), "a"}
    xs = {k: make(v.copy()).requires_grad_(v.dtype.kind == "f") for k, v in wide.items() if k in named}
    ys = [y for y in first.outputs(eval(source, {"t": library, **xs})) if y.requires_grad]
    grad = torch.autograd.grad if library is torch else mg.autograd.grad
    names = [k for k, x in xs.items() if x.requires_grad]
    leaves = [xs[k] for k in names]
    gs = grad(ys, leaves, [first.upstream(y, make) for y in ys], create_graph=True, allow_unused=True)
    gs = [g for g in gs if g is not None and g.requires_grad]
    if not gs:
        return {}
    found = grad(gs, leaves, [first.upstream(g, make) for g in gs], allow_unused=True)
    return {k: first.host(g) for k, g in zip(names, found) if g is not None and np.any(first.host(g))}


def differentiable(source: str) -> bool:
    """Whether PyTorch gives a second derivative here."""
    try:
        with np.errstate(all="ignore"):
            return bool(second(library_rows(source), torch, torch.from_numpy))
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, ZeroDivisionError, NotImplementedError):
        return False


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("source", [r for r in split(TABLE) if r not in DIFFERENT and not SECOND.search(r)])
def test_second_derivative(source):
    """Where PyTorch has one."""
    if not differentiable(source):
        return
    source = library_rows(source)
    want, got = second(source, torch, torch.from_numpy), second(source, mg, mg.from_numpy)
    for k in {*want, *got}:
        if k in want and np.isnan(want[k]).any():
            continue
        zero = np.zeros_like(want.get(k, got.get(k)))
        np.testing.assert_allclose(got.get(k, zero), want.get(k, zero), rtol=1e-6, atol=1e-8, err_msg=k)
