"""Checkpointing by plan: gradients bit for bit, the peak as predicted, the least budget, and the best of all plans."""
from math import isqrt

import numpy as np
import pytest

import minigrad as mg
from minigrad import nn
from minigrad.errors import BudgetError
from minigrad.nn import functional as F

pytest.importorskip("numba")
from minigrad.memory import checkpointed, measure_plan, plan_checkpoints  # noqa: E402
from minigrad.memory.chains import NUMBERS, Chain, Step  # noqa: E402
from minigrad.memory.meter import LayerCost, activations, step_alone  # noqa: E402


class Shift(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(mg.randn(n))

    def forward(self, x):
        return x * self.weight


def mlp():
    return [nn.Sequential(nn.Linear(48, 48), nn.Tanh(), nn.Dropout(0.2)) for _ in range(9)], mg.randn(64, 48)


def cnn():
    stages = [nn.Sequential(nn.Conv2d(c, d, 3, padding=1), nn.BatchNorm2d(d), nn.ReLU())
              for c, d in ((1, 8), (8, 8), (8, 8), (8, 12))]
    return [*stages, nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.3), nn.Linear(12 * 16, 10)], mg.randn(16, 1, 8, 8)


def gpt():
    block = nn.TransformerBlock if hasattr(nn, "TransformerBlock") else __import__(
        "minigrad.nn.gpt", fromlist=["TransformerBlock"]).TransformerBlock
    return ([nn.Embedding(20, 32), *(block(32, 4, 0.1) for _ in range(4)), nn.LayerNorm(32), nn.Linear(32, 20)],
            mg.randint(0, 20, (4, 24)))


def uneven():
    wide = nn.Linear(32, 256)
    return ([lambda x: x.tanh(), wide, lambda x: F.gelu(x), Shift(256), lambda x: x.reshape(64, 16, 16),
             lambda x: x.mT, lambda x: x.softmax(-1), nn.Flatten(), nn.Linear(256, 32), Shift(32), nn.Sigmoid()],
            mg.randn(64, 32).requires_grad_())


def tied():
    layer = nn.Sequential(nn.Linear(64, 64), nn.Tanh())
    return [layer] * 6, mg.randn(32, 64)


NETS = [mlp, cnn, gpt, uneven, tied]


def gradients(layers, x, run):
    mg.manual_seed(5)
    params = list({id(p): p for layer in layers if isinstance(layer, nn.Module) for p in layer.parameters()}.values())
    leaves = params + [x] * x.requires_grad
    for p in leaves:
        p.grad = None
    y = run(layers, x)
    (y * mg.randn(*y.shape).to(y.device)).sum().backward()
    return [t.detach().cpu().numpy().copy() for t in (y, *(p.grad for p in leaves))], mg.get_rng_state().tolist()


def plainly(layers, x):
    for layer in layers:
        x = layer(x)
    return x


def moved(layers, x, device):
    for layer in layers:
        if isinstance(layer, nn.Module):
            layer.to(device)
    return layers, x.detach().to(device).requires_grad_() if x.requires_grad else x.to(device)


@pytest.mark.parametrize("device", ["cpu", "sim:0"])
@pytest.mark.parametrize("net", NETS)
def test_every_policy_gives_the_same_gradients_bit_for_bit(net, device):
    mg.manual_seed(0)
    layers, x = moved(*net(), device)
    want, state = gradients(layers, x, plainly)
    least = plan_checkpoints(layers, x, budget=1 << 30).least
    for how in ({"segments": "sqrt"}, {"segments": 1}, {"segments": 3}, {"segments": len(layers)}, {"budget": least}):
        found, after = gradients(layers, x, lambda layers, x, how=how: checkpointed(layers, x, **how))
        for a, b in zip(want, found, strict=True):
            np.testing.assert_array_equal(a, b)
        assert after == state


