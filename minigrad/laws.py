"""The laws that every op of the catalogue obeys, each put to every sample that the op declares.

`check_op(op)` is the whole test of an op, made from its own declaration; `LAWS` names its parts, so that a test suite
can run them one by one.  After `trial.py`; nothing of the engine imports it.
"""
from __future__ import annotations

from itertools import combinations, product

import numpy as np

from minigrad.algebra import algebra, algebra_of
from minigrad.autograd import grad
from minigrad.aval import Aval, aval_of
from minigrad.check import F8
from minigrad.device import CPU, Device, backend_of, device
from minigrad.dtype import is_float
from minigrad.errors import GraphError
from minigrad.ops.op import Elementwise
from minigrad.ops.symbols import NUMBA, NotSymbolic, emit
from minigrad.ops.views import ViewOp
from minigrad.tensor import Tensor, apply, seen_through
from minigrad.trial import Trial, dense, first, narrow_to, through_door, ways_to_lie, y_floats


def law_reference(t: Trial) -> None:
    """forward equals the op's NumPy reference."""
    reference = getattr(t.op, "reference", None)
    if reference is not None:
        np.testing.assert_allclose(t.y, reference(*t.arrays), rtol=1e-10, atol=1e-12)


def law_dtype(t: Trial) -> None:
    """float32 in, float32 out (bool and integer results stay); the same for float16."""
    for name in t.narrower:
        got = t.run(narrow_to(t.arrays, name)).dtype
        want = np.dtype(name) if is_float(t.y.dtype) and any(a.dtype == F8 for a in t.arrays) else t.y.dtype
        assert got == want, f"{t.op}: {name} in, {got} out"


def law_narrow(t: Trial) -> None:
    """float16 through an op of precision "high": values and gradients are those of float32, rounded once."""
    if t.op.precision != "high" or "f2" not in t.narrower:
        return
    half = narrow_to(t.arrays, "f2")
    single = [a.astype("f4") if a.dtype == np.float16 else a for a in half]
    pair = [first(apply(t.op, *t.leaves(arrays))) for arrays in (half, single)]
    want = pair[1].array.astype("f2") if is_float(t.y.dtype) else pair[1].array
    np.testing.assert_array_equal(pair[0].array, want)
    if t.wrt and y_floats(pair[0]):
        g = t.g.astype("f2")
        xs, ys = t.leaves(half), t.leaves(single)
        narrow = grad(first(apply(t.op, *xs)), [xs[i] for i in t.wrt], Tensor(g))
        wide = grad(first(apply(t.op, *ys)), [ys[i] for i in t.wrt], Tensor(g.astype("f4")))
        for a, b in zip(narrow, wide):
            close = 4e-3 * max(1.0, float(np.abs(b.array).max(initial=0)))               # y was rounded to 2**-11
            np.testing.assert_allclose(a.array, b.array, rtol=4e-3, atol=close)


def _same_place(promised: Aval, real: Aval) -> bool:
    strides = lambda a: [s for s, n in zip(a.strides, a.shape) if n > 1] if a.size else []  # noqa: E731
    return (promised.shape, promised.dtype) == (real.shape, real.dtype) and strides(promised) == strides(real)


def law_infer(t: Trial) -> None:
    """infer promises the shape, the dtype and the strides that forward gives, for y and the extra outputs."""
    for arrays in (t.arrays, *(narrow_to(t.arrays, name) for name in t.narrower)):
        promised, real = t.op.infer(*map(aval_of, arrays)), t.forward(arrays)
        for p, r in zip(promised if t.op.extra else [promised], real if t.op.extra else [real]):
            assert _same_place(p, aval_of(r)), f"{t.op}: infer says {p}, forward gives {aval_of(r)}"


def law_aliases(t: Trial) -> None:
    """`aliases` says whether y shows the memory of x."""
    y = first(t.op.forward(algebra_of(t.arrays[0]), *t.arrays))
    if isinstance(y, np.ndarray) and y.size:
        assert t.op.aliases(t.arrays[0]) == np.shares_memory(y, t.arrays[0]), (
            f"{t.op}: aliases says {t.op.aliases(t.arrays[0])}"
        )


