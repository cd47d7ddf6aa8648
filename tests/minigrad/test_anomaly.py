"""Anomaly mode names the operation and the user's line of the first NaN, and is gone afterwards."""

import warnings

import pytest

import minigrad as mg
from minigrad.errors import AnomalyError
from minigrad.nn import functional as F


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)        # NumPy's own, of the NaNs made here
        yield


def bad_backward(device="cpu"):
    """0 · inf in the gradient of sqrt at 0: forward is finite, backward is NaN."""
    x = mg.tensor([0.0, 4.0], requires_grad=True, device=device)
    root = x.sqrt()                                            # the line
    return x, (root * 0.0).sum()


@pytest.mark.parametrize("device", ["cpu", "sim:0"])
@pytest.mark.parametrize("go", [lambda x, y: y.backward(), lambda x, y: mg.autograd.grad(y, x),
                                lambda x, y: y.backward(create_graph=True), lambda x, y: y.backward(inputs=[x])])
def test_backward_names_the_operation_and_the_line(go, device):
    x, y = bad_backward(device)
    with mg.autograd.detect_anomaly():
        assert mg.is_anomaly_enabled()
        with pytest.raises(RuntimeError, match="SqrtBackward' returned nan") as error:
            go(x, y)
    told = str(error.value)
    assert "root = x.sqrt()" in told and "test_anomaly.py:" in told and "in bad_backward" in told
    assert "1 of 2" in told and "had none" in told and "0 … " in told and x.grad is None
    assert not mg.is_anomaly_enabled()
    x, y = bad_backward(device)
    y.backward()                                               # off: as ever
    assert x.grad.cpu().numpy()[0] != x.grad.cpu().numpy()[0]


def test_forward_names_the_operation_and_its_inputs():
    x = mg.tensor([-1.0, 4.0], requires_grad=True)
    with mg.autograd.detect_anomaly(check_forward=True), pytest.raises(AnomalyError, match="Log") as error:
        y = (x * 1.0).log()                                    # the line
        y.sum().backward()
    assert "y = (x * 1.0).log()" in str(error.value) and "-1 … 4" in str(error.value)
    with mg.autograd.detect_anomaly(), mg.no_grad():
        x.log()                                                # forward is not looked at unless asked


def test_a_nan_that_came_in_is_not_blamed_on_what_passes_it_on():
    x = mg.tensor([1.0, 2.0])
    with mg.autograd.detect_anomaly(check_forward=True):
        assert mg.isnan(x * mg.tensor(mg.nan) + 1).all()


def test_good_runs_are_the_same_bit_for_bit():
    def run():
        mg.manual_seed(0)
        x = mg.randn(4, 3, requires_grad=True)
        y = F.dropout(F.softmax(x @ x.T, 1), 0.5)
        (y.cumsum(0)[1:] ** 2).sum().backward()
        return x.grad.tolist()

    want = run()
    with mg.autograd.detect_anomaly(check_forward=True):
        assert run() == want

    @mg.autograd.detect_anomaly()
    def decorated():
        return mg.is_anomaly_enabled(), run()

    assert decorated() == (True, want) and not mg.is_anomaly_enabled()


def test_errors_in_backward_get_the_forward_line():
    class Bad(mg.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            raise KeyError("mine")

    x = mg.ones(2, requires_grad=True)
    y = Bad.apply(x)                                           # here
    with mg.autograd.detect_anomaly(check_nan=False), pytest.raises(KeyError, match="mine") as error:
        y.sum().backward()
    assert "y = Bad.apply(x)" in "".join(error.value.__notes__)


def test_nan_of_a_function_and_of_sparse_rows():
    class Nan(mg.Function):
        @staticmethod
        def forward(ctx, x, y):
            return x * 1, y * 1

        @staticmethod
        def backward(ctx, g, h):
            return g, h * mg.nan

    x, y = mg.ones(2, requires_grad=True), mg.ones(2, requires_grad=True)
    with mg.autograd.detect_anomaly(), pytest.raises(AnomalyError, match="NanBackward' returned nan values in its 1th"):
        sum(Nan.apply(x, y)).sum().backward()
    table = mg.ones(3, 2, requires_grad=True)
    rows = F.embedding(mg.tensor([1]), table, sparse=True)
    with mg.autograd.detect_anomaly(), pytest.raises(AnomalyError, match="Embed.*came to it had 2 too"):
        rows.backward(mg.full((1, 2), mg.nan))


def test_set_detect_anomaly_as_a_statement_and_a_block():
    mg.autograd.set_detect_anomaly(True)
    try:
        assert mg.is_anomaly_enabled()
        with mg.autograd.set_detect_anomaly(False):
            assert not mg.is_anomaly_enabled()
        assert mg.is_anomaly_enabled()
    finally:
        mg.autograd.set_detect_anomaly(False)
    assert not mg.is_anomaly_enabled()


def test_batched_gradients_are_one_walk_each():
    x = mg.tensor([1.0, 2.0, 3.0], requires_grad=True)
    (J,) = mg.autograd.grad(x**2, x, mg.eye(3), is_grads_batched=True)
    assert J.tolist() == [[2, 0, 0], [0, 4, 0], [0, 0, 6]]
    a, b = mg.autograd.grad([x * 2, x.sum()], [x, mg.ones(1, requires_grad=True)],
                            [mg.ones(2, 3), mg.ones(2)], is_grads_batched=True, allow_unused=True)
    assert a.tolist() == [[3, 3, 3]] * 2 and b is None
    with pytest.raises(ValueError, match="axis in front"):
        mg.autograd.grad(x * 2, x, mg.ones(3).sum(), is_grads_batched=True)
