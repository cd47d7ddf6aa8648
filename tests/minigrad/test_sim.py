"""The simulated device lets nothing move unasked, has what CuPy has, and counts every byte."""
import copy
import gc
import threading

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from minigrad import sim_allow as allow
from minigrad.errors import SimOutOfMemory
from minigrad.sim import SimArray, SimDevice, sim_device
from tests.minigrad.sim_rows import HERE, account, check_same, on, rng, rows, run, table

# -- refusals

UNASKED = rows("""
    float(x); int(x); complex(x); bool(x); not x; round(x); f"{x:.2f}"; max(x, x); range(x)
    bytes(x); operator.index(x); [1, 2][x]; iter(x); list(x); tuple(x); [*x]; 1 in x; memoryview(x)
    x.tolist(); pickle.dumps(x); np.asarray(x); np.array(x); np.array([x, x]); np.zeros(x)
    np.fromiter(x, float); np.frombuffer(x)
    np.from_dlpack(x); np.linspace(x, x); np.arange(4)[x]; np.vectorize(abs)(x)
    np.ones((3, 4)).__setitem__(..., x); np.copyto(np.ones((3, 4)), x); rng().permutation(x)
    rng().permuted(x); rng().choice(x); rng().normal(x); rng().integers(x)
    np.testing.assert_array_equal(x, x); HERE.asarray([x]); HERE.full((2,), x)
    HERE.full(2, np.ones(2)); HERE.asarray(["text"]); x.astype(object); np.longdouble(2) * x
""")


@pytest.mark.parametrize("call", UNASKED)
def test_nothing_moves_to_the_host_unasked(call):
    for x in (on(HERE)["x"], on(HERE)["s"]):
        before = account(HERE)
        with pytest.raises(TypeError):
            run(call, {"x": x})
        moved = ("h2d_bytes", "h2d_count", "d2h_bytes", "d2h_count", "syncs", "used")
        assert all(account(HERE)[m] == before[m] for m in moved)


def test_refused_by_numpy_itself_with_its_own_error():
    x = on(HERE)["x"]
    with pytest.raises(ValueError):                    # it replaces our error at a single element
        np.ones(3)[0] = x[0, 0]
    with pytest.raises(UserWarning):                   # it swaps rows of any sequence, and warns
        rng().shuffle(x)


LACKING = table("""
    np.f(x): array_repr array2string histogram_bin_edges unstack spacing isnat vander
    np.f(x, x): vecdot matvec polydiv geomspace linspace
    np.f("never", x): save savez savetxt savez_compressed
    np.f([x, x]): block
    np.f(abs, 0, x): apply_along_axis
    np.f(x, 0, 1.0): insert
    np.f(x, 3): nanpercentile
    np.f("ij->j", x): einsum_path
    np.f(3, like=x): zeros ones empty
    np.linalg.f([x, x]): multi_dot
    np.linalg.f(x): svdvals vector_norm matrix_norm
""")


@pytest.mark.parametrize("name, call", LACKING)
def test_names_outside_the_table_are_refused_by_name(name, call):
    call = call.replace("f(", f"{name}(")
    if not hasattr(np.linalg if "linalg" in call else np, name):
        return                                         # an older NumPy
    with pytest.raises(TypeError, match=f"{name}.*CuPy 14.*get"):
        run(call, on(HERE))


def test_keywords_that_cupy_lacks_are_refused():
    x, mask = on(HERE)["x"], on(HERE)["b"]
    for name, keyword in [(n, k) for n, ks in allow.LACKS.items() for k in ks]:
        with pytest.raises(TypeError, match=f"takes no keyword {keyword}:"):
            x.__array_function__(allow.numpy_function(name), (SimArray,), (x,), {keyword: None})
    for name, keyword in [(n, k) for n, ks in allow.METHODS.items() for k in ks]:
        with pytest.raises(TypeError, match=f"^{name}: .*keyword {keyword}:"):
            getattr(x, name)(**{keyword: None})
    for call in ("np.add(x, x, where=mask)", "np.add.reduce(x, where=mask)", "np.exp(x, order='C')",
                 "np.add.reduce(x, initial=1.0)", "np.sum(x, where=mask)"):
        with pytest.raises(TypeError, match="CuPy's takes no keyword"):
            run(call, {"x": x, "mask": mask})