def law_meta(t: Trial) -> None:
    """The same application on meta tensors, forward and backward, has the shapes of the real one."""
    real = first(apply(t.op, *t.leaves()))
    host = [i for i, n in enumerate(t.names) if n in t.op.on_host]
    metas = [Tensor(a if i in host else aval_of(a), i in t.wrt) for i, a in enumerate(t.arrays)]
    y = first(apply(t.op, *metas))
    assert (y.shape, y.dtype) == (real.shape, real.dtype)
    if t.wrt:
        for x, g in zip([metas[i] for i in t.wrt], grad(y, [metas[i] for i in t.wrt], Tensor(Aval(y.shape, y.dtype)))):
            assert (g.shape, g.dtype) == (x.shape, x.dtype), f"{t.op}: meta gradient {g.aval} of {x.aval}"


def law_gradient(t: Trial) -> None:
    """Each rule equals central differences along a random direction, for a random upstream gradient; dtypes are
    kept."""
    if not t.wrt:
        return
    found = t.gradients(t.leaves())
    for i, got in zip(t.wrt, found):
        v = t.rng.standard_normal(t.arrays[i].shape)
        f = lambda s, i=i, v=v: (
            t.run([np.asarray(a + s * 1e-6 * v) if j == i else a for j, a in enumerate(t.arrays)]) * t.g
        ).sum()  # noqa: E731
        want = (f(1) - f(-1)) / 2e-6
        assert got.dtype == F8 and got.shape == t.arrays[i].shape, f"{t.op}: d{t.names[i]} is {got.aval}"
        assert np.isclose((got.array * v).sum(), want, rtol=1e-5, atol=1e-7), (
            f"{t.op}: d{t.names[i]} {(got.array * v).sum()} != {want}"
        )
    xs = t.leaves(narrow_to(t.arrays)) if t.narrower else t.leaves()
    if not t.narrower:
        return
    for g in grad(first(apply(t.op, *xs)), [xs[i] for i in t.wrt], Tensor(t.g.astype("f4"))):
        assert g.dtype == np.float32, f"{t.op}: a float32 input has a gradient of {g.dtype}"


def law_traced(t: Trial) -> None:
    """The rules on Tensors give what they give on arrays."""
    if t.wrt:
        for a, b in zip(t.gradients(t.leaves()), t.gradients(t.leaves(), create_graph=True)):
            np.testing.assert_allclose(a.array, b.array, rtol=1e-10, atol=1e-12)


def law_second(t: Trial) -> None:
    """Second derivatives equal central differences of the first."""
    if not t.wrt:
        return
    xs = t.leaves()
    directions = [t.rng.standard_normal(t.arrays[i].shape) for i in t.wrt]
    dot = lambda gs: sum((g * Tensor(v)).sum() for g, v in zip(gs, directions))  # noqa: E731
    total = dot(t.gradients(xs, create_graph=True))
    if total.node is None:
        return
    found = grad(total, [xs[i] for i in t.wrt], allow_unused=True)
    for i, got in zip(t.wrt, found):
        v = t.rng.standard_normal(t.arrays[i].shape)
        at = lambda s, i=i, v=v: dot(
            t.gradients(t.leaves([np.asarray(a + s * 1e-6 * v) if j == i else a for j, a in enumerate(t.arrays)]))
        ).item()  # noqa: E731
        want = (at(1) - at(-1)) / 2e-6
        have = 0.0 if got is None else (got.array * v).sum()
        assert np.isclose(have, want, rtol=1e-4, atol=1e-6), (
            f"{t.op}: second derivative by {t.names[i]}: {have} != {want}"
        )


def law_saves(t: Trial) -> None:
    """Poison: what the plan does not name may be overwritten after forward; the gradients stay the same."""
    if not t.wrt or isinstance(t.op, ViewOp):
        return
    want = t.gradients(t.leaves())
    xs = t.leaves()
    out = apply(t.op, *xs)
    y = first(out)
    owner = lambda a: id(algebra_of(a).storage(a))  # noqa: E731
    kept = {owner(v) for v in y.node.saved if isinstance(v, np.ndarray)}
    for x in (*xs, *(out if isinstance(out, tuple) else (out,))):
        if owner(x.array) not in kept and is_float(x.dtype):
            x.array[...] = np.nan
    for a, b in zip(want, grad(y, [xs[i] for i in t.wrt], Tensor(t.g))):
        np.testing.assert_array_equal(a.array, b.array)


