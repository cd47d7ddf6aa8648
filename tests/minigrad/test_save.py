"""Files: what is saved comes back equal, a failure leaves the old file, any bytes raise one error at most."""

import io
import json
import math
import os
import tracemalloc

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings, strategies as st

import minigrad as mg
from minigrad.save import CheckpointError

FEW = settings(max_examples=60, deadline=None)
DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]


def round_trip(obj):
    file = io.BytesIO()
    mg.save(obj, file)
    file.seek(0)
    return mg.load(file)


def same(a, b):
    """Equal in kind and value, tensors and NaN included."""
    if isinstance(a, mg.Tensor) and isinstance(b, mg.Tensor):
        assert (a.dtype, a.shape, a.requires_grad) == (b.dtype, b.shape, b.requires_grad)
        np.testing.assert_array_equal(a.detach().numpy(), b.detach().numpy())
        return
    assert type(a) is type(b), (a, b)
    if isinstance(a, np.ndarray):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype and a.shape == b.shape
    elif isinstance(a, dict):
        assert list(a) == list(b)
        [same(a[k], b[k]) for k in a]
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        [same(x, y) for x, y in zip(a, b)]
    else:
        assert a == b or (a != a and b != b), (a, b)


# ---- round trips ---------------------------------------------------------------------------------


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    host = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 9, shape)
    x = mg.tensor(host.astype(draw(st.sampled_from(DTYPES))))
    if len(shape) > 1 and draw(st.booleans()):
        x = draw(st.sampled_from([lambda t: t.transpose(0, 1), lambda t: t[::2], lambda t: t[:, 1:]]))(x)
    return x.detach().requires_grad_() if x.is_floating_point() and draw(st.booleans()) else x


KEYS = st.text(max_size=4) | st.integers() | st.booleans() | st.none() | st.floats(allow_nan=False)
PLAIN = KEYS | st.floats() | st.sampled_from([mg.float16, mg.int64, mg.bool_]) | tensors()
TREES = st.recursive(
    PLAIN,
    lambda t: st.lists(t, max_size=3) | st.lists(t, max_size=3).map(tuple) | st.dictionaries(KEYS, t, max_size=3),
    max_leaves=8,
)


@FEW
@given(TREES)
def test_a_round_trip_is_the_identity(obj):
    same(round_trip(obj), obj)


def test_special_values():
    obj = [math.inf, -math.inf, math.nan, -0.0, 1e-320, 2**70, "\0\ud7ff", np.arange(3, dtype="i2"), np.float64(2.5)]
    got = round_trip(obj)
    same(got[:-1], obj[:-1])
    assert got[-1] == 2.5 and math.copysign(1, got[3]) == -1


def test_tied_tensors_are_stored_once_and_stay_tied():
    w = mg.ones(100, 100)
    file = io.BytesIO()
    mg.save({"a": w, "b": [w], "c": w.detach()}, file)
    assert len(file.getvalue()) < 42_000
    file.seek(0)
    got = mg.load(file)
    assert got["a"] is got["b"][0]
    got["a"][0, 0] = 5
    assert got["c"][0, 0].item() == 5


def test_a_view_takes_only_its_own_elements_along():
    file = io.BytesIO()
    mg.save(mg.zeros(1000, 1000)[:2, ::500], file)
    assert len(file.getvalue()) < 1000


def test_other_devices_are_saved_from_and_loaded_to(tmp_path):
    mg.save(mg.ones(3).to("sim:0"), tmp_path / "x")
    assert mg.load(tmp_path / "x").device.type == "cpu"
    assert mg.load(tmp_path / "x", map_location="sim:1").device.index == 1


def test_plain_safetensors_files_go_both_ways(tmp_path):
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.array(True), "__metadata": np.zeros((0, 2), "f2")}
    safetensors.numpy.save_file(arrays, tmp_path / "theirs", {"format": "np"})
    got = mg.load(tmp_path / "theirs")
    same({k: got[k].numpy() for k in arrays}, arrays)
    mg.save({"layer.weight": mg.ones(2), "n": {"x": mg.zeros(1)}}, tmp_path / "ours")
    assert set(safetensors.numpy.load_file(tmp_path / "ours")) == {"layer.weight", "n.x"}


# ---- writing -------------------------------------------------------------------------------------


class Code:
    """What a file cannot hold."""


@pytest.mark.parametrize("value, words", [
    (Code(), "Code"), ({1, 2}, "set"), (lambda: 0, "function"), (mg.nn.Linear(1, 1), "state_dict"), (3j, "complex"),
    (b"bytes", "bytes"), (np.array(["a"]), "dtype"), (mg.zeros(1, device="meta"), "meta"),
])  # fmt: skip
def test_what_has_no_place_is_named_with_its_path(value, words):
    with pytest.raises((TypeError, RuntimeError), match=words) as caught:
        mg.save({"m": [0, value]}, io.BytesIO())
    assert "obj['m']['1']" in str(caught.value) or words == "dtype"


