# SPDX-License-Identifier: Apache-2.0
"""torch files read without running code from them: tensors, plain values and the few classes that DeepSpeed writes.

`load_file` refuses a file with code in it and leaves other errors to its caller. `load_shard` memory-maps a shard of
DeepSpeed's and refuses any other file.
"""

from __future__ import annotations

import os
import pickle
import re
import zipfile
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from torch.serialization import MAP_LOCATION

from harness.checkpoints.foreign.folder_files import leaves_folder
from harness.errors import UserError, user_error
from harness.file_io import open_regular
from harness.patches.torch_safe_globals import allow_deepspeed_globals
from harness.runtime.checkpoint.snapshot import available_host_bytes
from harness.units import format_bytes

_ALLOCATING_CALLS = re.compile(rb"\n(?:bytearray|encode)\n")
"""Names in a pickle of what torch's safe loader lets a file call and no save writes: a few bytes fill any memory."""
_MAX_PICKLE_BYTES = 1 << 28
"""Of what a file holds besides tensors; a shard of 100,000 parameters has some ten million."""


def load_file(file: Path, *, map_location: MAP_LOCATION = "cpu", mmap: bool = False) -> Any:
    """The content of one file. Raises UserError (CK111) for a file that would run code."""
    try:
        return _load(file, map_location=map_location, mmap=mmap)
    except pickle.UnpicklingError as error:
        raise unsafe_file_error(file, find_unsafe_globals(file) or [str(error).splitlines()[0]]) from None


def load_shard(file: Path) -> dict[str, Any]:
    """The content of a shard, memory-mapped. Raises UserError (CK120) for a file that DeepSpeed does not write."""
    try:
        shard: dict[str, Any] = _load(file, map_location="cpu", mmap=True)
    except (OSError, UserError):
        raise
    except Exception as error:  # torch raises RuntimeError, UnpicklingError, ValueError and EOFError here
        raise _damaged_file_error(file, (str(error).strip() or type(error).__name__).splitlines()[0][:200]) from None
    if not isinstance(shard, dict):
        raise _damaged_file_error(file, f"it holds a {type(shard).__name__} and no map")
    return shard


def load_param(file: Path) -> torch.Tensor:
    """The tensor in a file of the universal layout, memory-mapped. Raises UserError (CK120) for another file."""
    content = load_shard(file)
    tensor = content.get("param")
    if set(content) != {"param"} or not torch.is_tensor(tensor) or tensor.is_complex():
        raise _damaged_file_error(file, "it holds more than one tensor, or none")
    return tensor


def find_unsafe_globals(file: Path) -> list[str]:
    """Names of classes and functions in a file that no shard needs. Runs nothing. Raises UserError (CK120)."""
    check_sizes(file)
    with allow_deepspeed_globals():
        try:
            return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(file))
        except Exception as error:  # whatever a hostile or broken file provokes in the scanner
            return [f"something that cannot be inspected ({type(error).__name__})"]


def check_sizes(file: Path) -> None:
    """Check that no entry of the zip archive that a torch file is unpacks to more than it takes in the file, before
    memory is taken. Raises UserError (CK120), and OSError.
    """
    if leaves_folder(file):
        raise _damaged_file_error(file, f"it is a link to another folder, `{os.path.realpath(file)}`: copy the file")
    try:
        with open_regular(Path(os.path.realpath(file)), follow=False) as stream, zipfile.ZipFile(stream) as archive:
            entries = archive.infolist()
            calls = [_ALLOCATING_CALLS.search(_read_pickle(archive, e)) for e in entries if _is_pickle(e)]
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        raise _damaged_file_error(file, "it does not have the format of `torch.save`") from None
    size = file.stat().st_size
    packed = [e.filename for e in entries if e.compress_type != zipfile.ZIP_STORED or e.file_size != e.compress_size]
    if packed:
        raise _damaged_file_error(file, f"its entry `{packed[0][:80]}` is compressed, which `torch.save` never does")
    if sum(entry.file_size for entry in entries) > size:
        raise _damaged_file_error(file, f"its entries claim more than its {size:,} bytes")
    if max((e.file_size for e in entries if _is_pickle(e)), default=0) > _MAX_PICKLE_BYTES:
        raise _damaged_file_error(file, f"it holds more than {_MAX_PICKLE_BYTES >> 20} MiB besides tensors")
    call = next((found for found in calls if found is not None), None)
    if call is not None:
        name = call[0].strip().decode(errors="replace")
        raise _damaged_file_error(file, f"it has a `{name}`, which may take any memory and which no shard needs")


def _is_pickle(entry: zipfile.ZipInfo) -> bool:
    return entry.filename.endswith(".pkl")


def _read_pickle(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """The bytes as they are in the file; none where they are too many to be read."""
    with archive.open(entry) as content:
        return content.read(_MAX_PICKLE_BYTES) if entry.compress_type == zipfile.ZIP_STORED else b""


def _damaged_file_error(file: Path, reason: str) -> UserError:
    return user_error(
        "CK120", f"`{file}` cannot be read as a shard of a checkpoint", notes=(reason,), fix="name another checkpoint"
    )


def unsafe_file_error(file: Path, names: list[str]) -> UserError:
    """The refusal of a file that would run code."""
    return user_error(
        "CK111",
        f"`{file}` holds {', '.join(f'`{name}`' for name in names[:3])}, which no shard needs",
        notes=("reading it would run code from the file; nothing of it was run",),
        fix="name a checkpoint from a source that you trust",
    )


def _load(file: Path, *, map_location: MAP_LOCATION, mmap: bool) -> Any:
    check_sizes(file)
    if not mmap:
        _check_room(file)
    with allow_deepspeed_globals():
        content = torch.serialization.load(file, map_location=map_location, mmap=mmap, weights_only=True)
    size = file.stat().st_size
    for tensor in _tensors_in(content):
        if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized or tensor.is_nested:
            raise _damaged_file_error(file, f"it has a tensor of the layout {tensor.layout} on {tensor.device}")
        if tensor.numel() * tensor.element_size() > size:  # with a stride of 0, a few bytes are any number of elements
            raise _damaged_file_error(file, f"it has a tensor of {tensor.numel():,} elements in {format_bytes(size)}")
    return content


def _check_room(file: Path) -> None:
    """A sparse file of any size costs its owner nothing. Raises UserError (CK120)."""
    size, free = file.stat().st_size, available_host_bytes()
    if free is not None and size > free:
        raise _damaged_file_error(file, f"it has {format_bytes(size)}, and this host {format_bytes(free)} of memory")


def _tensors_in(content: Any) -> Iterator[torch.Tensor]:
    """Every tensor in nested containers and objects, each once: a pickle can hold itself, or one part many times."""
    waiting, seen = [content], set[int]()
    while waiting:
        value = waiting.pop()
        if isinstance(value, torch.Tensor):
            yield value
        elif not isinstance(value, str | bytes | int | float | NoneType) and id(value) not in seen:
            seen.add(id(value))
            waiting += [*value.keys(), *value.values()] if isinstance(value, dict) else ()
            waiting += value if isinstance(value, list | tuple | set) else ()
            waiting += vars(value).values() if hasattr(value, "__dict__") and not isinstance(value, Enum) else ()
