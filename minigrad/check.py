"""Checking gradients: `gradcheck` for any function, and the laws that every op of the catalogue obeys.

`check_op(op)` is the whole test of an op, made from its own declaration; `LAWS` names its parts, so that a test suite
can
run them one by one.  After `create.py`.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from minigrad.algebra import algebra, algebra_of
from minigrad.autograd import grad
from minigrad.aval import Aval, aval_of
from minigrad.device import CPU, Device, backend_of, device
from minigrad.dtype import is_float
from minigrad.errors import GraphError
from minigrad.ops.doors import function
from minigrad.ops.op import Elementwise
from minigrad.ops.samples import Sample
from minigrad.ops.symbols import NUMBA, NotSymbolic, emit
from minigrad.ops.views import ViewOp
from minigrad.tensor import Tensor, apply, seen_through

F8 = np.dtype("f8")


# ---- for any function --------------------------------------------------------------------------
def gradcheck(
    func: Callable,
    inputs: Sequence[Tensor] | Tensor,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
) -> bool:
    """Whether the gradients of `func` equal central differences, element by element, in float64.

    `inputs` are float64 tensors; those that require a gradient are varied.  Upstream gradients are random."""
    xs = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    wanted = [x for x in xs if isinstance(x, Tensor) and x.requires_grad]
    if not wanted:
        raise ValueError("gradcheck: no input requires a gradient")
    if any(x.dtype != F8 for x in wanted):
        raise ValueError(
            "gradcheck: inputs must be float64; differences in float32 are too coarse. Convert with .double()"
        )
    ys = _outputs(func, xs)
    rng = np.random.default_rng(0)
    gs = [rng.standard_normal(y.shape) for y in ys]
    found = grad(ys, wanted, [Tensor(g) for g in gs], allow_unused=True)
    for k, (x, got) in enumerate(zip(wanted, found)):
        want = _differences(lambda: sum((y.detach().numpy() * g).sum() for y, g in zip(_outputs(func, xs), gs)), x, eps)
        have = np.zeros(x.shape) if got is None else got.detach().numpy()
        if not np.allclose(have, want, rtol=rtol, atol=atol):
            at = np.unravel_index(np.abs(have - want).argmax(), x.shape) if x.shape else ()
            if raise_exception:
                raise GraphError(
                    f"gradcheck: input {k}: at {tuple(map(int, at))} the gradient is {have[at]:.6g}, "
                    f"differences say {want[at]:.6g}"
                )
            return False
    return True


def _outputs(func: Callable, xs: list) -> list[Tensor]:
    ys = func(*xs)
    return [y for y in (ys if isinstance(ys, tuple | list) else (ys,)) if isinstance(y, Tensor) and y.requires_grad]


def _differences(f: Callable[[], float], x: Tensor, eps: float) -> np.ndarray:
    """Central differences of f by each element of x, which is changed and put back."""
    out = np.zeros(x.shape)
    for at in np.ndindex(*x.shape):
        old = x.array[at].copy()
        x.array[at] = old + eps
        high = f()
        x.array[at] = old - eps
        low = f()
        x.array[at] = old
        out[at] = (high - low) / (2 * eps)
    return out


def gradgradcheck(func: Callable, inputs: Sequence[Tensor] | Tensor, **how) -> bool:
    """As gradcheck, of the gradients themselves: second derivatives."""
    xs = [inputs] if isinstance(inputs, Tensor) else list(inputs)

    def gradients(*xs):
        wanted = [x for x in xs if isinstance(x, Tensor) and x.requires_grad]
        rng, ys = np.random.default_rng(1), _outputs(func, xs)
        return grad(
            ys, wanted, [Tensor(rng.standard_normal(y.shape)) for y in ys], create_graph=True, materialize_grads=True
        )

    return gradcheck(gradients, xs, **how)


# ---- the laws of an op -------------------------------------------------------------------------
def _first(x):
    return x[0] if isinstance(x, tuple) else x


def _narrow(arrays: list, dtype: str = "f4") -> list:
    return [a.astype(dtype) if a.dtype == F8 else a for a in arrays]


class Trial:
    """One sample, its arrays, and which inputs are differentiated."""

    def __init__(self, sample: Sample, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.op, self.arrays, self.narrower = sample.op, sample.arrays(self.rng), sample.dtypes
        names = [self.op.input_name(i) for i in range(len(self.arrays))]
        self.wrt = [i for i, n in enumerate(names) if n in self.op.reads and self.arrays[i].dtype == F8]
        self.names = names
        self.y = self.run(self.arrays)
        self.g = self.rng.standard_normal(self.y.shape)

    def run(self, arrays: list):
        """y of the raw forward, in the dtype of the first float array."""
        return _first(self.forward(arrays))

    def forward(self, arrays: list):
        o = next((algebra_of(a) for a in arrays if is_float(a.dtype)), algebra_of(arrays[0]))
        outs = self.op.forward(o, *arrays)
        return tuple(map(np.asarray, outs)) if self.op.extra else np.asarray(outs)

    def leaves(self, arrays: list | None = None) -> list[Tensor]:
        made = [Tensor(a.copy(order="K"), i in self.wrt) for i, a in enumerate(arrays or self.arrays)]
        return made

    def gradients(self, xs: list[Tensor], **how):
        y = _first(apply(self.op, *xs))
        return grad(y, [xs[i] for i in self.wrt], Tensor(self.g), **how)


def law_reference(t: Trial) -> None:
    """forward equals the op's NumPy reference."""
    reference = getattr(t.op, "reference", None)
    if reference is not None:
        np.testing.assert_allclose(t.y, reference(*t.arrays), rtol=1e-10, atol=1e-12)


