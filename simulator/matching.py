"""What ranks wait for, and whether their calls fit together: mismatches and deadlocks found and told.

A collective begins when all ranks of its group have made the call; each call is held against the others as it comes, so
that a wrong one is named before data moves.  After `errors.py`; the executors keep the books.
"""
from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from minigrad.sites import line_text, site_text
from simulator.errors import CollectiveMismatch, Deadlock, UnreceivedMessage

NO_EVENT: Any = 0                            # before a thing has its event on the clocks
REMEMBERED = 4                               # calls of a rank that a report shows
MATCHED = ("kind", "form", "dtype", "shape", "op", "root", "algorithm")
WAY_OUT = {
    "kind": "All ranks of a group make the same calls in the same order: does an `if comm.rank == …` stand around one?",
    "form": "All ranks give tensors on the same kind of device, or all of them arrays or numbers",
    "dtype": "Convert with .to(dtype) before the call",
    "shape": "Pad to one shape; all_gather, gather and all_to_all take rows of another number from each rank",
    "op": "Give the same op on all ranks",
    "root": "Name the same root on all ranks; it counts within the group",
    "algorithm": "Name the same algorithm on all ranks",
}


def where(site: tuple | str) -> str:
    """'file:line, in function: the line itself', also of what says that already."""
    if isinstance(site, str):
        return site
    text = line_text(*site)
    return site_text(*site) + (f": {text}" if text else "")


class Pending:
    """What a rank waits for, or will: done when `ready`.  `event` is its time on the clocks."""

    def __init__(self, rank: int, site: tuple | str) -> None:
        self.rank = rank
        self.site: Any = site                                # (code, lasti), or what `where` makes of it
        self.ready, self.event = False, NO_EVENT
        self.value: Any = None

    def waits_for(self) -> list[int]:
        """The ranks of which at least one has to do something first."""
        raise NotImplementedError

    def text(self) -> str:
        raise NotImplementedError


class Receipt(Pending):
    """The receiving end of one message."""

    def __init__(self, rank: int, site: tuple | str, src: int, tag: int) -> None:
        super().__init__(rank, site)
        self.src, self.tag = src, tag

    def waits_for(self) -> list[int]:
        return [self.src]

    def text(self) -> str:
        return f"waits for a message from rank {self.src} (tag {self.tag})"


class AnyReceipt(Pending):
    """The receiving end of the message that arrives first, whoever sent it.  `keys`: under which it would be found."""

    def __init__(self, rank: int, site: tuple | str, tag: int, keys: list[tuple]) -> None:
        super().__init__(rank, site)
        self.tag, self.keys = tag, keys

    def waits_for(self) -> list[int]:
        return [src for _, src, _, _ in self.keys]

    def text(self) -> str:
        return f"waits for a message from any rank (tag {self.tag})"


class Call(Pending):
    """One rank's part in a collective: its arrays, by the number that they have in the plan, and what these were.

    `signature`: the fields of `MATCHED`, None where they may differ.  `recipe`: what `make_plan` made the plan of."""

    def __init__(self, rank: int, site: tuple | str, signature: Mapping[str, Any], data: Any, form: Any, plan: Any,
                 said: str, recipe: tuple = ()) -> None:
        super().__init__(rank, site)
        self.signature, self.data, self.form, self.plan, self.said = signature, data, form, plan, said
        self.recipe = recipe
        self.meeting: Meeting | None = None

    def given_form(self) -> Any:
        """What the root of this collective gave."""
        assert self.meeting is not None
        return next(call.form for call in self.meeting.calls.values() if call.data)

    def waits_for(self) -> list[int]:
        return self.meeting.missing() if self.meeting else []

    def text(self) -> str:
        missing = ", ".join(map(str, self.waits_for()))
        return f"waits in {self.said} of {self.meeting.group.name} for rank {missing}" if self.meeting else self.said


@dataclass(frozen=True)
class Said:
    """A call as reports remember it."""

    text: str
    site: tuple | str


