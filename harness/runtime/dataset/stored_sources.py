# SPDX-License-Identifier: Apache-2.0
"""Sources of `data` in an object store: their files are copied into the cache of the host, and read from there.

A folder of copies is named by the URL and by what the store says of each file (size and ETag or time): a changed file
is another folder, and an unchanged one is not read again.
"""

from __future__ import annotations

import glob
import hashlib
import os
import secrets
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness.checkpoints.store_source import parse_url_finding, store_finding
from harness.errors import UserError, user_error
from harness.object_stores.object_store import ObjectStore, find_files, static_parent
from harness.object_stores.store_errors import StoreError
from harness.object_stores.store_url import is_store_url
from harness.spec.sections.data_spec import DataSource, DataSpec

_THREADS = 4


def with_local_copies(data: DataSpec, folder: Path) -> DataSpec:
    """The section with the place of the copies instead of each URL. Raises UserError (ST1xx), and OSError of the
    cache.
    """
    changed = {}
    for name in ("train", "eval"):
        sources = getattr(data, name)
        if any(is_store_url(source.path) for source in sources or ()):
            changed[name] = tuple(_to_local(source, f"data.{name}", folder) for source in sources)
    return data.model_copy(update=changed) if changed else data


def _to_local(source: DataSource, key: str, folder: Path) -> DataSource:
    if not is_store_url(source.path):
        return source
    url = parse_url_finding(source.path, key)
    try:
        copies = _copy_files(ObjectStore(static_parent(url)), source.path, key, folder)
    except StoreError as error:
        raise UserError([store_finding(error, url, key, "the data could not be read")]) from None
    return source.model_copy(update={"path": f"{glob.escape(str(copies))}/**/*"})


def _copy_files(store: ObjectStore, text: str, key: str, folder: Path) -> Path:
    """The folder of the copies, which appears by one rename."""
    sizes = find_files(store, parse_url_finding(text, key))
    if not sizes:
        raise user_error(
            "ST109", f"`{text}` matches no file in the store", key=key, fix="name files that exist in the store"
        )
    digest = hashlib.sha256(text.encode())
    for name in sorted(sizes):
        digest.update(f"\0{name}\0{store.identity(name)}".encode())
    target = folder / digest.hexdigest()[:32]
    if target.is_dir():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        free, needed = shutil.disk_usage(folder).free, sum(sizes.values())
        if needed > free:
            raise StoreError("disk", detail=f"the copy needs {needed:,} bytes and `{folder}` has {free:,} free")
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="store-data") as pool:
            jobs = [pool.submit(_copy, store, name, temporary / name, size) for name, size in sizes.items()]
            for job in jobs:
                job.result()
        try:
            temporary.rename(target)
        except OSError:
            if not target.is_dir():  # another run was faster
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _copy(store: ObjectStore, name: str, path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    for attempt in (1, 2):
        store.download(name, path, size)
        if path.stat().st_size == size:
            return
        if attempt == 2:
            raise StoreError("damaged", detail=f"`{name}` has {path.stat().st_size} bytes, should have {size}")
