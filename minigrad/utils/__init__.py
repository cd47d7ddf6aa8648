"""`torch.utils`' names: only re-exports, also for `from minigrad.utils.data import DataLoader`."""

import sys

from minigrad import checkpoint, data

sys.modules[f"{__name__}.checkpoint"], sys.modules[f"{__name__}.data"] = checkpoint, data

__all__ = ["checkpoint", "data"]
