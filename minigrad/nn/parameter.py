"""Parameter: the tensors that a Module owns and an optimiser changes.  `module.py` comes next."""

from __future__ import annotations

from minigrad.create import check_differentiable
from minigrad.tensor import LEAF, Tensor


class Parameter(Tensor):
    """A leaf tensor that counts as a parameter of the Module it is assigned to.  It shares the memory of `data`."""

    def __init__(self, data: Tensor, requires_grad: bool = True) -> None:
        if not isinstance(data, Tensor):
            raise TypeError(
                f"Parameter: expected a Tensor, got {type(data).__name__}. Make it one first: mg.tensor(...)"
            )
        super().__init__(data.array)
        if requires_grad:
            check_differentiable(self.dtype)
            self.node = LEAF

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"
