"""Quantities with units, published tables, devices, clusters."""
import pickle
from dataclasses import FrozenInstanceError
from math import isnan

import numpy as np
import pytest

import simulator as sim
from minigrad.errors import SimOutOfMemory
from simulator import units
from simulator.device import names
from simulator.published import known, table
from simulator.shapes import fully_connected, ring
from simulator.topology import Link, link

WIRE = Link("wire", 10e9, 2e-6)


# ---- units ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("text, unit, value", [
    ("80 GB", "B", 80e9), ("80GiB", "B", 80 * 2**30), ("1_000 B", "B", 1000), ("3", "B", 3), ("1.5 us", "s", 1.5e-6),
    ("2e-3 s", "s", 2e-3), ("200 Gbit/s", "B/s", 25e9), ("900 GB/s", "B/s", 9e11), ("312 TFLOP/s", "FLOP/s", 312e12),
    ("6 GFLOP", "FLOP", 6e9), (7.5, "s", 7.5), ("-1 ms", "s", -1e-3), (".5 kB", "B", 500)])
def test_quantities_are_read_with_their_unit(text, unit, value):
    assert units.parse(text, unit) == value


@pytest.mark.parametrize("text, unit", [("80 GB", "s"), ("3 us", "B/s"), ("fast", "B"), ("1 mB", "B"), ("GB", "B"),
                                        ("1 GB/s", "B"), ("1 Gibit", "FLOP")])
def test_a_quantity_of_another_kind_is_refused(text, unit):
    with pytest.raises(ValueError, match="parse: "):
        units.parse(text, unit)


def test_what_is_shown_is_read_back():
    rng = np.random.default_rng(0)
    for unit in units.UNITS:
        for exponent in range(-9 if unit == "s" else 0, 16):
            value = float(f"{10.0**exponent * rng.uniform(1, 9):.3e}")
            assert units.parse(units.show(value, unit), unit) == pytest.approx(value, rel=1e-12)
    assert units.show(0, "s") == "0 s" and units.show(float("inf"), "B") == "inf B"
    assert units.show(2.5e10, "B/s") == "25 GB/s" and units.show(0.9999996, "s") == "1 s"


# ---- published -----------------------------------------------------------------------------------
def test_tables_say_where_they_are_from():
    assert {"device_specs", "link_specs", "v100_cubemesh_allreduce"} <= {*known()}
    for name in known():
        rows = table(name)
        assert rows.notes[0].startswith("source: ") and rows.source and len(rows) and all(None not in r for r in rows)
    with pytest.raises(ValueError, match="no table 'x'; there are device_specs"):
        table("x")
    with pytest.raises(ValueError, match="0 rows with"):
        table("device_specs").only(device="A17")
    with pytest.raises(ValueError, match="no column 'colour'"):
        table("device_specs").where(colour="red")


def test_hidden_hides_what_is_held_out_and_nothing_else():
    shown, hidden = table("v100_cubemesh_allreduce"), table("v100_cubemesh_allreduce").hidden()
    for a, b in zip(shown, hidden):
        for column, value in a.items():
            held = a["split"] == "holdout" and column.startswith("measured")
            assert isnan(b[column]) if held else b[column] == value


# ---- devices -------------------------------------------------------------------------------------
def spec(**changes):
    return sim.DeviceSpec("chip", {"float32": 1e12, "float16": 4e12}, 1e9, 1e11, 0.5, 1e-6).with_(**changes)


def test_work_takes_the_longer_of_computing_and_moving_and_a_launch():
    chip = spec()
    assert chip.compute_s(1e9, 1) == 1e9 / (1e12 * 0.5) + 1e-6
    assert chip.compute_s(1, 1e9) == 1e9 / 1e11 + 1e-6
    assert chip.compute_s(1e9, 1, "float16") == chip.compute_s(1e9, 1, np.dtype("float16")) == 1e9 / 2e12 + 1e-6
    assert chip.compute_s(0, 0, "int64") == chip.launch_s


def test_bad_work_and_bad_devices_are_refused():
    with pytest.raises(ValueError, match="no peak rate is known for float64; known are float32, float16"):
        spec().compute_s(1, 1, "float64")
    assert spec(peak_flops={"float64": 1e11}).compute_s(1e9, 0, "float64") == 1e9 / 0.5e11 + 1e-6
    with pytest.raises(ValueError, match="at least 0, got -1"):
        spec().compute_s(-1, 0)
    for change in ({"efficiency": 1.5}, {"efficiency": 0}, {"memory_bytes": -1}, {"memory_bytes_per_s": float("inf")},
                   {"launch_s": -1e-6}, {"peak_flops": {"float32": 0}}):
        with pytest.raises(ValueError, match=f"chip.*{next(iter(change))}"):
            spec(**change)
    with pytest.raises(ValueError, match="peak_flops is empty"):
        sim.DeviceSpec("chip", {}, 1, 1)


