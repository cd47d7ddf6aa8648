"""A machine as a picture and as text."""
import json
from itertools import combinations
from xml.etree import ElementTree

import pytest

import simulator as sim
from simulator.shapes import CUBE_MESH, nodes, switch, torus
from simulator.viz import topology as picture
from tests.simulator.machines import CARD, SHAPES, WIRE, ids


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
