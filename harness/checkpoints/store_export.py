# SPDX-License-Identifier: Apache-2.0
"""The upload of an exported folder: its files, and last `harness-export.json` with the size and sha256 of each. Until
then `harness-upload.json` says which files it will be: the same upload may be repeated over what one left.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from harness.checkpoints.store_transfer import sha256_of
from harness.folder_walk import walk_files
from harness.object_stores.object_store import ObjectStore
from harness.object_stores.silence_limit import OnBytes
from harness.object_stores.store_errors import StoreError
from harness.object_stores.store_url import parse_store_url

EXPORT_MANIFEST = "harness-export.json"
INTENT = "harness-upload.json"
_MAX_INTENT_BYTES = 2**24
FORMAT_VERSION = 1


def upload_export(
    folder: Path, url: str, is_interrupted: Callable[[], bool] = lambda: False, on_bytes: OnBytes | None = None
) -> None:
    """Upload the folder to a prefix where nothing is but an upload of it that did not end. With its last key the export
    is complete. Raises StoreError.
    """
    store = ObjectStore(parse_store_url(url), is_interrupted=is_interrupted)
    files = {}
    try:
        paths = {
            path.relative_to(folder).as_posix(): path
            for path in sorted(walk_files(folder))
            if path.is_file() and not path.is_symlink()
        }
        _begin(store, {name: path.stat().st_size for name, path in paths.items()})
        for name, path in paths.items():
            store.upload(name, path, on_bytes)
            files[name] = {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
    except OSError as error:
        raise StoreError("disk", detail=(error.strerror or str(error)).lower()) from None
    content = (json.dumps({"format_version": FORMAT_VERSION, "files": files}, indent=1) + "\n").encode()
    store.write(EXPORT_MANIFEST, content)
    if store.read(EXPORT_MANIFEST, len(content)) != content:
        raise StoreError("damaged")
    store.remove([INTENT])


def _begin(store: ObjectStore, sizes: Mapping[str, int]) -> None:
    """Say what will be uploaded. Raises StoreError where anything but an unfinished upload of the same is there."""
    content = (json.dumps(sizes, indent=1, sort_keys=True) + "\n").encode()
    foreign = store.find_entry()
    if foreign is None:
        store.write(INTENT, content)
    elif store.size(EXPORT_MANIFEST) is not None or not _has_bytes(store, INTENT, content):
        raise StoreError("other", detail=f"`{foreign}` already exists")


def _has_bytes(store: ObjectStore, name: str, content: bytes) -> bool:
    return store.size(name) is not None and store.read(name, _MAX_INTENT_BYTES) == content
