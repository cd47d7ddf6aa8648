"""The cost of a step: closed forms, the profiler's counts of the real run, and nothing left behind."""
from collections import Counter

import numpy as np
import pytest

import minigrad as mg
import simulator as sim
from simulator.cost import step_cost
from simulator.shapes import ring
from simulator.spawn import spawn
from simulator.topology import Link

CHIP = sim.DeviceSpec("chip", {"float32": 1e12, "float16": 4e12}, 1e9, 1e11, 0.5, 1e-6)

# ---- cost ----------------------------------------------------------------------------------------
def test_a_product_costs_2mnk_and_twice_that_backward():
    m, n, k = 7, 5, 3
    a, b = (mg.empty(shape, device="meta", requires_grad=True) for shape in ((m, k), (k, n)))
    cost = step_cost(lambda x, y: x @ y, a, b)
    assert cost.flops("forward") == 2 * m * n * k and cost.flops("backward") == 4 * m * n * k
    assert cost.nbytes("forward") == 4 * (m * k + k * n + m * n)
    assert cost.nbytes("backward") == 4 * (m * n + 2 * (m * k + k * n))
    half = step_cost(lambda x, y: x @ y, a, (k, n))
    assert half.flops() == 4 * m * n * k and step_cost(lambda x, y: x @ y, (m, k), (k, n)).flops() == 2 * m * n * k
    assert step_cost(lambda x, y: x @ y, a, b, backward=False).flops() == 2 * m * n * k
    assert a.grad is None and b.grad is None


def test_time_is_the_sum_over_ops():
    chip, n = CHIP, 64
    a, b = (mg.empty((n, n), device="meta", requires_grad=True) for _ in range(2))
    cost = step_cost(lambda x, y: (x @ y).T, a, b)
    assert cost.seconds(chip, "forward") == chip.compute_s(2 * n**3, 4 * 3 * n * n)      # a transpose is only a view
    assert cost.seconds(chip) == cost.seconds(chip, "forward") + chip.compute_s(4 * n**3, 4 * 5 * n * n)
    halves = step_cost(lambda x: x + x, mg.empty((n, n), device="meta", dtype=mg.float16))
    assert halves.seconds(chip) == chip.compute_s(n * n, 3 * 2 * n * n, "float16")
    with pytest.raises(ValueError, match="float64"):
        step_cost(lambda x: x + x, mg.empty(3, device="meta", dtype=mg.float64)).seconds(chip)
    assert step_cost(lambda x: x + x, mg.empty(3, device="meta", dtype=mg.int64)).seconds(chip) == chip.compute_s(0, 72)


def test_a_deep_net_costs_six_flops_a_weight_and_sample_less_its_first_input():
    width, batch, depth = 32, 16, 4
    model = mg.nn.Sequential(*(mg.nn.Linear(width, width, bias=False) for _ in range(depth))).to("meta")
    cost = step_cost(model, (batch, width))
    assert cost.flops() == (6 * depth - 2) * batch * width**2


def test_a_transformer_layer_costs_what_the_formula_says():
    """24 b s h² + 4 b s² h for the products (Narayanan et al. 2021); what is not a product is below a tenth here."""
    b, s, h = 2, 64, 128
    layer = mg.nn.TransformerEncoderLayer(h, 4, 4 * h, dropout=0.0).to("meta")
    cost = step_cost(lambda x: layer(x), mg.empty((s, b, h), device="meta", requires_grad=True))
    formula = 24 * b * s * h**2 + 4 * b * s**2 * h
    assert formula < cost.flops("forward") < 1.05 * formula and formula * 2 < cost.flops("backward") < 2.1 * formula


def test_a_language_model_costs_what_megatron_counts():
    """72 b L s h² (1 + s/6h + V/12hL) for forward and backward (Narayanan et al. 2021, eq. 3 without recomputation)."""
    h, layers, s, b, vocabulary = 2048, 3, 1024, 2, 32000
    net = [mg.nn.TransformerEncoderLayer(h, 16, 4 * h, dropout=0.0, batch_first=True, device="meta")
           for _ in range(layers)]
    table = mg.nn.Embedding(vocabulary, h, device="meta")
    net = mg.nn.Sequential(table, *net, mg.nn.Linear(h, vocabulary, bias=False, device="meta"))
    ids = mg.empty(b, s, dtype=mg.int64, device="meta")
    cost = step_cost(lambda x: step(net, x, x.reshape(-1)), ids)
    formula = 72 * b * layers * s * h**2 * (1 + s / (6 * h) + vocabulary / (12 * h * layers))
    assert formula < cost.flops() < 1.005 * formula
    embedded = next(row for row in cost.rows if row.name == "Embed")
    assert embedded.nbytes == 2 * 4 * b * s * h + 8 * b * s   # the rows read and written, not the table


