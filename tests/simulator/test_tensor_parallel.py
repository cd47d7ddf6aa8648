"""Tensor parallel: products, vocabulary, heads and whole models cut among ranks are those of one device."""
from __future__ import annotations

import numpy as np
import pytest

import minigrad as mg
from minigrad import nn
from minigrad.nn import functional as F
from simulator.spawn import spawn
from simulator.strategies.heads import ParallelMultiheadAttention
from simulator.strategies.parallelize import parallelize
from simulator.strategies.shards import Shard, gather_state, load_full_state, shards_of
from simulator.strategies.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from simulator.strategies.vocabulary import VocabParallelEmbedding, vocab_parallel_cross_entropy

WORLDS = (1, 2, 3, 5)
ULPS = 64 * 2.0**-52                                   # of the largest number: the sums of a product in another order


def close(got, want, what: str = "") -> None:
    got, want = (np.asarray(x.detach().numpy() if isinstance(x, mg.Tensor) else x) for x in (got, want))
    assert got.shape == want.shape and got.dtype == want.dtype, what
    np.testing.assert_allclose(got, want, rtol=0, atol=ULPS * max(np.abs(want).max(initial=0), 1e-300), err_msg=what)


def normal(*shape: int, seed: int = 0) -> mg.Tensor:
    return mg.tensor(np.random.default_rng(seed).standard_normal(shape))


def grads_of(module: nn.Module, shards: dict[str, Shard] | None = None) -> dict[str, mg.Tensor]:
    """By name, each whole."""
    shards = dict(shards_of(module)) if shards is None else shards
    found = {}
    for name, p in module.named_parameters(remove_duplicate=False):
        g = p.grad if isinstance(p.grad, mg.Tensor) or p.grad is None else p.grad.to_dense()
        if g is not None or name in shards:
            found[name] = shards[name].gathered(g) if name in shards else g
    return found


def same(module: nn.Module, whole: nn.Module) -> None:
    """All gradients, those that are cut gathered."""
    got, want = grads_of(module), grads_of(whole)
    assert got.keys() == want.keys()
    for name in want:
        close(got[name], want[name], name)


def on_ranks(world: int, program) -> list:
    return spawn(program, world, timeout=120).values


# ---- products ------------------------------------------------------------------------------------
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("inner", [True, False], ids=["stays cut", "joined between"])
def test_column_then_row_is_dense(world, inner, bias):
    def layers():
        mg.manual_seed(1)
        return nn.Linear(3, 7, bias).double(), nn.Linear(7, 4, bias).double()

    def run(a, b, x):
        y = b(a(x).tanh())
        (y * normal(*y.shape, seed=2)).sum().backward()
        return y

    def program(comm):
        ca, rb = layers()
        ca = ColumnParallelLinear(ca, comm, gather_output=not inner)
        rb = RowParallelLinear(rb, comm, input_is_parallel=inner)
        a, b = layers()
        x, wx = (normal(2, 5, 3).requires_grad_() for _ in range(2))
        close(run(ca, rb, x), run(a, b, wx))
        close(x.grad, wx.grad)
        same(ca, a), same(rb, b)
    on_ranks(world, program)


@pytest.mark.parametrize("world", (1, 2, 3))
def test_a_product_with_a_vector_of_the_hessian(world):
    def run(a, b):
        x, v = normal(4, 3, seed=5).requires_grad_(), normal(4, 3, seed=6)
        (g,) = mg.autograd.grad((b(a(x).tanh()) ** 3).sum(), [x], create_graph=True)
        (g * v).sum().backward()
        return x.grad

    def program(comm):
        mg.manual_seed(1)
        a, b = nn.Linear(3, 7).double(), nn.Linear(7, 4).double()
        ca, rb = ColumnParallelLinear(a, comm), RowParallelLinear(b, comm)
        close(run(ca, rb), run(a, b))
        close(ca.shards["weight"].gathered(ca.weight.grad), a.weight.grad)
    on_ranks(world, program)


