# SPDX-License-Identifier: Apache-2.0
"""Save a checkpoint: every rank collects its files and writes them to a temporary folder; one rename publishes it.

    checkpoints/step-00000100/manifest.json      written last: it lists every file
                              global_step100/    DeepSpeed's tag folder
                              rank-00000.pt      random states of a rank
                              huggingface/       config.json, generation_config.json, tokenizer, for exports
    checkpoints/latest                           the name of the newest complete one, for people

With `checkpoint.async_save` a background thread writes and agrees, from a copy in host memory and on a process group of
its own; training waits for the copy alone. One save is pending at a time.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from harness.checkpoints.evaluations import Evaluations
from harness.checkpoints.latest import checkpoint_name
from harness.checkpoints.manifest import MANIFEST, update_manifest
from harness.checkpoints.retention import remove_leftovers
from harness.errors import UserError, user_error
from harness.findings import Finding
from harness.runtime.checkpoint import metadata, nvme_states, reshard, rng_state
from harness.runtime.checkpoint.commit import PendingSave, commit_save, create_empty_folder, discard_folder
from harness.runtime.checkpoint.disk_space import disk_full_error, save_failed_finding
from harness.runtime.checkpoint.hashing_writer import CheckpointFile
from harness.runtime.checkpoint.host_commit import HostDisk, check_own_folder
from harness.runtime.checkpoint.snapshot import HostSnapshot, available_host_bytes
from harness.runtime.checkpoint.uploader import StoreUploader
from harness.runtime.distributed import Distributed
from harness.runtime.object_gather import all_gather_object
from harness.runtime.run_config import RunDir
from harness.runtime.train_context import TrainContext
from harness.runtime.train_state import TrainState
from harness.spec.sections.checkpoint_spec import CheckpointSpec

_WAIT_SECONDS = 5.0
"""A network file system may not show a new file at once."""
T = TypeVar("T")
_GROUP_TIMEOUT = timedelta(hours=24)
_SPARE_BYTES = 2**30
"""Host memory that a copy leaves free."""


@dataclass(frozen=True)
class SaveOutcome:
    """The end of a save, the same on every rank but for the times. `stall_seconds`: the wait of this rank's training;
    `copy_seconds`: the part of it before the write began (all of it, for a save in line); `seconds`: the whole save.
    """

    step: int
    folder: Path
    bytes: int
    stall_seconds: float
    copy_seconds: float
    seconds: float
    background: bool
    error: Finding | None = None
    warning: Finding | None = None
    """On the main process: what went wrong after the checkpoint was complete."""


@dataclass
class _BackgroundSave:
    """A save in a background thread."""

    pending: PendingSave
    thread: threading.Thread
    start_time: float
    stall_seconds: float
    end_time: float = 0.0
    result: Finding | None = None
    exception: BaseException | None = None


@dataclass
class CheckpointSaver:
    """The saves of one run. Every method is a collective: all ranks call it at the same step."""

    run_dir: RunDir
    distributed: Distributed
    spec: CheckpointSpec
    protected: Path | None = None
    """The checkpoint that the run resumed from: never overwritten."""
    disk: HostDisk | None = None
    """With `launch.shared_disk: false`: this host's own disk, which the first rank of the host looks after."""
    uploader: StoreUploader | None = None
    """Uploads each complete checkpoint, with `checkpoint.upload_to`."""
    _group: dist.ProcessGroup | None = None
    _snapshot: HostSnapshot = field(default_factory=HostSnapshot)
    _background_save: _BackgroundSave | None = None
    _hugging_face: dict[str, bytes] | None = None
    _evaluated_state: TrainState | None = None
    """The state that counts the last evaluation, until the manifest of its step has it."""

    @staticmethod
    def open(
        run_dir: RunDir, distributed: Distributed, spec: CheckpointSpec, *, shared_disk: bool = True
    ) -> CheckpointSaver:
        """A saver for the run; removes the leftovers of a killed save. Raises UserError on all ranks when the folder
        cannot be written (CK110), or is not the same one everywhere (CK116); without a `shared_disk`, where hosts share
        it (CK133).
        """
        disk = None if shared_disk else HostDisk.find(distributed)
        if disk is None:
            distributed.call_or_fail_everywhere(lambda: check_shared_folder(run_dir.checkpoints, distributed))
        else:
            check_own_folder(run_dir.checkpoints, distributed, disk)
        group = dist.new_group(backend="gloo", timeout=_GROUP_TIMEOUT) if spec.async_save else None
        if distributed.is_main_process if disk is None else disk.is_leader:
            remove_leftovers(run_dir.checkpoints)
        distributed.barrier()
        return CheckpointSaver(run_dir, distributed, spec, disk=disk, _group=group)

    def save(self, ctx: TrainContext, state: TrainState, *, background: bool) -> list[SaveOutcome]:
        """Save, and return the finished saves: the pending one, and this one unless a thread writes it (`background`).
        An error is in the outcome, not raised.
        """
        start_time = time.perf_counter()
        outcomes = self.wait_for_pending_save()
        final = self.run_dir.checkpoints / checkpoint_name(state.step)
        if self.protected is not None and self.protected == final:
            return outcomes  # the run resumed from this step, and has trained no other
        pending = self._prepare_save(ctx, state, final)
        error = self._check_folder(pending)
        if error is not None:
            return [*outcomes, self._make_outcome(pending, start_time, error)]
        if self._copy_to_host(pending, background, ctx):
            self._start_background(pending, start_time)
            return outcomes
        error = commit_save(pending, self.distributed.all_gather_object)
        self._drop_converted(error)
        self._enqueue_upload(pending, error)
        return [*outcomes, self._make_outcome(pending, start_time, error)]

    def record_eval(self, state: TrainState, **metrics: Any) -> None:
        """Record an evaluation, which `state` counts: for `keep_best`, for a resume from this step, and in the manifest
        of its checkpoint. A full disk records none.
        """
        if not self.distributed.is_main_process:
            return
        folder, self._evaluated_state = self.run_dir.checkpoints, state
        with contextlib.suppress(OSError):
            Evaluations.read(folder).up_to(state.step).with_evaluation(state.step, metrics).write(folder)
        self._update_manifest()

    def start_evals(self, step: int, resume: Path | None) -> None:
        """The run starts from `step` of the checkpoint `resume`: take over the evaluations that are recorded next to
        it, and remove those of later steps: else `keep_best` keeps a checkpoint for a loss that it does not have, and
        a later resume counts it. A full disk leaves them.
        """
        if not self.distributed.is_main_process:
            return
        folder = self.run_dir.checkpoints
        own, earlier = Evaluations.read(folder), Evaluations.read(resume.parent) if resume else Evaluations()
        evaluations = Evaluations({**earlier.by_step, **own.by_step}).up_to(step)
        if evaluations != own:
            with contextlib.suppress(OSError):
                evaluations.write(folder)

    def _update_manifest(self) -> None:
        """Write the last evaluation into the manifest of its step, once that is published; without a checkpoint of this
        run there, nothing.
        """
        state = self._evaluated_state
        if state is None or (self._background_save and self._background_save.pending.step == state.step):
            return
        folder = self.run_dir.checkpoints
        checkpoint = folder / checkpoint_name(state.step)
        if (checkpoint / MANIFEST).exists():
            with contextlib.suppress(OSError, UserError):
                update_manifest(checkpoint, state.evaluation_fields(), Evaluations.read(folder).to_manifest(state.step))
                self._evaluated_state = None

    def poll_pending_save(self) -> list[SaveOutcome]:
        """At the end of a step: the pending save, once its threads are done on all ranks."""
        if self._background_save is None or self.distributed.any_rank(self._background_save.thread.is_alive()):
            return []
        return self.wait_for_pending_save()

    def wait_for_pending_save(self) -> list[SaveOutcome]:
        """Wait for the pending save, if there is one. Call it before a rank ends, and before the next save."""
        save, self._background_save = self._background_save, None
        if save is None:
            return []
        wait_start = time.perf_counter()
        save.thread.join()
        if save.exception is not None:
            raise save.exception
        self._drop_converted(save.result)
        self._enqueue_upload(save.pending, save.result)
        if self.distributed.is_main_process:
            self._update_manifest()
        return [
            SaveOutcome(
                save.pending.step,
                save.pending.final,
                save.pending.bytes,
                stall_seconds=save.stall_seconds + time.perf_counter() - wait_start,
                copy_seconds=save.stall_seconds,
                seconds=save.end_time - save.start_time,
                background=True,
                error=save.result,
                warning=save.pending.warning,
            )
        ]

    def _prepare_save(self, ctx: TrainContext, state: TrainState, final: Path) -> PendingSave:
        """This rank's files, by reference, and the manifest's fields without the list of files."""
        from harness.runtime.checkpoint.deepspeed_io import collect_files

        temporary = final.with_name(f".tmp-{final.name}")
        files = collect_files(ctx.engine, temporary, metadata.tag_of(state))
        files.append(CheckpointFile(f"rank-{self.distributed.rank:05d}.pt", rng_state.get_rng_state()))
        layout = reshard.describe_layout(ctx.engine, ctx.topology, ctx.config, self.distributed)
        body = metadata.manifest_fields(ctx, state) | {"shape": layout}
        if self.distributed.is_main_process:
            if self._hugging_face is None:
                self._hugging_face = metadata.hugging_face_files(ctx)
            files += [CheckpointFile(name, content) for name, content in self._hugging_face.items()]
        in_use = set if self.uploader is None else self.uploader.steps_in_use
        return PendingSave(state.step, temporary, final, body, files, self.distributed, self.spec, 0, self.disk, in_use)

    def _check_folder(self, pending: PendingSave) -> Finding | None:
        """Create the folder and check its free space. Returns the finding where that fails, the same on every rank."""
        error: OSError | None = None
        disk, is_first = self.disk, self.distributed.is_main_process if self.disk is None else self.disk.is_leader
        if is_first:
            try:
                create_empty_folder(pending.temporary)
            except OSError as caught:
                error = caught
        node = 0 if disk is None else disk.node
        sizes = self.distributed.all_gather_object((sum(f.bytes for f in pending.files), node))
        pending.bytes = sum(size for size, _ in sizes)
        if error is None and is_first:
            try:
                error = disk_full_error(pending.temporary, sum(size for size, other in sizes if other == node))
            except OSError as caught:
                error = caught
        failure = next((e for e in self.distributed.all_gather_object(_error_values(error)) if e is not None), None)
        if failure is None:
            return None
        finding = None
        if self.distributed.is_main_process:
            finding = save_failed_finding(pending.step, pending.final.parent, 0, OSError(*failure), pending.bytes)
        if is_first:
            discard_folder(pending.temporary)
        return next(f for f in self.distributed.all_gather_object(finding) if f is not None)

    def _copy_to_host(self, pending: PendingSave, background: bool, ctx: TrainContext) -> bool:
        """Replace the references by a copy, for a background write, where all ranks have host memory for it."""
        if not background or self._group is None:
            return False
        copy_bytes, free = sum(f.bytes for f in pending.files), available_host_bytes()
        num_hosts = len(set(self.distributed.all_gather_object(_host_name())))
        ranks_per_host = max(1, int(ctx.distributed.world_size / max(1, num_hosts)))
        no_room = free is not None and copy_bytes * ranks_per_host + _SPARE_BYTES > free
        if self.distributed.any_rank(no_room or nvme_states.uses_nvme(ctx.engine.optimizer)):
            return False
        self._snapshot.recycle_memory()
        pending.files = [CheckpointFile(f.name, self._snapshot.copy_of(f.content)) for f in pending.files]
        self._snapshot.release_spare_memory()
        return True

    def _start_background(self, pending: PendingSave, start_time: float) -> None:
        thread = threading.Thread(target=self._write_in_background, name="checkpoint-write", daemon=True)
        self._background_save = _BackgroundSave(pending, thread, start_time, time.perf_counter() - start_time)
        thread.start()

    def _write_in_background(self) -> None:
        save = self._background_save
        if save is None:
            return
        try:
            save.result = commit_save(save.pending, self._all_gather_object)
        except BaseException as error:  # `wait_for_pending_save` raises it
            save.exception = error
        save.end_time = time.perf_counter()

    def _all_gather_object(self, value: T) -> list[T]:
        """On the process group of the background thread."""
        return all_gather_object(value, self._group)

    def _drop_converted(self, error: Finding | None) -> None:
        """Remove a conversion to this layout: the run now has a checkpoint in it."""
        if error is None and self.distributed.is_main_process:
            reshard.remove_converted(self.run_dir)

    def _enqueue_upload(self, pending: PendingSave, error: Finding | None) -> None:
        if error is None and self.uploader is not None:
            self.uploader.enqueue(pending.step, pending.final, pending.records, pending.bytes)

    def _make_outcome(self, pending: PendingSave, start_time: float, error: Finding | None) -> SaveOutcome:
        seconds = time.perf_counter() - start_time
        return SaveOutcome(
            pending.step,
            pending.final,
            pending.bytes,
            stall_seconds=seconds,
            copy_seconds=seconds,
            seconds=seconds,
            background=False,
            error=error,
            warning=pending.warning,
        )


