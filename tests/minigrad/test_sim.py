"""The simulated device computes what NumPy computes, refuses what CuPy refuses, counts every byte.

The tables hold Python text: one row runs on host arrays, on device arrays, and on every mix.
"""
import copy
import gc
import inspect
import operator
import pickle  # noqa: F401
import threading
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minigrad import sim_allow as allow
from minigrad.errors import DeviceMismatch, ImplicitTransfer, SimOutOfMemory
from minigrad.sim import SimArray, SimDevice, as_strided, sim_device  # noqa: F401

HERE, THERE = SimDevice(0), SimDevice(1)
windows = np.lib.stride_tricks.sliding_window_view
sides = pytest.mark.parametrize("elsewhere, error", [("host", ImplicitTransfer),
                                                     ("there", DeviceMismatch)])


def random_arrays():
    r = np.random.default_rng(7)
    a = r.standard_normal((3, 3))
    return {
        "x": r.standard_normal((3, 4)).astype("f4"), "y": r.standard_normal((3, 4)).astype("f4"),
        "v": r.standard_normal(4), "w": r.standard_normal(4), "t": r.standard_normal((2, 4, 3)),
        "i": r.integers(0, 3, (3, 4)), "k": r.integers(0, 3, 5), "b": r.random((3, 4)) > 0.5,
        "m": r.random(4) > 0.3, "z": r.standard_normal(4) + 1j, "up": np.arange(4.0),
        "spd": a @ a.T + 3 * np.eye(3), "sym": a + a.T, "col": r.standard_normal((3, 1)),
        "s": np.array(1.5, "f4")}


ARRAYS = random_arrays()


def arrays():
    return {name: a.copy() for name, a in ARRAYS.items()}


def on(device):
    return {name: device.asarray(a) for name, a in arrays().items()}


@lru_cache(None)
def compiled(text):
    return compile(text, text, "eval")


def run(text, values, f=None):
    with np.errstate(all="ignore"):
        return eval(compiled(text), {**globals(), **values, "f": f})


def names_in(text):
    return [name for name in compiled(text).co_names if name in ARRAYS]


def account(device):
    return {name: getattr(device, name) for name in SimDevice.__slots__ if name[0] != "_"}


def check_same(host, device):
    """NumPy's values, dtype and shape, in a device array or a sequence of them."""
    if isinstance(host, (tuple, list)):
        assert isinstance(device, (tuple, list)) and len(device) == len(host)
        for h, d in zip(host, device):
            check_same(h, d)
    elif host is None:
        assert device is None
    else:
        assert type(device) is SimArray and device.device is HERE
        assert (device.dtype, device.shape) == (np.asarray(host).dtype, np.shape(host))
        np.testing.assert_array_equal(device.get(), host)


def rows(text):
    return [row.strip() for line in text.splitlines() for row in line.split(";") if row.strip()]


def table(text):
    """Rows "call: names" as (name, call)."""
    rows = [line.rsplit(":", 1) for line in text.strip().splitlines()]
    return [(name, call.strip()) for call, names in rows for name in names.split()]


# -- every allowed function equals NumPy's

