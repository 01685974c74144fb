"""Which checkpoints a folder has, and which is the newest that is whole. The pointer `latest` is for people: it is
compared, never trusted.
"""

from __future__ import annotations

import errno
import re
from pathlib import Path

from harness.checkpoints.manifest import Manifest, read_manifest
from harness.checkpoints.verify import ProgressCallback, verify_checkpoint
from harness.errors import UserError
from harness.file_io import read_regular
from harness.findings import Finding, Fix

LATEST = "latest"
_MAX_POINTER_BYTES = 4096
UNFINISHED_PREFIX, TRASH_PREFIX = ".tmp-", ".trash-"
_STEP = re.compile(r"step-(\d{8,})")


def checkpoint_name(step: int) -> str:
    """The folder of a step."""
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """The step that a folder's name says; None for other names."""
    match = _STEP.fullmatch(name)
    return int(match.group(1)) if match else None


def checkpoints_folder(path: Path) -> Path:
    """The folder of checkpoints that is meant by a run directory, by the folder itself or by one of its checkpoints."""
    if (path / "checkpoints").is_dir():
        return path / "checkpoints"
    return path.parent if step_of(path.name) is not None else path


def list_checkpoints(folder: Path) -> list[Path]:
    """Folders named like checkpoints, newest step first. A link is not one: it may lead anywhere."""
    found = [p for p in _list_entries(folder) if step_of(p.name) is not None and p.is_dir() and not p.is_symlink()]
    return sorted(found, key=lambda p: step_of(p.name) or 0, reverse=True)


def list_complete_manifests(folder: Path) -> list[Manifest]:
    """Newest first, those whose manifest can be read and is of the step that the folder's name says."""
    found = []
    for path in list_checkpoints(folder):
        try:
            manifest = read_manifest(path)
        except UserError:
            continue
        if manifest.step == step_of(path.name):
            found.append(manifest)
    return found


def find_latest_verified(
    folder: Path, *, deep: bool = True, progress: ProgressCallback | None = None
) -> tuple[Path | None, list[tuple[Path, str]]]:
    """The newest checkpoint that is whole, and what was passed over with the reason in words.

    `deep` reads every byte of the candidates, newest first, until one is found whole.
    """
    skipped = [
        (p, "a save that was not finished") for p in _list_entries(folder) if p.name.startswith(UNFINISHED_PREFIX)
    ]
    chosen = None
    for path in list_checkpoints(folder):
        reason = why_unusable(path, deep=deep, progress=progress)
        if reason is None:
            chosen = path
            break
        skipped.append((path, reason))
    pointer = describe_stale_latest(folder, chosen)
    return chosen, [*skipped, *([(folder / LATEST, pointer)] if pointer else [])]


def why_unusable(path: Path, *, deep: bool = True, progress: ProgressCallback | None = None) -> str | None:
    """Why a checkpoint cannot be gone on from, in words; None when it can."""
    errors = [f.message for f in verify_with_name(path, deep=deep, progress=progress) if f.is_error]
    return errors[0] + (f" (and {len(errors) - 1} more)" if len(errors) > 1 else "") if errors else None


def verify_with_name(path: Path, *, deep: bool = True, progress: ProgressCallback | None = None) -> list[Finding]:
    """`verify`, and whether the folder is named after the step that is in it."""
    found = verify_checkpoint(path, deep=deep, progress=progress)
    if any(f.is_error for f in found):
        return found
    inside, named = read_manifest(path).step, step_of(path.name)
    if named is not None and named != inside:
        message = f"`{path}` holds step {inside}, its name says {named}"
        found.append(Finding("CK101", "error", message, fix=Fix(f"rename it to `{checkpoint_name(inside)}`")))
    return found


def describe_stale_latest(folder: Path, newest: Path | None) -> str | None:
    """What is wrong with the pointer `latest`, in words; None when it names the newest checkpoint that is whole."""
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
