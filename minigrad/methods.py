"""Python syntax and methods of Tensor: one visible table of explicit functions.

An elementwise op names its own method (`ops/elementwise.py`) and arrives by `derived`; everything else is listed here.
`tensor.pyi` is generated from the result and a test holds it.  After `function.py`, before `create.py`.
"""
from __future__ import annotations

from minigrad import autograd, copying, draws, values as p
from minigrad.algebra import size_of
from minigrad.aval import Aval
from minigrad.device import CPU, META, Device, device as as_device
from minigrad.dtype import (
    as_dtype,
    bool_,
    category,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    is_float,
    of_number,
    uint8,
)
from minigrad.errors import DTypeError
from minigrad.inplace import check_writable, overwrite, shown_in_place, store
from minigrad.ops import (
    bits,
    compare as c,
    derived,
    elementwise as e,
    function,
    fused as f,
    index as i,
    matmul as m,
    public,
    reduce_functions as r,
    rounding as n,
    shape as s,
    views as v,
)
from minigrad.ops.doors import KNOWN, door, literal
from minigrad.ops.indexed import nonzero
from minigrad.ops.limits import clamp  # noqa: F401 - public here
from minigrad.ops.op import cast
from minigrad.ops.statistics import norm  # noqa: F401 - public here
from minigrad.ops.transfer import Transfer
from minigrad.tensor import InferenceTensor, Tensor, View, Writes, apply, current, is_inference, tick

add, sub, mul, div, pow_door = (function(cls) for cls in (e.Add, e.Sub, e.Mul, e.Div, e.Pow))
maximum, minimum, square, sqrt = (function(cls) for cls in (e.Maximum, e.Minimum, e.Square, e.Sqrt))


# ---- arithmetic --------------------------------------------------------------------------------
def pow(a: Tensor, b) -> Tensor:
    """a ** b; 2 and 0.5 have ops of their own."""
    if b.__class__ in (int, float) and is_float(a.dtype):
        if b == 2:
            return square(a)
        if b == 0.5:
            return sqrt(a)
    return (a if b else a == a) * True if b.__class__ is bool and a.dtype == bool_ else pow_door(a, b)


def _operator(f):
    """The operator of a binary function; an operand of another kind is left to Python to ask."""
    return lambda a, b: f(a, b) if isinstance(b, KNOWN) else NotImplemented


def _swapped(f):
    """The same with the operands exchanged: `2 - x`."""
    return lambda a, b: f(literal(b, a, f.__name__), a) if isinstance(b, KNOWN) else NotImplemented


def _direct(cls):
    """The operator of an elementwise op, as a door of its own: the hot path has no call in between."""
    return door(cls.of(), operator=True)


remainder, floor_divide = function(n.Remainder), function(n.FloorDivide)


def where(condition: Tensor, a=None, b=None):
    """a where the condition holds, else b; gradient only to the branch taken.  The condition alone: its places, as
    `nonzero(as_tuple=True)`."""
    if a is None and b is None:
        return nonzero(condition, as_tuple=True)
    if not isinstance(condition, Tensor) or condition.dtype != bool_:
        raise DTypeError(
            f"where: the condition must be a bool tensor, got {getattr(condition, 'dtype', type(condition).__name__)}"
        )
    if not isinstance(a, Tensor) and not isinstance(b, Tensor):      # two numbers: the larger kind of the two decides
        a = literal(a, condition) if category(of_number(a)) >= category(of_number(b)) else a
    like = a if isinstance(a, Tensor) else b if isinstance(b, Tensor) else literal(b, condition)
    return apply(e.Where.of(), condition, literal(a, like), literal(b, like))


# ---- moving and converting ---------------------------------------------------------------------
def to(x: Tensor, *args, dtype=None, device=None, non_blocking: bool = False, copy: bool = False) -> Tensor:
    """In another dtype, on another device, or as another tensor: `t.to("sim:0")`, `t.to(mg.float64)`, `t.to(other)`.
    `non_blocking` (also as the first truth value among `args`; the second is `copy`) makes no difference."""
    truths = [a for a in args if isinstance(a, bool)]
    copy = truths[1] if len(truths) > 1 else copy
    for a in args[:len(args) - len(truths)]:
        if isinstance(a, Tensor):
            dtype, device = a.dtype, a.o.device
        elif isinstance(a, Device) or (isinstance(a, str) and a.split(":")[0] in ("cpu", "cuda", "sim", "meta")):
            device = a
        elif isinstance(a, str):
            device = as_device(a)
        else:
            dtype = a
    y = x if dtype is None else cast(x, as_dtype(dtype))
    where = x.o.device if device is None else as_device(device)
    if where is not x.o.device:
        y = _moved(y, where)
    return y.clone() if copy and y is x else y


def _moved(x: Tensor, where: Device) -> Tensor:
    if where is META:
        return Tensor(Aval(x.shape, x.dtype))
    p.check_values(x)
    return apply(Transfer.of(x.o.device, where), x)


