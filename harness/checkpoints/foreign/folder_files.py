# SPDX-License-Identifier: Apache-2.0
"""Names, sizes and links of the files of a folder that others wrote. Nothing here raises or waits."""

from __future__ import annotations

import os
from pathlib import Path

from harness.file_io import open_regular

_ZIP_END = b"PK\x05\x06"
_MAX_COMMENT = 65_557
"""Bytes in which the end of a zip archive is found."""


def list_names(folder: Path) -> list[str]:
    """The names in a folder, in order; none where it cannot be read."""
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


def size_of(file: Path) -> int:
    """Bytes of a regular file; 0 for what is none or cannot be read."""
    try:
        with open_regular(file) as stream:
            return stream.seek(0, 2)
    except (OSError, ValueError):
        return 0


def leaves_folder(file: Path) -> bool:
    """Is it a link to a file that is neither beside it nor among the `blobs` of a cache of the Hugging Face Hub?"""
    if not file.is_symlink():
        return False
    folder = Path(os.path.realpath(file.parent))
    blobs = [above.parent / "blobs" for above in folder.parents if above.name == "snapshots"]
    return Path(os.path.realpath(file)).parent not in (folder, *blobs)


def is_archive(file: Path) -> bool:
    """Does a zip archive end where this file does?"""
    try:
        with open_regular(file) as stream:
            stream.seek(max(0, stream.seek(0, 2) - _MAX_COMMENT))
            end = stream.read(_MAX_COMMENT).rpartition(_ZIP_END)
            return bool(end[1]) and len(end[2]) == 18 + int.from_bytes(end[2][16:18], "little")
    except (OSError, ValueError):
        return False