def law_door(t: Trial) -> None:
    """The flattened door is bit-equal to apply, and the compiled pull of every op to its rules."""
    a, b = t.leaves(), t.leaves()
    ya = through_door(t.op, *a)
    yb = first(apply(t.op, *b))
    np.testing.assert_array_equal(ya.array, yb.array)
    if t.wrt and y_floats(ya):
        ya.backward(Tensor(t.g))
        for i, want in zip(t.wrt, grad(yb, [b[i] for i in t.wrt], Tensor(t.g))):
            np.testing.assert_array_equal(a[i].grad.array, want.array)


def law_sim(t: Trial) -> None:
    """The strict simulated device gives the values and gradients of the host."""
    on_device(t, device("sim:0"), rtol=1e-12)


def on_device(t: Trial, where: Device, rtol: float) -> None:
    """The op on another device, where only random keys stay on the host, has the host's values and gradients."""
    backend = backend_of(where)
    put = lambda a: backend.put(where.index, a)  # noqa: E731
    xs = [Tensor(a if n in t.op.on_host else put(a), i in t.wrt) for i, (n, a) in enumerate(zip(t.names, t.arrays))]
    y = first(apply(t.op, *xs))
    back = y.array if y.o.device is CPU else backend.get(y.array)
    np.testing.assert_allclose(back, t.y, rtol=rtol, atol=rtol)
    if t.wrt:
        for a, b in zip(grad(y, [xs[i] for i in t.wrt], Tensor(put(t.g))), t.gradients(t.leaves())):
            np.testing.assert_allclose(backend.get(a.array), b.array, rtol=rtol, atol=rtol)


def law_source(t: Trial) -> None:
    """The generated numba text of forward and rules, run on float32 scalars, stays float32 and equals them."""
    if not isinstance(t.op, Elementwise) or not t.y.size:
        return
    arrays = narrow_to(t.arrays)
    y, g = t.run(arrays), t.g.astype("f4")
    names = dict(zip([*t.op.inputs, "y", "g"], np.broadcast_arrays(*arrays, y, g)))
    truths = tuple(n for n, a in names.items() if a.dtype == bool)
    o = algebra(CPU, np.dtype("f4"))
    for wrt in (None, *t.op.reads):
        try:
            text = emit(t.op, NUMBA, wrt, truths)
        except NotSymbolic:
            continue
        want = y if wrt is None else getattr(t.op, "d" + wrt)(o, g, *(names[n] for n in t.op.reads[wrt]))
        want = np.broadcast_to(want, y.shape)
        for at in np.ndindex(*y.shape):
            got = eval(text, {"np": np, "f4": np.float32, "max": max, "abs": abs}, {n: v[at] for n, v in names.items()})
            assert np.asarray(got).dtype in (np.float32, bool), f"{t.op}: {text} is {np.asarray(got).dtype}"
            np.testing.assert_allclose(got, want[at], rtol=1e-5, atol=1e-6, err_msg=text)


def law_some(t: Trial) -> None:
    """Whichever inputs have a history – one alone, all but one, every pair –, the gradients are those of when all have
    one: by backward, on Tensors, and through the door."""
    if len(t.wrt) < 2:
        return
    want, n = dict(zip(t.wrt, t.gradients(t.leaves()))), len(t.wrt)
    parts = [part for k in {1, 2, n - 1} if k < n for part in combinations(t.wrt, k)]
    for part, run in product(parts, (apply, through_door)):
        xs = [Tensor(a.copy(order="K"), i in part) for i, a in enumerate(t.arrays)]
        y = first(run(t.op, *xs))
        on_tensors = grad(y, [xs[i] for i in part], Tensor(t.g), create_graph=True)
        y.backward(Tensor(t.g))
        for i, d in zip(part, on_tensors):
            why = f"{t.op}: d{t.names[i]} where only the inputs {part} have a history"
            np.testing.assert_allclose(dense(xs[i].grad), want[i].array, 1e-10, 1e-12, err_msg=why)
            np.testing.assert_allclose(d.array, want[i].array, 1e-10, 1e-12, err_msg="on Tensors, " + why)


