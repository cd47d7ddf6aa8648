"""The op contract, generated: every law on every sample of every op in the catalogue."""

import zlib

import pytest

import minigrad as mg
from minigrad.laws import LAWS, Trial
from minigrad.ops import CATALOGUE, NoOnnx

SAMPLES = [sample for cls in CATALOGUE for sample in cls.samples()]


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_every_law(sample):
    """One test a sample; what fails is named by its law: `reference`, `infer`, `gradient`, `second`, `sim` …"""
    trial, broken = Trial(sample, seed=zlib.crc32(str(sample).encode())), {}
    for name, law in LAWS.items():
        if name not in sample.skip:
            try:
                law(trial)
            except Exception as e:
                broken[name] = e
    if broken:
        lines = [f"{name}: {type(e).__name__}: {e}" for name, e in broken.items()]
        raise AssertionError("\n".join([str(sample), *lines])) from next(iter(broken.values()))


@pytest.mark.parametrize("cls", CATALOGUE, ids=lambda c: c.__name__)
def test_an_op_says_everything(cls):
    assert cls.__doc__ and cls.samples()
    assert isinstance(cls.onnx, str) or (isinstance(cls.onnx, NoOnnx) and cls.onnx.reason != "not said")
    assert cls.precision in ("low", "high", "follow")


def test_the_catalogue_is_exported():
    missing = [cls.functional for cls in CATALOGUE if cls.functional
               and not hasattr(mg, cls.functional) and not hasattr(mg.nn.functional, cls.functional)]
    assert not missing
