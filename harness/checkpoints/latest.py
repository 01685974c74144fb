# SPDX-License-Identifier: Apache-2.0
"""The checkpoints of a folder, and the newest complete one. The pointer `latest` is for people: it is compared, never
trusted.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Collection
from pathlib import Path
from typing import Literal, NamedTuple

from harness.checkpoints.manifest import MANIFEST, Manifest, read_manifest
from harness.checkpoints.verify import ProgressCallback, verify_checkpoint
from harness.errors import UserError
from harness.file_io import read_regular
from harness.findings import Finding, Fix
from harness.planted_files import find_foreign_owner_below

LATEST = "latest"
_MAX_POINTER_BYTES = 4096
UNFINISHED_PREFIX, TRASH_PREFIX = ".tmp-", ".trash-"
_STEP, _ANY_STEP = re.compile(r"step-(\d{8,})"), re.compile(r"step-(\d+)")

Verification = Literal["exists", "manifest", "sizes", "bytes"]
"""Levels of verification before a checkpoint counts as complete; each includes those before."""


class Latest(NamedTuple):
    """The newest complete checkpoint, and what was skipped to find it, each with the reason."""

    checkpoint: Path | None
    skipped: list[tuple[Path, str]]


def checkpoint_name(step: int) -> str:
    """The folder of a step."""
    return f"step-{step:08d}"


def step_in_name(name: str) -> int | None:
    """The step in a folder's name; None for other names."""
    match = _STEP.fullmatch(name)
    return int(match.group(1)) if match else None


def checkpoints_folder(path: Path) -> Path:
    """The folder of checkpoints of a run directory, of the folder itself or of one of its checkpoints."""
    if (path / "checkpoints").is_dir():
        return path / "checkpoints"
    return path.parent if step_in_name(path.name) is not None else path


def list_checkpoints(folder: Path) -> list[Path]:
    """Folders named like checkpoints, newest step first. A link is not one: it may lead anywhere."""
    return [path for path in _list_by_step(folder, _STEP) if not path.is_symlink()]


def list_complete_manifests(folder: Path) -> list[Manifest]:
    """The manifests of the checkpoints that are complete by `verify="manifest"`, newest first."""
    manifests = (_read_complete_manifest(path) for path in list_checkpoints(folder))
    return [manifest for manifest in manifests if manifest is not None]


def find_latest(
    folder: Path, *, verify: Verification, progress: ProgressCallback | None = None, owner: int | None = None
) -> Latest:
    """The newest complete checkpoint of a folder of checkpoints, by number, and the newer ones that are not complete.

    Candidates are verified newest first until one is complete. `verify` names what makes one complete: its manifest
    `exists` (an export also reads a link, or a name with fewer digits; a resume does not); its `manifest` can be read
    and has the step of the folder's name; its files have their `sizes` too; they have their `bytes` too, each one read.
    With `owner`, the user of the run directory, it also skips those that another user made whom nobody trusts.
    """
    entries = [p for p in _list_entries(folder) if p.name.startswith(UNFINISHED_PREFIX)]
    skipped = [(path, "a save that was not finished") for path in entries]
    latest = None
    for path in _list_by_step(folder, _ANY_STEP) if verify == "exists" else list_checkpoints(folder):
        planted = None if owner is None else find_foreign_owner_below(path, trusted=owner)
        problem = str(planted) if planted else describe_problem(path, verify, progress)
        if problem is None:
            latest = path
            break
        skipped.append((path, problem))
    pointer = describe_stale_latest(folder, latest)
    return Latest(latest, [*skipped, *([(folder / LATEST, pointer)] if pointer else [])])


def find_complete(path: Path) -> Path | None:
    """The checkpoint that a path means: the path itself, or the newest one of a run directory or a folder of
    checkpoints. Its manifest exists; nothing else is verified.
    """
    if (path / MANIFEST).is_file():
        return path
    folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    return find_latest(folder, verify="exists").checkpoint


def _list_by_step(folder: Path, name: re.Pattern[str]) -> list[Path]:
    steps = {path: int(match.group(1)) for path in _list_entries(folder) if (match := name.fullmatch(path.name))}
    return sorted((path for path in steps if path.is_dir()), key=lambda path: steps[path], reverse=True)


def _read_complete_manifest(path: Path) -> Manifest | None:
    try:
        manifest = read_manifest(path)
    except UserError:
        return None
    return manifest if step_in_name(path.name) in (None, manifest.step) else None


def saved_step(checkpoint: Path) -> int | None:
    """The step in the manifest of a checkpoint; None where there is no manifest that can be used."""
    try:
        return read_manifest(checkpoint).step
    except UserError:
        return None


def describe_problem(path: Path, verify: Verification, progress: ProgressCallback | None = None) -> str | None:
    """The reason why a checkpoint cannot be resumed from, in words; None when it can, as far as `verify` reaches."""
    if verify == "exists":
        return None if (path / MANIFEST).is_file() else f"it has no `{MANIFEST}`"
    only = () if verify == "manifest" else None
    findings = verify_with_name(path, deep=verify == "bytes", only=only, progress=progress)
    errors = [f.message for f in findings if f.is_error]
    return errors[0] + (f" (and {len(errors) - 1} more)" if len(errors) > 1 else "") if errors else None


def verify_with_name(
    path: Path, *, deep: bool = True, only: Collection[str] | None = None, progress: ProgressCallback | None = None
) -> list[Finding]:
    """The findings of `verify_checkpoint`, and one for a folder that is not named after its step."""
    findings = verify_checkpoint(path, deep=deep, only=only, progress=progress)
    if any(f.is_error for f in findings):
        return findings
    try:
        step, name_step = read_manifest(path).step, step_in_name(path.name)
    except UserError as error:  # removed meanwhile by another process
        return [*findings, *error.findings]
    if name_step is not None and name_step != step:
        message = f"`{path}` is of step {step}, but its name has {name_step}"
        findings.append(Finding("CK101", "error", message, fix=Fix(f"rename it to `{checkpoint_name(step)}`")))
    return findings


def describe_stale_latest(folder: Path, newest: Path | None) -> str | None:
    """The reason why the pointer `latest` is wrong, in words; None when it names the newest complete checkpoint."""
    try:
        text = read_regular(folder / LATEST, _MAX_POINTER_BYTES, follow=False).decode("utf-8", "replace").strip()[:80]
    except FileNotFoundError:
        return f"it is missing, should name `{newest.name}`" if newest else None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return "it is a link, should be a file"
        return f"it cannot be read: {(error.strerror or str(error)).lower()}"
    if newest is not None and text == newest.name:
        return None
    return f"it names `{text}`, should name `{newest.name}`" if newest else f"it names `{text}`, which is not complete"


def _list_entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