@pytest.mark.parametrize("call", rows("""
    np.stack([x, 1.0]); np.concatenate([x, [1.0]]); np.take(x, [0]); x.take([0]); x.dot([1] * 4)
    np.where([True], x, x); np.dot(x, [1.0] * 4); np.clip(x, [0] * 4, 1); np.isclose([1.0], x)
    np.outer((1, 2), x); np.array(1.0) + x; x + np.array(1.0); np.add(np.array(1.0), x)
"""))
def test_lists_and_0d_host_arrays_are_refused_where_arrays_belong(call):
    with pytest.raises(TypeError, match="host list|host tuple|float 1.0|on the host"):
        run(call, on(HERE))


def test_other_classes_get_their_turn():
    class Tensor:
        __array_ufunc__ = None
        __radd__ = __rmul__ = lambda self, other: "reflected"
    x = HERE.ones(2)
    assert x + Tensor() == x * Tensor() == "reflected"
    with pytest.raises(TypeError, match="unsupported"):
        x + None


# -- transfers

def test_transfers_are_counted():
    d, e = SimDevice(5), SimDevice(6)
    host = np.ones((4, 2), "f4")
    x = d.asarray(host)
    assert (d.h2d_bytes, d.h2d_count, d.syncs) == (32, 1, 0)
    host[:] = x.get()[:] = 0                           # copies, not windows into the device
    assert (x.sum().item(), d.d2h_bytes, d.d2h_count, d.syncs) == (8.0, 32, 1, 2)
    y = e.asarray(x)
    assert (y.device, d.d2h_bytes, e.h2d_bytes, d.syncs) == (e, 64, 32, 2)
    assert d.asarray(x) is x and d.asarray(x, np.float64).dtype == np.float64
    assert d.asarray([1, 2.5]).get().tolist() == [1, 2.5] and d.asarray(3).shape == ()


def test_results_whose_shape_depends_on_values_wait():
    values = {**on(HERE), "one": HERE.asarray(1)}
    for call in ("x[b]", "np.nonzero(x)", "x.nonzero()", "np.where(b)", "np.unique(x)", "v[m]"):
        before = HERE.syncs
        run(call, values)
        assert HERE.syncs == before + 1
    waited = HERE.syncs
    for call in ("x[k]", "np.where(b, x, 1.0)", "x[1]", "x[one]", "repr(x)", "repr(HERE)", "len(x)",
                 "x.__setitem__(b, 0.0)", "np.shape(x)"):
        run(call, values)
    assert HERE.syncs == waited


def test_creation_moves_nothing_and_empty_is_poisoned():
    d = SimDevice(5)
    assert [d.zeros((2, 2)).sum().item(), d.ones((2, 2), int).sum().item()] == [0, 4]
    assert d.full(3, 2, np.float32).get().tolist() == [2, 2, 2] and d.full((), 2.5).dtype == float
    assert d.arange(1, 7, 2).get().tolist() == [1, 3, 5]
    for x in (d.empty((2, 2), np.float32), d.empty(2, complex), np.empty_like(d.ones(2))):
        assert np.isnan(x.get()).all()
    assert (d.empty(2, np.int8).get() == 127).all() and d.empty(2, bool).get().all()
    assert d.h2d_count == 0


def test_copies():
    x = HERE.ones(3)
    for y in (copy.copy(x), copy.deepcopy(x), x.copy()):
        assert y.storage is not x.storage
        check_same(np.ones(3), y)


def test_bfloat16_lives_on_a_device():
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    x = HERE.asarray(np.arange(3.0).astype(bfloat16))
    assert (x + x).dtype == (x * bfloat16(2)).dtype == x.sum().dtype == bfloat16
    assert np.isnan(HERE.empty(2, bfloat16).astype(np.float32).get()).all()
    with pytest.raises(TypeError, match="atomic"):
        np.add.at(x, HERE.asarray([0]), x[:1])


# -- the account

