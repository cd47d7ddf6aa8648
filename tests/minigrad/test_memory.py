"""What is alive, and why: counted by kind and line, and found by name."""

import gc

import numpy as np

import minigrad as mg
from minigrad import nn
from minigrad.ops.plan import Plan

SOMEWHERE = None


class Holder:
    pass


def chains(x, **how):
    return mg.memory.why_alive(x, **{"limit_s": 20, **how}).splitlines()  # other tests may have loaded a lot


def test_live_tensors_counts_what_was_made_since():
    _ = mg.ones(1) * 2                                        # the constant 2 is kept once made
    gc.collect()
    before = mg.memory.live_tensors()
    p = nn.Parameter(mg.ones(10, 10))
    x = mg.ones(100, requires_grad=True)
    y = (x * 2).exp()                                         # exp saves y; the product dies
    v = y[:50]
    z = (y * mg.full((100,), 3.0)).sum()                      # saves y, which lives, and the threes, which do not
    p.grad = mg.zeros(10, 10)
    after = mg.memory.live_tensors()
    grown = {k: (n - before.by_kind.get(k, (0, 0))[0], b - before.by_kind.get(k, (0, 0))[1])
             for k, (n, b) in after.by_kind.items()}
    assert grown["parameter"] == (1, 400) and grown["gradient"] == (1, 400) and grown["leaf"] == (1, 400)
    assert grown["result"] == (2, 404) and grown["saved"] == (1, 400) and grown["view"] == (1, 0)
    assert after.nbytes - before.nbytes == 5 * 400 + 4
    lines = [line for (kind, line), _ in after.by_line.items() if kind == "result" and "test_memory.py" in line]
    assert len(lines) == 2
    text = str(after)
    assert "parameter" in text and "test_memory.py:" in text and "tensors" in text.splitlines()[0]
    z.backward()
    del y, v, z
    assert "saved" not in mg.memory.live_tensors().by_kind or before.by_kind.get("saved")


def test_the_simulated_device_agrees():
    from minigrad.sim import sim_device

    count = lambda: mg.memory.live_tensors().nbytes  # noqa: E731
    mg.ones(2, device="sim:6").exp() * 2                        # the device's constants
    gc.collect()
    before, used = count(), sim_device(6).used
    x = mg.ones(64, device="sim:6", requires_grad=True)
    y = x.exp().reshape(8, 8) * 2
    assert count() - before == sim_device(6).used - used == 3 * 256
    del x, y


def test_why_names_variables_attributes_containers_and_closures():
    def keeper():
        inner = mg.ones(2)
        return lambda: inner

    x = mg.ones(2)
    box, holder, function = {"k": [0, x]}, Holder(), keeper()
    holder.attribute = x
    found = chains(x)
    assert any(line.startswith("variable `x` of test_why_names") and "test_memory.py:" in line for line in found)
    assert any("variable `box`" in line and "dict['k'] → list[1]" in line for line in found)
    assert any("variable `holder`" in line and "Holder.attribute" in line for line in found)
    assert any("variable `function`" in line and "keeper" in line for line in chains(function()))
    global SOMEWHERE
    SOMEWHERE = x
    try:
        assert any("variable `SOMEWHERE` of module" in line for line in chains(x))
    finally:
        SOMEWHERE = None
    net = nn.Sequential(nn.Linear(2, 2))
    assert any("Linear.weight" in line for line in chains(net[0].weight))
    assert box and holder


def test_why_finds_what_the_graph_saved():
    x = mg.ones(2, requires_grad=True)
    h = x.exp()                                               # the line
    losses = [(h * h).sum()]
    array = h.array
    del h
    found = chains(array)
    assert any("variable `losses`" in line and "Mul() at" in line and "saved it as" in line for line in found)
    losses[0].backward()
    assert not any("losses" in line for line in chains(array))
    tensors = {"a": array}
    assert any("variable `tensors`" in line and "dict['a']" in line for line in chains(array)) and tensors


def test_why_is_bounded():
    x = mg.ones(2)
    boxes = [[x] for _ in range(50)]
    assert "more" in chains(x, most=1)[-1] and len(chains(x, most=1)) == 2
    assert any("variable `boxes`" in line for line in chains(x))
    assert "stopped after 0 s" in chains(x, limit_s=0)[-1] and boxes
    assert np.asarray(x).shape == (2,)


def test_an_attribute_that_changes_at_each_step_keeps_no_memory():
    """A slope that is annealed makes an op a step; the door and the plans of one that is gone must go too."""
    x = mg.ones(3, requires_grad=True)

    def step(i):
        mg.nn.functional.leaky_relu(x, 1 / (i + 2)).sum().backward()

    def plans():
        gc.collect()
        return sum(type(thing) is Plan for thing in gc.get_objects())

    for i in range(8300):  # until every bounded cache is full
        step(i)
    before = plans()
    for i in range(8300, 8600):
        step(i)
    assert plans() <= before
