# SPDX-License-Identifier: Apache-2.0
"""Removal of the files that killed ranks left: shared memory, NVMe swap folders, unfinished saves, empty files.

Touches nothing that a living process holds.
"""

from __future__ import annotations

import json
from pathlib import Path

from harness.checkpoints.retention import remove_unfinished_saves
from harness.launching.process import shm
from harness.launching.setup.launch_context import LaunchContext
from harness.launching.setup.launch_plan import LaunchPlan
from harness.launching.setup.run_dir import read_ports
from harness.launching.supervise.stack_dumps import remove_empty_dumps
from harness.nvme_dirs import remove_stale_swap_dirs, swap_dirs_of
from harness.units import format_bytes

_NEW_BUFFER_SECONDS = 60.0
"""A shared-memory buffer of another run in the same folder stays while it is so new: that run may be just starting and
has not mapped it yet."""


def remove_buffers_of_other_runs(output_dir: Path) -> None:
    """Remove the shared memory of runs of this folder that no process has mapped."""
    shm.remove_unused_buffers(read_ports(output_dir), older_than=_NEW_BUFFER_SECONDS)


def remove_buffers(plan: LaunchPlan) -> None:
    """Remove the shared memory of this run's port that no process has mapped."""
    shm.remove_unused_buffers({plan.port})


def remove_partial_files(run_dir: Path) -> None:
    """Remove the unfinished saves and the empty stack dumps of an attempt that has ended."""
    remove_unfinished_saves(run_dir / "checkpoints")
    remove_empty_dumps(run_dir)


def remove_swap_folders(plan: LaunchPlan, context: LaunchContext) -> None:
    """Remove the swap folders of killed ranks on this machine's NVMe; other hosts do so at the next start there."""
    config = json.loads(plan.documents.get("ds_config.json", "{}"))
    for parent in {folder.parent for folder in swap_dirs_of(config)}:
        for removed in remove_stale_swap_dirs(parent):
            size = format_bytes(removed.size)
            context.observer.on_note(f"removed {removed.folder}, {size} of a killed run's swap files")
