"""save and load: nested dicts, lists and tuples of tensors and plain values, as one safetensors file.

The arrays are the file's tensors, under their path in the object; what holds them together is JSON in its metadata.
Nothing in a file is ever run, and other programs can read the arrays.  After `data/`.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, BinaryIO

import numpy as np

from minigrad.device import Device
from minigrad.dtype import DTYPES, as_dtype
from minigrad.errors import DTypeError
from minigrad.tensor import LEAF, Tensor

KEY, VERSION, DEEPEST = "minigrad", 1, 100  # the entry in the metadata; its form; levels of nesting
Place = str | os.PathLike | BinaryIO


class CheckpointError(ValueError, RuntimeError):
    """A file that cannot be read as a checkpoint: cut off, changed, or of another kind."""


# ---- writing -------------------------------------------------------------------------------------
def save(obj: Any, f: Place) -> None:
    """Write `obj` to a path or a binary file: dicts, lists, tuples, tensors, arrays, dtypes, texts, numbers, None.

    A tensor that is met twice is written once and is one tensor again when loaded; a view takes only its own elements
    along.  A path is written under another name and then renamed: if anything fails, the old file is untouched."""
    data = packed(obj)
    if hasattr(f, "write"):
        f.write(data)
    else:
        write_whole(os.path.realpath(f), data)


def packed(obj: Any) -> bytes:
    """The content of the file."""
    from safetensors.numpy import save as as_bytes

    packer = Packer()
    tree = packer.pack(obj, ())
    form = json.dumps({"version": VERSION, "tree": tree}, allow_nan=False)
    return as_bytes(packer.arrays, {KEY: form})


def write_whole(path: str, data: bytes) -> None:
    """Write under another name beside `path`, then rename: `path` is the old file or the new one, never half."""
    folder, name = os.path.split(path)
    beside = os.path.join(folder, f".{name}.{os.getpid()}-{time.monotonic_ns()}.tmp")
    try:
        with open(beside, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException as e:
        with suppress(OSError):
            os.unlink(beside)
        if isinstance(e, OSError):
            why = f"save: cannot write {path}: {e.strerror or e}. Nothing was changed there"
            raise type(e)(e.errno, why) from None
        raise


class Packer:
    """Takes an object apart into JSON and named arrays."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self._names: dict[int, str] = {}  # id of a raw array -> its name
        self._alive: list = []  # so that no id is used twice

    def pack(self, x: Any, path: tuple[str, ...]) -> Any:
        """`x` as JSON: plain values as they are, everything else as {kind: content}."""
        if len(path) > DEEPEST:
            raise ValueError(
                f"save: more than {DEEPEST} levels deep at {_said(path[:4])} …: does the object hold itself?"
            )
        if x is None or type(x) in (bool, int, str):
            return x
        if isinstance(x, float):
            return float(x) if math.isfinite(x) else {"float": str(float(x))}
        if isinstance(x, Tensor):
            return {"tensor": self._named(x.array, path, x), "grad": x.requires_grad}
        if isinstance(x, np.ndarray):
            return {"array": self._named(x, path)}
        if isinstance(x, np.dtype):
            return {"dtype": as_dtype(x).name}
        if isinstance(x, Mapping):
            return {"dict": [[self.pack(k, path), self.pack(v, (*path, str(k)))] for k, v in x.items()]}
        if type(x) in (list, tuple):
            return {type(x).__name__: [self.pack(v, (*path, str(i))) for i, v in enumerate(x)]}
        hint = ". Save its state_dict()" if hasattr(x, "state_dict") else ""
        hint = ". Convert it: x.item()" if isinstance(x, np.generic) else hint
        raise TypeError(f"save: {_said(path)} is a {type(x).__name__}, which has no place in a file without code{hint}")

    def _named(self, array: Any, path: tuple[str, ...], tensor: Tensor | None = None) -> str:
        """The name under which an array is in the file."""
        name = self._names.get(id(array))
        if name is None:
            name = ".".join(path) or "tensor"
            while name in self.arrays or name == "__metadata__":
                name += "_"
            host = array if tensor is None else tensor.o.host(array) if tensor.o.eager else _no_values(path)
            as_dtype(host.dtype)
            self.arrays[name] = host if host.flags.c_contiguous else host.copy(order="C")
            self._names[id(array)] = name
            self._alive.append(array)
        return name


def _said(path: tuple[str, ...]) -> str:
    return "obj" + "".join(f"[{p!r}]" for p in path)


def _no_values(path: tuple[str, ...]) -> np.ndarray:
    raise RuntimeError(f"save: {_said(path)} is on meta and has no values")


