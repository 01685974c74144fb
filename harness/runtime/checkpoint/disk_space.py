# SPDX-License-Identifier: Apache-2.0
"""Free space for a checkpoint, and the finding of a save that failed."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from harness.findings import Finding, Fix
from harness.units import format_bytes

MARGIN_BYTES = 4 * 2**20
"""For the manifest, folders, and what the file format adds."""
_DISK_FULL_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def free_bytes(folder: Path) -> int:
    """Bytes that can still be written there. Raises OSError."""
    return shutil.disk_usage(folder).free


def disk_full_error(folder: Path, needed: int) -> OSError | None:
    """The error that a write of so many bytes would raise; None where there is room."""
    if free_bytes(folder) >= needed + MARGIN_BYTES:
        return None
    return OSError(errno.ENOSPC, "No space left on device")


def save_failed_finding(step: int, folder: Path, rank: int, error: OSError, needed: int) -> Finding:
    """The finding of a failed save: rank, reason, needed and free bytes."""
    reason = (error.strerror or str(error) or type(error).__name__).lower()
    where = f" on rank {rank}"
    try:
        free = f"{format_bytes(free_bytes(folder))} are free in `{folder}`"
    except OSError as disk_error:
        free = f"`{folder}` cannot be checked: {(disk_error.strerror or str(disk_error)).lower()}"
    disk_full = error.errno in _DISK_FULL_ERRNOS
    return Finding(
        "CK110",
        "error",
        f"the checkpoint of step {step} could not be saved{where}: {reason}; it needs {format_bytes(needed)} "
        f"and a margin of {format_bytes(MARGIN_BYTES)}, {free}",
        "checkpoint.on_save_error",
        notes=("earlier checkpoints and `latest` are unchanged",),
        fix=Fix(
            "free space there, or keep fewer checkpoints with `checkpoint.save_total_limit`"
            if disk_full
            else "make it writable for every rank"
        ),
    )


def unflushed_name_finding(step: int, checkpoint: Path, rank: int, error: OSError) -> Finding:
    """The warning about a checkpoint that is complete, in a folder that could not be flushed after the rename."""
    reason = (error.strerror or str(error) or type(error).__name__).lower()
    return Finding(
        "CK110",
        "warning",
        f"the checkpoint of step {step} is saved, but its folder could not be flushed on rank {rank}: {reason}",
        "checkpoint.on_save_error",
        notes=(f"after a power cut it may still be `.tmp-{checkpoint.name}`, with all its files and its manifest",),
        fix=Fix(f"check the disk, then `harness checkpoint verify {checkpoint}`"),
    )
