# SPDX-License-Identifier: Apache-2.0
"""The write of a pending save, and the agreement of all ranks on it.

It runs on the training thread or a background thread: it touches no engine, and reaches other ranks through `gather`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from harness.checkpoints import manifest
from harness.checkpoints.evaluations import Evaluations
from harness.checkpoints.latest import LATEST, TRASH_PREFIX
from harness.checkpoints.manifest import FileRecord
from harness.checkpoints.retention import folders_by_step, remove_checkpoint, select_outdated
from harness.file_io import fsync_folder, replace_file
from harness.findings import Finding
from harness.runtime.checkpoint.disk_space import save_failed_finding, unflushed_name_finding
from harness.runtime.checkpoint.hashing_writer import CheckpointFile, fsync_tree, write_files
from harness.runtime.checkpoint.host_commit import HostDisk, publish_on_hosts
from harness.runtime.distributed import Distributed
from harness.runtime.object_gather import Gather
from harness.spec.sections.checkpoint_spec import CheckpointSpec

T = TypeVar("T")
WriteError = tuple[int | None, str]
"""`errno` and the reason, as plain values: a rank that fails still answers the others."""


@dataclass
class PendingSave:
    """A save: this rank's files for `temporary`, the final folder, and the manifest's fields without the files."""

    step: int
    temporary: Path
    final: Path
    body: dict[str, Any]
    files: list[CheckpointFile]
    distributed: Distributed
    spec: CheckpointSpec
    bytes: int = 0
    """Sum over all ranks."""
    disk: HostDisk | None = None
    """Where each host has only its own disk."""
    steps_in_use: Callable[[], set[int]] = set
    """Steps whose folders may not be removed now."""
    records: dict[str, FileRecord] = field(default_factory=dict)
    """The files of this rank, once they are written."""
    warning: Finding | None = None
    """On the main process: what went wrong after the checkpoint was complete."""


def create_empty_folder(folder: Path) -> None:
    """Create the folder, or empty it. Raises OSError."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)


def discard_folder(folder: Path) -> None:
    """Remove the folder; a rest that cannot be removed is no checkpoint, and the next start removes it."""
    shutil.rmtree(folder, ignore_errors=True)


def commit_save(pending: PendingSave, gather: Gather) -> Finding | None:
    """Write, agree, publish. Returns the finding of a failed save, the same on every rank. An error on any rank leaves
    earlier checkpoints and `latest` as they were.
    """
    distributed, node = pending.distributed, pending.disk.node if pending.disk else 0
    records, error = _call_catching_io_errors(
        lambda: write_files(pending.temporary, pending.files, distributed.rank, node)
    )
    pending.files, pending.records = [], records or {}
    results = gather((records, error))
    failure = next(((rank, error) for rank, (_, error) in enumerate(results) if error is not None), None)
    files = {name: record for records_of_rank, _ in results for name, record in (records_of_rank or {}).items()}
    if failure is None and pending.disk is not None:
        body = gather(_manifest_body(pending, files) if distributed.is_main_process else {})[0]
        failure, warning = publish_on_hosts(pending.temporary, pending.final, body, pending.disk, gather)
        if failure is None:
            _set_warning(pending, warning)
            _prune_on_hosts(pending, pending.disk, gather)
        elif pending.disk.is_leader:
            discard_folder(pending.temporary)
    elif failure is None and distributed.is_main_process:
        _, error = _call_catching_io_errors(lambda: _publish(pending, files))
        failure = None if error is None else (0, error)
    finding: Finding | None = None
    if not distributed.is_main_process:
        return gather(finding)[0]
    if failure is not None:
        rank, (number, reason) = failure
        discard_folder(pending.temporary)  # first: its bytes count as free in the finding
        finding = save_failed_finding(pending.step, pending.final.parent, rank, OSError(number, reason), pending.bytes)
    elif pending.disk is None:
        # The conversion of a checkpoint in another layout: this run now has a checkpoint in its own.
        shutil.rmtree(pending.final.parent / "universal", ignore_errors=True)
        prune_checkpoints(pending.final.parent, pending.spec, pending.step, pending.steps_in_use())
    return gather(finding)[0]