# ---- vocabulary ----------------------------------------------------------------------------------
@pytest.mark.parametrize("options", [{}, {"padding_idx": 5}, {"max_norm": 1.0}, {"scale_grad_by_freq": True},
                                     {"sparse": True}], ids=str)
@pytest.mark.parametrize("world", WORLDS)
def test_vocabulary_of_an_embedding(world, options):
    def table():
        mg.manual_seed(3)
        return nn.Embedding(7, 3, **options).double()

    def run(embedding):
        tokens = mg.tensor([[0, 6, 5, 5], [2, 2, 5, 1]])
        y = embedding(tokens)
        (y * normal(2, 4, 3, seed=4)).sum().backward()
        return y

    def program(comm):
        whole, cut = table(), VocabParallelEmbedding(table(), comm)
        close(run(cut), run(whole))
        same(cut, whole)
        close(gather_state(cut)["weight"], whole.weight)     # max_norm wrote to it
    on_ranks(world, program)


@pytest.mark.parametrize("world", (1, 2, 3, 5, 8))
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("ignore_index", [-100, 3, 40])
def test_cross_entropy_over_a_cut_vocabulary(world, smoothing, ignore_index):
    logits = 30 * normal(2, 6, 7, seed=7) + 1000             # whose powers of e are beyond all numbers
    how = {"label_smoothing": smoothing, "ignore_index": ignore_index}
    target = mg.tensor([[0, 3, 6, 1, 2, ignore_index], [3, 5, 5, ignore_index, 4, 0]])

    def program(comm, reduction, sizes):
        shard, whole = Shard.even(comm, 2, 7), logits.clone().requires_grad_()
        want = F.cross_entropy(whole.reshape(-1, 7), target.reshape(-1), reduction=reduction, **how)
        want = want.reshape(2, 6) if reduction == "none" else want
        x = shard.of(logits).requires_grad_()
        loss = vocab_parallel_cross_entropy(x, target, comm, reduction=reduction, sizes=sizes and shard.sizes, **how)
        close(loss, want)
        up = normal(*want.shape, seed=8)
        ((loss * up).sum() + (want * up).sum()).backward()
        np.testing.assert_allclose(shard.gathered(x.grad).numpy(), whole.grad.numpy(), rtol=1e-12, atol=1e-15)
    for reduction, sizes in (("mean", True), ("sum", None), ("none", True)):
        on_ranks(world, lambda comm: program(comm, reduction, sizes))                        # noqa: B023


def test_cross_entropy_talks_in_numbers_a_token():
    """A maximum, a sum of powers and the right logit: 3 numbers of each of 12 tokens, around a ring of 4."""
    def program(comm):
        x = mg.zeros(12, 5)
        vocab_parallel_cross_entropy(x, mg.zeros(12, dtype=mg.int64), comm, sizes=[5] * 4)
    assert spawn(program, 4).nbytes.sum() == 3 * 12 * 4 * 2 * (4 - 1)


# ---- heads ---------------------------------------------------------------------------------------
ATTENTION = [{}, {"bias": False}, {"kdim": 5, "vdim": 3}, {"add_bias_kv": True}, {"add_zero_attn": True},
             {"batch_first": True}]


