"""The op contract, generated: every law on every sample of every op in the catalogue."""
import zlib

import pytest

import minigrad as mg
from minigrad.check import LAWS, Trial
from minigrad.ops import CATALOGUE, NoOnnx

CASES = [(sample, law) for cls in CATALOGUE for sample in cls.samples() for law in LAWS if law not in sample.skip]


@pytest.mark.parametrize("sample, law", CASES, ids=[f"{law}: {sample}" for sample, law in CASES])
def test_law(sample, law):
    LAWS[law](Trial(sample, seed=zlib.crc32(str(sample).encode())))


@pytest.mark.parametrize("cls", CATALOGUE, ids=lambda c: c.__name__)
def test_an_op_says_everything(cls):
    assert cls.__doc__ and cls.samples()
    assert isinstance(cls.onnx, str) or (isinstance(cls.onnx, NoOnnx) and cls.onnx.reason != "not said")
    assert cls.precision in ("low", "high", "follow")


def test_the_catalogue_is_exported():
    for cls in CATALOGUE:
        if cls.functional and cls.functional not in ("dropout", "pad", "conv2d", "max_pool2d"):
            assert callable(getattr(mg, cls.functional))