def _call_catching_io_errors(work: Callable[[], T]) -> tuple[T | None, WriteError | None]:
    """The result of `work`, or its error."""
    try:
        return work(), None
    except OSError as error:
        return None, (error.errno, error.strerror or str(error))
    except MemoryError:
        return None, (None, "there is not enough host memory")


def _manifest_body(pending: PendingSave, files: dict[str, FileRecord]) -> dict[str, Any]:
    evaluation = Evaluations.read(pending.final.parent).to_manifest(pending.step)
    return {
        "name": pending.final.name,
        "saved_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "layout": "shared",
        **pending.body,
        "evaluation": {**pending.body["evaluation"], **evaluation},
        "files": {name: files[name].to_json() for name in sorted(files)},
    }


def _publish(pending: PendingSave, files: dict[str, FileRecord]) -> None:
    """Manifest, rename, pointer; every step is on the disk before the next. With the rename the checkpoint is complete,
    and what goes wrong after that is a warning. Raises OSError.
    """
    body = _manifest_body(pending, files)
    fsync_tree(pending.temporary)
    manifest.write_manifest(pending.temporary, body)
    if pending.final.exists():  # from before a resume at an earlier step
        trash = pending.final.with_name(f"{TRASH_PREFIX}{pending.final.name}-{os.getpid()}")
        pending.final.rename(trash)
        try:
            pending.temporary.rename(pending.final)
        except OSError:
            trash.rename(pending.final)
            raise
        shutil.rmtree(trash, ignore_errors=True)
    else:
        pending.temporary.rename(pending.final)
    _, error = _call_catching_io_errors(lambda: fsync_folder(pending.final.parent))
    _set_warning(pending, None if error is None else (0, error))
    with contextlib.suppress(OSError):  # it is for people; `checkpoint verify` says where it is stale
        replace_file(pending.final.parent / LATEST, pending.final.name + "\n")


def _set_warning(pending: PendingSave, problem: tuple[int, WriteError] | None) -> None:
    """The warning about a complete checkpoint whose new name may not survive a power cut."""
    if problem is not None and pending.distributed.is_main_process:
        rank, (number, reason) = problem
        pending.warning = unflushed_name_finding(pending.step, pending.final, rank, OSError(number, reason))


def _prune_on_hosts(pending: PendingSave, disk: HostDisk, gather: Gather) -> None:
    """Remove on every host what is outdated on that of rank 0, which has the evaluations."""
    folder, is_main = pending.final.parent, pending.distributed.is_main_process
    in_use = pending.steps_in_use()
    outdated = gather(find_outdated(folder, pending.spec, pending.step, in_use) if is_main else [])[0]
    if disk.is_leader:
        with contextlib.suppress(OSError):
            replace_file(folder / LATEST, pending.final.name + "\n")
        steps = folders_by_step(folder)
        for step in outdated:
            if step in steps:
                with contextlib.suppress(OSError):
                    remove_checkpoint(steps[step])


def prune_checkpoints(folder: Path, spec: CheckpointSpec, newest: int, in_use: Collection[int]) -> None:
    """Remove outdated checkpoints up to step `newest`, also that which the run resumed from: every rank has read it,
    and a later one is complete. One that is `in_use`, or cannot be removed, stays until the next save tries again.
    """
    steps = folders_by_step(folder)
    for step in find_outdated(folder, spec, newest, in_use):
        with contextlib.suppress(OSError):
            remove_checkpoint(steps[step])


def find_outdated(folder: Path, spec: CheckpointSpec, newest: int, in_use: Collection[int]) -> list[int]:
    """The steps of a folder of checkpoints that may go."""
    steps = folders_by_step(folder)
    best = Evaluations.read(folder).best_step(steps) if spec.keep_best else None
    outdated = select_outdated(
        (s for s in steps if s <= newest),
        keep_last=spec.save_total_limit,
        keep_every=spec.keep_every_steps,
        best=best,
    )
    return [step for step in outdated if step not in in_use]
