"""Optional: attention, transformers, CharGPT and Llama beside PyTorch and `transformers`.  Skipped without them."""

import itertools

import numpy as np
import pytest

import minigrad as mg
import minigrad.nn.functional as F
from minigrad import nn
from minigrad.nn.gpt import gpt2_state
from minigrad.nn.llama import llama_state

torch = pytest.importorskip("torch")
RNG = np.random.default_rng(0)


def both(*shape, grad=True):
    """The same numbers for either."""
    x = RNG.standard_normal(shape)
    return mg.tensor(x, requires_grad=grad), torch.tensor(x, requires_grad=grad)


def same(ours, theirs, **how):
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), **{"rtol": 1e-9, "atol": 1e-11, **how})


def same_gradients(ours, theirs, pairs, **how):
    """Of sums weighted by random numbers."""
    g = RNG.standard_normal(ours.shape)
    (ours * mg.tensor(g, dtype=ours.dtype)).sum().backward()
    (theirs * torch.tensor(g, dtype=theirs.dtype)).sum().backward()
    for a, b in pairs:
        same(a.grad, b.grad, **how)


def loaded(ours, theirs):
    """Our module with the values of theirs, in double precision."""
    theirs.double().eval()
    ours.double().eval().load_state_dict({k: mg.tensor(v.numpy()) for k, v in theirs.state_dict().items()})
    assert list(ours.state_dict()) == list(theirs.state_dict())
    return ours, theirs


MASKS = [None, "causal", ("bool", (4, 5)), ("bool", (2, 1, 4, 5)), ("dead", (4, 5))]
MASKS += [("float", (4, 5)), ("float", (2, 3, 4, 5))]


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("heads", [3, 1])
def test_attention(mask, scale, heads):
    q, k, v = both(2, 3, 4, 8), both(2, heads, 5, 8), both(2, heads, 5, 6)
    pairs, given = [q, k, v], {"scale": scale, "enable_gqa": heads == 1}
    ours, theirs = dict(given), dict(given)
    if mask == "causal":
        ours["is_causal"] = theirs["is_causal"] = True
    elif mask:
        kind, shape = mask
        m = RNG.standard_normal(shape) if kind == "float" else RNG.random(shape) < 0.6
        if kind == "dead":
            m[1] = False
        ours["attn_mask"], theirs["attn_mask"] = mg.tensor(m), torch.tensor(m)
        if kind == "float":
            pairs = [*pairs, (ours["attn_mask"].requires_grad_(), theirs["attn_mask"].requires_grad_())]
    a = F.scaled_dot_product_attention(q[0], k[0], v[0], **ours)
    b = torch.nn.functional.scaled_dot_product_attention(q[1], k[1], v[1], **theirs)
    same(a, b)
    same_gradients(a, b, pairs)


FLAGS = [c for n, c in enumerate(itertools.product((False, True), repeat=7)) if n % 3 == 1]
HIDES = [(None, None), ("bool", None), (None, "bool"), ("float", "float"), ("bool", "bool")]


@pytest.mark.parametrize("hide", HIDES, ids=str)
def test_multihead_attention(hide):
    for batch_first, bias, bias_kv, zero, wide, need, average in FLAGS:
        sizes = {"kdim": 6, "vdim": 5} if wide else {}
        how = dict(bias=bias, add_bias_kv=bias_kv, add_zero_attn=zero, batch_first=batch_first, **sizes)
        ours, theirs = loaded(nn.MultiheadAttention(8, 2, **how), torch.nn.MultiheadAttention(8, 2, **how))
        shape = lambda n, e, first=batch_first: (3, n, e) if first else (n, 3, e)
        q, k, v = both(*shape(4, 8)), both(*shape(5, sizes.get("kdim", 8))), both(*shape(5, sizes.get("vdim", 8)))
        masks = []
        for kind, size in zip(hide, ((6, 4, 5), (3, 5))):
            m = RNG.standard_normal(size) if kind == "float" else RNG.random(size) < 0.3
            if kind == "bool":
                m[..., 0] = False
            masks.append((None, None) if kind is None else (mg.tensor(m), torch.tensor(m)))
        a, b = (
            m(x[0], x[1], x[2], masks[1][i], need, masks[0][i], average)
            for i, (m, x) in enumerate(((ours, (q[0], k[0], v[0])), (theirs, (q[1], k[1], v[1]))))
        )
        same(a[0], b[0])
        assert (a[1] is None) == (b[1] is None)
        if need:
            same(a[1], b[1])
        parameters = list(zip(ours.parameters(), theirs.parameters()))
        same_gradients(a[0], b[0], [q, k, v, *parameters], atol=1e-9)


@pytest.mark.filterwarnings("ignore:.*nested.tensor", "ignore:.*mismatched key_padding_mask")  # PyTorch's own
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_transformer(norm_first, activation, batch_first):
    sizes = (8, 2, 2, 2, 12)
    how = dict(dropout=0.0, activation=activation, norm_first=norm_first, batch_first=batch_first)
    ours, theirs = loaded(nn.Transformer(*sizes, **how), torch.nn.Transformer(*sizes, **how))
    src, tgt = (both(*((3, n, 8) if batch_first else (n, 3, 8))) for n in (5, 4))
    hidden = np.array([[False] * 5, [False] * 4 + [True], [False] * 3 + [True] * 2])
    a = ours(src[0], tgt[0], tgt_mask=nn.Transformer.generate_square_subsequent_mask(4, dtype=mg.float64),
             src_key_padding_mask=mg.tensor(hidden), memory_key_padding_mask=mg.tensor(hidden))
    b = theirs(src[1], tgt[1], tgt_mask=torch.nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.float64),
               src_key_padding_mask=torch.tensor(hidden), memory_key_padding_mask=torch.tensor(hidden))
    same(a, b)
    same_gradients(a, b, [src, tgt, *zip(ours.parameters(), theirs.parameters())], atol=1e-9)
    text = lambda library: str(library.nn.TransformerEncoderLayer(8, 2, 12)).replace("NonDynamicallyQuantizable", "")
    assert text(mg) == text(torch)


