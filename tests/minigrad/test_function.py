"""Custom Functions: what goes in and out, what is saved, what is refused, second derivatives."""

import numpy as np
import pytest

import minigrad as mg
from minigrad.check import gradcheck, gradgradcheck
from minigrad.errors import GraphError, ShapeError


def leaf(*values):
    return mg.tensor(list(values), dtype=mg.float64, requires_grad=True)


def custom(forward, backward, **more):
    """A Function class from two functions."""
    return type(
        "Custom", (mg.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward), **more}
    )


class Cube(mg.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x * x * 3


class Exp(mg.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]


class SumAndProduct(mg.Function):
    """Two outputs; the product is saved, so it must come back as the second one."""

    @staticmethod
    def forward(ctx, a, b):
        total, product = a + b, a * b
        ctx.save_for_backward(product, a, b)
        return total, product

    @staticmethod
    def backward(ctx, g, h):
        product, a, b = ctx.saved_tensors
        return g + h * product / a, g + h * product / b


@pytest.mark.parametrize(
    "f",
    [
        Cube.apply,
        Exp.apply,
        lambda x: SumAndProduct.apply(x, x + 1)[1],
        lambda x: SumAndProduct.apply(x, x)[0],
        lambda x: (lambda s, p: s * p)(*SumAndProduct.apply(x, x * x)),
    ],
)
def test_first_and_second_derivatives_equal_differences(f):
    x = leaf(0.5, -1.2, 2.0)
    assert gradcheck(f, x) and gradgradcheck(f, x)


def test_a_call_is_one_node_named_after_the_class():
    y = Cube.apply(leaf(2.0))
    assert y.grad_fn.name() == "CubeBackward" and repr(y) == "tensor([8.], dtype=float64, grad_fn=<CubeBackward>)"
    assert y.made_at.startswith(__file__)
    a, b = SumAndProduct.apply(leaf(2.0), leaf(3.0))
    assert a.grad_fn is not b.grad_fn and a.grad_fn.next_functions == b.grad_fn.next_functions


def test_arguments_that_are_no_tensors():
    f = custom(lambda ctx, x, k, name, y=None: (setattr(ctx, "k", k), x * k)[1], lambda ctx, g: (g * ctx.k, None, None))
    x = leaf(2.0)
    f.apply(x, 5, "name").sum().backward()
    assert x.grad.item() == 5


def test_only_needed_gradients_are_asked_for():
    seen = []

    def backward(ctx, g):
        seen.append(ctx.needs_input_grad)
        return tuple(g if need else None for need in ctx.needs_input_grad)

    f = custom(lambda ctx, a, b, c: a + b + c, backward)
    a, c = leaf(1.0), leaf(1.0)
    f.apply(a, mg.ones(1, dtype=mg.float64), c).sum().backward()
    assert seen == [(True, False, True)] and a.grad.item() == c.grad.item() == 1


def test_a_none_gradient_is_no_gradient():
    f = custom(lambda ctx, a, b: a * b, lambda ctx, g: (None, g))
    a, b = leaf(2.0), leaf(3.0)
    f.apply(a, b).sum().backward()
    assert a.grad is None and b.grad.item() == 1


@pytest.mark.parametrize(
    "answer, error, words",
    [
        (lambda g: g, GraphError, "1 gradients.*2 inputs"),
        (lambda g: (g, g, g), GraphError, "3 gradients"),
        (lambda g: (g, 3.0), GraphError, "gradient 1 is a float"),
        (lambda g: (mg.ones(3, dtype=mg.float64), None), ShapeError, r"gradient 0 has shape \(3,\).*\(2,\)"),
        (lambda g: (g.to("sim:0"), None), GraphError, "sim:0"),
        (lambda g: (g[:1], None), ShapeError, r"\(1,\)"),
    ],
)
def test_a_wrong_answer_of_backward_is_named(answer, error, words):
    """A082"""
    f = custom(lambda ctx, a, b: a * b, lambda ctx, g: answer(g))
    a, b = leaf(1.0, 2.0), leaf(3.0, 4.0)
    with pytest.raises(error, match=f"Custom.backward.*{words}"):
        f.apply(a, b).sum().backward()
    assert a.grad is None and b.grad is None


def test_a_gradient_for_what_is_no_tensor_is_refused_and_spare_nones_are_not():
    good = custom(lambda ctx, x, k: x * k, lambda ctx, g: (g, None, None, None))
    good.apply(leaf(1.0), 2).sum().backward()
    bad = custom(lambda ctx, x, k: x * k, lambda ctx, g: (g, g))
    with pytest.raises(GraphError, match="gradient 1.*no tensor"):
        bad.apply(leaf(1.0), 2).sum().backward()


def test_a_broadcast_gradient_is_summed_and_another_dtype_converted():
    f = custom(lambda ctx, x: x.sum().float(), lambda ctx, g: mg.ones(4, 2) * g)
    x = leaf(1.0, 2.0)
    f.apply(x).backward()
    assert x.grad.tolist() == [4, 4] and x.grad.dtype == mg.float64


def test_without_backward_or_forward_it_says_so():
    with pytest.raises(NotImplementedError, match="backward"):
        type("F", (mg.Function,), {"forward": staticmethod(lambda ctx, x: x * 1)}).apply(leaf(1.0)).sum().backward()
    with pytest.raises(NotImplementedError, match="forward"):
        mg.Function.apply(leaf(1.0))


def test_forward_runs_outside_the_graph_and_backward_too():
    """A084"""
    seen = []
    f = custom(
        lambda ctx, x: (seen.append(mg.is_grad_enabled()), x * 1)[1],
        lambda ctx, g: (seen.append(mg.is_grad_enabled()), g * 1)[1],
    )
    x = leaf(1.0)
    f.apply(x).sum().backward()
    assert not x.grad.requires_grad
    mg.autograd.grad(f.apply(x).sum(), x, create_graph=True)
    assert seen == [False, False, False, True] and mg.is_grad_enabled()


def test_saved_tensors_are_checked_for_writes_and_gone_afterwards():
    x = leaf(2.0)
    h = x * 1
    y = Cube.apply(h)
    h.add_(1)
    with pytest.raises(GraphError, match="(?s)Cube.*changed in place"):
        y.sum().backward()
    z = Cube.apply(x).sum()
    z.backward()
    with pytest.raises(GraphError, match="retain_graph"):
        z.backward()
    with pytest.raises(TypeError, match="only tensors"):
        custom(lambda ctx, x: (ctx.save_for_backward(3), x)[1], None).apply(x)
    ctx = []
    custom(lambda c, x: (ctx.append(c), c.save_for_backward(x), x * 1)[2], None).apply(x)
    with pytest.raises(GraphError, match="inside backward"):
        ctx[0].saved_tensors  # noqa: B018


def test_save_none_and_constants():
    def forward(ctx, x):
        ctx.save_for_backward(None, x.detach() * 0 + 7)
        return x * 7

    def backward(ctx, g):
        none, seven = ctx.saved_tensors
        assert none is None and not seven.requires_grad
        return g * seven

    x = leaf(1.0)
    custom(forward, backward).apply(x).sum().backward()
    assert x.grad.item() == 7


def test_missing_gradients_of_outputs_are_zeros_or_none():
    got = []
    for materialize in (True, False):

        def forward(ctx, x, materialize=materialize):
            ctx.set_materialize_grads(materialize)
            return x * 2, x * 3

        def backward(ctx, g, h):
            got.append(g if g is None else g.tolist())
            return h * 3

        x = leaf(1.0, 1.0)
        custom(forward, backward).apply(x)[1].sum().backward()
        assert x.grad.tolist() == [3, 3]
    assert got == [[0, 0], None]


def test_outputs_marked_constant():
    def forward(ctx, x):
        y, index = x.max(0)
        other = x * 2
        ctx.mark_non_differentiable(other)
        return y, index, other

    y, index, other = custom(forward, lambda ctx, g, i, o: mg.ones(2, dtype=mg.float64) * g).apply(leaf(1.0, 2.0))
    assert y.requires_grad and not index.requires_grad and not other.requires_grad


@pytest.mark.parametrize(
    "look, want", [(lambda y: y, [2, 20]), (lambda y: y[1:], [1, 20]), (lambda y: y.reshape(2, 1)[:, 0], [2, 20])]
)
def test_inputs_marked_dirty_pass_their_history_to_base_and_views(look, want):
    """Doubling in place through any view: the base and a view made before it both feel it."""

    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    double = custom(forward, lambda ctx, g: g * 2)
    x = leaf(1.0, 1.0)
    base = x * 1
    before, target = base[:], look(base)
    assert double.apply(target) is target
    (before * mg.tensor([1.0, 10.0], dtype=mg.float64)).sum().backward()
    assert x.grad.tolist() == want and base.tolist() == before.tolist()


def test_a_dirty_input_that_is_saved_comes_back_as_the_output_it_became():
    """exp in place: its value, and its second derivative through the saved result."""

    def forward(ctx, x):
        x.exp_()
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    f = custom(forward, lambda ctx, g: g * ctx.saved_tensors[0])
    assert gradcheck(lambda x: f.apply(x * 1), leaf(0.5, -1.0))
    assert gradgradcheck(lambda x: f.apply(x * 1), leaf(0.5, -1.0))


def test_marking_a_leaf_dirty_is_refused_and_a_write_is_seen_without_history():
    def forward(ctx, x):
        x.add_(1)
        ctx.mark_dirty(x)
        return x

    f = custom(forward, lambda ctx, g: g)
    with pytest.raises(GraphError, match="leaf.*no_grad"):
        f.apply(leaf(1.0))
    x = leaf(1.0)
    c = mg.ones(1, dtype=mg.float64)
    y = x * c

    def by_numpy(ctx, x):
        x.numpy()[...] = 5
        ctx.mark_dirty(x)
        return x

    custom(by_numpy, None).apply(c)
    with pytest.raises(GraphError, match="changed in place"):
        y.sum().backward()


def test_an_input_returned_as_it_is():
    x = leaf(1.0, 2.0)
    y = custom(lambda ctx, x: x, lambda ctx, g: g * 5).apply(x)
    assert y is not x and x.is_leaf
    y.sum().backward()
    assert x.grad.tolist() == [5, 5]


def test_setup_context():
    class Scale(mg.Function):
        @staticmethod
        def forward(x, k):
            return x * k

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.k = inputs[1]

        @staticmethod
        def backward(ctx, g):
            return g * ctx.k, None

    class Child(Scale):
        pass

    for f in (Scale, Child):
        x = leaf(1.0)
        f.apply(x, 3).sum().backward()
        assert x.grad.item() == 3


def test_hooks_retain_grad_and_pruning_work_on_its_outputs():
    x, w = leaf(1.0), leaf(2.0)
    a, b = SumAndProduct.apply(x, w)
    seen = []
    b.register_hook(lambda g: seen.append(g.item()))
    b.retain_grad()
    (a + b * 10).sum().backward(retain_graph=True)
    assert seen == [10] and b.grad.item() == 10 and x.grad.item() == 21
    assert mg.autograd.grad(a.sum(), w)[0].item() == 1


def test_backward_inside_backward():
    """Re-entrant: a Function may differentiate something of its own."""

    def backward(ctx, g):
        with mg.enable_grad():
            t = mg.tensor([3.0], dtype=mg.float64, requires_grad=True)
            (t * t).sum().backward()
        return g * t.grad

    x = leaf(1.0)
    f = custom(lambda ctx, x: x * 6, backward)
    f.apply(f.apply(x)).sum().backward()
    assert x.grad.item() == 36


@pytest.mark.parametrize("where", ["cpu", "sim:0", "meta"])
def test_on_every_device(where):
    x = mg.ones(3, device=where, requires_grad=True)
    Cube.apply(x).sum().backward()
    assert x.grad.device == x.device and x.grad.shape == (3,)
    if where != "meta":
        np.testing.assert_array_equal(x.grad.cpu().numpy(), [3, 3, 3])
