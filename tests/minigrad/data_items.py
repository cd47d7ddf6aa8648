"""Datasets and functions for worker processes, which import them from here.  For `test_data_workers.py`."""

import os
import random
import signal
import time

import numpy as np

import minigrad as mg
from minigrad import data


class Squares(data.Dataset):
    """k and k², made one by one; one item may fail, one may kill its process, each may take its time."""

    def __init__(self, n, fail_at=None, kill_at=None, nap_s=0.0):
        self.n, self.fail_at, self.kill_at, self.nap_s = n, fail_at, kill_at, nap_s

    def __len__(self):
        return self.n

    def __getitem__(self, k):
        time.sleep(self.nap_s)
        if k == self.fail_at:
            raise OSError(f"item {k} is broken")
        if k == self.kill_at:
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
        return mg.tensor([float(k)]), k * k


class Noisy(Squares):
    """Items that draw random numbers: as an augmentation does."""

    def __getitem__(self, k):
        return mg.rand(2), int(mg.randint(1000, (1,)).item())


class Whole(Squares):
    """What an item sees of its worker."""

    def __getitem__(self, k):
        info = data.get_worker_info()
        return k, -1 if info is None else info.id, mg.is_grad_enabled(), os.getpid()


class Random(Squares):
    """Draws from the two global generators that Python programs use."""

    def __getitem__(self, k):
        return random.random(), np.random.rand()


class Large(Squares):
    """Items larger than a pipe's buffer."""

    def __getitem__(self, k):
        return np.full(200_000, k)


class Stream(data.IterableDataset):
    """0 … n - 1; shared out among the workers if asked."""

    def __init__(self, n, shared=True):
        self.n, self.shared = n, shared

    def __iter__(self):
        info = data.get_worker_info() if self.shared else None
        yield from range(info.id, self.n, info.num_workers) if info else range(self.n)


class PickyError(Exception):
    """An error that cannot be unpickled."""

    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


class Picky(Squares):
    def __getitem__(self, k):
        raise PickyError(1, 2)


class Unloadable(Squares):
    """Can be sent, but not taken out: as a class of a notebook's cell."""

    def __reduce__(self):
        return _broken, ()


def _broken():
    raise AttributeError("Can't get attribute 'Mine' on <module '__main__'>")


def unpicklable_batch(items):
    return lambda: items


def marked(number):
    """A worker_init_fn."""
    random.seed(1000 + number)


def failing(number):
    raise ValueError("no camera here")