# ---- transformers --------------------------------------------------------------------------------


def texts(vocabulary, length):
    tokens = RNG.integers(0, vocabulary, (3, length))
    return mg.tensor(tokens), torch.tensor(tokens)


def arrays(model):
    return {k: v.numpy() for k, v in model.state_dict().items()}


def brought_over(ours, state):
    ours.load_state_dict({k: mg.tensor(v) for k, v in state.items()})
    return ours.eval()


@pytest.mark.parametrize("layers", [1, 3])
def test_gpt2_logits(layers):
    lib = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = lib.GPT2Config(vocab_size=31, n_positions=40, n_embd=24, n_layer=layers, n_head=3, initializer_range=0.3)
    theirs = lib.GPT2LMHeadModel(config).eval()
    ours = nn.CharGPT(vocab_size=31, block_size=40, n_layer=layers, n_head=3, n_embd=24)
    brought_over(ours, gpt2_state(arrays(theirs)))
    a, b = texts(31, 40)
    want = theirs(b).logits
    assert want.std() > 0.5
    same(ours(a), want, rtol=0, atol=1e-4)
    grown = ours.generate(a[:, :5], 30, temperature=0)
    how = dict(max_new_tokens=30, do_sample=False, eos_token_id=None, attention_mask=torch.ones(3, 5).long())
    assert grown.tolist() == theirs.generate(b[:, :5], **how).tolist()


LLAMAS = [
    {},
    {"num_key_value_heads": 2, "rope_theta": 500.0},
    {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
]


@pytest.mark.parametrize("more", LLAMAS, ids=str)
def test_llama_logits(more):
    lib = pytest.importorskip("transformers")
    torch.manual_seed(1)
    sizes = dict(vocab_size=31, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
                 max_position_embeddings=40, rms_norm_eps=1e-5)
    theirs = lib.LlamaForCausalLM(lib.LlamaConfig(**{**sizes, **more}, initializer_range=0.3)).eval()
    ours = brought_over(nn.Llama(**{**sizes, **more}), llama_state(arrays(theirs)))
    a, b = texts(31, 40)
    want = theirs(b).logits
    assert want.std() > 0.5
    same(ours(a), want, rtol=0, atol=1e-4)
    (ours(a) * 0.01).sum().backward()
    (theirs(b).logits * 0.01).sum().backward()
    same(ours.layers[0].self_attn.k_proj.weight.grad, theirs.model.layers[0].self_attn.k_proj.weight.grad,
         rtol=1e-3, atol=1e-4)


# ---- training ------------------------------------------------------------------------------------


def hand_written(p, tokens, layers, heads):
    """GPT-2 by PyTorch's functions."""
    f = torch.nn.functional
    x = p["wte.weight"][tokens] + p["wpe.weight"]
    norm = lambda x, n: f.layer_norm(x, x.shape[-1:], p[n + ".weight"], p[n + ".bias"])
    dense = lambda x, n: f.linear(x, p[n + ".weight"], p[n + ".bias"])
    for i in range(layers):
        h = f"h.{i}."
        qkv = dense(norm(x, h + "ln_1"), h + "attn.c_attn").chunk(3, -1)
        q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in qkv)
        y = f.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + dense(y, h + "attn.c_proj")
        x = x + dense(f.gelu(dense(norm(x, h + "ln_2"), h + "mlp.c_fc"), approximate="tanh"), h + "mlp.c_proj")
    return norm(x, "ln_f") @ p["wte.weight"].T


def test_char_gpt_has_the_loss_curve_of_pytorch():
    mg.manual_seed(0)
    sizes = dict(vocab_size=40, block_size=32, n_layer=2, n_head=4, n_embd=32)
    model = nn.CharGPT(**sizes)
    p = {k: torch.tensor(v.detach().numpy().copy(), requires_grad=True) for k, v in model.named_parameters()}
    how = dict(lr=2e-3, betas=(0.9, 0.99), weight_decay=0.1)
    ours, theirs = mg.optim.AdamW(model.parameters(), **how), torch.optim.AdamW(p.values(), **how)
    text = np.cumsum(RNG.integers(1, 4, (4, 33)), 1) % 40
    curves = []
    for _ in range(20):
        a = F.cross_entropy(model(mg.tensor(text[:, :-1])).flatten(0, 1), mg.tensor(text[:, 1:]).flatten())
        logits = hand_written(p, torch.tensor(text[:, :-1]), 2, 4)
        b = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(text[:, 1:]).flatten())
        for loss, optimiser in ((a, ours), (b, theirs)):
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        curves.append((a.item(), b.item()))
        text = np.roll(text, 1, 0)
    a, b = np.array(curves).T
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-4)
    assert a[-1] < a[0] - 0.5
