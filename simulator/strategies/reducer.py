"""The reducer: told of each gradient as backward adds it, it sends a bucket as soon as that is full, and at the end of
backward waits for all of them (Li et al. 2020; PyTorch's `Reducer`).  After `buckets.py`; `data_parallel.py` wraps it.

Buckets go in one order on all ranks, whatever order their gradients came in, so that a changing graph never pairs one
bucket with another.
"""
from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import minigrad as mg
from minigrad.autograd import queue_callback
from minigrad.checkpoint import tensors_in
from minigrad.errors import GraphError
from minigrad.rows import Rows, written
from minigrad.tensor import Node
from simulator.compression import Compressor
from simulator.strategies.buckets import Bucket, assign_buckets, flatten, send_flat, send_rows, unflatten

if TYPE_CHECKING:
    from simulator.communicator import Communicator

LOOK_AGAIN = 100                             # steps after which the order of buckets is agreed on anew
NAMED = 8                                    # parameters that an error names


class Reducer:
    """Averages the gradients of `params` over the ranks of `comm`, during each backward that follows `expect`.

    `divide_by`: what sums are divided by, or None.  `unused`: what becomes of a parameter that took part on no rank:
    "error", "zero" (its gradient is zeros) or "skip" (stays as it is); before that, `find_unused` finds out which."""

    def __init__(self, comm: Communicator, names: Sequence[str], params: Sequence[mg.Tensor], *, cap_bytes: float,
                 sparse: frozenset[int], find_unused: bool, unused: str, overlap: bool, divide_by: int | None,
                 algorithm: str | None, compression: Callable[[], Compressor] | None) -> None:
        self.comm, self.names = comm, list(names)
        self.params: list[Any] = list(params)
        self.cap_bytes, self.sparse = cap_bytes, sparse
        self.find_unused, self.unused, self.overlap = find_unused, unused, overlap
        self.divide_by, self.algorithm, self.compression = divide_by, algorithm, compression
        self.compressors: dict[int, Compressor] = {}         # of buckets, by number
        self.root = 0                                        # the rank whose order counts
        self.steps = 0                                       # reductions until now
        self.sync = True                                     # whether the next backward ends in one
        self.used: set[int] = set()                          # took part since the last reduction
        self.order = tuple(reversed(range(len(self.params))))
        self.buckets = assign_buckets(self.params, self.order, cap_bytes, sparse)
        self._clear()
        self._link = Link(self)
        handles = [p.register_post_accumulate_grad_hook(Arrival(self._link, k)) for k, p in enumerate(self.params)]
        weakref.finalize(self, _remove, handles)

    def _clear(self) -> None:
        """Nothing has come yet."""
        self.ready: dict[int, None] = {}                     # parameters whose gradient is there, as they came
        self.absent: set[int] = set()                        # those that will get none
        self.reached: set[int] = set()                       # those below the outputs of forward
        self.outputs: list[Node] = []
        self.forwards = 0                                    # since then, whose outputs are known
        self.waits: list[Callable[[], list[Any]]] = []       # of the buckets that were sent
        self.ending = False                                  # whether `_ended` will be called
        self.bucket_of = {k: b for b, bucket in enumerate(self.buckets) for k in bucket.numbers}
        self.missing = [len(bucket.numbers) for bucket in self.buckets]

    # -- around forward
    def check_done(self) -> None:
        """RuntimeError if the last backward left gradients that were not averaged."""
        if self.ending and not self.waits:                   # it raised, and nothing had gone
            self._clear()
        if self.ready or self.waits:
            raise RuntimeError(self._untold(self._not_ready(), "have no gradient from the last backward, so that the "
                                            "gradients of this step were not averaged"))

    def expect(self, out: Any) -> None:
        """`out` came of forward: the next backward is to be reduced."""
        self.sync, self._link.strong = True, self
        self.outputs = [t.node for t in tensors_in(out) if t.node.__class__ is Node]
        self.forwards += bool(self.outputs)                  # in an object of the user's own they are not found
        if self.find_unused:
            found = leaves_below(self.outputs) | {id(t) for t in tensors_in(out)}
            self.reached |= {k for k, p in enumerate(self.params) if id(p) in found}

    # -- within backward
    def arrived(self, k: int) -> None:
        """Parameter k has its whole gradient of this backward."""
        if self.params[k].grad.node is not None:
            raise RuntimeError(
                f"DistributedDataParallel: the gradient of {self.names[k]} has a history (create_graph=True), which "
                "does not go through buckets. Use the module itself, and comm_ops.all_reduce on the loss")
        self.used.add(k)
        if not self.sync:
            return
        self._began()
        if len(self.waits) > self.bucket_of[k]:
            raise RuntimeError(self._too_late(k))
        if k not in self.ready:
            self.ready[k] = None
            self.missing[self.bucket_of[k]] -= k not in self.absent
        if self.overlap:
            self._send_full()
        if not self.ending and not any(self.missing):        # deferred work, after its backward
            self.finish()

    def _began(self) -> None:
        if not self.ending and in_backward():
            self.ending = True
            queue_callback(self._ended)
        if not self.ready and self.forwards and self.find_unused:
            self._without(set(range(len(self.params))) - self.reached)

    def _without(self, numbers: Iterable[int]) -> None:
        """These get no gradient."""
        for k in set(numbers) - self.absent - set(self.ready):
            self.absent.add(k)
            self.missing[self.bucket_of[k]] -= 1

    def _ended(self) -> None:
        """Backward has ended."""
        self.ending = False
        if any(self.missing) and not self.find_unused:
            self._check_may_come()
        else:
            self.finish()

    def _check_may_come(self) -> None:
        """RuntimeError unless what is missing may still come with another backward of the same forward."""
        below = leaves_below(self.outputs)
        lost = [k for k in self._not_ready() if id(self.params[k]) not in below]
        if lost and self.forwards == 1:
            raise RuntimeError(self._untold(lost, "took no part in the loss, so that no gradient could be averaged"))

    # -- sending
    def _send_full(self) -> None:
        while len(self.waits) < len(self.buckets) and not self.missing[len(self.waits)]:
            self.waits.append(self._send(len(self.waits)))

    def _send(self, number: int, empty: bool = False) -> Callable[[], list[Any]]:
        """Begin to add up a bucket; `empty`: this rank has nothing to add."""
        bucket = self.buckets[number]
        like = [self.params[k] for k in bucket.numbers]
        if bucket.rows:
            return send_rows(self.comm, like[0], None if empty else like[0].grad, self.divide_by or 1)
        arrays = [self._gradient(p, empty) for p in like]
        if self.compression is not None:
            return self._compressed(number, like, arrays)
        return send_flat(self.comm, like, arrays, self.divide_by or 1, self.algorithm)

    def _gradient(self, p: mg.Tensor, empty: bool) -> Any:
        if empty or p.grad is None:
            return p.o.zeros(p.shape, p.dtype)
        if isinstance(p.grad, Rows):
            p.grad = p.grad.to_dense()
        return p.grad.array

    def _compressed(self, number: int, like: list[mg.Tensor], arrays: list[Any]) -> Callable[[], list[Any]]:
        """The same through a compressor, which waits at once: what it sends next may depend on what came."""
        assert self.compression is not None
        compressor = self.compressors.setdefault(number, self.compression())
        o, shapes = like[0].o, [p.shape for p in like]
        host = o.host(arrays[0] if len(like) == 1 else flatten(arrays).array)
        mean, _ = compressor.average(host, self.comm)
        scale = self.comm.world_size / (self.divide_by or 1)
        flat = mg.Tensor(o.upload(np.asarray(mean * mean.dtype.type(scale), mean.dtype).reshape(-1)))
        return lambda: unflatten(flat, shapes)

    # -- the end
    def finish(self, empty: bool = False) -> None:
        """Send what was not sent, wait for all, and put the averages in place.  `empty`: for a rank that is out of
        data and only helps the others."""
        recorded = [*self.ready, *(k for k in self.order if k not in self.ready)]
        try:
            for number in range(len(self.waits), len(self.buckets)):
                self.waits.append(self._send(number, empty))
            told = self._tell_used(recorded, empty) if self.find_unused else None
            self.steps += 1
            bits = None if told is None else told.wait()
            sums = [wait() for wait in self.waits]
            if not empty:
                for bucket, arrays in zip(self.buckets, sums):
                    self._deliver(bucket, arrays, bits)
            self._reorder(recorded, bits)
        finally:
            self.used.clear()
            self._clear()
            self._link.strong = None
        if bits is not None and self.unused == "error" and not bits[:-1].all():
            raise RuntimeError(self._named(np.flatnonzero(bits[:-1] == 0), "took part in the loss on no rank"))

    def _tell_used(self, recorded: list[int], empty: bool) -> Any:
        """Which parameters took part on some rank; and whether the order of buckets is no longer the real one."""
        bits = np.zeros(len(self.params) + 1, np.uint8)
        if not empty:
            bits[list(self.used)] = 1
            if self._orders() and self.comm.rank == self.root:
                bits[-1] = assign_buckets(self.params, recorded, self.cap_bytes, self.sparse) != self.buckets
        return self.comm.all_reduce(bits, "max", async_op=True)

    def _deliver(self, bucket: Bucket, arrays: list[Any], bits: np.ndarray | None) -> None:
        for k, array in zip(bucket.numbers, arrays):
            p = self.params[k]
            if bits is not None and not bits[k]:
                if self.unused == "zero" and p.grad is None:
                    p.grad = mg.Tensor(p.o.zeros(p.shape, p.dtype))
            elif isinstance(array, Rows):
                p.grad = array
            elif p.grad is None or isinstance(p.grad, Rows):
                p.grad = mg.Tensor(p.o.dense_copy(array))
            else:
                written(p.grad, array)

    def _orders(self) -> bool:
        """Whether it matters in which order gradients come: buckets of compressors keep what was left out of them."""
        return self.overlap and self.compression is None and len(self.buckets) > 1

    def _reorder(self, recorded: list[int], bits: np.ndarray | None) -> None:
        """Buckets in the order in which the gradients of rank `root` came, when that may have changed."""
        due = bool(bits[-1]) if bits is not None else self.steps == 1 or self.steps % LOOK_AGAIN == 0
        if self._orders() and due:
            own = np.array(recorded, np.int32) if self.comm.rank == self.root else None
            self.order = tuple(self.comm.broadcast(own, self.root).tolist())
            self.buckets = assign_buckets(self.params, self.order, self.cap_bytes, self.sparse)

    # -- in words
    def _not_ready(self) -> list[int]:
        return [k for k in range(len(self.params)) if k not in self.ready]

    def _untold(self, numbers: list[int], what: str) -> str:
        if self.ending:
            return (f"DistributedDataParallel, rank {self.comm.rank}: a backward raised after {len(self.waits)} of "
                    f"{len(self.buckets)} buckets had gone; wrap the module anew on all ranks")
        frozen = [self.names[k] for k in numbers if not self.params[k].requires_grad]
        return (self._named(numbers, what) + f". They were frozen ({', '.join(frozen[:NAMED])}) after the "
                "module was wrapped: wrap it after" * bool(frozen)
                + ". Let all of them take part on every rank, freeze them before the module is wrapped, or pass "
                "find_unused_parameters=True")

    def _named(self, numbers: Iterable[int], what: str) -> str:
        told = [f"{self.names[k]} {tuple(self.params[k].shape)}" for k in numbers]
        more = f" and {len(told) - NAMED} more" if len(told) > NAMED else ""
        return (f"DistributedDataParallel, rank {self.comm.rank} of {self.comm.world_size}: parameters "
                f"{', '.join(told[:NAMED])}{more} {what}")

    def _too_late(self, k: int) -> str:
        return (f"DistributedDataParallel, rank {self.comm.rank}: {self.names[k]} got a gradient after its bucket had "
                "gone. " + ("It took part outside of forward: do it within, or pass overlap=False" if k in self.absent
                            else "Call backward once, on the sum of the losses; or all but the last within no_sync()"))


