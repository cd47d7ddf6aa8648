"""A machine as a picture and as text."""
import json
from itertools import combinations
from xml.etree import ElementTree

import pytest

import simulator as sim
from simulator.shapes import CUBE_MESH, cube_mesh, fat_tree, fully_connected, nodes, ring, switch, torus
from simulator.topology import Link
from simulator.viz import topology as picture

WIRE = Link("wire", 10e9, 2e-6)
CARD = Link("card", 1e9, 5e-6)
SHAPES = [ring(1, WIRE), ring(2, WIRE), ring(5, WIRE), fully_connected(6, WIRE), switch(7, WIRE), torus((3, 4), WIRE),
          torus((2, 3, 2), WIRE), fat_tree(12, 4, WIRE), fat_tree(12, 4, WIRE, 2), cube_mesh(WIRE), cube_mesh(WIRE, 5),
          nodes(3, switch(4, WIRE), CARD), nodes(2, cube_mesh(WIRE), CARD, nics=4),
          nodes(2, ring(4, WIRE), CARD, nics=1)]


def ids(topology):
    return topology.name


# ---- pictures ------------------------------------------------------------------------------------
@pytest.mark.parametrize("topology", [*SHAPES, nodes(64, switch(8, WIRE), CARD), torus((20, 20), WIRE)], ids=ids)
def test_a_picture_has_every_box_and_wire_and_needs_nothing_from_outside(topology):
    told = json.loads(json.dumps(picture.data(topology)))
    shown = [rank for box in told["boxes"] for rank in box["ranks"]]
    assert sorted(shown) == list(range(topology.world_size))[:len(shown)] and len(shown) == len({*shown})
    assert len(shown) + told["hidden"] == topology.world_size
    if topology.world_size <= 32:
        wires = sum(w["count"] * (2 if w["both"] else 1) for w in told["wires"])
        assert wires == len(topology.edges) and not told["hidden"]
    for a, b in combinations(told["boxes"], 2):
        assert abs(a["x"] - b["x"]) + abs(a["y"] - b["y"]) > 0.4
    svg = topology._repr_html_()
    assert ElementTree.fromstring(svg).tag.endswith("svg") and "script" not in svg and svg.count("http") == 1
    assert len(svg) < 300_000 and topology.name in picture.text(topology)


def test_a_cluster_shows_its_devices():
    eight = sim.cluster("8 x A100")
    svg = eight.with_(device={3: sim.device("H100")})._repr_html_()
    assert "0-2, 4-7: A100-80 SXM" in svg and "3: H100 SXM" in svg
    text = picture.text(sim.cluster("DGX-1"))
    assert "     0   .  =1  =1  =2  =2  2A  2A  2A" in text and "22.6 GB/s" in text
    assert len(CUBE_MESH) == sum(row.count("=") for row in text.splitlines() if row.strip()[:1].isdigit()) / 2
