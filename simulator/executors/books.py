"""The books of a run: what ranks said to each other, what fits, what time it is, and who waits for ever.

No threads and no messages are here: an executor enters what its ranks do, and lets go on whom it is told.  After
`matching.py` and `clocks.py`; `local.py` keeps them for threads, `referee.py` for processes.
"""
from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

import numpy as np

from simulator.clocks import Clocks
from simulator.cluster import Cluster
from simulator.errors import CommunicationError
from simulator.holdings import Account
from simulator.matching import AnyReceipt, Call, Group, Meeting, Pending, Receipt, where
from simulator.network import Network


class Mail:
    """Messages on their way and receivers that wait: the k-th receive of a (group, src, dst, tag) gets the k-th."""

    def __init__(self) -> None:
        self.sent: dict[tuple, deque] = defaultdict(deque)           # of (value, event, site)
        self.wanted: dict[tuple, deque[Receipt]] = defaultdict(deque)

    def left(self) -> list[str]:
        """What was never received, as text."""
        return [f"rank {src} to rank {dst} (tag {tag}), sent at {where(site)}"
                for (_, src, dst, tag), messages in sorted(self.sent.items()) for *_, site in messages]


class Books:
    """What the ranks of one run did.  Nothing here needs a lock: one thread at a time may enter something."""

    def __init__(self, world_size: int, cluster: Cluster) -> None:
        self.size, self.cluster = world_size, cluster
        self.network = Network(cluster)
        self.clocks = Clocks(self.network, world_size)
        self.nbytes = np.zeros((world_size, world_size), np.int64)   # what was sent, src × dst
        self.mail = Mail()
        self.groups = [Group(tuple(range(world_size)), 1, f"all {world_size} ranks")]
        self.values: list[Any] = [None] * world_size
        self.failures: dict[int, BaseException] = {}
        self.returned: dict[int, str] = {}                   # rank -> "has returned" or "has failed"
        self.error: BaseException | None = None              # of the whole run
        self.stopping = False
        self.holdings: Account | None = None                 # where memory is watched
        self._running: int | None = None                     # where one runs at a time
        self._blocked: dict[int, Pending] = {}
        self._asking: list[int] = []                         # ranks that wait for their time to be certain
        self._open: dict[int, AnyReceipt] = {}               # ranks that wait for a message from anybody

    def goes_on(self, rank: int) -> None:
        """What this rank waited for has come."""
        raise NotImplementedError

    def complete(self, pending: Pending, value: Any) -> None:
        """What `pending` stood for has come."""
        pending.ready, pending.value = True, value
        if self._blocked.get(pending.rank) is pending:
            del self._blocked[pending.rank]
            self.goes_on(pending.rank)

    def hand_over(self, src: int, dst: int, nbytes: int) -> None:
        """Arrays that `src` made are now held by `dst`."""
        if self.holdings is not None:
            self.holdings.settle(self._running)
            self.holdings.hand_over(src, dst, nbytes)

    def hand_out(self, nbytes: dict[int, int]) -> None:
        """Arrays of so many bytes were made for each of these ranks, by whoever came last to a collective."""
        if self.holdings is not None:
            self.holdings.hand_out(nbytes)

    def gave_back(self, rank: int) -> None:
        """What was freed since the last time was this rank's."""
        if self.holdings is not None:
            self.holdings.settle(rank)

    def stop(self, error: BaseException) -> None:
        """End the run; the first error counts."""
        if self.error is None:
            self.error = error
        self.stopping = True

    # -- what they say
    def post(self, src: int, dst: int, key: tuple, value: Any, nbytes: int, site: Any,
             event: Any = None) -> Any:
        """A message; `value` belongs to its receiver from now on.  The event of its arrival, which may have a name."""
        self.sent(src, dst, nbytes)
        wanted = self.mail.wanted.get(key)
        if wanted:
            receipt = wanted.popleft()
            self.complete(receipt, (value, site))
            return receipt.event
        event = event or self.clocks.new_event()
        self.mail.sent[key].append((value, event, site))
        return event

    def expect(self, receipt: Receipt, key: tuple) -> None:
        """The next message with this key is for `receipt`, which gets the event of its arrival."""
        sent = self.mail.sent.get(key)
        if sent:
            value, receipt.event, site = sent.popleft()
            self.complete(receipt, (value, site))
        else:
            receipt.event = receipt.event or self.clocks.new_event()
            self.mail.wanted[key].append(receipt)

    def sent(self, src: int, dst: int, nbytes: int) -> None:
        """A message is about to go; ValueError if no link leads there."""
        self.network.idle_s(src, dst, nbytes)
        self.nbytes[src, dst] += nbytes

    def meet(self, group: Group, call: Call) -> tuple[Meeting, bool]:
        """Enter a call; its meeting, and whether all of the group are there.  A call that does not fit ends the run."""
        try:
            return group.arrive(call, self.returned)
        except CommunicationError as error:
            self.stop(error)
            raise

    def new_group(self, ranks: tuple[int, ...], name: str) -> Group:
        group = Group(ranks, len(self.groups) + 1, name)
        self.groups.append(group)
        return group

    def ended(self, rank: int, how: str) -> None:
        """A rank's program is over: calls that still need it will not come."""
        self.returned[rank] = how
        self.clocks.close(rank)
        for group in self.groups:
            for meeting in group.meetings.values() if rank in group.place and not self.stopping else ():
                try:
                    meeting.check_returned(self.returned)
                except CommunicationError as error:
                    self.stop(error)
                    break

    # -- messages from anybody
    def _take_first(self) -> None:
        """Nobody goes on without it: of the messages that ranks of `_open` could take, the earliest is taken."""
        found = self._offers()
        if found:
            _, rank, key = min(found)
            receipt = self._open.pop(rank)
            value, event, site = self.mail.sent[key].popleft()
            self.clocks.choose(rank, receipt.event, event)
            self.clocks.horizon_s = self._horizon_s if self._open else None
            self.complete(receipt, (key[1], value, site))

    def _offers(self) -> list[tuple[float, int, tuple]]:
        """(arrival, receiver, key) of the messages that ranks of `_open` could take, as far as it is known."""
        times, sent = self.clocks.times, self.mail.sent
        return [(times[sent[key][0][1]], rank, key) for rank, receipt in self._open.items() for key in receipt.keys
                if sent.get(key) and sent[key][0][1] in times]

    def _horizon_s(self) -> float:
        """The earliest of these: what happens after it may depend on who takes it."""
        return min((at_s for at_s, _, _ in self._offers()), default=float("inf"))

    def expect_any(self, receipt: AnyReceipt) -> None:
        """The first message to arrive under one of its keys is for `receipt`, once it is certain which that is."""
        receipt.event = receipt.event or self.clocks.new_event()
        self._open[receipt.rank] = receipt
        self.clocks.horizon_s = self._horizon_s


__all__ = ["Books", "Mail"]