FUNCTION_CALLS = table("""
    f(x): zeros_like ones_like copy ravel transpose permute_dims matrix_transpose squeeze ediff1d
    f(x): atleast_1d atleast_2d atleast_3d flip fliplr flipud rot90 diag diagonal diagflat tril triu
    f(x): trace nonzero flatnonzero argwhere unique sinc cov corrcoef tril_indices_from
    f(x): triu_indices_from real imag angle nan_to_num isreal iscomplex isneginf isposinf
    f(x): linalg.norm linalg.pinv linalg.qr linalg.svd fft.fftshift fft.ifftshift fft.fft2 fft.ifft2
    f(x): fft.rfft2 fft.irfft2 fft.fftn fft.ifftn fft.rfftn fft.irfftn count_nonzero average
    f(x): shape ndim size iscomplexobj isrealobj
    f(x): sum prod mean var std max min amax amin all any ptp median sort argsort gradient diff
    f(x, 1, keepdims=True): nansum nanprod nanmean nanvar nanstd nanmax nanmin argmax argmin
    f(x, axis=0): nanargmax nanargmin nanmedian cumsum cumprod nancumsum nancumprod flip
    f(x, axis=0): sort argsort
    f(x, axis=1): cumulative_sum cumulative_prod count_nonzero linalg.norm sum ptp average
    f(s): sum mean max ravel where argmax zeros_like
    f(v, 2): partition argpartition
    f(x, 30.0): percentile
    f(x, 0.3, axis=1): quantile
    f(x, 0, x * x, returned=True): average
    f(x, np.float64): astype
    f(x, 2.5): full_like
    f(x, s): full_like
    f(x.T, (2, 6)): reshape
    f(t, 0, 2): swapaxes moveaxis rollaxis
    f(x, (0, 2)): expand_dims
    f(x, (2, 3, 4)): broadcast_to
    f(x, col): broadcast_arrays
    f(x, 1, 1): roll repeat
    f(x, (2, 1)): tile
    f(x, ((1, 0), (0, 2)), constant_values=3): pad
    f([x, y]): concatenate concat stack vstack hstack dstack column_stack
    f((x, y, x), axis=1): concatenate stack
    f(x, y, axis=0): append
    f(x, 3): split array_split vsplit
    f(x, [1, 2]): hsplit
    f(t, 3): dsplit
    f(x, (2, 2)): lib.stride_tricks.sliding_window_view
    f(b, x, y): where
    f(b, x, 0.0): where
    f(x, k, axis=1): take
    f(x, 2): take
    f(x, i, axis=1): take_along_axis
    f(m, x, axis=1): compress
    f(b, x): extract
    f(v, w): meshgrid convolve correlate dot vdot inner outer kron
    f(v, w): allclose isclose array_equal array_equiv
    f(up, v): searchsorted
    f(v, up): digitize trapezoid
    f(k, minlength=6): bincount
    f(k[:4], v): bincount
    f(k, (2, 3)): unravel_index
    f((i, i), (3, 3)): ravel_multi_index
    f(x, y): copyto
    f(x, 1.0, where=b): copyto
    f(x, i[:, :1], y[:, :1], axis=1): put_along_axis
    f(x, k[:1], v[:1]): put
    f(x, b, y): putmask place
    f(x, 2.0): fill_diagonal
    f(x, prepend=col): diff
    f(i, k): isin
    f(x, -1, 1): clip
    f(x, y, None): clip
    f(x, 1): round around
    f(x, t, axes=([1], [1])): tensordot
    f(spd, sym): cross linalg.solve
    f("ij,kj->ik", x, y): einsum
    f("ij->j", x): einsum
    f(spd): linalg.det linalg.slogdet linalg.inv linalg.cholesky linalg.eigh linalg.eigvalsh
    f(spd, 2): linalg.matrix_power
    f(z): fft.fft fft.ifft fft.irfft
    f(v): fft.rfft
    f(x, v): result_type
    f(x, x[1:]): may_share_memory shares_memory
""")


def test_the_tables_speak_of_what_exists():
    assert {name for name, _ in FUNCTION_CALLS} | {"empty_like"} == allow.FUNCTIONS
    assert all(callable(allow.numpy_function(name)) for name in allow.FUNCTIONS)
    assert all(isinstance(getattr(np, name), np.ufunc) for name in allow.UFUNCS)
    spoken_of = [allow.LACKS, allow.ARRAY_ARGUMENTS, allow.HOST_RESULT, allow.SYNCHRONISES]
    assert set().union(*spoken_of) <= allow.FUNCTIONS


@pytest.mark.parametrize("name, call", FUNCTION_CALLS)
def test_function_equals_numpy(name, call):
    host, device, f = arrays(), on(HERE), allow.numpy_function(name)
    if (name, call) == ("where", "f(s)"):              # deprecated by NumPy for 0-d
        return
    expected, got = run(call, host, f), run(call, device, f)
    if name in allow.HOST_RESULT:
        assert type(got) is type(expected) and got == expected
    else:
        check_same(expected, got)
    check_same([host[n] for n in names_in(call)], [device[n] for n in names_in(call)])


@sides
@pytest.mark.parametrize("name, call", [c for c in FUNCTION_CALLS if len(names_in(c[1])) > 1])
def test_function_refuses_each_array_from_elsewhere(name, call, elsewhere, error):
    strangers = arrays() if elsewhere == "host" else on(THERE)
    for key in names_in(call):
        with pytest.raises(error, match=r"\] on sim:"):
            run(call, {**on(HERE), key: strangers[key]}, allow.numpy_function(name))


# -- every allowed ufunc, operator and method equals NumPy's

