"""Transfer: the same values on another device, there and, for gradients, back."""
from __future__ import annotations

from minigrad.aval import Aval
from minigrad.device import CPU, Device, backend_of
from minigrad.ops.op import NoOnnx, Op, op
from minigrad.ops.samples import Sample
from minigrad.tensor import Tensor, apply


@op
class Transfer(Op):
    """The same values on another device"""

    source: Device
    target: Device
    as_is, onnx, flat = ("x",), NoOnnx("no devices in ONNX"), False

    def forward(self, o, x):
        return self.move(x, self.source, self.target)

    def dx(self, o, g):
        return self.move(g, self.target, self.source)

    def move(self, x, source: Device, target: Device):
        if isinstance(x, Tensor):
            return apply(Transfer.of(source, target), x)
        return backend_of(target).put(target.index, backend_of(source).get(x))

    def infer(self, x: Aval) -> Aval:
        return Aval(x.shape, x.dtype)

    def flops(self, y: Aval, x: Aval) -> int:
        return 0

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of(CPU, CPU), ("normal(3,4)",), skip=("sim", "meta"))]
