"""Which parameters PyTorch's DistributedDataParallel puts in one bucket."""
from __future__ import annotations

import numpy as np
import pytest

import minigrad as mg
from simulator.strategies.buckets import FIRST_BYTES, assign_buckets

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("seed", range(30))
def test_the_same_buckets(seed):
    assign = getattr(torch.distributed, "_compute_bucket_assignment_by_size", None)
    if assign is None:
        pytest.skip("this torch was built without distributed")
    rng = np.random.default_rng(seed)
    sizes, cap = rng.integers(0, 200_000, 12).tolist(), int(rng.integers(0, 2_000_000))
    dtypes = rng.choice(["float32", "float64"] if seed % 2 else ["float32"], 12).tolist()
    theirs, _ = assign([torch.empty(n, dtype=getattr(torch, d)) for n, d in zip(sizes, dtypes)],
                       [min(FIRST_BYTES, cap), cap])
    ours = assign_buckets([mg.empty(n, dtype=getattr(mg, d)) for n, d in zip(sizes, dtypes)], range(12), cap)
    found = [list(b.numbers) for b in ours]
    assert sorted(found) == sorted(theirs)
    assert found == theirs or seed % 2                       # PyTorch sorts those of several dtypes by their first
