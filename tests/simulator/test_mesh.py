"""Mesh: its groups along each axis are the slices of a NumPy grid, and their collectives stay within."""
from __future__ import annotations

import numpy as np
import pytest

from simulator.mesh import Mesh
from simulator.spawn import spawn

SHAPES = [{"dp": 1}, {"dp": 5}, {"dp": 2, "tp": 3},
          {"pp": 2, "dp": 2, "tp": 2}, {"a": 1, "b": 4, "c": 1}, {"tp": 2, "dp": 3}]


@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_groups_are_the_slices_of_the_grid(sizes):
    world = int(np.prod(list(sizes.values())))
    grid = np.arange(world).reshape(tuple(sizes.values()))

    def program(comm):
        mesh = Mesh(comm, **sizes)
        place = np.unravel_index(comm.rank, grid.shape)
        for axis, name in enumerate(sizes):
            line = grid[tuple(slice(None) if a == axis else k for a, k in enumerate(place))]
            assert mesh[name].ranks == tuple(line) and line[mesh[name].rank] == comm.rank
            assert tuple(line) in mesh.ranks(name) and sorted(sum(mesh.ranks(name), ())) == list(range(world))
            assert mesh[name].all_reduce(comm.rank) == line.sum()
            assert mesh.rank_at(**{name: 0}) == line[0]
        assert mesh.place == dict(zip(sizes, place)) and mesh.rank_at() == comm.rank
        names = tuple(sizes)[:2]
        if len(names) == 2:
            plane = grid[(slice(None), slice(None), *place[2:])]
            assert mesh[names].ranks == tuple(plane.reshape(-1))
            assert mesh[names[::-1]].ranks == tuple(plane.T.reshape(-1)), "in the order of the names"
            assert mesh[names].all_gather(comm.rank) == list(mesh[names].ranks)
    spawn(program, world, timeout=20)


def test_the_rest_and_the_text():
    def program(comm):
        return repr(Mesh(comm, dp=-1, tp=2))
    assert spawn(program, 4).values[3] == "mesh dp=2 × tp=2 of 4 ranks\n  dp: (0 2) (1 3)\n  tp: (0 1) (2 3)"
    assert spawn(program, 4).nbytes.sum() == 0


@pytest.mark.parametrize("sizes, error, words", [
    ({"dp": 3, "tp": 2}, ValueError, "multiply to 6, and there are 4 ranks"),
    ({"dp": -1, "tp": 3}, ValueError, "4 ranks are no multiple of 3, so dp has no size"),
    ({"dp": -1, "tp": -1}, ValueError, "one of them may be -1"),
    ({"dp": 0, "tp": -1}, ValueError, "at least 1"),
    ({}, TypeError, "no axes"),
    ({"dp": 2.0}, TypeError, "dp=2.0"),
])
def test_sizes_that_cannot_be(sizes, error, words):
    def program(comm):
        with pytest.raises(error, match=words):
            Mesh(comm, **sizes)
    spawn(program, 4)


def test_unknown_axes():
    def program(comm):
        mesh = Mesh(comm, dp=2)
        for bad in ("tp", (), ("dp", "dp"), ("dp", "tp")):
            with pytest.raises(KeyError, match="names no axes of the mesh dp=2 of 2 ranks"):
                mesh[bad]
        with pytest.raises(ValueError, match="there is no dp=2 in"):
            mesh.rank_at(dp=2)
    spawn(program, 2)
