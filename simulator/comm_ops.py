"""Collectives as operations of the graph: what goes forward along them sends its gradient back.

The adjoint of all_gather is reduce_scatter, of broadcast reduce, of send recv: each gradient below is one of these
operations itself, so a gradient has a gradient again.  After `communicator.py`, which carries no gradients.

Two conventions, and which one is meant is in the name:
- operations: the loss is the *sum* of what all ranks compute (as in `torch.distributed.nn.functional`);
- regions (`copy_to` ... `scatter_to`): all ranks compute the *same* loss from the same values, and it counts once
  (Megatron-LM, Shoeybi et al. 2019, figure 3: f and g).

A gradient goes back only if all ranks take part: x needs one on all of them or on none, and the result (or its token)
is in what each calls backward on.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import minigrad as mg
from minigrad import Tensor
from minigrad.function import Function
from simulator.collectives.plan import cut
from simulator.communicator import Communicator

LINEAR = ("sum", "mean")


# ---- operations in which all ranks are alike -----------------------------------------------------
def all_reduce(x: Tensor, comm: Communicator, op: str = "sum") -> Tensor:
    """The sum or the mean of what all ranks give, on each of them."""
    return AllReduce.apply(x, comm, _linear(op, "all_reduce"))


def all_gather(x: Tensor, comm: Communicator, dim: int = 0) -> Tensor:
    """What all ranks give, joined along `dim`, in which their sizes may differ."""
    return AllGather.apply(x, comm, _axis(x, dim, "all_gather"))


def reduce_scatter(x: Tensor, comm: Communicator, dim: int = 0, op: str = "sum",
                   sizes: Sequence[int] | None = None) -> Tensor:
    """Piece `rank` along `dim` of the sum or mean; `sizes`: those of the pieces, by default as equal as can be."""
    dim = _axis(x, dim, "reduce_scatter")
    return ReduceScatter.apply(x, comm, dim, _linear(op, "reduce_scatter"), _sizes(x, comm, dim, sizes))


def all_to_all(xs: Sequence[Tensor], comm: Communicator) -> tuple[Tensor, ...]:
    """A tensor for each rank gives one from each; they may differ in their first dimension."""
    return AllToAll.apply(comm, *xs)


def exchange(x: Tensor, comm: Communicator, split_dim: int, concat_dim: int) -> Tensor:
    """all_to_all of one tensor: cut along `split_dim`, as equally as can be, and joined along `concat_dim`, in which
    the ranks may have had different sizes.  The way from a sequence cut by places to one cut by heads, and back
    (DeepSpeed-Ulysses, Jacobs et al. 2023)."""
    split_dim, concat_dim = (_axis(x, dim, "exchange") for dim in (split_dim, concat_dim))
    sizes = cut(x.shape[split_dim], comm.world_size)
    if min(sizes) == 0 and split_dim != concat_dim:
        raise ValueError(f"exchange: {comm.world_size} ranks cannot share the {x.shape[split_dim]} of dimension "
                         f"{split_dim} of {tuple(x.shape)}. Use at most so many ranks")
    shape = [sizes[comm.rank] if dim == split_dim else size for dim, size in enumerate(x.shape)]
    shape[concat_dim] = -1
    pieces = all_to_all([p.reshape(-1) for p in mg.split(x, sizes, split_dim)], comm)
    if split_dim == concat_dim and 0 in shape:
        raise ValueError(f"exchange: a tensor of shape {tuple(x.shape)} is empty, so nothing tells the sizes of pieces")
    return mg.cat([p.reshape(shape) for p in pieces], concat_dim)


# ---- operations in which one rank is special -----------------------------------------------------
def broadcast(x: Tensor | None, comm: Communicator, src: int = 0) -> Tensor:
    """What rank `src` gives, on each.  Others give None, or a tensor whose gradient is then 0."""
    return Broadcast.apply(x, _anchor(x, comm), comm, src)


def reduce(x: Tensor, comm: Communicator, dst: int = 0, op: str = "sum") -> Tensor:
    """The sum or mean on rank `dst`; a token on the others."""
    return Reduce.apply(x, _anchor(x, comm), comm, dst, _linear(op, "reduce"))


def scatter(x: Tensor | None, comm: Communicator, src: int = 0, dim: int = 0,
            sizes: Sequence[int] | None = None) -> Tensor:
    """Piece `rank` along `dim` of what rank `src` gives; others give None, or a tensor whose gradient is then 0."""
    if comm.rank == src and x is not None:
        dim = _axis(x, dim, "scatter")
        sizes = _sizes(x, comm, dim, sizes)
    return Scatter.apply(x, _anchor(x, comm), comm, src, dim, sizes)


def gather(x: Tensor, comm: Communicator, dst: int = 0, dim: int = 0) -> Tensor:
    """What all ranks give, joined along `dim` on rank `dst`; a token on the others."""
    return Gather.apply(x, _anchor(x, comm), comm, dst, _axis(x, dim, "gather"))


def send(x: Tensor, comm: Communicator, dst: int, tag: int = 0) -> Tensor:
    """Send to rank `dst`; returns a token."""
    return Send.apply(x, _anchor(x, comm), comm, dst, _tag(tag, "send"))


def recv(comm: Communicator, src: int, tag: int = 0, *, like: Tensor | None = None) -> Tensor:
    """What rank `src` sent by `send` of this file.  `like`: a tensor whose gradient is 0, for second derivatives."""
    return Recv.apply(like, _anchor(like, comm), comm, src, _tag(tag, "recv"))


def joined(y: Tensor, *tokens: Tensor) -> Tensor:
    """y, to which the tokens are joined: backward from it goes through the calls that gave them, as it must on each
    rank that took part.  A token is a 0-d zero, what a call returns on a rank that gets nothing; without it the other
    ranks would wait for the gradient of this one.  ChainerMN (Akiba et al. 2017) says `pseudo_connect`."""
    for token in tokens:
        y = y + token.to(y.dtype)
    return y


# ---- regions: one loss, computed alike by all ----------------------------------------------------
def copy_to(x: Tensor, comm: Communicator) -> Tensor:
    """x, from where each rank goes its own way; the gradients of their ways are added up (Megatron's f).  The result
    has the memory of x: do not write to it in place."""
    return CopyTo.apply(x, comm)


def reduce_from(x: Tensor, comm: Communicator) -> Tensor:
    """The sum of what all ranks give, from where they go on alike; the gradient is that of each (Megatron's g)."""
    return ReduceFrom.apply(x, comm)


def gather_from(x: Tensor, comm: Communicator, dim: int = -1) -> Tensor:
    """What all ranks give, joined along `dim`, from where they go on alike; each takes its piece of the gradient."""
    return GatherFrom.apply(x, comm, _axis(x, dim, "gather_from"))


def scatter_to(x: Tensor, comm: Communicator, dim: int = -1, sizes: Sequence[int] | None = None) -> Tensor:
    """Piece `rank` of x, which all have alike; their gradients are joined."""
    dim = _axis(x, dim, "scatter_to")
    return ScatterTo.apply(x, comm, dim, _sizes(x, comm, dim, sizes))


# ---- what they do, and their adjoints ------------------------------------------------------------
class AllReduce(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, comm: Communicator, op: str) -> Tensor:
        ctx.comm, ctx.op = comm, op
        return comm.all_reduce(x, op)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple:
        return AllReduce.apply(g, ctx.comm, ctx.op), None, None


class AllGather(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, comm: Communicator, dim: int) -> Tensor:
        pieces = comm.all_gather(_rows(x, dim))
        ctx.comm, ctx.dim, ctx.sizes = comm, dim, [p.shape[0] for p in pieces]
        return _joined(pieces, dim)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple:
        return ReduceScatter.apply(g, ctx.comm, ctx.dim, "sum", ctx.sizes), None, None


class ReduceScatter(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, comm: Communicator, dim: int, op: str, sizes: list[int]) -> Tensor:
        ctx.comm, ctx.dim, ctx.op = comm, dim, op
        return _rows(comm.reduce_scatter(_cut(x, dim, sizes), op), dim).contiguous()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple:
        g = AllGather.apply(g, ctx.comm, ctx.dim)
        return (g / ctx.comm.world_size if ctx.op == "mean" else g), None, None, None, None


class AllToAll(Function):
    @staticmethod
    def forward(ctx: Any, comm: Communicator, *xs: Tensor) -> tuple:
        ctx.comm = comm
        return tuple(comm.all_to_all(list(xs)))

    @staticmethod
    def backward(ctx: Any, *gs: Tensor) -> tuple:
        return None, *AllToAll.apply(ctx.comm, *gs)


class Broadcast(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor | None, anchor: Tensor, comm: Communicator, src: int) -> Tensor:
        ctx.comm, ctx.src, ctx.shape = comm, src, None if x is None else x.shape
        return comm.broadcast(x if comm.rank == src else None, src)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple:
        return _of_root(ctx, reduce(g, ctx.comm, ctx.src), ctx.src), None, None, None


class Reduce(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, comm: Communicator, dst: int, op: str) -> Tensor:
        ctx.comm, ctx.dst, ctx.op = comm, dst, op
        y = comm.reduce(x, dst, op)
        return _token(x) if y is None else y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple:
        g = broadcast(g, ctx.comm, ctx.dst)
        return (g / ctx.comm.world_size if ctx.op == "mean" else g), None, None, None, None


class Scatter(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor | None, anchor: Tensor, comm: Communicator, src: int, dim: int,
                sizes: list[int] | None) -> Tensor:
        ctx.comm, ctx.src, ctx.dim, ctx.shape = comm, src, dim, None if x is None else x.shape
        pieces = _cut(x, dim, sizes) if comm.rank == src and x is not None and sizes is not None else None
        y = comm.scatter(pieces, src)
        return _rows(y, dim).contiguous()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple:
        return _of_root(ctx, gather(g, ctx.comm, ctx.src, ctx.dim), ctx.src), None, None, None, None, None


class Gather(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, comm: Communicator, dst: int, dim: int) -> Tensor:
        pieces = comm.gather(_rows(x, dim), dst)
        ctx.comm, ctx.dst, ctx.dim = comm, dst, dim
        ctx.sizes = None if pieces is None else [p.shape[0] for p in pieces]
        return _token(x) if pieces is None else _joined(pieces, dim)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple:
        return Scatter.apply(g, _anchor(g, ctx.comm), ctx.comm, ctx.dst, ctx.dim, ctx.sizes), None, None, None, None


class Send(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, comm: Communicator, dst: int, tag: int) -> Tensor:
        ctx.comm, ctx.dst, ctx.tag = comm, dst, tag
        comm.send(x, dst, tag)
        return _token(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple:                # by a tag that no forward message has
        return Recv.apply(g, _anchor(g, ctx.comm), ctx.comm, ctx.dst, ~ctx.tag), None, None, None, None


class Recv(Function):
    @staticmethod
    def forward(ctx: Any, like: Tensor | None, anchor: Tensor, comm: Communicator, src: int, tag: int) -> Tensor:
        ctx.comm, ctx.src, ctx.tag, ctx.shape = comm, src, tag, None if like is None else like.shape
        return comm.recv(src, tag)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple:
        token = Send.apply(g, _anchor(g, ctx.comm), ctx.comm, ctx.src, ~ctx.tag)
        return (None if ctx.shape is None else token.expand(ctx.shape)), None, None, None, None


class CopyTo(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, comm: Communicator) -> Tensor:
        ctx.comm = comm
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple:
        return reduce_from(g, ctx.comm), None


class ReduceFrom(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, comm: Communicator) -> Tensor:
        ctx.comm = comm
        return comm.all_reduce(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple:
        return copy_to(g, ctx.comm), None


class GatherFrom(AllGather):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple:
        return ScatterTo.apply(g, ctx.comm, ctx.dim, ctx.sizes), None, None


class ScatterTo(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, comm: Communicator, dim: int, sizes: list[int]) -> Tensor:
        ctx.comm, ctx.dim = comm, dim
        return mg.split(x, sizes, dim)[comm.rank].clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple:
        return GatherFrom.apply(g, ctx.comm, ctx.dim), None, None, None


# ---- parts of them -------------------------------------------------------------------------------
def _rows(x: Tensor, dim: int) -> Tensor:
    """x with `dim` in front, where the communicator cuts and joins; the same again puts it back."""
    return x.transpose(0, dim) if dim else x


def _cut(x: Tensor, dim: int, sizes: Sequence[int]) -> list[Tensor]:
    return list(mg.split(_rows(x, dim), list(sizes)))


def _joined(pieces: Sequence[Tensor], dim: int) -> Tensor:
    return mg.cat([_rows(p, dim) for p in pieces], dim)


def _token(x: Tensor) -> Tensor:
    """What a rank that gets nothing gets."""
    return mg.zeros((), dtype=x.dtype, device=x.device)


def _anchor(x: Tensor | None, comm: Communicator) -> Tensor:
    """An input that wants a gradient and gets none: so the call is in the graph of each rank, whatever it gave."""
    return mg.zeros((), requires_grad=mg.is_grad_enabled(), device=comm.device if x is None else x.device)


def _of_root(ctx: Any, g: Tensor, root: int) -> Tensor | None:
    """The gradient of what a rank gave: on the root `g`; elsewhere `g` is a token, and what was given did not count."""
    if ctx.shape is None or ctx.comm.rank == root:
        return g if ctx.comm.rank == root else None
    return g.expand(ctx.shape)


def _linear(op: str, what: str) -> str:
    if op not in LINEAR:
        raise ValueError(f"{what}: op is one of {', '.join(LINEAR)}, got {op!r}. For another one reduce what "
                         f"all_gather of x.unsqueeze(0) gives, over its first dimension")
    return op


def _axis(x: Tensor, dim: int, what: str) -> int:
    if not -x.ndim <= dim < x.ndim:
        raise ValueError(f"{what}: dim={dim}, and a tensor of shape {tuple(x.shape)} has {x.ndim} dimensions. Give one "
                         f"of them, or x.reshape(1) where x is a number")
    return dim % x.ndim


def _sizes(x: Tensor, comm: Communicator, dim: int, sizes: Sequence[int] | None) -> list[int]:
    if sizes is None:
        return cut(x.shape[dim], comm.world_size)
    if len(sizes) != comm.world_size or sum(sizes) != x.shape[dim] or min(sizes) < 0:
        raise ValueError(f"sizes={list(sizes)} do not cut dimension {dim} of {tuple(x.shape)} in {comm.world_size} "
                         f"pieces. Give one for each rank, which add up to {x.shape[dim]}")
    return list(sizes)


def _tag(tag: int, what: str) -> int:
    if tag < 0:
        raise ValueError(f"{what}: tag={tag}; tags are at least 0, since the gradients go by those below")
    return tag


__all__ = ["all_gather", "all_reduce", "all_to_all", "broadcast", "copy_to", "exchange", "gather", "gather_from",
           "joined", "recv", "reduce", "reduce_from", "reduce_scatter", "scatter", "scatter_to", "send"]