BINARY = sorted(n for n in allow.UFUNCS if getattr(np, n).nin == 2)


def ufunc_inputs(signature):
    r = np.random.default_rng(3)
    return [(r.integers(1, 6, (3, 3)) if c in "il" else r.random((3, 3)) + (c == "f")).astype(c)
            for c in signature.split("->")[0]]


def signatures(ufunc):
    return [s for s in ufunc.types if set(s.split("->")[0]) <= set("?ifd")]


@pytest.mark.parametrize("name", sorted(allow.UFUNCS))
@np.errstate(all="ignore")
def test_ufunc_equals_numpy(name):
    ufunc = getattr(np, name)
    for inputs in map(ufunc_inputs, signatures(ufunc)):
        expected, device = ufunc(*inputs), list(map(HERE.asarray, inputs))
        check_same(expected, ufunc(*device))
        if ufunc.nout == 1:
            out = HERE.zeros((3, 3), expected.dtype)
            assert ufunc(*device, out=out) is out
            check_same(expected, out)


@pytest.mark.parametrize("name", BINARY)
def test_ufuncs_refuse_host_arrays_and_other_devices_in_every_place(name):
    ufunc = getattr(np, name)
    host = ufunc_inputs(signatures(ufunc)[-1])
    d, e = list(map(HERE.asarray, host)), list(map(THERE.asarray, host))
    result = ufunc(*host)
    for stranger, error in ((host, ImplicitTransfer), (e, DeviceMismatch),
                            ([a.tolist() for a in host], ImplicitTransfer)):
        for inputs in ((d[0], stranger[1]), (stranger[0], d[1])):
            with pytest.raises(error, match=f"^{name}: "):
                ufunc(*inputs)
    if ufunc.nout == 1:
        outs = HERE.asarray(result), THERE.asarray(result), result
        for inputs, out, error in ((d, outs[2], ImplicitTransfer), (d, outs[1], DeviceMismatch),
                                   (host, outs[0], ImplicitTransfer), (e, outs[0], DeviceMismatch)):
            with pytest.raises(error, match=f"^{name}: "):
                ufunc(*inputs, out=out)


@pytest.mark.parametrize("name", sorted(set(BINARY) - {"divmod", "matmul"}))
@np.errstate(all="ignore")
def test_ufunc_methods_equal_numpy_where_cupy_has_them(name):
    ufunc = getattr(np, name)
    x, y = (a[:1] for a in ufunc_inputs(signatures(ufunc)[-1]))
    index = np.array([0, 2])
    for method, inputs in (("reduce", (x, 1)), ("accumulate", (x, 1)), ("outer", (x, y)),
                           ("reduceat", (x[0], index))):
        device = [HERE.asarray(a) if isinstance(a, np.ndarray) else a for a in inputs]
        if name in allow.UFUNC_METHODS[method]:
            check_same(getattr(ufunc, method)(*inputs), getattr(ufunc, method)(*device))
        else:
            with pytest.raises(TypeError, match=f"^{name}.{method}: CuPy 14 has {method} for"):
                getattr(ufunc, method)(*device)


@pytest.mark.parametrize("name", sorted(allow.UFUNC_METHODS["at"]))
def test_at_equals_numpy_and_refuses_what_has_no_atomics(name):
    host, device, at = arrays(), on(HERE), getattr(np, name).at
    for call in rows("f(v, k, 2.0); f(x, (k, 0), s); f(x, (slice(None), k), y[:, :1]); f(x, b, 3)"):
        run(call, host, at), run(call, device, at)
        check_same([host["x"], host["v"]], [device["x"], device["v"]])
        for key in names_in(call) if len(names_in(call)) > 1 else ():
            with pytest.raises(ImplicitTransfer):
                run(call, {**device, key: host[key]}, at)
    with pytest.raises(TypeError, match="atomic"):
        at(HERE.zeros(3, np.int8), device["k"], 1)


FLOAT_OPERATORS = [getattr(operator, n) for n in "add sub mul truediv floordiv mod pow".split()]
INT_OPERATORS = [getattr(operator, n) for n in "and_ or_ xor lshift rshift".split()]
COMPARISONS = [getattr(operator, n) for n in "eq ne lt le gt ge".split()]
IN_PLACE = {op: getattr(operator, "i" + op.__name__.strip("_"))
            for op in FLOAT_OPERATORS + INT_OPERATORS}
