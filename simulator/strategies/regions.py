"""Regions: which random numbers ranks have alike, and which each has for itself.

Where all ranks hold the same values ("replicated") they must drop the same ones, or they are no longer the same; where
each holds its own part ("sharded") it must drop others than its neighbours, or the model has a pattern.  (Megatron-LM:
`get_cuda_rng_tracker().fork()`.)  Here ranks draw the same keys in the same order as one device would, and a part of a
tensor gets its part of the mask of the whole: so dropout on many devices is that of one, if their streams began alike.
"""
from __future__ import annotations

from collections.abc import Sequence

import minigrad as mg
from minigrad import nn
from minigrad.nn import functional as F
from minigrad.streams import Generator, next_key
from simulator.communicator import Communicator

REGIONS = ("replicated", "sharded")
_ODD = 0x9E3779B97F4A7C15                    # 2**64 over the golden ratio: multiples of it are far apart


def dropout(x: mg.Tensor, p: float, comm: Communicator, region: str, training: bool = True, *, dim: int = -1,
            sizes: Sequence[int] | None = None, independent: bool = False,
            generator: Generator | None = None) -> mg.Tensor:
    """Dropout of `x`, which is the same on all ranks ("replicated"), or a part along `dim` of one tensor ("sharded").

    `sizes`: how long the parts are (None: all as this one).  The part takes its part of the mask of the whole, which
    each rank draws whole, in time and memory for it.  `independent` draws a mask of the part alone from a stream of
    this rank's own: as good, and cheaper, but not what one device would draw.  Either way the stream moves on by one
    key, as on one device."""
    if region not in REGIONS:
        raise ValueError(f"dropout: region {region!r} is none of {', '.join(REGIONS)}")
    if region == "replicated" or not (training and 0 < p <= 1):
        return F.dropout(x, p, training, generator=generator)
    if independent:
        return F.dropout(x, p, generator=_own(next_key(generator), comm.rank))
    dim = dim % x.ndim
    sizes = [x.shape[dim]] * comm.world_size if sizes is None else list(sizes)
    if len(sizes) != comm.world_size or sizes[comm.rank] != x.shape[dim]:
        raise ValueError(f"dropout: sizes={sizes} of {comm.world_size} parts, and dimension {dim} of the part of rank "
                         f"{comm.rank} is that of {tuple(x.shape)}")
    shape = (*x.shape[:dim], sum(sizes), *x.shape[dim + 1:])
    with mg.no_grad():
        whole = F.dropout(mg.ones(*shape, dtype=x.dtype, device=x.device), p, generator=_at(next_key(generator)))
    return x * whole.narrow(dim, sum(sizes[:comm.rank]), x.shape[dim])


class Dropout(nn.Dropout):
    """The layer for it; `sizes` of the parts, where they differ."""

    def __init__(self, p: float, comm: Communicator, region: str, dim: int = -1,
                 sizes: Sequence[int] | None = None) -> None:
        super().__init__(p)
        self.comm, self.region, self.dim, self.sizes = comm, region, dim, sizes

    def forward(self, x: mg.Tensor) -> mg.Tensor:
        return dropout(x, self.p, self.comm, self.region, self.training, dim=self.dim, sizes=self.sizes)


def _at(key: mg.Tensor) -> Generator:
    """A stream whose next key is this one."""
    seed, offset = key.tolist()
    generator = Generator(seed)
    generator.offset = offset - 1
    return generator


def _own(key: mg.Tensor, rank: int) -> Generator:
    """A stream of this rank's own, which begins at a key that all have."""
    generator = _at(key)
    generator.seed = (generator.seed + (rank + 1) * _ODD) % 2**63
    return generator


__all__ = ["Dropout", "REGIONS", "dropout"]