def step(model, x, t):
    y = model(x)
    return mg.nn.functional.cross_entropy(y.reshape(-1, y.shape[-1]), t)


def test_costs_are_those_of_the_real_run():
    """mg.profile on the host, with the same shapes, counts the same FLOPs in each phase."""
    mg.manual_seed(0)
    model = mg.nn.Sequential(mg.nn.Conv2d(1, 4, 3), mg.nn.BatchNorm2d(4), mg.nn.ReLU(), mg.nn.Flatten(),
                             mg.nn.Linear(4 * 36, 8), mg.nn.LayerNorm(8), mg.nn.GELU(), mg.nn.Linear(8, 3))
    x, t = mg.randn(5, 1, 8, 8), mg.tensor([0, 1, 2, 0, 1])
    with mg.profile(allocations=False) as p:
        step(model, x, t).backward()
    real = Counter()
    for row in p.by_op():
        real[row.phase] += row.flops or 0
    cost = step_cost(lambda x, t: step(model.to("meta"), x, t), (5, 1, 8, 8), mg.Aval((5,), np.dtype("int64")))
    assert {phase: cost.flops(phase) for phase in ("forward", "backward")} == dict(real)


def test_counting_leaves_nothing_behind():
    mg.manual_seed(5)
    drop = mg.nn.Dropout(0.5)
    w = mg.empty((4, 4), device="meta", requires_grad=True)
    w.grad = before = mg.empty((4, 4), device="meta")
    state = mg.get_rng_state()
    step_cost(lambda x: drop(x @ w) + w, (4, 4))
    assert w.grad is before and np.array_equal(np.asarray(state), np.asarray(mg.get_rng_state()))
    with pytest.raises(ZeroDivisionError):
        step_cost(lambda x: [drop(x @ w).sum().backward(), 1 / 0], (4, 4))
    assert w.grad is before and np.array_equal(np.asarray(state), np.asarray(mg.get_rng_state()))


def test_what_has_no_cost_is_named_and_what_is_not_on_meta_refused():
    cost = step_cost(lambda x: x * 2, (3,))
    assert "the optimiser's update" in cost.not_counted and "not counted: the optimiser's" in str(cost)
    with pytest.raises(ValueError, match=r"input 0 \(2, 3\) is on cpu.*x.to\('meta'\)"):
        step_cost(lambda x: x, mg.zeros(2, 3))
    with pytest.raises(TypeError, match="input 1 is a float; give a shape"):
        step_cost(lambda x, y: x, (3,), 1.0)
    with pytest.raises(ValueError, match="phase 'update' is none of forward, backward"):
        cost.flops("update")


def test_the_table_of_a_step_adds_up():
    layer = mg.nn.Linear(256, 256).to("meta")
    text = step_cost(lambda x: layer(x).sum(), (64, 256)).text(sim.device("A100"))
    rows = [line.split() for line in text.splitlines()]
    assert rows[0] == ["phase", "op", "calls", "FLOP", "bytes", "time"] and rows[-2][0] == "on"
    assert [r[:3] for r in rows[1:3]] == [["forward", "Linear", "1"], ["forward", "Sum", "1"]]


@pytest.mark.parametrize("act", ["relu", "gelu"])
def test_the_same_step_on_a_rank_that_is_timed_takes_as_long(act):
    """Shapes alone, and a real run whose ops go on a clock: two ways to one number."""
    def model():
        middle = {"relu": mg.nn.ReLU, "gelu": mg.nn.GELU}[act]
        return mg.nn.Sequential(mg.nn.Conv2d(1, 4, 3, padding=1), middle(), mg.nn.MaxPool2d(2), mg.nn.Flatten(),
                                mg.nn.Linear(64, 32), mg.nn.LayerNorm(32), middle(), mg.nn.Linear(32, 3))

    def program(comm):
        own, x = model(), mg.zeros(5, 1, 8, 8)
        t, before = mg.tensor([0, 1, 2, 0, 1]), comm.time
        step(own, x, t).backward()
        return comm.time - before

    net = model().to("meta")
    told = step_cost(lambda x, t: step(net, x, t), (5, 1, 8, 8), mg.Aval((5,), np.dtype("int64")))
    ran = spawn(program, 1, cluster=sim.uniform(1, CHIP, ring(1, Link("wire", 1e9))), timed=True)
    assert ran.values[0] == pytest.approx(told.seconds(CHIP), rel=1e-12)