@pytest.mark.parametrize("world", (1, 2, 3))
@pytest.mark.parametrize("how", ATTENTION, ids=str)
@pytest.mark.parametrize("given", ["plain", "weights", "masks", "mask for each head", "causal", "one input"])
def test_multihead_attention_by_heads(world, how, given):
    if given == "one input" and "kdim" in how:
        pytest.skip("keys of another size")
    n, length, seen, heads = 2, 4, 4 if given == "one input" else 5, 3
    first = bool(how.get("batch_first"))
    draw = lambda size, rows, seed: normal(*((n, rows) if first else (rows, n)), size, seed=seed)
    wide = mg.tensor(np.triu(np.ones((length, seen), bool), 1))
    call = {"plain": {"need_weights": False}, "weights": {"average_attn_weights": False},
            "masks": {"attn_mask": wide, "key_padding_mask": mg.arange(seen) >= mg.tensor([[seen], [seen - 1]])},
            "mask for each head": {"attn_mask": normal(n * heads, length, seen, seed=3)},
            "causal": {"attn_mask": wide, "is_causal": True, "need_weights": False}, "one input": {}}[given]

    def run(attention):
        q = draw(6, length, 1).requires_grad_()
        k = draw(how.get("kdim", 6), seen, 2).requires_grad_()
        v = draw(how.get("vdim", 6), seen, 4).requires_grad_()
        y, weights = attention(*((q, q, q) if given == "one input" else (q, k, v)), **call)
        loss = (y * normal(*y.shape, seed=5)).sum()
        if weights is not None:
            loss = loss + (weights * normal(*weights.shape, seed=6)).sum()
        loss.backward()
        return [y, weights, q.grad, k.grad, v.grad]

    def made():
        mg.manual_seed(2)
        return nn.MultiheadAttention(6, heads, **how).double()

    def program(comm):
        whole, cut = made(), ParallelMultiheadAttention(made(), comm)
        for got, want in zip(run(cut), run(whole)):
            assert (got is None) == (want is None)
            if want is not None:
                close(got, want)
        got, want = grads_of(cut), grads_of(whole)
        for name in want:
            np.testing.assert_allclose(got[name].numpy(), want[name].numpy(), rtol=0, atol=1e-13)   # some are 0
    on_ranks(world, program)


# ---- whole models --------------------------------------------------------------------------------
GPTS = [{}, {"tied": False, "bias": False}, {"dropout": 0.4}]
LLAMAS = [{"num_attention_heads": 4, "attention_bias": True, "mlp_bias": True},
          {"num_attention_heads": 8, "num_key_value_heads": 4, "tie_word_embeddings": True}]


def language_model(how) -> nn.LanguageModel:
    if "num_attention_heads" not in how:
        return gpt(how)
    sizes = {"vocab_size": 11, "hidden_size": 16, "intermediate_size": 22, "max_position_embeddings": 8}
    return moved(nn.Llama, {"num_hidden_layers": 2, **sizes, **how})


def gpt(how) -> nn.CharGPT:
    sizes = {"vocab_size": 11, "block_size": 8, "n_layer": 2, "n_head": 4, "n_embd": 16}
    return moved(nn.CharGPT, {**sizes, **how})


def moved(kind, sizes):
    """Biases are 0 at first, norms 1, and would hide much: all parameters elsewhere."""
    mg.manual_seed(5)
    model = kind(**sizes).double()
    with mg.no_grad():
        for k, p in enumerate(model.parameters()):
            p.copy_(p + 0.3 * normal(*p.shape, seed=k))
    mg.manual_seed(6)
    return model


@pytest.mark.parametrize("how", GPTS + LLAMAS, ids=str)
@pytest.mark.parametrize("world, sequence, length", [(1, False, 8), (2, False, 8), (2, True, 8), (3, True, 8),
                                                     (3, False, 5), (4, True, 3)])
def test_a_language_model_cut_among_ranks_is_one(world, how, sequence, length):
    """Loss, all gradients, and the state after two steps; with dropout too."""
    rng = np.random.default_rng(9)
    tokens, targets = (mg.tensor(rng.integers(0, 11, (2, length))) for _ in range(2))

    def steps(model, loss_of):
        optimizer = mg.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        losses = []
        for _ in range(2):
            optimizer.zero_grad()
            loss = loss_of(model(tokens))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def program(comm):
        whole = language_model(how)
        want = steps(whole, lambda y: F.cross_entropy(y.reshape(-1, 11), targets.reshape(-1)))
        cut = parallelize(language_model(how), comm, sequence=sequence)
        got = steps(cut, lambda y: vocab_parallel_cross_entropy(y, targets, comm))
        close(np.array(got), np.array(want))
        got, want = grads_of(cut), grads_of(whole)
        assert got.keys() == want.keys()
        largest = max(np.abs(g.numpy()).max() for g in want.values())
        tol = 1e-13 * largest                                # through two blocks and two steps
        for name in want:
            np.testing.assert_allclose(got[name].numpy(), want[name].numpy(), rtol=0, atol=tol, err_msg=name)
        state, want = gather_state(cut), whole.state_dict()
        assert state.keys() == want.keys()
        for name in want:
            np.testing.assert_allclose(state[name].numpy(), want[name].numpy(), rtol=0, atol=1e-13, err_msg=name)
    on_ranks(world, program)