def test_a_device_is_a_value():
    chip = spec()
    assert chip == spec() and hash(chip) == hash(spec()) and chip != spec(launch_s=0)
    assert pickle.loads(pickle.dumps(chip)) == chip
    with pytest.raises(FrozenInstanceError):
        chip.efficiency = 1
    for change in (lambda: chip.peak_flops.update(float32=1), lambda: chip.peak_flops.__setitem__("float32", 1)):
        with pytest.raises(TypeError, match="another one with .with_"):
            change()


def test_a_tensor_that_does_not_fit_is_refused_with_the_numbers():
    spec().check_fits(1e9)
    with pytest.raises(SimOutOfMemory, match="a tensor of 600 MB does not fit device chip: 500 MB of 1 GB are in use"):
        spec().check_fits(6e8, in_use=5e8)


def test_every_published_device_is_a_preset():
    for name in names():
        chip = sim.device(name)
        assert chip.name == name and 0 < chip.efficiency <= 1 and chip.source and str(chip).count("FLOP/s") >= 1
    assert sim.device("A100") is sim.device("A100") and sim.device("A100") == sim.device("A100-80 SXM")
    assert sim.device("A100").efficiency == 0.869 and "assumed" in sim.device("A100").source
    assert sim.device("V100").peak_flops == {"float32": 15.7e12, "float16": 125e12}
    with pytest.raises(ValueError, match="device 'A10': several: A100-40 SXM"):
        sim.device("A10")
    with pytest.raises(ValueError, match="device 'Z80': unknown; there are V100"):
        sim.device("Z80")


# ---- clusters ------------------------------------------------------------------------------------
@pytest.mark.parametrize("name, size, shape", [
    ("8 x A100", 8, "switch(8)"), ("2 x 8 x H100", 16, "2 nodes of switch(8)"), ("DGX-1", 8, "cube_mesh"),
    ("16 x A100", 16, "2 nodes of switch(8)"), ("5 x V100", 5, "cube_mesh(5)"),
    ("3x4xB200", 12, "3 nodes of switch(4)"),
    ("8 x MI300X", 8, "fully_connected(8)"), ("72 x GB200", 72, "switch(72)"), ("1 x A100-80 PCIe", 1, "switch(1)"),
    ("2 x 8 x V100", 16, "2 nodes of cube_mesh"), ("1 x 16 x V100", 16, "switch(16)")])
def test_presets(name, size, shape):
    found = sim.cluster(name)
    assert found.world_size == len(found.devices) == size and found.topology.name == shape
    text = str(found)
    assert "GB/s" in text and "efficiency" in text and shape in text and repr(found).startswith("<Cluster of ")
    assert all(edge.link.source for edge in found.topology.edges)


@pytest.mark.parametrize("name, words", [
    ("A100", "write it like"), ("12 x A100", "nodes of 8, and 12 is not a multiple"), ("0 x A100", "at least one node"),
    ("8 x Z80", "unknown"), ("8 x TPU v4", "no rate is published for ICI 3D torus"),
    ("0 x 8 x H100", "at least one node")])
def test_unknown_clusters_are_refused(name, words):
    with pytest.raises(ValueError, match=words):
        sim.cluster(name)


def test_a_cluster_is_a_value():
    eight = sim.cluster("8 x A100")
    assert eight == sim.cluster("8 x A100") and hash(eight) == hash(sim.cluster("8 x A100"))
    assert pickle.loads(pickle.dumps(eight)) == eight
    with pytest.raises(FrozenInstanceError):
        eight.topology = ring(8, WIRE)
    slow = eight.with_(device={3: eight.devices[3].with_(efficiency=0.4)})
    assert [d.efficiency for d in slow.devices].count(0.4) == 1 and eight.devices[3].efficiency == 0.869
    assert "  0-2: A100" in str(slow) and "  3: A100" in str(slow) and slow != eight
    other = eight.with_(topology=ring(4, WIRE), device=sim.device("H100"))
    assert other.world_size == 4 and {d.name for d in other.devices} == {"H100 SXM"}
    with pytest.raises(ValueError, match="8 devices for ring.4., which has places for 4"):
        eight.with_(topology=ring(4, WIRE))
    with pytest.raises(ValueError, match="device 8 is not in"):
        eight.with_(device={8: sim.device("H100")})
    assert sim.uniform(3).topology == fully_connected(3, link("NVLink3"))
