"""CharGPT and Llama: what a place may see, the cache, what is drawn, and how they start."""

import copy
import math

import numpy as np
import pytest

import minigrad as mg
import minigrad.nn.functional as F
from minigrad import nn
from minigrad.nn.generation import sample_token
from minigrad.nn.gpt import gpt2_state
from minigrad.nn.llama import llama_state

BLOCK = 7


def gpt(**how):
    return nn.CharGPT(**{"vocab_size": 11, "block_size": BLOCK, "n_layer": 2, "n_head": 2, "n_embd": 8, **how})


def llama(**how):
    sizes = {"hidden_size": 16, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 4}
    how = {"num_key_value_heads": 2, **sizes, **how}
    return nn.Llama(vocab_size=11, max_position_embeddings=BLOCK, **how)


MODELS = {
    "gpt": gpt,
    "gpt, no bias, own head": lambda: gpt(bias=False, tied=False),
    "llama": llama,
    "llama, tied, a head each": lambda: llama(num_key_value_heads=None, tie_word_embeddings=True, attention_bias=True),
}


@pytest.fixture(params=MODELS)
def model(request):
    """In float64 and with weights large enough to tell all places apart."""
    mg.manual_seed(3)
    made = MODELS[request.param]().double().eval()
    with mg.no_grad():
        for p in made.parameters():
            p.mul_(5.0 if p.ndim > 1 else 1.0)
    return made


@pytest.fixture
def tokens():
    return mg.tensor(np.random.default_rng(4).integers(0, 11, (3, BLOCK)))


def test_a_change_at_t_changes_no_logits_before_t(model, tokens):
    before = model(tokens).detach().numpy()
    for t in range(BLOCK):
        other = tokens.clone()
        other[:, t] = (other[:, t] + 1) % 11
        after = model(other).detach().numpy()
        np.testing.assert_array_equal(after[:, :t], before[:, :t])
        assert np.abs(after[:, t:] - before[:, t:]).max(-1).min() > 1e-6


@pytest.mark.parametrize("step", [1, 2, BLOCK])
def test_cached_logits_equal_uncached_for_every_prefix(model, tokens, step):
    whole = model(tokens).detach().numpy()
    with mg.no_grad():
        for prefix in range(1, BLOCK + 1):
            cache = model.new_cache()
            found = [model(tokens[:, :prefix], cache=cache).numpy()]
            while cache.length < BLOCK:
                found.append(model(tokens[:, cache.length : cache.length + step], cache=cache).numpy())
            np.testing.assert_allclose(np.concatenate(found, 1), whole, rtol=1e-10, atol=1e-12)


def test_generating_equals_reading_the_last_block_anew_each_time(model, tokens):
    for start in (1, 3, BLOCK, BLOCK + 2):
        seen = mg.cat([tokens, tokens], 1)[:, :start]
        got = model.generate(seen, 2 * BLOCK, temperature=0)
        for _ in range(2 * BLOCK):
            seen = mg.cat([seen, model(seen[:, -BLOCK:])[:, -1].argmax(-1, True)], 1)
        assert got.tolist() == seen.tolist() and got.dtype == mg.int64 and not got.requires_grad
    assert model.generate(tokens, 0).tolist() == tokens.tolist()


def test_generators_replay(model, tokens):
    draw = lambda seed: model.generate(tokens[:, :2], 6, 1.5, 5, 0.9, mg.Generator().manual_seed(seed)).tolist()
    assert draw(1) == draw(1) != draw(2)


def test_gradients_reach_every_parameter(model, tokens):
    F.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(-1, 1).flatten()).backward()
    for name, p in model.named_parameters():
        dead = name.endswith(("c_attn.bias", "k_proj.bias"))  # a shift of all keys changes no softmax
        assert dead or np.abs(p.grad.numpy()).max() > 1e-9, name
    again = copy.deepcopy(model)
    np.testing.assert_array_equal(again(tokens).detach(), model(tokens).detach())
    tied = lambda m: m.lm_head.weight is getattr(m, "wte" if isinstance(m, nn.CharGPT) else "embed_tokens").weight
    assert tied(again) == tied(model)


