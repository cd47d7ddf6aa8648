"""Laws of the memory tracker: its bytes are those of all live arrays, its categories add up, its peak is the most."""
import gc
from functools import partial

import pytest

pytest.importorskip("numba")

import minigrad as mg  # noqa: E402
from benchmarks import memory_account, workloads  # noqa: E402
from benchmarks.peers import minigrad_eager  # noqa: E402
from minigrad import nn  # noqa: E402
from minigrad.memory.account import CATEGORIES  # noqa: E402
from tests.minigrad.tracked import check, grown, mlp, nbytes  # noqa: E402

F = nn.functional


@pytest.fixture(autouse=True)
def _collected():
    """What earlier tests left in cycles would die at any time."""
    gc.collect()


# ---- the account is true ---------------------------------------------------------------------------------------------
@pytest.fixture
def tiny_workloads(monkeypatch):
    for name, sizes in {
        "GPT": {"layers": 2, "width": 16, "heads": 2, "tokens": 8, "batch": 2, "vocabulary": 11},
        "LSTM": {"inputs": 3, "batch": 4, "classes": 3, "longest": 12},
        "TREE": {"inputs": 4, "hidden": 4, "classes": 3, "most_nodes": 28, "most_children": 3},
    }.items():
        for key, size in sizes.items():
            monkeypatch.setitem(getattr(workloads, name), key, size)
    monkeypatch.setattr(workloads, "H_ROUNDS", 20)
    for name, make in {"a": partial(workloads.mlp, batch=3), "b": partial(workloads.mlp, batch=6),
                       "c": partial(workloads.lenet, batch=2), "d": partial(workloads.resnet, batch=2)}.items():
        monkeypatch.setitem(workloads._MAKERS, name, make)


@pytest.mark.parametrize("workload", "abcdefgh")
def test_tracked_bytes_are_those_of_all_live_arrays_after_each_step(workload, tiny_workloads):
    step = minigrad_eager.make(workload, 0)
    with mg.memory.track() as t:
        for _ in range(2):
            step()
            assert t.live == memory_account.counted_bytes()
        check(t)
        assert len(t.steps) == (0 if workload == "h" else 2) and t.lost == 0
    assert t.by_category()["gradient"] > 0 and t.at_peak().phase in ("forward", "backward", "update")


def test_they_are_during_a_step_too():
    mg.manual_seed(0)
    model, x = mlp(), mg.randn(5, 4)
    optimizer = mg.optim.Adam(model.parameters())
    with mg.memory.track() as t:
        for looks in ("before", "after forward", "after backward", "after the update"):
            if looks == "after forward":
                loss = model(x).square().mean()
            elif looks == "after backward":
                loss.backward()
            elif looks == "after the update":
                optimizer.step()
            assert t.live == memory_account.counted_bytes(), looks
            check(t)


# ---- closed forms ----------------------------------------------------------------------------------------------------
def test_gradients_are_as_large_as_parameters_and_adams_state_twice():
    mg.manual_seed(0)
    model, x = mlp(), mg.randn(5, 4)
    optimizer = mg.optim.Adam(model.parameters())
    with mg.memory.track(model, optimizer) as t:
        start = t.by_category()
        for _ in range(2):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        found = grown(t, start)
    n = nbytes(model)
    assert (found["parameter"], found["gradient"], found["optimizer state"]) == (0, n, 2 * n)
    assert found["activation"] == 0 and start["parameter"] >= n


@pytest.mark.parametrize("batch", [1, 7])
def test_the_activations_of_a_net(batch):
    """What backward needs: the input of each layer; of relu its output, which is one of them."""
    mg.manual_seed(0)
    model, x = mlp(), mg.randn(batch, 4)
    with mg.memory.track() as t:
        start = t.by_category()
        y = model(x)
        assert grown(t, start)["activation"] == 4 * batch * (8 + 3)
        y.backward(mg.randn(batch, 3))
        del y
        after = grown(t, start)
    assert after["activation"] == 0 and after["gradient"] == nbytes(model)


def test_without_gradients_what_is_computed_from_parameters_is_an_activation_and_dies():
    model, x = mlp(), mg.ones(5, 4)
    with mg.no_grad(), mg.memory.track() as t:
        start = t.by_category()
        x2 = x * 3
        found = grown(t, start)
        assert found["activation"] == 0 and found["input"] >= x2.array.nbytes       # of data alone
        y = model(x2)
        assert grown(t, start)["activation"] == y.array.nbytes
    assert t.at_peak().by_category["activation"] > y.array.nbytes


def test_a_batch_is_input_also_when_the_graph_saves_it():
    data = mg.utils.data.TensorDataset(mg.ones(32, 4), mg.ones(32, 3))
    model = mlp()
    with mg.memory.track() as t:
        before = t.by_category()["input"]
        x, y = next(iter(mg.utils.data.DataLoader(data, batch_size=8)))
        loss = F.mse_loss(model(x * 1.0), y)
        grown = t.by_category()["input"] - before
        assert abs(grown - x.array.nbytes * 2 - y.array.nbytes) <= 200      # the process has arrays of its own
    assert loss.requires_grad


