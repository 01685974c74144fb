# SPDX-License-Identifier: Apache-2.0
"""The outline of a `torch.save` file: plain values, and of each tensor its format and shape. Needs no torch.

No name that a file holds is ever imported: each stands for a class made on the spot, so that nothing of the file runs.
"""

from __future__ import annotations

import math
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from harness.file_io import open_regular

_MAX_BYTES = 1 << 26
"""Of what a file holds besides tensors; a shard of 100,000 parameters has some ten million."""
CUT_OFF = "cut off"
_FORMATS = {
    "BFloat16Storage": "bf16",
    "HalfStorage": "fp16",
    "FloatStorage": "fp32",
    "DoubleStorage": "fp64",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}


class OutlineError(ValueError):
    """A file that has no outline, with the reason."""


class Named:
    """An object or a call of the file, by the dotted name of its class or function."""

    name = ""
    args: tuple[Any, ...] = ()
    state: Any = None
    """The state that the file gives it: plain values, and objects such as this."""

    def __new__(cls, *args: Any, **_: Any) -> Named:
        """An object without its state, whose class nobody imports."""
        made = object.__new__(cls)
        made.args = args
        return made

    @property
    def member(self) -> Any:
        """Of a member of an enumeration its value; its name as Python 3.11.0 to 3.11.3 write it, in lower case."""
        if self.name.endswith(".getattr") and len(self.args) == 2:
            return str(self.args[1]).lower()
        return self.args[0] if self.args else None

    def __setstate__(self, state: Any) -> None:
        """Keep the state, whatever its class would do with it."""
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        """Items of a class of the file are left out."""

    def append(self, item: Any) -> None:
        """Items of a class of the file are left out."""

    extend = append


class Map(dict[Any, Any]):
    """A map of the file. What its class is called with, such as a default, is left out."""

    def __init__(self, *_: Any) -> None:
        super().__init__()


class Tensor(NamedTuple):
    """A tensor of the file: `format` as in a run spec (`bf16`), its shape, and where its bytes are."""

    format: str
    shape: tuple[int, ...]
    key: str = ""

    @property
    def numel(self) -> int:
        """Elements."""
        return math.prod(self.shape)


class _Storage(NamedTuple):
    format: str
    key: str


class _Reader(pickle._Unpickler):  # in Python: that in C takes memory by an index that the file names
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in (("collections", "OrderedDict"), ("collections", "defaultdict")):
            return type("Map", (Map,), {})
        if (module, name) == ("torch", "Size"):
            return tuple
        return type(f"{module}.{name}"[:200], (Named,), {"name": f"{module}.{name}"})

    def persistent_load(self, pid: Any) -> Any:
        kind = pid[1] if isinstance(pid, tuple) and len(pid) > 1 else None  # ("storage", class, key, device, elements)
        name = getattr(kind, "name", "").rpartition(".")[2]
        return _Storage(_FORMATS.get(name, name or "unknown"), str(pid[2]) if kind and len(pid) > 2 else "")


def read_outline(file: Path) -> Any:
    """The content of a file with a `Tensor` for each tensor. Raises OutlineError, and OSError."""
    try:
        with open_regular(file, follow=True) as stream:
            is_cut = stream.read(2) == b"PK"  # where it has no end; torch before 1.6 wrote no archive
            archive = zipfile.ZipFile(stream)
            entry = next((each for each in archive.infolist() if each.filename.endswith("/data.pkl")), None)
            if entry is None or entry.compress_type != zipfile.ZIP_STORED or entry.file_size > _MAX_BYTES:
                raise OutlineError("not a file of `torch.save`")
            with archive.open(entry) as content:
                return _with_tensors(_Reader(content).load())
    except zipfile.BadZipFile:
        raise OutlineError(CUT_OFF if is_cut else "not a file of `torch.save`") from None
    except (OSError, OutlineError):
        raise
    except Exception as error:  # whatever a hostile or broken pickle provokes
        raise OutlineError(f"unreadable ({type(error).__name__})") from None


def read_bytes(file: Path, tensor: Tensor, most: int, width: int = 1) -> bytes:
    """The bytes of a small tensor that has its storage for itself, `width` an element. Raises OutlineError where they
    are others than its shape says or more than `most`, and OSError."""
    with open_regular(file, follow=True) as stream, zipfile.ZipFile(stream) as archive:
        entry = next((each for each in archive.infolist() if each.filename.endswith(f"/data/{tensor.key}")), None)
        if (
            entry is None
            or entry.compress_type != zipfile.ZIP_STORED
            or not entry.file_size == width * tensor.numel <= most
        ):
            raise OutlineError("its bytes are not those of its shape")
        return archive.read(entry)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor below a value of an outline."""
    stack, seen = [value], set[int]()
    while stack:
        item = stack.pop()
        if isinstance(item, Tensor):
            yield item
        elif id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Tensor):
            continue
        if isinstance(item, dict):
            stack += item.values()
        elif isinstance(item, list | tuple):
            stack += item


def _with_tensors(root: Any) -> Any:
    """The same with a `Tensor` in the place of each call that rebuilds one; each container is looked at once."""
    seen: dict[int, Any] = {}

    def convert(value: Any, depth: int = 0) -> Any:
        if isinstance(value, Named):
            return _tensor_of(value, depth, convert)
        if depth > 50 or not isinstance(value, dict | list | tuple):
            return value
        if id(value) not in seen:
            seen[id(value)] = value  # of a value inside itself
            if isinstance(value, dict):
                seen[id(value)] = {key: convert(each, depth + 1) for key, each in value.items()}
            elif not isinstance(value, Tensor | _Storage):
                seen[id(value)] = [convert(each, depth + 1) for each in value]
        return seen[id(value)]

    return convert(root)


def _tensor_of(call: Named, depth: int, convert: Any) -> Any:
    name = type(call).name
    if name.endswith("._rebuild_parameter") and call.args:
        return convert(call.args[0], depth + 1)
    if name.endswith(("._rebuild_tensor_v2", "._rebuild_tensor")) and len(call.args) > 2:
        storage, shape = call.args[0], call.args[2]
        is_shape = isinstance(shape, tuple) and all(isinstance(size, int) and size >= 0 for size in shape)
        if isinstance(storage, _Storage) and is_shape:
            return Tensor(storage.format, shape, storage.key)
    return call