SCALARS = [2, 2.5, True, np.float64(2), np.float32(3), np.int8(3), 2 + 1j]


@pytest.mark.parametrize("op", FLOAT_OPERATORS + INT_OPERATORS + COMPARISONS)
@np.errstate(all="ignore")
def test_operator_promotes_as_numpy_with_arrays_and_scalars(op):
    for x in (np.array([[1, 2, 3], [4, 5, 6]]).astype(t) for t in ("f2 f4 f8 i4 u1 ? c8".split())):
        d = HERE.asarray(x)
        for host, device in [(x, d), *zip(SCALARS, SCALARS)]:
            try:
                expected = op(x, host), op(host, x), op(x[0, 0, ...], host)
            except TypeError:                          # NumPy has no such operation
                continue
            check_same(expected, (op(d, device), op(device, d), op(d[0, 0], device)))


@pytest.mark.parametrize("op", IN_PLACE)
def test_in_place_operator_writes_through_views_without_allocating(op):
    x = np.arange(1, 7, dtype="i4" if op in INT_OPERATORS + [operator.floordiv] else "f4")
    d, view = HERE.asarray(x), None
    view, made = d[2:], HERE.allocations
    assert IN_PLACE[op](view, d[:4]) is view and IN_PLACE[op](d, 2) is d
    assert HERE.allocations == made
    IN_PLACE[op](x[2:], x[:4].copy())
    IN_PLACE[op](x, 2)
    check_same(x, d)


@pytest.mark.parametrize("op", [*IN_PLACE, *COMPARISONS, operator.matmul, *IN_PLACE.values()])
def test_operator_refuses_host_arrays_and_other_devices_in_both_orders(op):
    h = np.ones((2, 2), "i4")
    d, e = HERE.asarray(h), THERE.asarray(h)
    before = account(HERE), account(THERE)
    for a, b in ((d, h), (h, d), (d, [[1, 1]]), (d, (1, 1))):
        with pytest.raises(ImplicitTransfer, match=r"int32\[2, 2\] on sim:0.*host.*asarray.*get"):
            op(a, b)
    for a, b in ((d, e), (e, d)):
        with pytest.raises(DeviceMismatch, match=r"32\[2, 2\] on sim:\d with int32\[2, 2\] on sim"):
            op(a, b)
    assert (account(HERE), account(THERE)) == before
    assert (h == 1).all() and (d.get() == 1).all()


METHOD_CALLS = table("""
    f(): transpose ravel flatten squeeze diagonal copy trace argmax argmin cumsum cumprod round
    f(): nonzero conj conjugate argsort view sum prod max min mean var std any all
    f(axis=(0, 1), keepdims=True): sum prod max min mean var std any all
    f(-1): reshape sort
    f((12, -1)): reshape
    f(0, 1): swapaxes
    f(2, 0): repeat
    f(-1, 1): clip
    f(3.0): fill
    f(np.float64): astype
    f(1, axis=0): take
    f(k, axis=1): take
    f(sym[0]): dot
""")


def test_methods_equal_numpys():
    assert {name for name, _ in METHOD_CALLS} == allow.METHODS.keys()
    for name, call in METHOD_CALLS:
        for key in ("t", "spd"):
            if key == "spd" and call == "f((12, -1))":
                continue
            host, device = arrays(), on(HERE)
            check_same(run(call, host, getattr(host[key], name)),
                       run(call, device, getattr(device[key], name)))
            check_same(host[key], device[key])


def test_attributes_and_unary_operators():
    for a, d in zip(arrays().values(), on(HERE).values()):
        for name in ("shape", "dtype", "ndim", "size", "nbytes", "itemsize", "strides"):
            assert getattr(d, name) == getattr(a, name)
        assert d.flags.c_contiguous and d.T.flags.c_contiguous == a.T.flags.c_contiguous
        check_same([a.T, a.real, a.imag, abs(a)], [d.T, d.real, d.imag, abs(d)])
        check_same(~a if a.dtype.kind in "bi" else -a, ~d if a.dtype.kind in "bi" else -d)
        if a.ndim > 1:
            check_same([a.mT, a @ a.mT], [d.mT, d @ d.mT])
            assert len(d) == len(a)


# -- indexing