@pytest.mark.parametrize("net", NETS)
def test_a_budget_is_obeyed_or_refused_with_the_least_that_would_do(net):
    mg.manual_seed(0)
    layers, x = net()
    whole = plan_checkpoints(layers, x, budget=1 << 30)
    assert whole.kept == list(range(len(layers))) and whole.peak == whole.plain and whole.again_flops == 0
    for share in (1.0, 0.75, 0.5, 0.25, 0.0):
        budget = whole.least + int(share * (whole.plain - whole.least))
        plan = plan_checkpoints(layers, x, budget=budget)
        measured = measure_plan(plan, layers, x, rounds=1)
        assert measured.peak <= plan.peak <= budget, (share, measured.peak, plan.peak, budget)
        assert plan.peak <= 1.35 * measured.peak             # no safety in needless room
    with pytest.raises(BudgetError, match=f"{len(layers)} layers .* the least that would do is") as refused:
        checkpointed(layers, x, budget=whole.least - 1)
    assert refused.value.least == whole.least


def test_measuring_leaves_everything_as_it_was():
    mg.manual_seed(0)
    layers, x = cnn()
    step_alone(lambda: plainly(layers, x))
    x = x.requires_grad_()
    for p in layers[0].parameters():
        p.grad = mg.ones_like(p)
    x.register_hook(lambda g: 1 / 0)
    before = [b.detach().numpy().copy() for layer in layers for b in layer.buffers()], mg.get_rng_state().tolist()
    plan_checkpoints(layers, x, segments="sqrt")
    after = [b.detach().numpy().copy() for layer in layers for b in layer.buffers()], mg.get_rng_state().tolist()
    for a, b in zip(before[0], after[0], strict=True):
        np.testing.assert_array_equal(a, b)
    assert before[1] == after[1] and x.grad is None
    assert all(np.array_equal(p.grad.numpy(), np.ones(p.shape)) for p in layers[0].parameters())


class Layer(nn.Module):
    """One activation: (x @ w).tanh() keeps its input for the product and its result for tanh, the next one's input."""

    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(mg.randn(n, n) / n ** 0.5)

    def forward(self, x):
        return (x @ self.weight).tanh()


@pytest.mark.parametrize("n", [16, 63, 64])
def test_root_n_segments_hold_two_root_n_activations_and_four(n):
    """The four: the result of all; a gradient that comes in, the one that goes out, and one in between."""
    mg.manual_seed(0)
    layers, x = [Layer(32) for _ in range(n)], mg.randn(256, 32)
    size = 256 * 32 * 4
    with activations(x) as meter:
        step_alone(lambda: checkpointed(layers, x))
    root = isqrt(n - 1) + 1
    assert meter.peak / size <= 2 * root + 4 + 0.01
    with activations(x) as meter:
        step_alone(lambda: plainly(layers, x))
    assert meter.peak / size >= n


def test_segments_are_those_that_were_asked_for():
    from minigrad.memory.lifetimes import in_segments
    again = lambda n, k: [(s.start, s.stop) for s in in_segments(n, k) if s.again]  # noqa: E731
    assert again(64, "sqrt") == [(k, k + 8) for k in range(0, 56, 8)] and again(10, 3) == [(0, 4), (4, 7)]
    assert again(5, 1) == [] and again(5, 5) == [(k, k + 1) for k in range(4)] and in_segments(0, "sqrt") == ()
    for wrong in (0, 6, "log", 2.0):
        with pytest.raises(ValueError, match="segments"):
            in_segments(5, wrong)
    plan = plan_checkpoints([nn.Tanh()], mg.randn(3), segments="sqrt")
    with pytest.raises(ValueError, match="a plan for 1 layers, and 2 are given"):
        plan([nn.Tanh(), nn.Tanh()], mg.randn(3))
    with pytest.raises(TypeError, match="layer 1, <lambda>, returned a tuple"):
        plan_checkpoints([nn.Tanh(), lambda x: (x, x)], mg.randn(3), segments=1)
    with pytest.raises(ValueError, match="either"):
        plan_checkpoints([nn.Tanh()], mg.randn(3))


