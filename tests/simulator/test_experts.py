"""Expert parallel: a mixture cut among ranks with tokens of their own is that of one device with all tokens."""
from __future__ import annotations

import math

import numpy as np
import pytest

import minigrad as mg
from minigrad import nn
from simulator.spawn import spawn
from simulator.strategies.experts import ExpertParallelMoE
from simulator.strategies.shards import gather_state, shards_of

D, EXPERTS = 4, 5
TOKENS = {1: (9,), 2: (8, 3), 3: (5, 0, 6), 5: (1, 2, 3, 4, 0)}
HOW = [{}, {"k": 1}, {"k": 3, "capacity_factor": 0.5}, {"capacity_factor": None}, {"k": 1, "capacity_factor": 0.2},
       {"k": EXPERTS, "capacity_factor": 1.0}]


def mixture(how) -> nn.MoE:
    mg.manual_seed(4)
    return nn.MoE(D, 6, EXPERTS, **how).double()


def tokens_of(world: int) -> list[np.ndarray]:
    """More of them like each other than not, so that some experts are full."""
    rng = np.random.default_rng(world)
    return [rng.standard_normal((n, D)) + 1.0 for n in TOKENS[world]]


def run(moe, x):
    """Output and gradient of x; the loss is a sum over tokens, and the part of the load-balancing loss."""
    x = mg.tensor(x, requires_grad=True)
    y, balance = moe(x)
    ((y * y * y).sum() + 0.7 * (y * (x.detach() + 1)).sum() + 3 * balance).backward()
    return y.detach().numpy(), x.grad.numpy(), balance.item()


def close(got, want) -> None:
    want = np.asarray(want)
    np.testing.assert_allclose(got, want, rtol=0, atol=64 * 2.0**-52 * np.abs(want).max(initial=1))


@pytest.mark.parametrize("world", TOKENS)
@pytest.mark.parametrize("how", HOW, ids=str)
def test_all_tokens_on_one_device(world, how):
    xs, whole = tokens_of(world), mixture(how)
    y, dx, balance = run(whole, np.concatenate(xs))
    kept = whole.route(mg.tensor(np.concatenate(xs))).kept.numpy()
    assert how.get("capacity_factor", 1) is None or how.get("capacity_factor", 1) > 0.5 or not kept.all()
    ends = np.cumsum([0, *map(len, xs)])

    def program(comm):
        moe = ExpertParallelMoE(mixture(how), comm)
        rows = slice(ends[comm.rank], ends[comm.rank + 1])
        got = run(moe, xs[comm.rank])
        np.testing.assert_array_equal(got[0], y[rows])       # the same products, and sums in the same order
        close(got[1], dx[rows])
        close(moe.gate.weight.grad.numpy(), whole.gate.weight.grad.numpy())
        for name, shard in shards_of(moe):
            close(shard.gathered(getattr(moe, name).grad).numpy(), getattr(whole, name).grad.numpy())
        state = gather_state(moe)
        assert all((state[k] == v).all().item() for k, v in whole.state_dict().items())
        np.testing.assert_array_equal(moe.route(mg.tensor(xs[comm.rank])).kept.numpy(), kept[rows])
        return got[2]
    close(sum(spawn(program, world, timeout=60).values), balance)


@pytest.mark.parametrize("world", TOKENS)
@pytest.mark.parametrize("how", HOW, ids=str)
def test_local_seats_are_those_of_each_rank_alone(world, how):
    xs, whole = tokens_of(world), mixture(how)
    total = sum(map(len, xs))
    alone, balance = [], 0.0
    for x in xs:                                             # gradients of the parameters add up
        t = mg.tensor(x, requires_grad=True)
        y, b = whole(t)
        share = b * (len(x) / total)
        ((y * y * y).sum() + 0.7 * (y * (t.detach() + 1)).sum() + 3 * share).backward()
        alone.append((y.detach().numpy(), t.grad.numpy()))
        balance += share.item()

    def program(comm):
        moe = ExpertParallelMoE(mixture(how), comm, capacity="local")
        y, dx, part = run(moe, xs[comm.rank])
        close(y, alone[comm.rank][0])
        close(dx, alone[comm.rank][1])
        close(moe.gate.weight.grad.numpy(), whole.gate.weight.grad.numpy())
        for name, shard in shards_of(moe):
            close(shard.gathered(getattr(moe, name).grad).numpy(), getattr(whole, name).grad.numpy())
        return part
    close(sum(spawn(program, world, timeout=60).values), balance)


def test_bytes_are_those_of_tokens_that_leave():
    """There and back, forward and backward: 4 times the rows that sit at experts of other ranks; and the counts."""
    how, xs = {"capacity_factor": None}, tokens_of(2)

    def program(comm):
        run(ExpertParallelMoE(mixture(how), comm), xs[comm.rank])
    whole = mixture(how)
    leaving = [int((np.isin(whole.route(mg.tensor(x)).experts.numpy(), away)).sum())
               for x, away in zip(xs, ((3, 4), (0, 1, 2)))]
    counts, gate = 2 * EXPERTS * 8, D * EXPERTS * 8 * 2      # to the other rank; the gradient of the gate, all-reduced
    assert spawn(program, 2).nbytes.sum() == 4 * sum(leaving) * D * 8 + 2 * counts + gate


def test_another_shape_and_no_tokens_at_all():
    def program(comm):
        moe = ExpertParallelMoE(mixture({}), comm)
        y, balance = moe(mg.ones(2, 3, D, dtype=mg.float64))
        want, b = mixture({})(mg.ones(4, 3, D, dtype=mg.float64))
        assert y.shape == (2, 3, D) and (y == want[2 * comm.rank:2 * comm.rank + 2]).all().item()
        assert math.isclose(balance.item(), b.item() / 2)
        y, balance = moe(mg.ones(0, D, dtype=mg.float64))
        assert y.shape == (0, D) and balance.item() == 0
    spawn(program, 2, timeout=20)


def test_on_the_modelled_clock():
    """Timed, a Function of several outputs (all_to_all) goes back as well: its gradient is no one tensor."""
    def program(comm):
        y, balance = ExpertParallelMoE(mixture({}).float(), comm)(mg.ones(3, D, requires_grad=True))
        (y.sum() + balance).backward()
    timed, idle = (spawn(program, 2, timed=timed, timeout=20).time_s for timed in (True, False))
    assert timed > idle > 0


@pytest.mark.parametrize("make, words", [
    (lambda c: ExpertParallelMoE(mixture({}), c, "some"), "'some' is none of global, local"),
    (lambda c: ExpertParallelMoE(nn.MoE(4, 4, 1, k=1), c), "1 experts cannot be shared by 2 ranks"),
    (lambda c: ExpertParallelMoE(mixture({}), c)(mg.ones(2, 3)), r"expected \(…, 4\), got \(2, 3\)"),
])
def test_refused(make, words):
    def program(comm):
        with pytest.raises(ValueError, match=words):
            make(comm)
    spawn(program, 2, timeout=20)