def test_what_the_models_refuse(model, tokens):
    with pytest.raises(ValueError, match=rf"keep the last: tokens\[:, -{BLOCK}:\]"):
        model(mg.cat([tokens, tokens], 1))
    with pytest.raises(ValueError, match=r"expected tokens \(batch, length\)"):
        model(tokens[0])
    with pytest.raises(RuntimeError, match="no gradient flows through a cache"):
        model(tokens, cache=model.new_cache())
    with mg.no_grad():
        cache = model.new_cache()
        model(tokens[:, :2], cache=cache)
        with pytest.raises(ValueError, match="Make a new one"):
            model(tokens[:1, :2], cache=cache)
        with pytest.raises(ValueError, match="exceed"):
            model(tokens[:, :6], cache=cache)
        assert cache.length == 2
    for wrong in (tokens[:, :0], tokens[0]):
        with pytest.raises(ValueError, match="length ≥ 1"):
            model.generate(wrong, 1)
    with pytest.raises(TypeError, match="integers"):
        model.generate(tokens.float(), 1)


def test_sizes_that_do_not_fit():
    for wrong in ({"n_head": 3}, {"n_layer": 0}, {"vocab_size": -1}):
        with pytest.raises(ValueError, match="n_embd divisible by n_head"):
            nn.GPTConfig(**wrong)
    for wrong in ({"num_attention_heads": 3}, {"num_key_value_heads": 3}, {"hidden_size": 12}):
        with pytest.raises(ValueError, match="have an even size"):
            nn.LlamaConfig(**wrong)


# ---- how they start ------------------------------------------------------------------------------


def test_gpt_starts_as_gpt2():
    mg.manual_seed(5)
    m = nn.CharGPT(vocab_size=50, block_size=64, n_layer=8, n_head=2, n_embd=64)
    for name, p in m.named_parameters():
        values = p.detach().numpy()
        if p.ndim == 1:
            assert (values == (1 if "ln_" in name and name.endswith("weight") else 0)).all(), name
        else:
            want = 0.02 / (math.sqrt(16) if name.endswith("c_proj.weight") else 1)
            assert values.std() == pytest.approx(want, rel=0.05), name  # 3,000 numbers: ± 1.3 %
    assert m.lm_head.weight is m.wte.weight
    assert sum(p.numel() for p in nn.CharGPT().parameters()) == 818_048
    loss = F.cross_entropy(m(mg.randint(0, 50, (4, 64))).flatten(0, 1), mg.randint(0, 50, (256,)))
    assert loss.item() == pytest.approx(math.log(50), abs=0.1)


def test_what_a_block_keeps_for_backward():
    """4 bytes · B T (16 C + H T + 4): the inputs of two norms (2 C) and of four products (7 C) and their rows' mean and
    deviation (4), q, k and v (3 C), gelu's input (4 C), the attention weights (H T).  Nothing is kept twice."""
    b, t, c, h = 3, 5, 8, 2
    block, x = nn.TransformerBlock(c, h), mg.randn(b, t, c, requires_grad=True)
    own = {id(p.array) for p in block.parameters()}
    buffers: dict[int, int] = {}
    todo, seen = [block(x).node], set()
    while todo:
        node = todo.pop()
        if isinstance(node, mg.Node) and id(node) not in seen:
            seen.add(id(node))
            todo += node.edges
            for value in node.saved:
                if isinstance(value, np.ndarray) and id(value) not in own and value.ndim:
                    owner = value if value.base is None else value.base
                    buffers[id(owner)] = 0 if id(owner) in own else owner.nbytes
    assert sum(buffers.values()) == 4 * b * t * (16 * c + h * t + 4)


def test_dropout_acts_in_training_only(tokens):
    m = gpt(dropout=0.5)
    assert m(tokens).tolist() != m(tokens).tolist()
    m.eval()
    assert m(tokens).tolist() == m(tokens).tolist()


