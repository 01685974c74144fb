# SPDX-License-Identifier: Apache-2.0
"""The files of a checkpoint that a host lacks, where each has only its own disk: from the other hosts, or the store.

After it every host has the whole checkpoint, each file with the sha256 of the manifest.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist

from harness.checkpoints.manifest import MANIFEST, Manifest, parse_manifest, read_manifest, write_manifest
from harness.checkpoints.store_transfer import download_file, is_intact
from harness.checkpoints.stored_run import StoredRun
from harness.errors import UserError, user_error
from harness.file_io import fsync_folder
from harness.object_stores.object_store import ObjectStore
from harness.object_stores.store_errors import StoreError
from harness.object_stores.store_url import parse_store_url
from harness.runtime.checkpoint.host_commit import HostDisk
from harness.runtime.distributed import Distributed

_CHUNK_BYTES = 16 * 2**20


def complete_on_hosts(
    folder: Path, distributed: Distributed, upload_to: str | None, *, main_only: bool = False
) -> None:
    """Give each host (`main_only`: that of rank 0) the files of the checkpoint that it lacks. A collective.

    Rank 0's host has the manifest. Raises UserError on all ranks: CK101 if that host lacks it, CK132 if neither a
    host nor the store has a file, CK110 if a host cannot write.
    """
    disk = HostDisk.find(distributed)
    group = dist.new_group(ranks=list(disk.leaders), backend="gloo")
    manifest = _share_manifest(folder, distributed)
    intact = _find_intact(folder, manifest) if disk.is_leader else set()
    by_rank = distributed.all_gather_object(sorted(intact))
    nowhere = [name for name in manifest.files if not any(name in by_rank[rank] for rank in disk.leaders)]
    if nowhere:
        distributed.call_or_fail_everywhere(
            lambda: _fetch(folder, manifest, nowhere, upload_to) if distributed.is_main_process else None
        )
        by_rank[0] = [*by_rank[0], *nowhere]
    takers = [rank for rank in disk.leaders if rank == 0 or not main_only]
    wanted = [name for name in sorted(manifest.files) if any(name not in by_rank[rank] for rank in takers)]
    error: UserError | None = None
    if disk.is_leader:
        keep = distributed.rank in takers
        for name in wanted:
            source = next(rank for rank in disk.leaders if name in by_rank[rank])
            own = folder / name
            target = own if keep and name not in by_rank[distributed.rank] else None
            try:
                _broadcast(own, target, manifest.files[name].bytes, source, distributed.rank, group)
            except OSError as caught:
                message = f"`{own}` cannot be written on the host of rank {distributed.rank}"
                reason = (caught.strerror or str(caught)).lower()
                error = error or user_error("CK110", f"{message}: {reason}", fix="free space there")
        if keep and error is None:
            error = _finish(folder, manifest, distributed.rank)
    distributed.long_barrier()
    distributed.raise_everywhere(error)


def _share_manifest(folder: Path, distributed: Distributed) -> Manifest:
    """Rank 0's, on every rank."""

    def read() -> str:
        if not distributed.is_main_process:
            return ""
        read_manifest(folder)  # raises with a finding
        return (folder / MANIFEST).read_text(encoding="utf-8")

    text = distributed.all_gather_object(distributed.call_or_fail_everywhere(read))[0]
    return parse_manifest(folder, text.encode())


def _find_intact(folder: Path, manifest: Manifest) -> set[str]:
    return {name for name, record in manifest.files.items() if is_intact(folder / name, record)}


def _fetch(folder: Path, manifest: Manifest, names: list[str], upload_to: str | None) -> None:
    """From the store, on rank 0. Raises UserError (CK132)."""
    reason = "no `checkpoint.upload_to` is set"
    if upload_to is not None:
        try:
            stored = StoredRun(ObjectStore(parse_store_url(upload_to)))
            in_store, _ = stored.read_manifest(manifest.step)
            for name in names:
                record, stored_record = manifest.files[name], in_store.files.get(name)
                if stored_record is not None and stored_record.sha256 == record.sha256:
                    download_file(stored.store, f"{folder.name}/{name}", folder / name, record)
            if all(is_intact(folder / name, manifest.files[name]) for name in names):
                return
            reason = "the store has other files of this step"
        except StoreError as error:
            reason = f"`{upload_to}`: {error}"
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
    nodes = sorted({manifest.files[name].node for name in names})
    raise user_error(
        "CK132",
        f"{len(names)} files of `{folder}` are on no host of this run, such as `{names[0]}`; {reason}",
        notes=(f"they were written on host {', '.join(map(str, nodes))} of the run that saved them, counted from 0",),
        fix="run on the hosts that have them, or set `checkpoint.upload_to`, whose copies survive the loss of a host",
    )


def _broadcast(own: Path, target: Path | None, size: int, source: int, rank: int, group: dist.ProcessGroup) -> None:
    """One file from rank `source` to all of the group; written to `target`, where that is given. An error is raised
    only after the last collective.
    """
    error: OSError | None = None
    part = own.with_name(f"{own.name}.part")
    if target is not None:
        part.parent.mkdir(parents=True, exist_ok=True)
    reader = own.open("rb") if rank == source else None
    writer = None
    try:
        writer = part.open("wb") if target is not None else None
    except OSError as caught:
        error = caught
    for start in range(0, size, _CHUNK_BYTES):
        length = min(_CHUNK_BYTES, size - start)
        chunk = (
            torch.frombuffer(bytearray(reader.read(length).ljust(length, b"\0")), dtype=torch.uint8)
            if reader
            else torch.empty(length, dtype=torch.uint8)
        )
        dist.broadcast(chunk, source, group=group)
        try:
            if writer is not None and error is None:
                writer.write(chunk.numpy().tobytes())
        except OSError as caught:
            error = caught
    if reader is not None:
        reader.close()
    if writer is not None:
        with writer:
            writer.flush()
            os.fsync(writer.fileno())
        if error is None and target is not None:
            part.rename(target)
    if error is not None:
        raise error


def _finish(folder: Path, manifest: Manifest, rank: int) -> UserError | None:
    """Compare every byte, then let the manifest say that all files are here."""
    damaged = [name for name, record in manifest.files.items() if not is_intact(folder / name, record)]
    if damaged:
        return user_error(
            "CK101", f"`{folder / damaged[0]}` has other bytes than were saved, on the host of rank {rank}"
        )
    body = {key: value for key, value in manifest.body.items() if key not in ("checksum", "node")}
    try:
        write_manifest(folder, {**body, "layout": "shared"})
        fsync_folder(folder.parent)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        return user_error("CK110", f"`{folder}` cannot be written on the host of rank {rank}: {reason}")
    return None
