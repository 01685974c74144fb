# SPDX-License-Identifier: Apache-2.0
"""Verifies that a checkpoint has the bytes that were written: names and sizes, or every byte. Unpickles nothing."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Callable, Collection
from pathlib import Path

from harness.checkpoints.manifest import MANIFEST, FileRecord, Manifest, damage_finding, read_manifest
from harness.errors import UserError
from harness.file_io import open_regular
from harness.findings import Finding, Fix
from harness.folder_walk import walk_files

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
    """Findings about a checkpoint; empty when it is complete.

    `deep` reads every byte and compares sha256; otherwise names and sizes alone. `only` names the files to check (a
    rank's part of the work); without it all are, and a file that the manifest does not list is a warning.
    """
    try:
        manifest = read_manifest(checkpoint)
    except UserError as refused:
        return list(refused.findings)
    files = {name: record for name, record in manifest.local_files.items() if only is None or name in only}
    findings, intact = list[Finding](), dict[str, FileRecord]()
    for name, record in files.items():
        finding = _check_entry(checkpoint, name, record)
        if finding is None:
            intact[name] = record
        else:
            findings.append(finding)
    if deep:
        findings += _check_digests(checkpoint, intact, progress)
    if only is None:
        findings += _check_unlisted(manifest)
    return findings


def _check_entry(folder: Path, name: str, record: FileRecord) -> Finding | None:
    """Missing, of another size, or not a plain file inside the folder."""
    path = folder
    try:
        for part in name.split("/"):
            path = path / part
            status = path.lstat()
            if stat.S_ISLNK(status.st_mode):
                return damage_finding("CK112", folder, f"`{name}` of `{folder}` is a link, which may point anywhere")
    except (FileNotFoundError, NotADirectoryError):
        return damage_finding("CK101", folder, f"`{folder}` is not complete: `{name}` is missing")
    except OSError as error:
        return _unreadable_finding(folder, name, error)
    if not stat.S_ISREG(status.st_mode):
        return damage_finding("CK101", folder, f"`{folder}` is damaged: `{name}` is not a file")
    if status.st_size != record.bytes:
        message = f"`{folder}` is damaged: `{name}` has {status.st_size} bytes, should have {record.bytes}"
        return damage_finding("CK101", folder, message)
    return None


def _check_digests(folder: Path, files: dict[str, FileRecord], progress: ProgressCallback | None) -> list[Finding]:
    total_bytes, bytes_read, findings = sum(record.bytes for record in files.values()), 0, list[Finding]()
    for name, record in files.items():
        digest = hashlib.sha256()
        try:
            with open_regular(folder / name, follow=False) as file:
                while chunk := file.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    bytes_read += len(chunk)
                    if progress:
                        progress(bytes_read, total_bytes)
        except OSError as error:
            findings.append(_unreadable_finding(folder, name, error))
            continue
        if digest.hexdigest() != record.sha256:
            message = f"`{folder}` is damaged: `{name}` is damaged (its sha256 differs)"
            findings.append(damage_finding("CK101", folder, message))
    return findings


def _unreadable_finding(folder: Path, name: str, error: OSError) -> Finding:
    reason = (error.strerror or str(error)).lower()
    return damage_finding("CK101", folder, f"`{folder}` is damaged: `{name}` cannot be read: {reason}")


def _check_unlisted(manifest: Manifest) -> list[Finding]:
    """A warning about files that no save of the harness wrote: they are neither verified nor loaded. A link among them
    is an error: what reads a folder, such as an export, would follow it out of the checkpoint.
    """
    unlisted, folder = list[str](), manifest.folder
    for path in sorted(walk_files(folder)):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            if name in manifest.files:
                continue
            return [damage_finding("CK112", folder, f"`{name}` of `{folder}` is a link, which may point anywhere")]
        if name not in manifest.files and name != MANIFEST:
            unlisted.append(name)
    if not unlisted:
        return []
    more = f" and {len(unlisted) - 1} more" if len(unlisted) > 1 else ""
    message = f"`{manifest.folder}` has `{unlisted[0]}`{more}, which its manifest does not list"
    return [Finding("CK101", "warning", message, fix=Fix("move foreign files out of the folder"))]