def type_as(x: Tensor, other: Tensor) -> Tensor:
    return cast(x, other.dtype)


def _converted(kind):
    return lambda x: cast(x, as_dtype(kind))


def cuda(x: Tensor, index: int = 0) -> Tensor:
    return to(x, device=f"cuda:{index}")


# ---- the graph ---------------------------------------------------------------------------------
def detach(x: Tensor) -> Tensor:
    """The same memory without a history."""
    return Tensor(x.array) if x.__class__ is Tensor or not is_inference(x) else InferenceTensor(x.array)


def backward(
    x: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs=None,
    *,
    defer=(),
):
    """Add d x / d leaf to every leaf's `.grad`; see `mg.autograd.backward`."""
    return autograd.backward(x, gradient, retain_graph, create_graph, inputs, defer=defer)


def get_data(x: Tensor) -> Tensor:
    return detach(x)


def set_data(x: Tensor, value: Tensor) -> None:
    """Exchange the values under a tensor, unseen by the graph."""
    if not isinstance(value, Tensor):
        raise TypeError(
            f".data takes a Tensor, got {type(value).__name__}. To write values: x.copy_(...) under no_grad()"
        )
    Writes.note(x.array)
    x.array, x.o = value.array, value.o


# ---- in place ----------------------------------------------------------------------------------
def _in_place(f, name: str):
    def method(x: Tensor, *args, **kwargs) -> Tensor:
        check_writable(x, x.shape, name)
        since = tick()
        out = f(x, *args, **kwargs)
        if out.dtype != x.dtype:
            if is_float(out.dtype) and not is_float(x.dtype) or x.dtype == bool_:
                raise DTypeError(f"{name}: a result of {out.dtype} does not fit into a {x.dtype} tensor. "
                                 f"Convert the tensor first, .to(mg.{out.dtype}), or use the form without `_`")
            out = cast(out, x.dtype)
        return overwrite(x, out, name, since)
    method.__name__, method.__doc__ = name, f"In place: {(f.__doc__ or name).splitlines()[0]}"
    return method


def copy_(x: Tensor, source) -> Tensor:
    """Take the values (and history) of `source`, broadcast to this shape, converted to this dtype and device."""
    source = literal(source, x)
    if source.o.device is not x.o.device:
        source = to(source, x.o.device)
    source = cast(source, x.dtype)
    check_writable(x, x.shape, "copy_")
    if x.o.eager and (not current().grad or (x.node is None and source.node is None)):
        Overwrite_infer = s.Overwrite.of().infer(x.aval, source.aval)
        assert Overwrite_infer.shape == x.shape
        store(x, source)
        return x
    return overwrite(x, apply(s.Overwrite.of(), x, source), "copy_")


def fill_(x: Tensor, value) -> Tensor:
    """Every element `value`, a number or a 0-d tensor."""
    return copy_(x, value)


def zero_(x: Tensor) -> Tensor:
    """Every element 0."""
    return copy_(x, 0)


def augmented(f, name: str):
    """`x += y`: in place where x may be written, as PyTorch."""
    method = _in_place(f, name)
    return lambda x, other: method(x, other) if isinstance(other, KNOWN) else NotImplemented


