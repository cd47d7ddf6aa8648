"""Searches for good settings: over a grid, or at random (Bergstra & Bengio 2012).  After `save.py`.

    def train(lr, width): ...; return validation_loss
    found = random_search(train, {"lr": log_uniform(1e-4, 1), "width": [16, 32, 64]}, 30, file="runs.jsonl")
    print(found); found.best().settings

Interrupted (Ctrl-C) a search returns what is done; with `file` the next call goes on from there.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

POLL_S = 0.2  # an untimed wait would ignore Ctrl-C on Windows


# ---- spaces --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Uniform:
    """Numbers evenly from [low, high); with `log` evenly in their logarithm."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError(f"{self}: low must be below high" + (", and above 0" if self.log else ""))

    def draw(self, rng: np.random.Generator) -> float:
        if self.log:
            return float(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))
        return float(rng.uniform(self.low, self.high))


@dataclass(frozen=True)
class Choice:
    """One of some values."""

    values: tuple

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("Choice: no values")

    def draw(self, rng: np.random.Generator) -> Any:
        return self.values[int(rng.integers(len(self.values)))]


def uniform(low: float, high: float) -> Uniform:
    """Numbers evenly from [low, high)."""
    return Uniform(low, high)


def log_uniform(low: float, high: float) -> Uniform:
    """Numbers from [low, high), evenly in their logarithm: for rates."""
    return Uniform(low, high, log=True)


def choice(values: Iterable) -> Choice:
    """One of the values; a plain list or tuple means the same."""
    return Choice(tuple(values))


def _axis(name: str, given: Any) -> Uniform | Choice:
    if isinstance(given, Uniform | Choice):
        return given
    if isinstance(given, Sequence | range | np.ndarray) and not isinstance(given, str):
        return Choice(tuple(v.item() if isinstance(v, np.generic) else v for v in given))
    raise TypeError(f"the space of {name!r} is a list of values, uniform, log_uniform or choice, not {given!r}")


