# SPDX-License-Identifier: Apache-2.0
"""One checkpoint to an object store, or from one, as `harness checkpoint upload` and `download` do it."""

from __future__ import annotations

from pathlib import Path

from harness.checkpoints.checkpoint_list import find_manifest
from harness.checkpoints.manifest import MANIFEST, MAX_MANIFEST_BYTES
from harness.checkpoints.store_source import find_stored_checkpoint, parse_url_finding, store_finding
from harness.checkpoints.store_transfer import download_checkpoint, upload_files
from harness.checkpoints.stored_run import PrefixInUseError, StoredRun
from harness.errors import ExitCode, UserError
from harness.file_io import read_regular
from harness.findings import Finding, Fix
from harness.object_stores.object_store import ObjectStore
from harness.object_stores.store_errors import StoreError


def upload_checkpoint(path: Path, text: str) -> str:
    """Upload a complete checkpoint below a prefix of its own run; returns its URL there. Raises UserError."""
    url = parse_url_finding(text)
    manifest, stored = find_manifest(path), StoredRun(ObjectStore(url))
    folder, run_id = manifest.folder.name, str(manifest.get("run_id"))
    try:
        owner = stored.read_owner()
        if owner is not None and run_id in owner.runs:
            stored.owner = owner
        else:
            stored.claim(run_id, str(manifest.get("run") or folder), ())
        content = read_regular(manifest.folder / MANIFEST, MAX_MANIFEST_BYTES, follow=False)
        stored.begin_upload(manifest.step, content)
        upload_files(stored.store, manifest.folder, folder, manifest.files)
        stored.publish(manifest.step, content)
    except PrefixInUseError as error:
        fix = Fix("name another prefix")
        raise UserError([Finding("ST106", "error", f"the prefix `{url}` is in use: {error}", fix=fix)]) from None
    except StoreError as error:
        raise UserError([store_finding(error, url, "", "the checkpoint is not in the store")]) from None
    return str(url.child(folder))


def download_to(text: str, folder: Path) -> Path:
    """Download a checkpoint, or the newest below a prefix, into a folder of checkpoints; returns its place. Raises
    UserError, also where it already exists.
    """
    source, _, _ = find_stored_checkpoint(text)
    target, url = folder / source.folder_name, parse_url_finding(source.url)
    if target.exists():
        message = f"`{target}` already exists"
        raise UserError([Finding("CK106", "error", message, fix=Fix("name another folder"))], ExitCode.USAGE)
    try:
        download_checkpoint(StoredRun(ObjectStore(url)), source.step, target, checksum=source.checksum)
    except StoreError as error:
        raise UserError([store_finding(error, url, "", "the checkpoint is not on the disk")]) from None
    return target