# ---- the table ---------------------------------------------------------------------------------
METHODS = {
    **derived("method"),
    **public.METHODS,
    "add": public.add,
    "sub": public.sub,
    "mul": mul,
    "pow": pow,
    "maximum": maximum,
    "minimum": minimum,
    "multiply": mul,
    "subtract": public.sub,
    "__add__": _direct(e.Add),
    "__radd__": _swapped(add),
    "__sub__": _direct(e.Sub),
    "__rsub__": _swapped(sub),
    "__mul__": _direct(e.Mul),
    "__rmul__": _swapped(mul),
    "__truediv__": _direct(e.Div),
    "__rtruediv__": _swapped(div),
    "__pow__": _operator(pow),
    "__rpow__": _swapped(pow),
    "__matmul__": _operator(m.matmul),
    "__rmatmul__": lambda a, b: m.matmul(b, a) if isinstance(b, Tensor) else NotImplemented,
    "__rdiv__": _swapped(div),
    "__neg__": function(e.Neg),
    "__pos__": lambda x: x,
    "__abs__": function(e.Abs),
    "__gt__": _direct(c.Greater),
    "__ge__": _direct(c.GreaterEqual),
    "__lt__": _direct(c.Less),
    "__le__": _direct(c.LessEqual),
    "__eq__": _direct(c.Equal),
    "__ne__": _direct(c.NotEqual),
    **bits.OPERATORS,
    "__mod__": _direct(n.Remainder),
    "__rmod__": _swapped(remainder),
    "__floordiv__": _direct(n.FloorDivide),
    "__rfloordiv__": _swapped(floor_divide),
    "__hash__": object.__hash__,
    "__getitem__": i.getitem,
    "__setitem__": i.setitem,
    "__bool__": p.as_bool,
    "__float__": lambda x: float(p.item(x)),
    "__int__": lambda x: int(p.item(x)),
    "__index__": p.as_index,
    "__len__": p.length,
    "__iter__": p.iterate,
    "__contains__": p.contains,
    "__array__": p.as_array,
    "__repr__": p.as_text,
    "__format__": p.formatted,
    "__deepcopy__": copying.deepcopy,
    "__reduce__": copying.reduce,
    "__iadd__": augmented(add, "+="),
    "__isub__": augmented(sub, "-="),
    "__imul__": augmented(mul, "*="),
    "__itruediv__": augmented(div, "/="),
    "__ipow__": augmented(pow, "**="),
    "__imod__": augmented(remainder, "%="),
    "__ifloordiv__": augmented(floor_divide, "//="),
    "__iand__": augmented(bits.AND, "&="),
    "__ior__": augmented(bits.OR, "|="),
    "__ixor__": augmented(bits.XOR, "^="),
    "matmul": m.matmul,
    "where": lambda x, condition, other: where(condition, x, other),
    "sum": r.sum,
    "mean": r.mean,
    "var": r.var,
    **{g.__name__: g for g in (r.max, r.min, r.amax, r.amin, r.argmax, r.argmin, r.all, r.any)},
    "softmax": f.softmax,
    "log_softmax": f.log_softmax,
    "logsumexp": f.logsumexp,
    "reshape": v.reshape,
    "view": v.view,
    "flatten": v.flatten,
    "permute": v.permute,
    "transpose": v.transpose,
    "t": v.t,
    "expand": v.expand,
    "unsqueeze": v.unsqueeze,
    "squeeze": v.squeeze,
    "contiguous": s.contiguous,
    "clone": s.clone,
    "gather": i.gather,
    "size": p.size,
    **dict.fromkeys(("numel", "nelement"), lambda x: size_of(x.shape)),
    **dict.fromkeys(("dim", "ndimension"), lambda x: x.ndim),
    "is_nonzero": p.as_bool,
    "is_complex": lambda x: False,
    "__dlpack__": p.as_dlpack,
    "__dlpack_device__": p.dlpack_device,
    "numpy": p.numpy,
    "item": p.item,
    "tolist": p.tolist,
    "is_contiguous": lambda x: x.aval.is_contiguous(),
    "element_size": lambda x: x.dtype.itemsize,
    "is_floating_point": lambda x: is_float(x.dtype),
    "stride": lambda x: tuple(n // x.dtype.itemsize for n in x.aval.strides),
    "to": to,
    "type_as": type_as,
    "cuda": cuda,
    "cpu": lambda x: to(x, CPU),
    **{name: _converted(kind) for name, kind in dict(
        float=float32, double=float64, half=float16, bfloat16="bfloat16", byte=uint8, char=int8, short=int16,
        int=int32, long=int64, bool=bool_).items()},
    "detach": detach,
    "is_inference": is_inference,
    "to_dense": lambda x: x,
    "requires_grad_": autograd.requires_grad_,
    "backward": backward,
    "register_hook": autograd.register_hook,
    "register_post_accumulate_grad_hook": autograd.register_post_accumulate_grad_hook,
    "retain_grad": autograd.retain_grad,
    "copy_": copy_,
    "fill_": fill_,
    "zero_": zero_,
}
IN_PLACE = {
    **public.IN_PLACE,
    **draws.IN_PLACE,
    "add_": public.add,
    "sub_": public.sub,
    "subtract_": public.sub,
    "mul_": mul,
    "div_": public.div,
    "pow_": pow,
    "clamp_": public.clamp,
    **{name + "_": METHODS[name] for name in
       "neg abs exp log sqrt tanh sigmoid relu square reciprocal sin cos".split()},
}
AXES_IN_PLACE = ("squeeze_", "swapaxes_", "swapdims_", "t_", "transpose_", "unsqueeze_")
PROPERTIES = {
    "T": lambda x: v.t(x) if x.ndim <= 2 else v.permute(x, *reversed(range(x.ndim))),
    "mT": lambda x: v.transpose(x, -1, -2),
    "mH": lambda x: v.transpose(x, -1, -2),
    "H": lambda x: v.transpose(x, -1, -2),
    "real": lambda x: x,
    "device": lambda x: x.o.device,
    "nbytes": lambda x: size_of(x.shape) * x.dtype.itemsize,
    "itemsize": lambda x: x.dtype.itemsize,
    "is_sparse": lambda x: False,
    "is_view": lambda x: isinstance(x, View),
}

for _name, _function in METHODS.items():
    setattr(Tensor, _name, _function)
for _name, _function in IN_PLACE.items():
    setattr(Tensor, _name, _in_place(_function, _name))
for _name in AXES_IN_PLACE:
    setattr(Tensor, _name, shown_in_place(METHODS[_name[:-1]], _name))
for _name, _function in PROPERTIES.items():
    setattr(Tensor, _name, property(_function))
for _name, _property in {"data": property(get_data, set_data),
                         "requires_grad": property(lambda x: x.node is not None, autograd.requires_grad_)}.items():
    setattr(Tensor, _name, _property)
