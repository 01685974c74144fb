# SPDX-License-Identifier: Apache-2.0
"""Arrays on disk that grow by appends and are memory-mapped afterwards. Never a whole corpus in memory."""

from __future__ import annotations

import hashlib
import mmap
import os
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
from numpy.typing import DTypeLike

from harness.file_io import open_regular


class AppendArray:
    """A one-dimensional .npy file, written from start to end. `sha256` is of the elements' bytes."""

    def __init__(self, path: Path, dtype: DTypeLike) -> None:
        self.path, self.dtype, self.count = path, np.dtype(dtype), 0
        self._file = path.open("wb")
        self._digest = hashlib.sha256()
        self._write_header()

    def append(self, values: np.ndarray) -> None:
        """Add elements of this type."""
        body = np.ascontiguousarray(values, dtype=self.dtype).tobytes()
        self._file.write(body)
        self._digest.update(body)
        self.count += len(values)

    @property
    def sha256(self) -> str:
        """Of the elements so far."""
        return self._digest.hexdigest()

    def close(self) -> None:
        """Write the length into the header and close; `open_mapped` works from here on."""
        if not self._file.closed:
            self._file.seek(0)
            self._write_header()
            self._file.close()

    def open_mapped(self) -> np.ndarray:
        """The elements, memory-mapped."""
        self.close()
        return map_array(self.path)

    def _write_header(self) -> None:
        """numpy pads the header for a growing first axis, so that its size stays the same."""
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.count,)}
        np.lib.format.write_array_header_1_0(self._file, header)

    def __enter__(self) -> AppendArray:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()


def map_array(path: Path) -> np.ndarray:
    """Map a .npy file; an empty one cannot be mapped and is not. Raises OSError, and ValueError for a file that
    `AppendArray` did not write: its header must agree with its size, and it holds plain numbers.
    """
    with open_regular(path) as file:
        shape, _, dtype = _read_header(file)
        start, size = file.tell(), os.fstat(file.fileno()).st_size
        if len(shape) != 1 or dtype.hasobject or shape[0] * dtype.itemsize != size - start:
            raise ValueError(f"`{path}` is no array of this cache: {shape} of {dtype} in {size:,} bytes")
        return np.memmap(file, dtype, "r", start, shape) if shape[0] else np.empty(0, dtype)


def _read_header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, order and type. Raises ValueError."""
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("its header is not of version 1.0")
    return np.lib.format.read_array_header_1_0(file)


def release_pages(*arrays: np.ndarray | None) -> None:
    """Release the resident pages of mapped files, which count as memory of this process. A later read reloads them."""
    for array in arrays:
        if array is not None and isinstance(array.base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            array.base.madvise(mmap.MADV_DONTNEED)
