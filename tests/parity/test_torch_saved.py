"""Hooks for saved tensors, held against PyTorch: the same program, the same calls, the same gradients."""
import numpy as np
import pytest

import minigrad as mg

torch = pytest.importorskip("torch")


def both(program):
    return [program(lib) for lib in (mg, torch)]


def same(program):
    for a, b in zip(*both(program), strict=True):
        if isinstance(a, str | int | bool):
            assert a == b
        else:
            np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-14)     # another exp and sin


def test_a_lossy_unpack_changes_the_gradient_as_in_pytorch():
    def program(lib):
        x = lib.tensor([1.0, -2.0, 3.0], dtype=lib.float64, requires_grad=True)
        with lib.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t * 4):
            y = x * x * lib.tensor([2.0, 1.0, 0.5], dtype=lib.float64)
        y.backward(lib.tensor([1.0, 2.0, -1.0], dtype=lib.float64))
        return [x.grad]
    same(program)


def test_calls_nest_alike():
    def program(lib):
        calls, hooks = [], lib.autograd.graph.saved_tensors_hooks
        x = lib.tensor([1.0, -2.0, 3.0], dtype=lib.float64, requires_grad=True)
        note = lambda name: hooks(lambda t: calls.append(f"pack {name}") or t.detach(),  # noqa: E731
                                  lambda t: calls.append(f"unpack {name}") or t)
        with note("outer"):
            y = x.exp()
            with note("inner"):
                y = (y * y).sin()
            y = y.sigmoid()
        y.backward(lib.tensor([1.0, 2.0, -1.0], dtype=lib.float64))
        return [x.grad, " ".join(calls)]
    same(program)


@pytest.mark.parametrize("wrong", ["unpack", "disabled", "pack"])
def test_errors_are_of_the_same_classes(wrong):
    def program(lib):
        graph = lib.autograd.graph
        x = lib.tensor([1.0, 2.0], dtype=lib.float64, requires_grad=True)
        try:
            if wrong == "unpack":
                with graph.saved_tensors_hooks(lambda t: t, lambda t: 5):
                    y = x.exp().sum()
                y.backward()
            elif wrong == "disabled":
                with graph.disable_saved_tensors_hooks("no"), graph.save_on_cpu():
                    pass
            else:
                with graph.saved_tensors_hooks(lambda t: t.mul_(2), lambda t: t):
                    (x * 1).exp()
        except (TypeError, RuntimeError) as e:
            return ["TypeError" if isinstance(e, TypeError) else "RuntimeError"]
        return ["nothing"]
    same(program)


def test_a_function_and_a_checkpoint_call_hooks_alike():
    def program(lib):
        from torch.utils.checkpoint import checkpoint as theirs

        from minigrad.checkpoint import checkpoint as ours

        class Square(lib.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * x

            @staticmethod
            def backward(ctx, g):
                return 2 * ctx.saved_tensors[0] * g

        calls = []
        x = lib.tensor([1.0, -2.0, 3.0], dtype=lib.float64, requires_grad=True)
        with lib.autograd.graph.saved_tensors_hooks(lambda t: calls.append("pack") or t, lambda t: t):
            y = Square.apply(x)
            y = (ours if lib is mg else theirs)(lambda t: t.exp().sin(), y, use_reentrant=False)
        y.backward(lib.tensor([1.0, 2.0, -1.0], dtype=lib.float64))
        return [x.grad, len(calls)]
    same(program)
