# SPDX-License-Identifier: Apache-2.0
"""The checkpoints that a path on the command line names: those of a run, or one.

Functions raise UserError (CK113) if there is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.checkpoints.evaluations import Evaluations
from harness.checkpoints.latest import checkpoints_folder, find_latest, list_checkpoints, step_in_name
from harness.checkpoints.manifest import MANIFEST, Manifest, read_manifest
from harness.errors import ExitCode, UserError
from harness.findings import Finding
from harness.run_records.run_list import fix_for_no_checkpoint, known_runs_notes


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """A checkpoint of a run; without a manifest that can be used, why."""

    path: Path
    manifest: Manifest | None
    reason: str


@dataclass(frozen=True, slots=True)
class BestCheckpoint:
    """A checkpoint of a run, and the held-out loss of its step."""

    path: Path
    step: int
    loss: float


def find_best_checkpoint(run_dir: Path) -> BestCheckpoint | None:
    """The checkpoint that `checkpoint ls` marks: of those that are kept, and whose save ended, the one with the best
    evaluation. None where none was evaluated.
    """
    folder = checkpoints_folder(run_dir)
    evaluations = Evaluations.read(folder)
    found = list_checkpoints(folder) if evaluations.by_step else []
    paths = {step_in_name(path.name): path for path in found if (path / MANIFEST).is_file()}
    best = evaluations.best_step([step for step in paths if step is not None])
    return None if best is None else BestCheckpoint(paths[best], best, float(evaluations.by_step[best]["loss"]))


def read_rows(folder: Path) -> list[CheckpointRow]:
    """All checkpoints of a folder, newest step first."""
    return [_read_row(path) for path in list_checkpoints(folder)]


def _read_row(path: Path) -> CheckpointRow:
    try:
        return CheckpointRow(path, read_manifest(path), "")
    except UserError as refused:
        return CheckpointRow(path, None, refused.findings[0].message)


def is_checkpoint(path: Path) -> bool:
    """Is this path meant as one checkpoint, whole or not?"""
    return path.is_dir() and ((path / MANIFEST).exists() or step_in_name(path.name) is not None)


def find_checkpoints_folder(path: Path) -> Path:
    """The folder of checkpoints of a run."""
    if not path.is_dir():
        raise UserError(
            [no_checkpoint_finding(path, "is not a folder" if path.exists() else "does not exist")], ExitCode.USAGE
        )
    folder = checkpoints_folder(path)
    if not list_checkpoints(folder):
        raise UserError([no_checkpoint_finding(path, "has no checkpoint")], ExitCode.USAGE)
    return folder


def find_manifest(path: Path) -> Manifest:
    """The manifest of a checkpoint, or of the newest complete one of a run."""
    if is_checkpoint(path):
        return read_manifest(path)
    newest = find_latest(find_checkpoints_folder(path), verify="sizes").checkpoint
    if newest is None:
        raise UserError([no_checkpoint_finding(path, "has no complete checkpoint")], ExitCode.USAGE)
    return read_manifest(newest)


def no_checkpoint_finding(path: Path, reason: str) -> Finding:
    """CK113: a path that names no checkpoint."""
    notes, fix = () if path.exists() else known_runs_notes(), fix_for_no_checkpoint(path)
    return Finding("CK113", "error", f"`{path}` {reason}", notes=notes, fix=fix)
