"""The 1,797 handwritten digits that come with scikit-learn (Alpaydin & Kaynak 1998), and folds to test on.

After `transforms.py`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec

import numpy as np

from minigrad.tensor import Tensor


def digits() -> tuple[Tensor, Tensor]:
    """(images, labels): float32 (1797, 1, 8, 8) in [0, 1], and int64 (1797) from 0 to 9."""
    table = _table()
    images = (table[:, :64] / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    return Tensor(images), Tensor(table[:, 64].astype(np.int64))


def _table() -> np.ndarray:
    """A row per digit: 64 grey values from 0 to 16 and the label.

    The file is read without importing scikit-learn, which takes seconds; if it is not there, its reader is asked."""
    package = find_spec("sklearn")
    if package is None:
        raise ModuleNotFoundError(
            "digits() needs scikit-learn, which brings the data: pip install scikit-learn "
            "(`python3 run.py lab` installs it)"
        )
    file = os.path.join(package.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    if os.path.exists(file):
        return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits

    data, labels = load_digits(return_X_y=True)
    return np.column_stack([data, labels])


def stratified_folds(labels: Tensor | Sequence[int], k: int, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """k pairs (training rows, test rows), shuffled: each row is tested once, and each class is spread evenly."""
    y = labels.numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if y.ndim != 1 or not 2 <= k <= len(y):
        raise ValueError(
            f"stratified_folds: expected one label per row and 2 to {len(y)} folds, got labels {y.shape}, k = {k}"
        )
    draw, fold = np.random.default_rng(seed), np.empty(len(y), np.int64)
    place = 0  # where the next class goes on dealing: folds stay of equal size
    for value in np.unique(y):
        rows = draw.permutation(np.flatnonzero(y == value))
        fold[rows] = (np.arange(len(rows)) + place) % k
        place += len(rows)
    order = draw.permutation(len(y))
    return [(order[fold[order] != i], order[fold[order] == i]) for i in range(k)]