# ---- reading -------------------------------------------------------------------------------------
def load(f: Place, map_location: str | Device | None = None, *, weights_only: bool = True) -> Any:
    """What `save` wrote, from a path or a binary file, on the host or on `map_location`.

    `weights_only` is PyTorch's word and changes nothing: there is no other kind of file here.
    A safetensors file of another program gives {name: Tensor}.  Raises CheckpointError for a file that is cut off,
    changed or of another kind; nothing in it is run, and no more memory is taken than the file is long."""
    where = str(getattr(f, "name", type(f).__name__)) if hasattr(f, "read") else os.fspath(f)
    data = f.read() if hasattr(f, "read") else read_whole(f)
    try:
        arrays, metadata = parsed(data)
        if KEY not in metadata:
            return {name: _placed(Tensor(array), map_location) for name, array in arrays.items()}
        form = json.loads(metadata[KEY], parse_constant=_refused)
        if not isinstance(form, dict) or repr(form.get("version")) != repr(VERSION):
            raise CheckpointError(f"its form is {str(form)[:40]!r}, this minigrad reads version {VERSION}")
        return Unpacker(arrays, map_location).unpack(form["tree"])
    except (KeyError, IndexError, TypeError, ValueError, RecursionError, UnicodeDecodeError) as e:
        said = f"no {e}" if isinstance(e, KeyError) else str(e) or type(e).__name__
        raise CheckpointError(
            f"load: {where} ({len(data):,} bytes) cannot be read as a checkpoint: {said}. "
            "Copy it again, or take an earlier one"
        ) from None


def read_whole(path: str | os.PathLike) -> bytes:
    with open(path, "rb") as file:
        return file.read()


FILE_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
}


def parsed(data: bytes) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """(arrays, metadata) of a safetensors file; the library checks lengths, offsets and names."""
    from safetensors import SafetensorError, deserialize

    try:
        found = deserialize(data)
    except SafetensorError as e:
        raise CheckpointError(str(e)) from None
    length = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8 : 8 + length], parse_constant=_refused).get("__metadata__", {})
    return {name: _array(name, entry) for name, entry in found}, metadata


def _array(name: str, entry: dict) -> np.ndarray:
    if entry["dtype"] not in FILE_DTYPES:
        raise DTypeError(f"{name!r} has the dtype {entry['dtype']}, which is not supported")
    dtype = FILE_DTYPES[entry["dtype"]]
    if dtype == "bfloat16":
        from minigrad.dtype import bfloat16

        return np.frombuffer(bytearray(entry["data"]), bfloat16).reshape(entry["shape"])
    if dtype == "bool":  # a byte that is neither 0 nor 1 would not be a truth value
        return np.frombuffer(bytearray(entry["data"]), np.uint8).reshape(entry["shape"]) != 0
    return np.frombuffer(bytearray(entry["data"]), DTYPES[dtype]).reshape(entry["shape"])


def _refused(text: str) -> float:
    raise CheckpointError(f"{text} is not JSON")


def _placed(t: Tensor, where: str | Device | None) -> Tensor:
    return t if where is None else t.to(device=where)


class Unpacker:
    """Puts an object together again."""

    def __init__(self, arrays: dict[str, np.ndarray], where: str | Device | None) -> None:
        self.arrays, self.where = arrays, where
        self._made: dict[tuple, Tensor] = {}

    def unpack(self, x: Any) -> Any:
        if x is None or isinstance(x, bool | int | float | str):
            return x
        if not isinstance(x, dict) or not x:
            raise CheckpointError(f"{str(x)[:40]!r} stands where a value is expected")
        kind, content = next(iter(x.items()))
        unpack = self._KINDS.get(kind)
        if unpack is None:
            raise CheckpointError(f"it holds a value of the unknown kind {kind[:40]!r}")
        return unpack(self, content, x)

    def _dict(self, content: list, _: dict) -> dict:
        return {self.unpack(key): self.unpack(value) for key, value in content}

    def _tensor(self, name: str, x: dict) -> Tensor:
        key = name, bool(x.get("grad"))
        if key not in self._made:
            t = self._made[key] = _placed(Tensor(self.arrays[name]), self.where)
            if key[1]:
                if not t.is_floating_point():
                    raise CheckpointError(f"{name!r} is a {t.dtype} tensor and cannot require a gradient")
                t.node = LEAF
        return self._made[key]

    def _dtype(self, name: str, _: dict) -> np.dtype:
        return as_dtype(str(name))

    def _float(self, text: str, _: dict) -> float:
        if text not in ("nan", "inf", "-inf"):
            raise CheckpointError(f"{str(text)[:40]!r} is not a number")
        return float(text)

    _KINDS = {
        "dict": _dict,
        "tensor": _tensor,
        "dtype": _dtype,
        "float": _float,
        "list": lambda self, content, _: [self.unpack(v) for v in _listed(content)],
        "tuple": lambda self, content, _: tuple([self.unpack(v) for v in _listed(content)]),
        "array": lambda self, name, _: self.arrays[name],
    }


def _listed(content: Any) -> list:
    if not isinstance(content, list):
        raise CheckpointError(f"a list is written as {str(content)[:40]!r}")
    return content


__all__ = ["CheckpointError", "load", "save"]