VIEWS = rows("""x[...]; x[None]; x.T; x[::-1]; x.view(); x.swapaxes(0, -1); x.real
    np.broadcast_to(x, (2, *x.shape)); np.expand_dims(x, 0); x[1:, ...]; windows(x, (1,), (0,))
    np.einsum("i...->i...", x); np.split(x, 1)[0]; np.atleast_1d(x); x.astype(x.dtype, copy=False)
    x[0, None]; as_strided(x, (2, 1), (0, 4)); np.moveaxis(x, 0, -1); np.diagonal(x)
""")
COPIES = rows("""x + 1; x.copy(); np.exp(x); x.astype(float); np.stack([x, x]); x.sum()
    copy.deepcopy(x); np.negative(x); 2 - x; np.add.outer(x, x); np.cumsum(x); x > 0; x.T.flatten()
""")
WHICH = st.integers(0, 99)
STEP = st.one_of(st.tuples(st.just("new"), st.integers(1, 40)),
                 st.tuples(st.sampled_from([*VIEWS, *COPIES, "x.__iadd__(1)", "drop"]), WHICH))


def play(device, held, step, which):
    """One step: the bytes it newly holds, or None.  `held` pairs arrays with (buffer, bytes)."""
    if step == "new":
        held.append((device.zeros((which, 1), np.float32), None))
        return 4 * which
    x, buffer = held[which % len(held)] if held else (None, None)
    if x is None or x.ndim < 2 or x.ndim > 4 or not 0 < x.size < 300:
        return None
    if step == "drop":
        held.pop(which % len(held))
    elif step in VIEWS:
        held.append((run(step, {"x": x}), buffer))
    elif step in COPIES:
        held.append((run(step, {"x": x}), None))
        return held[-1][0].size * held[-1][0].itemsize
    elif x.flags.writeable:
        run(step, {"x": x})
    return None


@settings(max_examples=60, deadline=None)
@given(st.lists(STEP, max_size=40), st.one_of(st.none(), st.integers(0, 2000)))
def test_account_equals_a_count_of_live_buffers(program, limit):
    """Buffers are counted from the kind of each step alone, with the garbage collector off."""
    device, held, peak, made = SimDevice(3, limit), [], 0, 0
    gc.disable()
    try:
        for step, which in program:
            before = account(device)
            try:
                nbytes = play(device, held, step, which)
            except SimOutOfMemory:
                assert account(device) == before
                continue
            if nbytes is not None:
                made += 1
                held[-1] = held[-1][0], (made, nbytes)
            used = sum(nbytes for _, nbytes in {buffer for _, buffer in held})
            peak = max(peak, used)
            assert (device.used, device.peak, device.allocations) == (used, peak, made)
            assert limit is None or used <= limit
        assert len({id(x.storage) for x, _ in held}) == len({buffer for _, buffer in held})
        held.clear()
        assert device.used == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("view", VIEWS)
def test_views_share_and_keep_one_storage(view):
    device = SimDevice(3)
    x = device.ones((4, 4), np.float32)
    y, owner = run(view, {"x": x}), x.storage
    assert y.storage is owner and x.base is None and (y.base is None or y.base is owner)
    del x, owner
    assert device.used == 64
    del y
    assert device.used == 0


def test_out_of_memory_says_what_and_changes_nothing():
    device = SimDevice(4, limit_bytes=100)
    x = device.zeros(20, np.float32)
    three = x[:3]
    for call in ("x + x", "x.copy()", "np.concatenate([x, x])", "device.asarray(np.zeros(6, 'f4'))",
                 "device.zeros(10**15)", "device.empty((10**9, 10**9))", "device.arange(9)",
                 "np.frexp(three)"):                   # one of its two results alone would fit
        before = account(device)
        with pytest.raises(SimOutOfMemory, match=r"^sim:4: .* [\d,]+ bytes wanted, 80 of 100 in"):
            run(call, {"x": x, "device": device, "three": three})
        assert account(device) == before
    device.limit = 200
    assert (x + x).nbytes == 80 and device.peak == 160
    device.reset_peak()
    assert device.peak == device.used == 80


def test_registry_and_account_under_threads():
    found, start = [], threading.Barrier(8)

    def work():
        start.wait(5)
        for n in range(1, 60):
            found.append((sim_device(77), (sim_device(77).zeros(n) + 1).nbytes))
    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(20)
    device = sim_device(77)
    assert {id(d) for d, _ in found} == {id(device)} and sim_device(76) is not device
    assert (device.used, device.allocations, device.name) == (0, 8 * 59 * 2, "sim:77")
    for wrong in (-1, "0", None):
        with pytest.raises(ValueError, match="sim_device"):
            sim_device(wrong)
