# SPDX-License-Identifier: Apache-2.0
"""Uploads of checkpoints to an object store, in a background thread on every rank, after the local commit.

Each rank uploads the files that it wrote. The threads agree on a process group of their own; rank 0 writes the manifest
last. An upload that fails is a warning: training goes on, and the next checkpoint is tried. Of several that wait, the
newest is uploaded. A run whose prefix another run has taken ends, unless `checkpoint.on_save_error` is `continue`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch.distributed as dist

from harness.checkpoints.evaluations import Evaluations
from harness.checkpoints.latest import checkpoint_name
from harness.checkpoints.manifest import MANIFEST, MAX_MANIFEST_BYTES, FileRecord, merge_hosts
from harness.checkpoints.store_transfer import upload_command, upload_files
from harness.checkpoints.stored_run import PrefixInUseError, RunStep, StoredRun, prune_store
from harness.file_io import read_regular
from harness.findings import Finding, Fix
from harness.object_stores.object_store import ObjectStore
from harness.object_stores.store_errors import StoreError
from harness.object_stores.store_url import StoreUrl, parse_store_url
from harness.runtime.distributed import Distributed
from harness.runtime.object_gather import all_gather_object
from harness.spec.sections.checkpoint_spec import CheckpointSpec

T = TypeVar("T")
_GROUP_TIMEOUT = timedelta(days=30)
_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class UploadOutcome:
    """The end of an upload, the same on every rank but for the time. `skipped`: why there was none, and no error."""

    step: int
    url: str
    bytes: int
    seconds: float
    error: Finding | None = None
    skipped: str = ""


@dataclass
class _Upload:
    """A checkpoint to upload: its folder, and the files that this rank wrote."""

    step: int
    folder: Path
    files: Mapping[str, FileRecord]
    bytes: int


@dataclass
class StoreUploader:
    """The uploads of one run. All ranks call `enqueue` and `finish` in the same order."""

    url: StoreUrl
    distributed: Distributed
    spec: CheckpointSpec
    run_id: str
    resumed_runs: tuple[str, ...] = ()
    """Ids of the runs that this one continues, which may own the prefix."""
    came_from: tuple[RunStep, ...] = ()
    """The checkpoints from which it resumed, the nearest first."""
    _group: dist.ProcessGroup | None = None
    _waiting: deque[_Upload] = field(default_factory=deque)
    _active: _Upload | None = None
    _outcomes: deque[UploadOutcome] = field(default_factory=deque)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _failed: _Upload | None = None
    _closed: bool = False
    _interrupted: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _stored: StoredRun | None = None
    """On rank 0: the prefix, once this run owns it."""
    _store: ObjectStore = field(init=False)
    _published: dict[Path, bytes] = field(default_factory=dict)
    moved: int = 0
    """Bytes that this rank has uploaded of the active checkpoint."""
    failure: UploadOutcome | None = None
    """The newest checkpoint, where its last upload failed."""
    lost_prefix: Finding | None = None
    """Once another run has taken the prefix (ST106)."""

    def __post_init__(self) -> None:
        self._store = ObjectStore(self.url, is_interrupted=self._interrupted.is_set)

    @staticmethod
    def open(
        distributed: Distributed,
        spec: CheckpointSpec,
        run_id: str,
        resumed_runs: tuple[str, ...],
        came_from: tuple[RunStep, ...] = (),
    ) -> StoreUploader | None:
        """The uploader of a run, and its thread; None without `checkpoint.upload_to`. A collective."""
        if spec.upload_to is None:
            return None
        group = dist.new_group(backend="gloo", timeout=_GROUP_TIMEOUT)
        url = parse_store_url(spec.upload_to)
        uploader = StoreUploader(url, distributed, spec, run_id, resumed_runs, came_from, group)
        uploader._thread = threading.Thread(target=uploader._run, name="checkpoint-upload", daemon=True)
        uploader._thread.start()
        return uploader

    def enqueue(self, step: int, folder: Path, files: Mapping[str, FileRecord], size: int) -> None:
        """Upload a complete checkpoint; `files` are those of this rank, `size` is the bytes of all."""
        with self._changed:
            self._waiting.append(_Upload(step, folder, files, size))
            self._changed.notify_all()

    def command(self, folder: Path) -> str:
        """The command that uploads a checkpoint later."""
        return upload_command(folder, str(self.url))

    def steps_in_use(self) -> set[int]:
        """Steps whose folders must stay: the one that is uploaded now, and the newest that waits."""
        with self._changed:
            return {upload.step for upload in (self._active, *list(self._waiting)[-1:]) if upload is not None}

    def pop_outcomes(self) -> list[UploadOutcome]:
        """The uploads of this rank that have ended since the last call."""
        with self._changed:
            outcomes = list(self._outcomes)
            self._outcomes.clear()
            return outcomes

    def pending_upload(self) -> tuple[Path, int] | None:
        """The newest checkpoint that is not in the store, and the bytes of this rank's files; None if all are there."""
        with self._changed:
            newest = self._waiting[-1] if self._waiting else self._active or self._failed
        return None if newest is None else (newest.folder, sum(record.bytes for record in newest.files.values()))

    def finish(self, is_interrupted: Callable[[], bool]) -> list[UploadOutcome]:
        """Wait for all uploads, try the newest checkpoint again where its upload failed, and end the thread.
        `is_interrupted` is called repeatedly: where it is true on a rank, all end what they upload.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        while self._thread is not None and self.distributed.any_rank(self._thread.is_alive()):
            self._thread.join(_POLL_SECONDS)
            if self.distributed.any_rank(is_interrupted()):
                self._interrupted.set()
        return self.pop_outcomes()

    def _run(self) -> None:
        """The thread. The threads of all ranks take the same uploads in the same order."""
        while (upload := self._next()) is not None:
            self._try_to_upload(upload)
        if self._failed is not None and self.lost_prefix is None:  # the run has ended: a last attempt
            self._try_to_upload(self._failed)
        if self.distributed.is_main_process:
            with contextlib.suppress(StoreError, PrefixInUseError, OSError):
                self._refresh_manifests()

    def _next(self) -> _Upload | None:
        """The next upload, once there is one; None where the run has ended."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            self._active = self._waiting.popleft() if self._waiting else None
            return self._active

    def _try_to_upload(self, upload: _Upload) -> None:
        start, skipped, error = time.monotonic(), "", None
        try:
            skipped, error = self._upload(upload)
        except Exception as caught:  # of the process group, as another rank has died
            error = self._to_finding(upload, self.distributed.rank, caught)
        url, seconds = str(self.url.child(checkpoint_name(upload.step))), time.monotonic() - start
        outcome = UploadOutcome(upload.step, url, upload.bytes, seconds, error, skipped)
        with self._changed:
            self._active = None
            self._outcomes.append(outcome)
            if not outcome.skipped:
                self._failed, self.failure = (upload, outcome) if error is not None else (None, None)
            if error is not None and error.gate == "ST106":
                self.lost_prefix = self.lost_prefix or error  # the first, which is the same on all ranks

    def _upload(self, upload: _Upload) -> tuple[str, Finding | None]:
        """Why it was skipped, or the error; the same on all ranks."""
        is_main, gather = self.distributed.is_main_process, self._all_gather_object
        skipped, error = gather(self._begin(upload) if is_main else ("", None))[0]
        if skipped or error is not None:
            return skipped, error
        finding = self._call(upload, lambda: self._upload_own_files(upload))
        finding = next((one for one in gather(finding) if one is not None), None)
        if finding is None and is_main:
            finding = self._call(upload, lambda: self._publish(upload))
        if finding is None and is_main:
            with contextlib.suppress(StoreError, PrefixInUseError, OSError):  # what stays is tried again at the next
                self._refresh_manifests()
                prune_store(self._open_store(), self.spec, Evaluations.read(upload.folder.parent), upload.step)
        return "", gather(finding)[0]

    def _begin(self, upload: _Upload) -> tuple[str, Finding | None]:
        """On rank 0: is it uploaded, and the first keys of it."""
        with self._changed:
            is_newest = not self._waiting
        every = self.spec.keep_every_steps
        if not is_newest and not (every and upload.step % every == 0):
            return "a newer checkpoint is uploaded in its place", None
        if not (upload.folder / MANIFEST).is_file():
            return "it was removed before its upload began", None

        def begin_upload() -> None:
            stored = self._open_store()
            stored.begin_upload(upload.step, self._read_manifest(upload.folder))

        return "", self._call(upload, begin_upload)

    def _publish(self, upload: _Upload) -> None:
        manifest = self._read_manifest(upload.folder)
        self._open_store().publish(upload.step, manifest)
        self._published[upload.folder] = manifest

    def _upload_own_files(self, upload: _Upload) -> None:
        self.moved = 0
        upload_files(self._store, upload.folder, checkpoint_name(upload.step), upload.files, self._count)

    def _count(self, moved: int) -> None:
        self.moved += moved

    def _open_store(self) -> StoredRun:
        """On rank 0: the prefix, which this run owns from its first upload on."""
        if self._stored is None:
            stored = StoredRun(self._store)
            stored.claim(self.run_id, self.run_id.rpartition("-")[0], self.resumed_runs, self.came_from)
            self._stored = stored
        return self._stored

    def _refresh_manifests(self) -> None:
        """Write the manifests again that an evaluation has changed since their upload."""
        for folder, content in list(self._published.items()):
            try:
                current = self._read_manifest(folder)
            except OSError:
                del self._published[folder]
                continue
            if current != content:
                step = int(folder.name.rpartition("-")[2])
                self._open_store().publish(step, current)
                self._published[folder] = current

    def _call(self, upload: _Upload, work: Callable[[], None]) -> Finding | None:
        try:
            work()
        except (StoreError, PrefixInUseError, OSError) as error:
            return self._to_finding(upload, self.distributed.rank, error)
        return None

    @staticmethod
    def _read_manifest(folder: Path) -> bytes:
        """The manifest for the store, where the files of all hosts are together. Raises OSError."""
        content = read_regular(folder / MANIFEST, MAX_MANIFEST_BYTES, follow=False)
        return merge_hosts(content)

    def _to_finding(self, upload: _Upload, rank: int, error: Exception) -> Finding:
        reason = str(error) if isinstance(error, StoreError | PrefixInUseError) else type(error).__name__
        gate = "ST106" if isinstance(error, PrefixInUseError) else "ST107"
        return Finding(
            gate,
            "warning",
            f"the checkpoint of step {upload.step} is not in `{self.url}`: rank {rank}: {reason}",
            key="checkpoint.upload_to",
            notes=("the checkpoint on the disk is complete",),
            fix=Fix(f"upload it later: {self.command(upload.folder)}"),
        )

    def _all_gather_object(self, value: T) -> list[T]:
        return all_gather_object(value, self._group)
