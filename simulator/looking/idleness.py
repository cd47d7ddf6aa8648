"""Why a rank is idle: each wait taken apart into what was waited for, and who did that meanwhile.

At each instant of a wait one thing was missing, found by going back from what ended the wait (`History.chain`):

    rank 0   compute ######|....................|####      waits in all_reduce, from its own end to that of the call
    rank 1   compute ######|xxxxx| ring: moving |####      computes longer: that is rank 0's stall
                           |stall| communication|

    rank 0   F ###|------------- …                         sends what it made
    rank 1        |...|F ###| …                            waits for a message:
             bubble|com|                                   it was being made, then it moved

`communication`: a message moved, or waited for a link that another message of its sender or of its call held.
`stall`: all of a group had to come, and a rank still computed; or a link was held by a message of others.
`bubble`: what the message is made of was still being computed – the order of the work left nothing to do; or this
rank's program has ended (`ended`) and others go on.  Where the rank that was waited for waited itself, it counts what
that one waited for.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from minigrad.arguments import whole
from simulator.clocks import COMPUTE, SEND, WAIT, Clocks
from simulator.looking.history import History, Link, Step
from simulator.units import show

COMMUNICATION, BUBBLE, STALL, ENDED = "communication", "bubble", "stall", "ended"
MOST = 8                                     # waits, and reasons of each, that the text names


class Reason(NamedTuple):
    """From `start_s` to `end_s` rank `rank` did something, in a call or op `name` at its line `line`."""

    kind: str
    start_s: float
    end_s: float
    rank: int
    name: str
    line: str
    what: str                                # in words

    @property
    def duration(self) -> Fraction:
        return Fraction(self.end_s) - Fraction(self.start_s)


@dataclass(frozen=True)
class Wait:
    """A rank waited in the call `name`; the reasons, in order of time, fill it without gaps."""

    name: str
    line: str
    start_s: float
    end_s: float
    reasons: tuple[Reason, ...]

    @property
    def duration(self) -> Fraction:
        return Fraction(self.end_s) - Fraction(self.start_s)


@dataclass(frozen=True)
class Idleness:
    """The waits of one rank, in order of time; after the end of its program one more, named "ended"."""

    rank: int
    time_s: float
    waits: tuple[Wait, ...]

    @property
    def reasons(self) -> Iterator[Reason]:
        return (reason for wait in self.waits for reason in wait.reasons)

    def total(self, kind: str) -> Fraction:
        """Seconds of one kind, exactly."""
        return sum((reason.duration for reason in self.reasons if reason.kind == kind), Fraction())

    def __str__(self) -> str:
        idle = sum((wait.duration for wait in self.waits), Fraction())
        kinds = [(kind, self.total(kind)) for kind in (COMMUNICATION, BUBBLE, STALL, ENDED)]
        parts = ", ".join(f"{kind} {_s(total)}" for kind, total in kinds if total)
        share = f" ({float(idle / Fraction(self.time_s)):.0%})" if self.time_s else ""
        rows = [f"rank {self.rank} is idle {_s(idle)} of {show(self.time_s, 's')}{share}" + f": {parts}" * bool(parts)]
        calls: dict[tuple[str, str], list[Wait]] = defaultdict(list)
        for wait in self.waits:
            calls[wait.name, wait.line].append(wait)
        ranked = sorted(((sum((w.duration for w in waits), Fraction()), call, waits) for call, waits in calls.items()),
                        key=lambda found: -found[0])
        for total, (name, line), waits in ranked[:MOST]:
            often = f", {len(waits)} waits" if len(waits) > 1 else ""
            rows.append(f"  {_s(total):>8}  {name}{often}{_at(line)}")
            rows += [f"  {'':8}  {text}" for text in _grouped(r for wait in waits for r in wait.reasons)]
        if len(ranked) > MOST:
            rows.append(f"  … and {len(ranked) - MOST} more calls")
        return "\n".join(rows)


def idleness(clocks: Clocks | History, rank: int) -> Idleness:
    """Why this rank is idle, from the clocks of a run."""
    history = clocks if isinstance(clocks, History) else History(clocks)
    whole("why_idle", "rank", rank, 0, history.world_size - 1)
    line = history.main(rank)
    waits = [_wait(history, rank, step) for step in line.steps if step.kind == WAIT]
    if line.end_s < history.end_s:
        reason = Reason(ENDED, line.end_s, history.end_s, rank, ENDED, "", "its program has ended, others go on")
        waits.append(Wait(ENDED, "", line.end_s, history.end_s, (reason,)))
    return Idleness(rank, history.end_s, tuple(waits))


def _wait(history: History, rank: int, step: Step) -> Wait:
    found: list[Reason] = []
    for link in history.chain(history.main(rank), step.place + 1, step.start_s):
        start_s = max(link.start_s, step.start_s)
        if link.end_s <= start_s:
            continue
        kind, what = _told(link)
        last = found[-1] if found else None
        if last and last[0] == kind and last[3:] == (link.rank, link.name, link.line, what):
            found[-1] = last._replace(start_s=start_s)
        else:
            found.append(Reason(kind, start_s, link.end_s, link.rank, link.name, link.line, what))
    return Wait(step.name, step.line, step.start_s, step.end_s, tuple(reversed(found)))


def _told(link: Link) -> tuple[str, str]:
    """What a link of the chain is for whoever waits, and in words."""
    if link.kind == COMPUTE:
        if link.how == "message":
            return BUBBLE, f"rank {link.rank} makes what is sent: {link.name}"
        return STALL, f"rank {link.rank} still computes: {link.name}"
    message = link.message
    assert message is not None
    ends = f"{message.src} → {message.dst}"
    if link.kind == SEND:
        return COMMUNICATION, f"{ends} moves, of {link.name}"
    assert link.holder is not None
    held = f"{ends} waits for a link that {link.holder.src} → {link.holder.dst} has, of {link.name}"
    return COMMUNICATION if message.related(link.holder) else STALL, held


def _grouped(reasons: Iterable[Reason]) -> list[str]:
    """The reasons that took longest, equal ones put together."""
    totals: dict[tuple, Fraction] = defaultdict(Fraction)
    said: dict[tuple, set[str]] = defaultdict(set)
    for reason in reasons:
        if reason.kind != ENDED:
            key = reason.kind, reason.name if reason.kind == COMMUNICATION else reason.what, reason.line
            totals[key] += reason.duration
            said[key].add(reason.what)
    ranked = sorted(totals.items(), key=lambda item: -item[1])
    rows = []
    for key, total in ranked[:MOST]:
        what = said[key].pop() if len(said[key]) == 1 else f"messages of {key[1]}, one after the other"
        rows.append(f"{_s(total):>8}  {key[0]:13} {what}{_at(key[2])}")
    rest = sum((total for _, total in ranked[MOST:]), Fraction())
    return rows + [f"{_s(rest):>8}  … {len(ranked) - MOST} more"] * bool(ranked[MOST:])


def _s(seconds: Fraction) -> str:
    return show(float(seconds), "s")


def _at(line: str) -> str:
    return f", at {short(line)}" if line else ""


def short(line: str) -> str:
    """A place in the user's program without the folders."""
    return line.replace("\\", "/").rpartition("/")[2]


__all__ = ["BUBBLE", "COMMUNICATION", "ENDED", "Idleness", "Reason", "STALL", "Wait", "idleness", "short"]
