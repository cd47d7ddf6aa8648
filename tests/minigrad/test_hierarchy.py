"""The measured hierarchy: exact on made-up curves, right values from every loop, units, all put back after an error.

Nothing is asserted about the time of this machine.
"""

import json
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

import minigrad as mg
from minigrad.memory.hierarchy import ladder, locality, system, walks
from minigrad.memory.hierarchy.ladder import Point, fit
from minigrad.memory.hierarchy.locality import line_of
from minigrad.memory.hierarchy.roofs import OpPoint, Roof, Roofline, grown, place
from minigrad.memory.hierarchy.system import Cache, caches
from minigrad.ops.elementwise import Exp
from minigrad.ops.matmul import MatMul
from minigrad.ops.op import CATALOGUE
from minigrad.viz import hierarchy as viz

SIZES = [int(2 ** (e / 2)) // 64 * 64 for e in range(24, 57)]                # 4 KiB … 256 MiB


def curve(levels, sizes=SIZES, noise=0.03, seed=0):
    """[(largest size that fits or None, ns)] → points."""
    rng = np.random.default_rng(seed)
    cost = [next(ns for size, ns in levels if size is None or n <= size) for n in sizes]
    return [Point(n, c * (1 + noise * rng.uniform(-1, 1))) for n, c in zip(sizes, cost)]


L1, L2, L3 = 2**15, 2**19, 2**25


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("levels", [
    [(L1, 1.0), (L2, 4.0), (L3, 15.0), (None, 90.0)],
    [(2**16, 1.0), (2**22, 6.0), (None, 100.0)],
    [(L1, 1.0), (None, 80.0)],
])
def test_a_curve_with_known_steps_is_found_exactly(levels, seed):
    told = [Cache(i + 1, size) for i, (size, _) in enumerate(levels[:-1])]
    for known in (told, ()):
        found = fit(curve(levels, seed=seed), known)
        assert [level.nbytes for level in found] == [size for size, _ in levels]
        np.testing.assert_allclose([level.ns_per_read for level in found], [ns for _, ns in levels], rtol=0.03)
        assert [level.name for level in found] == [f"L{i + 1}" for i in range(len(levels) - 1)] + ["memory"]
        assert [level.told_nbytes for level in found] == [c.nbytes for c in known] + [None] * (len(found) - len(known))


def test_a_cache_that_holds_less_than_it_is_told_to():
    found = fit(curve([(L1, 1.0), (L2, 4.0), (2**22, 15.0), (None, 90.0)]), [Cache(1, L1), Cache(2, L2), Cache(3, L3)])
    assert [level.nbytes for level in found] == [L1, L2, 2**22, None] and found[2].told_nbytes == L3


def test_a_walk_that_ends_within_a_cache():
    found = fit(curve([(L1, 1.0), (None, 4.0)], [n for n in SIZES if n <= 2**18]), [Cache(1, L1), Cache(2, L2)])
    assert [(level.name, level.nbytes) for level in found] == [("L1", L1), ("L2", None)]
    flat = fit([Point(2**k, 1.0) for k in range(12, 15)], [Cache(1, L1)])
    assert [(level.name, level.nbytes, level.ns_per_read) for level in flat] == [("L1", None, 1.0)]


@pytest.mark.parametrize("line", [32, 64, 128])
def test_the_line_of_a_made_up_curve(line):
    each = [4 << k for k in range(10)]
    assert line_of(each, [min(s, line) / 4 for s in each]) == line


def test_what_the_system_tells(tmp_path):
    rows = [("Data", 1, "32K", "0"), ("Instruction", 1, "32K", "0"), ("Unified", 2, "512K", "0-1"),
            ("Unified", 3, "32M", "0-3,8-11"), ("Unified", 4, "", "x")]
    for k, (kind, level, size, cpus) in enumerate(rows):
        folder = tmp_path / "cache" / f"index{k}"
        folder.mkdir(parents=True)
        told = dict(type=kind, level=level, size=size, coherency_line_size=64, shared_cpu_list=cpus)
        for name, value in told.items():
            (folder / name).write_text(f"{value}\n", encoding="ascii")
    assert caches(tmp_path) == (Cache(1, 2**15, 64, 1), Cache(2, 2**19, 64, 2), Cache(3, 2**25, 64, 8))
    assert caches(tmp_path)[2].name == "L3" and isinstance(caches(tmp_path / "nothing"), tuple)


# ---- the loops -----------------------------------------------------------------------------------
def test_a_ring_visits_each_line_once():
    places = walks.ring(64 * 50)
    seen, at = [], 0
    for _ in range(50):
        seen.append(at)
        at = places[at]
    assert at == 0 and sorted(seen) == list(range(0, 400, 8))
    assert walks.chase(places, 0, 7) == seen[7]


@pytest.mark.parametrize("kind", ["python", "compiled"])
@pytest.mark.parametrize("shape", [(3, 5, 7), (8, 8, 8), (5, 18, 11)])
def test_every_order_of_loops_gives_the_same_product(kind, shape):
    loops = walks if kind == "python" else walks.compiled()
    if loops is None:
        pytest.skip("numba is not installed")
    n, m, p = shape
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((n, m), np.float32), rng.standard_normal((m, p), np.float32)
    want, c = np.empty((n, p), np.float32), np.empty((n, p), np.float32)
    loops.matmul_ijk(a, b, want)
    np.testing.assert_allclose(want, a @ b, rtol=1e-4, atol=1e-5)             # BLAS adds in another order
    tiles = [lambda t=t: loops.matmul_tiled(a, b, c, t) for t in (1, 2, 4, 6, 64)]
    for run in (lambda: loops.matmul_ikj(a, b, c), *tiles):
        c[:] = np.nan
        run()
        np.testing.assert_array_equal(c, want)                                # added in the same order: the same bits
    for run in (lambda: walks.matmul_rows_numpy(a, b, c), lambda: walks.matmul_tiles_numpy(a, b, c, 4)):
        c[:] = np.nan
        run()
        np.testing.assert_array_equal(c, want)


@pytest.mark.parametrize("block", [1, 4, 7, 50])
def test_blocks_transpose(block):
    x = np.arange(35.0, dtype=np.float32).reshape(5, 7)
    for turn in (walks.transpose_blocks, walks.transpose_numpy, getattr(walks.compiled(), "transpose_blocks", None)):
        y = np.full((7, 5), np.nan, np.float32)
        if turn is not None:
            turn(x, y, block)
            np.testing.assert_array_equal(y, x.T)


def test_triad_and_sums_with_gaps():
    rng = np.random.default_rng(0)
    b, c = rng.standard_normal((2, 9))
    for add in (walks.triad, walks.triad_numpy):
        a = np.empty(9)
        add(a, b, c, 3.0)
        np.testing.assert_allclose(a, b + 3 * c)
    assert walks.stride_sum(np.arange(10), 3, 2) == 2 * (0 + 3 + 6 + 9)


# ---- the roofline --------------------------------------------------------------------------------
def test_points_under_a_roof_in_closed_form():
    roof = Roof("made up", 1, flops_per_s=100e9, bandwidth_Bps=20e9)
    assert roof.ridge == 5 and roof.reach(1) == 20e9 and roof.reach(50) == 100e9
    assert roof.least_s(100e9, 20e9) == 1 and roof.least_s(0, 40e9) == 2
    memory, arithmetic = OpPoint("m", "", 10**9, 10**9, 0.1), OpPoint("a", "", 10**11, 10**9, 4.0)
    assert memory.intensity == 1 and memory.flops_per_s == 1e10 and memory.bound(roof) == "memory"
    assert memory.share(roof) == 0.5 and memory.flops_per_s / roof.reach(memory.intensity) == 0.5
    assert arithmetic.bound(roof) == "arithmetic" and arithmetic.share(roof) == 0.25
    moved = OpPoint("copy", "", 0, 2 * 10**9, 0.2)
    assert moved.intensity == 0 and moved.share(roof) == 0.5
    told = str(Roofline((roof,), (memory, arithmetic, moved), (), (), "none"))
    assert "50%  memory" in told and "25%  arithmetic" in told and "ridge at 5" in told


def test_samples_grow():
    assert grown("normal(3,4).T", 4) == "normal(12,16).T" and grown("index(3)<4", 4) == "index(12)<4"
    assert grown("normal(3,1,2)", 2) == "normal(6,1,4)" and grown("normal()", 4) == "normal()"
    assert grown("normal(2,3)", 4, like="normal(2,9)") == "normal(8,3)"
    assert grown("normal(5,3)", 4, like="normal(2,9)") == "normal(5,3)"


def test_an_op_is_placed_by_what_it_counts_for_itself():
    found = place(MatMul, 2**18)
    exp = place(Exp, 2**18)
    assert found.flops > 0 and found.seconds > 0 and found.nbytes <= 4 * 2**18
    n = int(np.prod([int(k) for k in exp.inputs.removeprefix("normal(").rstrip(").T[:2]").split(",")]))
    assert exp.flops % n == 0 and exp.nbytes == 8 * n and n > 12


def test_every_op_of_the_catalogue_has_its_place():
    points = {cls: place(cls, 2**12, enough_s=1e-5) for cls in CATALOGUE[::5]}
    assert all(p is not None and p.seconds > 0 and p.nbytes >= 0 for p in points.values()), points


# ---- measured, small --------------------------------------------------------------------------------
def quick(name):
    hierarchy = mg.memory.hierarchy
    return getattr(hierarchy, name)(quick=True, progress=False)


NAMES = ["cache_ladder", "strides", "blocked_transpose", "tiled_matmul", "roofline"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("numba", [True, False])
def test_what_is_measured_has_its_units_and_its_views(name, numba, monkeypatch):
    if not numba:
        for place_ in (walks, ladder):
            monkeypatch.setattr(place_, "compiled", lambda: None)
    found = quick(name)
    numbers = json.loads(json.dumps(viz.data(found)))
    assert numbers["kind"] == type(found).__name__ and viz.text(found) == str(found)
    picture = ElementTree.fromstring(viz.svg(found))
    assert picture.tag.endswith("svg") and viz.svg(found) in viz.html(found)
    assert set(found._repr_mimebundle_()) == {"text/plain", "image/svg+xml"}
    if name == "cache_ladder":
        assert all(p.ns_per_read > 0 for p in found.points) and found.disk.cached_Bps > 0 and "ns a read" in str(found)
        assert ("not dependent" in found.reads) == (not numba or walks.compiled() is None)
    elif name == "strides":
        assert min(found.ns) > 0 and found.line_nbytes in found.stride_nbytes
    elif name == "roofline":
        assert len(found.points) + len(found.small) + len(found.views) == 8 and min(r.ridge for r in found.roofs) > 0
    else:
        assert all(run.seconds > 0 and run.rate > 0 for run in found.runs) and len({r.block for r in found.runs}) > 1


def test_a_picture_of_something_else_is_refused():
    with pytest.raises(TypeError, match="Ladder, Strides, Blocking, Roofline, got int"):
        viz.svg(3)


# ---- put back --------------------------------------------------------------------------------------
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_the_file_is_removed_after_an_error(error, tmp_path, monkeypatch):
    ladder.disk_reads(2**16, str(tmp_path))
    assert not list(tmp_path.iterdir())

    def fails(*_):
        assert list(tmp_path.rglob("*.bin"))
        raise error

    monkeypatch.setattr(ladder, "_read_s", fails)
    with pytest.raises(error):
        ladder.disk_reads(2**16, str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_system_that_cannot_drop_its_copy_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(ladder, "drop", lambda path: False)
    found = ladder.disk_reads(2**16, str(tmp_path))
    assert not found.dropped and found.dropped_read_s is None
    levels = (ladder.Level("L1", 1.0, None),)
    assert "not measured" in str(ladder.Ladder((Point(4096, 1.0), Point(8192, 1.0)), levels, found, "none", "reads"))


def test_threads_are_as_before_after_an_error():
    before = system.blas_threads()
    with pytest.raises(KeyboardInterrupt):
        with system.blas_limited(1):
            assert system.blas_threads() in (1, None)
            raise KeyboardInterrupt
    assert system.blas_threads() == before


def test_a_wrong_product_is_not_told(monkeypatch):
    wrong = lambda a, b, c, *_: c.fill(0)  # noqa: E731
    monkeypatch.setattr(walks, "compiled", lambda: None)
    monkeypatch.setattr(walks, "matmul_rows_numpy", wrong)
    before = system.blas_threads()
    with pytest.raises(RuntimeError, match="matrix product, ikj, rows of NumPy"):
        locality.tiled_matmul(quick=True, progress=False)
    with pytest.raises(RuntimeError, match="transposition in blocks of 128"):
        monkeypatch.setattr(walks, "transpose_numpy", lambda x, y, block: y.fill(0))
        locality.blocked_transpose(quick=True, progress=False)
    assert system.blas_threads() == before
