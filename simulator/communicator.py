"""The communicator: what a rank's program says to the others, in plain blocking Python.

    def program(comm):
        g = compute_gradient(comm.rank)
        return comm.all_reduce(g, "mean")

Values really move; how long it took is what `comm.time` says.  After `carrying.py`; an executor carries out the calls.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import numpy as np

from simulator.carrying import carry_out
from simulator.clocks import ARRIVE, COMPUTE, SEND, WAIT
from simulator.collectives import make_plan
from simulator.lines import called_at, line_of, ours
from simulator.matching import AnyReceipt, Call, Group, Receipt, where
from simulator.payload import Form, check_writable, finish, given, reduction, taken, values, write
from simulator.units import show

if TYPE_CHECKING:
    from simulator.device import DeviceSpec
    from simulator.executors.local import World
    from simulator.executors.seat import Seat

T = TypeVar("T")


class Handle(Generic[T]):
    """A call that goes on beside the program, as `torch.distributed.Work`; `wait` ends it."""

    def __init__(self, wait: Callable[[], T]) -> None:
        self._wait: Callable[[], T] | None = wait
        self._value: T

    def wait(self) -> T:
        """Until it is done; what the blocking call would have returned.  Again the same when called again."""
        if self._wait is not None:
            wait, self._wait = self._wait, None
            self._value = wait()
        return self._value


class Communicator:
    """Rank `rank` of the `world_size` ranks of a group.  Ranks are counted within the group, and named in errors as
    those of the whole run.

    What is sent is taken at the call, so it may be written to at once; what comes belongs to the receiver.  A tensor
    comes as a tensor, an array as an array, a number as a number.  Every collective takes `algorithm` and what that
    algorithm knows (`simulator.collectives`), and `async_op=True` for a `Handle`."""

    def __init__(self, rank: int, world: World | Seat, group: Group, device: str = "cpu") -> None:
        self._world = cast("World", world)                    # or a Seat, which is the same to its own rank
        self._group, self._me = group, group.ranks[rank]
        self.rank, self.world_size = rank, len(group.ranks)
        self.device = device                                 # for tensors of this rank: "cpu", or its own simulated one
        self._lane = self._world.clocks.lane(self._me)

    def __repr__(self) -> str:
        return f"<Communicator: rank {self.rank} of {self.world_size}, {self._group.name}>"

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of this group, as those of the whole run count them."""
        return self._group.ranks

    @property
    def spec(self) -> DeviceSpec:
        """The device that this rank stands for."""
        return self._world.cluster.devices[self._me]

    # -- time
    @property
    def time(self) -> float:
        """Seconds on this rank's modelled clock: what it computed and waited for until now."""
        self._world.check_running(self._me)
        return self._world.time_s(self._me)

    def compute(self, seconds: float | None = None, *, flops: float = 0, nbytes: float = 0, dtype: str = "float32",
                name: str = "compute") -> None:
        """Let the clock go on by `seconds`, or by what the device needs for so many FLOPs and bytes of memory."""
        if seconds is None:
            seconds = self.spec.compute_s(flops, nbytes, dtype)
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"compute: a time is at least 0 s and finite, got {seconds}")
        self.charge(seconds, flops, nbytes, name, (None, 0))

    def charge(self, seconds: float, flops: float, nbytes: float, name: str, site: tuple) -> None:
        """The same of what the user called at `site`, (code, lasti); where that is none, at the line that runs now."""
        now = self._begin()
        at = line_of(*(now if site[0] is None or ours(site[0].co_filename) else site))
        counts = [int(n) if n else None for n in (flops, nbytes)]
        self._world.clocks.do(self._lane, COMPUTE, float(seconds), name, *counts, at)

    # -- one to one
    def send(self, x: Any, dst: int, tag: int = 0) -> None:
        """Send to rank `dst`.  Goes on, in time, when all bytes have arrived; it waits for no recv."""
        self._send(x, dst, tag, "send").wait()

    def isend(self, x: Any, dst: int, tag: int = 0) -> Handle[None]:
        """Send beside what comes next."""
        return self._send(x, dst, tag, "isend")

    def _send(self, x: Any, dst: int, tag: int, what: str) -> Handle[None]:
        world, site = self._world, self._begin()
        to = self._peer(dst, what, "dst")
        array, form = taken(x, what)
        self._fits(array.nbytes, to, what)
        key = (self._group.number, self._me, to, tag)
        event = world.post(self._me, to, key, (array, form), array.nbytes, site)
        world.clocks.do(self._lane, SEND, event, to, array.nbytes, what, line_of(*site))
        return Handle(lambda: self._until(event, f"send to {to}", site))

    def recv(self, src: int, tag: int = 0, *, out: Any = None) -> Any:
        """The next message of rank `src` with this tag; into `out`, a tensor or array of its shape, where given."""
        return self.irecv(src, tag, out=out).wait()

    def irecv(self, src: int, tag: int = 0, *, out: Any = None) -> Handle[Any]:
        """Receive beside what comes next."""
        world, site = self._world, self._begin()
        sender = self._peer(src, "recv", "src")
        if out is not None:
            check_writable(out, "recv")
        receipt = Receipt(self._me, site, sender, tag)
        world.expect(receipt, (self._group.number, sender, self._me, tag))

        def wait() -> Any:
            self._until(receipt.event, f"recv from {sender}", site)
            world.block(self._me, receipt)
            (array, form), sent_at = receipt.value
            world.hand_over(sender, self._me, array.nbytes)
            if out is None:
                return given(array, form, self._me)
            if tuple(out.shape) != array.shape or np.dtype(out.dtype) != array.dtype:
                raise ValueError(f"recv: rank {sender} sent {array.shape} {array.dtype} at {where(sent_at)}; out is "
                                 f"{tuple(out.shape)} {np.dtype(out.dtype)}. Make it of that shape and dtype")
            write(out, array)
            return out
        return Handle(wait)

    def recv_any(self, tag: int = 0) -> tuple[int, Any]:
        """(rank, value) of the message with this tag that arrives first on the clocks, whoever sent it: how a server
        serves those who come, in the order of modelled time."""
        site = self._begin()
        keys = [(self._group.number, src, self._me, tag) for src in self.ranks if src != self._me]
        if not keys:
            raise ValueError(f"recv_any: {self._group.name} has nobody else in it")
        receipt = AnyReceipt(self._me, site, tag, keys)
        self._world.expect_any(receipt)
        self._until(receipt.event, "recv from any rank", site)
        self._world.block(self._me, receipt)
        src, (array, form), _ = receipt.value
        self._world.hand_over(src, self._me, array.nbytes)
        return self._group.place[src], given(array, form, self._me)

    # -- all together: reductions
    def all_reduce(self, x: Any, op: str = "sum", *, algorithm: str | None = None, async_op: bool = False,
                   **how: Any) -> Any:
        """The sum ("sum", "mean", "prod", "min", "max") of what all ranks give, on each of them."""
        return self._reducing("all_reduce", x, op, None, algorithm, async_op, how)

    def all_reduce_(self, x: Any, op: str = "sum", *, algorithm: str | None = None, async_op: bool = False,
                    **how: Any) -> Any:
        """The same in place: `x`, which may be a view, holds the sum afterwards (async: once it was waited for)."""
        check_writable(x, "all_reduce_")
        return self._reducing("all_reduce", x, op, None, algorithm, async_op, how, into=x)

    def reduce(self, x: Any, dst: int = 0, op: str = "sum", *, algorithm: str | None = None, async_op: bool = False,
               **how: Any) -> Any:
        """The sum of what all ranks give, on rank `dst`; None on the others."""
        return self._reducing("reduce", x, op, dst, algorithm, async_op, how)

    def reduce_scatter(self, x: Any, op: str = "sum", *, algorithm: str | None = None, async_op: bool = False,
                       **how: Any) -> Any:
        """Rank k gets the k-th piece of the sum.  `x`: a tensor whose first dimension is cut evenly, or a list with a
        tensor for each rank, whose shapes may differ."""
        site = self._begin()
        entries, forms = self._pieces(x, "reduce_scatter")
        ufunc = reduction(op, entries[0].dtype, "reduce_scatter")
        shape = tuple(a.shape for a in entries)
        call = self._call(site, "reduce_scatter", dict(enumerate(entries)), forms[0], shape, op, None, algorithm, how)
        return self._start(call, ufunc, lambda out: given(finish(out[0], op, self.world_size), forms[0], self._me),
                           async_op)

    def _reducing(self, kind: str, x: Any, op: str, root: int | None, algorithm: str | None, async_op: bool,
                  how: dict[str, Any], into: Any = None) -> Any:
        site = self._begin()
        array, form = taken(x, kind)
        ufunc = reduction(op, array.dtype, kind)
        call = self._call(site, kind, {0: array}, form, array.shape, op, root, algorithm, how)

        def result(out: list[np.ndarray]) -> Any:
            return self._delivered(finish(out[0], op, self.world_size), form, into) if out else None
        return self._start(call, ufunc, result, async_op)

    # -- all together: copies
    def broadcast(self, x: Any = None, src: int = 0, *, algorithm: str | None = None, async_op: bool = False,
                  **how: Any) -> Any:
        """What rank `src` gives, on each rank.  The others give something of that shape, or None."""
        return self._broadcast(x, src, algorithm, async_op, how)

    def broadcast_(self, x: Any, src: int = 0, *, algorithm: str | None = None, async_op: bool = False,
                   **how: Any) -> Any:
        """The same in place: `x` of each rank holds what that of rank `src` does."""
        check_writable(x, "broadcast_")
        return self._broadcast(x, src, algorithm, async_op, how, into=x)

    def _broadcast(self, x: Any, src: int, algorithm: str | None, async_op: bool, how: dict[str, Any],
                   into: Any = None) -> Any:
        site = self._begin()
        root = self._peer(src, "broadcast", "src", itself=True) == self._me
        if x is None and root:
            raise TypeError(f"broadcast: rank {self.rank} is src, so it gives the tensor; None is for the others")
        if x is None:
            call = self._call(site, "broadcast", {}, None, None, None, src, algorithm, how)
        else:
            array, form = taken(x, "broadcast") if root else values(x, "broadcast")
            call = self._call(site, "broadcast", {0: array} if root else {}, form, array.shape, None, src, algorithm,
                              how, dtype=array.dtype)
        return self._start(call, None, lambda out: self._delivered(out[0], call.given_form(), into), async_op)

    def all_gather(self, x: Any, *, algorithm: str | None = None, async_op: bool = False, **how: Any) -> Any:
        """A list of what each rank gives.  The shapes may differ in the first dimension."""
        return self._gathering("all_gather", x, None, algorithm, async_op, how)

    def gather(self, x: Any, dst: int = 0, *, algorithm: str | None = None, async_op: bool = False, **how: Any) -> Any:
        """The same list on rank `dst`; None on the others."""
        return self._gathering("gather", x, dst, algorithm, async_op, how)

    def _gathering(self, kind: str, x: Any, root: int | None, algorithm: str | None, async_op: bool,
                   how: dict[str, Any]) -> Any:
        site = self._begin()
        array, form = taken(x, kind)
        call = self._call(site, kind, {self.rank: array}, form, _rows_free(array.shape), None, root, algorithm, how)
        return self._start(call, None, lambda out: [given(a, form, self._me) for a in out] if out else None, async_op)

    def scatter(self, xs: Any = None, src: int = 0, *, algorithm: str | None = None, async_op: bool = False,
                **how: Any) -> Any:
        """Rank k gets the k-th piece of what rank `src` gives: a tensor whose first dimension is cut evenly, or a list
        with a tensor for each rank.  The others give None."""
        site = self._begin()
        root = self._peer(src, "scatter", "src", itself=True) == self._me
        if root == (xs is None):
            raise TypeError(f"scatter: rank {src} is src and gives the tensors, the others give None; rank {self.rank} "
                            f"gave {type(xs).__name__}")
        entries, forms = self._pieces(xs, "scatter") if root else ([], [])
        call = self._call(site, "scatter", dict(enumerate(entries)), forms[0] if root else None, None, None, src,
                          algorithm, how)
        return self._start(call, None, lambda out: given(out[0], call.given_form(), self._me), async_op)

    def all_to_all(self, xs: Any, *, algorithm: str | None = None, async_op: bool = False, **how: Any) -> Any:
        """Rank k gets the k-th piece of what each rank gives, as a list.  `xs` as for `scatter`; the pieces may differ
        in the first dimension."""
        site = self._begin()
        entries, forms = self._pieces(xs, "all_to_all")
        free = {_rows_free(a.shape) for a in entries}
        if len(free) > 1:
            raise ValueError(f"all_to_all: pieces of {[a.shape for a in entries]} differ in more than the first "
                             f"dimension")
        data = {self.rank * self.world_size + k: a for k, a in enumerate(entries)}
        call = self._call(site, "all_to_all", data, forms[0], free.pop(), None, None, algorithm, how)
        return self._start(call, None, lambda out: [given(a, forms[0], self._me) for a in out], async_op)

    def barrier(self) -> None:
        """Until all ranks of the group are here; in time, as long as a message of no bytes needs up a tree and down."""
        empty = np.empty(0, np.int8)
        call = self._call(self._begin(), "barrier", {0: empty}, Form("array"), None, None, None, "tree", {},
                          plan_kind="all_reduce")
        self._start(call, np.add, lambda _: None, False)

    def split(self, color: int | None, key: int | None = None) -> Communicator | None:
        """A communicator of the ranks that give the same `color`, in the order of `key` and then of rank, as
        MPI_Comm_split; None where `color` is None.  It takes no time but the wait for all."""
        call = self._call(self._begin(), "split", {}, Form("array"), None, None, None, None, {}, plan_kind=None)
        call.data = (color, self.rank if key is None else key)
        group = self._start(call, None, lambda out: out[0], False)
        return None if group is None else Communicator(group.place[self._me], self._world, group, self.device)

    # -- how a call is made
    def _begin(self) -> tuple:
        """The user's line; raises in a rank that is not to go on."""
        self._world.check_running(self._me)
        return called_at(2)

    def _peer(self, rank: int | None, what: str, name: str, itself: bool = False) -> int:
        """A rank of this group, as the whole run counts it."""
        if isinstance(rank, bool) or not isinstance(rank, (int, np.integer)):
            raise TypeError(f"{what}: {name} is the number of a rank, got {rank!r}")
        if not 0 <= rank < self.world_size:
            raise ValueError(f"{what}: {name}={rank}, but {self._group.name} has ranks 0 … {self.world_size - 1}")
        if rank == self.rank and not itself:
            raise ValueError(f"{what}: {name}={rank} is this rank itself; keep the value instead of sending it")
        return self._group.ranks[rank]

    def _fits(self, nbytes: int, rank: int, what: str) -> None:
        room = self._world.cluster.devices[rank].memory_bytes
        if nbytes > room:
            raise MemoryError(f"{what}: {show(nbytes, 'B')} do not fit the device of rank {rank}, which has "
                              f"{show(room, 'B')} in all. Send it in parts, or spawn with a larger device")

    def _pieces(self, xs: Any, what: str) -> tuple[list[np.ndarray], list[Form]]:
        """An array for each rank, of a list or of one tensor cut along its first dimension."""
        n = self.world_size
        if isinstance(xs, (list, tuple)):
            if len(xs) != n:
                raise ValueError(f"{what}: a list has one tensor for each of {n} ranks, got {len(xs)}")
            pairs = [taken(x, what) for x in xs]
            kinds = dict.fromkeys(f"{a.dtype} {form}" for a, form in pairs)
            if len(kinds) > 1:
                raise TypeError(f"{what}: all pieces have one dtype and device, got {', '.join(kinds)}")
            return [a for a, _ in pairs], [form for _, form in pairs]
        array, form = taken(xs, what)
        if array.ndim == 0 or array.shape[0] % n:
            rows = "no dimensions" if array.ndim == 0 else f"{array.shape[0]} rows"
            raise ValueError(f"{what}: a tensor of shape {array.shape} has {rows}, which {n} ranks cannot share "
                             f"evenly. Pad to a multiple of {n}, or give a list with a tensor for each rank")
        parts = np.split(array, n)
        return [np.array(part) for part in parts], [form] * n

    def _call(self, site: tuple, kind: str, data: dict[int, np.ndarray], form: Form | None, shape: Any, op: str | None,
              root: int | None, algorithm: str | None, how: dict[str, Any], *, dtype: Any = ...,
              plan_kind: str | None = ...) -> Call:                                      # type: ignore[assignment]
        """This rank's part of a collective, after everything about it that can be wrong alone was looked at."""
        if dtype is ...:
            dtype = next(iter(data.values())).dtype if data else None
        if root is not None or kind in ("reduce", "gather"):
            self._peer(root, kind, "dst" if kind in ("reduce", "gather") else "src", itself=True)
            how = {**how, "root": int(root)}                                            # type: ignore[arg-type]
        recipe = (kind if plan_kind is ... else plan_kind, algorithm, self.world_size, how)
        plan = None if plan_kind is None else make_plan(*recipe[:3], **how)         # type: ignore[arg-type]
        for array in data.values():
            self._fits(array.nbytes, self._me, kind)
        words = [kind, _shape_text(shape), None if dtype is None or kind == "barrier" else str(dtype), op,
                 None if root is None else f"root {root}"]
        signature = {"kind": kind, "form": form and str(form), "dtype": None if dtype is None else str(dtype),
                     "shape": shape, "op": op, "root": root, "algorithm": plan and plan.name}
        return Call(self._me, site, signature, data, form, plan, " ".join(w for w in words if w), recipe)

    def _start(self, call: Call, ufunc: np.ufunc | None, result: Callable[[list[np.ndarray]], Any],
               async_op: bool) -> Any:
        world, clocks = self._world, self._world.clocks
        call.event = clocks.new_event()
        meeting, complete = world.meet(self._group, call)
        clocks.do(self._lane, ARRIVE, meeting.join, self.world_size)
        if complete:
            carry_out(world, meeting, ufunc)

        def wait() -> Any:
            self._until(call.event, call.said, call.site)
            world.block(self._me, call)
            value, call.value = call.value, None             # the call is known to others for longer
            return result(value)
        handle = Handle(wait)
        return handle if async_op else handle.wait()

    def _until(self, event: int, name: str, site: tuple) -> None:
        self._world.check_running(self._me)
        self._world.clocks.do(self._lane, WAIT, event, name, line_of(*site))

    def _delivered(self, array: np.ndarray, form: Form, into: Any) -> Any:
        if into is None:
            return given(array, form, self._me)
        write(into, array)
        return into


def _rows_free(shape: tuple[int, ...]) -> tuple:
    """A shape whose first dimension does not count."""
    return ("…", *shape[1:]) if shape else ()


def _shape_text(shape: Any) -> str | None:
    if shape is None:
        return None
    if shape and isinstance(shape[0], tuple):
        return " ".join(map(_shape_text, dict.fromkeys(shape)))                     # type: ignore[arg-type]
    return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"


__all__ = ["Communicator", "Handle"]
