# SPDX-License-Identifier: Apache-2.0
"""A checkpoint or an export to an object store, a checkpoint from one: `harness checkpoint upload` and `download`."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from harness.checkpoints.checkpoint_list import find_manifest
from harness.checkpoints.latest import find_latest
from harness.checkpoints.lineage import find_lineage
from harness.checkpoints.manifest import MANIFEST, MAX_MANIFEST_BYTES, Manifest, merge_hosts
from harness.checkpoints.store_export import upload_export
from harness.checkpoints.store_source import find_stored_checkpoint, parse_url_finding, store_finding
from harness.checkpoints.store_transfer import download_checkpoint, upload_files
from harness.checkpoints.stored_run import PrefixInUseError, StoredRun
from harness.errors import ExitCode, UserError, user_error
from harness.file_io import read_regular
from harness.findings import Finding, Fix
from harness.object_stores.object_store import ObjectStore
from harness.object_stores.store_errors import StoreError
from harness.object_stores.store_url import StoreUrl

_EXPORT_FILES = ("config.json", "adapter_config.json")


def upload_folder(path: Path, text: str) -> str:
    """Upload a complete checkpoint below a prefix of its own run, or an export to an empty prefix; returns its URL.
    Raises UserError.
    """
    url = parse_url_finding(text)
    if not (path / MANIFEST).exists() and any((path / name).is_file() for name in _EXPORT_FILES):
        try:
            newest = find_latest(path.resolve().parent / "checkpoints", verify="manifest").checkpoint
            upload_export(path, str(url), runs=find_lineage(newest).runs_at(None))
        except StoreError as error:
            raise UserError([store_finding(error, url, "", "the export is not in the store")]) from None
        return str(url)
    return _upload_checkpoint(path, url)


def _upload_checkpoint(path: Path, url: StoreUrl) -> str:
    manifest, stored = find_manifest(path), StoredRun(ObjectStore(url))
    folder, run_id = manifest.folder.name, str(manifest.get("run_id"))
    try:
        owner = stored.read_owner()
        if owner is not None and run_id in owner.runs:
            stored.owner = owner
        else:
            lineage = find_lineage(manifest.folder)
            origins = [origin for origin in lineage.steps if origin[0] != run_id]
            stored.claim(run_id, str(manifest.get("run") or folder), lineage.runs_at(str(url)), origins)
        content = merge_hosts(read_regular(manifest.folder / MANIFEST, MAX_MANIFEST_BYTES, follow=False))
        others = {name: record for name, record in manifest.files.items() if name not in manifest.local_files}
        if others and not stored.has_begun(manifest.step, content):
            stored.store.remove(f"{folder}/{name}" for name in others)  # of another save of this step
        stored.begin_upload(manifest.step, content)
        upload_files(stored.store, manifest.folder, folder, manifest.local_files)
        missing = {r.node for name, r in others.items() if stored.store.size(f"{folder}/{name}") != r.bytes}
        if missing:
            raise UserError([_other_hosts_finding(url, folder, manifest, missing)])
        stored.publish(manifest.step, content)
    except PrefixInUseError as error:
        raise user_error("ST106", f"the prefix `{url}` is in use: {error}", fix="name another prefix") from None
    except StoreError as error:
        raise UserError([store_finding(error, url, "", "the checkpoint is not in the store")]) from None
    return str(url.child(folder))


def _other_hosts_finding(url: StoreUrl, folder: str, manifest: Manifest, missing: Collection[int]) -> Finding:
    """Of a checkpoint whose hosts share no disk, after the upload of one of them."""
    hosts = len({record.node for record in manifest.files.values()})
    message = f"`{url.child(folder)}` has the files of this host, and not yet those of {len(missing)} of {hosts} hosts"
    numbers = ", ".join(map(str, sorted(missing)))
    note = f"each host has only its own files on its disk: missing are those of host {numbers}, counted from 0"
    fix = Fix("run the same command on each of the other hosts; the last one completes the checkpoint")
    return Finding("ST110", "error", message, notes=(note,), fix=fix)


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
