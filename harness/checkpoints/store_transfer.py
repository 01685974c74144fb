# SPDX-License-Identifier: Apache-2.0
"""Files of a checkpoint between a folder and an object store, verified by size and sha256 on the way."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness.checkpoints.latest import UNFINISHED_PREFIX, checkpoint_name
from harness.checkpoints.manifest import MANIFEST, FileRecord, Manifest
from harness.checkpoints.stored_run import StoredRun
from harness.file_io import fsync_folder, open_regular, replace_file
from harness.folder_walk import walk_files
from harness.object_stores.object_store import ObjectStore
from harness.object_stores.silence_limit import OnBytes
from harness.object_stores.store_errors import StoreError
from harness.planted_files import find_foreign_owner

_CHUNK_BYTES = 4 * 2**20
_THREADS = 4
_DOWNLOADS = 3
"""Downloads of a file that comes with other bytes."""
_SPARE_BYTES = 2**28
"""Space that a download leaves free."""


def upload_command(folder: Path, url: str) -> str:
    """The command that uploads a checkpoint or an export later."""
    return f"harness checkpoint upload {shlex.quote(str(folder))} {shlex.quote(url)}"


def upload_files(
    store: ObjectStore, folder: Path, prefix: str, files: Mapping[str, FileRecord], on_bytes: OnBytes | None = None
) -> None:
    """Upload files of a checkpoint, whose bytes are compared with the manifest first. Raises StoreError: `disk` where a
    file cannot be read or has other bytes than were saved.
    """
    for name, record in files.items():
        try:
            if sha256_of(folder / name) != record.sha256:
                raise StoreError("disk", detail=f"`{name}` on the disk has other bytes than were saved")
            store.upload(f"{prefix}/{name}", folder / name, on_bytes)
        except OSError as error:
            raise StoreError(
                "disk", detail=f"`{name}` cannot be read: {(error.strerror or str(error)).lower()}"
            ) from None


def download_checkpoint(
    stored: StoredRun, step: int, folder: Path, *, checksum: str = "", on_bytes: OnBytes | None = None
) -> Manifest:
    """Put the checkpoint of a step at `folder`, which appears by one rename once every byte has the sha256 of the
    manifest. Files that a killed download left are kept where they are intact. `checksum` is that of the manifest that
    was chosen before. Raises StoreError.
    """
    manifest, content = stored.read_manifest(step)
    if checksum and manifest.get("checksum") != checksum:
        raise StoreError("damaged", detail="its manifest has changed since the run was launched")
    temporary = folder.with_name(f"{UNFINISHED_PREFIX}download-{folder.name}")
    try:
        temporary.mkdir(parents=True, exist_ok=True)
        if temporary.is_symlink() or find_foreign_owner(temporary) is not None:
            raise StoreError("disk", detail=f"`{temporary}` is a link or belongs to another user: remove it")
        missing = {name: record for name, record in manifest.files.items() if not is_intact(temporary / name, record)}
        _check_space(temporary, sum(record.bytes for record in missing.values()))
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="store-download") as pool:
            jobs = [
                pool.submit(
                    download_file, stored.store, f"{checkpoint_name(step)}/{name}", temporary / name, record, on_bytes
                )
                for name, record in missing.items()
            ]
            for job in jobs:
                job.result()
        replace_file(temporary / MANIFEST, content.decode())
        for path in walk_files(temporary):  # of a killed download of another checkpoint
            name = path.relative_to(temporary).as_posix()
            if name not in manifest.files and name != MANIFEST:
                path.unlink()
        fsync_folder(temporary)
        if folder.exists():
            shutil.rmtree(folder)
        temporary.rename(folder)
        fsync_folder(folder.parent)
    except OSError as error:
        raise StoreError("disk", detail=f"`{folder.parent}`: {(error.strerror or str(error)).lower()}") from None
    return manifest


def is_intact(path: Path, record: FileRecord) -> bool:
    """Has the file the bytes of the record?"""
    with contextlib.suppress(OSError):
        return path.lstat().st_size == record.bytes and sha256_of(path) == record.sha256
    return False


def download_file(
    store: ObjectStore, key: str, path: Path, record: FileRecord, on_bytes: OnBytes | None = None
) -> None:
    """Download a key to a file, again where its bytes are not those of the record: a connection that is cut leaves half
    a file, and a bad cache on the way other bytes. Raises StoreError, `damaged` where they never are; OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(_DOWNLOADS):
        store.download(key, path, record.bytes, on_bytes)
        if is_intact(path, record):
            break
    else:
        raise StoreError("damaged", detail=f"`{key}` has other bytes than were saved, in {_DOWNLOADS} downloads")
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed + min(needed, _SPARE_BYTES) > free:
        raise StoreError("disk", detail=f"the download needs {needed:,} bytes and `{folder.parent}` has {free:,} free")


def sha256_of(path: Path) -> str:
    """Of a file's bytes. Raises OSError."""
    digest = hashlib.sha256()
    with open_regular(path, follow=False) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
