"""A mesh: the ranks as a grid with named axes, and along each axis a communicator.

    mesh = Mesh(comm, dp=2, tp=4)            # rank = 4 · (place in dp) + (place in tp)
    mesh["tp"].all_reduce(x)                 # among the four ranks that share a place in dp

As `torch.distributed.device_mesh.init_device_mesh`; there is no global one.  After `communicator.py`.
"""
from __future__ import annotations

from math import prod

import numpy as np

from simulator.communicator import Communicator


class Mesh:
    """The ranks of `comm` as a grid; one size may be -1, which is what remains.

    The last axis varies fastest, so its groups are consecutive ranks: give it the talk that needs the fastest links.
    All ranks make the same mesh together; it takes no bytes."""

    def __init__(self, comm: Communicator, **sizes: int) -> None:
        self.comm, self.sizes = comm, _filled(comm.world_size, sizes)
        self.grid = np.arange(comm.world_size).reshape(tuple(self.sizes.values()))
        place = np.unravel_index(comm.rank, self.grid.shape)
        self.place = {name: int(k) for name, k in zip(self.sizes, place)}
        self._groups: dict[tuple[str, ...], Communicator] = {}
        for name in self.sizes:
            self._groups[(name,)] = self._along((name,))

    def __getitem__(self, names: str | tuple[str, ...]) -> Communicator:
        """The ranks that differ from this one in the axis of that name alone; with several names, in those, as one
        group in their order.  Several names for the first time are asked for by all ranks together."""
        key = (names,) if isinstance(names, str) else tuple(names)
        strange = [name for name in key if name not in self.sizes]
        if strange or not key or len(set(key)) < len(key):
            raise KeyError(f"{names!r} names no axes of the {self}")
        if key not in self._groups:
            self._groups[key] = self._along(key)
        return self._groups[key]

    def ranks(self, *names: str) -> list[tuple[int, ...]]:
        """All groups along these axes, as ranks of `comm`."""
        axes = [list(self.sizes).index(name) for name in names]
        last = np.moveaxis(self.grid, axes, range(-len(axes), 0))
        return [tuple(map(int, row)) for row in last.reshape(-1, prod(self.sizes[name] for name in names))]

    def rank_at(self, **place: int) -> int:
        """The rank at this place; axes that are not named are as for this rank."""
        for name, k in place.items():
            if name not in self.sizes or not 0 <= k < self.sizes[name]:
                raise ValueError(f"rank_at: there is no {name}={k} in the {self}")
        return int(self.grid[tuple({**self.place, **place}.values())])

    def _along(self, names: tuple[str, ...]) -> Communicator:
        mine = next((color, group) for color, group in enumerate(self.ranks(*names)) if self.comm.rank in group)
        color, group = mine
        found = self.comm.split(color, key=group.index(self.comm.rank))
        assert found is not None
        return found

    def __str__(self) -> str:
        axes = " × ".join(f"{name}={size}" for name, size in self.sizes.items())
        return f"mesh {axes} of {self.comm.world_size} ranks"

    def __repr__(self) -> str:
        rows = [f"  {name}: " + " ".join(f"({' '.join(map(str, group))})" for group in self.ranks(name))
                for name in self.sizes]
        return "\n".join([str(self), *rows])


def _filled(world: int, sizes: dict[str, int]) -> dict[str, int]:
    """The sizes with -1 replaced, or an error that names the numbers."""
    told = ", ".join(f"{name}={size}" for name, size in sizes.items())
    if not sizes or any(isinstance(n, bool) or not isinstance(n, (int, np.integer)) for n in sizes.values()):
        raise TypeError(f"Mesh: give each axis a size, as in Mesh(comm, dp=2, tp=4); got {told or 'no axes'}")
    open_axes = [name for name, size in sizes.items() if size == -1]
    rest = prod(size for size in sizes.values() if size != -1)
    if len(open_axes) > 1 or any(size < 1 for size in sizes.values() if size != -1):
        raise ValueError(f"Mesh: sizes are at least 1, and one of them may be -1; got {told}")
    if open_axes and world % rest:
        raise ValueError(f"Mesh({told}): {world} ranks are no multiple of {rest}, so {open_axes[0]} has no size")
    if not open_axes and rest != world:
        raise ValueError(f"Mesh({told}): the sizes multiply to {rest}, and there are {world} ranks. Give an axis -1 to "
                         f"have what remains")
    return {name: world // rest if size == -1 else int(size) for name, size in sizes.items()}


__all__ = ["Mesh"]