def every_row(n):
    """All rows of steps of n layers."""
    if n == 0:
        yield ()
    for length in range(1, n + 1):
        for rest in every_row(n - length):
            shift = [Step(s.start + length, s.stop + length, s.again) for s in rest]
            yield (Step(0, length, True), *shift)
            if length == 1:
                yield (Step(0, 1, False), *shift)


@pytest.mark.parametrize("seed", range(12))
def test_the_search_finds_the_best_of_all_plans(seed):
    draw = np.random.default_rng(seed)
    number = lambda: int(draw.integers(0, 1000))  # noqa: E731
    coin = lambda: bool(draw.integers(0, 2))  # noqa: E731
    chain = Chain([LayerCost(f"{k}", number(), number(), coin(), coin(), draw.random() < 0.2, number(), number(),
                             number(), number()) for k in range(6)])
    rows = list(every_row(6))
    peaks = [chain.peak(row) for row in rows]
    assert chain.peak(chain.least()) == min(peaks)
    for budget in (min(peaks) - 1, min(peaks), int(np.median(peaks)), max(peaks)):
        found = chain.within(budget)
        costs = [chain.flops(row, False) for row, peak in zip(rows, peaks) if peak <= budget]
        if not costs:
            assert found is None
        else:
            assert chain.peak(found) <= budget and chain.flops(found, False) == min(costs)


@pytest.mark.parametrize("n", [4, 16, 36])
def test_a_uniform_chain_has_the_peak_of_the_closed_form(n):
    """Layers that keep their result alone, of size 1, with a gradient of size 1 in and one out."""
    size = 1000
    chain = Chain([LayerCost("", size, 0, True, False, False, size, 2 * size, size, 1) for _ in range(n)])
    from minigrad.memory.lifetimes import in_segments
    plain = chain.peak(tuple(Step(k, k + 1, False) for k in range(n)))
    # n - 1 values between layers; the result of all; a gradient in and one out
    assert plain == (n - 1 + 1 + 2) * size + NUMBERS
    k = isqrt(n)
    steps = in_segments(n, k)
    states = 64 * (k - 1)
    # before the last segment k - 1 arguments; in it the k values between its layers but the first's, kept as argument
    assert size * (2 * k - 1) <= chain.peak(steps) - NUMBERS - states <= size * (2 * k + 3)


def test_a_plan_shows_itself():
    layers, x = mlp()
    plan = plan_checkpoints(layers, x, segments=3)
    text = str(plan)
    assert "9 layers: 3 keep what they save, 6 in 2 segments are computed again" in text
    assert f"predicted peak {plan.peak:,} bytes" in text and "+22% FLOPs" in text and "6 … 8  keep" in text
    shown = str(measure_plan(plan, layers, x, rounds=1))
    assert "measured peak" in shown and "times the time of a plain step" in shown


