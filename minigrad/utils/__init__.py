"""`torch.utils`' names: only re-exports."""

from minigrad import data

__all__ = ["data"]
