"""Random ops.  The draw is an input: a host key [seed, offset], so the same key draws the same numbers on every device
and replay, checkpointing and capture are right by construction.  After `index.py`."""
from __future__ import annotations

from minigrad.aval import Aval
from minigrad.ops.op import NoOnnx, Op, op
from minigrad.ops.samples import Sample

_HOST = ("key",)
_NO = NoOnnx("random")


class Drawn(Op):
    """An op that draws `shape` numbers in the dtype and on the device of `like`."""

    as_is, on_host, onnx = ("like",), _HOST, _NO

    def infer(self, like: Aval, key: Aval) -> Aval:
        return Aval(self.shape, like.dtype)


@op
class Normal(Drawn):
    """Standard normal numbers"""

    shape: tuple[int, ...]

    def forward(self, o, like, key):
        return o.normal(key, self.shape)

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of((3, 2)), ("normal()", "key()"))]


@op
class Uniform(Drawn):
    """Numbers evenly from [0, 1)"""

    shape: tuple[int, ...]

    def forward(self, o, like, key):
        return o.uniform(key, self.shape)

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of((3, 2)), ("normal()", "key()"))]


@op
class Bernoulli(Drawn):
    """Ones with probability `keep`, else zeros"""

    shape: tuple[int, ...]
    keep: float

    def forward(self, o, like, key):
        return o.bernoulli(key, self.shape, self.keep, like)

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of((3, 2), 0.5), ("normal()", "key()"))]


@op
class Dropout(Op):
    """Each element kept with probability 1 - p and scaled by 1 / (1 - p).  Saves the 16-byte key, not the mask"""

    p: float = 0.5
    on_host, onnx, functional, exact = _HOST, "Dropout", "dropout", True

    def thin(self, o, x, key):
        return x * o.bernoulli(key, x.shape, 1 - self.p, x) * o.lit(1 / (1 - self.p) if self.p < 1 else 0.0)

    def forward(self, o, x, key):
        return self.thin(o, x, key)

    def dx(self, o, g, key):
        return self.thin(o, g, key)

    def infer(self, x: Aval, key: Aval) -> Aval:
        return x

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample(cls.of(0.5), ("normal(4,5)", "key()")), Sample(cls.of(0.0), ("normal(4)", "key()"))]
