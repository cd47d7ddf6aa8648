"""Text by characters: a vocabulary, windows to learn from, and two corpora, one of which is always there.

After `mnist.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import numpy as np

from minigrad.data.dataset import Dataset
from minigrad.data.download import DownloadError, Source, fetch, say_once
from minigrad.tensor import Tensor

SHAKESPEARE = Source(
    "tinyshakespeare.txt",
    (
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        "https://raw.githubusercontent.com/karpathy/char-rnn/6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e/data/"
        "tinyshakespeare/input.txt",
    ),
    1115394,
    "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
)


class CharTokenizer:
    """The characters of a text, sorted, numbered from 0."""

    def __init__(self, characters: Iterable[str]) -> None:
        self.characters = "".join(sorted(set(characters)))
        if not self.characters:
            raise ValueError("CharTokenizer: a text of no characters")
        self._number = {c: i for i, c in enumerate(self.characters)}

    def __len__(self) -> int:
        return len(self.characters)

    def encode(self, text: str) -> Tensor:
        """int64 (len(text)); ValueError names a character that is not in the vocabulary."""
        try:
            return Tensor(np.array([self._number[c] for c in text], np.int64))
        except KeyError as e:
            raise ValueError(
                f"CharTokenizer: {e.args[0]!r} at place {text.index(e.args[0])} is not among the {len(self)} "
                f"characters {self.characters!r}"
            ) from None

    def decode(self, numbers: Tensor | Sequence[int]) -> str:
        """The text of the numbers."""
        found = numbers.tolist() if isinstance(numbers, Tensor) else list(numbers)
        wrong = [n for n in found if not 0 <= n < len(self)]
        if wrong:
            raise ValueError(f"CharTokenizer: {wrong[0]} is no number of a character: there are {len(self)}")
        return "".join(self.characters[n] for n in found)

    def __repr__(self) -> str:
        return f"CharTokenizer({self.characters!r})"


class TextWindows(Dataset):
    """Windows of a text's numbers: item k is (x, y), `length` numbers from k · stride on, and those one further."""

    def __init__(self, tokens: Tensor, length: int, stride: int = 1) -> None:
        if tokens.ndim != 1 or length < 1 or stride < 1 or len(tokens) <= length:
            raise ValueError(
                f"TextWindows: expected more numbers (n) than the length, and a length and stride of at least 1, got "
                f"{tokens.shape}, length {length}, stride {stride}"
            )
        self.tokens, self.length, self.stride = tokens, length, stride

    def __len__(self) -> int:
        return (len(self.tokens) - self.length - 1) // self.stride + 1

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"TextWindows: window {index} of {len(self)}")
        start = index % len(self) * self.stride
        return self.tokens[start : start + self.length], self.tokens[start + 1 : start + self.length + 1]

    def take(self, indices: Sequence[int]) -> list[Tensor]:
        """Many windows at once: what `default_collate` makes of the items."""
        starts = (np.asarray(indices, np.int64) % len(self) * self.stride)[:, None]
        places = starts + np.arange(self.length + 1)
        return [self.tokens[places[:, :-1]], self.tokens[places[:, 1:]]]


def prose() -> str:
    """The texts of Python's own help on the language, some 460,000 characters; the same for one version of Python.

    They come with every CPython (pydoc_data.topics), under its licence."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name].strip() for name in sorted(topics))


def tiny_shakespeare(root: str | os.PathLike | None = None, fallback: bool = True) -> str:
    """A million characters of Shakespeare's plays, as Karpathy (2015) chose them.

    Fetched once into `root` (None: the system's cache folder).  Where that fails: a line says so, and `prose()` comes
    instead; with fallback=False DownloadError."""
    try:
        return fetch(SHAKESPEARE, root).read_text(encoding="utf-8")
    except DownloadError as e:
        if not fallback:
            raise
        say_once(f"Tiny Shakespeare is not to be had, so the texts of Python's help take its place. {e}")
        return prose()


def train_and_validation(text: str, fraction: float = 0.9) -> tuple[str, str]:
    """The first part to train on, the rest to validate on: neighbouring windows share most of their characters, so
    that a random split would test on what was learnt."""
    if not 0 < fraction < 1:
        raise ValueError(f"train_and_validation: fraction must lie between 0 and 1, got {fraction}")
    cut = int(len(text) * fraction)
    return text[:cut], text[cut:]
