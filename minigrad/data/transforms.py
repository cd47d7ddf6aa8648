"""Changes to images: of a whole batch (`shifted`), and of one item when it is read, under torchvision's names.

A transform takes and gives one image (C, H, W), a Tensor or an array; its draws come from the loader's stream, so that
a seed repeats them whoever works.  After `split.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minigrad.create import Generator, stream
from minigrad.data.dataset import Dataset
from minigrad.dtype import float32
from minigrad.errors import ShapeError
from minigrad.tensor import Tensor


def shifted(images: Tensor, pixels: int = 1, generator: Generator | None = None) -> Tensor:
    """Each image (N, C, H, W) moved by up to `pixels` each way, drawn anew; what comes in from outside is 0."""
    draw, x = stream(generator).host(), images.detach().cpu().numpy()
    n, _, h, w = x.shape
    wide = np.pad(x, ((0, 0), (0, 0), (pixels, pixels), (pixels, pixels)))
    windows = np.lib.stride_tricks.sliding_window_view(wide, (h, w), (2, 3))  # (N, C, 2p+1, 2p+1, H, W)
    down, right = draw.integers(0, 2 * pixels + 1, (2, n))
    return Tensor(windows[np.arange(n), :, down, right]).to(images.o.device)


class Transformed(Dataset):
    """Another dataset whose items (image, …) have their first part changed by `transform`."""

    def __init__(self, dataset: Any, transform: Callable) -> None:
        self.dataset, self.transform = dataset, transform

    def __getitem__(self, index: int) -> tuple:
        first, *rest = self.dataset[index]
        return (self.transform(first), *rest)

    def __len__(self) -> int:
        return len(self.dataset)


class Compose:
    """One transform after the other."""

    def __init__(self, transforms: Sequence[Callable]) -> None:
        self.transforms = list(transforms)

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image

    def __repr__(self) -> str:
        return "\n    ".join(["Compose(", *map(repr, self.transforms)]) + "\n)"


class Lambda:
    """A function as a transform; for process workers one from the top of a file."""

    def __init__(self, lambd: Callable) -> None:
        self.lambd = lambd

    def __call__(self, image: Any) -> Any:
        return self.lambd(image)

    def __repr__(self) -> str:
        return "Lambda()"


class ToTensor:
    """An array of bytes (H, W) or (H, W, C) as a float32 Tensor (C, H, W) in [0, 1]; floats keep their values."""

    def __call__(self, image: Any) -> Tensor:
        x = np.asarray(image)
        if x.ndim not in (2, 3):
            raise ShapeError(f"ToTensor: expected an image (H, W) or (H, W, C), got {x.shape}")
        x = x[None] if x.ndim == 2 else np.moveaxis(x, -1, 0)
        return Tensor(np.ascontiguousarray(x.astype(float32) / 255 if x.dtype == np.uint8 else x))

    def __repr__(self) -> str:
        return "ToTensor()"


class Normalize:
    """(x - mean) / std, a number for each channel."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self.mean, self.std = list(mean), list(std)
        if len(self.mean) != len(self.std) or not all(s > 0 for s in self.std):
            raise ValueError(f"Normalize: expected a mean and a std above 0 for each channel, got {mean} and {std}")

    def __call__(self, image: Any) -> Tensor:
        x = _host(image, "Normalize")
        if len(self.mean) not in (1, len(x)):
            raise ShapeError(f"Normalize: {len(self.mean)} means for an image of {len(x)} channels")
        mean, std = (np.asarray(v, x.dtype)[:, None, None] for v in (self.mean, self.std))
        return Tensor((x - mean) / std)

    def __repr__(self) -> str:
        return f"Normalize(mean={self.mean}, std={self.std})"


class Pad:
    """`padding` pixels of `fill` on every side."""

    def __init__(self, padding: int, fill: float = 0) -> None:
        self.padding, self.fill = padding, fill

    def __call__(self, image: Any) -> Tensor:
        p = self.padding
        return Tensor(np.pad(_host(image, "Pad"), ((0, 0), (p, p), (p, p)), constant_values=self.fill))

    def __repr__(self) -> str:
        return f"Pad(padding={self.padding}, fill={self.fill})"


class RandomCrop:
    """A window of `size` (or (height, width)) at a random place, after `padding` pixels of `fill` on every side."""

    def __init__(self, size: int | tuple[int, int], padding: int = 0, fill: float = 0) -> None:
        self.size, self.padding = (size, size) if isinstance(size, int) else tuple(size), Pad(padding, fill)

    def __call__(self, image: Any) -> Tensor:
        x = _host(self.padding(image), "RandomCrop")
        (h, w), (rows, columns) = self.size, x.shape[1:]
        if h > rows or w > columns:
            raise ShapeError(f"RandomCrop: a window {self.size} does not fit into an image of {(rows, columns)}")
        draw = stream().host()
        top, left = draw.integers(rows - h + 1), draw.integers(columns - w + 1)
        return Tensor(np.ascontiguousarray(x[:, top : top + h, left : left + w]))

    def __repr__(self) -> str:
        return f"RandomCrop(size={self.size}, padding={self.padding.padding})"


class RandomHorizontalFlip:
    """Left and right exchanged with probability `p`."""

    def __init__(self, p: float = 0.5) -> None:
        if not 0 <= p <= 1:
            raise ValueError(f"RandomHorizontalFlip: p must be between 0 and 1, got {p}")
        self.p = p

    def __call__(self, image: Any) -> Tensor:
        x = _host(image, "RandomHorizontalFlip")
        return Tensor(np.ascontiguousarray(x[..., ::-1]) if stream().host().random() < self.p else x)

    def __repr__(self) -> str:
        return f"RandomHorizontalFlip(p={self.p})"


def _host(image: Any, name: str) -> np.ndarray:
    x = image.detach().cpu().numpy() if isinstance(image, Tensor) else np.asarray(image)
    if x.ndim != 3:
        raise ShapeError(f"{name}: expected an image (C, H, W), got {x.shape}")
    return x