class Group:
    """The ranks that make collective calls together, and what they have called.  `number` is that of its lanes."""

    def __init__(self, ranks: tuple[int, ...], number: int, name: str) -> None:
        self.ranks, self.number, self.name = ranks, number, name
        self.lane_name = "collectives" if number == 1 else f"collectives of {name}"
        self.place = {rank: k for k, rank in enumerate(ranks)}
        self.made = dict.fromkeys(ranks, 0)
        self.meetings: dict[int, Meeting] = {}               # those that have begun and are not complete
        self.said: dict[int, deque[Said]] = {rank: deque(maxlen=REMEMBERED) for rank in ranks}

    def arrive(self, call: Call, returned: Iterable[int]) -> tuple[Meeting, bool]:
        """Enter a call; its meeting, and whether that is complete.  CollectiveMismatch if it does not fit."""
        number = self.made[call.rank] = self.made[call.rank] + 1
        meeting = self.meetings.get(number)
        if meeting is None:
            meeting = self.meetings[number] = Meeting(self, number)
        self.said[call.rank].append(Said(call.said, call.site))
        call.meeting = meeting
        meeting.check(call)
        meeting.calls[call.rank] = call
        meeting.check_returned(returned)
        complete = len(meeting.calls) == len(self.ranks)
        if complete:
            del self.meetings[number]
        return meeting, complete

    def table(self, number: int, notes: Mapping[int, str]) -> str:
        """Rank × call: what each rank called up to call `number`, and where; `notes` stand behind their ranks."""
        first = max(1, number - REMEMBERED + 2)
        rows = [["rank", *(f"call {k}" for k in range(first, number + 1)), "at"]]
        for rank in self.ranks:
            said = dict(enumerate(self.said[rank], self.made[rank] - len(self.said[rank]) + 1))
            cells = [said[k].text if k in said else "–" for k in range(first, number + 1)]
            last = said.get(number)
            rows.append([str(rank), *cells, (where(last.site) if last else "") + notes.get(rank, "")])
        widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
        return "\n".join("  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in rows)


@dataclass
class Meeting:
    """The calls of one number in a group."""

    group: Group
    number: int
    calls: dict[int, Call] = field(default_factory=dict)

    @property
    def join(self) -> tuple[str, int, int]:
        """The event of the last arrival."""
        return "join", self.group.number, self.number

    def missing(self) -> list[int]:
        return [rank for rank in self.group.ranks if rank not in self.calls]

    def check(self, call: Call) -> None:
        """CollectiveMismatch if `call` is not the call that those before it made."""
        for other in self.calls.values():
            for name in MATCHED:
                a, b = other.signature.get(name), call.signature.get(name)
                if a != b and a is not None and b is not None:
                    raise CollectiveMismatch(
                        f"call {self.number} of {self.group.name}: ranks {other.rank} and {call.rank} differ in "
                        f"{name}: {_short(a)} and {_short(b)}. Nothing was moved. {WAY_OUT[name]}\n"
                        + self.group.table(self.number, {call.rank: "  <-- HERE"}))

    def check_returned(self, returned: Iterable[int]) -> None:
        """CollectiveMismatch if a rank that has ended did not make this call."""
        gone = [rank for rank in self.missing() if rank in returned]
        if gone:
            first = next(iter(self.calls.values()))
            ranks = f"rank {gone[0]}" if len(gone) == 1 else f"ranks {', '.join(map(str, gone))}"
            raise CollectiveMismatch(
                f"{first.said} is call {self.number} of {self.group.name}, and {ranks} ended without making it. "
                f"Nothing was moved. {WAY_OUT['kind']}\n"
                + self.group.table(self.number, dict.fromkeys(gone, "has ended  <-- HERE")))


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "…"


# ---- nobody goes on ------------------------------------------------------------------------------
def cycle_of(waits: Mapping[int, Iterable[int]]) -> tuple[int, ...]:
    """A shortest ring of ranks of which each waits for the next, the smallest rank first; empty if there is none."""
    found: tuple[int, ...] = ()
    for start in sorted(waits):
        came: dict[int, int] = {}
        line = deque([start])
        while line:
            rank = line.popleft()
            for other in sorted(waits.get(rank, ())):
                if other == start:
                    ring = [rank]
                    while ring[-1] != start:
                        ring.append(came[ring[-1]])
                    if not found or len(ring) < len(found):
                        found = tuple(reversed(ring))
                    line.clear()
                    break
                if other not in came and other != start and other in waits:
                    came[other] = rank
                    line.append(other)
    return found


def deadlock(blocked: Mapping[int, Pending], ended: Mapping[int, str], left: list[str]) -> Deadlock:
    """The error of ranks that all wait: each wait with its line, the ring of waits, and messages that nobody took."""
    waits = {rank: p.waits_for() for rank, p in blocked.items()}
    ring = cycle_of(waits)
    lines = [f"no rank can go on: {len(blocked)} wait" + (f", {len(ended)} have ended" if ended else "")]
    for rank, p in sorted(blocked.items()):
        gone = [f"rank {r} {ended[r]}" for r in waits[rank] if r in ended]
        lines.append(f"  rank {rank} {p.text()}" + f" ({', '.join(gone)})" * bool(gone) + f", at {where(p.site)}")
    if ring:
        lines.append("each waits for the next: " + " -> ".join(map(str, [*ring, ring[0]])))
    lines += [f"  never received: {text}" for text in left]
    lines.append(_way_out(ring, [blocked[rank] for rank in ring]))
    return Deadlock("\n".join(lines), ring)


def _way_out(ring: tuple[int, ...], waits: list[Pending]) -> str:
    if not ring:
        return ("Each receive needs a send with the same ranks and tag; each collective call needs all ranks of its "
                "group")
    if any(isinstance(p, Call) for p in waits):
        return "Make the calls of several groups, and the receives between them, in the same order on all ranks"
    return "Send before you receive on one of them, or receive with irecv"


def unreceived(texts: list[str]) -> UnreceivedMessage:
    more = f"\n  … and {len(texts) - 5} more" if len(texts) > 5 else ""
    return UnreceivedMessage("all ranks have returned, and messages were sent that no rank received; each send needs a "
                             "recv with the same ranks and tag\n  " + "\n  ".join(texts[:5]) + more)


__all__ = ["AnyReceipt", "Call", "Group", "Meeting", "Pending", "Receipt", "cycle_of", "deadlock", "unreceived",
           "where"]