class Link:
    """From the parameters to their reducer, which they do not keep alive but while it waits for a backward."""

    def __init__(self, reducer: Reducer) -> None:
        self.weak = weakref.ref(reducer)
        self.strong: Reducer | None = None


class Arrival:
    """The hook of one parameter."""

    def __init__(self, link: Link, number: int) -> None:
        self.link, self.number = link, number

    def __call__(self, _: mg.Tensor) -> None:
        reducer = self.link.weak()
        if reducer is not None:
            reducer.arrived(self.number)


def reducer_of(p: mg.Tensor) -> Reducer | None:
    """Who averages the gradients of this parameter already."""
    hooks = getattr(p.hooks, "after", {}).values()
    found = (hook.link.weak() for hook in hooks if isinstance(hook, Arrival))
    return next((reducer for reducer in found if reducer is not None), None)


def _remove(handles: list) -> None:
    for handle in handles:
        handle.remove()


def in_backward() -> bool:
    """Whether a backward is running."""
    try:
        queue_callback(_nothing)
    except GraphError:
        return False
    return True


def _nothing() -> None:
    pass


def leaves_below(nodes: Iterable[Any]) -> set[int]:
    """The ids of the leaves that a backward from these nodes would still reach: it frees the edges it has gone."""
    found: set[int] = set()
    seen = set(nodes)
    stack = list(seen)
    while stack:
        for e in stack.pop().edges or ():
            if e.__class__ is not Node:
                found.add(id(e))
            elif e not in seen:
                seen.add(e)
                stack.append(e)
    return found


__all__ = ["LOOK_AGAIN", "Reducer", "in_backward", "leaves_below", "reducer_of"]
