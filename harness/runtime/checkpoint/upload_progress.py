# SPDX-License-Identifier: Apache-2.0
"""The progress of the uploads that a run waits for at its end, in bytes: a line now and then, by the main process."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field

from harness.runtime.checkpoint.uploader import StoreUploader
from harness.units import format_bytes, format_seconds

_LINE_SECONDS = 10.0


@dataclass(slots=True)
class UploadProgress:
    """What is printed of one uploader."""

    uploader: StoreUploader
    _printed_at: float = 0.0
    _moved: int = 0
    _moved_at: float = field(default_factory=time.monotonic)

    def print_line(self) -> None:
        """Print what this rank has uploaded, every ten seconds."""
        now, moved, pending = time.monotonic(), self.uploader.moved, self.uploader.pending_upload()
        if moved != self._moved:
            self._moved, self._moved_at = moved, now
        if pending is None or now - self._printed_at < _LINE_SECONDS:
            return
        self._printed_at = now
        folder, size = pending
        silent = now - self._moved_at
        bytes_moved = f"rank 0 has uploaded {format_bytes(moved)} of {format_bytes(size)}"
        text = f"waiting for the upload of {folder.name} to {self.uploader.url}: {bytes_moved}" + (
            f", and nothing for {format_seconds(silent)}" if silent > _LINE_SECONDS else ""
        )
        print(text, file=sys.stderr, flush=True)  # noqa: T201
