"""Which items PyTorch's DistributedSampler gives each rank; of shuffled ones how many, since the draws differ."""
from __future__ import annotations

import pytest

from simulator.strategies import DistributedSampler

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("drop_last", (False, True))
@pytest.mark.parametrize("world", (1, 2, 3, 4, 7))
@pytest.mark.parametrize("n", (0, 1, 2, 3, 10, 12, 13))
def test_the_same_items(n, world, drop_last):
    for rank in range(world):
        theirs = torch.utils.data.distributed.DistributedSampler(range(n), world, rank, False, drop_last=drop_last)
        ours = DistributedSampler(range(n), world, rank, False, drop_last=drop_last)
        if n:
            assert list(ours) == list(theirs)
        assert len(ours) == len(theirs) and ours.num_samples == theirs.num_samples
        assert ours.total_size == theirs.total_size
        ours.set_epoch(3)
        assert len(list(DistributedSampler(range(n), world, rank, drop_last=drop_last))) == len(theirs)
