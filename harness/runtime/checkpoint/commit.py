"""The write of a planned save and the agreement of all ranks on it. Runs on the training thread or on one of its own:
it touches no engine, and speaks to other ranks through the `gather` it is given.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.checkpoints import manifest
from harness.checkpoints.evaluations import Evaluations
from harness.checkpoints.latest import LATEST, TRASH_PREFIX
from harness.checkpoints.manifest import FileRecord
from harness.checkpoints.retention import folders_by_step, remove_checkpoint, select_outdated
from harness.file_io import fsync_folder, replace_file
from harness.findings import Finding
from harness.runtime.checkpoint.disk_space import save_failed_finding
from harness.runtime.checkpoint.hashing_writer import CheckpointFile, fsync_tree, write_files
from harness.runtime.distributed import Distributed
from harness.spec.sections.launch_spec import CheckpointSpec

Gather = Callable[[Any], list[Any]]


@dataclass
class PendingSave:
    """A save: what this rank writes below `temporary`, what becomes of that folder, and the manifest without files."""

    step: int
    temporary: Path
    final: Path
    body: dict[str, Any]
    files: list[CheckpointFile]
    distributed: Distributed
    spec: CheckpointSpec
    protected: Path | None
    bytes: int = 0
    """Of all ranks."""


def create_empty_folder(folder: Path) -> None:
    """An empty folder. Raises OSError."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)


def discard_folder(folder: Path) -> None:
    """Remove what was written; what cannot be removed is no checkpoint, and goes with the next sweep."""
    shutil.rmtree(folder, ignore_errors=True)


def commit_save(plan: PendingSave, gather: Gather) -> Finding | None:
    """Write, agree, publish; the finding when it failed, the same on every rank. An error on any rank leaves earlier
    checkpoints and `latest` as they were.
    """
    ranks = plan.distributed
    records, error = _call_catching_io_errors(lambda: write_files(plan.temporary, plan.files, ranks.rank, 0))
    plan.files = []
    answers = gather((records, error))
    wrong = _first_error(answers)
    if wrong is None and ranks.is_main_process:
        files = {name: record for written, _ in answers for name, record in written.items()}
        _, error = _call_catching_io_errors(lambda: _publish(plan, files))
        wrong = None if error is None else (0, error)
    if not ranks.is_main_process:
        return gather(None)[0]
    found = None
    if wrong is not None:
        rank, (number, reason) = wrong
        discard_folder(plan.temporary)  # first: what it took counts as free
        found = save_failed_finding(plan.step, plan.final.parent, rank, OSError(number, reason), plan.bytes)
    else:
        _prune_checkpoints(plan)
    return gather(found)[0]


def _call_catching_io_errors(work: Callable[[], Any]) -> tuple[Any, tuple[int | None, str] | None]:
    """What it returns, or the error as plain values; a rank that fails still answers the others."""
    try:
        return work(), None
    except OSError as error:
        return {}, (error.errno, error.strerror or str(error))
    except MemoryError:
        return {}, (None, "there is not enough host memory")


def _first_error(answers: list[Any]) -> tuple[int, tuple[int | None, str]] | None:
    return next(((rank, error) for rank, (_, error) in enumerate(answers) if error is not None), None)


def _publish(plan: PendingSave, files: dict[str, FileRecord]) -> None:
    """Manifest, rename, pointer; every step is on the disk before the next. Raises OSError."""
    known = Evaluations.read(plan.final.parent)
    body = {
        "name": plan.final.name,
        "saved_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "layout": "shared",
        **plan.body,
        "evaluation": known.up_to(plan.step).to_manifest(),
        "files": {name: files[name].to_json() for name in sorted(files)},
    }
    fsync_tree(plan.temporary)
    manifest.write_manifest(plan.temporary, body)
    if plan.final.exists():  # an older run of this step, which a resume from before it has overtaken
        trash = plan.final.with_name(f"{TRASH_PREFIX}{plan.final.name}-{os.getpid()}")
        plan.final.rename(trash)
        plan.temporary.rename(plan.final)
        shutil.rmtree(trash, ignore_errors=True)
    else:
        plan.temporary.rename(plan.final)
    fsync_folder(plan.final.parent)
    replace_file(plan.final.parent / LATEST, plan.final.name + "\n")


def _prune_checkpoints(plan: PendingSave) -> None:
    """Remove what need not be kept. What cannot be removed stays, and is tried again after the next save."""
    # A checkpoint of another shape, converted: from now on there is one in this run's own.
    shutil.rmtree(plan.final.parent / "universal", ignore_errors=True)
    folder, spec = plan.final.parent, plan.spec
    steps = folders_by_step(folder)
    best = Evaluations.read(folder).best_step(steps) if spec.keep_best else None
    protected = {step for step, path in steps.items() if path == plan.protected}
    for step in select_outdated(
        (s for s in steps if s <= plan.step),
        keep_last=spec.save_total_limit,
        keep_every=spec.keep_every_steps,
        best=best,
        protected={plan.step, *protected},
    ):
        try:
            remove_checkpoint(steps[step])
        except OSError:
            continue
