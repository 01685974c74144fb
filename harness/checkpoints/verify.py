"""Does a checkpoint still have the bytes that were written? Sizes and names, or every byte; nothing is unpickled."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Callable, Collection
from pathlib import Path

from harness.checkpoints.manifest import MANIFEST, FileRecord, Manifest, damage_finding, read_manifest
from harness.errors import UserError
from harness.file_io import open_regular
from harness.findings import Finding, Fix

ProgressCallback = Callable[[int, int], None]
"""Called with the bytes read so far and all that there are to read."""
_CHUNK_BYTES = 4 * 2**20


def verify_checkpoint(
    checkpoint: Path,
    *,
    deep: bool = True,
    only: Collection[str] | None = None,
    progress: ProgressCallback | None = None,
) -> list[Finding]:
    """What is wrong with a checkpoint; empty when nothing is.

    `deep` reads every byte and compares sha256; otherwise names and sizes alone. `only` names the files to look at (a
    rank's part of the work); without it all are, and files that the manifest does not know are told as warnings.
    """
    try:
        manifest = read_manifest(checkpoint)
    except UserError as refused:
        return list(refused.findings)
    files = {name: record for name, record in manifest.local_files.items() if only is None or name in only}
    found, sound = [], {}
    for name, record in files.items():
        wrong = _check_entry(checkpoint, name, record)
        if wrong is None:
            sound[name] = record
        else:
            found.append(wrong)
    if deep:
        found += _check_digests(checkpoint, sound, progress)
    if only is None:
        found += _check_unlisted(manifest)
    return found


def _check_entry(folder: Path, name: str, record: FileRecord) -> Finding | None:
    """Missing, of another size, or not a plain file inside the folder."""
    path = folder
    try:
        for part in name.split("/"):
            path = path / part
            seen = path.lstat()
            if stat.S_ISLNK(seen.st_mode):
                return damage_finding("CK112", folder, f"`{name}` of `{folder}` is a link, which may lead anywhere")
    except (FileNotFoundError, NotADirectoryError):
        return damage_finding("CK101", folder, f"`{folder}` is not complete: `{name}` is missing")
    except OSError as error:
        return _unreadable_finding(folder, name, error)
    if not stat.S_ISREG(seen.st_mode):
        return damage_finding("CK101", folder, f"`{folder}` is damaged: `{name}` is not a file")
    if seen.st_size != record.bytes:
        message = f"`{folder}` is damaged: `{name}` has {seen.st_size} bytes, should have {record.bytes}"
        return damage_finding("CK101", folder, message)
    return None


def _check_digests(folder: Path, files: dict[str, FileRecord], progress: ProgressCallback | None) -> list[Finding]:
    total, done, found = sum(record.bytes for record in files.values()), 0, []
    for name, record in files.items():
        digest = hashlib.sha256()
        try:
            with open_regular(folder / name, follow=False) as file:
                while piece := file.read(_CHUNK_BYTES):
                    digest.update(piece)
                    done += len(piece)
                    if progress:
                        progress(done, total)
        except OSError as error:
            found.append(_unreadable_finding(folder, name, error))
            continue
        if digest.hexdigest() != record.sha256:
            message = f"`{folder}` is damaged: `{name}` has other bytes than were written (its sha256 differs)"
            found.append(damage_finding("CK101", folder, message))
    return found


def _unreadable_finding(folder: Path, name: str, error: OSError) -> Finding:
    reason = (error.strerror or str(error)).lower()
    return damage_finding("CK101", folder, f"`{folder}` is damaged: `{name}` cannot be read: {reason}")


def _check_unlisted(manifest: Manifest) -> list[Finding]:
    """Files that no save of ours put there: they are not looked at, and not loaded."""
    extra = []
    for path in sorted(manifest.folder.rglob("*")):
        name = path.relative_to(manifest.folder).as_posix()
        if (path.is_symlink() or not path.is_dir()) and name not in manifest.files and name != MANIFEST:
            extra.append(name)
    if not extra:
        return []
    more = f" and {len(extra) - 1} more" if len(extra) > 1 else ""
    message = f"`{manifest.folder}` has `{extra[0]}`{more}, which its manifest does not list"
    return [Finding("CK101", "warning", message, fix=Fix("move what does not belong there away"))]
