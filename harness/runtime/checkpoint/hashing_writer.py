# SPDX-License-Identifier: Apache-2.0
"""Files hashed while they are written, then flushed: the manifest records the bytes that the save meant to write."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import torch

from harness.checkpoints.manifest import FileRecord
from harness.file_io import fsync_folder


@dataclass(frozen=True)
class CheckpointFile:
    """One file of a save: its path below the checkpoint, and its bytes or an object for `torch.save`."""

    name: str
    content: object

    @property
    def bytes(self) -> int:
        """Size of the file, without what the format adds."""
        return len(self.content) if isinstance(self.content, bytes) else tensor_bytes(self.content)


class _HashingFile:
    """A file that `torch.save` can write to; it remembers the digest and the first error."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb", buffering=0)
        self._digest = hashlib.sha256()
        self._size = 0
        self.error: OSError | None = None

    def write(self, piece: bytes | memoryview) -> int:
        """Write all of it, or raise OSError. `error` keeps the error, which torch's writer hides."""
        view, offset = memoryview(piece).cast("B"), 0
        if self.error:
            raise self.error
        try:
            while offset < len(view):  # one call writes 2 GiB at most
                offset += self._file.write(view[offset:])
        except OSError as error:
            self.error = error
            raise
        self._digest.update(view)
        self._size += len(view)
        return len(view)

    def flush(self) -> None:
        """Nothing is buffered."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def to_record(self, rank: int, node: int) -> FileRecord:
        """The manifest's record of the file, after an fsync. Raises OSError."""
        os.fsync(self._file.fileno())
        return FileRecord(self._size, self._digest.hexdigest(), rank, node)


def write_files(folder: Path, files: Iterable[CheckpointFile], rank: int, node: int) -> dict[str, FileRecord]:
    """Write the files one after the other below `folder`. Returns their records by name. Raises OSError."""
    return {file.name: _write_file(folder / file.name, file.content, rank, node) for file in files}


def _write_file(path: Path, content: object, rank: int, node: int) -> FileRecord:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = _HashingFile(path)
    try:
        if isinstance(content, bytes):
            file.write(content)
        else:
            torch.save(content, cast("IO[bytes]", file))  # it calls `write` and `flush` alone
        return file.to_record(rank, node)
    except RuntimeError as error:  # torch's zip writer turns what the file raised into its own
        if file.error is not None:
            raise file.error from None
        raise OSError(None, str(error)) from error
    finally:
        file.close()


def fsync_tree(folder: Path) -> None:
    """Make the names below `folder` survive a power cut. Raises OSError."""
    for path in [*(p for p in folder.rglob("*") if p.is_dir()), folder]:
        fsync_folder(path)


def tensor_bytes(content: object) -> int:
    """Bytes of the storages of all tensors in nested maps and lists; a shared one counts once, as in `torch.save`."""
    storage_bytes: dict[tuple[str, int], int] = {}
    for tensor in iter_tensors(content):
        storage = tensor.untyped_storage()
        storage_bytes[str(tensor.device), storage.data_ptr() or id(storage)] = storage.nbytes()
    return sum(storage_bytes.values())


def iter_tensors(content: object) -> Iterable[torch.Tensor]:
    """All tensors in nested maps, lists and tuples."""
    if isinstance(content, torch.Tensor):
        yield content
    elif isinstance(content, Mapping):
        for value in content.values():
            yield from iter_tensors(value)
    elif isinstance(content, list | tuple | set):
        for value in content:
            yield from iter_tensors(value)
