# SPDX-License-Identifier: Apache-2.0
"""Files of a checkpoint between a folder and an object store, verified by size and sha256 on the way."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness.checkpoints.latest import UNFINISHED_PREFIX, checkpoint_name
from harness.checkpoints.manifest import MANIFEST, FileRecord, Manifest
from harness.checkpoints.stored_run import StoredRun
from harness.file_io import fsync_folder, open_regular, replace_file
from harness.folder_walk import walk_files
from harness.object_stores.object_store import ObjectStore
from harness.object_stores.store_errors import StoreError

OnBytes = Callable[[int], None]
"""Called with the bytes of each file that has been moved."""
_CHUNK_BYTES = 4 * 2**20
_THREADS = 4
_SPARE_BYTES = 2**28
"""Space that a download leaves free."""


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
            store.upload(f"{prefix}/{name}", folder / name)
        except OSError as error:
            raise StoreError(
                "disk", detail=f"`{name}` cannot be read: {(error.strerror or str(error)).lower()}"
            ) from None
        if on_bytes is not None:
            on_bytes(record.bytes)


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
        missing = {name: record for name, record in manifest.files.items() if not is_intact(temporary / name, record)}
        _check_space(temporary, sum(record.bytes for record in missing.values()))
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="store-download") as pool:
            jobs = [pool.submit(_download, stored.store, step, name, temporary, missing[name]) for name in missing]
            for job, record in zip(jobs, missing.values(), strict=True):
                job.result()
                if on_bytes is not None:
                    on_bytes(record.bytes)
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


def _download(store: ObjectStore, step: int, name: str, folder: Path, record: FileRecord) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    for attempt in (1, 2):  # a connection that is cut can leave half a file
        store.download(f"{checkpoint_name(step)}/{name}", path)
        if is_intact(path, record):
            break
        if attempt == 2:
            raise StoreError("damaged", detail=f"`{name}` has other bytes than were saved")
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