def law_dtype(t: Trial) -> None:
    """float32 in, float32 out (bool and integer results stay); the same for float16."""
    for name in t.narrower:
        got = t.run(_narrow(t.arrays, name)).dtype
        want = np.dtype(name) if is_float(t.y.dtype) and any(a.dtype == F8 for a in t.arrays) else t.y.dtype
        assert got == want, f"{t.op}: {name} in, {got} out"


def law_narrow(t: Trial) -> None:
    """float16 through an op of precision "high": values and gradients are those of float32, rounded once."""
    if t.op.precision != "high" or "f2" not in t.narrower:
        return
    half = _narrow(t.arrays, "f2")
    single = [a.astype("f4") if a.dtype == np.float16 else a for a in half]
    pair = [_first(apply(t.op, *t.leaves(arrays))) for arrays in (half, single)]
    want = pair[1].array.astype("f2") if is_float(t.y.dtype) else pair[1].array
    np.testing.assert_array_equal(pair[0].array, want)
    if t.wrt and y_floats(pair[0]):
        g = t.g.astype("f2")
        xs, ys = t.leaves(half), t.leaves(single)
        narrow = grad(_first(apply(t.op, *xs)), [xs[i] for i in t.wrt], Tensor(g))
        wide = grad(_first(apply(t.op, *ys)), [ys[i] for i in t.wrt], Tensor(g.astype("f4")))
        for a, b in zip(narrow, wide):
            close = 4e-3 * max(1.0, float(np.abs(b.array).max(initial=0)))               # y was rounded to 2**-11
            np.testing.assert_allclose(a.array, b.array, rtol=4e-3, atol=close)


def _same_place(promised: Aval, real: Aval) -> bool:
    strides = lambda a: [s for s, n in zip(a.strides, a.shape) if n > 1] if a.size else []  # noqa: E731
    return (promised.shape, promised.dtype) == (real.shape, real.dtype) and strides(promised) == strides(real)


def law_infer(t: Trial) -> None:
    """infer promises the shape, the dtype and the strides that forward gives, for y and the extra outputs."""
    for arrays in (t.arrays, *(_narrow(t.arrays, name) for name in t.narrower)):
        promised, real = t.op.infer(*map(aval_of, arrays)), t.forward(arrays)
        for p, r in zip(promised if t.op.extra else [promised], real if t.op.extra else [real]):
            exact = isinstance(t.op, ViewOp | Elementwise)
            fits = _same_place(p, aval_of(r)) if exact else (p.shape, p.dtype) == (r.shape, r.dtype)
            assert fits, f"{t.op}: infer says {p}, forward gives {aval_of(r)}"


