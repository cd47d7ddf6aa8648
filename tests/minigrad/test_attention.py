"""Attention equals its formula, in blocks and whole, masked and grouped; several heads equal each one alone."""

import math

import numpy as np
import pytest

import minigrad as mg
import minigrad.nn.functional as F
from minigrad import nn
from minigrad.autograd import grad
from minigrad.ops import attention_blocks

sdpa = F.scaled_dot_product_attention
RNG = np.random.default_rng(0)


def drawn(*shape, grad=True):
    return mg.tensor(RNG.standard_normal(shape), requires_grad=grad)


def softmax(s):
    with np.errstate(invalid="ignore"):
        e = np.exp(s - s.max(-1, keepdims=True))
        return np.nan_to_num(e / e.sum(-1, keepdims=True))


def formula(q, k, v, bias=0.0, causal=False, scale=None):
    s = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale) + bias
    return softmax(np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf) if causal else s) @ v


SHAPES = [
    ((70, 4), (70, 4), (70, 3)),
    ((3, 70, 4), (3, 33, 4), (3, 33, 2)),
    ((2, 2, 33, 4), (2, 1, 70, 4), (70, 5)),
    ((2, 1, 2, 5, 4), (2, 3, 1, 5, 4), (2, 3, 1, 5, 4)),
    ((2, 0, 4), (2, 5, 4), (2, 5, 3)),
    ((2, 3, 4), (2, 0, 4), (2, 0, 3)),
]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("block_bytes", [1, 3000, 1 << 18])
def test_blocks_equal_the_formula_and_its_gradient(shapes, causal, block_bytes, monkeypatch):
    monkeypatch.setattr(attention_blocks, "BLOCK_BYTES", block_bytes)
    xs = [drawn(*s) for s in shapes]
    y = sdpa(*xs, is_causal=causal, scale=0.7)
    if shapes[1][-2]:
        np.testing.assert_allclose(y.detach(), formula(*(x.detach().numpy() for x in xs), causal=causal, scale=0.7))
    else:
        assert not y.detach().numpy().any()
    g = drawn(*y.shape, grad=False)
    plain = grad(y, xs, g, create_graph=True)  # the rules on tensors: no blocks
    for a, b in zip(plain, grad(y, xs, g)):
        np.testing.assert_allclose(a.detach(), b.detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shape", [(33, 70), (1, 70), (33, 1), (2, 33, 70), (3, 2, 33, 70), (3, 1, 1, 70), (1,)])
def test_a_mask_is_added_and_has_its_gradient(shape):
    q, k, v, mask = drawn(3, 2, 33, 4), drawn(3, 2, 70, 4), drawn(3, 2, 70, 2), drawn(*shape)
    y = sdpa(q, k, v, mask)
    np.testing.assert_allclose(y.detach(), formula(*(x.detach().numpy() for x in (q, k, v, mask))))
    g = drawn(*y.shape, grad=False)
    for a, b in zip(grad(y, [q, k, v, mask], g, create_graph=True), grad(y, [q, k, v, mask], g)):
        np.testing.assert_allclose(a.detach(), b.detach(), rtol=1e-10, atol=1e-12)


def test_a_row_that_may_see_nothing_gives_zeros_and_no_gradient():
    seen = mg.tensor(RNG.random((4, 5)) < 0.5)
    seen[1] = False
    q, k, v = drawn(2, 4, 3), drawn(2, 5, 3), drawn(2, 5, 2)
    for mask in (seen, mg.where(seen, 0.0, -math.inf).double()):
        y = sdpa(q, k, v, mask)
        want = formula(*(x.detach().numpy() for x in (q, k, v)), np.where(seen.numpy(), 0, -np.inf))
        np.testing.assert_allclose(y.detach(), want)
        found = grad((y * drawn(2, 4, 2, grad=False)).sum(), [q, k, v])
        assert not y[:, 1].detach().numpy().any() and not found[0][:, 1].numpy().any()
        assert all(np.isfinite(g.numpy()).all() for g in found)


def test_a_masked_key_changes_nothing():
    q, k, v = drawn(2, 4, 3), drawn(2, 5, 3), drawn(2, 5, 2)
    mask = mg.tensor([True, True, False, True, False])
    other = [x.detach().clone() for x in (k, v)]
    for x in other:
        x[:, 2] = 1e3
        x[:, 4] = -1e3
    mask = mask.expand(4, 5)
    np.testing.assert_array_equal(sdpa(q, k, v, mask).detach(), sdpa(q, *other, mask).detach())


@pytest.mark.parametrize("mask", [None, (4, 5), (6, 4, 5), (2, 1, 4, 5), (2, 6, 1, 5)], ids=str)
def test_grouped_queries_equal_repeated_keys(mask):
    q, k, v = drawn(2, 6, 4, 3), drawn(2, 2, 5, 3), drawn(2, 2, 5, 2)
    bias = None if mask is None else drawn(*mask)
    leaves = [q, k, v] + [bias] * (bias is not None)
    y = sdpa(q, k, v, bias, enable_gqa=True)
    whole = sdpa(q, k.repeat_interleave(3, 1), v.repeat_interleave(3, 1), bias)
    np.testing.assert_allclose(y.detach(), whole.detach(), rtol=1e-12)
    g = drawn(*y.shape, grad=False)
    for a, b in zip(grad(y, leaves, g), grad(whole, leaves, g)):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_dropout_acts_on_the_weights_and_replays():
    q, k, v = drawn(2, 4, 3), drawn(2, 5, 3), mg.eye(5, dtype=mg.float64).expand(2, 5, 5)
    state = mg.get_rng_state()
    p, whole = sdpa(q, k, v, dropout_p=0.4).detach().numpy(), sdpa(q, k, v).detach().numpy()
    assert set(np.round(np.unique(p / whole), 9)) == {0.0, round(1 / 0.6, 9)}
    mg.set_rng_state(state)
    np.testing.assert_array_equal(sdpa(q, k, v, dropout_p=0.4).detach(), p)
    for causal in (False, True):
        k = drawn(2, 4, 3)
        state = mg.get_rng_state()

        def replayed(*xs, causal=causal, state=state):
            mg.set_rng_state(state)
            return sdpa(*xs, dropout_p=0.4, is_causal=causal)

        assert mg.gradcheck(replayed, [q, k, drawn(2, 4, 2)])


REFUSED = {
    "two axes": (ValueError, lambda q: sdpa(q[0, 0], q, q)),
    "float dtype": (TypeError, lambda q: sdpa(q, q.double(), q)),
    "one float": (TypeError, lambda q: sdpa(q.long(), q.long(), q.long())),
    "mask is int64": (TypeError, lambda q: sdpa(q, q, q, mg.ones(4, 4).long())),
    "not both": (RuntimeError, lambda q: sdpa(q, q, q, mg.ones(4, 4), is_causal=True)),
    "do not broadcast": (ValueError, lambda q: sdpa(q[:, :1], q, q, mg.ones(4, 4))),
    "enable_gqa": (ValueError, lambda q: sdpa(q[None].expand(3, 2, 4, 3), q[None], q[None, :1], enable_gqa=True)),
    "a probability": (ValueError, lambda q: sdpa(q, q, q, dropout_p=1.5)),
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_attention_refuses(text):
    error, call = REFUSED[text]
    with pytest.raises(error, match=text):
        call(mg.ones(2, 4, 3))


# ---- MultiheadAttention --------------------------------------------------------------------------


def by_hand(m, q, k, v, bias):
    """Each head alone: its rows of the projections, its columns of out_proj."""
    if m.in_proj_weight is None:
        w = [p.detach().numpy() for p in (m.q_proj_weight, m.k_proj_weight, m.v_proj_weight)]
    else:
        w = np.split(m.in_proj_weight.detach().numpy(), 3)
    b = np.split(m.in_proj_bias.detach().numpy(), 3)
    total, n = m.out_proj.bias.detach().numpy(), m.head_dim
    for h in range(m.num_heads):
        rows = slice(h * n, (h + 1) * n)
        head = [x @ a[rows].T + c[rows] for x, a, c in zip((q, k, v), w, b)]
        total = total + formula(*head, bias[:, h]) @ m.out_proj.weight.detach().numpy()[:, rows].T
    return total


@pytest.mark.parametrize("sizes", [{}, {"kdim": 5, "vdim": 3}], ids=str)
@pytest.mark.parametrize("need_weights", [True, False])
def test_heads_one_by_one(sizes, need_weights):
    mg.manual_seed(1)
    m = nn.MultiheadAttention(6, 3, batch_first=True, **sizes).double()
    with mg.no_grad():
        m.in_proj_bias.copy_(drawn(18, grad=False))
    q, k, v = drawn(2, 4, 6), drawn(2, 5, sizes.get("kdim", 6)), drawn(2, 5, sizes.get("vdim", 6))
    mask, padding = mg.tensor(RNG.random((6, 4, 5)) < 0.3), mg.tensor([[False] * 4 + [True], [False] * 5])
    mask[:, :, 0] = False
    closed = mask.numpy().reshape(2, 3, 4, 5) | padding.numpy()[:, None, None]
    y, p = m(q, k, v, padding, need_weights, mask)
    want = by_hand(m, *(x.detach().numpy() for x in (q, k, v)), np.where(closed, -np.inf, 0.0))
    np.testing.assert_allclose(y.detach(), want, rtol=1e-10, atol=1e-12)
    assert (p is not None) == need_weights
    if need_weights:
        assert p.shape == (2, 4, 5) and not p[0, :, 4].detach().numpy().any()
        np.testing.assert_allclose(p.detach().sum(-1), np.ones((2, 4)))
    assert mg.gradcheck(lambda *xs: m(*xs, padding, need_weights, mask)[0], [q, k, v])


def test_layouts_and_the_causal_hint_agree():
    m = nn.MultiheadAttention(4, 2).double()
    first = nn.MultiheadAttention(4, 2, batch_first=True).double()
    first.load_state_dict(m.state_dict())
    x = drawn(3, 2, 4)
    y, p = m(x, x, x)
    z, r = first(x.transpose(0, 1), x.transpose(0, 1), x.transpose(0, 1))
    np.testing.assert_allclose(y.detach(), z.transpose(0, 1).detach())
    np.testing.assert_allclose(p.detach(), r.detach())
    alone, weights = m(x[:, 1], x[:, 1], x[:, 1], average_attn_weights=False)
    np.testing.assert_allclose(alone.detach(), y[:, 1].detach())
    np.testing.assert_allclose(weights.mean(0).detach(), p[1].detach())
    mask = nn.Transformer.generate_square_subsequent_mask(3)
    hinted = m(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)[0]
    np.testing.assert_allclose(hinted.detach(), m(x, x, x, attn_mask=mask)[0].detach())


def test_added_keys_may_always_be_seen():
    m = nn.MultiheadAttention(4, 2, add_bias_kv=True, add_zero_attn=True, batch_first=True).double()
    x = drawn(2, 3, 4)
    nothing = mg.ones(2, 3, dtype=mg.bool)
    y, p = m(x, x, x, nothing)
    assert p.shape == (2, 3, 5) and not p[..., :3].detach().numpy().any()
    k, zero = m.bias_v.detach().numpy().ravel(), np.zeros(4)
    q = x.detach().numpy() @ m.in_proj_weight.detach().numpy()[:4].T
    heads = []
    for rows in (slice(0, 2), slice(2, 4)):
        s = np.stack([q[..., rows] @ m.bias_k.detach().numpy().ravel()[rows] / math.sqrt(2), np.zeros((2, 3))], -1)
        heads.append(softmax(s) @ np.stack([k[rows], zero[rows]]))
    want = np.concatenate(heads, -1) @ m.out_proj.weight.detach().numpy().T
    np.testing.assert_allclose(y.detach(), want, rtol=1e-10)


def test_what_multihead_attention_refuses():
    m, x = nn.MultiheadAttention(4, 2, batch_first=True), mg.ones(2, 3, 4)
    with pytest.raises(ValueError, match="not divisible"):
        nn.MultiheadAttention(4, 3)
    for call, text in (
        (lambda: m(x, x, mg.ones(2, 2, 4)), "same length"),
        (lambda: m(x, x[0], x), "3 axes"),
        (lambda: m(x[..., :3], x, x), "last sizes 4, 4 and 4"),
        (lambda: m(x, x, x, mg.ones(3, 3).bool()), r"key_padding_mask \(3, 3\) is not \(2, 3\)"),
        (lambda: m(x, x, x, attn_mask=mg.ones(2, 3, 3).bool()), r"neither \(3, 3\) nor \(4, 3, 3\)"),
    ):
        with pytest.raises(ValueError, match=text):
            call()
    with pytest.raises(RuntimeError, match="give that mask too"):
        m(x, x, x, is_causal=True)


# ---- the transformer of 2017 ---------------------------------------------------------------------


def small(**how):
    mg.manual_seed(2)
    return nn.Transformer(4, 2, 2, 2, 6, dropout=0.0, batch_first=True, **how).double().eval()


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_change_later_on_changes_nothing_before(norm_first):
    m, src, tgt = small(norm_first=norm_first, activation="gelu"), drawn(2, 3, 4), drawn(2, 5, 4)
    mask = m.generate_square_subsequent_mask(5)
    before = m(src, tgt, tgt_mask=mask).detach().numpy()
    for t in range(5):
        other = tgt.detach().clone()
        other[:, t] += drawn(4, grad=False)
        after = m(src, other, tgt_mask=mask).detach().numpy()
        np.testing.assert_array_equal(after[:, :t], before[:, :t])
        assert np.abs(after[:, t:] - before[:, t:]).max(-1).min() > 1e-6


def test_padding_is_not_read_and_layers_are_copies():
    m, src, tgt = small(), drawn(2, 3, 4), drawn(2, 5, 4)
    hidden = mg.tensor([[False, False, True], [False, True, True]])
    how = {"src_key_padding_mask": hidden, "memory_key_padding_mask": hidden}
    other = src.detach().clone()
    other[0, 2] = 9
    other[1, 1:] = 9
    np.testing.assert_allclose(m(src, tgt, **how).detach(), m(other, tgt, **how).detach(), rtol=1e-12)
    first, second = m.encoder.layers
    assert first.linear1.weight is not second.linear1.weight
    assert str(m.encoder.layers).startswith("ModuleList(\n  (0-1): 2 x TransformerEncoderLayer(")
    x = drawn(1, 2, 4)
    assert mg.gradcheck(lambda x: m(x, tgt[:1]), [x])
    with pytest.raises(RuntimeError, match="relu/gelu"):
        nn.TransformerEncoderLayer(4, 2, activation="tanh")
    with pytest.raises(ValueError, match="batches of different sizes"):
        m(src, tgt[:1])


# ---- places --------------------------------------------------------------------------------------


def test_waves():
    waves = nn.SinusoidalPositions(20, 5, dtype=mg.float64)(mg.zeros(2, 7, 5, dtype=mg.float64), 3).numpy()
    for place, i in np.ndindex(7, 5):
        angle = (place + 3) / 10000 ** (2 * (i // 2) / 5)
        assert waves[1, place, i] == pytest.approx((math.cos if i % 2 else math.sin)(angle), abs=1e-12)
    with pytest.raises(ValueError, match="does not fit the table"):
        nn.SinusoidalPositions(5, 4)(mg.zeros(2, 4), 4)
    learned = nn.LearnedPositions(6, 4)
    learned(mg.zeros(3, 2, 4), 1).sum().backward()
    assert learned.weight.grad[:, 0].tolist() == [0, 3, 3, 0, 0, 0]


def test_slopes():
    from minigrad.nn.positions import alibi_bias, alibi_slopes

    np.testing.assert_allclose(alibi_slopes(8), 2.0 ** -np.arange(1, 9))
    np.testing.assert_allclose(alibi_slopes(6), [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3])
    bias = alibi_bias(2, 2, 4)
    assert bias[0].tolist() == [[-2 / 16, -1 / 16, 0, -1 / 16], [-3 / 16, -2 / 16, -1 / 16, 0]]
    assert alibi_bias(2, 3).shape == (2, 3, 3)


def test_rotary_products_depend_on_the_distance_only():
    from minigrad.ops.attention import apply_rotary, rotary_angles

    cos, sin = (mg.tensor(a) for a in rotary_angles(12, 6))
    q, k = (drawn(1, 6, grad=False).expand(12, 6) for _ in range(2))
    s = (apply_rotary(q, cos, sin) @ apply_rotary(k, cos, sin).mT).numpy()
    for distance in range(-11, 12):
        line = np.diagonal(s, distance)
        np.testing.assert_allclose(line, line[0], rtol=1e-10)
