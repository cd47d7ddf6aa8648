"""Mixed precision, under `torch.amp`'s names.  The files, in reading order: README.md in this folder."""

from minigrad.amp.scaler import GradScaler
