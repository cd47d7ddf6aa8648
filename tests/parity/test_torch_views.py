"""Random programs of views and writes: values, gradients and refusals as PyTorch's.  Optional."""

import numpy as np
import pytest
from hypothesis import given, settings

import minigrad as mg
from tests.minigrad.view_programs import LEAF, OTHER, programs, run, total

torch = pytest.importorskip("torch")


def outcome(program, library, make):
    """(values, gradients), or the exception."""
    xs = [make(v.copy()).requires_grad_() for v in (LEAF, OTHER)]
    try:
        values = run(program, *xs)
        found = library.autograd.grad(total(values), xs, allow_unused=True)
    except RuntimeError as e:
        return e
    return [v.detach().numpy() for v in values], [None if g is None else g.numpy() for g in found]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(programs)
def test_programs_give_what_pytorch_gives(program):
    """Where PyTorch differentiates, so do we; where it refuses, we refuse too, or are right."""
    want, got = outcome(program, torch, torch.from_numpy), outcome(program, mg, mg.from_numpy)
    if isinstance(want, Exception):
        return
    assert not isinstance(got, Exception), f"PyTorch differentiates this: {got}"
    for w, g in zip(want[0], got[0]):
        np.testing.assert_allclose(g, w, rtol=1e-12, atol=1e-12)
    for w, g in zip(want[1], got[1]):
        assert (w is None) == (g is None)
        if w is not None:
            np.testing.assert_allclose(g, w, rtol=1e-10, atol=1e-10)