def law_deferred(t: Trial) -> None:
    """`backward(defer=…)`, of one input or of all: the others' gradients at once, its own when the work is done, to
    the last bit those of an ordinary backward; a `vjp`, which shares work between its inputs, may round otherwise."""
    if not t.wrt:
        return
    plain = t.leaves()
    first(apply(t.op, *plain)).backward(Tensor(t.g))
    for late in (t.wrt, *([i] for i in t.wrt)):
        xs = t.leaves()
        work = first(apply(t.op, *xs)).backward(Tensor(t.g), defer=[xs[i] for i in late])
        for i in t.wrt:
            assert (xs[i].grad is None) == (i in late), f"{t.op}: defer={late} and the gradient of {t.names[i]}"
        for task in work:
            task()
        rtol = 1e-12 if hasattr(t.op, "vjp") else 0
        for i in t.wrt:
            np.testing.assert_allclose(dense(xs[i].grad), dense(plain[i].grad), rtol, rtol)


def law_input_view(t: Trial) -> None:
    """Inputs that are views of bases, written in place before the op: values are as ever, and the gradient of a base is
    that of the functional form, in which what is written is scattered into the base."""
    if not t.wrt:
        return
    plain = dict(zip(t.wrt, t.gradients(t.leaves())))
    for way in ("slice", "transpose", "diagonal", "flat", "corner"):
        lies = [ways_to_lie(a.shape).get(way) for a in t.arrays]
        if not any(lies[i] for i in t.wrt):
            continue
        xs, bases = t.leaves(), {}
        for i in (i for i in t.wrt if lies[i]):
            base = t.rng.standard_normal(lies[i][0])
            seen_through(lies[i][1], base)[...] = t.arrays[i] / 2
            leaf = Tensor(base, True)
            x = bases[i] = leaf, leaf * 1
            for step in lies[i][1]:
                x = xs[i] = apply(step, x[1] if isinstance(x, tuple) else x)
            xs[i].mul_(2.0)
        y, ws = first(apply(t.op, *xs)), [t.rng.standard_normal(h.shape) for _, h in bases.values()]
        np.testing.assert_allclose(y.detach().array, t.y, 1e-9, 1e-11)
        got = grad([y, *(h for _, h in bases.values())], [leaf for leaf, _ in bases.values()],
                   [Tensor(t.g), *map(Tensor, ws)])
        for i, w, d in zip(bases, ws, got):
            want = w.copy()
            shown = seen_through(lies[i][1], want)
            shown[...] = 2 * (shown + plain[i].array)
            np.testing.assert_allclose(d.array, want, 1e-9, 1e-10, err_msg=f"{t.op}: {t.names[i]} as a {way} of a base")


def law_output_view(t: Trial) -> None:
    """The output of a view op, written in place: the gradient goes through what was written to the input and to the
    value; refused where one cell is several elements."""
    if not isinstance(t.op, ViewOp) or not t.op.aliases(t.arrays[0]):
        return
    leaf, v = Tensor(t.arrays[0].copy(order="K"), True), Tensor(t.rng.standard_normal(t.y.shape), True)
    h = leaf * 1
    y = apply(t.op, h)
    if t.op.repeats:
        try:
            y.mul_(v)
        except GraphError:
            return
        raise AssertionError(f"{t.op}: its output was written, though one cell is several elements")
    y.mul_(v)
    w, mask = t.rng.standard_normal(h.shape), np.ones(h.shape)
    shown = seen_through((t.op,), mask)
    shown[...] = v.array
    below = w + t.gradients(t.leaves())[0].array
    dx, dv = grad([h, y], [leaf, v], [Tensor(w), Tensor(t.g)])
    np.testing.assert_allclose(dx.array, mask * below, 1e-12, 1e-12)
    np.testing.assert_allclose(dv.array, seen_through((t.op,), np.asarray(below * t.arrays[0])), 1e-12, 1e-12)


LAWS = {
    f.__name__.removeprefix("law_"): f
    for f in (
        law_reference,
        law_dtype,
        law_narrow,
        law_infer,
        law_aliases,
        law_meta,
        law_gradient,
        law_traced,
        law_second,
        law_saves,
        law_door,
        law_sim,
        law_source,
        law_some,
        law_deferred,
        law_input_view,
        law_output_view,
    )
}


def check_op(cls: type, seed: int = 0) -> int:
    """Every law on every sample of an op class; returns how many samples there were."""
    samples = cls.samples()
    for sample in samples:
        for name, law in LAWS.items():
            if name not in sample.skip:
                law(Trial(sample, seed))
    return len(samples)


__all__ = ["LAWS", "Trial", "check_op", "on_device"]