@pytest.mark.parametrize("layer", ["encoder", "decoder"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_layers_of_a_transformer(layer, dropout):
    def made():
        mg.manual_seed(2)
        kind = nn.TransformerEncoderLayer if layer == "encoder" else nn.TransformerDecoderLayer
        return nn.Sequential(kind(6, 3, 7, dropout, batch_first=True, norm_first=True)).double()[0]

    def run(model):
        mg.manual_seed(3)
        x, memory = normal(2, 4, 6, seed=1).requires_grad_(), normal(2, 5, 6, seed=2).requires_grad_()
        y = model(x) if layer == "encoder" else model(x, memory)
        (y * normal(2, 4, 6, seed=3)).sum().backward()
        return y, x.grad, memory.grad

    def program(comm):
        whole, cut = made(), parallelize(made(), comm)
        for got, want in zip(run(cut), run(whole)):
            assert (got is None) == (want is None)
            if want is not None:
                np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), rtol=0, atol=1e-13)
        got, want = grads_of(cut), grads_of(whole)
        assert got.keys() == want.keys()
        for name in want:
            np.testing.assert_allclose(got[name].numpy(), want[name].numpy(), rtol=0, atol=1e-13, err_msg=name)
    on_ranks(2, program)


@pytest.mark.parametrize("world", (2, 4))
@pytest.mark.parametrize("how", [{}, LLAMAS[1]], ids=str)
def test_generation_reads_a_cache(world, how):
    def program(comm):
        whole, cut = language_model(how).eval(), parallelize(language_model(how), comm, gather_output=True).eval()
        start = mg.tensor([[1, 2, 3]])
        assert cut.generate(start, 4, top_k=1).tolist() == whole.generate(start, 4, top_k=1).tolist()
    on_ranks(world, program)


# ---- bytes ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["gpt", "llama"])
@pytest.mark.parametrize("sequence", [False, True], ids=["", "sequence"])
@pytest.mark.parametrize("world", (2, 4))
def test_bytes_of_a_layer_are_four_all_reduces(world, sequence, kind):
    """Two all-reduces of the activations (B, T, C) forward and two backward (Shoeybi et al. 2019, figure 4), each
    2 (n - 1) times their bytes over all ranks.  With `sequence` as many, and the small gradients of replicated
    parameters: of two norms, and in a CharGPT two biases, which are 6 C numbers; 2 C in a Llama."""
    b, t, c = 2, 8, 16

    def nbytes(layers: int) -> float:
        def program(comm):
            how = {"n_layer": layers} if kind == "gpt" else {"num_attention_heads": 4, "num_hidden_layers": layers}
            model = parallelize(language_model(how), comm, sequence=sequence)
            model(mg.zeros(b, t, dtype=mg.int64)).sum().backward()
        return spawn(program, world, timeout=60).nbytes.sum()
    small = (6 if kind == "gpt" else 2) * c * sequence
    assert nbytes(3) - nbytes(1) == 2 * (4 * b * t * c + small) * 8 * 2 * (world - 1)


