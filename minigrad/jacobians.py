"""Whole Jacobians and Hessians of a function, and their products with a vector: `mg.autograd.functional`.

    jacobian(f, x)[i…, j…] = ∂f(x)[i…] / ∂x[j…]          hessian(f, x): the same of the gradient of a number
    vjp = vᵀJ (one backward)     jvp = Jv (two backwards: the second by v, Townsend 2017)     vhp = vᵀH     hvp = Hv

Signatures and shapes are those of `torch.autograd.functional`.  `inputs` and what `func` returns are a tensor or a
tuple of tensors, and the result is nested in the same way.  Without `create_graph` results have no history; `strict`
raises RuntimeError where a derivative is zero because nothing depends.  After `check.py`.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minigrad.autograd import enable_grad, grad
from minigrad.create import zeros_like
from minigrad.errors import GraphError, ShapeError
from minigrad.ops.shape import stack
from minigrad.tensor import Tensor

Tensors = Any  # a Tensor, or a tuple of them


# ---- tuples in and out ---------------------------------------------------------------------------
def _tuple(x: Any, what: str) -> tuple[Tensor, ...]:
    xs = x if isinstance(x, tuple | list) else (x,)
    for t in xs:
        if not isinstance(t, Tensor):
            raise TypeError(f"{what} must be a Tensor or a tuple of Tensors, got {type(t).__name__}")
    return tuple(xs)


def _like(xs: tuple, model: Any) -> Any:
    """One alone where the user gave, or the function returned, one alone."""
    return xs if isinstance(model, tuple | list) else xs[0]


def _fresh(xs: tuple[Tensor, ...], create_graph: bool) -> tuple[Tensor, ...]:
    """Inputs of the function that nobody else holds: so a gradient by them is by the argument alone."""
    return tuple(
        x.reshape(x.shape) if create_graph and x.requires_grad else x.detach().requires_grad_()
        for x in xs
    )


def _finished(xs: Any, create_graph: bool) -> Any:
    if isinstance(xs, tuple):
        return tuple(_finished(x, create_graph) for x in xs)
    return xs if create_graph else xs.detach()


def _called(func: Callable, inputs: Tensors, create_graph: bool, name: str) -> tuple[tuple, tuple, Any]:
    """(fresh inputs, outputs as a tuple, outputs as the function gave them), with a graph in between."""
    xs = _fresh(_tuple(inputs, f"{name}: inputs"), create_graph)
    out = func(*xs)
    return xs, _tuple(out, f"{name}: what the function returns"), out


def _vector(v: Tensors | None, like: tuple[Tensor, ...], name: str, what: str) -> tuple[Tensor, ...]:
    """`v`, checked; where it is left out, 1 for a single number."""
    if v is None:
        if len(like) != 1 or like[0].numel() != 1:
            raise GraphError(
                f"{name}: v may be left out only where {what} is one number, here it is {_shapes(like)}. "
                "Pass v of that shape"
            )
        return (zeros_like(like[0]) + 1,)
    vs = _tuple(v, f"{name}: v")
    if _shapes(vs) != _shapes(like):
        raise ShapeError(f"{name}: v is {_shapes(vs)}, {what} is {_shapes(like)}; they must be alike")
    return vs


def _shapes(xs: tuple[Tensor, ...]) -> str:
    return ", ".join(str(x.shape) for x in xs)


def _gradients(ys: tuple, xs: tuple, vs: tuple | None, create_graph: bool, strict: bool, name: str) -> tuple:
    """vᵀ ∂ys/∂xs, zeros where nothing depends; with `strict` that raises."""
    found: tuple = (None,) * len(xs)
    depends = [y.requires_grad for y in ys]
    if any(depends):
        kept = [(y, None if vs is None else vs[k]) for k, y in enumerate(ys) if depends[k]]
        gs = None if vs is None else [v for _, v in kept]
        found = grad([y for y, _ in kept], xs, gs, retain_graph=True, create_graph=create_graph, allow_unused=True)
    if strict:
        _check_depends(depends, found, create_graph, name)
    return tuple(zeros_like(x.detach()) if g is None else g for x, g in zip(xs, found))


def _check_depends(depends: list[bool], found: tuple, create_graph: bool, name: str) -> None:
    if not all(depends):
        raise GraphError(f"{name}, strict: output {depends.index(False)} does not depend on the inputs")
    for i, g in enumerate(found):
        if g is None:
            raise GraphError(f"{name}, strict: the outputs do not depend on input {i}")
        if create_graph and not g.requires_grad:
            raise GraphError(f"{name}, strict: the derivative by input {i} does not depend on the inputs")


# ---- first derivatives ---------------------------------------------------------------------------
def vjp(func: Callable, inputs: Tensors, v: Tensors | None = None, create_graph: bool = False,
        strict: bool = False) -> tuple[Tensors, Tensors]:
    """(func(inputs), vᵀJ): what backward computes, for `v` in the shape of the outputs."""
    with enable_grad():
        xs, ys, out = _called(func, inputs, create_graph, "vjp")
        vs = _vector(v, ys, "vjp", "the output")
        found = _gradients(ys, xs, vs, create_graph, strict, "vjp")
    return _like(_finished(ys, create_graph), out), _like(_finished(found, create_graph), inputs)


def jvp(func: Callable, inputs: Tensors, v: Tensors | None = None, create_graph: bool = False,
        strict: bool = False) -> tuple[Tensors, Tensors]:
    """(func(inputs), Jv): the derivative along `v`, in the shape of the inputs.

    vjp is linear in its vector u; differentiated by u, with upstream v, it gives Jv."""
    with enable_grad():
        xs, ys, out = _called(func, inputs, create_graph, "jvp")
        vs = _vector(v, xs, "jvp", "the input")
        us = tuple(zeros_like(y.detach()).requires_grad_() for y in ys)
        back = _gradients(ys, xs, us, True, strict, "jvp")
        found = _gradients(back, us, vs, create_graph, False, "jvp")
    return _like(_finished(ys, create_graph), out), _like(_finished(found, create_graph), out)


def jacobian(func: Callable, inputs: Tensors, create_graph: bool = False, strict: bool = False,
             vectorize: bool = False, strategy: str = "reverse-mode") -> Any:
    """J, of shape output.shape + input.shape; nested as [output][input] where there are several.

    One backward for each element of the output.  `vectorize` changes nothing here; "forward-mode" takes one `jvp`
    for each element of the input."""
    if strategy not in ("reverse-mode", "forward-mode"):
        raise ValueError(f'jacobian: strategy {strategy!r} must be "reverse-mode" or "forward-mode"')
    if strategy == "forward-mode":
        return _forward_jacobian(func, inputs, create_graph, strict)
    with enable_grad():
        xs, ys, out = _called(func, inputs, create_graph, "jacobian")
        rows = tuple(_rows(y, xs, create_graph, strict) for y in ys)
    rows = _finished(rows, create_graph)
    return _like(tuple(_like(row, inputs) for row in rows), out)


def _rows(y: Tensor, xs: tuple[Tensor, ...], create_graph: bool, strict: bool) -> tuple[Tensor, ...]:
    """The blocks of one output: for each input y.shape + x.shape."""
    flat = y.reshape(-1)
    found = [_gradients((flat[k],), xs, None, create_graph, strict, "jacobian") for k in range(y.numel())]
    return tuple(
        stack([gs[i] for gs in found]).reshape(*y.shape, *x.shape) if found else _empty(y, x) for i, x in enumerate(xs)
    )


def _empty(y: Tensor, x: Tensor) -> Tensor:
    """The block of an output without elements."""
    return zeros_like(y.detach()).reshape(*y.shape, *(1,) * x.ndim).expand(*y.shape, *x.shape).clone()


def _forward_jacobian(func: Callable, inputs: Tensors, create_graph: bool, strict: bool) -> Any:
    """The same, column by column."""
    xs = _tuple(inputs, "jacobian: inputs")
    blocks, out = [], None
    for i, x in enumerate(xs):
        columns = []
        for k in range(x.numel()):
            units = [zeros_like(t.detach()) for t in xs]
            units[i].reshape(-1)[k] = 1
            out, column = jvp(func, xs, tuple(units), create_graph, strict)
            columns.append(_tuple(column, "jacobian"))
        blocks.append(columns)
    if out is None:
        raise ShapeError("jacobian: forward-mode needs an input with elements. Use reverse-mode")
    ys = _tuple(out, "jacobian")
    place = lambda k, i: (  # noqa: E731
        stack([c[k] for c in blocks[i]], -1).reshape(*ys[k].shape, *xs[i].shape) if blocks[i] else _empty(ys[k], xs[i])
    )
    rows = tuple(tuple(place(k, i) for i in range(len(xs))) for k in range(len(ys)))
    return _like(tuple(_like(row, inputs) for row in rows), out)


# ---- second derivatives of a number --------------------------------------------------------------
def _one_number(func: Callable, name: str) -> Callable:
    def checked(*xs):
        out = func(*xs)
        if not isinstance(out, Tensor):
            raise GraphError(f"{name}: the function must return one Tensor, not a {type(out).__name__}")
        if out.numel() != 1:
            raise ShapeError(f"{name}: the function must return one number, not a tensor of shape {out.shape}")
        return out.reshape(())

    return checked


def hessian(func: Callable, inputs: Tensors, create_graph: bool = False, strict: bool = False, vectorize: bool = False,
            outer_jacobian_strategy: str = "reverse-mode") -> Any:
    """H, of shape input.shape + input.shape; nested as [input][input] where there are several."""
    number = _one_number(func, "hessian")

    def gradient(*xs):
        found = jacobian(number, xs, create_graph=True, strict=strict)
        if strict and not all(g.requires_grad for g in found):
            raise GraphError("hessian, strict: the gradient does not depend on every input")
        return _like(found, inputs)

    return jacobian(gradient, inputs, create_graph, strict, vectorize, outer_jacobian_strategy)


def vhp(func: Callable, inputs: Tensors, v: Tensors | None = None, create_graph: bool = False,
        strict: bool = False) -> tuple[Tensor, Tensors]:
    """(func(inputs), vᵀH), for `v` in the shape of the inputs: one backward through a backward."""
    number = _one_number(func, "vhp")
    with enable_grad():
        xs, ys, _ = _called(number, inputs, create_graph, "vhp")
        vs = _vector(v, xs, "vhp", "the input")
        first = _gradients(ys, xs, None, True, strict, "vhp")
        found = _gradients(first, xs, vs, create_graph, strict, "vhp")
    return _finished(ys[0], create_graph), _like(_finished(found, create_graph), inputs)


def hvp(func: Callable, inputs: Tensors, v: Tensors | None = None, create_graph: bool = False,
        strict: bool = False) -> tuple[Tensor, Tensors]:
    """(func(inputs), Hv).  H is symmetric where second derivatives are continuous, so this is `vhp`, the cheaper."""
    return vhp(func, inputs, v, create_graph, strict)


__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]
