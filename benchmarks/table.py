"""From samples to the table: what each number is, which losses disagree, how a line is printed.

Read after workloads.py. No clocks, no processes: child.py takes the samples, run.py collects them.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

MB = 1e6
LOSS_RTOL = 1e-4  # frameworks agree to about 1e-5 over four steps (measured)
LOSS_ATOL = 1e-6  # the mean of all logits, the "loss" of *_inf, is a small rest of large sums


@dataclass(frozen=True)
class Sample:
    """Steps of a peer taken in one go: seconds per step; cores that it and others kept busy."""

    median_s: float
    p10_s: float
    min_s: float
    steps: int
    cores: float
    foreign_cores: float | None = None
    rss_bytes: int | None = None
    faults: float | None = None  # pages that the system handed out, per step


@dataclass(frozen=True)
class Run:
    """What is known of a peer on a workload; `absent` or `failure`: why there are no samples."""

    peer: str
    losses: Sequence[float] = ()
    first4_s: float = 0.0
    samples: Sequence[Sample] = ()
    absent: str = ""
    failure: str = ""
    versions: dict[str, str] = field(default_factory=dict)


def tenth_percentile(values: Sequence[float]) -> float:
    """The value that a tenth of them, rounded down, lie below: of fewer than ten, the smallest."""
    return sorted(values)[len(values) // 10]


def lo_s(samples: Sequence[Sample]) -> float:
    """`lo`: tenth percentile of the steps, as the median over the better half of the samples."""
    return statistics.median(sorted(s.p10_s for s in samples)[: max(1, len(samples) // 2)])


def is_clean(sample: Sample, foreign_limit: float) -> bool:
    """Whether other processes left the machine alone, as far as the system tells."""
    return (sample.foreign_cores or 0.0) <= foreign_limit


def clean(samples: Sequence[Sample], foreign_limit: float) -> list[Sample]:
    """The undisturbed samples, or all if there is none."""
    return [s for s in samples if is_clean(s, foreign_limit)] or list(samples)


def is_disturbed(samples: Sequence[Sample], foreign_limit: float) -> bool:
    """The mark `!`: fewer than half of the samples were clean."""
    return 2 * sum(is_clean(s, foreign_limit) for s in samples) < len(samples)


def paired_ratio(
    samples: Sequence[Sample], reference: Sequence[Sample], foreign_limit: float
) -> float:
    """`x ref`: time over the reference's of the same round, median over the clean rounds if any."""
    rounds = list(zip(samples, reference, strict=False))
    quiet = [pair for pair in rounds if all(is_clean(s, foreign_limit) for s in pair)]
    return statistics.median(s.median_s / r.median_s for s, r in quiet or rounds)


def disagreement(run: Run, reference: Run) -> str:
    """How the first losses of `run` differ from the reference's, in words; empty if they agree."""
    close = [
        math.isclose(a, b, rel_tol=LOSS_RTOL, abs_tol=LOSS_ATOL)
        for a, b in zip(run.losses, reference.losses, strict=True)
    ]
    if all(close):
        return ""
    n = close.index(False)
    return (
        f"LOSSES DIFFER: step {n + 1}: {run.peer} has {run.losses[n]:.7g}, {reference.peer} has "
        f"{reference.losses[n]:.7g}, relatively more than {LOSS_RTOL:g} apart"
    )


def numbers(run: Run, reference: Run | None, foreign_limit: float) -> dict[str, float | None]:
    """The columns of one line by name, in the units of the header."""
    samples, rss, foreign = run.samples, [], []
    for s in samples:
        rss += [] if s.rss_bytes is None else [s.rss_bytes / MB]
        foreign += [] if s.foreign_cores is None else [s.foreign_cores]
    compared = reference is not None and bool(reference.samples)
    return {
        "ms": 1e3 * statistics.median(s.median_s for s in clean(samples, foreign_limit)),
        "lo": 1e3 * lo_s(samples),
        "x ref": paired_ratio(samples, reference.samples, foreign_limit) if compared else None,
        "x lo": lo_s(samples) / lo_s(reference.samples) if compared else None,
        "RSS MB": max(rss, default=None),
        "cores": statistics.median(s.cores for s in samples),
        "foreign": statistics.median(foreign) if foreign else None,
        "first4 s": run.first4_s,
    }


PEER_WIDTH = 24
COLUMNS = {
    "ms": (9, 3),
    "lo": (9, 3),
    "x ref": (7, 2),
    "x lo": (7, 2),
    "RSS MB": (8, 0),
    "cores": (7, 2),
    "foreign": (9, 2),
    "first4 s": (10, 1),
}  # width, decimals


def header() -> str:
    """The first line of a table."""
    names = "".join(f"{name:>{width}s}" for name, (width, _) in COLUMNS.items())
    return f"{'peer':{PEER_WIDTH}s}{names}   losses"


def line(run: Run, reference: Run | None, foreign_limit: float) -> str:
    """One line of the table."""
    if not run.samples:
        return f"{run.peer:{PEER_WIDTH}s}   {run.absent or 'failed: ' + run.failure}"
    text = f"{run.peer:{PEER_WIDTH}s}"
    for name, value in numbers(run, reference, foreign_limit).items():
        width, decimals = COLUMNS[name]
        cell = "-" if value is None else f"{value:.{decimals}f}"
        mark = "!" if name == "foreign" and is_disturbed(run.samples, foreign_limit) else ""
        text += f"{cell + mark:>{width}s}"
    failed = f"  failed later: {run.failure}" if run.failure else ""
    return text + "   " + " ".join(f"{loss:.4f}" for loss in run.losses) + failed


def disagreements(runs: Sequence[Run], reference: Run | None) -> list[str]:
    """A line for each run whose losses are not the reference's; without one, the first run's."""
    reference = reference or next((run for run in runs if run.losses), None)
    return [words for run in runs if run.losses and (words := disagreement(run, reference))]


def table(title: str, runs: Sequence[Run], reference: Run | None, foreign_limit: float) -> str:
    """The table of one workload, and under it the disagreements."""
    lines = [line(run, reference, foreign_limit) for run in runs]
    return "\n".join([f"== {title}", header(), *lines, *disagreements(runs, reference)])
