"""Dropout by region: alike where all hold the same, a part of one mask where each holds a part; from a seed, again."""
from __future__ import annotations

import numpy as np
import pytest

import minigrad as mg
from minigrad import nn
from minigrad.nn import functional as F
from simulator.spawn import spawn
from simulator.strategies.regions import Dropout, dropout
from simulator.strategies.sequence import SequenceRegion
from simulator.strategies.shards import Shard

WORLDS = (1, 2, 3, 5)
X = np.random.default_rng(0).standard_normal((4, 7, 6))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_parts_of_a_tensor_get_parts_of_its_mask(world, dim):
    """Values and gradients are those of one device, bit for bit, in the order of its draws."""
    def one():
        mg.manual_seed(3)
        x = mg.tensor(X, requires_grad=True)
        y = F.dropout(F.dropout(x, 0.3) * 2, 0.6)
        (y * y).sum().backward()
        return y.detach().numpy(), x.grad.numpy()

    def program(comm):
        mg.manual_seed(3)
        shard = Shard.even(comm, dim % 3, X.shape[dim])
        x = shard.of(mg.tensor(X)).requires_grad_()
        drop = lambda x, p: dropout(x, p, comm, "sharded", dim=dim, sizes=shard.sizes)
        y = drop(drop(x, 0.3) * 2, 0.6)
        (y * y).sum().backward()
        return shard.gathered(y).numpy(), shard.gathered(x.grad).numpy()
    want = one()
    for got in spawn(program, world, timeout=20).values:
        for a, b in zip(got, want):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("region, alike", [("replicated", True), ("sharded", False)])
@pytest.mark.parametrize("independent", [False, True])
def test_masks_of_ranks(region, alike, independent):
    def program(comm, seed):
        g = mg.Generator(seed)
        draw = lambda: (dropout(mg.ones(50, 20), 0.25, comm, region, generator=g, independent=independent) != 0).numpy()
        return [draw(), draw()], g.offset
    first, again = (spawn(program, 3, 11, timeout=20).values for _ in range(2))
    other = spawn(program, 3, 12, timeout=20).values
    for rank in range(3):
        assert first[rank][1] == 2, "one key a call, on each rank"
        for k in range(2):
            mask = first[rank][0][k]
            assert (mask == again[rank][0][k]).all() and (mask != other[rank][0][k]).any()
            assert abs(mask.mean() - 0.75) < 0.07            # five standard deviations of 1000 draws
        assert (first[rank][0][0] != first[rank][0][1]).any()
        assert (first[rank][0][0] == first[0][0][0]).all() == (alike or rank == 0)


def test_streams_stay_in_step_whatever_was_drawn_between():
    """After dropout of a part, what all draw alike is alike, and as on one device."""
    def program(comm):
        mg.manual_seed(5)
        dropout(mg.ones(4), 0.5, comm, "sharded", independent=comm.world_size == 3)
        return mg.randn(3).tolist()
    mg.manual_seed(5)
    F.dropout(mg.ones(12), 0.5)
    want = mg.randn(3).tolist()
    for world in (2, 3):
        assert spawn(program, world, timeout=20).values == [want] * world


def test_layers_and_evaluation():
    def program(comm):
        x = mg.ones(3, 4)
        layer = Dropout(0.5, comm, "sharded", dim=0)
        before = mg.get_rng_state().tolist()
        assert (layer.eval()(x) == x).all().item() and mg.get_rng_state().tolist() == before
        y = layer.train()(x)
        mg.set_rng_state(mg.tensor(before))
        whole = F.dropout(mg.ones(3 * comm.world_size, 4), 0.5)
        assert (y == whole[3 * comm.rank:3 * comm.rank + 3]).all().item()
        assert isinstance(layer, nn.Dropout) and dropout(x, 1.0, comm, "sharded").sum().item() == 0
    spawn(program, 2, timeout=20)


@pytest.mark.parametrize("world", WORLDS)
def test_a_sequence_is_cut_and_joined(world):
    def program(comm):
        region = SequenceRegion(comm)
        x = mg.tensor(X, requires_grad=True)
        part = region.scatter(x)
        assert region.sizes == [len(p) for p in np.array_split(np.arange(7), world)]
        assert part.shape == (4, region.sizes[comm.rank], 6)
        total = region.reduce_scatter(region.gather(part) / comm.world_size)
        np.testing.assert_allclose(total.detach().numpy(), part.detach().numpy(), rtol=1e-14)
        numbers = mg.cat(comm.all_gather(region.own(mg.arange(7))))
        assert numbers.tolist() == list(range(7))
    spawn(program, world, timeout=20)


@pytest.mark.parametrize("call, words", [
    (lambda c: dropout(mg.ones(2), 0.5, c, "other"), "region 'other' is none of replicated, sharded"),
    (lambda c: dropout(mg.ones(2), 0.5, c, "sharded", sizes=[3, 3]), r"sizes=\[3, 3\] of 2 parts"),
    (lambda c: dropout(mg.ones(2), 1.5, c, "sharded"), "p must be a probability"),
])
def test_refused(call, words):
    def program(comm):
        before = mg.get_rng_state().tolist()
        with pytest.raises(ValueError, match=words):
            call(comm)
        assert mg.get_rng_state().tolist() == before
    spawn(program, 2, timeout=20)
