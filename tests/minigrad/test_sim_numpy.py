"""The simulated device computes what NumPy computes, and refuses operands that lie elsewhere."""
import inspect
import operator

import numpy as np
import pytest

from minigrad import sim_allow as allow
from minigrad.errors import DeviceMismatch, ImplicitTransfer
from tests.minigrad.sim_rows import (
    HERE,
    THERE,
    account,
    arrays,
    check_same,
    names_in,
    on,
    rows,
    run,
    sides,
    table,
)

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
    f(s): sum mean max ravel argmax zeros_like
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
    d = HERE.asarray(x)
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

KEYS = rows("""
    1; -1; np.int64(2); slice(1, None); None; ...; (1, 2); (..., 1); (slice(None), 0, None); True
    (); (slice(None, None, -1), slice(0, 3, 2)); b; k; i[0, 0]; (k, 1); (1, k); (k, k); (k, None, k)
    (slice(None), k); (..., m)
""")


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