def test_a_tiny_model_learns_a_tiny_text():
    mg.manual_seed(6)
    text = mg.tensor([[1, 5, 2, 8, 3, 9, 4]])
    for m in (gpt(n_embd=16), llama()):
        optimiser = mg.optim.AdamW(m.parameters(), lr=0.01)
        for _ in range(60):
            optimiser.zero_grad()
            F.cross_entropy(m(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten()).backward()
            optimiser.step()
        assert m.generate(text[:, :1], 6, temperature=0).tolist() == text.tolist()


# ---- names of others -----------------------------------------------------------------------------


def test_states_of_transformers_are_renamed():
    m = gpt()
    ours = {k: v.numpy() for k, v in m.state_dict().items()}
    conv = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    theirs = {f"transformer.{k}": v.T if k.endswith(conv) else v for k, v in ours.items() if k != "lm_head.weight"}
    theirs["transformer.h.0.attn.bias"] = np.tri(4)
    found = gpt2_state(theirs)
    assert sorted(found) == sorted(ours)
    assert all(np.array_equal(found[k], ours[k]) for k in ours)
    m = llama(tie_word_embeddings=True)
    ours = {k: v.numpy() for k, v in m.state_dict().items()}
    assert "cos" not in ours
    found = llama_state({f"model.{k}": v for k, v in ours.items() if k != "lm_head.weight"})
    assert sorted(found) == sorted(ours) and np.array_equal(found["lm_head.weight"], ours["embed_tokens.weight"])


# ---- drawing -------------------------------------------------------------------------------------


def shares(n=4000, **how):
    """How often each of five classes is drawn."""
    logits = mg.tensor(np.log([0.4, 0.3, 0.2, 0.07, 0.03])).expand(n, 5)
    draws = sample_token(logits, generator=mg.Generator().manual_seed(7), **how).numpy()
    assert draws.shape == (n, 1)
    return np.bincount(draws.ravel(), minlength=5) / n


@pytest.mark.parametrize(
    ("how", "want"),
    [
        ({}, [0.4, 0.3, 0.2, 0.07, 0.03]),
        ({"top_k": 2}, [4 / 7, 3 / 7, 0, 0, 0]),
        ({"top_k": 9}, [0.4, 0.3, 0.2, 0.07, 0.03]),
        ({"top_p": 0.71}, [4 / 9, 3 / 9, 2 / 9, 0, 0]),
        ({"top_p": 0.69}, [4 / 7, 3 / 7, 0, 0, 0]),
        ({"top_p": 0.01}, [1, 0, 0, 0, 0]),
        ({"temperature": 0}, [1, 0, 0, 0, 0]),
        ({"temperature": 0.5, "top_k": 2}, [16 / 25, 9 / 25, 0, 0, 0]),
        ({"top_k": 3, "top_p": 0.5}, [4 / 7, 3 / 7, 0, 0, 0]),  # of 4/9, 3/9, 2/9 the first two reach a half
    ],
    ids=str,
)
def test_shares_of_draws(how, want):
    got = shares(**how)
    np.testing.assert_allclose(got, want, atol=0.03)  # four standard deviations of 4,000 draws
    assert (got[np.array(want) == 0] == 0).all()


def test_what_drawing_refuses():
    row = mg.zeros(1, 3)
    for how in ({"temperature": -1}, {"temperature": math.nan}, {"top_k": 0}, {"top_p": 0.0}, {"top_p": 1.1}):
        with pytest.raises(ValueError, match=next(iter(how))):
            sample_token(row, **how)
    with pytest.raises(ValueError, match="batch, vocabulary"):
        sample_token(row[0])


@pytest.mark.parametrize("make", [gpt, llama])
def test_a_reading_that_broke_off_leaves_nothing_in_the_cache(make):
    model, tokens = make().eval(), mg.tensor([[1, 2, 3, 4, 5]])
    block = (model.h if hasattr(model, "h") else model.layers)[-1]
    with mg.no_grad():
        cache = model.new_cache()
        model(tokens[:, :3], cache=cache)
        stop = block.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            model(tokens[:, 3:], cache=cache)
        stop.remove()
        np.testing.assert_allclose(model(tokens[:, 3:], cache=cache), model(tokens)[:, 3:], atol=1e-5)


@pytest.mark.parametrize("n", [-1, 2.5])
def test_generate_refuses_a_number_of_tokens_that_is_none(n):
    with pytest.raises(ValueError, match="how many tokens"):
        gpt().generate(mg.tensor([[1]]), n)


@pytest.mark.parametrize("make", [gpt, llama])
def test_an_empty_batch_generates_an_empty_batch(make):
    assert make().generate(mg.zeros(0, 2, dtype=mg.int64), 3).shape == (0, 5)