def _error_values(error: OSError | None) -> tuple[int | None, str] | None:
    return None if error is None else (error.errno, error.strerror or str(error))


def _host_name() -> str:
    from harness.hostinfo.machine import host_identity

    return host_identity()


def check_shared_folder(folder: Path, distributed: Distributed) -> None:
    """A collective. Raises UserError on all ranks when rank 0 cannot write there (CK110), and on a rank that does not
    see rank 0's file (CK116).
    """
    marker, reason = folder / f".seen-{uuid.uuid4().hex}", None
    if distributed.is_main_process:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            marker.touch()
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
    name, reason = distributed.all_gather_object((marker.name, reason))[0]
    visible = reason is None and _wait_until_visible(folder / name)
    distributed.barrier()
    if distributed.is_main_process:
        with contextlib.suppress(OSError):
            marker.unlink()
    if reason is not None:
        fix = "make it writable for rank 0"
        raise user_error("CK110", f"checkpoints cannot be written to `{folder}`: {reason}", fix=fix)
    if not visible:
        raise user_error(
            "CK116",
            f"rank {distributed.rank} does not see the `{folder}` that rank 0 sees",
            notes=("a checkpoint is one folder with the shards of all ranks; folders of single hosts are not merged",),
            fix="put the run directory on a disk that all hosts share",
        )


def _wait_until_visible(path: Path) -> bool:
    """Wait a few seconds for the file; a listing of the folder makes NFS refresh it."""
    end = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            if path.name in os.listdir(path.parent):  # noqa: PTH208  (a fresh listing, no cached one)
                return True
        except OSError:
            pass
        if time.monotonic() >= end:
            return False
        time.sleep(0.2)
