"""join: ranks with different numbers of batches end with one model, that of one device that took the same sums."""
from __future__ import annotations

import numpy as np
import pytest

import minigrad as mg
from minigrad import nn
from simulator.compression import ErrorFeedback, TopK
from simulator.errors import RankFailed
from simulator.spawn import spawn
from simulator.strategies import DDP

EPS = np.finfo(np.float64).eps
X = np.random.default_rng(0).standard_normal((5, 6, 2, 3))    # (rank, batch, example, feature)
COUNTS = [(3, 1), (1, 3), (0, 2), (2, 0), (2, 2), (0, 0), (4, 0, 2), (1, 2, 3, 0, 5)]
WAYS = ({}, {"bucket_cap_mb": 0}, {"overlap": False}, {"find_unused_parameters": True, "bucket_cap_mb": 0})


def model_of():
    mg.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def train(comm, counts, how, divide=True, accumulate=False):
    model = model_of()
    ddp = DDP(model, comm, **how)
    optimizer = mg.optim.SGD(model.parameters(), lr=0.1, momentum=0.9 if accumulate else 0.0)
    with ddp.join(divide_by_initial_world_size=divide):
        for k in range(counts[comm.rank]):
            optimizer.zero_grad()
            if accumulate:
                with ddp.no_sync():
                    ddp(mg.tensor(X[comm.rank, k])).sum().backward()
            ddp(mg.tensor(X[comm.rank, k])).exp().sum().backward()
            optimizer.step()
    assert comm.all_reduce(1) == comm.world_size              # all are in step again
    return [p.detach().numpy().copy() for p in model.parameters()]


def alone(counts, divide):
    """One device: at step k the sum over the ranks that have a batch k."""
    model = model_of()
    optimizer = mg.optim.SGD(model.parameters(), lr=0.1)
    for k in range(max(counts)):
        optimizer.zero_grad()
        having = [rank for rank, count in enumerate(counts) if k < count]
        total = sum(model(mg.tensor(X[rank, k])).exp().sum() for rank in having)
        (total / (len(counts) if divide else len(having))).backward()
        optimizer.step()
    return [p.detach().numpy() for p in model.parameters()]


@pytest.mark.parametrize("divide", (True, False))
@pytest.mark.parametrize("how", WAYS, ids=str)
@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_all_end_with_the_model_of_one_device(counts, how, divide):
    ranks = spawn(train, len(counts), counts, how, divide, timeout=60).values
    for params in ranks:
        for a, b, c in zip(params, ranks[0], alone(counts, divide)):
            assert np.array_equal(a, b)
            assert np.abs(a - c).max() <= 64 * EPS * np.abs(c).max()


@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_with_accumulation_and_compression(counts):
    for how in ({}, {"compression": lambda: ErrorFeedback(TopK(0.3))}):
        ranks = spawn(train, len(counts), counts, how, True, True, timeout=60).values
        for params in ranks:
            assert all(np.array_equal(a, b) for a, b in zip(params, ranks[0]))


@pytest.mark.parametrize("counts", [(1, 3), (3, 1), (0, 2)], ids=str)
def test_buffers_come_from_a_rank_that_still_has_data(counts):
    def program(comm):
        mg.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
        ddp = DDP(model, comm)
        with ddp.join():
            for k in range(counts[comm.rank]):
                ddp(mg.tensor(X[comm.rank, k], dtype=mg.float32)).sum().backward()
        return [t.numpy() for t in model.state_dict().values()]
    a, b = spawn(program, 2).values
    assert all(np.array_equal(x, y) for x, y in zip(a, b))
    assert a[-1] == max(counts)                              # batches that the longest rank has counted


def test_the_order_of_buckets_comes_from_one_too():
    """Rank 0 is out before the first step: the order is that of rank 1, and the same on both."""
    def program(comm):
        model = model_of()
        ddp = DDP(model, comm, bucket_cap_mb=0)
        with ddp.join():
            for k in range(comm.rank):
                ddp(mg.tensor(X[comm.rank, k])).sum().backward()
        return ddp.reducer.order
    order, other = spawn(program, 2).values
    assert order == other != (3, 2, 1, 0)


def test_a_rank_that_is_out_can_be_an_error_on_all():
    def program(comm):
        ddp = DDP(model_of(), comm)
        with ddp.join(throw_on_early_termination=True):
            for k in range(3 - comm.rank):
                ddp(mg.tensor(X[comm.rank, k])).sum().backward()
    result = spawn(program, 3, check=False)
    assert sorted(result.failures) == [0, 1, 2]
    assert all("rank 2 of 3 has no more data" in str(e) for e in result.failures.values())


def test_disabled_it_does_nothing():
    def program(comm):
        ddp = DDP(model_of(), comm)
        with ddp.join(enable=False):
            before = comm.time
        return comm.time - before
    assert spawn(program, 2).values == [0, 0]


def test_what_is_wrong_within_it_is_told():
    def twice(comm):
        ddp = DDP(model_of(), comm)
        with ddp.join(), ddp.join():
            pass

    def some_accumulate(comm):
        ddp = DDP(model_of(), comm)
        with ddp.join():
            if comm.rank == 1:
                ddp.require_backward_grad_sync = False
            ddp(mg.tensor(X[comm.rank, 0])).sum().backward()

    def fails(comm):
        ddp = DDP(model_of(), comm)
        with ddp.join():
            ddp(mg.tensor(X[comm.rank, 0])).sum().backward()
            if comm.rank:
                raise ArithmeticError("of the user")
    for program, text in ((twice, "in a join already"), (some_accumulate, r"rank 1 is in no_sync\(\)"),
                          (fails, "rank 1 of 2 raised ArithmeticError: of the user")):
        with pytest.raises(RankFailed, match=text):
            spawn(program, 2, timeout=20)


def test_afterwards_sums_are_divided_by_all_again():
    def program(comm):
        model = nn.Linear(1, 1, bias=False).double()
        ddp = DDP(model, comm)
        one = mg.ones(1, 1, dtype=mg.float64)
        with ddp.join(divide_by_initial_world_size=False):
            for _ in range(comm.rank):
                ddp(one).sum().backward()
        model.weight.grad = None
        ddp(one * comm.rank).sum().backward()
        return model.weight.grad.item()
    assert spawn(program, 2).values == [0.5, 0.5]