def test_policies_nest_and_are_differentiated_twice():
    mg.manual_seed(0)
    layers = [Layer(4) for _ in range(6)]
    x = mg.randn(3, 4).requires_grad_()

    def twice(run):
        y = run(layers, x)
        (g,) = mg.autograd.grad(y, x, mg.full_like(y, 2.0), create_graph=True)
        return [t.numpy() for t in mg.autograd.grad((g * g).sum(), [layer.weight for layer in layers])]

    nested = lambda ls, x: checkpointed([lambda h: checkpointed(ls[:3], h, segments=3), *ls[3:]], x, segments=2)  # noqa: E731
    for a, b in zip(twice(plainly), twice(nested), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_peak_seen_at_each_boundary_is_never_above_the_prediction():
    """Any row of steps, not the searched ones alone."""
    mg.manual_seed(1)
    layers = [Layer(16), nn.Tanh(), Shift(16), nn.Linear(16, 40), nn.ReLU(), nn.Linear(40, 16)]
    x = mg.randn(64, 16)
    from minigrad.memory.lifetimes import CheckpointPlan
    from minigrad.memory.meter import chain_costs
    chain = Chain(chain_costs(layers, x))
    rows = list(every_row(6))
    for row in [rows[k] for k in np.random.default_rng(0).choice(len(rows), 25, replace=False)]:
        plan = CheckpointPlan(row, chain.names)
        with activations(x) as meter:
            step_alone(lambda plan=plan: plan(layers, x))
        assert meter.peak <= chain.peak(row) <= 1.4 * meter.peak, (row, meter.peak, chain.peak(row))




# ---- release of inputs ---------------------------------------------------------------------------
def test_a_released_input_dies_with_what_operations_saved_of_it():
    import weakref
    batch = mg.randn(8, 4)
    layer = nn.Linear(4, 3)
    want = layer(batch).relu().sum()
    want.backward()
    grads = [p.grad.numpy().copy() for p in layer.parameters()]
    layer.zero_grad()
    ref = weakref.ref(batch.array)
    h = layer(batch)
    assert mg.memory.release(batch) == 8 * 4 * 4 and batch.shape == (8, 4)
    y = h.relu().sum()
    assert ref() is not None                                 # the product needs it for the weight
    y.backward()
    assert ref() is None and str(batch.device) == "meta"
    for p, g in zip(layer.parameters(), grads, strict=True):
        np.testing.assert_array_equal(p.grad.numpy(), g)
    with pytest.raises(RuntimeError, match="a meta tensor has no values"):
        batch.cpu()


def test_a_result_can_be_released_and_goes_on_having_a_history():
    x = mg.randn(5).requires_grad_()
    h = x * 3.0
    y = h.exp()                                              # saves its result, not h
    mg.memory.release(h)
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), (x.detach() * 3.0).exp().numpy() * np.float32(3))
    assert h.requires_grad and mg.memory.release(h) == 0


def test_what_is_shared_or_wanted_is_not_released():
    from minigrad.errors import GraphError
    x = mg.randn(5, 2)
    with pytest.raises(GraphError, match="shared with views"):
        mg.memory.release(x.t())
    with pytest.raises(GraphError, match="shared with views"):
        mg.memory.release(x)
    with pytest.raises(GraphError, match="a leaf"):
        mg.memory.release(mg.randn(2).requires_grad_())


def test_room_that_only_forward_needs_is_counted_again_beside_the_gradient():
    from minigrad.memory.lifetimes import CheckpointPlan
    from minigrad.memory.meter import chain_costs

    def roomy(x):
        with mg.no_grad():
            scale = mg.cat([x] * 12).abs().mean().item()
        return (x * scale).exp()

    layers, x = [nn.Tanh(), roomy, nn.Tanh()], mg.randn(64, 32).requires_grad_()
    chain = Chain(chain_costs(layers, x))
    steps = (Step(0, 2, True), Step(2, 3, False))
    with activations(x) as meter:
        step_alone(lambda: CheckpointPlan(steps, chain.names)(layers, x))
    assert meter.peak <= chain.peak(steps) <= 1.1 * meter.peak


def test_planning_leaves_the_input_as_it_was():
    x = mg.ones(4, 4)
    plan_checkpoints([lambda x: x.add_(1), nn.Linear(4, 4)], x, budget=1 << 20)
    assert (x.numpy() == 1).all()


def test_layers_that_work_in_place_are_planned_and_bit_equal():
    mg.manual_seed(0)
    layers = [nn.Linear(8, 64), nn.ReLU(inplace=True), nn.Linear(64, 64), nn.ReLU(inplace=True), nn.Linear(64, 4)]
    x, found = mg.randn(32, 8), []
    for how in ({"segments": 1}, {"budget": 10**7}):
        for p in nn.Sequential(*layers).parameters():
            p.grad = None
        mg.memory.checkpointed(layers, x, **how).square().mean().backward()
        found.append([p.grad.numpy() for p in nn.Sequential(*layers).parameters()])
    assert all(map(np.array_equal, *found))
