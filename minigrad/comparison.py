"""`mg.compare({...})`: models side by side – speed, memory, size on disk, accuracy, each with how sure it is.

    print(mg.compare({"float32": model, "float16": half}, data=(x, y)))

Candidates take turns, so that what disturbs the machine disturbs all; a ratio compares the same round.
After `profiler/`, `save.py` and `memory/`; `viz/comparison.py` shows it.
"""
from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib import import_module
from time import perf_counter_ns
from typing import Any

import numpy as np

from minigrad.arguments import whole
from minigrad.autograd import no_grad
from minigrad.nn.module import Module
from minigrad.save import save
from minigrad.tensor import Tensor, numel

Z = 1.959963984540054                                         # 95 % of a normal distribution lie within ± Z
PACKAGE = __name__.split(".")[0]


@dataclass(frozen=True)
class Interval:
    """A number and where it may lie: 95 times in 100 such an interval has the true value in it."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Candidate:
    """What was found of one.  Measured, so different next time: `seconds` of each round, with which go `latency_p50_s`,
    `latency_p99_s`, `items_per_s` (None where a call has no number of items) and `time_ratio`, to the first candidate.
    The rest is the same every time: `peak_bytes`, the most that arrays of one call take at once above what was there
    (None: not counted); `parameters`, `nbytes_on_disk` and `accuracy` of models (None of other callables)."""

    name: str
    seconds: tuple[float, ...]
    items: int | None
    time_ratio: Interval | None
    peak_bytes: int | None
    parameters: int | None
    nbytes_on_disk: int | None
    accuracy: Interval | None

    @property
    def latency_p50_s(self) -> float | None:
        return float(np.percentile(self.seconds, 50)) if self.seconds else None

    @property
    def latency_p99_s(self) -> float | None:
        return float(np.percentile(self.seconds, 99)) if self.seconds else None

    @property
    def items_per_s(self) -> float | None:
        median_s = self.latency_p50_s
        return None if self.items is None or not median_s else self.items / median_s


MEASURED = ("latency_p50_s", "latency_p99_s", "items_per_s", "time_ratio")
DETERMINISTIC = ("peak_bytes", "parameters", "nbytes_on_disk", "accuracy")


@dataclass(frozen=True)
class Comparison:
    """`rounds` may be fewer than asked for, after Ctrl-C: then `interrupted`.  `not_counted`: why there are no
    peaks."""

    candidates: tuple[Candidate, ...]
    rounds: int
    interrupted: bool = False
    not_counted: str = ""

    def __getitem__(self, name: str) -> Candidate:
        for each in self.candidates:
            if each.name == name:
                return each
        raise KeyError(f"compare: no candidate {name!r}: there are {', '.join(c.name for c in self.candidates)}")

    def to_data(self) -> dict[str, Any]:
        """For JSON; each candidate with its derived numbers."""
        rows = [{**asdict(c), "latency_p50_s": c.latency_p50_s, "latency_p99_s": c.latency_p99_s,
                 "items_per_s": c.items_per_s} for c in self.candidates]
        return {"rounds": self.rounds, "interrupted": self.interrupted, "not_counted": self.not_counted,
                "deterministic": list(DETERMINISTIC), "candidates": rows}

    def __str__(self) -> str:
        return import_module(f"{PACKAGE}.viz.comparison").text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return import_module(f"{PACKAGE}.viz.comparison").html(self)


# ---- the comparison ------------------------------------------------------------------------------
def compare(candidates: Mapping[str, Any], *, data: Any = None, repeat: int = 20, warm_up: int = 2,
            batch_size: int | None = None, progress: bool | None = None) -> Comparison:
    """Measure `candidates` in turn, `repeat` rounds.

    Each is a model, or a pair (model, batch) with a batch of its own: then a call is its forward pass on the batch,
    in eval mode without gradients.  Or it is a function without arguments: then a call is that, whatever it does.
    `data`: a pair (inputs, labels); its first `batch_size` inputs (all, if None) are the batch of models without one,
    and accuracy is the share of all inputs whose largest output is at the label.  `progress`: a bar on stderr (None:
    if it takes longer than a second)."""
    if not isinstance(candidates, Mapping) or not candidates:
        raise TypeError(f"compare: expected a dict of names and candidates, got {_told(candidates)}")
    whole("compare", "repeat", repeat, 1)
    whole("compare", "warm_up", warm_up)
    inputs, labels = _pair(data)
    size = len(labels) if labels is not None and batch_size is None else batch_size
    if batch_size is not None:
        whole("compare", "batch_size", batch_size, 1)
    made = [Runner(name, each, None if inputs is None else inputs[:size]) for name, each in candidates.items()]
    seconds: dict[str, list[float]] = {r.name: [] for r in made}
    why = ""
    peaks: dict[str, int | None] = dict.fromkeys(seconds)
    interrupted = False
    found: dict[str, Interval | None] = {}
    with ExitStack() as modes:
        for runner in made:
            modes.enter_context(runner.evaluating())
        try:
            why = _prepare(made, warm_up, peaks)
            for runner in made:
                found[runner.name] = runner.accuracy(inputs, labels, size)
            for _ in _bar(repeat, progress):
                once = [runner.seconds() for runner in made]  # a round counts whole or not at all
                for runner, s in zip(made, once):
                    seconds[runner.name].append(s)
        except KeyboardInterrupt:
            interrupted = True
    done = [r.candidate(seconds, made[0].name, peaks[r.name], found.get(r.name)) for r in made]
    return Comparison(tuple(done), len(seconds[made[0].name]), interrupted, why)


def _told(x: Any) -> str:
    return "an empty dict" if x == {} else type(x).__name__


def _pair(data: Any) -> tuple[Tensor | None, Tensor | None]:
    if data is None:
        return None, None
    if not isinstance(data, tuple | list) or len(data) != 2 or not all(isinstance(x, Tensor) for x in data):
        raise TypeError(f"compare: data must be a pair of tensors (inputs, labels), got {_told(data)}")
    inputs, labels = data
    if labels.ndim != 1 or not inputs.ndim or len(inputs) != len(labels) or not len(labels):
        raise ValueError(f"compare: data needs as many inputs as labels (N,), at least one; got {inputs.shape} and "
                         f"{labels.shape}")
    return inputs, labels


def _prepare(made: list[Runner], warm_up: int, peaks: dict[str, int | None]) -> str:
    """Unmeasured calls, then one whose arrays are watched; why they are not, if they cannot be."""
    for runner in made:
        for _ in range(warm_up):
            runner.call()
    from minigrad.memory.handler import watched

    for runner in made:
        with ExitStack() as stack:
            try:
                watch = stack.enter_context(watched(1))      # numba takes a second
            except (ImportError, RuntimeError) as e:
                return f"not counted: {e}"
            runner.call()
            peaks[runner.name] = watch.peak
    return ""


def _bar(repeat: int, progress: bool | None) -> Iterator[int]:
    from tqdm import tqdm

    return iter(tqdm(range(repeat), "compare", disable=None if progress is None else not progress,
                     delay=0 if progress else 1, leave=False))


class Runner:
    """One candidate: how to call it."""

    def __init__(self, name: str, given: Any, batch: Tensor | None) -> None:
        if not isinstance(name, str):
            raise TypeError(f"compare: names are texts, got {name!r}")
        model, own = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
        if not callable(model):
            raise TypeError(f"compare: {name!r} is a {type(model).__name__}; expected a model, a pair (model, batch) "
                            "or a function without arguments")
        self.name, self.model, self.batch = name, model, own
        if own is None and isinstance(model, Module):
            self.batch = batch
            if batch is None:
                raise ValueError(f"compare: model {name!r} has no batch. Pass data=(inputs, labels), or the pair "
                                 "(model, batch)")
        if self.batch is not None and not (isinstance(self.batch, Tensor) and self.batch.ndim):
            raise TypeError(f"compare: the batch of {name!r} must be a tensor (N, …), got {type(self.batch).__name__}")

    def evaluating(self) -> ExitStack:
        """Models in eval mode, and afterwards each part in the mode that it was in."""
        stack = ExitStack()
        if isinstance(self.model, Module):
            for m in self.model.modules():
                stack.callback(setattr, m, "training", m.training)
            self.model.eval()
        return stack

    def call(self) -> Any:
        if self.batch is None:
            return self.model()
        with no_grad():
            return self.model(self.batch)

    def seconds(self) -> float:
        start = perf_counter_ns()
        self.call()
        return (perf_counter_ns() - start) / 1e9

    def accuracy(self, inputs: Tensor | None, labels: Tensor | None, size: int | None) -> Interval | None:
        if labels is None or self.batch is None:
            return None
        right = 0
        with no_grad():
            for start in range(0, len(labels), size):
                y = self.model(inputs[start:start + size])
                t = labels[start:start + size]
                if y.ndim != 2 or len(y) != len(t):
                    raise ValueError(f"compare: for accuracy {self.name!r} must give (N, classes) for N inputs; it "
                                     f"gave {y.shape} for {len(t)}")
                right += int((y.argmax(1) == t).sum().item())
        return wilson(right, len(labels))

    def candidate(self, seconds: dict[str, list[float]], first: str, peak: int | None,
                  accuracy: Interval | None) -> Candidate:
        own = seconds[self.name]
        ratio = None if self.name == first or not own else median_ratio(own, seconds[first])
        module = self.model if isinstance(self.model, Module) else None
        parameters = None if module is None else sum(numel(p) for p in module.parameters())
        items = None if self.batch is None else len(self.batch)
        return Candidate(self.name, tuple(own), items, ratio, peak, parameters, on_disk(module), accuracy)


def on_disk(module: Module | None) -> int | None:
    """Bytes of the file that `mg.save(module.state_dict(), …)` writes."""
    if module is None:
        return None
    file = io.BytesIO()
    save(module.state_dict(), file)
    return len(file.getvalue())


# ---- how sure ------------------------------------------------------------------------------------
def wilson(right: int, n: int, z: float = Z) -> Interval:
    """The interval of a share, `right` of `n` (Wilson 1927, "Probable inference, the law of succession, and statistical
    inference", JASA 22): the shares p that lie within z standard errors √(p (1 - p) / n) of the one that was seen."""
    if not 0 <= right <= n or n < 1:
        raise ValueError(f"wilson: {right} of {n} is no share")
    p = right / n
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return Interval(p, 0.0 if right == 0 else middle - half, 1.0 if right == n else middle + half)


def median_ratio(times: list[float], reference: list[float]) -> Interval:
    """The median of the ratios of the same rounds, with the interval of a median: between the k-th smallest and the
    k-th largest, where n fair coins show fewer than k heads in at most 2.5 % of cases.  With fewer than six rounds it
    is from the smallest to the largest, and less sure."""
    ratios = np.sort(np.divide(times, reference))
    n, k, fewer = len(ratios), 0, 0.5 ** len(ratios)          # fewer: the probability of at most k heads
    while fewer + math.comb(n, k + 1) * 0.5 ** n <= 0.025:
        k += 1
        fewer += math.comb(n, k) * 0.5 ** n
    return Interval(float(np.median(ratios)), float(ratios[k]), float(ratios[n - 1 - k]))


__all__ = ["Candidate", "Comparison", "Interval", "compare", "median_ratio", "wilson"]
