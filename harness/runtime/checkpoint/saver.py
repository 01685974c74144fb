"""Saving: collected on every rank, written beside the final name, agreed on, published by one rename.

    checkpoints/step-00000100/manifest.json      written last; what is listed there is there
                              global_step100/    DeepSpeed's tag folder
                              rank-00000.pt      random states of a rank
                              huggingface/       config.json, generation_config.json, tokenizer: what an export needs
    checkpoints/latest                           the name of the newest complete one, for people

With `checkpoint.async_save` the write and the agreement are done by a thread on a process group of its own, from a copy
in host memory; training waits for the copy alone. One save is on its way at a time.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from harness.checkpoints.evaluations import Evaluations
from harness.checkpoints.latest import checkpoint_name
from harness.checkpoints.retention import remove_leftovers
from harness.findings import Finding
from harness.runtime.checkpoint import metadata, nvme_states, parallel_layout, rng_state
from harness.runtime.checkpoint.commit import PendingSave, commit_save, create_empty_folder, discard_folder
from harness.runtime.checkpoint.deepspeed_io import collect_files
from harness.runtime.checkpoint.disk_space import disk_full_error, save_failed_finding
from harness.runtime.checkpoint.hashing_writer import CheckpointFile
from harness.runtime.checkpoint.shared_fs import check_shared_folder
from harness.runtime.checkpoint.snapshot import HostSnapshot, available_host_bytes
from harness.runtime.context import RunContext
from harness.runtime.distributed import Distributed
from harness.runtime.run_config import RunDir
from harness.runtime.train_state import TrainState
from harness.spec.sections.launch_spec import CheckpointSpec

_GROUP_TIMEOUT = timedelta(hours=24)
_SPARE_BYTES = 2**30
"""Host memory that a copy leaves alone."""

Gather = Callable[[Any], list[Any]]


@dataclass(frozen=True)
class SaveOutcome:
    """How a save ended, the same on every rank but for the times: `stalled` is how long this rank's training waited,
    `copied` what of it went by before the write began (all of it, for a save in line), `seconds` how long all took.
    """

    step: int
    folder: Path
    bytes: int
    stall_seconds: float
    copy_seconds: float
    seconds: float
    background: bool
    error: Finding | None = None


@dataclass
class _BackgroundSave:
    """A save that a thread is at."""

    pending: PendingSave
    thread: threading.Thread
    start_time: float
    stall_seconds: float
    end_time: float = 0.0
    result: Finding | None = None
    exception: BaseException | None = None


@dataclass
class CheckpointSaver:
    """Saves of one run. Every method is a collective: all ranks call it at the same step."""

    run_dir: RunDir
    distributed: Distributed
    spec: CheckpointSpec
    protected: Path | None = None
    """The checkpoint that the run goes on from: never removed, and not written over."""
    _group: Any = None
    _snapshot: HostSnapshot = field(default_factory=HostSnapshot)
    _background_save: _BackgroundSave | None = None
    _hugging_face: dict[str, bytes] | None = None

    @staticmethod
    def open(run_dir: RunDir, ranks: Distributed, spec: CheckpointSpec) -> CheckpointSaver:
        """Also removes what a killed save left in the run directory. Raises Refused on all ranks when the folder cannot
        be written (CK110), or is not the same one everywhere (CK116).
        """
        ranks.call_or_fail_everywhere(lambda: check_shared_folder(run_dir.checkpoints, ranks))
        group = dist.new_group(backend="gloo", timeout=_GROUP_TIMEOUT) if spec.async_save else None
        if ranks.is_main_process:
            remove_leftovers(run_dir.checkpoints)
        ranks.barrier()
        return CheckpointSaver(run_dir, ranks, spec, _group=group)

    def save(self, job: RunContext, state: TrainState, *, background: bool | None = None) -> list[SaveOutcome]:
        """Save, and return what has ended by now: an earlier save that was on its way, and this one unless a thread
        is left to write it (`background`; default: as the spec says). An error is in the outcome, not raised.
        """
        began = time.perf_counter()
        ended = self.wait_for_pending_save()
        final = self.run_dir.checkpoints / checkpoint_name(state.step)
        if self.protected is not None and self.protected == final:
            return ended  # it is there, and training has not moved
        plan = self._prepare_save(job, state, final)
        wrong = self._check_folder(plan)
        if wrong is not None:
            return [*ended, self._make_outcome(plan, began, wrong)]
        if self._copy_to_host(plan, self.spec.async_save if background is None else background, job):
            self._start_background(plan, began)
            return ended
        found = commit_save(plan, self.distributed.all_gather_object)
        self._drop_converted(found)
        return [*ended, self._make_outcome(plan, began, found)]

    def record_eval(self, step: int, **measured: Any) -> None:
        """Keep what an evaluation gave, for manifests and for `keep_best`. A disk that is full keeps none: a choice
        depends on it, nothing else.
        """
        if not self.distributed.is_main_process:
            return
        folder = self.run_dir.checkpoints
        with contextlib.suppress(OSError):
            Evaluations.read(folder).up_to(step).with_evaluation(step, measured).write(folder)

    def poll_pending_save(self) -> list[SaveOutcome]:
        """At the end of a step: the save that a thread was at, once it is done on all ranks."""
        if self._background_save is None or self.distributed.any_rank(self._background_save.thread.is_alive()):
            return []
        return self.wait_for_pending_save()

    def wait_for_pending_save(self) -> list[SaveOutcome]:
        """Wait for the save that is on its way, if one is. Before a rank ends, and before the next save."""
        flight, self._background_save = self._background_save, None
        if flight is None:
            return []
        waited = time.perf_counter()
        flight.thread.join()
        if flight.exception is not None:
            raise flight.exception
        self._drop_converted(flight.result)
        stalled = flight.stall_seconds + time.perf_counter() - waited
        step, folder, size = flight.pending.step, flight.pending.final, flight.pending.bytes
        return [
            SaveOutcome(
                step,
                folder,
                size,
                stalled,
                flight.stall_seconds,
                flight.end_time - flight.start_time,
                True,
                flight.result,
            )
        ]

    def _prepare_save(self, job: RunContext, state: TrainState, final: Path) -> PendingSave:
        """What this rank has to write, by reference, and the manifest without files."""
        temporary = final.with_name(f".tmp-{final.name}")
        parts = collect_files(job.engine, temporary, metadata.tag_of(state))
        parts.append(CheckpointFile(f"rank-{self.distributed.rank:05d}.pt", rng_state.get_rng_state()))
        body = metadata.manifest_fields(job, state) | {"shape": parallel_layout.describe_job_layout(job)}
        if self.distributed.is_main_process:
            if self._hugging_face is None:
                self._hugging_face = metadata.hugging_face_files(job)
            parts += [CheckpointFile(name, content) for name, content in self._hugging_face.items()]
        return PendingSave(state.step, temporary, final, body, parts, self.distributed, self.spec, self.protected)

    def _check_folder(self, plan: PendingSave) -> Finding | None:
        """The folder is there and has room; or why not, the same on every rank."""
        error: OSError | None = None
        if self.distributed.is_main_process:
            try:
                create_empty_folder(plan.temporary)
            except OSError as caught:
                error = caught
        sizes = self.distributed.all_gather_object((sum(p.bytes for p in plan.files), _error_values(error)))
        plan.bytes = sum(size for size, _ in sizes)
        if error is None and self.distributed.is_main_process:
            try:
                error = disk_full_error(plan.temporary, plan.bytes)
            except OSError as caught:
                error = caught
        wrong = next((e for e in self.distributed.all_gather_object(_error_values(error)) if e is not None), None)
        if wrong is None:
            return None
        found = (
            save_failed_finding(plan.step, plan.final.parent, 0, OSError(*wrong), plan.bytes)
            if self.distributed.is_main_process
            else None
        )
        if self.distributed.is_main_process:
            discard_folder(plan.temporary)
        return next(f for f in self.distributed.all_gather_object(found) if f is not None)

    def _copy_to_host(self, plan: PendingSave, background: bool, job: RunContext) -> bool:
        """Replace the references by a copy, where a thread is to write and host memory allows it on all ranks."""
        if not background or self._group is None:
            return False
        mine, free = sum(p.bytes for p in plan.files), available_host_bytes()
        here = max(
            1, int(job.distributed.world_size / max(1, len(set(self.distributed.all_gather_object(_host_name())))))
        )
        no_room = free is not None and mine * here + _SPARE_BYTES > free
        if self.distributed.any_rank(no_room or nvme_states.uses_nvme(job.engine.optimizer)):
            return False
        self._snapshot.recycle_memory()
        plan.files = [CheckpointFile(p.name, self._snapshot.copy_of(p.content)) for p in plan.files]
        self._snapshot.release_spare_memory()
        return True

    def _start_background(self, plan: PendingSave, began: float) -> None:
        thread = threading.Thread(target=self._write_in_background, name="checkpoint-write", daemon=True)
        self._background_save = _BackgroundSave(plan, thread, began, time.perf_counter() - began)
        thread.start()

    def _write_in_background(self) -> None:
        flight = self._background_save
        if flight is None:
            return
        try:
            flight.result = commit_save(flight.pending, self._gather)
        except BaseException as error:  # it is raised where the thread is joined
            flight.exception = error
        flight.end_time = time.perf_counter()

    def _gather(self, value: Any) -> list[Any]:
        out: list[Any] = [None] * self.distributed.world_size
        dist.all_gather_object(out, value, group=self._group)
        return out

    def _drop_converted(self, error: Finding | None) -> None:
        """What was converted for a resume in another shape is not needed once a checkpoint of this shape is there."""
        if error is None and self.distributed.is_main_process:
            parallel_layout.remove_converted(self.run_dir)

    def _make_outcome(self, plan: PendingSave, began: float, error: Finding | None) -> SaveOutcome:
        took = time.perf_counter() - began
        return SaveOutcome(plan.step, plan.final, plan.bytes, took, took, took, False, error)


def _error_values(error: OSError | None) -> tuple[int | None, str] | None:
    return None if error is None else (error.errno, error.strerror or str(error))


def _host_name() -> str:
    from harness.hostinfo.machine import host_identity

    return host_identity()
