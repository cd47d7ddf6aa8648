"""The laws of `tests/simulator/test_communicator.py` again, on Dask: the same functions, with another `spawn`."""

from __future__ import annotations

import inspect

import pytest

from simulator.spawn import spawn
from tests.simulator import test_communicator as laws

WORLDS = (1, 3)                                        # of laws that have several: one alone, and one worker each
ELSEWHERE = {
    "test_devices_of_their_own_with_the_memory_of_the_cluster": "test_same_as_local.py",
    "test_bytes_and_times_are_those_of_the_plan": "test_same_as_local.py, against local",
}


def told(value):
    """The same in each process that collects."""
    return getattr(value, "__name__", None) or str(value)


def cases():
    """(function, arguments) of each law and each of its parameters."""
    for name, law in vars(laws).items():
        if not name.startswith("test_") or name in ELSEWHERE:
            continue
        marks = [m for m in getattr(law, "pytestmark", ()) if m.name == "parametrize"]
        rows = [{}]
        for mark in marks:
            names = [n.strip() for n in mark.args[0].split(",")] if isinstance(mark.args[0], str) else mark.args[0]
            rows = [row | dict(zip(names, value if len(names) > 1 else [value])) for row in rows
                    for value in mark.args[1]]
        for row in rows:
            if row.get("world", 1) in WORLDS:
                yield pytest.param(law, row, id="-".join([name, *map(told, row.values())]))


@pytest.mark.parametrize("law, row", list(cases()))
def test_law(law, row, run, monkeypatch):
    monkeypatch.setattr(laws, "spawn", lambda *args, **how: spawn(*args, **{**run.keywords, **how}))
    fixtures = set(inspect.signature(law).parameters) - set(row)
    law(**row, **{name: {"monkeypatch": monkeypatch}[name] for name in fixtures})