def test_what_a_checkpoint_computes_again_is_alive_in_backward_alone():
    mg.manual_seed(0)
    blocks = [mlp(64) for _ in range(2)]
    x = mg.randn(200, 4)

    def run(checkpointed):
        for b in blocks:
            b.zero_grad()
        with mg.memory.track() as t:
            start = t.by_category()
            y = sum((mg.utils.checkpoint.checkpoint(b, x, use_reentrant=False) if checkpointed else b(x)).sum()
                    for b in blocks)
            held = grown(t, start)["activation"]
            y.backward()
            check(t)
        return held, t.peak, t.at_peak().phase

    (held, peak, _), (held2, peak2, phase2) = run(False), run(True)
    assert held2 < 200 < 2 * 200 * 64 * 4 <= held and peak2 < peak - 40_000 and phase2 == "backward"


# ---- who, where, when ------------------------------------------------------------------------------------------------
def test_the_peak_knows_lines_modules_and_phase():
    model = mlp(64)
    with mg.memory.track(model) as t:
        y = model(mg.ones(100, 4))                               # the line
        y.sum().backward()
    peak = t.at_peak()
    assert peak.phase == "backward"
    assert sum(n for line, n in peak.by_line.items() if "test_memory_tracker.py" in line and "the_peak_knows" in line)
    assert peak.by_module["Sequential.1"] >= 100 * 64 * 4
    text = str(t)
    assert "at most" in text and "Sequential.1" in text and all(c in text for c in CATEGORIES)


def test_the_largest_buffers_have_names_and_lines():
    mg.manual_seed(0)
    model = mlp(64)
    optimizer = mg.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    with mg.memory.track(model, optimizer) as t:
        images = mg.randn(1000, 4)
        h = model[0](images)                                      # line A
        y = h.exp()                                               # line B: saves its result
        y.sum().backward(retain_graph=True)
        optimizer.step()
        found = {h.held_by: h for h in t.holders(40)}
    assert found["variable `images` of test_the_largest_buffers_have_names_and_lines"].category == "input"
    a = next(h for h in found.values() if h.category == "activation" and h.op == "Linear")
    b = next(h for h in found.values() if h.op == "Exp")
    assert a.nbytes == b.nbytes == 256_000 and b.category == "activation"
    lines = [int(h.made_at.split(":")[1].split(",")[0]) for h in (a, b)]
    assert lines[1] == lines[0] + 1 and "test_the_largest_buffers" in b.made_at
    for name, category in {"parameter 0.weight": "parameter", "gradient of 0.weight": "gradient",
                           "momentum_buffer of 0.weight": "optimizer state"}.items():
        assert found[name].category == category and found[name].nbytes == 64 * 4 * 4
    assert found["parameter 0.weight"].made_at == "before the block"
    assert t.holders(1)[0].nbytes == max(h.nbytes for h in found.values()) and y.shape


def test_phases_and_steps_are_marked():
    model, data = mlp(), mg.utils.data.TensorDataset(mg.ones(4, 4))
    optimizer = mg.optim.Adam(model.parameters())
    with mg.memory.track() as t:
        for (x,) in mg.utils.data.DataLoader(data, batch_size=2):
            model(x).sum().backward()
            optimizer.step()
    begun = [phase for _, phase, begins in t.marks if begins]
    assert begun == ["load", "backward", "update"] * 2 + ["load"] and len(t.marks) == 2 * len(begun)
    assert t.steps == [event for event, phase, begins in t.marks if phase == "update" and not begins]
    assert [event for event, _, _ in t.marks] == sorted(event for event, _, _ in t.marks)


def test_parameters_made_within_the_block():
    with mg.memory.track() as t:
        start = t.by_category()
        model = mlp()
        model(mg.ones(2, 4)).sum().backward()
        assert grown(t, start)["parameter"] == grown(t, start)["gradient"] == nbytes(model)


def test_second_derivatives_and_hooks():
    x = mg.ones(100, requires_grad=True)
    with mg.memory.track() as t:
        start = t.by_category()
        y = (x ** 3).sum()
        (g,) = mg.autograd.grad(y, x, create_graph=True)
        x.register_hook(lambda g: g * 2)
        (g * g).sum().backward()
        check(t)
        assert t.live == memory_account.counted_bytes()
    assert x.grad.shape == (100,) and grown(t, start)["gradient"] == 400


def test_no_module_is_asked_what_it_refers_to(monkeypatch):
    """CPython 3.12: after `asyncio` has run, as in a notebook's kernel, `gc.get_referents(_asyncio)` hangs the second
    time."""
    asked, plain = [], gc.get_referents

    def get_referents(*objects):
        asked.extend(type(x) for x in objects)
        return plain(*(x for x in objects if type(x) is not type(gc)))

    monkeypatch.setattr(gc, "get_referents", get_referents)
    with mg.memory.track() as t:
        mg.ones(10, requires_grad=True).sum().backward()
    assert asked and type(gc) not in asked and t.live
