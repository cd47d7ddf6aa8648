"""`torch.nn.utils`' names: only re-exports."""

from minigrad.nn.clip import clip_grad_norm_, clip_grad_value_

__all__ = ["clip_grad_norm_", "clip_grad_value_"]
