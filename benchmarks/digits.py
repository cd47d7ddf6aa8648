"""How well and how fast minigrad's small CNN reads the 1,797 handwritten digits.

    python benchmarks/digits.py [--seeds 5] [--epochs 12]

A seed is five nets: one for each fold of a stratified 5-fold split, tested on the fold it has not seen.
One BLAS thread.
The bar: mean accuracy of five seeds at least 98.5 %, at most 60 s a seed.
"""

import argparse
import os
import sys
import time
from pathlib import Path

os.environ.update(dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np  # noqa: E402

import minigrad as mg  # noqa: E402
from minigrad import data, optim  # noqa: E402
from minigrad.nn import functional as F  # noqa: E402
from minigrad.nn.models import DigitsCNN  # noqa: E402

FOLDS, BATCH, LR, DECAY = 5, 64, 0.005, 0.05


def trained(x: mg.Tensor, y: mg.Tensor, epochs: int) -> DigitsCNN:
    """A net after AdamW with a cosine schedule; everything random comes from minigrad's stream."""
    net = DigitsCNN()
    loader = data.DataLoader(data.TensorDataset(x, y), BATCH, shuffle=True, drop_last=True)
    optimiser = optim.AdamW(net.parameters(), LR, weight_decay=DECAY)
    schedule = optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs * len(loader))
    for _ in range(epochs):
        for images, labels in loader:
            optimiser.zero_grad()
            F.cross_entropy(net(images), labels).backward()
            optimiser.step()
            schedule.step()
    return net.eval()


@mg.no_grad()
def accuracy(net: DigitsCNN, x: mg.Tensor, y: mg.Tensor) -> float:
    """The share of images that get their own label."""
    return (net(x).argmax(1) == y).float().mean().item()


def of_seed(x: mg.Tensor, y: mg.Tensor, seed: int, epochs: int) -> list[float]:
    """The accuracy of each fold."""
    mg.manual_seed(seed)
    folds = data.stratified_folds(y, FOLDS, seed)
    return [accuracy(trained(x[train], y[train], epochs), x[test], y[test]) for train, test in folds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=12)
    asked = parser.parse_args()
    x, y = data.digits()
    means, seconds, cpu_s = [], [], []
    for seed in range(asked.seeds):
        start, cpu_start = time.perf_counter(), time.process_time()
        folds = 100 * np.array(of_seed(x, y, seed, asked.epochs))
        seconds.append(time.perf_counter() - start)
        cpu_s.append(time.process_time() - cpu_start)
        means.append(folds.mean())
        said = " ".join(f"{a:6.2f}" for a in folds)
        print(f"seed {seed}: folds {said}  mean {means[-1]:.2f} %  {seconds[-1]:.1f} s", flush=True)
    spread = f"{np.std(means):.2f} ({min(means):.2f} to {max(means):.2f})"
    print(f"mean {np.mean(means):.2f} %, spread over seeds ± {spread}")
    print(f"a seed takes at most {max(seconds):.1f} s; {np.mean(cpu_s):.1f} s of it on the processor")


if __name__ == "__main__":
    main()
