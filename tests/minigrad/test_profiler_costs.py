"""FLOPs, bytes and buffers of a profile: closed forms, and every op of the catalogue has them, forward and backward."""
import pytest

import minigrad as mg
import minigrad.nn.functional as F
from minigrad.ops.op import CATALOGUE
from minigrad.tensor import apply
from minigrad.trial import Trial


def one(p, name):
    (row,) = [row for row in p.by_op() if row.name == name]
    return row


def flops(p, name):
    return one(p, name).flops


def test_a_linear_layer():
    b, i, o = 5, 7, 3
    layer, x = mg.nn.Linear(i, o), mg.randn(b, i, requires_grad=True)
    with mg.profile() as p:
        for _ in range(2):
            layer(x).backward(mg.randn(b, o))
    assert flops(p, "Linear") == 2 * (2 * b * i * o + b * o)
    assert flops(p, "Linear (backward)") == 2 * (4 * b * i * o + b * o)
    row = one(p, "Linear")
    assert row.moved_bytes == 2 * 4 * (b * i + i * o + o + b * o)
    row = one(p, "Linear (backward)")
    assert row.moved_bytes == 2 * 4 * (b * o + 2 * (b * i + i * o) + o)
    assert row.flops_per_s == pytest.approx(row.flops / row.self_s)
    assert row.bandwidth_Bps == pytest.approx(row.moved_bytes / row.self_s)
    assert p.flops == sum(row.flops or 0 for row in p.by_op())


def test_no_gradient_that_is_not_asked_for_is_counted():
    x, w = mg.randn(4, 3), mg.randn(3, 2, requires_grad=True)
    with mg.profile() as p:
        (x @ w).backward(mg.randn(4, 2))
    assert flops(p, "MatMul") == flops(p, "MatMul (backward)") == 2 * 4 * 3 * 2


def test_equal_ops_on_other_shapes_and_for_other_inputs_are_told_apart():
    x, y = mg.randn(4), mg.randn(4, requires_grad=True)
    with mg.profile() as p:
        for a, b in ((x, y), (y, x), (mg.ones(7), mg.ones(7))):
            z = a - b
            if z.requires_grad:
                z.backward(mg.randn(4))
    assert flops(p, "Sub") == 4 + 4 + 7 and flops(p, "Sub (backward)") == 4 + 0


def test_a_convolution():
    n, c, o, k, size = 2, 3, 4, 3, 6
    x, w = mg.randn(n, c, size, size, requires_grad=True), mg.randn(o, c, k, k, requires_grad=True)
    with mg.profile() as p:
        y = F.conv2d(x, w)
        y.backward(mg.randn(*y.shape))
    products = 2 * n * o * (size - k + 1) ** 2 * c * k * k
    names = [row.name for row in p.by_op() if row.name.startswith("Conv") and row.phase == "forward"]
    assert flops(p, names[0]) == products
    assert 2 * products <= flops(p, f"{names[0]} (backward)") <= 2 * products + x.numel()   # and windows put together


def test_attention():
    b, h, t, d = 2, 2, 8, 4
    q, k, v = (mg.randn(b, h, t, d, requires_grad=True) for _ in range(3))
    with mg.profile() as p:
        F.scaled_dot_product_attention(q, k, v).backward(mg.randn(b, h, t, d))
    product, scores = 2 * b * h * t * t * d, b * h * t * t
    assert flops(p, "Attention") == 2 * product + 12 * scores
    assert flops(p, "Attention (backward)") == 4 * product + 5 * scores


@pytest.mark.parametrize("cls", CATALOGUE, ids=lambda cls: cls.__name__)
def test_every_op_and_its_gradient_have_a_cost(cls):
    t = Trial(cls.samples()[0])
    with mg.profile(allocations=False) as p:
        if t.wrt:
            t.gradients(t.leaves(), allow_unused=True)
        else:
            apply(t.op, *t.leaves())
    for row in p.by_op():
        assert row.flops is not None or row.name in ("outside ops", "AccumulateGrad (backward)", "walk of backward")


def test_buffers_are_counted_where_they_are_taken():
    x, y = mg.randn(1000), mg.randn(1000)
    with mg.profile() as p:
        for _ in range(3):
            x + y
    row = one(p, "Add")
    assert (row.allocations, row.allocated_bytes) == (3, 3 * 4000) and p.not_counted == ""


def test_the_simulated_device_tells_the_same():
    told = []
    for device in ("cpu", "sim:0"):
        mg.manual_seed(0)
        model, x = mg.nn.Linear(3, 2), mg.randn(4, 3)
        model, x = model.to(device), x.to(device)
        with mg.profile() as p:
            model(x).relu().sum().backward()
        told.append({(r.name, r.phase): (r.calls, r.flops, r.moved_bytes) for r in p.by_op()})
    assert told[0] == told[1]
