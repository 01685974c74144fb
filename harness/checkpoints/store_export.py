# SPDX-License-Identifier: Apache-2.0
"""The upload of an exported folder: its files, and last `harness-export.json` with the size and sha256 of each."""

from __future__ import annotations

import json
from pathlib import Path

from harness.checkpoints.store_transfer import sha256_of
from harness.folder_walk import walk_files
from harness.object_stores.object_store import ObjectStore
from harness.object_stores.store_errors import StoreError
from harness.object_stores.store_url import parse_store_url

EXPORT_MANIFEST = "harness-export.json"
FORMAT_VERSION = 1


def upload_export(folder: Path, url: str) -> None:
    """Upload the folder to a prefix where nothing is. With its last key the export is complete. Raises StoreError."""
    store = ObjectStore(parse_store_url(url))
    foreign = store.find_entry()
    if foreign is not None:
        raise StoreError("other", detail=f"`{foreign}` already exists")
    files = {}
    try:
        for path in sorted(path for path in walk_files(folder) if path.is_file() and not path.is_symlink()):
            name = path.relative_to(folder).as_posix()
            store.upload(name, path)
            files[name] = {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
    except OSError as error:
        raise StoreError("disk", detail=(error.strerror or str(error)).lower()) from None
    content = (json.dumps({"format_version": FORMAT_VERSION, "files": files}, indent=1) + "\n").encode()
    store.write(EXPORT_MANIFEST, content)
    if store.read(EXPORT_MANIFEST, len(content)) != content:
        raise StoreError("damaged")
