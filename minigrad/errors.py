"""The errors this package raises beside Python's own.

Each names the operation, the offending values and the way out.  They derive from the two classes a user may
expect: Python's (`ValueError` wrong value, `TypeError` wrong kind) and `RuntimeError`, which PyTorch raises.
"""


class ShapeError(ValueError, RuntimeError):
    """Shapes that do not fit the operation."""


class DTypeError(TypeError, RuntimeError):
    """Dtypes that do not fit the operation."""


class ArgumentError(ValueError, RuntimeError):
    """An argument of a value that the operation does not take."""


class PlaceError(IndexError, RuntimeError):
    """An axis or an index outside the tensor."""


class DeviceMismatch(ValueError, RuntimeError):
    """Arrays of two devices, or of a device and the host, in one operation."""


class ImplicitTransfer(TypeError):
    """A device array where a host value is needed: the copy has to be asked for."""


class GraphError(RuntimeError):
    """Backward at a wrong moment: no graph, a graph already freed, or a saved value changed since."""


class SimOutOfMemory(MemoryError):
    """A simulated device's limit would be exceeded; its account is as it was before."""


class BudgetError(ValueError, RuntimeError):
    """A budget of memory with which the work cannot be done; `least` is what would do, in bytes."""

    def __init__(self, message: str, least: int) -> None:
        super().__init__(message)
        self.least = least


class OffloadError(OSError, RuntimeError):
    """A saved array could not be put elsewhere, or brought back."""


class AnomalyError(ArithmeticError, RuntimeError):
    """A NaN where anomaly mode looked for one."""


class HookError(TypeError, ValueError, RuntimeError):
    """A hook that returned what is no gradient."""
