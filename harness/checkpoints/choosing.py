"""Which checkpoints a folder has, and which is the newest that is whole. The pointer `latest` is for people: it is
compared, never trusted.
"""

from __future__ import annotations

import errno
import re
from pathlib import Path

from harness.checkpoints.manifest import Manifest, read
from harness.checkpoints.verify import Progress, verify
from harness.errors import Refused
from harness.files import read_regular
from harness.findings import Finding, Fix

LATEST = "latest"
_LONGEST = 4096
UNFINISHED, TRASH = ".tmp-", ".trash-"
_STEP = re.compile(r"step-(\d{8,})")


def name_of(step: int) -> str:
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


def named_in(folder: Path) -> list[Path]:
    """Folders named like checkpoints, newest step first. A link is not one: it may lead anywhere."""
    found = [p for p in _entries(folder) if step_of(p.name) is not None and p.is_dir() and not p.is_symlink()]
    return sorted(found, key=lambda p: step_of(p.name) or 0, reverse=True)


def complete_in(folder: Path) -> list[Manifest]:
    """Newest first, those whose manifest can be read and is of the step that the folder's name says."""
    found = []
    for path in named_in(folder):
        try:
            manifest = read(path)
        except Refused:
            continue
        if manifest.step == step_of(path.name):
            found.append(manifest)
    return found


def newest_complete(
    folder: Path, *, deep: bool = True, progress: Progress | None = None
) -> tuple[Path | None, list[tuple[Path, str]]]:
    """The newest checkpoint that is whole, and what was passed over with the reason in words.

    `deep` reads every byte of the candidates, newest first, until one is found whole.
    """
    skipped = [(p, "a save that was not finished") for p in _entries(folder) if p.name.startswith(UNFINISHED)]
    chosen = None
    for path in named_in(folder):
        reason = why_not(path, deep=deep, progress=progress)
        if reason is None:
            chosen = path
            break
        skipped.append((path, reason))
    pointer = stale_latest(folder, chosen)
    return chosen, [*skipped, *([(folder / LATEST, pointer)] if pointer else [])]


def why_not(path: Path, *, deep: bool = True, progress: Progress | None = None) -> str | None:
    """Why a checkpoint cannot be gone on from, in words; None when it can."""
    errors = [f.message for f in problems(path, deep=deep, progress=progress) if f.is_error]
    return errors[0] + (f" (and {len(errors) - 1} more)" if len(errors) > 1 else "") if errors else None


def problems(path: Path, *, deep: bool = True, progress: Progress | None = None) -> list[Finding]:
    """`verify`, and whether the folder is named after the step that is in it."""
    found = verify(path, deep=deep, progress=progress)
    if any(f.is_error for f in found):
        return found
    inside, named = read(path).step, step_of(path.name)
    if named is not None and named != inside:
        message = f"`{path}` holds step {inside}, its name says {named}"
        found.append(Finding("CK101", "error", message, fix=Fix(f"rename it to `{name_of(inside)}`")))
    return found


def stale_latest(folder: Path, newest: Path | None) -> str | None:
    """What is wrong with the pointer `latest`, in words; None when it names the newest checkpoint that is whole."""
    try:
        text = read_regular(folder / LATEST, _LONGEST, follow=False).decode("utf-8", "replace").strip()[:80]
    except FileNotFoundError:
        return f"it is missing, should name `{newest.name}`" if newest else None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return "it is a link, should be a file"
        return f"it cannot be read: {(error.strerror or str(error)).lower()}"
    if newest is not None and text == newest.name:
        return None
    return f"it names `{text}`, should name `{newest.name}`" if newest else f"it names `{text}`, which is not complete"


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
