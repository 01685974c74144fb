# SPDX-License-Identifier: Apache-2.0
"""The check that all ranks see one folder of checkpoints: a checkpoint is one folder with the shards of all ranks."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from pathlib import Path

from harness.runtime.distributed import Distributed
from harness.runtime.user_errors import user_error

_WAIT_SECONDS = 5.0
"""A network file system may not show a new file at once."""


def check_shared_folder(folder: Path, distributed: Distributed) -> None:
    """A collective. Raises UserError on all ranks when rank 0 cannot write there (CK110), and on a rank that does not
    see rank 0's file (CK116).
    """
    marker, reason = folder / f".seen-{uuid.uuid4().hex}", None
    if distributed.is_main_process:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            marker.touch()
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
    name, reason = distributed.all_gather_object((marker.name, reason))[0]
    visible = reason is None and _wait_until_visible(folder / name)
    distributed.barrier()
    if distributed.is_main_process:
        with contextlib.suppress(OSError):
            marker.unlink()
    if reason is not None:
        fix = "make it writable for rank 0"
        raise user_error("CK110", f"checkpoints cannot be written to `{folder}`: {reason}", fix=fix)
    if not visible:
        raise user_error(
            "CK116",
            f"rank {distributed.rank} does not see the `{folder}` that rank 0 sees",
            notes=("a checkpoint is one folder with the shards of all ranks; folders of single hosts are not merged",),
            fix="put the run directory on a disk that all hosts share",
        )


def _wait_until_visible(path: Path) -> bool:
    """Wait a few seconds for the file; a listing of the folder makes NFS refresh it."""
    end = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            if path.name in os.listdir(path.parent):  # noqa: PTH208  (a fresh listing, no cached one)
                return True
        except OSError:
            pass
        if time.monotonic() >= end:
            return False
        time.sleep(0.2)
