"""Machines that several tests look at: small topologies of every shape."""

from simulator.shapes import cube_mesh, fat_tree, fully_connected, nodes, ring, switch, torus
from simulator.topology import Link

WIRE = Link("wire", 10e9, 2e-6)
CARD = Link("card", 1e9, 5e-6)
SHAPES = [ring(1, WIRE), ring(2, WIRE), ring(5, WIRE), fully_connected(6, WIRE), switch(7, WIRE), torus((3, 4), WIRE),
          torus((2, 3, 2), WIRE), fat_tree(12, 4, WIRE), fat_tree(12, 4, WIRE, 2), cube_mesh(WIRE), cube_mesh(WIRE, 5),
          nodes(3, switch(4, WIRE), CARD), nodes(2, cube_mesh(WIRE), CARD, nics=4),
          nodes(2, ring(4, WIRE), CARD, nics=1)]


def ids(topology):
    return topology.name
