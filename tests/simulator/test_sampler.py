"""DistributedSampler: the ranks share all items out; and numbers of the whole batch do not depend on how."""
from __future__ import annotations

import math

import numpy as np
import pytest

import minigrad as mg
from minigrad import nn
from minigrad.data import DataLoader
from simulator.errors import RankFailed
from simulator.spawn import spawn
from simulator.strategies import DistributedSampler, clip_grad_norm_, exact_mean, grad_norm, token_loss

LENGTHS, WORLDS = (0, 1, 2, 5, 12, 13), (1, 2, 3, 5, 8)


def walk(n, world, **how):
    return [list(DistributedSampler(range(n), world, rank, **how)) for rank in range(world)]


@pytest.mark.parametrize("shuffle", (False, True))
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("n", LENGTHS)
def test_all_items_once_and_then_the_first_ones_again(n, world, shuffle):
    ranks = walk(n, world, shuffle=shuffle)
    assert {len(r) for r in ranks} == {math.ceil(n / world)} == {len(DistributedSampler(range(n), world, 0))}
    order = [r[k] for k in range(len(ranks[0])) for r in ranks]           # as one device would read them
    assert sorted(order[:n]) == list(range(n)) and order[n:] == (order[:n] * world)[:len(order) - n]
    assert shuffle or order[:n] == list(range(n))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("n", LENGTHS)
def test_dropping_the_last_gives_none_twice(n, world):
    ranks = walk(n, world, drop_last=True)
    found = sorted(k for r in ranks for k in r)
    assert {len(r) for r in ranks} == {n // world} and len(set(found)) == len(found) == n // world * world


def test_epochs_have_orders_of_their_own_that_come_again():
    sampler = DistributedSampler(range(12), 2, 0, seed=3)
    orders = []
    for epoch in (0, 1, 0):
        sampler.set_epoch(epoch)
        orders.append(list(sampler))
    assert orders[0] == orders[2] != orders[1]
    assert list(DistributedSampler(range(12), 2, 0, seed=4)) == orders[1] != list(DistributedSampler(range(12), 2, 0))


def test_in_a_loader_with_the_ranks_of_a_communicator():
    def program(comm):
        sampler = DistributedSampler(range(10), shuffle=False, comm=comm)
        loader = DataLoader(list(range(10)), batch_size=2, sampler=sampler)
        return [batch.tolist() for batch in loader]
    assert spawn(program, 2).values == [[[0, 2], [4, 6], [8]], [[1, 3], [5, 7], [9]]]


def test_what_makes_no_sense_is_refused():
    for args in ((3, 3), (3, -1), (0, 0)):
        with pytest.raises(ValueError, match="rank="):
            DistributedSampler(range(4), *args)
    with pytest.raises(ValueError, match="comm=comm"):
        DistributedSampler(range(4), 2)


# ---- numbers of the whole ------------------------------------------------------------------------
@pytest.mark.parametrize("shuffle", (False, True))
def test_the_mean_over_a_dataset_is_the_same_bits_on_every_number_of_ranks(shuffle):
    values = (np.random.default_rng(0).standard_normal(23) * 10.0 ** np.arange(-11, 12)).tolist()

    def program(comm, drop_last):
        sampler = DistributedSampler(values, comm.world_size, comm.rank, shuffle, drop_last=drop_last)
        own = list(sampler)
        return exact_mean(comm, [mg.tensor(values[k], dtype=mg.float64) for k in own], len(values)), own
    for world in (1, 2, 3, 5, 23, 30):
        assert {mean for mean, _ in spawn(program, world, False).values} == {math.fsum(values) / 23}
        dropped = spawn(program, min(world, 23), True).values
        kept = [values[k] for _, own in dropped for k in own]
        assert {mean for mean, _ in dropped} == {math.fsum(kept) / len(kept)}


def test_the_mean_of_nothing_is_refused():
    with pytest.raises(RankFailed, match="no value"):
        spawn(lambda comm: exact_mean(comm, [], 0), 2)


@pytest.mark.parametrize("p", (1.0, 2.0, 3.0, math.inf))
def test_the_norm_of_all_gradients_counts_each_once(p):
    parts = [np.arange(3.0) - 1, np.full((2, 2), -5.0), np.empty(0), np.full(1, 4.0)]
    shared = np.array([2.0, -7.0, 1.0])

    def program(comm):
        own = [mg.tensor(parts[comm.rank]), None]
        return grad_norm(comm, sharded=own, replicated=[mg.tensor(shared)], norm_type=p), grad_norm(
            comm, replicated=[mg.tensor(shared)], norm_type=p)
    flat = np.concatenate([part.reshape(-1) for part in parts] + [shared])
    for both, alone in spawn(program, 4).values:
        assert both == pytest.approx(np.linalg.norm(flat, p)) and alone == pytest.approx(np.linalg.norm(shared, p))


def test_a_nan_on_one_rank_shows_on_all():
    def program(comm):
        g = mg.tensor([math.nan if comm.rank else 1.0])
        return [grad_norm(comm, sharded=[g], norm_type=p) for p in (2.0, math.inf)]
    assert np.isnan(spawn(program, 2).values).all()


def test_clipping_scales_all_parts_alike():
    def program(comm):
        own, shared = mg.tensor([3.0 + comm.rank]), mg.tensor([12.0])
        norm = clip_grad_norm_(comm, 1.0, sharded=[own], replicated=[shared, None])
        clip_grad_norm_(comm, 100.0, sharded=[own], replicated=[shared])      # is small enough
        return norm, own.item(), shared.item()
    (norm, a, shared), (same, b, _) = spawn(program, 2).values
    assert norm == same == 13.0
    assert (a, b, shared) == pytest.approx((3 / 13, 4 / 13, 12 / 13), rel=1e-5)


def test_the_mean_over_tokens_is_no_mean_of_means():
    def program(comm):
        w = nn.Parameter(mg.ones(1, dtype=mg.float64))
        tokens = mg.tensor([[1.0], [2.0, 3.0, 4.0], []][comm.rank], dtype=mg.float64)
        token_loss((w * tokens).sum(), len(tokens), comm).backward()
        return comm.all_reduce(w.grad, "mean").item()
    assert spawn(program, 3).values == [2.5] * 3
    for program, text in ((lambda comm: token_loss(mg.ones(()), 0, comm), "no rank of 2 has a token"),
                          (lambda comm: token_loss(mg.ones(()), -1, comm), "got -1")):
        with pytest.raises(RankFailed, match=text):
            spawn(program, 2)
