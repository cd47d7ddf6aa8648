"""Anomaly mode: the operation, and the user's line, where a NaN first appears, in backward and if asked in forward.

    with mg.autograd.detect_anomaly():                        # backward raises at the first rule that returns a NaN
        model(x).log().sum().backward()
    with mg.autograd.detect_anomaly(check_forward=True):      # so does the first operation that makes one
        loss = model(x).log().sum()

Off, it costs one look at a context variable per backward.  After `ops/`, before `sweep.py`, which asks `watched`.
"""
from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar

from minigrad.errors import AnomalyError
from minigrad.rows import Rows
from minigrad.tensor import Node, Tensor, call_site, changed, current, line_text, site_text

WATCH: ContextVar[bool | None] = ContextVar("minigrad.anomaly", default=None)  # None: off; else: look for NaN?


class detect_anomaly(changed):
    """`with detect_anomaly():` – AnomalyError, a RuntimeError, at the first NaN; also a decorator.

    `check_nan` looks at every gradient of a backward; without it errors in backward only get the user's forward line
    added.  `check_forward` looks at what every operation returns, of what had no NaN.  Each look waits for a device."""

    def __init__(self, check_nan: bool = True, check_forward: bool = False) -> None:
        self.check_nan, self.check_forward = bool(check_nan), bool(check_forward)
        self.before: list = []
        super().__init__()

    def __enter__(self) -> None:
        watching = _made_a_nan in current().observers
        self.fields = {"observers": (*current().observers, _made_a_nan)} if self.check_forward and not watching else {}
        super().__enter__()
        self.before.append(WATCH.set(self.check_nan))

    def __exit__(self, *error) -> None:
        WATCH.reset(self.before.pop())
        super().__exit__(*error)

    def _recreate_cm(self):
        return type(self)(self.check_nan, self.check_forward)


class set_detect_anomaly(detect_anomaly):
    """On or off: from here on when called, until the end of the block in a `with`."""

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        super().__init__(check_nan)
        self.before.append(WATCH.set(self.check_nan if mode else None))
        self.tokens.append(None)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error) -> None:
        WATCH.reset(self.before.pop())


def is_anomaly_enabled() -> bool:
    return WATCH.get() is not None


# ---- backward ------------------------------------------------------------------------------------
def watched(n: Node, g, found: Iterator[tuple]) -> Iterator[tuple]:
    """The (edge, gradient) pairs of a node: each looked at; an error on the way says where the node was made."""
    check = WATCH.get()
    if check is None:
        yield from found
        return
    try:
        for k, (edge, d) in enumerate(found):
            if check and nans(d):
                raise AnomalyError(_of_backward(n, g, k, d))
            yield edge, d
    except AnomalyError:
        raise
    except Exception as error:
        error.add_note(f"in the backward of {n.op}, which ran {_where(n)}")
        raise


def _of_backward(n: Node, g, k: int, d) -> str:
    before = nans(g)
    came = f"the gradient that came to it had {before} too" if before else "the gradient that came to it had none"
    read = [f"    {name}: {_summary(value)}" for name, value in zip(n.plan.names, n.saved) if hasattr(value, "dtype")]
    return "\n".join([
        f"Function '{n.name()}' returned nan values in its {k}th output: {nans(d)} of {_size(d)}; {came}.",
        f"The operation {n.op} ran {_where(n)}",
        *["What its rule read:", f"    g: {_summary(g)}", *read],
    ])  # fmt: skip


def _where(n: Node) -> str:
    text = line_text(n.code, n.lasti)
    return f"at {n.made_at}" + (f"\n    {text}" if text else "")


# ---- forward -------------------------------------------------------------------------------------
def _made_a_nan(op, inputs: tuple, outputs: tuple) -> None:
    """Observer: raise where an operation made a NaN of inputs that had none."""
    bad = sum(nans(y) for y in outputs)
    if bad and not any(nans(x) for x in inputs):
        site = call_site(2)
        raise AnomalyError("\n".join([
            f"{op} made {bad} NaN of inputs that had none, at {site_text(*site)}",
            f"    {line_text(*site)}",
            *(f"    {op.input_name(i)}: {_summary(x)}" for i, x in enumerate(inputs)),
        ]))  # fmt: skip


# ---- looking at arrays ---------------------------------------------------------------------------
def _raw(x):
    """The raw array with the values of a Tensor, of Rows, or itself; None where there are no floats to look at."""
    x = x.array_values if x.__class__ is Rows else x.array if isinstance(x, Tensor) else x
    return x if getattr(getattr(x, "dtype", None), "kind", "") == "f" and hasattr(x, "min") else None


def nans(x) -> int:
    """How many elements are NaN."""
    array = _raw(x)
    return 0 if array is None else int((array != array).sum().item())


def _size(x) -> int:
    return _raw(x).size


def _summary(x) -> str:
    """`float32 (3, 4), -1.5 … 2.25` and how many are no finite numbers."""
    array = _raw(x)
    if array is None or not array.size:
        return f"{getattr(x, 'dtype', type(x).__name__)} {tuple(getattr(x, 'shape', ()))}"
    whole = array[array == array]
    spread = f", {whole.min().item():.4g} … {whole.max().item():.4g}" if whole.size else ""
    return f"{array.dtype} {tuple(array.shape)}{spread}" + (f", {nans(x)} NaN" if nans(x) else "")


__all__ = ["AnomalyError", "detect_anomaly", "is_anomaly_enabled", "set_detect_anomaly", "watched"]
