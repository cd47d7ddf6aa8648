"""MNIST (LeCun, Cortes & Burges 1998): 70,000 handwritten digits, 28 × 28.  After `digits.py`, which takes its place
where there is no network.

The files are those of Yann LeCun's page; their SHA-256 are the published ones (TensorFlow Datasets and others list
them, torchvision the MD5 of the same files).
"""

from __future__ import annotations

import gzip
import os
import struct
import zlib
from math import prod

import numpy as np

from minigrad.data.digits import digits, stratified_folds
from minigrad.data.download import DownloadError, Source, fetch, say_once
from minigrad.tensor import Tensor

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_FILES = (
    ("train-images-idx3-ubyte.gz", 9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    ("train-labels-idx1-ubyte.gz", 28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    ("t10k-images-idx3-ubyte.gz", 1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    ("t10k-labels-idx1-ubyte.gz", 4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
)
_SOURCES = tuple(Source(name, tuple(m + name for m in MIRRORS), nbytes, sha256) for name, nbytes, sha256 in _FILES)
SOURCES = {True: _SOURCES[:2], False: _SOURCES[2:]}  # train? -> images, labels
KINDS = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}  # of an idx file


def mnist(
    train: bool = True, root: str | os.PathLike | None = None, fallback: bool = True
) -> tuple[Tensor, Tensor]:
    """(images, labels): float32 (N, 1, 28, 28) in [0, 1] and int64 (N); 60,000 to train, 10,000 to test.

    Fetched once into `root` (None: the system's cache folder).  Where that fails: a line says so, and the 1,797 small
    digits come in the same form, 1,437 to train; with fallback=False DownloadError."""
    try:
        images, labels = (read_idx(fetch(source, root).read_bytes()) for source in SOURCES[bool(train)])
    except DownloadError as e:
        if not fallback:
            raise
        say_once(f"MNIST is not to be had, so scikit-learn's 1,797 small digits take its place. {e}")
        return _enlarged(train)
    return Tensor((images[:, None] / np.float32(255)).astype(np.float32)), Tensor(labels.astype(np.int64))


def _enlarged(train: bool) -> tuple[Tensor, Tensor]:
    """The small digits with each pixel as 3 × 3, in a border of two; one of five folds is to test on."""
    x, y = (t.numpy() for t in digits())
    rows = stratified_folds(y, 5)[0][0 if train else 1]
    large = np.kron(x[rows], np.ones((1, 1, 3, 3), np.float32))
    return Tensor(np.pad(large, ((0, 0), (0, 0), (2, 2), (2, 2)))), Tensor(y[rows])


def read_idx(data: bytes) -> np.ndarray:
    """The array of an idx file, gzipped or not; ValueError for any other.

    Two zeros, a byte for the kind of number, one for how many axes; each size in four bytes; then the numbers."""
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as e:
            raise ValueError(f"read_idx: the gzip file is broken: {e}") from None
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in KINDS or not data[3]:
        raise ValueError(f"read_idx: not an idx file: it begins with {data[:4].hex(' ') or 'nothing'}")
    axes, kind = data[3], np.dtype(KINDS[data[2]])
    start = 4 + 4 * axes
    if len(data) < start:
        raise ValueError(f"read_idx: the file ends within its {axes} sizes")
    shape = struct.unpack(f">{axes}I", data[4:start])
    if len(data) - start != prod(shape) * kind.itemsize:
        raise ValueError(f"read_idx: sizes {shape} of {kind.name}, but {len(data) - start} bytes of numbers")
    return np.frombuffer(data, kind, offset=start).reshape(shape).astype(kind.newbyteorder("="))
