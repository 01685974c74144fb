"""Is there room for a checkpoint, and what is said when there is not, or when writing failed for another reason."""

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
    """What may still be written there. Raises OSError."""
    return shutil.disk_usage(folder).free


def disk_full_error(folder: Path, needed: int) -> OSError | None:
    """The error that writing so many bytes would end in, before any is written."""
    if free_bytes(folder) >= needed + MARGIN_BYTES:
        return None
    return OSError(errno.ENOSPC, "No space left on device")


def save_failed_finding(step: int, folder: Path, rank: int, error: OSError, needed: int) -> Finding:
    """A save that did not succeed: what was wrong where, how much was needed, what is kept."""
    reason = (error.strerror or str(error) or type(error).__name__).lower()
    where = f" on rank {rank}"
    try:
        free = f"{format_bytes(free_bytes(folder))} are free in `{folder}`"
    except OSError as gone:
        free = f"`{folder}` cannot be looked at: {(gone.strerror or str(gone)).lower()}"
    full = error.errno in _DISK_FULL_ERRNOS
    return Finding(
        "CK110",
        "error",
        f"the checkpoint of step {step} could not be saved{where}: {reason}; it needs {format_bytes(needed)}, {free}",
        "checkpoint.on_save_error",
        notes=("earlier checkpoints and `latest` are as they were",),
        fix=Fix(
            "make room there, or keep fewer checkpoints with `checkpoint.save_total_limit`"
            if full
            else "see to it that every rank can write there"
        ),
    )
