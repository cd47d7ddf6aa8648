"""Changes to images at training time.  After `loader.py`."""

from __future__ import annotations

import numpy as np

from minigrad.create import Generator, stream
from minigrad.tensor import Tensor


def shifted(images: Tensor, pixels: int = 1, generator: Generator | None = None) -> Tensor:
    """Each image (N, C, H, W) moved by up to `pixels` each way, drawn anew; what comes in from outside is 0."""
    draw, x = stream(generator).host(), images.detach().cpu().numpy()
    n, _, h, w = x.shape
    wide = np.pad(x, ((0, 0), (0, 0), (pixels, pixels), (pixels, pixels)))
    windows = np.lib.stride_tricks.sliding_window_view(wide, (h, w), (2, 3))  # (N, C, 2p+1, 2p+1, H, W)
    down, right = draw.integers(0, 2 * pixels + 1, (2, n))
    return Tensor(windows[np.arange(n), :, down, right]).to(images.o.device)