def test_an_object_that_holds_itself_is_refused():
    loop: list = []
    loop.append(loop)
    with pytest.raises(ValueError, match="hold itself"):
        mg.save(loop, io.BytesIO())


@pytest.mark.parametrize("moment", ["replace", "fsync"])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, moment):
    path = tmp_path / "model"
    mg.save({"x": mg.ones(2)}, path)

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, moment, full)
    with pytest.raises(OSError, match="No space"):
        mg.save({"x": mg.zeros(2)}, path)
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    assert mg.load(path)["x"].tolist() == [1, 1]
    with pytest.raises(TypeError):
        mg.save({"x": Code()}, path)
    assert mg.load(path)["x"].tolist() == [1, 1]


def test_a_saved_file_has_the_usual_permissions(tmp_path):
    mg.save(1, tmp_path / "a")
    (tmp_path / "b").write_bytes(b"")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


# ---- hostile bytes -------------------------------------------------------------------------------


def saved(obj):
    file = io.BytesIO()
    mg.save(obj, file)
    return file.getvalue()


GOOD = saved({"w": mg.arange(4.0), "n": [1, (2.5, None)]})


def refuses(data):
    with pytest.raises(CheckpointError, match="cannot be read as a checkpoint"):
        mg.load(io.BytesIO(data))


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 50, len(GOOD) - 1])
def test_a_truncated_file_is_refused(length):
    refuses(GOOD[:length])


def file_of(header, body=b"\0" * 16):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def tree(tree, version=1):
    form = tree if isinstance(tree, str) else json.dumps({"version": version, "tree": tree})
    entry = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
    return file_of({"w": entry, "__metadata__": {"minigrad": form}})


F4 = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
HOSTILE = {
    "a huge header": (1 << 62).to_bytes(8, "little") + b"{}",
    "a header longer than the file": (90_000_000).to_bytes(8, "little") + b"{}",
    "no JSON": file_of(b"{]"),
    "not UTF-8": file_of(b'{"\xff\xfe": 1}'),
    "pickle": b"\x80\x04cos\nsystem\n(S'true'\ntR.",
    "zip": b"PK\x03\x04" + bytes(60),
    "overlapping": file_of({"a": F4, "b": {**F4, "data_offsets": [8, 24]}}, bytes(24)),
    "a hole": file_of({"a": {**F4, "data_offsets": [8, 24]}}, bytes(24)),
    "too many bytes": file_of({"a": F4}, bytes(20)),
    "beyond the end": file_of({"a": {**F4, "shape": [400], "data_offsets": [0, 1600]}}),
    "a wrong size": file_of({"a": {**F4, "shape": [5]}}),
    "an enormous shape": file_of({"a": {**F4, "shape": [1 << 40, 1 << 40]}}),
    "a negative shape": file_of({"a": {**F4, "shape": [-4]}}),
    "an unknown dtype": file_of({"a": {**F4, "dtype": "F33"}}),
    "an unsupported dtype": file_of({"a": {**F4, "dtype": "F8_E4M3", "shape": [16]}}),
    "metadata that is no text": file_of({"a": F4, "__metadata__": {"minigrad": 3}}),
    "NaN in JSON": tree('{"version": 1, "tree": NaN}'),
    "another version": tree(1, version=2),
    "no tree": tree('{"version": 1}'),
    "a bare list": tree("[1]"),
    "an unknown kind": tree({"code": "os.system"}),
    "an array where none is": tree({"tensor": "../../etc/passwd", "grad": False}),
    "a list as a name": tree({"tensor": ["w"], "grad": False}),
    "an unhashable key": tree({"dict": [[{"list": []}, 1]]}),
    "a pair of three": tree({"dict": [[1, 2, 3]]}),
    "a number as a list": tree({"list": 3}),
    "a float of words": tree({"float": "__import__('os')"}),
    "a dtype of words": tree({"dtype": "object"}),
    "an empty node": tree({}),
    "deep nesting": tree('{"version": 1, "tree": ' + '{"list": [' * 50_000 + "]}" * 50_000 + "}"),
    "a huge number": tree('{"version": 1, "tree": ' + "9" * 100_000 + "}"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_files_give_one_clear_error(what):
    tracemalloc.start()
    refuses(HOSTILE[what])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50 * len(HOSTILE[what]) + 2_000_000


@FEW
@given(
    st.binary(max_size=200)
    | st.builds(lambda i, b: GOOD[:i] + bytes([b]) + GOOD[i + 1 :], st.integers(0, len(GOOD) - 1), st.integers(0, 255))
)
def test_any_bytes_load_or_raise_that_error(data):
    try:
        mg.load(io.BytesIO(data))
    except CheckpointError:
        pass


def test_a_missing_file_is_pythons_own_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        mg.load(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError):
        mg.save(1, tmp_path / "no" / "folder")
