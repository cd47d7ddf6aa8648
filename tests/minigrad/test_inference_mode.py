"""inference_mode: nothing is recorded, and what is made cannot slip into a graph later; the modes as decorators."""

import copy

import numpy as np
import pytest

import minigrad as mg
from minigrad.errors import GraphError
from minigrad.nn import functional as F


@pytest.fixture
def made():
    """(a leaf outside, what was made of it inside, a view of that)."""
    x = mg.tensor([1.0, 2.0], requires_grad=True)
    with mg.inference_mode():
        y = x * 2
        return x, y, y[:1]


def test_what_is_made_inside():
    x, c = mg.ones(3, requires_grad=True), mg.ones(3)
    assert not mg.is_inference_mode_enabled()
    with mg.inference_mode():
        assert mg.is_inference_mode_enabled() and not mg.is_grad_enabled()
        made = [x * 2, x.sum(), mg.cat([x, c]), F.softmax(x, 0), mg.zeros(2), mg.tensor([1.0]), c.double(), c.clone(),
                x.max(0)[0], (x * 2).detach(), (x * 2)[0], x > 0, mg.ones(2, requires_grad=True)]
        shown = [x[0], c.detach(), c.float(), x.reshape(3, 1), x]
        with mg.enable_grad():
            assert not (x * 2).requires_grad
        with mg.inference_mode(False):
            assert (x * 2).requires_grad and not (x * 2).is_inference() and not mg.is_inference_mode_enabled()
        c.add_(1)
        y = x * 2
        y.add_(1)
        y[0] = 5.0
    assert all(t.is_inference() and t.grad_fn is None for t in made)
    assert not any(t.is_inference() for t in shown) and c.tolist() == [2, 2, 2] and y.tolist() == [5, 3, 3]
    assert not mg.is_inference_mode_enabled() and (x * 2).requires_grad


def test_saved_for_backward_is_refused_in_every_door(made):
    x, y, view = made
    for save in (lambda: x * y, lambda: y * x, lambda: x * view, lambda: mg.matmul(x, y),
                 lambda: mg.where(x > 0, x, 1) * y, lambda: F.linear(x, y.reshape(1, 2)),
                 lambda: mg.einsum("i,i->", x, y)):
        with pytest.raises(RuntimeError, match="inference_mode"):
            save()
    (x + y).sum().backward()                                   # nothing of y is saved
    np.testing.assert_array_equal(x.grad.numpy(), [1, 1])
    assert (x * y.clone()).requires_grad and not y.clone().is_inference() and not (y * 2).is_inference()
    with mg.no_grad():
        assert (x * y).tolist() == [2, 8]

    class Save(mg.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(b)
            return a * 1

    with pytest.raises(RuntimeError, match="inference_mode"):
        Save.apply(x, y)


@pytest.mark.parametrize("grad", [True, False])
def test_writes_outside_are_refused_and_change_nothing(made, grad):
    x, y, view = made
    want = y.tolist()
    for write in (lambda: y.add_(1), lambda: view.fill_(1.0), lambda: y.__setitem__(0, 1.0), lambda: y.requires_grad_(),
                  lambda: y.copy_(x), lambda: y.detach().zero_()):
        with mg.set_grad_enabled(grad), pytest.raises(RuntimeError, match="inference_mode"):
            write()
    assert y.tolist() == want and not y.requires_grad
    assert mg.zeros(2).copy_(y).tolist() == want
    assert not copy.deepcopy(y).is_inference()


def test_other_threads_and_errors_leave_the_mode():
    with pytest.raises(ZeroDivisionError), mg.inference_mode():
        _ = 1 / 0
    assert not mg.is_inference_mode_enabled()


MODES = {
    "no_grad": mg.no_grad, "inference": mg.inference_mode, "called": mg.inference_mode(),
    "called no_grad": mg.no_grad(), "set": lambda f: mg.set_grad_enabled(False)(f),
}  # fmt: skip


@pytest.mark.parametrize("name", MODES)
def test_decorated_functions_and_generators(name):
    mode = MODES[name]

    @mode
    def function(a, b=2):
        """doc"""
        return mg.is_grad_enabled(), a + b

    @mode
    def generator(n):
        try:
            for k in range(n):
                got = yield mg.is_grad_enabled()
                assert got is None or got == k
        except ValueError:
            yield "caught", mg.is_grad_enabled()
        finally:
            closed.append(mg.is_grad_enabled())
        return "end"

    closed = []
    assert function(1) == function(1, b=2) == (False, 3) and function.__doc__ == "doc"
    g = generator(3)
    assert next(g) is False and mg.is_grad_enabled()
    with mg.enable_grad():
        assert g.send(0) is False and mg.is_grad_enabled()
    assert g.throw(ValueError) == ("caught", False)
    with pytest.raises(StopIteration):
        next(g)
    g = generator(3)
    next(g)
    g.close()
    assert closed == [False, False] and mg.is_grad_enabled()

    def outer():
        return (yield from generator(1))

    g = outer()
    next(g)
    with pytest.raises(StopIteration) as end:
        next(g)
    assert end.value.value == "end"


def test_modes_nest():
    with mg.no_grad():
        with mg.enable_grad():
            with mg.inference_mode():
                assert not mg.is_grad_enabled()
            assert mg.is_grad_enabled()
            with pytest.raises(GraphError), mg.no_grad():
                raise GraphError("x")
            assert mg.is_grad_enabled()
        assert not mg.is_grad_enabled()

    @mg.enable_grad
    def on():
        return mg.is_grad_enabled()

    @mg.set_grad_enabled(True)
    def also_on():
        return mg.is_grad_enabled()

    with mg.no_grad():
        assert on() and also_on() and not mg.is_grad_enabled()
