"""Parts to train, tune and test on, with the classes spread evenly.  After `ragged.py`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minigrad.create import Generator, stream
from minigrad.tensor import Tensor


def stratified_split(
    labels: Tensor | Sequence[int], fractions: Sequence[float], generator: Generator | None = None
) -> list[np.ndarray]:
    """Row numbers of each part, shuffled: every row in one part, each class in each part by its fraction.

    A class's counts differ from fraction · size by less than 1 where that can be, so that small classes may be missing
    from small parts.  data.Subset(dataset, part) is the part; `random_split` does without labels."""
    y = labels.numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    shares = np.asarray(fractions, float)
    if y.ndim != 1 or shares.ndim != 1 or not len(shares) or (shares < 0).any() or abs(shares.sum() - 1) > 1e-6:
        raise ValueError(
            f"stratified_split: expected one label per row and fractions that add up to 1, got labels {y.shape}, "
            f"fractions {list(fractions)}"
        )
    draw = stream(generator).host()
    parts: list[list[np.ndarray]] = [[] for _ in shares]
    given = np.zeros(len(shares))  # rows that each part has, and that it should have by now
    due = np.zeros(len(shares))
    for value in np.unique(y):
        rows = draw.permutation(np.flatnonzero(y == value))
        due += shares * len(rows)
        counts = np.floor(shares * len(rows)).astype(int)
        for _ in range(len(rows) - counts.sum()):  # the rest goes where most is missing, once to each part
            missing = np.where(counts > shares * len(rows), -np.inf, due - given - counts)
            counts[int(np.argmax(missing))] += 1
        given += counts
        for part, block in zip(parts, np.split(rows, np.cumsum(counts)[:-1])):
            part.append(block)
    return [draw.permutation(np.concatenate([*part, np.zeros(0, np.int64)]).astype(np.int64)) for part in parts]
