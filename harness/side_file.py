# SPDX-License-Identifier: Apache-2.0
"""A file next to a training that may not end it: rows of metrics, logs. Imports the standard library alone, since
`workers/output_tee.py` starts without site-packages.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable


class SideFile:
    """Appends pieces, of one writer. A piece that the disk does not take whole is cut off again, dropped and counted,
    and the next one is tried anew, after a line about the gap. No method raises OSError.
    """

    def __init__(self, path: str, describe_gap: Callable[[SideFile], bytes]) -> None:
        """`describe_gap` makes the line about the pieces that are missing, from `num_dropped` and `dropped_bytes`."""
        self._path, self._describe_gap = path, describe_gap
        self._descriptor: int | None = None
        self._torn_at: int | None = None
        """Where a part of a piece begins that could not be cut off yet."""
        self.num_dropped = 0
        """Pieces since the last one that was written."""
        self.dropped_bytes = 0
        self.error = ""
        """Why the last one was dropped."""
        with contextlib.suppress(OSError):  # the next piece tries again
            self._open()

    def append(self, piece: bytes) -> bool:
        """Write the piece; False where it was dropped."""
        try:
            self._write((self._describe_gap(self) if self.num_dropped else b"") + piece)
        except OSError as error:
            self.num_dropped, self.dropped_bytes = self.num_dropped + bool(piece), self.dropped_bytes + len(piece)
            self.error = (error.strerror or str(error)).lower()
            with contextlib.suppress(OSError):
                self._cut_torn_piece()
            return False
        self.num_dropped = self.dropped_bytes = 0
        return True

    def close(self) -> None:
        """Write about a gap at the end, and close the file."""
        if self.num_dropped:
            self.append(b"")
        if self._descriptor is not None:
            with contextlib.suppress(OSError):  # a network's disk may report now what it did not take
                os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int:
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        return self._descriptor

    def _write(self, piece: bytes) -> None:
        descriptor = self._open()
        self._cut_torn_piece()
        self._torn_at = os.fstat(descriptor).st_size
        if os.write(descriptor, piece) != len(piece):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._torn_at = None

    def _cut_torn_piece(self) -> None:
        if self._torn_at is not None and self._descriptor is not None:
            if os.fstat(self._descriptor).st_size > self._torn_at:
                os.ftruncate(self._descriptor, self._torn_at)
            self._torn_at = None


def describe_output_gap(file: SideFile) -> bytes:
    """The line of a log about output that is missing."""
    return b"\n[%d bytes of output are missing here: %s]\n" % (file.dropped_bytes, file.error.encode())
