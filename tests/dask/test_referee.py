"""The referee alone: words of ranks come late and mixed, and what it concludes is what is so."""

from __future__ import annotations

from collections import defaultdict

import pytest

from simulator.cluster import uniform
from simulator.errors import Deadlock, UnreceivedMessage
from simulator.executors.referee import Referee

KEY, EVENT = (1, 0, 1, 0), ("message", (1, 0, 1, 0), 1)
SEND = [(0, "post", 1, KEY, 8, "line of send", EVENT), (0, "do", ("send", EVENT, 1, 8, "send", ""))]
RECV = [(1, "expect", EVENT, KEY, "line of recv"), (1, "do", ("wait", EVENT, "recv", ""))]


@pytest.fixture
def table():
    told = defaultdict(list)
    return Referee(2, uniform(2), False, lambda rank, word: told[rank].append(word)), told


def test_who_was_blocked_and_asks_the_time_is_not_taken_to_compute(table):
    """The message came before word of it: the receiver went on, and word of the message must not wake it again.  (All
    then waited for ever: the server of `recv_any` for the rank, the rank for the time after the server's turn.)"""
    referee, told = table
    back, chosen = ("message", (1, 1, 0, 0), 1), (0, 9)
    referee.hear([(1, "post", 0, (1, 1, 0, 0), 8, "a line", back), (1, "do", ("send", back, 0, 8, "send", "")),
                  *RECV, (1, "block", EVENT)])
    referee.hear([(1, "do", ("compute", 1.0, "work", None, None, "")), (1, "time")])
    large = [(0, "post", 1, KEY, 8_000_000, "a line", EVENT), (0, "do", ("send", EVENT, 1, 8_000_000, "send", ""))]
    referee.hear([*large, (0, "any", chosen, [(1, 1, 0, 0)], 0, "a line"), (0, "do", ("wait", chosen, "recv", "")),
                  (0, "block", chosen)])
    assert told[0] == [("chosen", chosen, 1)]
    referee.hear([(0, "ended", "has returned", False)])
    assert [what for what, *_ in told[1]] == ["time"] and referee.error is None


@pytest.mark.parametrize("late", [False, True])
def test_a_message_counts_whenever_word_of_it_comes(table, late):
    referee, told = table
    first, last = ([*RECV, (1, "block", EVENT)], SEND) if late else (SEND, [*RECV, (1, "block", EVENT)])
    referee.hear(first)
    referee.hear(last)
    for rank in (0, 1):
        referee.hear([(rank, "ended", "has returned", False)])
    assert referee.over and referee.error is None and told[0] == [("over",)]
    assert referee.nbytes.tolist() == [[0, 8], [0, 0]]


def test_none_goes_on_only_if_all_are_known_to_wait(table):
    referee, told = table
    referee.hear([*RECV, (1, "block", EVENT)])
    assert not referee.stopping
    back = ("message", (1, 1, 0, 0), 1)
    referee.hear([(0, "expect", back, (1, 1, 0, 0), "line of recv"), (0, "block", back)])
    assert isinstance(referee.error, Deadlock) and referee.error.cycle == (0, 1)
    assert told[0] == told[1] == [("stop",)]


def test_a_message_that_nobody_took(table):
    referee, _ = table
    referee.hear([*SEND, (0, "ended", "has returned", False), (1, "ended", "has returned", False)])
    assert isinstance(referee.error, UnreceivedMessage) and "line of send" in str(referee.error)


def test_an_error_of_its_own_ends_the_run(table):
    referee, told = table
    referee.hear([(0, "nonsense")])
    assert isinstance(referee.error, AttributeError) and told[0] == told[1] == [("stop",)]
