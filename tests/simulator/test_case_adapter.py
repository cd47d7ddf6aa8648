"""The adapter of foreign cases: each of its names does what ours does, and a failed run is a RankError."""
from __future__ import annotations

import os

import numpy as np
import pytest

import minigrad as mg
from tests.case_adapters import dist


def test_all_ranks_run_again_from_the_start_and_nothing_of_the_first_run_counts(tmp_path):
    def program(ctx, flag):
        w = mg.tensor([1.0], dtype=mg.float64)
        w = w - 0.1 * ctx.all_reduce(w * 1.0) / ctx.world
        if ctx.rank == 1 and not os.path.exists(flag):
            open(flag, "w", encoding="utf-8").close()
            raise OSError("this rank is gone")
        w = w - 0.1 * ctx.all_reduce(w * 1.0) / ctx.world
        return w.item()
    with pytest.raises(dist.RankError, match="rank 1 of 2 raised OSError"):
        dist.run_ranks(2, program, tmp_path / "a")
    assert dist.run_ranks(2, program, tmp_path / "b", retries=1) == pytest.approx([0.81, 0.81])


@pytest.mark.parametrize("program", (
    lambda ctx: ctx.all_reduce(mg.ones(2 + ctx.rank)),
    lambda ctx: ctx.all_reduce(mg.ones(1)) if ctx.rank == 0 else ctx.all_gather(mg.ones(1)),
    lambda ctx: ctx.all_reduce(mg.ones(1, dtype=mg.float64 if ctx.rank else mg.float32)),
    lambda ctx: ctx.rank or ctx.all_reduce(mg.ones(1)),
    lambda ctx: ctx.broadcast(mg.ones(1), ctx.rank),
    lambda ctx: [None for _ in iter(int, 1)]), ids=("shape", "kind", "dtype", "missing", "root", "never ends"))
def test_what_does_not_fit_is_an_error_within_the_timeout(program):
    with pytest.raises(dist.RankError):
        dist.run_ranks(2, program, timeout=1)


def test_collectives_give_values_and_carry_gradients():
    def program(ctx):
        x = mg.tensor([1.0 + ctx.rank, 2.0], requires_grad=True)
        total = ctx.all_reduce(x)
        rows = ctx.all_gather(x[:1 + ctx.rank])
        from_last = ctx.broadcast(x, ctx.world - 1)
        (total.sum() + sum(r.sum() for r in rows) + from_last.sum()).backward()
        ctx.barrier()
        view = mg.zeros(2, 3)
        ctx.all_reduce_(view[:, 1].add_(ctx.rank + 1.0))
        raw = [r.tolist() for r in ctx.all_gather(x.detach())]
        return total.tolist(), [r.tolist() for r in rows], from_last.tolist(), x.grad.tolist(), raw, view.tolist()
    a, b = dist.run_ranks(2, program)
    assert a[0] == b[0] == [3.0, 4.0] and a[1] == b[1] == [[1.0], [2.0, 2.0]] and a[2] == b[2] == [2.0, 2.0]
    assert (a[3], b[3]) == ([4.0, 2.0], [6.0, 6.0])          # the loss is the sum of those of both ranks
    assert a[4] == [[1.0, 2.0], [2.0, 2.0]] and a[5] == b[5] == [[0.0, 3.0, 0.0]] * 2


def test_dropout_by_region():
    def program(ctx, region, seed):
        return ctx.tp_dropout(mg.ones(50), 0.5, seed, region).tolist()
    same = dist.run_ranks(2, program, "replicated", 1)
    own = dist.run_ranks(2, program, "sharded", 1)
    assert same[0] == same[1] and own[0] != own[1] and own == dist.run_ranks(2, program, "sharded", 1)
    assert own != dist.run_ranks(2, program, "sharded", 2) and set(np.ravel(own)) == {0.0, 2.0}


def test_the_executor_is_named_outside(monkeypatch):
    monkeypatch.setenv("MG_EXECUTOR", "moon")
    with pytest.raises(ValueError, match="moon"):
        dist.run_ranks(2, lambda ctx: 0)


def test_what_comes_later_says_so():
    for program in (lambda ctx: ctx.ZeroAdam([], 0.1), lambda ctx: ctx.pipeline_step(None, 0, 0, 1, None)):
        with pytest.raises(dist.RankError, match="NotImplementedError.*pipelines") as caught:
            dist.run_ranks(2, program)
        assert isinstance(caught.value.__cause__.__cause__, NotImplementedError)


def test_norms():
    def program(ctx):
        return ctx.grad_norm(sharded=[mg.tensor([3.0 + ctx.rank]), mg.tensor([])], replicated=[mg.tensor([12.0])])
    assert dist.run_ranks(2, program) == [13.0, 13.0]
    means = dist.run_ranks(3, lambda ctx: dist.exact_mean(ctx, [ctx.rank, 9.0], 4))
    assert means == [(0 + 9 + 1 + 2) / 4] * 3                # of 6 values two are there a second time