KEYS = rows("""1; -1; np.int64(2); slice(1, None); None; ...; (1, 2); (..., 1); (slice(None), 0, None)
    b; k; (slice(None, None, -1), slice(0, 3, 2)); (k, 1); (slice(None), k); (k, k); (k, None, k)
    (..., m); (1, k); True; i[0, 0]; ()""")


@pytest.mark.parametrize("key", KEYS)
def test_reading_and_writing_by_index_equal_numpy(key):
    host, device = arrays(), on(HERE)
    check_same(run(f"x[{key}]", host), run(f"x[{key}]", device))
    for value in ("2", "np.float64(3)", "s", "x[1, 1]", f"x[{key}] * 2"):
        for values in (host, device):
            run(f"x.__setitem__({key}, {value})", values)
        check_same(host["x"], device["x"])


def test_an_element_is_a_view():
    x = HERE.zeros((2, 3))
    x[1, 2] += 5
    element = x[1, 2]
    element[...] = 7.0
    assert x.get()[1, 2] == 7 and element.ndim == 0 and element.storage is x.storage


@pytest.mark.parametrize("key", [[0, 1], np.array([0]), np.array([True, False, True]), ([0], [1]),
                                 (slice(None), [0]), (0, np.array(1)), "name", 1.5])
def test_host_indices_are_refused_for_reading_and_writing(key):
    x = on(HERE)["x"]
    for use in (lambda: x[key], lambda: x.__setitem__(key, 0.0)):
        with pytest.raises(TypeError, match="x.index"):
            use()


@sides
def test_values_from_elsewhere_are_not_assigned(elsewhere, error):
    strange = arrays()["s"] if elsewhere == "host" else on(THERE)["s"]
    for key in (0, ..., (0, 1), on(HERE)["b"]):
        with pytest.raises(error):
            on(HERE)["x"][key] = strange
    with pytest.raises(ImplicitTransfer):
        on(HERE)["x"][0] = [1.0] * 4


# -- refusals

def rng():
    return np.random.default_rng(0)


UNASKED = rows("""
    np.asarray(x); np.array(x); np.array([x, x]); list(x); tuple(x); [*x]; iter(x); 1 in x; float(x)
    int(x); complex(x); bool(x); not x; operator.index(x); [1, 2][x]; range(x); memoryview(x)
    bytes(x); pickle.dumps(x); x.tolist(); x.tobytes(); max(x, x); f"{x:.2f}"; round(x); np.from_dlpack(x)
    np.fromiter(x, float); np.frombuffer(x); np.ones((3, 4)).__setitem__(..., x); np.arange(4)[x]
    np.copyto(np.ones((3, 4)), x); np.zeros(x); rng().permutation(x); rng().choice(x);
    rng().permuted(x); rng().normal(x); rng().integers(x); np.vectorize(abs)(x); np.testing.assert_array_equal(x, x)
    HERE.asarray([x]); HERE.full((2,), x); HERE.full(2, np.ones(2));
    x.astype(object); np.linspace(x, x)
    HERE.asarray(["text"]); np.longdouble(2) * x
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


@pytest.mark.parametrize("call", rows("""np.stack([x, 1.0]); np.concatenate([x, [1.0]]);
    np.take(x, [0]); x.take([0]); np.where([True], x, x); np.dot(x, [1.0] * 4); np.clip(x, [0] * 4, 1);
    x.dot([1] * 4); np.isclose([1.0], x); np.outer((1, 2), x)"""))
def test_lists_where_arrays_belong_are_refused(call):
    with pytest.raises(TypeError, match="list|tuple|float 1.0"):
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


# -- against CuPy itself, where it is installed (needs no GPU)

def test_tables_agree_with_cupy():
    cupy = pytest.importorskip("cupy")
    for name in allow.FUNCTIONS:
        theirs = operator.attrgetter(name)(cupy)
        try:
            keywords = inspect.signature(theirs).parameters.values()
        except ValueError:                             # compiled, without a signature
            continue
        if not any(p.kind is p.VAR_KEYWORD for p in keywords):
            ours = set(inspect.signature(allow.numpy_function(name)).parameters)
            lacks = ours - {p.name for p in keywords} - {"args", "kwargs", "like"}
            assert lacks == allow.LACKS.get(name, set()), name
    assert all(hasattr(cupy, name) for name in allow.UFUNCS)
    assert all(hasattr(cupy.ndarray, name) for name in allow.METHODS)
    assert all(getattr(cupy, name)._scatter_op for name in allow.UFUNC_METHODS["at"])