def grid(space: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All combinations, the last name changing fastest."""
    axes = {name: _axis(name, given) for name, given in space.items()}
    endless = [name for name, axis in axes.items() if not isinstance(axis, Choice)]
    if endless:
        raise TypeError(f"grid_search: {endless[0]!r} has no list of values; give it one, or use random_search")
    return [dict(zip(axes, values)) for values in itertools.product(*(axis.values for axis in axes.values()))]


def drawn(space: Mapping[str, Any], n: int, seed: int = 0) -> list[dict[str, Any]]:
    """n settings; those of a smaller n are their beginning."""
    if n < 0:
        raise ValueError(f"random_search: n must be at least 0, got {n}")
    axes = {name: _axis(name, given) for name, given in space.items()}
    return [{name: axis.draw(rng) for name, axis in axes.items()} for rng in (_rng(seed, i) for i in range(n))]


def _rng(seed: int, number: int) -> np.random.Generator:
    return np.random.default_rng([seed, number])


# ---- results -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Trial:
    """One try: its settings, and its score or its error; `more` is what the function gave beside the score."""

    number: int
    settings: dict[str, Any]
    score: float | None = None
    error: str | None = None
    seconds: float = 0.0
    more: dict[str, Any] = field(default_factory=dict)


class Results(Sequence):
    """The trials that are done, in the order of their numbers; printed as a table, best first."""

    def __init__(self, trials: Iterable[Trial], maximize: bool = False, planned: int | None = None) -> None:
        self.trials, self.maximize = sorted(trials, key=lambda t: t.number), maximize
        self.planned = len(self.trials) if planned is None else planned

    def __getitem__(self, index: Any) -> Any:
        return self.trials[index]

    def __len__(self) -> int:
        return len(self.trials)

    def _rank(self, trial: Trial) -> float:
        if trial.score is None or math.isnan(trial.score):
            return math.inf
        return -trial.score if self.maximize else trial.score

    def sorted(self, by: str = "score") -> list[Trial]:
        """Best first; or by a setting, "seconds" or "number", smallest first."""
        if by == "score":
            return sorted(self.trials, key=self._rank)
        if by in ("seconds", "number"):
            return sorted(self.trials, key=lambda t: getattr(t, by))
        return sorted(self.trials, key=lambda t: t.settings[by])

    def best(self) -> Trial:
        """The trial with the best score; RuntimeError if none has one."""
        first = min(self.trials, key=self._rank, default=None)
        if first is None or first.score is None or math.isnan(first.score):
            error = next((t.error for t in self.trials if t.error), "none was made")
            raise RuntimeError(f"best: none of {len(self)} trials has a score. {error.strip().splitlines()[-1]}")
        return first

    def table(self, by: str = "score", rows: int | None = None) -> str:
        """The trials as text, sorted."""
        names = list(dict.fromkeys(name for t in self.trials for name in t.settings))
        lines = [["", *names, "score", "seconds"]]
        for t in self.sorted(by)[:rows]:
            outcome = t.error.strip().splitlines()[-1] if t.error else _short(t.score)
            lines.append([str(t.number), *(_short(t.settings.get(n)) for n in names), outcome, f"{t.seconds:.1f}"])
        widths = [max(map(len, column)) for column in zip(*lines)]
        text = ["  ".join(cell.rjust(w) for cell, w in zip(line, widths)).rstrip() for line in lines]
        hidden = len(self) - len(lines) + 1
        if hidden or len(self) < self.planned:
            text.append(f"{len(self)} of {self.planned} trials done" + (f", {hidden} not shown" if hidden else ""))
        return "\n".join(text)

    def __repr__(self) -> str:
        return self.table(rows=20)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# ---- searching -----------------------------------------------------------------------------------
Map = Callable[[Callable, Iterable], Iterable]


def grid_search(objective: Callable, space: Mapping[str, Any], **how: Any) -> Results:
    """Try every combination of a space of lists; options as of `search`."""
    return search(objective, grid(space), **how)


def random_search(objective: Callable, space: Mapping[str, Any], n: int, *, seed: int = 0, **how: Any) -> Results:
    """Try n settings drawn from a space; options as of `search`.  The same seed draws the same."""
    return search(objective, drawn(space, n, seed), **how)


def search(
    objective: Callable[..., Any],
    settings: Sequence[Mapping[str, Any]],
    *,
    maximize: bool = False,
    map: Map | Any = None,
    file: str | os.PathLike | None = None,
    retry: bool = False,
    progress: bool = True,
) -> Results:
    """Try each of the settings: objective(**settings) returns a score, or a dict with "score" and more.

    An error is recorded and the search goes on.  `map`: None, one after the other; an executor of concurrent.futures;
    or a function like the built-in map, lazy, that may give its results in any order.  `file`: a line is added for each
    trial; trials that have one are not made again (`retry`: those with an error are)."""
    known = _read(file) if file is not None else {}
    todo: dict[str, list[int]] = {}
    for number, each in enumerate(settings):
        todo.setdefault(_key(each), []).append(number)
    done = {key: t for key, t in known.items() if key in todo and not (retry and t.error)}
    jobs = [(objective, numbers[0], dict(settings[numbers[0]])) for key, numbers in todo.items() if key not in done]
    with _bar(len(todo), len(done), progress) as bar:
        try:
            for trial in _made(map, jobs):
                done[_key(trial.settings)] = trial
                if file is not None:
                    _append(file, trial)
                bar.update()
        except KeyboardInterrupt:
            pass
    found = [replace(done[key], number=k, settings=dict(settings[k])) for key in done for k in todo[key]]
    return Results(found, maximize, len(settings))


def _bar(total: int, initial: int, progress: bool) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, initial=initial, desc="trials", disable=None if progress else True, leave=False)


def attempt(job: tuple[Callable, int, dict]) -> Trial:
    """Make one trial; whatever goes wrong in it is its result."""
    objective, number, settings = job
    clock = time.perf_counter()
    try:
        got = objective(**settings)
        more = {k: v for k, v in got.items() if k != "score"} if isinstance(got, Mapping) else {}
        score = float(got["score"] if isinstance(got, Mapping) else got)
        return Trial(number, settings, score, None, time.perf_counter() - clock, more)
    except Exception:
        import traceback

        return Trial(number, settings, None, traceback.format_exc(), time.perf_counter() - clock)


def _made(map: Any, jobs: list) -> Iterator[Trial]:
    if map is None:
        return (attempt(job) for job in jobs)
    return _by_executor(map, jobs) if hasattr(map, "submit") else iter(map(attempt, jobs))


def _by_executor(executor: Any, jobs: list) -> Iterator[Trial]:
    """The trials as they come; those that have not begun when the search ends are called off."""
    from concurrent.futures import FIRST_COMPLETED, wait

    waiting = {}
    try:
        for job in jobs:
            waiting[executor.submit(attempt, job)] = job
        while waiting:
            for future in wait(waiting, timeout=POLL_S, return_when=FIRST_COMPLETED).done:
                _, number, settings = waiting.pop(future)
                error = future.exception()
                yield future.result() if error is None else Trial(
                    number, settings, None, f"{type(error).__name__}: {error}"
                )
    finally:
        for future in waiting:
            future.cancel()


# ---- the file ------------------------------------------------------------------------------------
def _key(settings: Mapping[str, Any]) -> str:
    """Settings as text, equal for equal ones; what JSON cannot say by its repr."""
    return json.dumps(settings, sort_keys=True, default=repr)


def _append(file: str | os.PathLike, trial: Trial) -> None:
    """Add one line, whole or not at all: one write, on the disk before the next trial begins."""
    line = (json.dumps(asdict(trial), default=repr) + "\n").encode()
    number = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o644)
    try:
        size = os.fstat(number).st_size
        if size:
            os.lseek(number, size - 1, os.SEEK_SET)
            line = line if os.read(number, 1) == b"\n" else b"\n" + line  # after a line that was cut off
        os.write(number, line)
        os.fsync(number)
    finally:
        os.close(number)


def _read(file: str | os.PathLike) -> dict[str, Trial]:
    """The trials of a file by their settings, the last of each; lines that were cut off are passed over."""
    if not os.path.exists(file):
        return {}
    found = {}
    with open(file, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                trial = Trial(**json.loads(line))
                found[_key(trial.settings)] = trial
            except (ValueError, TypeError):
                continue
    return found
