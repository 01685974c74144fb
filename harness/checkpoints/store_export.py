# SPDX-License-Identifier: Apache-2.0
"""The upload of an exported folder: its files, and last `harness-export.json` with the size and sha256 of each. Until
then `harness-upload.json` says which files it will be: the same upload may be repeated over what one left, and that of
a run, or of one that continues it, over the whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.checkpoints.manifest import is_safe_path
from harness.checkpoints.store_transfer import sha256_of
from harness.file_io import parse_json
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
    folder: Path,
    url: str,
    is_interrupted: Callable[[], bool] = lambda: False,
    on_bytes: OnBytes | None = None,
    runs: Sequence[str] = (),
) -> None:
    """Upload the folder to a prefix where nothing is, or an export of `runs`, the ids of its run and of those that this
    one continues. With its last key the export is complete. Raises StoreError.
    """
    store = ObjectStore(parse_store_url(url), is_interrupted=is_interrupted)
    files = {}
    try:
        paths = {
            path.relative_to(folder).as_posix(): path
            for path in sorted(walk_files(folder))
            if path.is_file() and not path.is_symlink()
        }
        head = {"format_version": FORMAT_VERSION, "run_id": runs[0] if runs else ""}
        _begin(store, {**head, "files": {name: path.stat().st_size for name, path in paths.items()}}, runs)
        for name, path in paths.items():
            store.upload(name, path, on_bytes)
            files[name] = {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
    except OSError as error:
        raise StoreError("disk", detail=(error.strerror or str(error)).lower()) from None
    content = (json.dumps({**head, "files": files}, indent=1) + "\n").encode()
    store.write(EXPORT_MANIFEST, content)
    if store.read(EXPORT_MANIFEST, len(content)) != content:
        raise StoreError("damaged")
    store.remove([INTENT])


def exporting_run(store: ObjectStore) -> str:
    """The id of the run whose export is there, complete or begun; empty where none says it."""
    for name in (EXPORT_MANIFEST, INTENT):
        if body := _read(store, name):
            return str(body.get("run_id") or "")
    return ""


def _begin(store: ObjectStore, intent: Mapping[str, Any], runs: Sequence[str]) -> None:
    """Say what will be uploaded. Raises StoreError where anything but an unfinished upload of the same, or an export of
    these runs, is there; of the latter goes what is not uploaded again.
    """
    foreign = store.find_entry()
    whole, begun = ({}, {}) if foreign is None else (_read(store, EXPORT_MANIFEST), _read(store, INTENT))
    if foreign is not None and exporting_run(store) not in runs and (whole or begun != intent):
        raise StoreError("other", detail=f"`{foreign}` already exists")
    store.write(INTENT, (json.dumps(intent, indent=1, sort_keys=True) + "\n").encode())
    if whole:
        store.remove([EXPORT_MANIFEST])
    store.remove({*whole.get("files", ()), *begun.get("files", ())} - {*intent["files"]})


def _read(store: ObjectStore, name: str) -> dict[str, Any]:
    """The content of one of our two keys; empty where it is not there, or not ours."""
    if store.size(name) is None:
        return {}
    try:
        body = parse_json(store.read(name, _MAX_INTENT_BYTES).decode())
    except ValueError:
        return {}
    is_ours = isinstance(body, dict) and isinstance(body.get("files"), dict) and all(map(is_safe_path, body["files"]))
    return body if is_ours else {}
