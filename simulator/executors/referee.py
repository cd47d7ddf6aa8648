"""The referee of ranks in processes of their own: keeps the books of the run from what the ranks say they do.

Values go from rank to rank and never come here.  Each rank says what it does, in order, before it waits; so once all
that have not ended are known to wait, and nothing they said lets one go on, none ever will.  What a rank must know of
the others (their shapes in a collective, the time, whose message was first) it is told.  After `books.py`; with rank 0.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from simulator.carrying import Cut, carry_out
from simulator.cluster import Cluster
from simulator.collectives import make_plan
from simulator.errors import CommunicationError
from simulator.executors.books import Books
from simulator.matching import AnyReceipt, Call, Group, Pending, Receipt, deadlock, unreceived

Tell = Callable[[int, tuple], None]


def shape_only(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """An array that stands for one elsewhere: no memory behind its elements."""
    return np.broadcast_to(np.empty((), dtype), tuple(shape))


class Referee(Books):
    """`tell(rank, word)` reaches a rank; words of ranks come to `hear`, one batch at a time."""

    def __init__(self, world_size: int, cluster: Cluster, go_on_after_failure: bool, tell: Tell) -> None:
        super().__init__(world_size, cluster)
        self.tell, self._go_on_after_failure = tell, go_on_after_failure
        self.first: int | None = None                        # the rank whose failure ended the run
        self._here: set[int] = set()
        self._busy = set(range(world_size))                  # ranks that compute, as far as is known
        self._pending: dict[Any, Pending] = {}               # by event: what has not come yet

    @property
    def over(self) -> bool:
        """All ranks have ended."""
        return len(self.returned) == self.size

    # -- what comes in
    def hear(self, words: list[tuple]) -> None:
        """Enter what ranks did, (rank, what, …)."""
        try:
            for rank, what, *more in words:
                if self._blocked.pop(rank, None) is not None:        # what it waited for came before word of it did
                    self._busy.add(rank)
                getattr(self, f"_{what}_said")(rank, *more)
            self._look()
        except BaseException as error:                       # nobody may be left waiting for it
            self.stop(error)

    def _hello_said(self, rank: int) -> None:
        self._here.add(rank)
        if len(self._here) == self.size:
            for each in range(self.size):
                self.tell(each, ("begin",))

    def _do_said(self, rank: int, action: tuple) -> None:
        self.clocks.do(self.clocks.lane(rank), *action)

    def _post_said(self, rank: int, dst: int, key: tuple, nbytes: int, site: str, event: Any) -> None:
        self.post(rank, dst, key, None, nbytes, site, event)

    def _expect_said(self, rank: int, event: Any, key: tuple, site: str) -> None:
        _, src, _, tag = key
        receipt = Receipt(rank, site, src, tag)
        receipt.event = event
        self._pending[event] = receipt
        self.expect(receipt, key)

    def _any_said(self, rank: int, event: Any, keys: list[tuple], tag: int, site: str) -> None:
        receipt = AnyReceipt(rank, site, tag, keys)
        receipt.event = event
        self._pending[event] = receipt
        self.expect_any(receipt)

    def _meet_said(self, rank: int, number: int, event: Any, site: str, signature: dict[str, Any], given: Any,
                   form: Any, recipe: tuple, said: str) -> None:
        data = {e: shape_only(*like) for e, like in given.items()} if isinstance(given, dict) else given
        plan = None if recipe[0] is None else make_plan(*recipe[:3], **recipe[3])
        call = Call(rank, site, signature, data, form, plan, said)
        call.event = event
        self._pending[event] = call
        try:
            meeting, complete = self.meet(self.groups[number - 1], call)
        except CommunicationError:                           # is the error of the run now
            return
        if complete:
            try:
                carry_out(self, meeting, None, _others_need)
            except Exception as error:
                self.tell(rank, ("fail", event, error))

    def _block_said(self, rank: int, event: Any) -> None:
        pending = self._pending.get(event)
        if pending is not None:
            self._blocked[rank] = pending
            self._busy.discard(rank)

    def _time_said(self, rank: int) -> None:
        self._asking.append(rank)
        self._busy.discard(rank)

    def _ended_said(self, rank: int, how: str, ends_all: bool) -> None:
        self._busy.discard(rank)
        if how == "has failed" and self.error is None and (ends_all or not self._go_on_after_failure):
            self.first = rank
            self.stop(CommunicationError(f"rank {rank} has failed"))
        self.ended(rank, how)
        if self.over:
            self.tell(0, ("over",))
        if self.over and self.error is None and "has failed" not in self.returned.values():
            left = self.mail.left()
            self.error = unreceived(left) if left else None

    # -- what follows
    def complete(self, pending: Pending, value: Any) -> None:
        self._pending.pop(pending.event, None)
        super().complete(pending, value)
        if isinstance(pending, AnyReceipt):
            self.tell(pending.rank, ("chosen", pending.event, value[0]))
        elif isinstance(pending, Call):
            self.tell(pending.rank, ("met", pending.event, _plain(value)))

    def goes_on(self, rank: int) -> None:
        self._busy.add(rank)

    def stop(self, error: BaseException) -> None:
        if not self.stopping:
            super().stop(error)
            for rank in range(self.size):
                self.tell(rank, ("stop",))

    def _look(self) -> None:
        """Answer who asked; find out who goes on where all wait."""
        while not self.stopping:
            if self._asking:
                self._answer()
            if self._busy or self.over:
                return
            before = len(self._open)
            if self._open:
                self.clocks.advance()
                self._take_first()
            if len(self._open) == before:
                self.stop(deadlock(self._blocked, self.returned, self.mail.left()))

    def _answer(self) -> None:
        self.clocks.advance()
        for rank in sorted(self._asking):
            if self.clocks.settled(rank):
                self._asking.remove(rank)
                self.goes_on(rank)
                self.tell(rank, ("time", self.clocks.time_s(rank)))

    def record(self) -> dict[str, Any]:
        """What the driver makes the result of."""
        return {"error": None if self.first is not None else self.error, "first": self.first, "nbytes": self.nbytes,
                "returned": self.returned, "program": self.clocks.program()}


def _others_need(_: Books, group: Group, parts: Cut, calls: Sequence[Call], add: Any) -> list[dict[str, Any]]:
    """What the calls of a meeting have to know of each other."""
    known = {"given": {e: (a.shape, a.dtype) for arrays in parts.held for e, a in arrays.items()},
             "form": next(call.form for call in calls if call.data)}
    return [known] * len(calls)


def _plain(value: Any) -> Any:
    """What a call gets, without the books: of `split` its group."""
    if isinstance(value, dict):
        return value
    group = value[0]
    return None if group is None else (group.ranks, group.number, group.name)


__all__ = ["Referee", "shape_only"]