def test_a_part_of_the_sequence_takes_less_memory():
    """The inputs of two norms a layer, (B, T, C), are kept in parts; half of what that saves is seen at the peak."""
    pytest.importorskip("numba")
    b, t, c, layers, world = 4, 64, 32, 4, 4

    def peak(sequence: bool) -> int:
        def program(comm):
            model = parallelize(gpt({"n_layer": layers, "n_embd": c, "block_size": t}), comm, sequence=sequence)
            model(mg.zeros(b, t, dtype=mg.int64)).sum().backward()
        return max(spawn(program, world, memory=True, timeout=60).peak_bytes)
    saved = 2 * layers * b * t * c * 8 * (1 - 1 / world)     # the inputs of the norms, which all would have kept whole
    assert peak(False) - peak(True) > 0.5 * saved


# ---- states --------------------------------------------------------------------------------------
def test_states_go_from_one_world_to_another():
    want = gpt({}).state_dict()

    def gathered(comm, state):
        model = parallelize(nn.CharGPT(gpt({}).config).double(), comm)
        load_full_state(model, state)
        return gather_state(model)
    state = want
    for world in (2, 3, 4, 1):
        state = spawn(gathered, world, state, timeout=60).values[0]
        assert state.keys() == want.keys() and all((state[k] == want[k]).all().item() for k in want)


@pytest.mark.parametrize("size, blocks, width", [(12, 3, 2), (7, 1, 1), (2, 1, 1), (24, 3, 4)])
def test_a_shard_cuts_and_joins(size, blocks, width):
    def program(comm):
        for dim in (0, 1):
            full = normal(*(size, 3) if dim == 0 else (3, size))
            shard = Shard.even(comm, dim, size, blocks, width)
            piece = shard.of(full)
            assert piece.shape[dim] == shard.sizes[comm.rank]
            close(shard.gathered(piece), full)
            piece.fill_(0)
            assert (full != 0).all().item(), "memory of its own"
        assert sorted(np.concatenate(shard.places)) == list(range(size))
        assert all(len(set(rows // width)) * width == len(rows) for rows in shard.places), "never within a unit"
    on_ranks(3, program)


# ---- what is refused -----------------------------------------------------------------------------
@pytest.mark.parametrize("call, words", [
    (lambda c: parallelize(gpt({"n_head": 1}), c), "1 heads cannot be shared by 2 ranks"),
    (lambda c: parallelize(nn.Linear(2, 2), c), "nothing in the Linear is a block of"),
    (lambda c: parallelize(parallelize(gpt({}), c), c), "cut already"),
    (lambda c: parallelize(nn.TransformerEncoderLayer(4, 2, 8), c, sequence=True), "knows CharGPT and Llama"),
    (lambda c: load_full_state(ColumnParallelLinear(nn.Linear(2, 4), c), nn.Linear(2, 5).state_dict()),
     r"weight: the shape \(5, 2\) does not have the 4 rows"),
    (lambda c: ColumnParallelLinear(nn.Linear(2, 6), c, gather_output=True, shard=Shard.even(c, 0, 6, 3)),
     "is not cut in order"),
    (lambda c: VocabParallelEmbedding(nn.Embedding(4, 2), c)(mg.tensor([4])), "VocabParallelEmbedding"),
    (lambda c: vocab_parallel_cross_entropy(mg.zeros(3, 2), mg.tensor([0, 4, 1]), c), "vocab_parallel_cross_entropy"),
    (lambda c: vocab_parallel_cross_entropy(mg.zeros(3, 2), mg.tensor([0, 1]), c), r"logits \(3, 2\) and targets"),
])
def test_refused(call, words):
    def program(comm):
        with pytest.raises((ValueError, IndexError), match=words):
            call(comm)
    on_ranks(2, program)


def test_other_weights_on_another_rank_are_named():
    def program(comm):
        mg.manual_seed(comm.rank)
        with pytest.raises(ValueError, match="rank 1, 2 has other weights than rank 0"):
            parallelize(nn.TransformerEncoderLayer(6, 3, 8), comm)
    on_ranks(3, program)