def law_aliases(t: Trial) -> None:
    """`aliases` says whether y shows the memory of x."""
    y = _first(t.op.forward(algebra_of(t.arrays[0]), *t.arrays))
    if isinstance(y, np.ndarray) and y.size:
        assert t.op.aliases(t.arrays[0]) == np.shares_memory(y, t.arrays[0]), (
            f"{t.op}: aliases says {t.op.aliases(t.arrays[0])}"
        )


def law_meta(t: Trial) -> None:
    """The same application on meta tensors, forward and backward, has the shapes of the real one."""
    real = _first(apply(t.op, *t.leaves()))
    host = [i for i, n in enumerate(t.names) if n in t.op.on_host]
    metas = [Tensor(a if i in host else aval_of(a), i in t.wrt) for i, a in enumerate(t.arrays)]
    y = _first(apply(t.op, *metas))
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
    xs = t.leaves(_narrow(t.arrays)) if t.narrower else t.leaves()
    if not t.narrower:
        return
    for g in grad(_first(apply(t.op, *xs)), [xs[i] for i in t.wrt], Tensor(t.g.astype("f4"))):
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
    y = _first(out)
    owner = lambda a: id(algebra_of(a).storage(a))  # noqa: E731
    kept = {owner(v) for v in y.node.saved if isinstance(v, np.ndarray)}
    for x in (*xs, *(out if isinstance(out, tuple) else (out,))):
        if owner(x.array) not in kept and is_float(x.dtype):
            x.array[...] = np.nan
    for a, b in zip(want, grad(y, [xs[i] for i in t.wrt], Tensor(t.g))):
        np.testing.assert_array_equal(a.array, b.array)


def law_door(t: Trial) -> None:
    """The flattened door is bit-equal to apply, and the compiled pull of every op to its rules."""
    plain = isinstance(t.op, ViewOp) or t.op.extra or t.op.variadic             # no door
    a, b = t.leaves(), t.leaves()
    ya = _first(apply(t.op, *a)) if plain else function(type(t.op), *t.op.values)(*a)
    yb = _first(apply(t.op, *b))
    np.testing.assert_array_equal(ya.array, yb.array)
    if t.wrt and y_floats(ya):
        ya.backward(Tensor(t.g))
        for i, want in zip(t.wrt, grad(yb, [b[i] for i in t.wrt], Tensor(t.g))):
            np.testing.assert_array_equal(a[i].grad.array, want.array)


def y_floats(y: Tensor) -> bool:
    return is_float(y.dtype)


def law_sim(t: Trial) -> None:
    """The strict simulated device gives the values and gradients of the host."""
    on_device(t, device("sim:0"), rtol=1e-12)


def on_device(t: Trial, where: Device, rtol: float) -> None:
    """The op on another device, where only random keys stay on the host, has the host's values and gradients."""
    backend = backend_of(where)
    put = lambda a: backend.put(where.index, a)  # noqa: E731
    xs = [Tensor(a if n in t.op.on_host else put(a), i in t.wrt) for i, (n, a) in enumerate(zip(t.names, t.arrays))]
    y = _first(apply(t.op, *xs))
    back = y.array if y.o.device is CPU else backend.get(y.array)
    np.testing.assert_allclose(back, t.y, rtol=rtol, atol=rtol)
    if t.wrt:
        for a, b in zip(grad(y, [xs[i] for i in t.wrt], Tensor(put(t.g))), t.gradients(t.leaves())):
            np.testing.assert_allclose(backend.get(a.array), b.array, rtol=rtol, atol=rtol)


def law_source(t: Trial) -> None:
    """The generated numba text of forward and rules, run on float32 scalars, stays float32 and equals them."""
    if not isinstance(t.op, Elementwise) or not t.y.size:
        return
    arrays = _narrow(t.arrays)
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


__all__ = ["LAWS", "Trial", "check_op", "gradcheck", "gradgradcheck", "seen_through"]
